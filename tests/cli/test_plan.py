"""`contract pool plan`: a plan that is sound becomes commands that work; one that is not is told all its mistakes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from tests.cli.rehearsal import COIN, TOKEN, Scene, light_keys, stage

SOUND = """
network = "base-sepolia"

[deploy]
key = "deployer"
unbonding = "3d"
appeal = "2h"
stake_per_unit = 60
min_window = "30m"
max_slash = "60"

[pool]
key = "owner"
run_root = "{root}"
trainer_state = "nodes/trainer"
validator_state = ["nodes/v1", "nodes/v2"]
threshold = 2
reward = "0.5"
fund = 300
slash = 60
epoch = "2h"
units_per_epoch = 400_000
invited = true

[[provider]]
key = "provider"
nodes = ["nodes/trainer", "nodes/v1", "nodes/v2"]
"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A chain without contracts, and three keys with coin."""
    cache = Path(request.config.cache.mkdir("anvil"))  # type: ignore[union-attr]
    with light_keys(), stage(tmp_path_factory.mktemp("user") / "home", cache, quick=True) as scene:
        for name in ("deployer", "owner", "provider"):
            scene.rpc("anvil_setBalance", scene.cli("keys", "new", name, "--json")["address"], hex(COIN))
        yield scene


def test_the_printed_commands_are_what_makes_the_pool(scene: Scene, tmp_path: Path) -> None:
    file = tmp_path / "pool.toml"
    file.write_text(SOUND.format(root="ab" * 32))
    told = scene.cli("contract", "pool", "plan", str(file), "--json")
    assert told["tokens_wei"] == {"owner": str(300 * TOKEN), "provider": str(180 * TOKEN)}
    assert len(told["warnings"]) == 0 and told["window_seconds"] == 86_400
    for step in told["commands"]:
        program, *words = step["command"]
        assert program == "intellect-node"
        done = scene.cli(*words, *(["--yes"] if step["sends"] else []), "--json")
    pool = scene.look("pool", "show", str(done["pool"]))["pool"]
    assert (pool["window"], pool["epoch_seconds"], pool["threshold"], pool["invited"]) == (86_400, 7200, 2, True)
    assert (pool["escrow_wei"], pool["slash_amount_wei"]) == (str(300 * TOKEN), str(60 * TOKEN))
    assert (pool["run_root"], pool["units_per_epoch"]) == ("ab" * 32, 400_000)
    for judge in pool["validators"]:
        assert scene.look("node", "show", judge)["registered"], "it can judge"
    born = scene.look("params")["parameters"]
    assert (born["unbonding_period"], born["min_window"], born["max_slash_wei"]) == (259_200, 1800, str(60 * TOKEN))

    file.write_text(SOUND.format(root="ab" * 32))
    assert "already" in scene.cli("contract", "pool", "plan", str(file), code=2)["errors"]
    without = SOUND[: SOUND.index("[deploy]")] + SOUND[SOUND.index("[pool]") :].replace('"2h"', '"71h"\nlease = "72h"')
    file.write_text(without.format(root="ab" * 32))
    assert "unbonding" in scene.cli("contract", "pool", "plan", str(file), code=2)["errors"], "the chain is asked"


WRONG = """
network = "base-sepolia"
surprise = 1

[deploy]
key = "nobody"
unbonding = "30m"
min_window = "1h"
max_slash = 0
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
        ("deploy.max_slash", "nothing could ever"),
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
