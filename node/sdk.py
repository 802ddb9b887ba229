"""A swarm from a Python program: read a node's status, submit tasks, follow a pool's policies (under asyncio or trio),
run a member (under trio).

    import asyncio
    from node import sdk

    async def main() -> None:
        async with sdk.follow("base-sepolia", pool=7, directory="cache") as policies:
            async for policy in policies:
                print(policy.step, policy.path)

    asyncio.run(main())

docs/sdk.md says more. What stands here is kept from version to version; other modules of `node` may change at any time.
"""

import asyncio
import logging
import socket as sockets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import httpx
import msgspec
import sniffio
import structlog
import trio

from node.changes import seen
from node.config import NodeConfig, api_socket_of, default_home
from node.errors import NodeError
from node.logs import print_logs
from node.status_schema import SCHEMA_VERSION
from node.status_schema import DaemonStatus as Status
from protocol.errors import IntellectError
from protocol.tasks import TaskSpec

if TYPE_CHECKING:
    from node.light_client import PolicySnapshot

__all__ = ["IntellectError", "Node", "NodeConfig", "Policy", "Status", "TaskSpec", "follow", "run_member"]
# Far more than a thousand members' rows; a program that is no daemon must not fill our memory.
MAX_ANSWER = 8 << 20
# Nothing is unpacked: a few packed bytes would make a piece of any size, before its length is known.
AS_IT_IS = {"Accept-Encoding": "identity"}
TASK_SECONDS = 0.5
"""Seconds between two looks at a task, or at a member that joins."""


class Policy(msgspec.Struct, frozen=True):
    """A verified policy. path: its weights, a canonical safetensors image in bf16; assets: the model's other files by
    name; root: its 32 bytes; run: the run's name."""

    step: int
    root: bytes
    path: Path
    assets: dict[str, Path]
    run: str


class Node:
    """A daemon of this machine, asked over its control socket. Who may open the socket may do what its owner may."""

    def __init__(self, state_dir: str | Path) -> None:
        # The socket's name is made from the resolved path: a relative one would name another socket after a chdir.
        self.state_dir = Path(state_dir).resolve()

    async def status(self) -> Status:
        """What `intellect-node status --json` is made from. Raises NodeError where no daemon answers, or one of another
        version."""
        return status_in(*await self._exchange("GET", "/status"))

    async def submit(
        self, spec: TaskSpec, *, policy: str = "newest", files: Mapping[str, str | Path] | None = None
    ) -> str:
        """Have the swarm do a task; its id. The node must be the pool's trainer.

        policy: "newest", "start", or the hex digits of a root; files: asset path -> file on this machine.
        """
        # The daemon reads the files itself, from a working directory of its own.
        places = {name: str(Path(file).resolve()) for name, file in (files or {}).items()}  # noqa: ASYNC240 - a path
        body = {"spec": msgspec.to_builtins(spec), "policy": policy, "files": places}
        return str((await self._ask("POST", "/tasks", body))["task"])

    async def tasks(self) -> list[dict[str, Any]]:
        """Those that this node offers, oldest first."""
        return list((await self._ask("GET", "/tasks"))["tasks"])

    async def result(self, task: str) -> dict[str, Any]:
        """What is told of a task, once it is over. Raises NodeError where the node does not offer it."""
        while True:
            told = next((one for one in await self.tasks() if one["id"] == task), None)
            if told is None:
                raise NodeError("no such task at this node", f"it does not offer {task}", "look at: Node.tasks()")
            if not told["open"]:
                return told
            await anyio.sleep(TASK_SECONDS)

    async def cancel(self, task: str) -> None:
        """Wait for no more results of it."""
        await self._ask("POST", f"/tasks/{task}/cancel")

    async def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        return told_in(*await self._exchange(method, path, body), f"{method} {path}")

    async def _exchange(
        self, method: str, path: str, body: Any = None, *, answer_seconds: float = 60.0
    ) -> tuple[int, bytearray]:
        content = None if body is None else msgspec.json.encode(body)
        asked = partial(exchange, api_socket_of(self.state_dir), method, path, content, answer_seconds)
        try:
            # In a thread: the generators of httpx's own asynchronous client cannot be left before their end without a
            # warning.
            return await anyio.to_thread.run_sync(asked, abandon_on_cancel=True)
        except httpx.TransportError as error:
            raise NodeError(
                f"no daemon answers for {self.state_dir}",
                str(error) or type(error).__name__,
                "start one (intellect-node join, or sdk.run_member), or name its state directory",
            ) from None


class AnswerTooLong(NodeError):
    """What listens at a daemon's socket says more than a daemon does."""


def told_in(code: int, answer: bytes | bytearray, request: str) -> dict[str, Any]:
    """What a daemon answers, in its HTTP answer to a request. Raises NodeError, in the daemon's own words where it
    refuses."""
    try:
        told = msgspec.json.decode(answer, type=dict[str, Any])
    # The HTTP server's own refusals (404, 405) are no JSON: the status code below says what they mean.
    except (msgspec.MsgspecError, UnicodeDecodeError):
        told = None
    if code == HTTPStatus.OK and told is not None:
        return told
    if code == HTTPStatus.BAD_REQUEST and told is not None and {"what", "why", "remedy"} <= told.keys():
        raise NodeError(str(told["what"]), str(told["why"]), str(told["remedy"]))
    remedy = "tasks are offered at the node of the pool's trainer, in a run without rounds: name its state directory"
    raise NodeError("this node does not do that", f"HTTP {code} for {request}", remedy)


def status_in(code: int, answer: bytes | bytearray) -> Status:
    """The status in an HTTP answer. Raises NodeError where it is none, or one of another version."""
    if code != HTTPStatus.OK:
        raise NodeError("the daemon did not give its status", f"HTTP {code}", "look at its log")
    remedy = "run daemon and program in one version"
    try:
        status = msgspec.json.decode(answer, type=Status)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise NodeError("the daemon's answer cannot be read", str(error), remedy) from None
    if status.schema_version != SCHEMA_VERSION:
        why = f"its status has schema {status.schema_version}, this program reads {SCHEMA_VERSION}"
        raise NodeError("the daemon speaks another version", why, remedy)
    return status


def exchange(socket: Path, method: str, path: str, content: bytes | None, timeout: float) -> tuple[int, bytearray]:
    """One request to a daemon, blocking: the answer's status code and its body. Raises httpx.TransportError, and
    AnswerTooLong before the pieces are too much together."""
    # First: httpx leaves its own socket open where nobody listens.
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.settimeout(timeout)
        try:
            probe.connect(str(socket))
        # Its queue is full: it lives, and takes nobody.
        except (BlockingIOError, TimeoutError) as error:
            raise httpx.ConnectTimeout(str(error)) from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
    transport = httpx.HTTPTransport(uds=str(socket), verify=False)
    body = bytearray()
    with (
        httpx.Client(transport=transport, timeout=timeout, base_url="http://daemon") as client,
        client.stream(method, path, content=content, headers=AS_IT_IS) as answer,
    ):
        for piece in answer.iter_raw():
            if len(body) + len(piece) > MAX_ANSWER:
                raise AnswerTooLong(
                    "the daemon's answer is too long",
                    f"it has more than {MAX_ANSWER // 2**20} MiB",
                    "see whether it is a daemon of this program that listens there",
                )
            body += piece
    return answer.status_code, body


@asynccontextmanager
async def run_member(config: NodeConfig) -> AsyncGenerator[Node]:
    """Be a member of a pool while the block runs; it begins once the node works, and at its end the node leaves.

    One member at a time, in the main thread: it takes SIGINT and SIGTERM. What ends the member ends the block, too:
    raises IntellectError for what a user can mend, as `intellect-node join` does.
    """
    if (library := sniffio.current_async_library()) != "trio":
        raise NodeError(f"a member was run from {library}", "it needs trio's event loop", "use trio.run(main)")
    from node.daemon import Daemon

    daemon = Daemon(config)
    with _plain():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_over, daemon.main)
            await seen(lambda: daemon.manager.state == "working", TASK_SECONDS)  # the daemon's state is no event
            yield Node(config.directory)
            nursery.cancel_scope.cancel()


async def _until_over(main: Any) -> None:
    await main()
    raise NodeError("the member is not running any more", "it was told to stop", "run it again")


@asynccontextmanager
async def follow(
    network: str,
    *,
    pool: int | None = None,
    directory: str | Path,
    after: int = -1,
    # A policy of seven billion parameters is 15 GB: the one in use, the one that is fetched, and patches.
    quota: int = 64 << 30,
    gateways: Sequence[str] = (),
) -> AsyncGenerator[AsyncIterator[Policy]]:
    """The newest policy of a pool, then each newer one until the run's last, without joining: no key, no stake.

    network: a name, or the path of a profile; pool: the profile's own where it is None; directory: keeps what was
    fetched, `quota` bytes at most; after: the step that is known already; gateways: where there are some, only these
    are asked, by HTTP (http(s)://HOST:PORT[#sha256=..]), and the chain. Whoever stops waiting for a policy may ask
    again. Raises IntellectError.
    """
    if not structlog.is_configured():
        # By itself structlog prints each event on standard output, which is the program's own.
        print_logs(logging.WARNING)
    following = partial(_follow, network, pool, Path(directory), after, quota, gateways)
    async with following() if sniffio.current_async_library() == "trio" else _Portal(following) as policies:
        yield policies


@asynccontextmanager
async def _follow(
    network: str, pool: int | None, directory: Path, after: int, quota: int, gateways: Sequence[str]
) -> AsyncGenerator[AsyncIterator[Policy]]:
    from node.blobs.http.sources import parse_source
    from node.chain.profile import load_profile
    from node.light_client import LightClient

    sources = [parse_source(text, private=True) for text in gateways]
    profile = await trio.to_thread.run_sync(lambda: load_profile(network, home=default_home()))
    number = profile.pool if pool is None else pool
    if number is None:
        raise NodeError("which pool?", f"the profile of {network} names none", "give pool=NUMBER")
    client = LightClient(profile, number, directory, quota=quota, sources=sources, alone=bool(sources))
    with _plain():
        async with client.following(after) as snapshots:
            yield _Policies(snapshots)


class _Policies(AsyncIterator[Policy]):
    """No generator: one that is left while it waits has ended, as after the run's last policy."""

    def __init__(self, snapshots: "trio.MemoryReceiveChannel[PolicySnapshot]") -> None:
        self._snapshots = snapshots

    async def __anext__(self) -> Policy:
        snapshot = await self._snapshots.__anext__()
        held = snapshot.policy
        return Policy(held.step, held.root, snapshot.image or held.path, snapshot.assets, snapshot.run.name)


class _Portal(AsyncIterator[Policy]):
    """Policies for a program under asyncio: they are followed in a trio of its own, in a thread, until the block ends.

    What is asked for and not waited for any more stays asked for, and is told at the next question: none is lost.
    """

    def __init__(self, following: Callable[[], AbstractAsyncContextManager[AsyncIterator[Policy]]]) -> None:
        self._following = following
        self._begun = Future[trio.lowlevel.TrioToken]()
        self._ready = Future[None]()
        self._asked: asyncio.Future[Policy] | None = None

    async def __aenter__(self) -> AsyncIterator[Policy]:
        thread = ThreadPoolExecutor(1, "intellect-node")
        self._over = asyncio.get_running_loop().run_in_executor(thread, trio.run, self._run)
        thread.shutdown(wait=False)  # once that is over
        try:
            await self._until(asyncio.wrap_future(self._ready))
        except BaseException:
            await self.__aexit__(BaseException)
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._in_trio(lambda: self._scope.cancel())
        await asyncio.wait([self._over])
        failed = self._over.exception()
        if failed and kind is None:
            raise failed

    async def __anext__(self) -> Policy:
        if self._asked is None:
            asked = Future[Policy]()
            self._in_trio(lambda: self._send.send_nowait(asked))
            self._asked = asyncio.wrap_future(asked)
        if not await self._until(self._asked):
            raise StopAsyncIteration
        policy, self._asked = self._asked.result(), None
        return policy

    async def _until(self, asked: "asyncio.Future[Any]") -> bool:
        """Whether it came; False where all is over before. Raises what ended it."""
        # Whoever is cancelled here leaves both as they are.
        await asyncio.wait([asked, self._over], return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            self._over.result()
        return asked.done()

    def _in_trio(self, call: Callable[[], object]) -> None:
        # The loop has ended by itself: whoever waits hears it from the thread's own end.
        with suppress(trio.RunFinishedError):
            self._begun.result().run_sync_soon(call)

    async def _run(self) -> None:
        self._send, wanted = trio.open_memory_channel[Future[Policy]](1)
        with trio.CancelScope() as self._scope:
            self._begun.set_result(trio.lowlevel.current_trio_token())
            async with self._following() as policies:
                self._ready.set_result(None)
                async for asked in wanted:
                    try:
                        asked.set_result(await anext(policies))
                    # The run is over. Whoever asked, now or later, hears it from the end of this thread (`_over`).
                    except StopAsyncIteration:
                        return


@contextmanager
def _plain() -> Generator[None]:
    """A group of errors that holds one of ours is raised as that one."""
    try:
        yield
    except BaseExceptionGroup as group:
        ours = group.subgroup(IntellectError)
        if ours is None:
            raise
        error: BaseException = ours
        # Of several the first: the others are mostly what its end did to them.
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from group
