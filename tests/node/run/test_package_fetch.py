"""Packages from a web server."""

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from node.environments.errors import PackageError
from node.environments.package.archive import pack, root_of
from node.environments.package.templates import template
from node.run import package_fetch
from node.run.package_fetch import fetch

ARCHIVE = pack({"environment.py": template("single", "mine").encode()})
ROOT = root_of(ARCHIVE)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path / "home"))
    (tmp_path / f"{ROOT}.tar").write_bytes(ARCHIVE)
    (tmp_path / f"{'0' * 64}.tar").write_bytes(ARCHIVE)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def test_a_mirror_sends_nobody_elsewhere_and_packs_nothing(mirror: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(self: Quiet) -> None:
        asked.append(self.headers["accept-encoding"])
        self.send_response(302)
        self.send_header("location", f"{mirror}{ROOT}.tar")
        self.end_headers()

    asked: list[str] = []
    monkeypatch.setattr(Quiet, "do_GET", answer)
    with pytest.raises(PackageError, match=f"it leads to {mirror}{ROOT}.tar"):
        fetch(ROOT, mirror)
    assert asked == ["identity"]


def test_a_package_is_fetched_kept_and_is_what_its_root_says(mirror: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known = fetch(ROOT, mirror)
    assert known.root == ROOT and known.path.read_bytes() == ARCHIVE and known.manifest.name == "mine"
    with pytest.raises(PackageError, match="another root"):
        fetch("0" * 64, mirror)
    with pytest.raises(PackageError, match="404"):
        fetch("1" * 64, mirror)
    with pytest.raises(PackageError, match="could not be fetched"):
        fetch(ROOT, "ftp://example.org")
    monkeypatch.setattr(package_fetch, "MAX_BYTES", 512)
    with pytest.raises(PackageError, match="more than 512 bytes"):
        fetch(ROOT, mirror)
