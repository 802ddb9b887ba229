from functools import partial
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from node.swarm import board, catchup, message_store
from node.swarm.board import Board
from node.swarm.catchup import CatchingUp
from node.swarm.membership import Membership
from node.swarm.message_store import MAX_MESSAGES, MAX_PINNED, MessageStore
from protocol.identity import Address, NodeKey
from protocol.liveness import AHEAD, MAX_MEMBERS, MemberState
from protocol.messages import (
    Heartbeat,
    PolicyAnnounced,
    RolloutCommitted,
    TaskClaimed,
    TaskOffered,
    ValidatorBatch,
    VerdictIssued,
    signed,
    topic,
)
from protocol.statements import Domain, Verdict, WorkCommitment, sign
from tests.memory_network import MemoryHub, MemoryNetwork
from tests.words import announced as policy_announced
from tests.words import slash_of

TRAINER, WORKER, VALIDATOR, STRANGER = (NodeKey(bytes([n]) * 32) for n in (1, 2, 3, 4))
DOMAIN = Domain(31337, TRAINER.address)


NOON = 1_800_000_000.0
"""What all clocks here say, for ever."""


class Node:
    """A board and a membership on a memory network."""

    def __init__(self, hub: MemoryHub, key: NodeKey) -> None:
        self.key = key
        self.network = MemoryNetwork(key, hub)
        self.membership = Membership(key.address, self.network, TRAINER.address, (VALIDATOR.address,))
        self.board = Board(self.network, key, DOMAIN, 1, self.membership, wall=lambda: NOON)

    async def start(self, nursery: trio.Nursery) -> None:
        await nursery.start(self.network.run)
        nursery.start_soon(self.board.run)
        nursery.start_soon(self.membership.follow, self.board)


async def swarm(nursery: trio.Nursery, hub: MemoryHub, *keys: NodeKey) -> list[Node]:
    nodes = [Node(hub, key) for key in keys]
    for node in nodes:
        await node.start(nursery)
    for node in nodes:
        for other in nodes:
            node.membership.joined(other.key.address, other.network.contacts()[0])
    await trio.sleep(3)
    return nodes


def beat(sequence: int = 1, **change: object) -> Heartbeat:
    base = Heartbeat(
        pool=1,
        boot=0,
        count=sequence,
        at=sequence,
        role="worker",
        state="working",
        contact="",
        policy_step=0,
        interval=1.0,
    )
    return msgspec.structs.replace(base, **change)


def committed(key: NodeKey, index: int = 0, signer: NodeKey | None = None) -> RolloutCommitted:
    commitment = WorkCommitment(1, key.address, b"\x01" * 32, index, b"\x02" * 32, 5)
    return RolloutCommitted(pool=1, commitment=commitment, signature=sign(signer or key, DOMAIN, commitment), size=9)


def judged(key: NodeKey) -> VerdictIssued:
    verdict = Verdict(1, WORKER.address, b"\x01" * 32, 0, b"\x02" * 32, 5, 0, 0)
    return signed(VerdictIssued(pool=1, verdict=verdict, signature=b""), key, DOMAIN)


POLICY = policy_announced(0, bytes(32), TRAINER, DOMAIN)


@pytest.mark.parametrize("message", ["beat", "claim", "offer"])
async def test_what_comes_from_the_future_is_taken_by_nobody_in_no_way_and_nobody_is_charged_for_it(
    message: str, autojump_clock
) -> None:
    def said(ahead: float) -> Any:
        at = int(1000 * (NOON + ahead))
        made = {
            "beat": beat(1, at=at),
            "claim": TaskClaimed(pool=1, task=bytes(32), shard=0, sequence=at),
            "offer": TaskOffered(pool=1, spec=b"x", sequence=at),
        }
        return made[message]

    async with trio.open_nursery() as nursery:
        hub = MemoryHub()
        author, listener = await swarm(nursery, hub, TRAINER, WORKER)
        for _ in range(600):  # more than its budgets would bear
            await author.board.post(said(AHEAD + 1))
            await trio.sleep(0.5)
        kind = type(said(0))
        assert listener.board.messages(kind) == [] and author.board.messages(kind)
        assert listener.board.counts["future"] > 100 and listener.board.counts["muted"] == 0
        await author.board.post(said(AHEAD - 1) if message != "beat" else beat(2, at=int(1000 * NOON)))
        await trio.sleep(1)
        assert len(listener.board.messages(kind)) == 1
        nursery.cancel_scope.cancel()


async def test_members_hear_each_other(autojump_clock) -> None:
    async with trio.open_nursery() as nursery:
        trainer, worker = await swarm(nursery, MemoryHub(), TRAINER, WORKER)
        await worker.board.post(committed(WORKER))
        await worker.board.post(beat())
        await trio.sleep(1)
        assert [signed.author for signed in trainer.board.messages(RolloutCommitted)] == [WORKER.address]
        assert trainer.membership.table.live(trio.current_time(), "worker") == [WORKER.address]
        nursery.cancel_scope.cancel()


async def test_bytes_are_counted_by_kind_and_those_that_another_message_carries_besides(autojump_clock) -> None:
    async with trio.open_nursery() as nursery:
        trainer, validator = await swarm(nursery, MemoryHub(), TRAINER, VALIDATOR)
        await validator.board.post(ValidatorBatch(pool=1, carried=(judged(VALIDATOR),)))
        await trio.sleep(1)
        counts, (said,) = trainer.board.counts, trainer.board.messages(ValidatorBatch)
        assert counts["ValidatorBatch"] == counts["carried.VerdictIssued"] == 1 and not counts["VerdictIssued"]
        assert counts["bytes.ValidatorBatch"] == len(said.raw) > counts["carried_bytes.VerdictIssued"] > 100
        assert counts["carried_bytes.VerdictIssued"] == len(msgspec.msgpack.encode(judged(VALIDATOR)))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("speaker", "message"),
    [
        (WORKER, POLICY),
        (WORKER, judged(WORKER)),
        (VALIDATOR, judged(WORKER)),
        (WORKER, committed(WORKER, signer=STRANGER)),
    ],
    ids=["a worker's policy", "a worker's verdict", "a forged verdict", "a forged commitment"],
)
async def test_nobody_is_heard_beyond_his_rights(autojump_clock, speaker: NodeKey, message) -> None:
    async with trio.open_nursery() as nursery:
        nodes = await swarm(nursery, MemoryHub(), TRAINER, WORKER, VALIDATOR)
        liar = next(node for node in nodes if node.key is speaker)
        await liar.network.publish(topic(DOMAIN, 1), liar.board.sealed(message))
        await trio.sleep(1)
        assert nodes[0].board.messages(type(message)) == []
        assert nodes[0].board.counts["refused"] == 1
        nursery.cancel_scope.cancel()


async def test_what_gossip_lost_is_caught_up(autojump_clock) -> None:
    async with trio.open_nursery() as nursery:
        hub = MemoryHub(drop=1.0)
        trainer, worker = await swarm(nursery, hub, TRAINER, WORKER)
        for index in range(40):
            await worker.board.post(committed(WORKER, index))
        await trio.sleep(2 * trainer.board.catching_up.every + 1)
        assert len(trainer.board.messages(RolloutCommitted)) == 40
        nursery.cancel_scope.cancel()


async def test_who_was_away_asks_again_at_once_while_answers_bring_much(autojump_clock, monkeypatch) -> None:
    monkeypatch.setattr(catchup, "MAX_CATCH_UP_BYTES", 16 * 1024)
    async with trio.open_nursery() as nursery:
        hub = MemoryHub(drop=1.0)
        trainer, worker = await swarm(nursery, hub, TRAINER, WORKER)
        for index in range(250):
            await worker.board.post(committed(WORKER, index))
        await trio.sleep(trainer.board.catching_up.every + 10 * 0.2)
        assert len(trainer.board.messages(RolloutCommitted)) == 250
        nursery.cancel_scope.cancel()


async def test_who_keeps_much_asks_more_seldom(autojump_clock, monkeypatch) -> None:
    monkeypatch.setattr(board, "CatchingUp", partial(CatchingUp, named_each_second=4.0))
    async with trio.open_nursery() as nursery:
        trainer, worker = await swarm(nursery, MemoryHub(), TRAINER, WORKER)
        asked = []
        for kept in (0, 40):
            for index in range(kept):
                await worker.board.post(committed(WORKER, index))
            await trio.sleep(20)
            before = trainer.network.stats().requests_in
            await trio.sleep(40)
            asked.append(trainer.network.stats().requests_in - before)
        assert asked == [20, 4]
        nursery.cancel_scope.cancel()


async def test_a_latecomer_learns_the_newest_policy_while_the_trainer_is_down(autojump_clock) -> None:
    async with trio.open_nursery() as nursery:
        hub = MemoryHub()
        trainer, worker, late = await swarm(nursery, hub, TRAINER, WORKER, VALIDATOR)
        hub.isolate(VALIDATOR.address)
        for step in range(12):
            await trainer.board.post(policy_announced(step, bytes([step]) * 32, TRAINER, DOMAIN))
        await trio.sleep(1)
        hub.heal()
        hub.isolate(TRAINER.address)
        await trio.sleep(10)
        steps = [signed.message.step for signed in late.board.messages(PolicyAnnounced)]
        assert max(steps) == 11
        assert len(worker.board.messages(PolicyAnnounced)) <= message_store.KEPT_STEPS
        nursery.cancel_scope.cancel()


async def test_a_board_stays_small(autojump_clock) -> None:
    async with trio.open_nursery() as nursery:
        (worker,) = await swarm(nursery, MemoryHub(), WORKER)
        for sequence in range(1, 50):
            await worker.board.post(beat(sequence))
        assert len(worker.board.messages(Heartbeat)) == 1
        await worker.board.post(committed(WORKER))
        await trio.sleep(MessageStore().max_age + 1)
        await worker.board.post(committed(WORKER, 1))
        assert [signed.message.commitment.index for signed in worker.board.messages(RolloutCommitted)] == [1]
        nursery.cancel_scope.cancel()


async def test_a_subscriber_hears_what_was_there_before_it(autojump_clock) -> None:
    async with trio.open_nursery() as nursery:
        (worker,) = await swarm(nursery, MemoryHub(), WORKER)
        await worker.board.post(committed(WORKER))
        heard = worker.board.subscribe(RolloutCommitted)
        assert (await heard.receive()).author == WORKER.address
        nursery.cancel_scope.cancel()


async def test_a_slashed_member_is_no_longer_heard(autojump_clock) -> None:
    async with trio.open_nursery() as nursery:
        trainer, worker = await swarm(nursery, MemoryHub(), TRAINER, WORKER)
        record = slash_of(WORKER.address)
        for node in (trainer, worker):
            node.membership.slash(record)
            node.membership.slash(record)
        await worker.network.publish(topic(DOMAIN, 1), worker.board.sealed(committed(WORKER)))
        await trio.sleep(1)
        assert trainer.board.messages(RolloutCommitted) == []
        assert trainer.membership.table.get(WORKER.address).state(0.0) is MemberState.EVICTED
        assert len(trainer.membership.slashed) == 1
        assert worker.membership.evicted.is_set()
        nursery.cancel_scope.cancel()


async def test_the_living_validators_are_those_that_the_pool_names_and_that_are_heard(autojump_clock) -> None:
    async with trio.open_nursery() as nursery:
        worker, validator = await swarm(nursery, MemoryHub(), WORKER, VALIDATOR)
        members = worker.membership

        def living(later: float = 0.0) -> list[Address]:
            return [one for one in members.validators if members.table.is_live(one, trio.current_time() + later)]

        assert living() == []
        await validator.board.post(beat(role="validator"))
        await worker.board.post(beat(role="validator"))  # which the pool does not say
        await trio.sleep(1)
        assert living() == [VALIDATOR.address]
        assert living(60) == []
        nursery.cancel_scope.cancel()


def test_a_question_can_name_all_that_a_board_keeps() -> None:
    names = [number.to_bytes(catchup.SHORT) for number in range(MAX_MEMBERS + MAX_MESSAGES + MAX_PINNED)]
    assert len(names) <= catchup.MAX_KNOWN
    assert len(msgspec.msgpack.encode(catchup.CatchUp(names, catchup.NAME))) <= catchup.MAX_QUESTION
