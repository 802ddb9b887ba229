"""A pool's housekeeping: each thing is done once, whoever is faster, and whatever one of the others costs."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from contracts.bindings import CaseInfo, CaseState, NodeInfo, PoolInfo, PostedEarnings, Slashed, SlashOverturned
from node.chain.errors import ChainError, Reverted
from node.chain.ledger import Ledger
from node.services import pool_keeper as module
from node.services.pool_accounting import PoolRecord
from node.services.pool_keeper import PoolKeeper
from protocol.earnings import EarningsLine
from protocol.identity import Address, NodeKey, address_bytes
from protocol.pages import verify
from protocol.table import EarningsTable, Share

NODES = [NodeKey(bytes([n]) * 32).address for n in range(1, 6)]
PROVIDER, POOL, WINDOW = NodeKey(bytes([9]) * 32).address, 7, 800


def table_of(lines: Sequence[EarningsLine]) -> EarningsTable:
    return EarningsTable(POOL, 3, sum(line.units for line in lines), tuple(lines))


class Contract:
    """What the chain holds, and what was asked of it. faster: what somebody else does just before us."""

    def __init__(self) -> None:
        self.time, self.asked = 100, list[tuple[str, Any]]()
        self.cases: dict[int, CaseInfo] = {}
        self.units: dict[Address, int] = {}
        self.members = dict.fromkeys(NODES, PROVIDER)
        self.backing = 500
        lines = sorted(
            (EarningsLine(address_bytes(node), 10 + n) for n, node in enumerate(NODES)), key=lambda one: one.node
        )
        self.table = table_of(lines)
        self.ended_at, self.escrow = 0, 1000
        self.faster: set[str] = set()
        self.unanswered: set[Any] = set()
        self.asked_of: list[Address] = []

    def freeze(self, number: int, final_at: int = 200, state: CaseState = CaseState.FROZEN) -> None:
        self.cases[number] = CaseInfo(number, PROVIDER, final_at, state, False, 1, POOL, 0, PROVIDER)

    async def pool(self, pool: int) -> PoolInfo:
        given = {"started_at": 0, "epoch_seconds": 100, "window": WINDOW, "escrow": self.escrow}
        given |= {"ended": bool(self.ended_at), "stopped_at": self.ended_at, "validators": (), "proposed": ()}
        return PoolInfo(**dict.fromkeys(PoolInfo.__struct_fields__, 0) | given)  # type: ignore[arg-type]

    async def case(self, case: int) -> CaseInfo:
        return self.cases[case]

    async def earnings(self, pool: int) -> PostedEarnings:
        return PostedEarnings(self.table.epoch, self.table.root(), self.table.total)

    async def claimed(self, pool: int, node: Address) -> int:
        return self.units.get(node, 0)

    async def node_info(self, node: Address) -> NodeInfo:
        self.asked_of.append(node)
        owner = self.members.get(node)
        return NodeInfo(node, owner, 1, POOL if owner else 0, 0, owner is not None, 0)

    async def backing_of(self, provider: Address) -> int:
        return self.backing

    async def required_stake(self, provider: Address, more_units: int = 0) -> int:
        return 100 * sum(owner == provider for owner in self.members.values())

    async def finalize(self, case: int) -> None:
        self._ask("finalize", case)
        assert self.cases[case].state is CaseState.FROZEN and self.time >= self.cases[case].final_at
        self.freeze(case, state=CaseState.FINAL)
        self._lost("finalize")

    async def expel(self, node: Address) -> None:
        self._ask("expel", node)
        del self.members[node]
        self._lost("expel")

    async def claim(self, pool: int, node: Address, units: int, proof: Sequence[bytes]) -> None:
        self._ask("claim", node)
        assert verify(self.table.root(), EarningsLine(address_bytes(node), units).leaf(), proof)
        assert units > self.units.get(node, 0)
        self.units[node] = units
        self._lost("claim")

    async def sweep(self, pool: int) -> None:
        self._ask("sweep", pool)
        self.escrow = 0
        self._lost("sweep")

    def _ask(self, what: str, whom: Any) -> None:
        if whom in self.unanswered:
            raise ChainError("no answer", "the endpoint is down", "wait")
        self.asked.append((what, whom))

    def _lost(self, what: str) -> None:
        """Somebody else did just this, so ours reverts."""
        if what in self.faster:
            raise Reverted(what, "TooLate", {})


class Desk:
    def __init__(self) -> None:
        self.chain, self.ledger = Contract(), Ledger(PROVIDER)
        members = SimpleNamespace(addresses=lambda: list(NODES))
        context: Any = SimpleNamespace(
            pool=POOL, key=SimpleNamespace(address=PROVIDER), journal=None, membership=members
        )
        self.context = context
        self.clearing = PoolKeeper(self)  # type: ignore[arg-type]

    async def read(self) -> PoolRecord:
        return PoolRecord(await self.chain.pool(POOL), self.chain.time, await self.chain.earnings(POOL))

    async def share(self, posted: PostedEarnings, node: Address) -> Share | None:
        """Among all that show a table."""
        assert posted.total
        table = self.chain.table
        return table.files()[0].share(node, {0: table.lines}, ()) if posted.root == table.root() else None

    def slash(self, node: Address, case: int) -> None:
        place = {"block": len(self.chain.cases), "transaction": "0x", "log_index": 0, "pool": POOL}
        fault = {"reason": 5, "amount": 1, "file_root": bytes(32)}
        self.ledger.apply(Slashed(**place, **fault, node=node, provider=PROVIDER, case_id=case))

    async def live(self, seconds: float) -> list[tuple[str, Any]]:
        """What it asks of the chain in so many seconds."""
        before = len(self.chain.asked)
        with trio.move_on_after(seconds):
            await self.clearing.run()
        return self.chain.asked[before:]


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.mark.parametrize("faster", [(), ("finalize", "claim")])
async def test_every_case_past_its_time_is_made_final_once_and_then_its_pay_goes_back(
    autojump_clock: Any, desk: Desk, faster: Sequence[str]
) -> None:
    chain, (rich, poor, _, convicted, overturned) = desk.chain, NODES
    chain.table = table_of([line for line in chain.table.lines if line.node != address_bytes(poor)])  # earned nothing
    chain.faster = set(faster)
    for number, node in enumerate([rich, poor, overturned], 1):
        chain.freeze(number)
        desk.slash(node, number)
    desk.slash(convicted, 0)
    assert await desk.live(130) == [("claim", convicted)], "its own signatures: nothing to wait for"
    chain.time = 200
    desk.ledger.apply(
        SlashOverturned(block=9, transaction="0x", log_index=0, pool=POOL, node=overturned, case_id=3, compensation=0)
    )
    chain.freeze(3, state=CaseState.OVERTURNED)
    assert await desk.live(300) == [("finalize", 1), ("finalize", 2), ("claim", rich)]
    assert await desk.live(300) == []


async def test_a_case_is_made_final_although_its_node_convicted_itself_afterwards(
    autojump_clock: Any, desk: Desk
) -> None:
    desk.chain.time = 200
    desk.chain.freeze(1)
    desk.slash(NODES[0], 1)
    desk.slash(NODES[0], 0)
    assert set(await desk.live(300)) == {("finalize", 1), ("claim", NODES[0])}


async def test_who_has_its_stake_stays_and_who_has_not_is_expelled_until_the_others_are_covered(
    autojump_clock: Any, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOKED_AT", 2)
    assert await desk.live(400) == [] and set(desk.chain.asked_of) == set(NODES), "their turn comes round"
    desk.chain.backing = 200
    expelled = await desk.live(400)
    assert len(expelled) == 3 and len(desk.chain.members) == 2 and {what for what, _ in expelled} == {"expel"}
    assert await desk.live(400) == []


async def test_who_was_slashed_goes_before_its_providers_other_nodes(autojump_clock: Any, desk: Desk) -> None:
    """One of five was slashed, and the stake is enough for four."""
    desk.slash(NODES[3], 0)
    desk.chain.backing, desk.chain.units[NODES[3]] = 400, 1000
    assert await desk.live(400) == [("expel", NODES[3])]
    desk.chain.backing = 300
    (other,) = await desk.live(400)
    assert other[0] == "expel" and other[1] != NODES[3]


async def test_what_somebody_else_did_is_not_done_again_after_its_revert(autojump_clock: Any, desk: Desk) -> None:
    desk.chain.faster = {"expel", "sweep"}
    desk.chain.backing = 400
    desk.chain.ended_at, desk.chain.time = 250, 10_000
    asked = await desk.live(400)
    assert [what for what, _ in asked] == ["expel", "sweep"]


async def test_a_pool_is_swept_a_window_after_its_last_table_may_have_come(autojump_clock: Any, desk: Desk) -> None:
    desk.chain.time = 10_000
    assert await desk.live(130) == [], "it runs"
    desk.chain.ended_at = 250
    desk.chain.time = 300 + 3 * WINDOW - 1  # its last epoch ends at 300
    assert await desk.live(130) == []
    desk.chain.time += 1
    assert await desk.live(300) == [("sweep", POOL)]
    desk.chain.escrow = 5  # what a convicted node would have got
    assert await desk.live(300) == [("sweep", POOL)]


async def test_a_case_that_the_chain_does_not_answer_for_holds_up_nothing_else(autojump_clock: Any, desk: Desk) -> None:
    chain = desk.chain
    chain.time, chain.ended_at = 10_000, 250
    for number, node in ((1, NODES[0]), (2, NODES[1])):
        chain.freeze(number)
        desk.slash(node, number)
    chain.unanswered = {1}
    assert ("finalize", 2) in await desk.live(130) and ("sweep", POOL) in chain.asked
    chain.unanswered.clear()
    assert ("finalize", 1) in await desk.live(130) and chain.units[NODES[0]]
