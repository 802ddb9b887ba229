"""A stranger's package in the sandbox that runs have: whatever its scorer does, it is a reward or the floor."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.environments.base import one_answer
from node.environments.package.archive import pack
from node.environments.package.environment import Arguments, PackageEnvironment, load
from node.sandbox import RuntimeMissing, find_runtime
from tests.node.environments.tokens import Characters

WILD = """
# /// environment
# name = "wild"
# class = "bounded"
# [limits]
# fuel = 300_000_000
# memory_mib = 64
# output_bytes = 65536
# ///
import os, sys
calls = []
def rows():
    return [{"n": n} for n in range(20)]
def prompt(row):
    return "?"
def score(row, turns):
    calls.append(1)
    return float(eval(turns[-1]["content"]))
"""
FAULTS = {
    "1 / 0": "raised",
    "[1 for _ in iter(int, 1)]": "out of fuel",
    "os.fork()": "raised",
    "print('x' * 10**7)": "too long",
    "len(bytearray(10**9))": "out of memory",
    "'nan'": "raised",
    "'inf'": "raised",
    "1.5": "no reward",
    "sys.exit(0)": "exited",
    "open('/etc/passwd').read()": "raised",
    "setattr(sys.modules['intellect_package'], 'score', lambda *a: 1.0) or 1.5": "no reward",
}


@pytest.fixture(scope="module")
def wild(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackageEnvironment]:
    try:
        find_runtime()
    except RuntimeMissing as missing:
        pytest.skip(f"{missing}; {missing.remedy}")
    assets: Path = tmp_path_factory.mktemp("assets")
    (assets / "environments").mkdir()
    (assets / "environments" / "wild.tar").write_bytes(pack({"environment.py": WILD.encode()}))
    environment = load(Arguments(held_back_share=0.3), assets, "wild", Characters())
    yield environment
    environment.close()


def reward(wild: PackageEnvironment, answer: str) -> float:
    return wild.score([wild.problem(0)], [one_answer(Characters().encode(f"{answer}\n"))])[0]


@pytest.mark.parametrize(("answer", "fault"), FAULTS.items())
def test_a_wild_scorer_gives_the_floor_and_leaves_nothing_behind(
    wild: PackageEnvironment, answer: str, fault: str
) -> None:
    before = wild.faults.get(fault, 0)
    assert reward(wild, answer) == 0.0
    assert wild.faults.get(fault, 0) == before + 1 and wild.gave_up == 0
    assert reward(wild, f"len(calls) / 2 + 0 * {len(answer)}") == 0.5, "each call begins in the same state"
