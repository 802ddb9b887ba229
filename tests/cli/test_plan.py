"""`contract pool plan`: a plan that is sound becomes commands that work; one that is not is told all its mistakes."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WRONG = """
network = "base-sepolia"
surprise = 1

[deploy]
key = "nobody"
unbonding = "30m"
min_window = "1h"
stake_per_unit = 0
treasury = "0x1111111111111111111111111111111111111111"
arbiter = "0x1111111111111111111111111111111111111111"

[pool]
run = "no-such-run.toml"
trainer_state = "nodes/one"
validator_state = ["nodes/one", "nodes/two", "nodes/two"]
threshold = 4
reward = "0.0000000000000001"
slash = 500
window = "45m"
epoch = "forty minutes"
lease = 30
fnud = 7

[[provider]]
nodes = []
"""


def test_all_mistakes_are_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path / "home"))
    file = tmp_path / "pool.toml"
    file.write_text(WRONG)
    assert main(["contract", "pool", "plan", str(file), "--json"]) == 2
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    said = [f"{one['place']}: {one['what']}" for one in told["findings"]]
    for place, what in [
        ("surprise", "no such section"),
        ("deploy.key", "'nobody'"),
        ("deploy.stake_per_unit", "nothing could ever"),
        ("deploy.unbonding", "less than two appeals"),
        ("deploy.treasury", "decide whether"),
        ("pool.fnud", "no such setting"),
        ("pool.key", "nobody signs"),
        ("pool.epoch", "no length of time"),
        ("pool.lease", "less than an epoch"),
        ("pool.window", "the network's least is 1 h"),
        ("pool.window", "longer than the unbonding"),
        ("pool.slash", "a slash takes at most 0"),
        ("pool.reward", "smallest part"),
        ("pool.validator", "named twice"),
        ("pool.trainer", "judge itself"),
        ("pool.threshold", "4 of 3 validators can never meet"),
        ("provider 1.key", "nobody signs"),
        ("provider 1.nodes", "no node"),
        ("no-such-run.toml", ""),
    ]:
        assert any(place in one and what in one for one in said), (place, what, said)
    assert told["mistakes"] == len(said) == 19


def test_the_example_can_be_planned_where_nothing_is_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a local chain nor the run's files; a mistake in the run file is told all the same."""
    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path / "home"))
    for name in ("pool.toml", "arithmetic.toml"):
        (tmp_path / name).write_text((EXAMPLES / name).read_text())
    plan = ["contract", "pool", "plan", str(tmp_path / "pool.toml"), "--json"]
    assert main(plan) == 0
    words = [one["command"] for one in json.loads(capsys.readouterr().out)["commands"]]
    assert words[:2] == [["intellect-node", "devnet", "up"], ["python", "-m", "examples.make_arithmetic"]]
    assert len(words) == 12 and "--make" not in words[-1]
    (tmp_path / "arithmetic.toml").write_text((EXAMPLES / "arithmetic.toml").read_text() + "\n[recpie]\n")
    assert main(plan) == 2 and "recpie" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "says"),
    [("[pool", "is no plan"), ("pool = 3", "it is no table"), ("provider = 3\n[pool]", "two brackets")],
)
def test_a_file_that_is_no_plan_is_a_clear_error(
    tmp_path: Path, text: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path / "home"))
    file = tmp_path / "pool.toml"
    file.write_text(text)
    assert main(["contract", "pool", "plan", str(file)]) == 2
    shown = capsys.readouterr()
    assert says in shown.out + shown.err and "Traceback" not in shown.err
