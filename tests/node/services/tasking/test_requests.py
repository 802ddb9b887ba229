"""What a node's owner asks for over the control socket, by the very client that the command line uses."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from cli import api
from cli.errors import CommandError
from node.services.tasking.requests import MAX_REQUEST_BYTES, TaskRefused, TaskRequest, routes
from node.web.front import ApiServer
from protocol.run import Asset
from protocol.tasks import TaskId, TaskSpec

SPEC = TaskSpec(kind="evaluate", last=4)


class Owner:
    """Takes what it is given; the third task is one too many."""

    def __init__(self) -> None:
        self.requests: list[TaskRequest] = []

    async def offer(self, request: TaskRequest) -> TaskId:
        if len(self.requests) >= 2:
            raise TaskRefused("no further task", "two are open", "wait")
        self.requests.append(request)
        return bytes([len(self.requests)]) * 32

    async def cancel(self, id: TaskId) -> None:
        raise TaskRefused("no such task", id.hex(), "look again")

    def tasks(self) -> list[dict[str, Any]]:
        return [{"id": "ab", "kind": request.spec.kind} for request in self.requests]


def body(spec: TaskSpec = SPEC, **more: Any) -> bytes:
    return msgspec.json.encode({"spec": msgspec.to_builtins(spec), **more})


async def asked(questions: Callable[[Path, Owner], None]) -> None:
    """Put questions to a daemon's socket, from another thread."""
    owner = Owner()
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "s"
        server = ApiServer(socket, dict)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            server.mount(routes(owner))  # while it runs, as services do
            await trio.to_thread.run_sync(questions, socket, owner)
            nursery.cancel_scope.cancel()


async def test_tasks_are_asked_for_shown_and_refused_in_the_daemons_words() -> None:
    def questions(socket: Path, owner: Owner) -> None:
        assert api.ask(socket, "POST", "/tasks", body(policy="17"))["task"] == "01" * 32
        assert owner.requests[0].policy == "17" and owner.requests[0].spec == SPEC
        assert api.ask(socket, "GET", "/tasks")["tasks"] == [{"id": "ab", "kind": "evaluate"}]
        api.ask(socket, "POST", "/tasks", body())
        with pytest.raises(CommandError, match="no further task"):
            api.ask(socket, "POST", "/tasks", body())
        with pytest.raises(CommandError, match="no such task"):
            api.ask(socket, "POST", f"/tasks/{'00' * 32}/cancel")
        with pytest.raises(CommandError, match="does not do that"):
            api.ask(socket, "GET", "/nothing")

    await asked(questions)


async def test_what_cannot_be_read_is_no_task() -> None:
    def questions(socket: Path, owner: Owner) -> None:
        asset = Asset(path="data/rows.jsonl", root="ab" * 32, size=1)
        wrong = {
            b"{": "cannot be read",
            json.dumps({"spec": {"kind": "conquer", "last": 1}}).encode(): "cannot be read",
            body(surprise=1): "cannot be read",
            body(nonce="x").replace(b'"evaluate"', b'"' + b"e" * (MAX_REQUEST_BYTES + 1) + b'"'): "cannot be read",
            body(msgspec.structs.replace(SPEC, assets=(asset,))): "a file is missing",
        }
        for data, words in wrong.items():
            with pytest.raises(CommandError, match=words):
                api.ask(socket, "POST", "/tasks", data)
        with pytest.raises(CommandError):
            api.ask(socket, "POST", "/tasks/zz/cancel")
        assert not owner.requests

    await asked(questions)
