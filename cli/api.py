"""Talks to daemons of this machine: HTTP over the unix socket that each one listens on.

Who may open the socket may ask; there is no other authentication. HTTP and the settings are half of what all commands
import together, so they come when a daemon is asked.
"""

import os
import socket as sockets
import tempfile
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.daemon_status import DaemonStatus, parse_status
from cli.errors import NETWORK, RUN, USAGE, CommandError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

# Far more than a thousand members' rows; a program that is no daemon must not fill our memory.
MAX_ANSWER = 8 * 1024 * 1024


def socket_of(state_dir: Path) -> Path:
    """The socket of the daemon with this state directory: where this terminal's daemons have it, else where those of
    the machine's service manager do, which know no runtime directory."""
    from node.config import api_socket_path

    usual = api_socket_path(state_dir)
    elsewhere = Path(tempfile.gettempdir()) / usual.parent.name / usual.name
    return elsewhere if not usual.exists() and _is_ours(elsewhere) else usual


def known_sockets() -> list[Path]:
    """Sockets of daemons of this user that run now; those that nobody listens on are left out."""
    from node.config import api_socket_path

    # Any directory will do: sockets of one user differ in their names only.
    directory = api_socket_path(Path.cwd()).parent
    return [path for path in sorted(directory.glob("*.sock")) if _answers(path)]


def known_daemons() -> "Iterator[DaemonStatus]":
    """What each daemon of this user says that answers."""
    for socket in known_sockets():
        try:
            # Short: this is asked for completion as well, while somebody waits at a prompt.
            yield get_status(socket, timeout=2.0)
        except CommandError:
            continue


def get_status(socket: Path, timeout: float = 5.0) -> DaemonStatus:
    """Ask one daemon; raises CommandError when none listens or its answer makes no sense."""
    # Before the import of httpx: where nobody listens, the command need not pay for it.
    if not _answers(socket):
        raise _no_daemon("nobody listens on its socket")
    import httpx

    transport = httpx.HTTPTransport(uds=str(socket), verify=False)  # noqa: S501 - a unix socket has no TLS
    try:
        with httpx.Client(transport=transport, timeout=timeout, base_url="http://daemon") as client:
            answer = client.get("/status")
    except httpx.TimeoutException:
        raise CommandError(
            "the daemon does not answer",
            f"nothing came within {timeout:g} s",
            "look at its log in the state directory",
            NETWORK,
        ) from None
    except httpx.TransportError as error:
        raise _no_daemon(str(error)) from None
    return read_answer(answer)


def ask(socket: Path, method: str, path: str, body: bytes | None = None, timeout: float = 60.0) -> dict[str, Any]:
    """What a daemon answers to a request of its owner, as JSON; raises CommandError in the daemon's own words."""
    import httpx

    transport = httpx.HTTPTransport(uds=str(socket), verify=False)  # noqa: S501 - a unix socket has no TLS
    try:
        with httpx.Client(transport=transport, timeout=timeout, base_url="http://daemon") as client:
            answer = client.request(method, path, content=body)
            told = answer.json() if answer.content[:MAX_ANSWER] else {}
    except httpx.TransportError as error:
        raise _no_daemon(str(error)) from None
    # The HTTP server's own refusals (404, 405) are no JSON: the status code below says what they mean.
    except ValueError:
        told = {}
    if answer.status_code == HTTPStatus.OK and isinstance(told, dict):
        return told
    if answer.status_code == HTTPStatus.BAD_REQUEST:
        raise CommandError(str(told.get("what")), str(told.get("why")), str(told.get("remedy")), RUN)
    raise CommandError(
        "this node does not do that",
        f"HTTP {answer.status_code} for {method} {path}",
        "tasks are offered at the node of the pool's trainer, in a run without rounds: name its --state-dir",
        USAGE,
    )


async def get_status_async(socket: Path, timeout: float = 3.0) -> DaemonStatus | None:
    """The same inside trio; None when there is no (complete) answer now."""
    if not socket.exists():  # noqa: ASYNC240 - one stat of a local file system
        return None
    import httpx

    transport = httpx.AsyncHTTPTransport(uds=str(socket), verify=False)  # noqa: S501 - a unix socket has no TLS
    try:
        async with httpx.AsyncClient(transport=transport, timeout=timeout, base_url="http://daemon") as client:
            return read_answer(await client.get("/status"))
    except httpx.HTTPError:
        return None


def read_answer(answer: "httpx.Response") -> DaemonStatus:
    """The status in an HTTP answer; raises CommandError."""
    if answer.status_code != HTTPStatus.OK or len(answer.content) > MAX_ANSWER:
        raise CommandError(
            "the daemon did not give its status", f"HTTP {answer.status_code}", "look at its log", NETWORK
        )
    return parse_status(answer.content)


def _is_ours(socket: Path) -> bool:
    """Whether it lies in a directory that nobody else could have made: others may write beside it."""
    try:
        return socket.exists() and socket.parent.stat().st_uid == os.getuid()
    except OSError:
        return False


def _answers(path: Path) -> bool:
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        # A daemon that hangs lets callers queue: to open the socket must not hang with it.
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _no_daemon(why: str) -> CommandError:
    return CommandError("no daemon runs there", why, "start one: intellect-node join", NETWORK)
