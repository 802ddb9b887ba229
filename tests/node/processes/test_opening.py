"""Where no more files may be open, whoever opens one waits; the event loop never does."""

import errno
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import structlog
import trio

from node.processes.forkserver import ForkServer
from node.processes.opening import patient_opening, patiently


@contextmanager
def no_descriptor() -> Iterator[Callable[[], None]]:
    """None is left until what is yielded was called."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lift = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield lift
    finally:
        lift()


WAYS: dict[str, Callable[[Path], object]] = {
    "open": lambda file: open(file).close(),
    "Path.open": Path.read_text,
    "os.open": lambda file: os.close(os.open(file, os.O_RDONLY)),
    "os.listdir": lambda file: os.listdir(file.parent),
    "os.scandir": lambda file: os.scandir(file.parent).close(),
    "Path.glob": lambda file: list(file.parent.glob("*")),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_thread_that_opens_waits_until_it_can_and_that_is_told_once(tmp_path: Path, way: str) -> None:
    (file := tmp_path / "file").write_text("here")
    wanted, found = WAYS[way](file), list[object]()

    async def read() -> None:
        found.append(await trio.to_thread.run_sync(WAYS[way], file))

    with structlog.testing.capture_logs() as logs, patient_opening(every=0.01) as opening:
        with no_descriptor() as lift:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(read)
                nursery.start_soon(read)
                while opening.waited < 2:
                    await trio.sleep(0.01)
                assert found == []
                lift()
        assert found == [wanted, wanted]
    assert [one["event"] for one in logs] == ["files.none_left", "files.left_again"]
    assert os.strerror(errno.EMFILE) in logs[0]["why"] and "LimitNOFILE" in logs[0]["remedy"]


async def test_the_event_loop_does_not_wait_and_no_other_error_is_waited_for(tmp_path: Path) -> None:
    with patient_opening(every=0.01) as opening:
        with no_descriptor(), pytest.raises(OSError, match="Too many open files"):
            (tmp_path / "file").open()
        with pytest.raises(FileNotFoundError):
            await trio.to_thread.run_sync(os.listdir, tmp_path / "not here")
        assert opening.waited == 0
    assert not hasattr(open, "__wrapped__")


async def test_who_waits_gives_up_in_the_end_and_at_once_when_the_daemon_ends(tmp_path: Path) -> None:
    with patient_opening(patience=0.05, every=0.01) as opening, no_descriptor():
        with pytest.raises(OSError, match="Too many open files"):
            await trio.to_thread.run_sync(os.listdir, tmp_path)
    with patient_opening(every=60.0) as opening, no_descriptor():
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                with pytest.raises(OSError, match="Too many open files"):
                    await trio.to_thread.run_sync(os.listdir, tmp_path)

            nursery.start_soon(wait)
            while not opening.waited:
                await trio.sleep(0.01)
            opening.give_up()


async def test_a_child_that_cannot_be_started_for_want_of_descriptors_is_started_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    command = [sys.executable, "-c", "print('here')"]
    with no_descriptor() as lift:
        async with trio.open_nursery() as nursery:
            said = list[bytes]()

            async def ask() -> None:
                said.append(await ForkServer(None).said(command))

            nursery.start_soon(ask)
            await trio.sleep(2.5)
            assert said == []
            lift()
    assert said == [b"here\n"]


async def test_another_reason_against_a_child_is_told_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async def fail() -> None:
        raise FileNotFoundError("no such program")

    with pytest.raises(FileNotFoundError):
        await patiently(fail)
    assert trio.current_time() == 0
