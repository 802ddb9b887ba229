"""Another maker's chain: the contracts, the client's reasons, the events, and a whole swarm on Hardhat's."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from node.chain.client import ChainClient
from node.chain.errors import ChainError
from node.chain.profile import NetworkProfile, write_profile
from node.chain.simulate import SimulatedStep
from protocol.identity import NodeKey
from tests.node.chain.chains import Participants, with_contracts
from tests.node.chain.hardhat_chain import hardhat_chain, needs_hardhat

pytestmark = needs_hardhat
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def on_hardhat() -> Iterator[NetworkProfile]:
    with hardhat_chain() as (provider, url):
        yield with_contracts(provider, url, "hardhat_setBalance", min_window=1)


@pytest.fixture(scope="module")
def there(on_hardhat: NetworkProfile) -> Iterator[Participants]:
    people = Participants(ChainClient(on_hardhat, NodeKey.generate()))
    trio.run(people.prepare)
    yield people
    people.client.close()


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("NotMember", lambda client, pool: client.leave(pool)),
        ("CaseClosed", lambda client, pool: client.finalize(99)),
        ("PoolStillOpen", lambda client, pool: client.sweep(pool)),
        ("PoolUnknown", lambda client, pool: client.pool(999)),
    ],
)
async def test_the_contracts_reasons_are_read_by_name(
    there: Participants, name: str, what: Callable[[ChainClient, int], Any]
) -> None:
    """Before it is sent, and in a question that changes nothing."""
    with pytest.raises(ChainError) as caught:
        await what(there.client, there.pool)
    assert getattr(caught.value, "name", None) == name


async def test_a_simulation_and_a_membership_work_and_are_read_from_its_events(there: Participants) -> None:
    client, pool = there.client, there.pool
    foreseen = await client.simulate([SimulatedStep("join", client.contracts.join(pool, "here"))], there.node.address)
    joined = await client.join(pool, "here")
    assert foreseen.gas >= joined.gas_used > 0
    assert [member.node for member in await client.members(pool)] == [there.node.address]
    told = await client.logs(joined.block, joined.block, [])
    assert len(told) == len(joined.events) == 1
    await client.leave(pool)
    assert [member.left for member in await client.members(pool)] == [True]


def test_a_swarm_trains_and_is_paid_and_the_cheat_is_slashed(on_hardhat: NetworkProfile, tmp_path: Path) -> None:
    profile = tmp_path / "hardhat.toml"
    write_profile(profile, on_hardhat)
    command = [sys.executable, "-m", "cli", "demo", "--network", str(profile), "--dir", str(tmp_path / "demo")]
    command += ["--steps", "4", "--no-page", "--no-view", "--no-kill", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["steps"] == 4 and len(summary["slashed"]) == 1 and int(summary["pay"]["paid_wei"]) > 0
