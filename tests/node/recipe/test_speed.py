"""What this machine's engine does is measured once, and again when the machine is another."""

import sys
from pathlib import Path

import pytest

from node.errors import ConfigError
from node.hardware import Gpu, Hardware
from node.preflight.machine import check_machine, speed_finding
from node.recipe.speed import NAME, Speed, check_speed, measured, recall

MACHINE = Hardware(2, 1 << 34, (), processor="Xeon", features=("avx2",))
SPEED = Speed(decode=1000.0, prefill=9000.0, engine="x86/float32/sdpa", parameters=4_000_000)


def child(count: Path, body: str) -> list[str]:
    """A program that notes that it was started, and says `body`."""
    return [sys.executable, "-c", f"open({str(count)!r}, 'a').write('x'); print({body!r})"]


GOOD = '{"decode": 1000.0, "prefill": 9000.0, "engine": "x86/float32/sdpa", "parameters": 4000000}'


async def test_a_machine_is_measured_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    count, home = tmp_path / "count", tmp_path / "home"
    assert recall(home, MACHINE) is None
    for _ in range(2):
        assert await measured(home, MACHINE, command=child(count, GOOD)) == SPEED
    assert count.read_text() == "x"
    with_gpu = Hardware(2, 1 << 34, (Gpu("H100", 1 << 36),), processor="Xeon", features=("avx2",))
    assert recall(home, with_gpu) is None
    assert await measured(home, with_gpu, command=child(count, GOOD)) == SPEED
    assert count.read_text() == "xx"


@pytest.mark.parametrize("says", ["", "no", '{"decode": "fast"}'])
async def test_what_cannot_be_measured_is_not_known_and_not_remembered(tmp_path: Path, says: str) -> None:
    assert await measured(tmp_path, MACHINE, command=child(tmp_path / "count", says)) is None
    assert not (tmp_path / NAME).exists()
    assert await measured(tmp_path, MACHINE, command=["/nowhere"]) is None


def test_a_file_that_is_none_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"\xff{")
    assert recall(tmp_path, MACHINE) is None


def test_a_larger_model_is_slower_in_proportion() -> None:
    assert SPEED.expected(8_000_000) == 500.0
    assert SPEED.expected(0) == 4e9


def test_who_is_too_slow_is_no_worker_and_who_is_unknown_may_be() -> None:
    check_speed(None)
    check_speed(SPEED)
    slow = Speed(4.9, 100.0, "x86/float32/sdpa", 4_000_000)
    with pytest.raises(ConfigError, match=r"4\.9 tokens a second"):
        check_speed(slow)
    assert speed_finding(slow).level == "warning" and speed_finding(None).level == "ok"


def test_the_report_has_all_that_is_known_of_a_machine() -> None:
    machine = Hardware(2, 1 << 34, (Gpu("H100", 1 << 36, 1 << 35, "nvidia", "9.0"),), 1 << 33, "Xeon", ("amx",), "580")
    found = check_machine(machine)
    assert "Xeon: 2 cores (amx), 16.0 GiB of memory, 8.0 free" in found.what
    card = {"name": "H100", "memory": 1 << 36, "free": 1 << 35, "vendor": "nvidia", "capability": "9.0"}
    assert list(found.data["gpus"]) == [card] and found.data["driver"] == "580"
