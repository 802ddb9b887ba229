"""The Solidity tests, a few runs of each; and that a call of the crowd's which never goes through is no proof."""

import math
import subprocess
from pathlib import Path
from typing import Any

import pytest

from contracts import mutants, verify

TABLE = """
| Contract | Selector | Calls | Reverts | Discards |
+==================================================+
| Crowd    | expel    | 860   | {}     | 0        |
|----------+----------+-------+---------+----------|
| Crowd    | wait_    | 42    | 0       | 7        |
╰----------+----------+-------+---------+----------╯
"""


@pytest.mark.skipif(not verify.is_at_hand(), reason="forge is not installed: make test-contracts")
def test_the_solidity_tests_pass(capsys: pytest.CaptureFixture[str]) -> None:
    verify.check_forge(short=True)
    assert "what the crowd did" in capsys.readouterr().out


def test_calls_that_were_refused_or_put_aside_do_not_count() -> None:
    assert verify.went_through(TABLE.format(850)) == {"expel": 10, "wait_": 35}


@pytest.mark.parametrize(
    ("said", "why"), [(TABLE.format(860), "never went through: expel"), ("no table", "never went through: all")]
)
def test_a_call_that_never_goes_through_fails_the_check(monkeypatch: pytest.MonkeyPatch, said: str, why: str) -> None:
    def run(*_: Any, **__: Any) -> Any:
        return subprocess.CompletedProcess([], 0, said)

    monkeypatch.setattr(verify, "find_forge", lambda: Path("forge"))
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(verify.CheckFailed) as caught:
        verify.check_forge()
    assert why in caught.value.why


def test_a_trial_of_mutants_that_was_interrupted_goes_on_in_the_same_tree(tmp_path: Path) -> None:
    path, mutant = tmp_path / "mutants.jsonl", mutants.everyone()[0]
    mutants.Memory(path, "a tree").note(mutant, "killed")
    with path.open("a") as file:
        file.write('["half of a li')
    assert mutants.Memory(path, "a tree").known == {mutant.name: "killed"}
    assert mutants.Memory(path, "another tree").known == {}
    assert mutants.state_of_the_tree() == mutants.state_of_the_tree() != ""


def test_mutants_have_minutes_beside_other_checks_and_all_the_time_where_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[tuple[str, float]] = []
    monkeypatch.setattr(verify, "check_mutants", lambda only, minutes: given.append((only, minutes)))
    monkeypatch.setattr(verify, "CHECKS", {"mutants": None})
    for arguments in ([], ["mutants"], ["mutants", "--minutes", "7"], ["--only", "Chair.sol"]):
        monkeypatch.setattr("sys.argv", ["verify", *arguments])
        assert verify.main() == 0
    assert given == [("", verify.USUAL_MINUTES), ("", math.inf), ("", 7.0), ("Chair.sol", math.inf)]
