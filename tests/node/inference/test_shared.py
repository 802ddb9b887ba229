"""One engine's process for several daemons: whose runs it has, what one does to the others, and when it ends."""

import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
import trio

from node.inference import shared
from node.inference.client import EngineProcess
from node.inference.engines import torch_engine
from node.inference.errors import EngineError
from node.inference.host import MOST_UNREAD, Benches, Host, _Unblocked
from node.inference.session import Session
from node.inference.start_weights import StartWeights
from node.inference.watchdog import LOADING
from node.inference.wire import HEADER, Ending, Inspect, LoadPolicy, Ping, Pong, Produce, Produced, decode_reply, encode
from node.inference.wish import Wish
from protocol.engines import LORA, arithmetic
from protocol.identity import NodeKey
from protocol.lora import Lora
from protocol.run import Asset, RunSpec, encode_run
from protocol.statements import Outcome
from tests.node.inference.engine_kinds import write_image
from tests.node.inference.test_adapters import adapter
from tests.node.inference.work import seen_by

NODE = NodeKey(b"\x07" * 32).address
ROOTS = (bytes([1]) * 32, bytes([2]) * 32)
PATIENCE = 120


@pytest.fixture
def runs(tiny_run: RunSpec) -> tuple[RunSpec, RunSpec]:
    """Two that begin with the same model, and train adapters."""
    recipe = msgspec.structs.replace(tiny_run.recipe, lora=Lora(rank=2))
    verification = msgspec.structs.replace(tiny_run.verification, engines=(f"*/float32/{LORA}", "*/float32/sdpa"))
    one = msgspec.structs.replace(tiny_run, recipe=recipe, verification=verification)
    return one, msgspec.structs.replace(one, name="another")


@pytest.fixture
def images(tiny_assets: Path, tmp_path: Path) -> list[Path]:
    """A policy of each run."""
    start = StartWeights(tiny_assets / "model")
    paths = [tmp_path / f"{number}.safetensors" for number in range(2)]
    for number, path in enumerate(paths):
        write_image(path, adapter({name: start[name] for name in start}, number, 2, size=0.3))
    return paths


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    program = [sys.executable, "-m", "node.inference.shared", "--runs=2", "--linger=0.2", "--attention", LORA]
    # A short path: a longer one than sockets may have would be another place, which all tests share.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        yield [*program, "--dtype", "float32", "--device", "cpu"]


@asynccontextmanager
async def daemons(command: list[str], runs: tuple[RunSpec, ...], assets: Path):
    """What each daemon has of its engine."""
    engines = [EngineProcess(command, encode_run(run), assets) for run in runs]
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as starting:
            for engine in engines:
                starting.start_soon(nursery.start, engine.run)
        yield engines
        nursery.cancel_scope.cancel()


def host_of(engine: EngineProcess) -> int:
    assert engine._link is not None
    return engine._link._computing


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110 - of another process
            await trio.sleep(0.05)


async def produce_with(engine: EngineProcess, root: bytes, image: Path, out: Path) -> Produced:
    order = Produce(policy_root=root, node=NODE, pool=3, index=5, out_path=str(out))
    policy = LoadPolicy(policy_root=root, step=0, path=str(image))
    made = await engine.ask(order, timeout=PATIENCE, policy=policy)
    assert isinstance(made, Produced)
    return made


async def test_two_daemons_have_one_engine_whose_work_validators_accept_and_neither_ends_with_the_other(
    runs: tuple[RunSpec, RunSpec], images: list[Path], command: list[str], tiny_assets: Path, tmp_path: Path
) -> None:
    made: dict[int, Produced] = {}

    async def work(number: int) -> None:
        path = tmp_path / f"file{number}"
        made[number] = await produce_with(engines[number], ROOTS[number], images[number], path)

    async with daemons(command, runs, tiny_assets) as engines:
        async with trio.open_nursery() as nursery:
            for number in range(2):
                nursery.start_soon(work, number)
        await until(lambda: all(host_of(engine) != engine.pid for engine in engines))
        (host,) = {host_of(engine) for engine in engines}
        for number, run in enumerate(runs):
            validator = Session(run, tiny_assets, torch_engine)
            validator.keep(ROOTS[number], str(images[number]))
            seen = seen_by(validator, looked_at(made[number], ROOTS[number]))
            assert (seen.outcome, seen.detail) == (Outcome.ACCEPT, "") and arithmetic(seen.verifier)[1] == LORA
        async with daemons(command, runs[:1], tiny_assets) as (third,):  # a third daemon, of the first run
            await produce_with(third, ROOTS[0], images[0], tmp_path / "again")
            assert (tmp_path / "again").read_bytes() == (tmp_path / "file0").read_bytes()
        psutil.Process(host).kill()  # what is asked next is done by another one
        await work(1)
        await until(lambda: host_of(engines[1]) not in (host, engines[1].pid))
        last = psutil.Process(host_of(engines[1]))
    await until(lambda: not last.is_running() or last.status() == psutil.STATUS_ZOMBIE)  # nobody needs it
    assert not shared.host_socket(command[5:]).exists()


def looked_at(made: Produced, root: bytes) -> Inspect:
    return Inspect(
        policy_root=root,
        node=NODE,
        pool=3,
        index=5,
        units=made.units,
        path=made.path,
        report_path=f"{made.path}.report",
    )


def test_runs_beyond_its_room_are_refused_until_one_has_ended(runs: tuple[RunSpec, RunSpec], tiny_assets: Path) -> None:
    benches = Benches(Wish(device="cpu", dtype="float32", attention=LORA), 1)
    first, same = (benches.open(runs[0], tiny_assets, benches.factory_for(runs[0])) for _ in range(2))
    assert first.engine is same.engine
    with pytest.raises(EngineError, match="full"):
        benches.open(runs[1], tiny_assets, torch_engine)
    first.close()
    with pytest.raises(EngineError, match="full"):
        benches.open(runs[1], tiny_assets, torch_engine)
    same.close()
    other = benches.open(runs[1], tiny_assets, benches.factory_for(runs[1]))
    assert other.engine is not first.engine, "with its last session an engine is closed"
    other.close()


def test_another_model_or_another_way_to_compute_has_an_engine_of_its_own(
    runs: tuple[RunSpec, RunSpec], tiny_assets: Path, tmp_path: Path
) -> None:
    benches = Benches(Wish(device="cpu", dtype="float32"), 3)
    merged = msgspec.structs.replace(runs[0].verification, engines=("*/float32/eager",))
    named = (Asset("model/model.safetensors", "ab" * 32, 1),)
    others = (
        runs[0],
        msgspec.structs.replace(runs[0], verification=merged),
        msgspec.structs.replace(runs[0], assets=named),
    )
    sessions = [benches.open(run, tiny_assets, benches.factory_for(run)) for run in others]
    kernels = [arithmetic(session.engine.name)[1] for session in sessions]
    assert kernels == [LORA, "eager", LORA], "adapters are kept apart where the run admits it"
    assert len({id(session.engine) for session in sessions}) == 3
    again = benches.open(others[2], Path(shutil.copytree(tiny_assets, tmp_path / "elsewhere")), torch_engine)
    assert again.engine is sessions[2].engine, "the same files in another place"
    for session in (*sessions, again):
        session.close()


def test_a_daemon_that_does_not_read_holds_nobody_up() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sink = _Unblocked(ours)
        with pytest.raises(OSError, match="does not read"):
            for _ in range(2 * MOST_UNREAD):
                sink.write(bytes(1 << 16))


def test_nothing_of_a_daemon_that_has_gone_stays_in_the_host(tmp_path: Path) -> None:
    host = Host(tmp_path / "socket", Benches(Wish(), 1))
    threading.Thread(target=host._owner.serve, daemon=True).start()
    before = threading.active_count()
    for _ in range(3):
        ours, theirs = socket.socketpair()
        talking = threading.Thread(target=host._talk, args=(ours,), daemon=True)
        talking.start()
        theirs.sendall(encode(Ping()))
        assert theirs.recv(1)
        theirs.close()
        talking.join(PATIENCE)
        assert not talking.is_alive() and not host._conversations
    limit = time.monotonic() + PATIENCE
    while threading.active_count() > before and time.monotonic() < limit:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_a_host_that_ends_tells_its_daemons_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path / "socket", Benches(Wish(), 1))
    threading.Thread(target=host._owner.serve, daemon=True).start()
    ours, theirs = socket.socketpair()
    talking = threading.Thread(target=host._talk, args=(ours,), daemon=True)
    talking.start()
    theirs.sendall(encode(Ping()))
    assert theirs.recv(1 << 16)
    heard: list[bytes] = []  # by the time at which the process is gone
    monkeypatch.setattr(os, "_exit", lambda status: heard.append(theirs.recv(1 << 16, socket.MSG_DONTWAIT)))
    host._owner._fatal(MemoryError("no more"), [])
    theirs.close()
    talking.join(PATIENCE)
    last = decode_reply(heard[0][HEADER.size :])
    assert isinstance(last, Ending) and "no more" in last.why


def test_a_host_that_nobody_can_find_any_more_ends_and_takes_no_others_socket_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(BaseException):
        pass

    def end(status: int) -> None:
        raise Ended

    def serving() -> None:
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
            with pytest.raises(Ended):
                host._end()
            assert path.exists()
        shutil.rmtree(path.parent)  # as systemd does when a user logs out
        with pytest.raises(Ended):
            host._end()

    path = tmp_path / "runtime" / "socket"
    path.parent.mkdir()
    host = Host(path, Benches(Wish(), 1))
    monkeypatch.setattr(os, "_exit", end)
    for thread in ("_accept", "_watch"):
        monkeypatch.setattr(host, thread, lambda *_: None)
    monkeypatch.setattr(host._owner, "serve", serving)
    host.serve()


def test_a_daemon_hears_something_while_a_host_is_waited_for(command: list[str]) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(shared.host_socket(command[5:])))
        silent.listen()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as bridge:
            assert bridge.stdout
            heard, _, _ = select.select([bridge.stdout], [], [], PATIENCE / 2)
            said = os.read(bridge.stdout.fileno(), 1 << 16) if heard else b""
            bridge.kill()
            assert said.startswith(encode(Pong(beats=0, busy=LOADING)))


def test_what_a_host_said_before_it_ended_reaches_its_daemon(command: list[str]) -> None:
    path, said = shared.host_socket(command[5:]), b"x" * 100_000  # more than the pipe to the daemon takes at once
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as bridge:
            assert bridge.stdin and bridge.stdout
            host, _ = listening.accept()
            with host:
                assert host.recv(1 << 16)
                host.sendall(encode(Pong(beats=0)))
                host.sendall(said)
            time.sleep(0.5)
            bridge.stdin.write(encode(Ping()))
            bridge.stdin.flush()
            time.sleep(0.5)
            assert bridge.stdout.read().endswith(said)


def test_a_host_that_does_not_answer_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "ANSWER_SECONDS", 0.2)
    assert shared._connected(tmp_path / "nobody") is None
    path = tmp_path / "deaf"
    program = "import socket, sys, time; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); s.listen(); print()"
    command = [sys.executable, "-c", f"{program}; sys.stdout.flush(); time.sleep(600)", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as deaf:
        assert deaf.stdout and deaf.stdout.readline()
        assert shared._connected(path) is None
        assert deaf.wait(10) == -9
