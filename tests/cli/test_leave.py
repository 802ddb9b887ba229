"""Leaving: what is told of the stake and its way back, for every standing on chain."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.leave import Outcome, _tell_chain, command
from cli.main import main
from contracts.bindings import NodeInfo, Stake
from node.state.journal import Journal

NODE, PROVIDER, TOKEN = "0x" + "ab" * 20, "0x" + "cd" * 20, 10**18
INFO = NodeInfo(NODE, PROVIDER, 1, 0, 0, True, 1)  # type: ignore[arg-type]
LEFT = Outcome(INFO, 7, Stake(100 * TOKEN, 0, 0, 0), 100 * TOKEN, 3600, 1_000_000, "me")


def test_the_steps_back_to_the_stake_are_whole_commands_with_the_date_of_the_last() -> None:
    lines = LEFT.lines("base")
    assert lines[0] == f"{NODE}: left pool 7"
    steps = [line.split(". ", 1)[1] for line in lines if line.startswith("  ")]
    assert steps == [
        f"intellect-node contract node remove {NODE} --network base --key me",
        "intellect-node contract unstake 100 --network base --key me",
        "intellect-node contract withdraw --network base --key me",
    ]
    assert LEFT.facts()["withdrawable_at"] == 1_003_600 and "1970-01-12 14:46 UTC" in lines[-1]


def test_what_is_done_already_is_not_told_again() -> None:
    removed = replace(LEFT, node=NodeInfo(NODE, PROVIDER, 1, 0, 0, False, 1), free=0)  # type: ignore[arg-type]
    unbonding = replace(removed, stake=Stake(0, 100 * TOKEN, 1_002_000, 0))
    assert unbonding.steps() == ["intellect-node contract withdraw"]
    assert unbonding.facts()["withdrawable_at"] == 1_002_000
    assert removed.steps() == [] and "nothing of its stake is free" in removed.lines("base")[-1]
    assert "nothing to unbond" in replace(LEFT, stake=None).lines("base")[-1]


async def test_a_node_that_is_still_a_member_is_taken_out_of_its_pool() -> None:
    left: list[int] = []

    class Chain:
        pool = 5

        async def node_info(self, _: object) -> Any:
            return NodeInfo(NODE, PROVIDER, 1, self.pool, 0, True, 1)  # type: ignore[arg-type]

        async def leave(self, pool: int) -> None:
            left.append(pool)

    chain: Any = Chain()
    assert await _tell_chain(chain, NODE) == 5 and left == [5]  # type: ignore[arg-type]
    chain.pool = 0
    assert await _tell_chain(chain, NODE) == 0 and left == [5]  # type: ignore[arg-type]


def test_nothing_is_stopped_where_the_chain_could_not_be_told(
    tmp_path: Path, runtime: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Journal(tmp_path / "journal.sqlite").close()
    assert command.__doc__ and main(["leave", "--state-dir", str(tmp_path)]) == 2
    assert "does not say" in capsys.readouterr().err
    journal = Journal(tmp_path / "journal.sqlite")
    journal.remember("network", b"local")
    journal.close()
    assert main(["leave", "--state-dir", str(tmp_path)]) == 4
    assert "there is no node in" in capsys.readouterr().err
