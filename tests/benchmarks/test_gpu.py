"""What the GPU benchmark keeps: of parts that ended in the middle, of commands one after the other, of short time."""

import argparse
import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.gpu import wheels
from benchmarks.gpu.__main__ import marked, merge, parser, parts_named, read_rows, run_part
from benchmarks.gpu.child import OURS
from benchmarks.gpu.job import Job
from benchmarks.gpu.parts import PARTS, leased
from benchmarks.gpu.result import REPOSITORY, merged, new, read, tables, write

DEVICE = {"name": "NVIDIA Example", "versions": {"torch": "2"}, "python": "3.11", "cuda": "13.0", "driver": "600"}


def entry(figure: float | None, state: str = "done") -> dict[str, Any]:
    figures = {} if figure is None else {"decoding": [{"batch": "1", "rate": figure}]}
    told = {"what": "tokens per second", "date": "", "revision": None, "command": "", "seconds": 1.0}
    return {**told, "state": state, "figures": figures}


def result(rehearsal: bool = False, **parts: dict[str, Any]) -> dict[str, Any]:
    return {**new(DEVICE, rehearsal=rehearsal), "parts": parts}


def test_parts_come_in_order_of_their_value_and_unknown_ones_are_named() -> None:
    assert [part.name for part in parts_named("costs,engine")] == ["engine", "costs"]
    assert parser().parse_args([]).only == list(PARTS)
    with pytest.raises(argparse.ArgumentTypeError, match="nonsense"):
        parts_named("engine,nonsense")


def test_wheels_are_those_of_the_parts_for_the_other_machines_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def pip(command: list[str], check: bool) -> SimpleNamespace:
        asked.append(command)
        with (tmp_path / "out" / "pyarrow-1.whl").open("wb") as file:
            file.truncate(60_000_000 * (len(asked) > 1))
        return SimpleNamespace(returncode=len(asked) > 2)

    monkeypatch.setattr(wheels.subprocess, "run", pip)
    assert set(wheels.NEEDED) == {part.name for part in PARTS}
    assert wheels.packages(parts_named("engine,swap")) == ["blake3", "msgspec", "platformdirs", "structlog"]
    assert "1 wheels, 0.0 MB" in wheels.collect(parts_named("engine"), "3.12", tmp_path / "out")
    assert asked[0][-3:] == ["blake3", "msgspec", "structlog"] and {"3.12", "cp312", "abi3"} <= set(asked[0])
    assert "more than 50 MB, pyarrow-1.whl" in wheels.collect(parts_named("smollm"), "3.12", tmp_path / "out")
    with pytest.raises(SystemExit, match="could not fetch"):
        wheels.collect(parts_named("engine"), "3.12", tmp_path / "out")


def test_a_later_command_adds_to_what_earlier_ones_found() -> None:
    earlier = result(engine=entry(1.0), proofs=entry(2.0), learner=entry(3.0))
    both = merged(earlier, result(engine=entry(4.0), proofs=entry(None, "failed"), swap=entry(None, "failed")))
    assert both["parts"] == {
        "engine": entry(4.0),
        "proofs": entry(2.0),  # what failed without a figure takes no figures away
        "learner": entry(3.0),
        "swap": entry(None, "failed"),
    }


def test_a_rehearsal_never_mixes_with_a_result() -> None:
    with pytest.raises(SystemExit, match="rehearsal"):
        merged(result(), result(rehearsal=True))


def test_results_that_came_home_one_by_one_become_one_file(tmp_path: Path) -> None:
    files = [
        write(tmp_path / "a", "first", result(engine=entry(1.0))),
        write(tmp_path / "b", "second", result(learner=entry(2.5))),
    ]
    merge(files, tmp_path / "out")
    whole = read(tmp_path / "out" / "nvidia-example.json")
    assert whole is not None and list(whole["parts"]) == ["engine", "learner"]
    assert tables(whole) == (tmp_path / "out" / "nvidia-example.md").read_text()
    assert "| 1 | 2.5 |" in tables(whole)


def test_rows_of_a_part_that_was_ended_in_the_middle_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "rows"
    file.write_text('{"section": "decoding", "row": {"batch": 1}}\n{"section": "deco')
    assert read_rows(file) == ({"decoding": [{"batch": 1}]}, {})


def test_a_part_that_time_is_too_short_for_is_left_out_and_says_so(tmp_path: Path) -> None:
    job = Job("cpu", True, tmp_path, None, 0.0)
    left_out = run_part(PARTS[1], job, PARTS[1].least / 2, ["python -m benchmarks.gpu"], None)
    assert left_out["state"] == "out of time" and "were left" in left_out["why"] and not left_out["figures"]


def test_what_benchmarks_import_late_is_there() -> None:
    """A part takes a module that is missing for one of a package that is not installed, and goes on without."""
    found = {
        node.module
        for file in (REPOSITORY / "benchmarks").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OURS
    }
    places = {name: REPOSITORY / name.replace(".", "/") for name in found}
    assert [name for name, at in places.items() if not at.with_suffix(".py").exists() and not at.is_dir()] == []


def test_a_lease_has_known_parts_in_order_of_value_within_its_seconds() -> None:
    parts = leased()
    assert sum(part.most for part in parts) * 60 == pytest.approx(740) and parts[0].name == "learner"
    assert {part.name for part in parts} <= set(wheels.NEEDED) and not any(part.least for part in parts)
    script = (REPOSITORY / "benchmarks" / "gpu" / "lease.sh").read_text(encoding="utf-8")
    assert "--lease" in script and "740 s" in script


def test_parts_that_no_longer_hold_are_marked_until_they_are_measured_again(tmp_path: Path) -> None:
    whole = result(engine=entry(1.0), learner=entry(2.0))
    file = write(tmp_path / "a", "nvidia-example", whole)
    merge([file], tmp_path / "out", [marked("engine=decoding was changed since")])
    told = read(tmp_path / "out" / "nvidia-example.json")
    assert told is not None and told["parts"]["engine"]["superseded"] == "decoding was changed since"
    assert tables(told).count("**Superseded:** decoding was changed since") == 1
    assert "superseded" not in merged(told, result(engine=entry(3.0)))["parts"]["engine"]
    with pytest.raises(SystemExit, match="no part proofs"):
        merge([file], tmp_path / "out", [("proofs", "why")])
    for wrong in ("engine", "engine=", "nonsense=why"):
        with pytest.raises(argparse.ArgumentTypeError, match="PART=WHY"):
            marked(wrong)
