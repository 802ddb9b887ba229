"""Packages of verifiers behind OpenEnv's socket: what members hear of one, and what a package may do wrong."""

import asyncio
import json
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import connect

from node.environments.errors import Undecided
from node.environments.server.dial import LOCAL_SERVERS
from node.environments.server.environment import ServerEnvironment
from node.environments.verifiers import serve
from node.environments.verifiers.environment import PYTHON_VARIABLE, python
from tests.node.environments.test_server import play, told
from tests.node.environments.tokens import Characters

ADD = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {"type": "object"}}}


async def package(task: int, rollout: serve.PackageRollout) -> float:
    """Guess a digit: a package as verifiers plays one, with the ways in which one goes wrong."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"digit {task}?"}]
    while True:
        said = await rollout.asked(messages, [ADD])
        text = said["content"].strip()
        if text == str(task) or text == "enough":
            return float(text == str(task))
        if text == "raise":
            raise ValueError(text)
        if text == "hang":
            await asyncio.sleep(60)
        if text == "forget":
            messages = messages[1:]
        told = [one["function"]["arguments"] for one in said.get("tool_calls", [])]
        messages = [*messages, said, {"role": "user", "content": " ".join([f"not {text}", *told])}]


@contextmanager
def served(tasks: int = 8, seconds: float = 20.0) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """(the server's URL, its rows)."""
    started: queue.Queue[Any] = queue.Queue()

    async def stand() -> None:
        server, over = serve.RolloutServer(package, tasks, seconds), asyncio.Event()
        async with serve.listening(serve.outer_face(server), "127.0.0.1", 0) as address:
            started.put((asyncio.get_running_loop(), over, (f"ws://{address}/ws", await server.rows("digits"))))
            await over.wait()

    thread = threading.Thread(target=asyncio.run, args=(stand(),))
    thread.start()
    loop, over, where = started.get(timeout=10)
    try:
        yield where
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()


def member(folder: Path, url: str, rows: list[dict[str, Any]], seconds: float = 5.0) -> ServerEnvironment:
    from node.environments.server.environment import Arguments, load

    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = Arguments(path="rows.jsonl", url=url, turns=4, seconds=seconds, held_back_share=0.5)
    return load(given, folder, Characters())


@pytest.fixture(autouse=True)
def local_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LOCAL_SERVERS, "1")


def test_a_package_is_heard_turn_by_turn_and_pays_what_it_pays(tmp_path: Path) -> None:
    with served() as (url, rows):
        assert rows[3]["reset"] == {"task": 3} and rows[3]["prompt"].startswith("digit 3?\n\nYou may end an answer")
        one, other = member(tmp_path, url, rows), member(tmp_path, url, rows)
        right = one.problem(0).problem_id.rpartition("-")[2]
        rollout, reward = play(one, "x", '<call>{"name": "add", "arguments": {"n": 2}}</call>', right)
        assert "not x" in told(rollout) and '{"n": 2}' in told(rollout) and reward == 1.0
        assert other.step(other.problem(0), rollout[:3]) == rollout[3].tokens
        assert other.score([other.problem(0)], [rollout]) == [1.0]
        assert play(one, "x", "enough")[1] == 0.0 and one.gave_up == 0
        one.close()
        other.close()


def test_an_answer_that_a_package_cannot_take_is_worth_nothing_and_a_package_that_hangs_or_rewrites_decides_nothing(
    tmp_path: Path,
) -> None:
    with served(seconds=0.5) as (url, rows):
        environment = member(tmp_path, url, rows)
        assert play(environment, "raise")[1] == 0.0 and environment.gave_up == 0
        with pytest.raises(Undecided, match="SESSION_ERROR"):
            play(environment, "hang", "x")
        with pytest.raises(Undecided, match="SESSION_ERROR"):
            play(environment, "forget", "x")
        environment.close()


def test_what_a_stranger_sends_is_refused_in_form(tmp_path: Path) -> None:
    with served(tasks=2) as (url, _), connect(url) as link:
        sent: list[Any] = [[], {"type": "state"}, {"type": "step", "data": {"message": "1"}}]
        sent += [{"type": "reset", "data": {"task": wrong}} for wrong in (2, -1, True, "0", None)]
        for message in sent:
            link.send(json.dumps(message))
            assert json.loads(link.recv(5))["data"]["code"] == "VALIDATION_ERROR"
        link.send(json.dumps({"type": "reset", "data": {"task": 1}}))
        assert json.loads(link.recv(5))["type"] == "observation"
        link.send(json.dumps({"type": "step", "data": {"message": "1"}}))
        assert json.loads(link.recv(5))["data"]["reward"] == 1.0
        link.send(json.dumps({"type": "step", "data": {"message": "1"}}))
        assert json.loads(link.recv(5))["data"]["code"] == "EXECUTION_ERROR"


@pytest.mark.parametrize(("local", "most"), [(False, {"MOST_EACH": 1}), (True, {"MOST_EPISODES": 1})])
def test_one_address_cannot_open_episodes_without_end(
    monkeypatch: pytest.MonkeyPatch, local: bool, most: dict[str, int]
) -> None:
    monkeypatch.setattr(serve, "is_loopback", lambda address: local)
    monkeypatch.setattr(serve, *next(iter(most.items())))
    with served(tasks=1) as (url, _):
        for _ in range(2):  # a place is free again when its socket is closed
            with connect(url) as first, connect(url) as second:
                first.send(json.dumps({"type": "reset", "data": {"task": 0}}))
                assert json.loads(first.recv(5))["type"] == "observation"
                assert json.loads(second.recv(5))["data"]["code"] == "CAPACITY_REACHED"


@pytest.mark.parametrize("text", ["<call>[]</call>", "<call>{</call>", '<call>{"name": 1}</call>', "</call>", "plain"])
def test_what_is_no_call_is_an_answer(text: str) -> None:
    assert serve.answer_of(text, [ADD]) == {"role": "assistant", "content": text}
    assert "tool_calls" not in serve.answer_of('<call>{"name": "add"}</call>', [])


@pytest.mark.skipif(not python().exists(), reason=f"verifiers is not installed: {python()} ({PYTHON_VARIABLE})")
def test_a_real_package_is_heard_alike_by_two_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent / "packages"))
    settings = {"taskset": "say_twice", "config": {"num_tasks": 6}, "tasks": 6, "rows": True}
    settings |= {"host": "127.0.0.1", "port": 0, "seconds": 30.0}
    with subprocess.Popen(
        [str(python()), "-P", serve.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        try:
            child.stdin.write(json.dumps(settings) + "\n")
            child.stdin.flush()
            ready = json.loads(child.stdout.readline())
            assert ready["rows"][0] == {"problem_id": "say_twice-0", "prompt": "Say abc.", "reset": {"task": 0}}
            one = member(tmp_path, ready["url"], ready["rows"], seconds=30.0)
            other = member(tmp_path, ready["url"], ready["rows"], seconds=30.0)
            problem = one.problem(0)
            word = problem.prompt.removeprefix("Say ").removesuffix(".")
            rollout, reward = play(one, "no", word)
            assert "Again, please." in told(rollout) and reward == 1.0
            assert other.step(problem, rollout[:1]) == rollout[1].tokens
            assert other.score([problem], [rollout]) == [1.0] and play(other, "no", "wrong")[1] == 0.0
            one.close()
            other.close()
        finally:
            child.kill()
