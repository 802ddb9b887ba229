"""Talks to daemons of this machine: HTTP over the unix socket that each one listens on.

Who may open the socket may ask; there is no other authentication. HTTP and the settings are half of what all commands
import together, so they come when a daemon is asked.
"""

from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.errors import NETWORK, RUN, USAGE, CommandError
from node.errors import NodeError
from node.status_schema import DaemonStatus

if TYPE_CHECKING:
    from collections.abc import Iterator


def socket_of(state_dir: Path) -> Path:
    """The socket of the daemon with this state directory."""
    from node.config import api_socket_of

    return api_socket_of(state_dir)


def known_sockets() -> list[Path]:
    """Sockets of daemons of this user that run now; those that nobody listens on are left out."""
    from node.config import api_socket_path, is_listened_on

    # Any directory will do: sockets of one user differ in their names only.
    directory = api_socket_path(Path.cwd()).parent
    return [path for path in sorted(directory.glob("*.sock")) if is_listened_on(path)]


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
    from node.config import is_listened_on

    # Before the import of httpx: where nobody listens, the command need not pay for it.
    if not is_listened_on(socket):
        raise _no_daemon("nobody listens on its socket")
    import httpx

    try:
        code, body = _exchange(socket, "GET", "/status", None, timeout)
    except httpx.TimeoutException as error:
        raise _hangs(error, timeout) from None
    except httpx.TransportError as error:
        raise _no_daemon(str(error)) from None
    return parse_status(body, code)


def ask(socket: Path, method: str, path: str, body: bytes | None = None, timeout: float = 60.0) -> dict[str, Any]:
    """What a daemon answers to a request of its owner, as JSON; raises CommandError in the daemon's own words."""
    import httpx

    from node.sdk import told_in

    try:
        code, answer = _exchange(socket, method, path, body, timeout)
    except httpx.TimeoutException as error:
        raise _hangs(error, timeout) from None
    except httpx.TransportError as error:
        raise _no_daemon(str(error)) from None
    try:
        return told_in(code, answer, f"{method} {path}")
    except NodeError as error:
        raise _in_words(error, RUN if code == HTTPStatus.BAD_REQUEST else USAGE) from None


async def get_status_async(socket: Path, timeout: float = 3.0) -> DaemonStatus | None:
    """The same inside trio; None when there is no (complete) answer now."""
    if not socket.exists():  # noqa: ASYNC240 - one stat of a local file system
        return None
    import httpx
    import trio

    # In a thread: the generators of httpx's own asynchronous client cannot be left before their end without a warning.
    exchange = partial(_exchange, socket, "GET", "/status", None, timeout)
    try:
        code, body = await trio.to_thread.run_sync(exchange, abandon_on_cancel=True)
    except httpx.HTTPError:
        return None
    return parse_status(body, code)


def _exchange(socket: Path, method: str, path: str, content: bytes | None, timeout: float) -> tuple[int, bytearray]:
    """One request: the answer's status code and its body. Raises httpx.TransportError, and CommandError for too long
    a one."""
    from node.sdk import AnswerTooLong, exchange

    try:
        return exchange(socket, method, path, content, timeout)
    except AnswerTooLong as error:
        raise _in_words(error, NETWORK) from None


def parse_status(body: bytes | bytearray, code: int = HTTPStatus.OK) -> DaemonStatus:
    """The status in an HTTP answer. Raises CommandError where it is none of a schema that this program reads."""
    from node.sdk import status_in

    try:
        return status_in(code, body)
    except NodeError as error:
        raise _in_words(error, NETWORK) from None


def _in_words(error: NodeError, code: int) -> CommandError:
    return CommandError(error.what, error.why, error.remedy, code)


def _hangs(error: Exception, timeout: float) -> CommandError:
    """error: httpx.TimeoutException. One that could not even be connected to has a full queue."""
    import httpx

    full = isinstance(error, httpx.ConnectTimeout)
    why = "as many callers wait already as may" if full else f"nothing came within {timeout:g} s"
    return CommandError("the daemon does not answer", why, "look at its log in the state directory", NETWORK)


def _no_daemon(why: str) -> CommandError:
    return CommandError("no daemon runs there", why, "start one: intellect-node join", NETWORK)
