"""Answers that are programs: each input for itself, and nothing of what is expected inside."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from node.sandbox import Limits, Outcome, open_wasi
from node.sandbox.base import Status
from node.sandbox.process import ProcessSandbox
from node.sandbox.programs import ENTRY, FILES, outputs, returns


@pytest.fixture(scope="module")
def sandbox(interpreter: Path) -> Iterator[ProcessSandbox]:
    limits = Limits(fuel=200_000_000, memory_mib=128, output_bytes=1 << 16)
    with open_wasi(FILES, ENTRY, limits, interpreter) as opened:
        yield opened


def _printed(outcomes: Iterator[object]) -> list[object]:
    return [one.printed if isinstance(one, Outcome) and one.status is Status.OK else one for one in outcomes]


def test_a_program_is_run_once_for_each_input(sandbox: ProcessSandbox) -> None:
    source = "import sys\nprint(int(input()) + sum(map(int, sys.stdin)))\nif __name__ == '__main__': print('end')"
    assert _printed(outputs(sandbox, source, [b"1\n2\n3\n", b"5"])) == [b"6\nend\n", b"5\nend\n"]


@pytest.mark.parametrize("ending", ["sys.exit()", "sys.exit(0)", "exit()", "quit(0)"])
def test_a_program_that_exits_well_has_ended_well(sandbox: ProcessSandbox, ending: str) -> None:
    assert _printed(outputs(sandbox, f"import sys\nprint(1)\n{ending}\nprint(2)", [b""])) == [b"1\n"]


def test_what_a_program_does_on_one_input_tells_it_nothing_on_the_next(sandbox: ProcessSandbox) -> None:
    source = "import builtins\nbuiltins.seen = getattr(builtins, 'seen', 0) + 1\nprint(builtins.seen)"
    assert _printed(outputs(sandbox, source, [b"", b""])) == [b"1\n", b"1\n"]


def test_a_function_or_a_method_of_solution_is_called_with_each_list_of_arguments(sandbox: ProcessSandbox) -> None:
    plain, method = "def f(a, b): return a + b", "class Solution:\n    def f(self, a, b): return a + b"
    for source in (plain, method):
        values = [one.value for one in returns(sandbox, source, "f", [[1, 2], ["a", "b"]]) if isinstance(one, Outcome)]
        assert values == [3, "ab"]


@pytest.mark.parametrize("source", ["def f(:", "raise ValueError", "import sys; sys.exit(2)", "assert False", "f()"])
def test_a_program_that_fails_has_no_good_end(sandbox: ProcessSandbox, source: str) -> None:
    (one,) = outputs(sandbox, source, [b""])
    assert isinstance(one, Outcome) and one.status in (Status.RAISED, Status.EXITED)


def test_fuel_is_for_each_input_and_for_all_together(sandbox: ProcessSandbox) -> None:
    endless = "line = input()\nwhile line == 'loop': pass\nprint('done')"
    each = [one.status for one in outputs(sandbox, endless, [b"loop", b"go"], fuel=20_000_000)]  # type: ignore[union-attr]
    assert each == [Status.OUT_OF_FUEL, Status.OK]
    both = list(outputs(sandbox, endless, [b"loop", b"loop", b"go"], fuel=20_000_000, total=30_000_000))
    assert [one.fuel for one in both] == [20_000_000, 10_000_000, 0]  # type: ignore[union-attr]


def test_who_has_seen_enough_takes_no_more(sandbox: ProcessSandbox) -> None:
    taken = outputs(sandbox, "print(input())", [b"1", b"2", b"3"])
    assert next(taken).printed == b"1\n"  # type: ignore[union-attr]
    taken.close()  # type: ignore[attr-defined]
    assert sandbox.call("run", "print(9)").printed == b"9\n"
