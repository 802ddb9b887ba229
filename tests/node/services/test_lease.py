"""A lease is renewed once, in its last eighth, whoever was off, asleep or started again meanwhile, and whatever gas
costs for an hour."""

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from node.chain.errors import ChainError, FeeTooHigh, Reverted
from node.services.membership.participant import LeaseRenewal, needs_no_join
from node.swarm.membership import Membership
from protocol.identity import Address, NodeKey
from protocol.upkeep import DAY, LEASE_SECONDS, WEEK, Patience, margin
from tests.memory_network import MemoryHub, MemoryNetwork

OWN, OTHER = (NodeKey(bytes([n]) * 32) for n in (1, 2))
HOUR, START = 3600, 10**9
CONTACT = "/ip4/10.0.0.1/tcp/4001"


class Chain:
    """Of one pool, joined at the beginning. slept: seconds for which this machine's own clock stood still; price: of
    gas, by the seconds since the beginning; usual and cap: what a sender pays."""

    usual, cap = 1, 1000

    def __init__(self, lease: int = LEASE_SECONDS) -> None:
        self.lease, self.slept, self.refusals = lease, 0, 0
        self.joins: list[tuple[int, str]] = []
        self.until = START + lease
        self.latest = self.until
        self.price: Callable[[int], int] = lambda at: 1

    @property
    def at(self) -> int:
        return int(trio.current_time()) + self.slept

    async def pool(self, number: int) -> Any:
        await trio.lowlevel.checkpoint()
        if self.refusals:
            self.refusals -= 1
            raise ChainError("no answer", "the endpoint is down", "wait")
        return SimpleNamespace(lease_seconds=self.lease)

    async def block(self) -> Any:
        await trio.lowlevel.checkpoint()
        return SimpleNamespace(timestamp=START + self.at)

    async def standing(self, pool: int, node: str) -> Any:
        await trio.lowlevel.checkpoint()
        return SimpleNamespace(lease_until=self.until)

    async def join(self, number: int, contact: str, patience: Patience) -> None:
        await trio.lowlevel.checkpoint()
        now = START + self.at
        if self.price(self.at) > patience.most(self.usual, self.cap, now):
            raise FeeTooHigh(self.price(self.at), self.cap, waits=True)
        assert now < self.until, "it ran out"
        self.joins.append((self.at, contact))
        self.until = now + self.lease


def membership(*validators: Address) -> Membership:
    members: Any = Membership(OWN.address, MemoryNetwork(OWN, MemoryHub()), OTHER.address, validators)
    members.joined(OWN.address, "")
    return members


def lease_of(
    chain: Any, members: Membership | None = None, contact: Callable[[], str] = lambda: CONTACT
) -> LeaseRenewal:
    return LeaseRenewal(chain, 1, members or membership(), contact)


async def live(chain: Chain, seconds: float) -> None:
    """A daemon that is started, and killed so many seconds later."""
    with trio.move_on_after(seconds):
        await lease_of(chain).run()


async def test_a_lease_is_renewed_once_a_week_and_no_start_renews_it_again(autojump_clock: Any) -> None:
    chain = Chain()
    await live(chain, 5 * WEEK)
    assert len(chain.joins) == 4
    while chain.at < 10 * WEEK:
        await live(chain, 5 * HOUR)
    times = [at for at, _ in chain.joins]
    assert len(times) == 9 and all(WEEK <= after - before < WEEK + HOUR for before, after in pairwise(times))


@pytest.mark.parametrize("off", [8, 20])
async def test_who_is_off_for_hours_when_a_renewal_is_due_renews_as_soon_as_it_is_back(
    autojump_clock: Any, off: int
) -> None:
    chain = Chain()
    await live(chain, WEEK - HOUR)
    await trio.sleep(off * HOUR)
    await live(chain, DAY)
    assert [at for at, _ in chain.joins] == [WEEK + (off - 1) * HOUR]


async def test_a_machine_that_sleeps_each_day_for_longer_than_it_works_renews_in_time(autojump_clock: Any) -> None:
    """While it sleeps its clock stands still, and the chain's does not."""
    chain = Chain()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lease_of(chain).run)
        for _ in range(30):
            await trio.sleep(8 * HOUR)
            chain.slept += 16 * HOUR
        nursery.cancel_scope.cancel()
    assert len(chain.joins) == 4


async def test_gas_that_costs_a_hundred_times_as_much_for_an_hour_is_waited_out(autojump_clock: Any) -> None:
    chain = Chain()
    chain.price = lambda at: 100 if WEEK - 60 <= at < WEEK + HOUR else 1
    await live(chain, WEEK + DAY)
    assert len(chain.joins) == 1 and WEEK + HOUR <= chain.joins[0][0] <= WEEK + HOUR + 300


async def test_gas_that_stays_dear_is_paid_while_half_of_the_time_is_left(autojump_clock: Any) -> None:
    chain = Chain()
    chain.price = lambda at: 100
    await live(chain, WEEK + DAY)
    assert len(chain.joins) == 1 and WEEK + 4 * HOUR < chain.joins[0][0] <= WEEK + DAY // 2 + 300


async def test_an_endpoint_that_is_down_when_it_is_due_is_asked_again(autojump_clock: Any) -> None:
    chain = Chain()
    await live(chain, WEEK - HOUR)
    chain.refusals = 500
    await live(chain, DAY)
    assert len(chain.joins) == 1 and chain.joins[0][0] > WEEK + HOUR


async def test_a_pool_that_is_paused_when_it_is_due_is_asked_now_and_then_and_renewed_when_it_goes_on(
    autojump_clock: Any,
) -> None:
    chain, asked = Chain(), list[int]()

    async def refuse(number: int, contact: str, patience: Patience) -> None:
        await trio.lowlevel.checkpoint()
        asked.append(chain.at)
        if chain.at < WEEK + 12 * HOUR:
            raise Reverted("join pool 1", "PoolIsPaused", {"pool": 1})
        chain.joins.append((chain.at, contact))
        chain.until = START + chain.at + chain.lease

    chain.join = refuse  # type: ignore[method-assign]
    await live(chain, WEEK + DAY)
    assert len(chain.joins) == 1 and chain.joins[0][0] < WEEK + 12 * HOUR + 301 and 100 < len(asked) < 150


async def test_a_short_lease_has_a_minute_for_its_renewal(autojump_clock: Any) -> None:
    chain = Chain(90)
    await live(chain, 400)
    assert [round(at / 45) for at, _ in chain.joins] == list(range(1, 1 + len(chain.joins))) and margin(90) == 45


@pytest.mark.parametrize(
    ("lasts", "office", "sends"),
    [(LEASE_SECONDS, "", False), (DAY + 1, "", False), (DAY, "", True), (-START, "", True)]
    + [(LEASE_SECONDS, office, True) for office in ("validator", "trainer")],
)
async def test_a_start_sends_nothing_while_the_lease_runs(
    autojump_clock: Any, lasts: int, office: str, sends: bool
) -> None:
    """lasts: seconds from now on; of who has left or never joined the chain says 0."""
    chain: Any = Chain()
    chain.until = START + lasts
    seats = {name: (OWN.address,) if name[:-1] == office else (OTHER.address,) for name in ("validators", "trainers")}
    pool: Any = SimpleNamespace(id=1, lease_seconds=LEASE_SECONDS, **seats)
    assert await needs_no_join(chain, pool, OWN.address) is not sends


async def test_who_is_no_member_any_more_does_not_come_back_by_its_lease(autojump_clock: Any) -> None:
    chain, members = Chain(), membership()
    members.left(OWN.address)
    with trio.move_on_after(3 * WEEK):
        await lease_of(chain, members).run()
    assert chain.joins == []


@pytest.mark.parametrize("sought", [True, False])
async def test_whom_everybody_seeks_tells_the_chain_where_it_has_moved_and_a_worker_waits(
    autojump_clock: Any, sought: bool
) -> None:
    """Once a day at most: an address may change by the hour."""
    chain, at = Chain(), [CONTACT]
    members = membership(OWN.address) if sought else membership()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lease_of(chain, members, lambda: at[0]).run)
        for hour in range(72):
            at[0] = f"/ip4/10.0.0.{hour}/tcp/4001"
            await trio.sleep(HOUR)
        nursery.cancel_scope.cancel()
    assert len(chain.joins) == (2 if sought else 0)
