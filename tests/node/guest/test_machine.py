"""What others use of this machine: counted of the processors, read of the GPUs, and unknown where nobody can say."""

import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from node.guest import machine
from node.guest.machine import UseWatch, own_processes, read_pmon

PMON = """# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command
# Idx           #    C/G      %      %      %      %      %      %    name
    0        100     C     80     20      -      -      -      -    python
    0        200     G     12      3      -      -      -      -    game
    1        300     C      -      -      -      -      -      -    other
"""


@pytest.mark.parametrize(
    ("own", "exists", "percent"),
    [
        ({100}, {100, 200, 300}, 12.0),
        ({100, 200, 300}, set(), 0.0),
        (set(), {100, 200, 300}, 92.0),
        ({100}, {100, 200}, None),  # a pid of the host, in a container
    ],
)
def test_what_others_have_of_the_busiest_gpu(own: set[int], exists: set[int], percent: float | None) -> None:
    assert read_pmon(PMON, own, exists.__contains__) == percent


@pytest.mark.parametrize(
    ("told", "percent"),
    [
        ("", 0.0),
        ("# gpu pid type sm\n    0          -     -      -\n", 0.0),
        ("    0   many     C      3\n", None),
        ("    0    200     C   [N/A]\n", None),
    ],
)
def test_an_answer_of_another_form_is_unknown_and_not_nothing(told: str, percent: float | None) -> None:
    assert read_pmon(told, set(), lambda pid: True) == percent


def test_the_time_of_others_is_all_but_that_of_our_own_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One core of ours and two of others', over ten seconds."""
    busy, ours, now = [1000.0, 1030.0], [(5.0), (15.0)], [50.0, 60.0]
    monkeypatch.setattr(machine, "_busy", lambda: busy.pop(0))
    monkeypatch.setattr(machine, "own_processes", lambda: [SimpleNamespace(pid=1)])
    monkeypatch.setattr(machine, "_used", lambda one: ((one.pid, 0.0), ours.pop(0)))
    monkeypatch.setattr(psutil, "sensors_battery", lambda: None)
    watch = UseWatch(gpus=False, clock=lambda: now.pop(0))
    assert watch() == (None, 0.0, False)  # of a first look nothing can be said
    assert watch() == (2.0, 0.0, False)


@pytest.mark.parametrize(
    ("battery", "says"),
    [
        (None, False),
        (SimpleNamespace(power_plugged=True), False),
        (SimpleNamespace(power_plugged=None), False),
        (SimpleNamespace(power_plugged=False), True),
    ],
)
def test_a_laptop_on_its_battery_is_not_left_alone(
    battery: object, says: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery)
    monkeypatch.setattr(machine, "own_processes", list)
    use = UseWatch(gpus=False)()
    assert use.battery is says and bool(use.busy(8)) is says


def test_our_own_processes_are_those_that_we_started() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        found = {one.pid for one in own_processes()}
        assert {os.getpid(), child.pid} <= found and 1 not in found
    finally:
        child.communicate()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="affinity is Linux's")
def test_what_is_started_keeps_to_the_cores_that_were_granted() -> None:
    told = "import os; print(len(os.sched_getaffinity(0)))"
    ours = "from node.guest.machine import keep_to_cores; keep_to_cores(1); import subprocess, sys; "
    ours += f"print(subprocess.run([sys.executable, '-c', {told!r}], capture_output=True, text=True).stdout)"
    assert (
        subprocess.run([sys.executable, "-c", ours], capture_output=True, text=True, check=True).stdout.strip() == "1"
    )
