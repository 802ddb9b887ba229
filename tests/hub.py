"""A hub in 150 lines for the real client, which HF_ENDPOINT or `ours` leads here. It does wrong where it is asked."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

LARGE = (".safetensors", ".parquet", ".bin", ".gguf")
"""Kept by sha256, as with git LFS; the rest has git's ids."""


@dataclass
class Repository:
    """files: commit -> file -> bytes; refs: branch -> commit; gated: listed, but not given."""

    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    card: dict[str, Any] = field(default_factory=dict)
    gated: bool = False
    private: bool = False

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        """Returns its 40 digits."""
        told = json.dumps([branch, len(self.files), {name: digest_of(name, data) for name, data in files.items()}])
        commit = hashlib.sha1(told.encode(), usedforsecurity=False).hexdigest()
        self.files[commit] = files
        self.refs[branch] = commit
        return commit


def digest_of(name: str, data: bytes) -> str:
    if name.endswith(LARGE):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


class Hub:
    """repositories: "models/OWNER/NAME" or "datasets/OWNER/NAME"; asked: (method, path, headers) of each request.

    moved: name of before -> name; fault: what becomes of bodies ("cut", "false", or a URL that they are redirected to)
    or, a number, of everything.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.fault: str | int = ""
        self.moved: dict[str, str] = {}
        self.large: dict[str, bytes] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    def add(self, name: str, files: dict[str, bytes], kind: str = "models", **about: Any) -> str:
        """A repository with one commit, whose digits are returned."""
        repository = self.repositories[f"{kind}/{name}"] = Repository(**about)
        return repository.commit(files)

    def bodies(self) -> list[str]:
        return [path for method, path, _ in self.asked if method == "GET" and "/resolve/" in path]

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Silent."""

    def do_HEAD(self) -> None:
        self.do_GET()

    # Uploads: a repository, what is wanted of each file, large ones, and the commit that shows them all.
    def do_POST(self) -> None:
        path, body = unquote(urlsplit(self.path).path), self._body()
        self.hub.asked.append((self.command, path, {key.lower(): value for key, value in self.headers.items()}))
        if self.headers.get("Authorization") != "Bearer hf_writes" and not path.endswith("validate-yaml"):
            return self._say(403, b'{"error":"you do not have the rights"}')
        if path.endswith("/validate-yaml"):
            return self._json({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            told = json.loads(body)
            name = f"{told['organization']}/{told['name']}"
            made = self.hub.repositories.get(f"models/{name}")
            if made is None:
                made = self.hub.repositories[f"models/{name}"] = Repository(private=told.get("visibility") == "private")
                made.commit({})
                return self._json({"url": f"{self.hub.url}/{name}"})
            return self._say(409, json.dumps({"url": f"{self.hub.url}/{name}"}).encode())
        if path.endswith("/info/lfs/objects/batch"):
            return self._json(
                {"transfer": "basic", "objects": [self._wanted(one) for one in json.loads(body)["objects"]]}
            )
        name, mark, _ = path.removeprefix("/api/models/").partition("/preupload/")
        repository = self.hub.repositories[f"models/{name.partition('/commit/')[0]}"]
        now = repository.files[repository.refs["main"]]
        if mark:
            modes = [
                {"path": one["path"], "shouldIgnore": False, **_mode(one["path"], now)}
                for one in json.loads(body)["files"]
            ]
            return self._json({"files": modes})
        if self.hub.fault == "cut":
            return self._say(503, b"{}")
        lines, files = [json.loads(line) for line in body.splitlines()], dict(now)
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "deletedFile":
                del files[value["path"]]
            else:
                lfs = line["key"] == "lfsFile"
                files[value["path"]] = self.hub.large[value["oid"]] if lfs else base64.b64decode(value["content"])
        commit = repository.commit(files)
        url = f"{self.hub.url}/{name.partition('/commit/')[0]}/commit/{commit}"
        return self._json({"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts: list[bytes] = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def do_PUT(self) -> None:
        self.hub.asked.append((self.command, self.path, {}))
        self.hub.large[self.path.rpartition("/")[2]] = self._body()
        self._say(200, b"")

    def _wanted(self, one: dict[str, Any]) -> dict[str, Any]:
        if one["oid"] in self.hub.large:
            return one
        return {**one, "actions": {"upload": {"href": f"{self.hub.url}/large/{one['oid']}"}}}

    def _json(self, told: dict[str, Any]) -> None:
        self._say(200, json.dumps(told).encode(), ("Content-Type", "application/json"))

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append((self.command, path, {key.lower(): value for key, value in self.headers.items()}))
        for before, now in self.hub.moved.items():
            if f"/{before}/" in f"{path}/":
                return self._say(307, b"", ("Location", self.path.replace(before, now)))
        if isinstance(self.hub.fault, int):
            return self._say(self.hub.fault, b"{}")
        return self._listing(path) if path.startswith("/api/") else self._resolve(path)

    def _find(self, kind: str, rest: str, mark: str) -> tuple[Repository, str, str] | None:
        """(repository, commit, what follows); says the error itself."""
        name, _, behind = rest.partition(mark)
        found = self.hub.repositories.get(f"{kind}/{name}")
        if found is None:
            self._say(401, b'{"error":"Invalid username or password."}', ("X-Error-Code", "RepoNotFound"))
            return None
        # A branch's name may hold slashes, a commit's may not.
        known = sorted([*found.refs, *found.files], key=len, reverse=True)
        revision = next((one for one in known if f"{behind}/".startswith(f"{one}/")), "")
        commit = found.refs.get(revision or "main", revision)
        if behind and not revision:
            self._say(404, b'{"error":"Invalid rev id"}', ("X-Error-Code", "RevisionNotFound"))
            return None
        return found, commit, behind[len(revision) :].lstrip("/")

    def _listing(self, path: str) -> None:
        kind, _, rest = path.removeprefix("/api/").partition("/")
        found = self._find(kind, rest, "/revision/")
        if found is None:
            return None
        repository, commit, _ = found
        siblings = [_sibling(name, data) for name, data in repository.files[commit].items()]
        told = {"id": rest.partition("/revision/")[0], "sha": commit, "siblings": siblings, "cardData": repository.card}
        return self._say(
            200, json.dumps({**told, "gated": repository.gated, "private": repository.private, "tags": []}).encode()
        )

    def _resolve(self, path: str) -> None:
        kind = "datasets" if path.startswith("/datasets/") else "models"
        found = self._find(kind, path.removeprefix("/datasets").lstrip("/"), "/resolve/")
        if found is None:
            return None
        repository, commit, name = found
        if repository.gated:
            return self._say(403, b"{}", ("X-Error-Code", "GatedRepo"))
        data = repository.files[commit].get(name)
        if data is None:
            return self._say(404, b"{}", ("X-Error-Code", "EntryNotFound"), ("X-Repo-Commit", commit))
        return self._file(name, commit, data)

    def _file(self, name: str, commit: str, data: bytes) -> None:
        digest, size, fault = digest_of(name, data), len(data), str(self.hub.fault)
        headers = [("ETag", f'"{digest}"'), ("X-Repo-Commit", commit), ("Accept-Ranges", "bytes")]
        if name.endswith(LARGE):
            headers += [("X-Linked-Etag", f'"{digest}"'), ("X-Linked-Size", str(size))]
        if fault.startswith("http"):
            return self._say(302, b"", *headers, ("Location", f"{fault}{self.path}"))
        if fault == "false" and name.endswith(LARGE):
            data = data[:-1] + bytes([data[-1] ^ 1])
        status, asked = 200, self.headers.get("Range", "")
        if asked.startswith("bytes="):
            first, _, last = asked[6:].partition("-")
            status, data = 206, data[int(first) : int(last) + 1 if last else None]
        return self._say(status, data, *headers, cut=fault == "cut")

    def _say(self, status: int, body: bytes, *headers: tuple[str, str], cut: bool = False) -> None:
        self.send_response(status)
        for key, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = cut


def _mode(path: str, now: dict[str, bytes]) -> dict[str, Any]:
    found = digest_of(path, now[path]) if path in now else None
    return {
        "path": path,
        "shouldIgnore": False,
        "uploadMode": "lfs" if path.endswith(LARGE) else "regular",
        "oid": found,
    }


def _sibling(name: str, data: bytes) -> dict[str, Any]:
    told: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": digest_of(f"{name}.git", data)}
    if name.endswith(LARGE):
        told["lfs"] = {"sha256": digest_of(name, data), "size": len(data), "pointerSize": 134}
    return told


@contextmanager
def opened() -> Iterator[Hub]:
    hub = Hub()
    hub.start()
    try:
        yield hub
    finally:
        hub.close()


def ours(hub: Hub, home: Path, patch: pytest.MonkeyPatch) -> None:
    """Lead this process' client to a hub, and its cache and our notes to a directory of the test's."""
    from huggingface_hub import constants

    patch.setenv("INTELLECT_NODE_HOME", str(home / "home"))
    patch.setattr(constants, "ENDPOINT", hub.url)
    patch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    patch.setattr(constants, "HF_URL_HOSTS", frozenset({"127.0.0.1"}))
    patch.setattr(constants, "HF_HUB_CACHE", str(home / "cache"))
    patch.setattr(constants, "HF_HUB_OFFLINE", False)
    patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    patch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
