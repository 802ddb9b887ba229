"""Pay by roots, as it goes from accepted files to a claim: nobody forgotten, nobody paid twice."""

import random
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio

from cli.contributions import pay_state
from node.services.court import earnings_tabler
from node.state.pay import PAY, PayRecord
from protocol.earnings import Accepted, EarningsLine
from protocol.identity import Address, NodeKey, address_bytes
from protocol.messages import EarningsVote, EpochRootSigned, seal
from protocol.statements import Earnings, EpochRoot, VerdictOutcome, sign
from protocol.table import EarningsTable, encode_head
from tests.node.services.earners import (
    DOMAIN,
    POOL,
    PRICE,
    VALIDATORS,
    VERDICTS,
    WORKERS,
    Board,
    Node,
    World,
    inline,
    provider_of,
)

HOUR, DAY = 3600, 86_400


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    return World(tmp_path, epoch=100, window=800, delay=2)


async def test_what_validators_accept_is_paid_once_after_the_window(autojump_clock: Any, world: World) -> None:
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(10)
        for number, worker in enumerate(world.workers):
            world.make(worker, 10 + number)
        await trio.sleep(880)
        assert not world.chain.posts, "the window is not over"
        await trio.sleep(300)
        assert world.paid() == world.accepted and sum(world.accepted.values()) == 33
        assert world.chain.posts == [(0, 33)]
        status = world.workers[0].claimer.status()
        pay = status["pay"]
        assert (pay.paid_wei, pay.due_wei, pay.waiting_wei) == (str(10 * PRICE), "0", "0")
        assert status["stake"] == {"bonded_wei": "5"}
        nursery.cancel_scope.cancel()


async def test_four_days_with_validators_away_for_more_than_one_and_nodes_restarted_at_random(
    autojump_clock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    slow = (HOUR, HOUR)  # a quarter of an epoch, as it would be without a bound
    dice = random.Random(5)
    world = World(tmp_path, epoch=4 * HOUR, window=DAY, round_seconds=900.0, pauses=(slow, slow))
    restarts = 0

    async def keep(node: Node) -> None:
        while True:
            if node.wanted:
                await node.live()
            await trio.sleep(30 if node.wanted else 600)

    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(keep, node)
        await trio.sleep(60)
        for step in range(4 * 24):
            away = 36 <= step < 63  # 27 hours
            for node in world.validators:
                if node.wanted is away:
                    node.wanted = not away
                    node.stop()
            if not away and step % 2:  # every two hours
                for worker in world.workers:
                    if sum(node.lives for node in world.validators) >= 2:
                        world.make(worker, dice.randint(1, 1000))
            await trio.sleep(2400)
            if not away and dice.random() < 0.6:
                dice.choice(list(world.nodes.values())).stop()
                restarts += 1
            await trio.sleep(1200)
        await trio.sleep(48 * HOUR)
        nursery.cancel_scope.cancel()
    assert restarts > 30 and len(world.chain.posts) > 4
    assert world.paid() == world.accepted
    assert world.chain.owed == 0 and len(world.accepted) == len(WORKERS)
    earned = Counter[Address]()
    for node, units in world.accepted.items():
        earned[provider_of(node)] += units * PRICE
    assert world.chain.received == earned and len(earned) == len(WORKERS) - 1, "to the wei"
    assert world.chain.free * PRICE == 10**12 * PRICE - earned.total()
    for worker in world.workers:
        pay = worker.claimer.status()["pay"]
        assert pay.paid_wei == str(world.accepted[worker.key.address] * PRICE) and pay.missed_wei == "0"


async def test_others_tables_are_compared_as_seldom_as_the_window_allows(
    autojump_clock: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fortieth of it, and 15 s at most: what is looked at each second wakes every validator."""
    looks: dict[tuple[Address, Address], list[float]] = {}

    async def look(tabling: Any, author: Address, message: Any) -> None:
        looks.setdefault((tabling._own, author), []).append(trio.current_time())

    monkeypatch.setattr(earnings_tabler.EarningsTabler, "_compare", look)
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(10)
        world.make(world.workers[0])
        await trio.sleep(1200)
        nursery.cancel_scope.cancel()
    pauses = [later - earlier for times in looks.values() for earlier, later in pairwise(times)]
    assert len(looks) >= 6 and set(pauses) == {15.0}


async def restart(world: World, nursery: trio.Nursery, nodes: list[Node]) -> None:
    for node in nodes:
        node.stop()
    await trio.sleep(0.01)
    for node in nodes:
        nursery.start_soon(node.live)


@pytest.mark.parametrize("second", [0.0, 1.3, 52.0, 91.0, 104.0])
async def test_all_validators_restart_at_any_second_of_an_epoch(
    autojump_clock: Any, world: World, second: float
) -> None:
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(5)
        for worker in world.workers:
            world.make(worker, 50)  # the restart comes before some of it is certified, or after
        await trio.sleep(second)
        await restart(world, nursery, world.validators)
        await trio.sleep(1600)
        assert world.paid() == world.accepted
        nursery.cancel_scope.cancel()


async def test_roots_that_gossip_lost_are_said_again(autojump_clock: Any, world: World) -> None:
    lost, worker = [0], WORKERS[0].address

    def lose(to: str, message: Any) -> bool:
        gone = isinstance(message, EpochRootSigned) and trio.current_time() < 220 and to == worker
        lost[0] += gone
        return gone

    world.gossip.lost = lose
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(5)
        world.make(world.workers[0], 50)
        await trio.sleep(210)
        assert lost[0] and not world.workers[0].journal.pay.certified_units(worker, 1)
        await trio.sleep(300)
        assert world.workers[0].journal.pay.certified_units(worker, 2) == {0: 50}
        await trio.sleep(900)
        assert world.paid() == world.accepted
        nursery.cancel_scope.cancel()


async def test_what_somebody_signed_who_is_gone_is_said_again_by_those_whom_it_pays(
    autojump_clock: Any, world: World
) -> None:
    """The board forgets in minutes, and who comes later would not have it. The control: a worker that is away, too."""
    repeated, paid = world.workers[:2]
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(5)
        world.make(repeated, 50)
        world.make(paid, 20)
        await trio.sleep(130)
        for node in (*world.validators, paid):
            node.stop()
        world.gossip.kept.clear()
        world.chain.seat(NEW)
        for node in [world.hire(key) for key in NEW]:
            nursery.start_soon(node.live)
        await trio.sleep(1500)
        assert world.chain.posted.total == 70, "one root of each names both"
        assert world.paid() == {repeated.key.address: 50}
        nursery.cancel_scope.cancel()


async def test_a_root_that_only_one_validator_heard_the_others_take_from_its_table(
    autojump_clock: Any, world: World
) -> None:
    def lose(to: str, message: Any) -> bool:
        return isinstance(message, EpochRootSigned) and to == world.validators[0].key.address

    world.gossip.lost = lose
    world.chain.threshold = 3  # so that nothing is posted unless all come to the same
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(5)
        world.make(world.workers[0], 50)
        await trio.sleep(1500)
        assert world.paid() == world.accepted
        nursery.cancel_scope.cancel()


async def test_a_fault_that_a_quorum_finds_inside_the_window_takes_the_work_out(
    autojump_clock: Any, world: World
) -> None:
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(5)
        good, bad = world.make(world.workers[0], 50), world.make(world.workers[0], 70)
        await trio.sleep(300)
        world.refuse(bad, only=world.validators[:1])  # the others learn of it from its table, with the proof
        await trio.sleep(1200)
        assert world.paid() == {WORKERS[0].address: good.commitment.units}
        assert states(world.workers[0]) == ["claimed", "missed"], "it finds out from the table which of them is in it"
        nursery.cancel_scope.cancel()


async def test_a_slash_that_is_overturned_after_the_table_costs_no_pay_and_a_conviction_does(
    autojump_clock: Any, world: World
) -> None:
    """The table keeps what a judged node had earned: the contract holds it back until its case is final."""
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(5)
        for worker in world.workers:
            world.make(worker, 50)
        await trio.sleep(300)
        for number, worker in enumerate(world.workers[:2]):  # judged; convicted by its own signatures
            world.chain.slash(worker.key.address, case=1 - number)
            for node in world.nodes.values():
                node.membership.evicted.add(worker.key.address)
            worker.stop()  # its daemon has ended
        await trio.sleep(900)
        judged, convicted, honest = (worker.key.address for worker in world.workers)
        assert world.paid() == {honest: 50} and world.chain.posts == [(0, 100)]
        world.chain.overturn(judged)
        nursery.start_soon(world.workers[0].live)
        await trio.sleep(100)
        assert world.paid() == {honest: 50, judged: 50} and world.chain.owed == 0
        assert not world.chain.collected
        world.chain.credits[judged] = 9  # of the bond of who carried the slash; and its carrier's, of another case
        world.chain.credits[world.validators[0].key.address] = 3
        await trio.sleep(600)
        assert dict(world.chain.collected) == {judged: 9, world.validators[0].key.address: 3}
        assert len(world.chain.collected) == 2, "each once"
        nursery.cancel_scope.cancel()


def states(worker: Node) -> list[str]:
    """Where the pay of each of its files is, in the order in which they were made, as `contributions` says it."""
    kept = worker.journal.recall(PAY)
    record = msgspec.msgpack.decode(kept, type=PayRecord) if kept else None
    return [pay_state(one, record) for one in sorted(worker.journal.files.records(100), key=lambda one: one.index)]


async def test_each_file_s_pay_is_told_as_it_goes_and_what_misses_its_table_is_told_so(
    autojump_clock: Any, world: World
) -> None:
    worker, late = world.workers[:2]
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(5)
        world.make(worker, 50)
        world.make(worker, 7, judges=world.validators[:1])  # accepted, and never named by a quorum
        await trio.sleep(60)
        assert states(worker) == ["waits for roots"] * 2, "the epoch is not over"
        await trio.sleep(500)
        assert states(worker) == ["certified", "waits for roots"]
        assert [one.name for one in worker.progress.events] == ["certified"]
        world.chain.claims_fail = True
        world.make(late, 20, epoch=0)  # later than half of the window after its epoch
        await trio.sleep(500)
        assert (states(worker), states(late)) == (["in the table", "missed"], ["missed"])
        world.chain.claims_fail = False
        await trio.sleep(100)
        assert (states(worker), states(late)) == (["claimed", "missed"], ["missed"])
        pay = worker.claimer.status()["pay"]
        assert (pay.epochs[0].state, pay.epochs[0].missed_units, pay.missed_wei) == ("claimed", 7, str(7 * PRICE))
        assert late.claimer.status()["pay"].missed_wei == str(20 * PRICE)
        assert [one.name for one in worker.progress.events] == ["certified", "in the table", "claimed"]
        await restart(world, nursery, [worker, late])
        await trio.sleep(50)
        assert (states(worker), states(late)) == (["claimed", "missed"], ["missed"]), "and told once"
        assert not worker.progress.events and not late.progress.events
        nursery.cancel_scope.cancel()


def told(node: Node) -> dict[str, int]:
    """Units by where they are, as the status says it."""
    units = node.claimer.status()["pay"].units
    return {name: getattr(units, name) for name in units.__struct_fields__ if getattr(units, name)}


async def away(world: World, nursery: trio.Nursery, worker: Node, *, missing: Sequence[int] = ()) -> None:
    """The worker makes 50 in each of three epochs, and is gone until three tables are posted."""
    nursery.start_soon(worker.live)
    for epoch in range(3):
        await trio.sleep_until(100 * epoch + 20)
        world.make(worker, 50 + epoch)
        if epoch in missing:  # accepted by one alone: no quorum names it
            world.make(worker, 7, judges=world.validators[:1])
    await trio.sleep_until(390)
    worker.stop()
    await trio.sleep_until(1500)
    assert [epoch for epoch, _ in world.chain.posts] == [0, 1, 2]


@pytest.mark.parametrize("missing", [(), (0,), (0, 2)])
async def test_who_was_away_for_three_tables_is_told_what_each_of_them_has(
    autojump_clock: Any, world: World, missing: Sequence[int]
) -> None:
    worker = world.workers[0]
    async with trio.open_nursery() as nursery:
        for node in world.validators:
            nursery.start_soon(node.live)
        await away(world, nursery, worker, missing=missing)
        nursery.start_soon(worker.live)
        await trio.sleep(60)
        lost = 7 * len(missing)
        assert told(worker) == {"claimed": 153} | ({"missed": lost} if lost else {})
        assert Counter(states(worker)) == Counter({"claimed": 3} | ({"missed": len(missing)} if missing else {}))
        assert worker.journal.pay.certified_units(WORKERS[0].address, 1).keys() == {2}, "what is settled is forgotten"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("unnamed", [False, True])
async def test_who_was_away_until_its_tables_are_shown_no_more_knows_its_works_by_what_it_heard_accepted(
    autojump_clock: Any, world: World, unnamed: bool
) -> None:
    """It heard no root of its works. unnamed: a work that it took for accepted was named by no quorum."""
    worker, other, world.gossip.age = world.workers[0], world.workers[1], 240.0
    async with trio.open_nursery() as nursery:
        for node in [*world.validators, worker]:
            nursery.start_soon(node.live)
        await trio.sleep(20)
        world.make(worker, 50)
        if unnamed:
            world.make(worker, 7, judges=world.validators[:1])
        await trio.sleep(20)
        worker.stop()
        for epoch in range(1, 20):
            await trio.sleep_until(100 * epoch + 20)
            world.make(other, 30)
        assert len(world.chain.posts) > 8
        nursery.start_soon(worker.live)
        await trio.sleep(60)
        assert told(worker) == {"claimed": 50} | ({"unclear": 7} if unnamed else {}), "the sums are the chain's"
        assert states(worker) == (["unclear"] * 2 if unnamed else ["claimed"])
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("gone", [True, False])
async def test_what_nobody_can_tell_is_unclear_with_its_sum_and_never_missed(
    autojump_clock: Any, world: World, gone: bool
) -> None:
    """Two tables came while it was away, and a work was refused. gone: the first of them can be had from nobody."""
    worker = world.workers[0]
    async with trio.open_nursery() as nursery:
        for node in [*world.validators, worker]:
            nursery.start_soon(node.live)
        await trio.sleep(20)
        world.make(worker, 50)
        refused = world.make(worker, 7)
        world.make(worker, 9, judges=world.validators[:1])  # no quorum names it
        await trio.sleep(100)
        world.make(worker, 51)
        await trio.sleep(200)
        worker.stop()
        world.refuse(refused, only=world.validators)
        await trio.sleep_until(1200)
        assert world.chain.posts == [(0, 50), (1, 101)]
        kept = [one.message for of in world.gossip.kept.values() for _, one in of.values()]
        tables = [one for one in kept if isinstance(one, EarningsVote) and one.earnings.epoch == 0]
        world.blobs.missing |= {blob for one in tables if gone for blob in (one.table, one.earnings.blob)}
        nursery.start_soon(worker.live)
        await trio.sleep(200)
        lost = {"unclear" if gone else "missed": 16}
        assert told(worker) == {"claimed": 101} | lost, "all that was made, and what the chain says was paid"
        assert Counter(states(worker)) == ({"unclear": 4} if gone else {"claimed": 2, "missed": 2})
        # What is made afterwards is told as ever.
        world.make(worker, 60)
        await trio.sleep(1300)
        assert told(worker) == {"claimed": 161} | lost and states(worker)[-1] == "claimed"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("gone", [False, True])
async def test_who_heard_no_root_reads_those_that_the_table_names(
    autojump_clock: Any, world: World, gone: bool
) -> None:
    """gone: they can be had from nobody, for a while."""
    worker = world.workers[0]
    own = worker.key.address
    world.gossip.lost = lambda to, message: to == own and isinstance(message, EpochRootSigned)
    async with trio.open_nursery() as nursery:
        for node in [*world.validators, worker]:
            nursery.start_soon(node.live)
        await trio.sleep(20)
        world.make(worker, 50)
        world.make(worker, 7, judges=world.validators[:1])  # no quorum names it
        await trio.sleep_until(850)
        kept = [one.message for of in world.gossip.kept.values() for _, one in of.values()]
        blobs = {one.statement.blob for one in kept if isinstance(one, EpochRootSigned)}
        world.blobs.missing |= blobs if gone else set()
        await trio.sleep_until(1300)
        assert world.chain.posts == [(0, 50)]
        if gone:
            assert told(worker) == {"claimed": 50, "unclear": 7}
            world.blobs.missing.clear()
            await trio.sleep(200)
        assert told(worker) == {"claimed": 50, "missed": 7} and states(worker) == ["claimed", "missed"]
        nursery.cancel_scope.cancel()


def named(node: Node, number: int, epoch: int = 0, units: int = 10) -> Accepted:
    return Accepted(POOL, node.key.address, epoch, number.to_bytes(32), units)


async def test_roots_that_are_worth_nothing_are_paid_nothing(autojump_clock: Any, world: World) -> None:
    """Of strangers, of one validator twice, of works that one names otherwise, of another total, of files that are
    none."""
    worker, both, (one, two, _) = world.workers[0], VALIDATORS[:2], VALIDATORS
    good = named(worker, 5)
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(150)
        nonsense, other = await world.blobs.add(b"nonsense"), await world.blobs.add(msgspec.msgpack.encode([[]]))
        for key in both:
            await world.root(key, 0, [named(worker, 1)], 1, total=11)
            await world.root(key, 0, [named(worker, 2)], 2, blob=nonsense.root)
            await world.root(key, 0, [named(worker, 2)], 3, blob=other.root)
            await world.root(key, 0, [named(worker, 3)], 4, root=bytes(32))
            await world.root(key, 0, [named(worker, 4, units=10 if key is one else 11)], 5)
        await world.root(NodeKey(b"s" * 32), 0, [named(worker, 6)])
        await world.root(one, 0, [named(worker, 6), named(worker, 7)], 6)
        await world.root(one, 0, [named(worker, 7)], 7)
        await world.root(one, 0, [good], 8)
        await world.root(two, 0, [good], 8)
        await trio.sleep(1500)
        assert world.paid() == {worker.key.address: 10}, "the control: what two validators named alike"
        nursery.cancel_scope.cancel()


async def test_what_an_epoch_brings_beyond_its_cap_is_owed_and_paid_by_the_next_ones(
    autojump_clock: Any, world: World
) -> None:
    """One unit over, and the pool paid nobody for ever. The control: at the cap all of it is paid at once."""
    world.chain.per_epoch = 300
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(5)
        world.make(world.workers[0], 300)
        await trio.sleep(95)
        world.make(world.workers[0], 200)
        world.make(world.workers[1], 101)
        await trio.sleep(905)
        assert world.chain.posts == [(0, 300)] and world.paid() == {WORKERS[0].address: 300}
        await trio.sleep(98)
        # 299 of 301 units: each has its share, and what is left of a unit is nobody's yet
        assert world.paid() == {WORKERS[0].address: 499, WORKERS[1].address: 100}
        audit = world.workers[1].claimer.status()["pay"]
        assert (audit.units.owed, audit.owed_wei, audit.units.missed) == (1, str(PRICE), 0)
        assert int(audit.unit_worth_wei) == PRICE * 299 // 301
        world.make(world.workers[2], 300)
        await trio.sleep(1500)
        assert world.paid() == world.accepted and sum(world.accepted.values()) == 901
        assert states(world.workers[0]) == ["claimed", "claimed"]
        nursery.cancel_scope.cancel()


async def test_nothing_is_signed_beyond_what_is_funded_and_everybody_has_a_share_until_there_is_money(
    autojump_clock: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Money that comes later than the last block before an epoch's window is over counts in the next one: everybody
    reckons by the same block."""
    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    world = World(tmp_path, epoch=100, window=800, escrow=60, delay=2)
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(5)
        world.make(world.workers[0], 50)
        await trio.sleep(100)
        world.make(world.workers[0], 30)
        world.make(world.workers[1], 20)
        await trio.sleep(1100)
        assert world.paid() == {WORKERS[0].address: 56, WORKERS[1].address: 4}
        assert "40 units are certified" in world.validators[0].tabling.status()["earnings_table"]["waiting"]
        assert "of what waited its newest table paid 20%" in world.workers[1].claimer.status()["pay"].warnings[-1]
        world.chain.fund(1000)
        world.read_until = 0.0
        await trio.sleep(300)
        assert world.paid().total() == 60, "nobody reckons with events that have not come to it"
        world.read_until = float("inf")
        await trio.sleep(300)
        assert world.paid() == world.accepted
        nursery.cancel_scope.cancel()


async def test_a_claim_whose_answer_is_lost_pays_once(autojump_clock: Any, world: World) -> None:
    world.chain.loses_answers = True
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(5)
        world.make(world.workers[0], 50)
        await trio.sleep(1200)
        await restart(world, nursery, world.workers)
        await trio.sleep(300)
        assert world.chain.claims == [(WORKERS[0].address, 50)]
        nursery.cancel_scope.cancel()


async def test_work_is_not_certified_too_late_too_early_or_against_an_own_word(
    autojump_clock: Any, world: World
) -> None:
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(710)
        # now it is epoch 7, and the window 800 seconds
        made = [world.make(world.workers[0], 1 + n % 1000, epoch=n) for n in (0, 1, 3, 8, 9, 2**40)]
        works = [SimpleNamespace(id=one.id, epoch=one.commitment.epoch) for one in made]
        liar = world.make(world.workers[1], 5, judges=world.validators)
        VERDICTS[liar.id + VALIDATORS[0].address.encode()].message.verdict.outcome = 1
        await trio.sleep(5)
        pay = [node.journal.pay for node in world.validators]
        certified = {one.epoch for one in works if pay[0].leaf(VALIDATORS[0].address, POOL, one.id)}
        assert certified == {3, 8}
        assert not pay[0].leaf(VALIDATORS[0].address, POOL, liar.id)
        assert pay[1].leaf(VALIDATORS[1].address, POOL, liar.id), "who accepted it names it"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("back_at", "made_at", "again", "paid"),
    [
        (700, 5, None, True),
        (1400, 5, None, True),
        (700, 600, None, False),
        (700, 5, VerdictOutcome.REJECT, False),
    ],
)
async def test_what_was_accepted_in_time_just_before_all_validators_vanished_is_paid_when_they_are_back(
    autojump_clock: Any, world: World, back_at: int, made_at: int, again: VerdictOutcome | None, paid: bool
) -> None:
    """Not what was accepted later than half of the window after its epoch, nor what a second look refused."""
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(made_at)
        work = world.make(world.workers[0], 50, epoch=0)
        for node in world.validators:
            node.stop()
            if again is not None:
                raw = b"again" + work.id + node.key.address.encode()
                VERDICTS[raw] = deepcopy(VERDICTS[work.id + node.key.address.encode()])
                VERDICTS[raw].message.verdict.outcome = again
                node.journal.say("recheck", work.id, raw)
        await trio.sleep(back_at - made_at)
        assert not world.validators[0].journal.pay.leaf(VALIDATORS[0].address, POOL, work.id)
        for node in world.validators:
            nursery.start_soon(node.live)
        await trio.sleep(1500)
        assert world.paid() == ({WORKERS[0].address: 50} if paid else {})
        nursery.cancel_scope.cancel()


NEW = tuple(NodeKey(bytes([n]) * 32) for n in (34, 35, 36))


async def test_new_validators_table_what_the_former_ones_named_in_their_office_and_nothing_later(
    autojump_clock: Any, world: World
) -> None:
    """They never saw the works. Who has left has nothing to lose here any more."""
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(105)
        world.make(world.workers[0], 50)
        await trio.sleep(145)
        for node in world.validators:
            node.stop()
        world.chain.seat(NEW)
        for node in [world.hire(key) for key in NEW]:
            nursery.start_soon(node.live)
        await trio.sleep(300)
        for key in VALIDATORS[:2]:
            await world.root(key, 2, [named(world.workers[1], 1, 2, 7)])
            await world.root(key, 3, [named(world.workers[2], 2, 3)])
        await world.root(NEW[0], 3, [named(world.workers[2], 2, 3)])
        await trio.sleep(1500)
        assert world.paid() == {WORKERS[0].address: 50, WORKERS[1].address: 7}
        nursery.cancel_scope.cancel()


async def test_one_who_was_thrown_out_counts_for_no_work_and_spoils_none(autojump_clock: Any, world: World) -> None:
    worker, (gone, *left) = world.workers[0], VALIDATORS
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(5)
        world.nodes[gone.address].stop()
        world.chain.validators.remove(gone.address)
        await trio.sleep(145)
        for key in VALIDATORS:
            await world.root(key, 0, [named(worker, number) for number in range(8)])
        for key in (gone, left[0]):
            await world.root(key, 0, [named(worker, 9)], 2)
        await trio.sleep(1000)
        assert world.paid() == {worker.key.address: 80}
        nursery.cancel_scope.cancel()


async def test_one_validators_roots_are_read_up_to_a_bound_and_others_are_paid(
    autojump_clock: Any, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many it signs, and however slow their files are: those of the others are read beside them."""
    monkeypatch.setattr(earnings_tabler, "ROOTS_EACH", 4)
    liar, worker = VALIDATORS[0], world.workers[0]
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            if node.key is not liar:
                nursery.start_soon(node.live)
        await trio.sleep(5)
        world.make(worker, 50)
        await trio.sleep(145)
        for number in range(1, 40):
            blob = {"blob": number.to_bytes(32)} if number % 2 else {}  # that nobody has
            await world.root(liar, 0, [named(worker, number)], number, **blob)
        await trio.sleep(1200)
        assert world.paid() == world.accepted
        for node in world.validators[1:]:
            assert sum(row[1] == liar.address for row in node.journal.earned.roots(0, 0, True)) == 4
        nursery.cancel_scope.cancel()


def nobody_has(number: int) -> bytes:
    said = EpochRoot(POOL, 0, number, bytes(32), 9, bytes([9]) * 28 + number.to_bytes(4))
    message = EpochRootSigned(pool=POOL, statement=said, signature=sign(VALIDATORS[0], DOMAIN, said))
    return seal(VALIDATORS[0], DOMAIN, message)


def hostile_table(what: str) -> bytes:
    lines = tuple(EarningsLine(address_bytes(key.address), 10) for key in sorted(WORKERS, key=lambda one: one.address))
    match what:
        case "another pool's":
            return encode_head(EarningsTable(POOL + 1, 0, 30, lines).files()[0])
        case "not in order":
            head = EarningsTable(POOL, 0, 30, lines).files()[0]
            again = msgspec.structs.replace(head.pages[0], first=bytes(20))
            return encode_head(msgspec.structs.replace(head, pages=(head.pages[0], again)))
        case "huge":
            return bytes(earnings_tabler.MAX_HEAD_BYTES + 1)
        case _:
            sources = tuple(nobody_has(n) for n in range(500))
            return encode_head(EarningsTable(POOL, 0, 30, lines, sources=sources).files()[0])


@pytest.mark.parametrize("what", ["another pool's", "not in order", "huge", "of blobs that nobody has"])
async def test_a_hostile_table_costs_the_others_little_and_delays_no_pay(
    autojump_clock: Any, world: World, what: str
) -> None:
    liar, worker = VALIDATORS[0], world.workers[0]
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            if node.key is not liar:
                nursery.start_soon(node.live)
        await trio.sleep(5)
        world.make(worker, 50)
        await trio.sleep(800)
        info = await world.blobs.add(hostile_table(what))
        earnings = Earnings(POOL, 0, 1, bytes([5]) * 32, 30, bytes(32))
        signature, size = sign(liar, DOMAIN, earnings), min(info.size, earnings_tabler.MAX_HEAD_BYTES)
        message = EarningsVote(pool=POOL, earnings=earnings, table=info.root, size=size, signature=signature)
        for _ in range(10):
            await Board(world.gossip, liar).post(message)
            await trio.sleep(20)
        assert world.paid() == world.accepted, "200 seconds after the window's end at most"
        own = len(VALIDATORS[1:])
        assert world.blobs.fetched.count(info.root) <= own * (1 if what in ("another pool's", "not in order") else 16)
        assert len(world.blobs.sought) <= own * 16 * 3
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("told", [False, True])
async def test_no_table_is_made_by_judges_of_whom_no_event_tells(autojump_clock: Any, world: World, told: bool) -> None:
    """An endpoint adds one to the bench, or keeps a new one back: who counts for a table follows from it. The control:
    where an event tells the same, the table comes."""
    stranger = NodeKey(bytes([77]) * 32)
    async with trio.open_nursery() as nursery:
        for node in world.nodes.values():
            nursery.start_soon(node.live)
        await trio.sleep(10)
        world.make(world.workers[0], 50)
        await trio.sleep(120)
        world.chain.validators.append(stranger.address)  # what the pool's view says
        if told:
            world.chain.seat([*VALIDATORS, stranger])
        await trio.sleep(1200)
        assert bool(world.chain.posts) is told
        waiting = world.validators[0].tabling.waiting
        assert told or "endpoints are at different blocks" in waiting
        if not told:
            world.chain.validators.remove(stranger.address)
            await trio.sleep(200)
            assert world.chain.posts, "once it tells what events tell, it goes on"
        nursery.cancel_scope.cancel()
