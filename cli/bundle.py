"""A report for an issue: what `doctor` found, the status, the settings and the end of the logs, without secrets.

What is left out is left out by name (no keystore, journal or database is ever read), what remains by pattern: URLs
lose everything but their host, and whatever is called a password, key, secret or token loses its value.
"""

import io
import json
import os
import re
import tarfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.errors import CONFIGURATION, CommandError

if TYPE_CHECKING:
    from node.config import NodeConfig

LOG_BYTES = 256 * 1024
"""Of the end of each log file."""
LOGS = ("daemon.jsonl", "daemon.jsonl.1")
GONE = "[removed]"
_SECRETS = r"pass(?:word|wd|phrase)?|secret|private[_-]?key|api[_-]?key|mnemonic|credential|authorization|bearer"
_NAMED = rf"[\w.-]*(?:{_SECRETS})[\w.-]*"
_ASSIGNED = re.compile(rf"(?i)(\"?\b{_NAMED}\"?\s*[=:]\s*)(\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s,}}]+)")
_URL = re.compile(r"\b([a-z][a-z0-9+.-]*://)(?:[^\s/@\"'<>]*@)?([^\s/\"'<>?#\\]+)([^\s\"'<>\\]*)", re.I)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}")
_KEYSTORE = re.compile(r"(?i)\"(ciphertext|mac|salt|iv)\"\s*:\s*\"[0-9a-f]*\"")


def write_bundle(file: Path, config: "NodeConfig", findings: list[dict[str, Any]]) -> Path:
    """Write the report; raises CommandError if it cannot be written, or is there already."""
    parts = {"findings.json": _json(findings), "settings.json": _json(_settings(config)), **_status(config)}
    parts |= {f"logs/{name}": text for name, text in _logs(config.directory).items()}
    try:
        with open(file, "xb") as out, tarfile.open(fileobj=out, mode="w:gz") as archive:
            for name, text in parts.items():
                _add(archive, f"intellect-node-report/{name}", redacted(text))
        os.chmod(file, 0o600)
    except OSError as error:
        raise CommandError(
            f"the report {file} was not written", error.strerror or str(error), "give another file", CONFIGURATION
        ) from None
    return file


def redacted(text: str) -> str:
    """Without credentials, as far as they can be told by their names and places."""
    text = _URL.sub(lambda found: found[1] + found[2] + ("/…" if found[3].strip("/") else ""), text)
    text = _BEARER.sub(lambda found: f"{found[1]} {GONE}", text)
    text = _ASSIGNED.sub(lambda found: found[1] + f'"{GONE}"', text)
    return _KEYSTORE.sub(lambda found: f'"{found[1]}": "{GONE}"', text)


def _settings(config: "NodeConfig") -> dict[str, Any]:
    plain = config.model_dump(mode="json")
    return {name: GONE if name == "password" and value else value for name, value in plain.items()}


def _status(config: "NodeConfig") -> dict[str, str]:
    import msgspec

    from cli import api

    try:
        status = api.get_status(api.socket_of(config.directory))
    except CommandError as error:
        return {"status.txt": f"{error.what}: {error.why}\n"}
    return {"status.json": _json(msgspec.to_builtins(status))}


def _logs(directory: Path) -> dict[str, str]:
    """The end of each log, from a whole line on."""
    found: dict[str, str] = {}
    for name in LOGS:
        try:
            with (directory / "logs" / name).open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(size - LOG_BYTES, 0))
                text = log.read(LOG_BYTES).decode(errors="replace")
        except OSError:
            continue
        found[name] = text if size <= LOG_BYTES else text.partition("\n")[2]
    return found


def _add(archive: tarfile.TarFile, name: str, text: str) -> None:
    data = text.encode()
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(data))


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, default=str, ensure_ascii=False) + "\n"
