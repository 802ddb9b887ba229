"""A call begins in the same state and ends the same way, every time; what is this machine's fault is no outcome."""

import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.sandbox import CallOutcome, CallStatus, SandboxCall, SandboxError, SandboxLimits, Undecided
from node.sandbox.confined import walls
from node.sandbox.process import ProcessSandbox

Opener = Callable[..., ProcessSandbox]
SOURCE = """
import json, os, random, select, sys, time

calls = 0

def count():
    global calls
    calls += 1
    return calls

def echo(*values):
    return values

def everything_random():
    return [hash("a"), list({"one", "two", "three"}), os.urandom(8).hex(), random.random(), id(object())]

def clock():
    begun = time.monotonic()
    time.sleep(3600)
    slept = time.monotonic() - begun
    begun = time.time()
    while time.time() < begun + 0.01:
        pass
    return [slept, time.gmtime().tm_year]

def sleep_for_ever():
    before = time.monotonic()
    for _ in range(30):
        select.select([], [], [], 9e8)
    return time.monotonic() > before

def read():
    return sys.stdin.read()

def say(text):
    print(text)
    sys.stderr.write("oh")

def files():
    here = sorted(os.listdir("/app"))
    with open("/app/data/rows.jsonl") as file:
        return [here, sorted(os.listdir("/app/data")), file.read(), os.stat("/app/data/rows.jsonl").st_size]

def bytes_out():
    os.write(1, bytes(range(256)))

def leave(code):
    sys.exit(code)

def endless():
    while True:
        pass

def take(mib):
    return len(bytearray(mib << 20))
"""


@pytest.fixture(scope="module")
def sandbox(wasi: Opener) -> ProcessSandbox:
    return wasi(SOURCE, files={"data/rows.jsonl": b"{}\n", "helper.py": b""})


def test_nothing_of_one_call_reaches_another(sandbox: ProcessSandbox) -> None:
    assert [sandbox.call("count").value for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("values", [[1, -2.5, None, True], ["ä\n\u2028\U0001f600", ""], [{"a": [1, {"b": 2}]}, 10**30]])
def test_values_of_json_come_back_as_they_were(sandbox: ProcessSandbox, values: list[Any]) -> None:
    assert sandbox.call("echo", *values).value == values


def test_chance_hashes_and_addresses_are_the_same_in_another_process_with_another_hash_seed(
    wasi: Opener, sandbox: ProcessSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "77")
    other = wasi(SOURCE, files={"data/rows.jsonl": b"{}\n", "helper.py": b""})
    assert other.call("everything_random") == sandbox.call("everything_random")  # fuel, too
    assert other.call("files").fuel == sandbox.call("files").fuel


def test_time_is_counted_and_sleeping_takes_none(sandbox: ProcessSandbox) -> None:
    slept, year = sandbox.call("clock").value
    assert 3600 <= slept < 3601
    assert year == 2020


def test_who_sleeps_for_ever_wakes_up(sandbox: ProcessSandbox) -> None:
    """A clock beyond 64 bits would be this machine's trouble, and the guest undecided at will."""
    assert sandbox.call("sleep_for_ever").value is True


def test_files_are_those_that_were_given_and_nothing_else(sandbox: ProcessSandbox) -> None:
    assert sandbox.call("files").value == [["data", "entry.py", "helper.py"], ["rows.jsonl"], "{}\n", 3]


def test_standard_input_and_what_was_printed(sandbox: ProcessSandbox) -> None:
    assert next(sandbox.run([SandboxCall("read", stdin=b"1 2\n3")])).value == "1 2\n3"  # type: ignore[union-attr]
    said = sandbox.call("say", "hi")
    assert (said.printed, said.complained) == (b"hi\n", b"oh")
    assert sandbox.call("bytes_out").printed == bytes(range(256))


@pytest.mark.parametrize(("code", "value"), [(0, 0), (3, 3), ("no", 1), (None, 0), (256, 0)])
def test_an_exit_is_an_outcome_with_its_code(sandbox: ProcessSandbox, code: object, value: int) -> None:
    outcome = sandbox.call("leave", code)
    assert (outcome.status, outcome.value) == (CallStatus.EXITED, value)


def test_out_of_fuel_is_an_outcome_and_uses_all_of_it(sandbox: ProcessSandbox) -> None:
    outcomes = list(sandbox.run([SandboxCall("endless", fuel=10_000_000), SandboxCall("endless", fuel=10_000_000)]))
    assert outcomes == [CallOutcome(CallStatus.OUT_OF_FUEL, fuel=10_000_000)] * 2


def test_memory_up_to_the_limit_is_given_and_no_more(sandbox: ProcessSandbox) -> None:
    assert sandbox.call("take", 64).value == 64 << 20
    assert sandbox.call("take", 256).status is CallStatus.OUT_OF_MEMORY


def test_a_function_that_is_not_there_is_an_ordinary_error(sandbox: ProcessSandbox) -> None:
    assert sandbox.call("nothing").status is CallStatus.RAISED


def test_arguments_beyond_all_bounds_never_reach_the_process(sandbox: ProcessSandbox) -> None:
    assert sandbox.call("echo", "x" * (17 << 20)).status is CallStatus.TOO_LONG


def test_a_call_over_its_wall_clock_is_undecided_and_the_next_is_answered(wasi: Opener) -> None:
    slow = wasi(SOURCE, SandboxLimits(fuel=10**12, memory_mib=128, seconds=0.5))
    with pytest.raises(Undecided, match="more than 0.5 s"):
        slow.call("endless")
    assert slow.call("count").value == 1


def test_the_process_that_forks_has_one_thread_and_its_forks_stand_behind_the_kernels_walls(wasi: Opener) -> None:
    one = wasi(SOURCE, SandboxLimits(fuel=10**12, memory_mib=128))
    process = one._process
    assert process is not None
    assert "Threads:\t1\n" in Path(f"/proc/{process.pid}/status").read_text()
    asking = threading.Thread(target=lambda: list(one.run([SandboxCall("endless")])))
    asking.start()
    status = _status_of_fork(process.pid)
    process.kill()  # the call would take minutes
    asking.join()
    if walls.missing() is None:
        assert "Seccomp:\t2\n" in status
        assert "CapEff:\t0000000000000000\n" in status


def _status_of_fork(pid: int) -> str:
    """Of a child that has put its walls up; the last that was seen where it never does."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    status = ""
    for _ in range(100):
        time.sleep(0.02)
        for child in children.read_text().split():
            status = Path(f"/proc/{child}/status").read_text()
            if "Seccomp:\t2\n" in status:
                return status
    return status


def test_a_process_that_is_killed_within_a_call_gives_no_outcome_and_is_started_again(wasi: Opener) -> None:
    one = wasi(SOURCE)
    process = one._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)  # so that the call is under way for sure
    timer = threading.Timer(0.2, lambda: os.kill(process.pid, signal.SIGKILL))
    timer.start()
    with pytest.raises(Undecided, match="its process ended"):
        one.call("count")
    timer.join()
    assert one.call("count").value == 1


def test_a_host_without_memory_gives_no_outcome(wasi: Opener) -> None:
    one = wasi(SOURCE)
    process = one._process
    assert process is not None
    resource.prlimit(process.pid, resource.RLIMIT_AS, (1 << 30, 1 << 30))  # below what the guest's memory reserves
    with pytest.raises(Undecided, match="memory|fork"):
        one.call("take", 64)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import nothing", "ModuleNotFoundError"),
        ("while True: pass", "out of fuel"),
        ("x = bytearray(1 << 30)", "out of memory"),
        ("import os; os._exit(0)", "exited"),
        ("while True: print('x' * 1000)", "too long"),
    ],
)
def test_an_entry_that_does_not_load_is_named_with_its_reason(wasi: Opener, source: str, why: str) -> None:
    with pytest.raises(SandboxError, match="cannot be loaded") as caught:
        wasi(source, SandboxLimits(load_fuel=1_000_000_000, memory_mib=128, output_bytes=1 << 16))
    assert why in caught.value.why
    assert not isinstance(caught.value, Undecided)


@pytest.mark.parametrize(
    "files",
    [
        {"../entry.py": b""},
        {"/entry.py": b""},
        {"a//b.py": b""},
        {".hidden": b""},
        {"a\0b": b""},
        {"data": b"", "data/below.py": b""},
        {"big.bin": bytes(65 << 20)},
    ],
)
def test_files_with_names_or_sizes_that_are_none_are_refused(wasi: Opener, files: dict[str, bytes]) -> None:
    with pytest.raises(SandboxError):
        wasi("x = 1", files=files)


@pytest.mark.parametrize("name", ["fuel", "load_fuel", "memory_mib", "output_bytes", "seconds"])
def test_limits_are_bounded(name: str) -> None:
    for value in (0, -1, 1e18, float("nan")):
        with pytest.raises(ValueError, match=name):
            SandboxLimits(**{name: value})
