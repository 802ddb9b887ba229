"""Runs commands of the program in surroundings as operators have them, each of these in a process of its own, forked
from this one, and writes what they said as JSON lines. Arguments: an empty directory, a port where nobody listens."""

import contextlib
import io
import json
import os
import pwd
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import node.chain.client
import node.chain.devnet
import node.preflight.chain  # noqa: F401 - what it imports is looked at
from cli.main import main

SECRET = "SECRETKEY0123456789"
COMMANDS = (
    "status",
    "status --json",
    "keys list",
    "config show",
    "config show --json",
    "contract params --network local",
    "devnet status",
    "contributions",
    "stop",
    "logs",
)
PROFILE = (
    'name = "local"\nchain_id = 31337\nrpc_urls = ["http://127.0.0.1:{port}/v2/{secret}"]\n\n[contracts]\n{contracts}'
)
NOBODY = 54_321


def _home(root: Path, port: str, name: str = "home") -> Path:
    home = root / name
    (home / "networks").mkdir(parents=True, exist_ok=True)
    contracts = "".join(
        f'{slot} = "0x{"11" * 19}{n:02x}"\n' for n, slot in enumerate(("token", "vault", "swarm", "court", "payroll"))
    )
    (home / "networks" / "local.toml").write_text(PROFILE.format(port=port, secret=SECRET, contracts=contracts))
    return home


def _without_a_name() -> None:
    for variable in ("HOME", "USER", "LOGNAME"):
        os.environ.pop(variable, None)
    if os.getuid() == 0:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        return

    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    pwd.getpwuid = unknown


def _no_temporary_directory() -> None:
    os.environ["TMPDIR"] = "/nowhere"
    tempfile.tempdir = None
    tempfile._candidate_tempdir_list = lambda: ["/nowhere"]  # type: ignore[attr-defined]


def _working_directory_gone() -> None:
    place = tempfile.mkdtemp()
    os.chdir(place)
    os.rmdir(place)


def _set(**variables: str) -> Callable[[], None]:
    return lambda: os.environ.update(variables)


def _named(path: bytes) -> Callable[[], None]:
    def enter() -> None:
        os.makedirs(path, exist_ok=True)
        os.environb[b"INTELLECT_NODE_HOME"] = path

    return enter


def _unset_home(*, node_home: bool) -> Callable[[], None]:
    def enter() -> None:
        if not node_home:
            os.environ.pop("INTELLECT_NODE_HOME", None)
        _without_a_name()

    return enter


def _locked(place: Path) -> Callable[[], None]:
    def enter() -> None:
        os.environ["INTELLECT_NODE_HOME"] = str(place)
        _without_a_name()

    return enter


def _relative() -> None:
    del os.environ["INTELLECT_NODE_HOME"]
    os.environ |= {"HOME": "a", "XDG_STATE_HOME": "b", "XDG_CACHE_HOME": "c"}


def surroundings(root: Path, port: str) -> dict[str, Callable[[], None]]:
    """Name -> what makes a process stand in them."""
    junk, locked = root / "junk.pem", root / "locked"
    junk.write_text("junk\n")
    locked.mkdir(exist_ok=True)
    locked.chmod(0o555)
    spaces = _home(root, port, "with spaces and\na line")
    return {
        "as they are": lambda: None,
        "a SOCKS proxy for all": _set(ALL_PROXY="socks5h://127.0.0.1:1"),
        "a dead proxy": _set(HTTP_PROXY="http://127.0.0.1:1", http_proxy="http://127.0.0.1:1"),
        "a proxy of nonsense": _set(ALL_PROXY="::::", HTTP_PROXY="ftp://x y"),
        "a certificate file that is not there": _set(SSL_CERT_FILE="/nowhere/ca.pem"),
        "a certificate file that is none": _set(SSL_CERT_FILE=str(junk)),
        "a user without a name": _unset_home(node_home=True),
        "a user without a name or a place": _unset_home(node_home=False),
        "no temporary directory": _no_temporary_directory,
        "a name that is no UTF-8": _named(os.fsencode(root) + b"/bad\xff"),
        "a name with spaces and a line's end": _set(INTELLECT_NODE_HOME=str(spaces)),
        "a place that cannot be written": _locked(locked),
        "a place that is a file": _set(INTELLECT_NODE_HOME=str(junk)),
        "places that are not absolute": _relative,
        "no working directory": _working_directory_gone,
        "a list with commas": _set(INTELLECT_NODE_PAGE_HOSTS="a.example,b.example", INTELLECT_NODE_BOOTNODES=""),
        "a list that ends nowhere": _set(INTELLECT_NODE_PAGE_HOSTS="[a", INTELLECT_NODE_TRAINER="world_size=2"),
        "a terminal of ASCII": lambda: None,
    }  # fmt: skip


@contextlib.contextmanager
def _captured(encoding: str) -> Iterator[io.BytesIO]:
    raw = io.BytesIO()
    sys.stdout = sys.stderr = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    yield raw


def run(name: str, enter: Callable[[], None], command: str, out: int) -> None:
    """In the forked process."""
    with _captured("ascii" if "ASCII" in name else "utf-8") as raw:
        try:
            enter()
            code = main(command.split())
        except BaseException as error:
            code = f"left by {type(error).__name__}: {error}"
    said = {"surrounding": name, "command": command, "code": code, "said": raw.getvalue().decode(errors="replace")}
    os.write(out, json.dumps(said).encode() + b"\n")


def matrix(root: Path, port: str) -> None:
    os.environ |= {"INTELLECT_NODE_HOME": str(_home(root, port)), "HOME": str(root), "XDG_RUNTIME_DIR": str(root)}
    (root / "pw").write_text("a password\n")
    (root / "pw").chmod(0o600)
    os.chdir(root)
    root.chmod(0o755)
    out = os.dup(1)
    for command in COMMANDS:  # once here, so that all that they import is there
        run("as they are", lambda: None, command, os.open(os.devnull, os.O_WRONLY))
    for name, enter in surroundings(root, port).items():
        child = os.fork()
        if child == 0:
            for number, command in enumerate(COMMANDS):
                run(name, (lambda: None) if number else enter, command, out)
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    matrix(Path(sys.argv[1]), sys.argv[2])
