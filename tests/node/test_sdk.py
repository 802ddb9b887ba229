"""The interface for programs, against the control socket that a daemon serves, and with the example of its page."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from examples import watch
from node import sdk
from node.config import api_socket_path
from node.errors import NodeError
from node.services.tasking.requests import TaskRefused, TaskRequest, routes
from node.status_schema import RunPart
from node.web.front import ApiServer
from protocol.errors import IntellectError
from protocol.tasks import TaskId, TaskSpec

ROOT = Path(__file__).resolve().parents[2]
STATUS = {"node": {"role": "trainer", "state": "working"}, "run": {"step": 7}}


class Owner:
    """Offers one task, which is over at the second look."""

    def __init__(self) -> None:
        self.requests: list[TaskRequest] = []
        self.looks = 0

    async def offer(self, request: TaskRequest) -> TaskId:
        if self.requests:
            raise TaskRefused("no further task", "one is open", "wait")
        self.requests.append(request)
        return b"\x11" * 32

    async def cancel(self, id: TaskId) -> None:
        raise TaskRefused("no such task", id.hex(), "look again")

    def tasks(self) -> list[dict[str, Any]]:
        self.looks += 1
        return [{"id": "11" * 32, "kind": request.spec.kind, "open": self.looks < 2} for request in self.requests]


@pytest.fixture
async def owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery) -> AsyncIterator[Owner]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    owner = Owner()
    server = ApiServer(api_socket_path(tmp_path / "node"), lambda: STATUS)  # type: ignore[arg-type, return-value]
    await nursery.start(server.run)
    server.mount(routes(owner))
    yield owner


async def test_a_task_is_submitted_and_its_result_is_waited_for(owner: Owner, tmp_path: Path) -> None:
    node = sdk.Node(tmp_path / "node")
    task = await node.submit(TaskSpec(kind="evaluate", last=4), files={"data/rows.jsonl": tmp_path / "rows.jsonl"})
    assert (await node.result(task))["open"] is False
    assert owner.requests[0].spec.last == 4
    assert owner.requests[0].files == {"data/rows.jsonl": str(tmp_path / "rows.jsonl")}
    with pytest.raises(NodeError, match="no further task"):
        await node.submit(TaskSpec(kind="evaluate", last=4))
    with pytest.raises(NodeError, match="no such task at this node"):
        await node.result("22" * 32)


async def test_the_example_tells_what_a_node_does(owner: Owner, tmp_path: Path) -> None:
    await sdk.Node(tmp_path / "node").submit(TaskSpec(kind="evaluate", last=4))
    command = [sys.executable, "examples/watch.py", str(tmp_path / "node")]
    environment = {"XDG_RUNTIME_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = await trio.run_process(command, capture_stdout=True, cwd=ROOT, env=environment)
    assert done.stdout.decode().splitlines() == ["trainer working, step 7", "task 11111111 (evaluate): open"]


@pytest.mark.parametrize(("words", "says"), [(["/nowhere"], "no daemon answers"), (["a", "b"], "not understood")])
def test_the_example_ends_in_three_lines(words: list[str], says: str) -> None:
    told = (watch.main(words) or "").splitlines()
    assert says in told[0] and [line[:6] for line in told] == ["error:", "  why:", "  do: "]


@pytest.mark.parametrize(
    ("told", "says"), [({"schema_version": 2}, "another version"), ({"node": {"pid": "4711"}}, "cannot be read")]
)
async def test_the_status_of_another_version_is_an_error(
    owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], says: str
) -> None:
    node = sdk.Node(tmp_path / "node")
    assert (await node.status()).run == RunPart(step=7)
    for name, value in told.items():
        monkeypatch.setitem(STATUS, name, value)
    with pytest.raises(NodeError, match=says):
        await node.status()


async def test_where_no_daemon_runs_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(NodeError, match="no daemon answers"):
        await sdk.Node(tmp_path).status()


async def test_a_program_of_asyncio_asks_a_node_and_may_stop_waiting(owner: Owner, tmp_path: Path) -> None:
    node = sdk.Node(tmp_path / "node")

    async def program() -> str:
        task = await node.submit(TaskSpec(kind="evaluate", last=4))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(node.result(task), 0.01)
        waiting = asyncio.create_task(node.result(task))
        assert (await waiting)["open"] is False
        return (await node.status()).node.state

    assert await trio.to_thread.run_sync(asyncio.run, program()) == "working"


def test_a_member_is_run_by_trio_alone(tmp_path: Path) -> None:
    config = sdk.NodeConfig(network="nowhere", home=tmp_path, state_dir=tmp_path / "node")
    with pytest.raises(NodeError, match="run from asyncio"):
        asyncio.run(sdk.run_member(config).__aenter__())  # type: ignore[arg-type]


async def test_a_follower_says_nothing_on_the_programs_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = structlog.get_config()
    structlog.reset_defaults()
    try:
        with pytest.raises(IntellectError, match="there is no network"):
            async with sdk.follow("nowhere", pool=1, directory=tmp_path):
                pytest.fail("it followed nobody")
        structlog.get_logger().info("an event")
        structlog.get_logger().warning("a trouble")
    finally:
        structlog.configure(**before)
    told = capsys.readouterr()
    assert not told.out and "trouble" in told.err and "an event" not in told.err


async def test_a_member_that_cannot_join_says_why(tmp_path: Path) -> None:
    config = sdk.NodeConfig(network="nowhere", home=tmp_path, state_dir=tmp_path / "node", show_logs=False)
    with pytest.raises(IntellectError, match="there is no network"):
        async with sdk.run_member(config):
            pytest.fail("it joined")
