"""Coming back while the chain is silent: by what is remembered, and into the pool again once it answers."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from contracts.bindings import NOBODY, PoolInfo
from node.chain.errors import RpcUnreachable
from node.config import NodeConfig
from node.daemon import Daemon
from node.progress import ProgressRecord
from node.services.membership.events import Events
from node.services.membership.participant import LeaseRenewal
from node.services.membership.peers import REMEMBERED as NAME
from node.services.membership.peers import forget, recall, remember
from node.swarm.membership import Membership
from protocol.identity import NodeKey
from tests.memory_network import MemoryHub, MemoryNetwork

OWN, OTHER = (NodeKey(bytes([n]) * 32) for n in (1, 2))
POOL = PoolInfo(
    id=4,
    run_root=b"\x01" * 32,
    requirement_root=bytes(32),
    manager=OWN.address,
    opener=OWN.address,
    window=5,
    epoch_seconds=60,
    lease_seconds=600,
    started_at=1_900_000_000,
    stopped_at=0,
    paused=False,
    ended=False,
    has_members=True,
    invited=False,
    attested=False,
    max_units_per_epoch=1_000,
    units_per_epoch=10**9,
    reward_per_unit=10**18,
    slash_amount=50 * 10**18,
    escrow=10**24,
    owed=0,
    run_uri="",
    bootnodes=(),
    threshold=1,
    validators_from=0,
    validators=(OTHER.address,),
    proposed=(),
    guardian=NOBODY,
    delay=25,
)
LABEL = "31337:0xabc:4"
SILENT = RpcUnreachable({"http://rpc": "refused"})


def test_a_pool_is_remembered_as_it_was_until_the_node_leaves(tmp_path: Path) -> None:
    remember(tmp_path, LABEL, POOL)
    assert recall(tmp_path, LABEL) == POOL
    assert recall(tmp_path, "31337:0xabc:5") is None
    forget(tmp_path)
    assert recall(tmp_path, LABEL) is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"label": "31337:0xabc:4"}'])
def test_what_cannot_be_read_is_not_remembered(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    assert recall(tmp_path, LABEL) is None


class Chain:
    """Answers from the given look on."""

    def __init__(self, answers_after: int) -> None:
        self.silent, self.until = answers_after, 0
        self.joined: list[str] = []

    def require_own_code(self) -> None:
        """They are those of this program."""

    async def connect(self) -> None:
        await trio.lowlevel.checkpoint()
        self.silent -= 1
        if self.silent >= 0:
            raise SILENT

    async def pool(self, number: int, *, agreed: bool = False) -> PoolInfo:
        await trio.lowlevel.checkpoint()
        return POOL

    async def block(self) -> Any:
        await trio.lowlevel.checkpoint()
        return SimpleNamespace(timestamp=1000)

    async def standing(self, pool: int, node: str) -> Any:
        await trio.lowlevel.checkpoint()
        return SimpleNamespace(lease_until=self.until)

    async def join(self, pool: int, contact: str, patience: Any = None) -> None:
        await trio.lowlevel.checkpoint()
        self.joined.append(contact)
        self.until = 1000 + POOL.lease_seconds


async def found(chain: Any, directory: Path) -> tuple[PoolInfo, bool]:
    return await Daemon(NodeConfig(home=directory))._find_pool(chain, POOL.id, LABEL, directory)


async def test_a_node_goes_on_by_what_it_knows_only_where_it_was_in_the_pool(tmp_path: Path) -> None:
    assert await found(Chain(0), tmp_path) == (POOL, True)
    with pytest.raises(RpcUnreachable):
        await found(Chain(9), tmp_path)
    remember(tmp_path, LABEL, POOL)
    assert await found(Chain(9), tmp_path) == (POOL, False)


@pytest.mark.parametrize("until", [0, 2000])
async def test_the_chain_is_told_once_it_answers_unless_the_lease_runs_still(autojump_clock: Any, until: int) -> None:
    chain, progress = Chain(3), ProgressRecord()
    chain.until = until
    members = Membership(NodeKey(b"\x03" * 32).address, MemoryNetwork(OWN, MemoryHub()), OTHER.address, ())
    with trio.move_on_after(60):
        await LeaseRenewal(chain, POOL.id, members, lambda: "here now", progress, joined=False).run()  # type: ignore[arg-type]
    assert chain.joined == ([] if until else ["here now"]) and chain.silent < 0
    assert [event.name for event in progress.events] == ["joined"]


@pytest.mark.parametrize(("unanswered", "others", "waits"), [(True, 1, False), (True, 0, True), (False, 1, True)])
async def test_nobody_waits_for_a_silent_chain_who_knows_the_pool(
    autojump_clock: Any, unanswered: bool, others: int, waits: bool
) -> None:
    async def run(*, task_status: Any) -> None:
        task_status.started()
        await trio.sleep_forever()

    members = Membership(OWN.address, MemoryNetwork(OWN, MemoryHub()), OTHER.address, ())
    if others:
        members.joined(OTHER.address, "")
    _, never = trio.open_memory_channel[Any](0)
    follower: Any = SimpleNamespace(
        **{"block": None, "unanswered": unanswered, "healthy": False, "now": 0, "read_until": 0},
        events=never,
        run=run,
        looked=trio.Event(),
    )
    async with trio.open_nursery() as nursery:
        started = trio.current_time()
        await Events(follower, members).start(nursery)
        assert (trio.current_time() - started > 30) is waits
        nursery.cancel_scope.cancel()
