"""Over a slow line each question that waits for another one costs its round trip: a first `join` asks few in a row."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
from eth_account import Account

from node.chain.client import ChainClient
from node.chain.faucet import DevnetFaucet
from node.chain.follower import EventFollower
from node.chain.sender import SendLimits
from node.config import NodeConfig
from node.errors import ConfigError, KeyError_
from node.hardware import Hardware
from node.preflight.chain import find_provider
from node.preflight.early import _check_pool, check_metrics_log
from node.preflight.survey import check_before_stake
from node.progress import ProgressRecord
from node.services.membership.participant import ensure_participant
from node.state.keystore import save_key
from protocol.identity import NodeKey
from tests.node.chain.conftest import anvil_cache, chain_rpc, deployed, meddler, people, profile, settled
from tests.node.chain.conftest import connect as connect

__all__ = ["anvil_cache", "chain_rpc", "connect", "deployed", "meddler", "people", "profile", "settled"]
MOST_IN_A_ROW = 20


class Rounds:
    """Counts questions, and how many of them had to wait for another one's answer."""

    def __init__(self, meddler: Any) -> None:
        self._lock, self._open, self._asked = threading.Lock(), dict[int, float](), list[tuple[float, float, str]]()
        meddler.at = self._told

    def _told(self, method: str, when: str) -> None:
        now, thread = time.monotonic(), threading.get_ident()
        with self._lock:
            if when == "before":
                self._open[thread] = now
            else:
                self._asked.append((self._open.pop(thread), now, method))
        if when == "before":
            time.sleep(0.03)  # so that questions of one moment are seen to be so

    def in_a_row(self) -> list[str]:
        """The longest line of questions each of which began after the one before was answered."""
        ended, row = 0.0, list[str]()
        for begun, answered, method in sorted(self._asked, key=lambda one: one[1]):
            if begun >= ended:
                ended = answered
                row.append(method)
        return row

    @property
    def asked(self) -> int:
        return len(self._asked)


@pytest.fixture
def config(people: Any, meddler: Any, tmp_path: Path) -> Iterator[NodeConfig]:
    state = tmp_path / "state"
    state.mkdir()
    (tmp_path / "keys").mkdir()
    save_key(state / "node-key.json", people.node, "pw")
    save_key(tmp_path / "keys" / "provider.json", people.provider, "pw")
    yield NodeConfig(home=tmp_path, state_dir=state, pool=people.pool, auto_setup=False, role="worker")


async def test_a_first_join_asks_few_questions_in_a_row(
    people: Any, meddler: Any, config: NodeConfig, tmp_path: Path
) -> None:
    """What a daemon asks of the chain from its start until it follows its pool, in the daemon's order."""
    await DevnetFaucet(people.client).fund(people.node.address, coin=10**18)
    public = msgspec.structs.replace(people.client.profile, name="t", rpc_urls=(meddler.url,))
    rounds, progress = Rounds(meddler), ProgressRecord()
    await trio.to_thread.run_sync(_check_pool, config, public, people.pool)
    chain = ChainClient(public, people.node, outbox=tmp_path / "outbox.sqlite", limits=SendLimits(poll=0.05))
    try:
        pool = await chain.pool(people.pool)
        await chain.connect()
        await chain.block()
        await check_before_stake(chain, pool, people.node.address, config, "worker", Hardware(4, 16 << 30, ()))
        await ensure_participant(chain, people.node, config, config.directory, pool, progress)
        await chain.join(people.pool, "/ip4/127.0.0.1/tcp/4001")
        follower = EventFollower(chain, people.pool, tmp_path / "chain.sqlite", poll=0.05)
        async with trio.open_nursery() as nursery:
            await nursery.start(follower.run)
            with trio.fail_after(20):
                while follower.block is None:
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
    finally:
        chain.close()
    row = rounds.in_a_row()
    assert len(row) <= MOST_IN_A_ROW, row
    assert rounds.asked > len(row), "the control: some were asked at once"


async def test_a_named_key_that_does_not_say_its_address_is_not_passed_over(tmp_path: Path) -> None:
    """foundry writes keystores so; its owner was told to make a new key."""
    file, key = tmp_path / "cast.json", NodeKey.generate()
    store = dict(Account.encrypt(key.secret, "pw", kdf="scrypt", iterations=2))
    address = store.pop("address", None)
    file.write_text(json.dumps(store))
    file.chmod(0o600)
    config: Any = SimpleNamespace(provider_key_file=file, home=tmp_path)
    chain: Any = None  # not asked where no address is known
    with pytest.raises(KeyError_, match="does not say its address") as caught:
        await find_provider(chain, config)
    assert "keys import provider --keystore" in caught.value.remedy
    file.write_text(json.dumps({**store, "address": "nonsense"}))
    with pytest.raises(KeyError_):
        await find_provider(chain, config)
    assert address
    config.provider_key_file = None
    assert await find_provider(chain, config) is None, "the control: none was named, none is there"


def test_records_of_steps_are_refused_where_a_role_has_none(tmp_path: Path) -> None:
    """They were passed over in silence."""
    config = NodeConfig(home=tmp_path, metrics_log="wandb", role="worker")
    for role in ("worker", "validator"):
        with pytest.raises(ConfigError, match="only a trainer"):
            check_metrics_log(config, role)
    check_metrics_log(config, "trainer")
    check_metrics_log(config.model_copy(update={"metrics_log": ""}), "worker")
