"""One bonded member against the board: floods, replays, forged and broken envelopes. Beside each attack its control."""

import random
from collections.abc import AsyncIterator

import msgspec
import pytest
import trio

from node.swarm import board as board_module
from node.swarm import catchup
from node.swarm.board import Board
from node.swarm.catchup import CatchUp
from node.swarm.counts import COUNTS, ELSE, ENTRIES, MUTED, PATIENCE
from protocol.errors import ProtocolError
from protocol.identity import NodeKey
from protocol.messages import (
    DisputeRaised,
    Envelope,
    Heartbeat,
    MalformedMessage,
    Message,
    RolloutCommitted,
    Seal,
    ValidatorBatch,
    VerdictIssued,
    VerdictRequested,
    seal,
    signed,
    topic,
)
from scripts.fuzz_proofs import mutated
from scripts.fuzz_targets import NUMBERS
from tests.memory_network import MemoryHub
from tests.node.swarm.test_board import (
    DOMAIN,
    POLICY,
    STRANGER,
    TRAINER,
    VALIDATOR,
    WORKER,
    Node,
    beat,
    committed,
    judged,
    swarm,
)

FLOODER = NodeKey(b"\x09" * 32)
BURST = int(COUNTS[RolloutCommitted].burst)
RATE = COUNTS[RolloutCommitted].per_second


@pytest.fixture
async def nodes(autojump_clock) -> AsyncIterator[dict[str, Node]]:
    async with trio.open_nursery() as nursery:
        started = await swarm(nursery, MemoryHub(), TRAINER, WORKER, VALIDATOR, FLOODER)
        yield dict(zip(("trainer", "worker", "validator", "flooder"), started, strict=True))
        nursery.cancel_scope.cancel()


async def say(node: Node, *raws: bytes) -> None:
    """Past the node's own board, as an attacker does."""
    for raw in raws:
        await node.network.publish(topic(DOMAIN, 1), raw)
    await trio.testing.wait_all_tasks_blocked()


def sealed(node: Node, *messages: Message) -> list[bytes]:
    return [node.board.sealed(message) for message in messages]


def by(node: Node, key: NodeKey) -> list[int]:
    """Indices of the commitments of one author that a node keeps."""
    return [one.message.commitment.index for one in node.board.messages(RolloutCommitted) if one.author == key.address]


async def test_a_flood_is_cut_to_its_budget_and_costs_nobody_a_place(autojump_clock, nodes) -> None:
    await nodes["worker"].board.post(committed(WORKER, 0))
    await say(nodes["flooder"], *sealed(nodes["flooder"], *(committed(FLOODER, n) for n in range(BURST + 100))))
    board = nodes["trainer"].board
    assert by(nodes["trainer"], WORKER) == [0]
    assert by(nodes["trainer"], FLOODER) == list(range(BURST))
    assert board.counts["over_budget.RolloutCommitted"] == 100
    assert board.counts["muted"] == 0  # a burst alone silences nobody
    await nodes["worker"].board.post(committed(WORKER, 1))
    await trio.sleep(1)
    assert by(nodes["trainer"], WORKER) == [0, 1]


async def test_who_was_over_budget_is_heard_again_and_catch_up_brings_what_was_dropped(autojump_clock, nodes) -> None:
    """The control of the flood: an honest burst that is too large loses nothing for good."""
    for index in range(BURST + 20):
        await nodes["worker"].board.post(committed(WORKER, index))
    await trio.testing.wait_all_tasks_blocked()
    trainer = nodes["trainer"]
    assert len(by(trainer, WORKER)) == BURST and trainer.board.counts["over_budget.RolloutCommitted"] == 20
    await trio.sleep(10 * trainer.board.catching_up.every)
    assert sorted(by(trainer, WORKER)) == list(range(BURST + 20))
    before = trainer.board.counts["RolloutCommitted"]
    await say(nodes["worker"], *sealed(nodes["worker"], committed(WORKER, 999)))
    assert trainer.board.counts["RolloutCommitted"] == before + 1


async def test_who_floods_for_long_is_muted_for_a_while_and_nobody_else_is(autojump_clock, nodes) -> None:
    trainer, flooder = nodes["trainer"], nodes["flooder"]
    many = BURST + int(PATIENCE[1]) + 10
    await say(flooder, *sealed(flooder, *(committed(FLOODER, n) for n in range(many))))
    assert trainer.board.counts["muted"] == 1
    told = trainer.board.counts["RolloutCommitted"]
    await trio.sleep(MUTED / 2)  # its budget is full again
    await say(flooder, *sealed(flooder, committed(FLOODER, many)))
    assert trainer.board.counts["RolloutCommitted"] == told
    await nodes["worker"].board.post(committed(WORKER, 0))
    await trio.sleep(0.1)
    assert by(trainer, WORKER) == [0]
    await trio.sleep(MUTED / 2)
    await say(flooder, *sealed(flooder, committed(FLOODER, many + 1)))
    assert trainer.board.counts["RolloutCommitted"] == told + 2


async def test_replays_cost_who_publishes_them_and_move_nothing_of_the_authors(autojump_clock, nodes) -> None:
    trainer, worker, flooder = nodes["trainer"], nodes["worker"], nodes["flooder"]
    said = sealed(worker, *(committed(WORKER, n) for n in range(100)))
    await say(worker, *said)
    assert len(by(trainer, WORKER)) == 100
    await say(flooder, *said, *said)
    counts = trainer.board.counts
    assert counts["repeated"] == 200 and counts["RolloutCommitted"] == 100
    assert counts["over_budget.else"] == 200 - ELSE[1]  # the flooder's
    await say(worker, *sealed(worker, *(committed(WORKER, n) for n in range(100, BURST))))  # not one was charged to it
    assert by(trainer, WORKER) == list(range(BURST)) and not counts["over_budget.RolloutCommitted"]


async def test_old_envelopes_that_nobody_remembers_do_not_displace_what_their_author_said(
    autojump_clock, nodes, monkeypatch
) -> None:
    """Such as nobody remembers any more, by the thousand."""
    monkeypatch.setattr("node.swarm.message_store.REMEMBERED", 4)
    few = msgspec.structs.replace(COUNTS[RolloutCommitted], kept=128)
    monkeypatch.setattr("node.swarm.message_store.COUNTS", {**COUNTS, RolloutCommitted: few})
    trainer, worker, flooder = nodes["trainer"], nodes["worker"], nodes["flooder"]
    ancient = sealed(worker, *(committed(WORKER, n) for n in range(1000, 1300)))
    recent = sealed(worker, *(committed(WORKER, n) for n in range(100)))
    await say(worker, *recent)
    await say(flooder, *ancient)
    kept = by(trainer, WORKER)
    assert kept[:100] == list(range(100)) and len(kept) == 128
    dropped = sum(many for name, many in trainer.board.counts.items() if name.startswith("over_budget"))
    assert dropped == len(ancient) - ELSE[1]
    await say(worker, *sealed(worker, *(committed(WORKER, n) for n in range(100, 120))))
    assert [index for index in by(trainer, WORKER) if index < 1000] == list(range(120))


async def test_an_author_may_say_it_again_and_is_forwarded(autojump_clock, nodes) -> None:
    raw = nodes["worker"].board.sealed(committed(WORKER))
    board = nodes["trainer"].board
    assert board._accept(WORKER.address, raw) and board._accept(WORKER.address, raw)
    assert not board._accept(FLOODER.address, raw)  # the control
    assert not board._accept(STRANGER.address, raw)
    assert board.counts["RolloutCommitted"] == 1


async def test_a_second_encoding_of_an_envelope_is_refused(autojump_clock, nodes) -> None:
    raw = nodes["worker"].board.sealed(committed(WORKER))
    payload, signature = msgspec.msgpack.decode(raw)
    longer = b"\x92\xc6" + len(payload).to_bytes(4, "big") + payload + b"\xc4\x41" + signature
    assert msgspec.msgpack.decode(longer, type=Envelope) == msgspec.msgpack.decode(raw, type=Envelope)
    await say(nodes["flooder"], longer)
    assert by(nodes["trainer"], WORKER) == [] and nodes["trainer"].board.counts["refused"] == 1
    await say(nodes["flooder"], raw)  # the control: it may be handed on as it is
    assert by(nodes["trainer"], WORKER) == [0]


def _saying(key: NodeKey, number: int) -> VerdictIssued:
    return signed(msgspec.structs.replace(judged(key), detail=str(number)), key, DOMAIN)


async def test_a_kind_that_its_publisher_may_not_say_is_charged_as_somebody_elses(autojump_clock, nodes) -> None:
    forged = sealed(nodes["flooder"], *(_saying(FLOODER, n) for n in range(200)))
    await say(nodes["flooder"], *forged)
    counts = nodes["trainer"].board.counts
    assert counts["over_budget.else"] > 0 and counts["over_budget.VerdictIssued"] == 0
    assert counts["refused"] <= ELSE[1]
    said = sealed(nodes["validator"], *(_saying(VALIDATOR, n) for n in range(200)))
    await say(nodes["validator"], *said)
    assert counts["VerdictIssued"] == 200


async def test_evidence_stays_pinned_through_a_flood_by_its_author(autojump_clock, nodes) -> None:
    board = nodes["trainer"].board
    evidence = sealed(nodes["flooder"], committed(FLOODER, 10**6), beat(5))
    board.pin(evidence)
    await say(nodes["flooder"], *sealed(nodes["flooder"], beat(9), *(committed(FLOODER, n) for n in range(500))))
    await trio.sleep(board.catching_up.every)
    assert 10**6 in by(nodes["trainer"], FLOODER)
    beats = [one.message.count for one in board.messages(Heartbeat) if one.author == FLOODER.address]
    assert beats == [5, 9]
    board.pin([b"nonsense"])
    assert board.counts["refused"] == 1


async def test_a_newcomer_is_told_the_honest_although_one_flooded(autojump_clock, nodes, monkeypatch) -> None:
    trainer = nodes["trainer"]
    honest = sealed(nodes["worker"], *(committed(WORKER, n) for n in range(8)))
    await say(nodes["worker"], *honest)
    await say(nodes["flooder"], *sealed(nodes["flooder"], *(committed(FLOODER, n) for n in range(BURST))))
    monkeypatch.setattr(catchup, "MAX_CATCH_UP_BYTES", 24 * len(honest[0]))
    answer = await trainer.board.catching_up.answer(STRANGER.address, msgspec.msgpack.encode(CatchUp([], 0)))
    told = msgspec.msgpack.decode(answer, type=list[bytes])
    assert {*honest} < {*told} and sum(map(len, told)) <= catchup.MAX_CATCH_UP_BYTES
    for at in (0, 7, catchup.NAME - catchup.SHORT):
        known = [catchup.name_of(raw)[at : at + catchup.SHORT] for raw in told]
        answer = await trainer.board.catching_up.answer(STRANGER.address, msgspec.msgpack.encode(CatchUp(known, at)))
        assert not {*told} & {*msgspec.msgpack.decode(answer, type=list[bytes])}


@pytest.mark.parametrize("at", [-1, catchup.NAME - catchup.SHORT + 1, 2**40])
async def test_a_question_names_a_part_that_names_have(at: int, autojump_clock, nodes) -> None:
    with pytest.raises(MalformedMessage):
        await nodes["trainer"].board.catching_up.answer(STRANGER.address, msgspec.msgpack.encode(CatchUp([], at)))


async def test_of_two_messages_whose_names_agree_in_a_part_both_are_kept_and_handed_over(
    autojump_clock, nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight equal bytes are some hours of a few cores; what was made to look alike is evidence that nobody hands on."""
    true = catchup.name_of
    for module in (board_module, catchup):
        monkeypatch.setattr(module, "name_of", lambda raw: bytes(catchup.SHORT) + true(raw)[catchup.SHORT :])
    board = nodes["worker"].board
    for number in range(2):
        await board.post(committed(WORKER, number))
    asked = CatchUp([catchup.name_of(board.messages(RolloutCommitted)[0].raw)[:8]], 0)
    assert (
        board_module.msgspec.msgpack.decode(
            await board.catching_up.answer(STRANGER.address, msgspec.msgpack.encode(asked))
        )
        == []
    ), "the control: in that part both are one"
    other = CatchUp([catchup.name_of(board.messages(RolloutCommitted)[0].raw)[9:17]], 9)
    answer = await board.catching_up.answer(FLOODER.address, msgspec.msgpack.encode(other))
    assert len(msgspec.msgpack.decode(answer)) == 1


async def test_a_peer_is_answered_only_so_often(autojump_clock, nodes) -> None:
    board, asked = nodes["trainer"].board, msgspec.msgpack.encode(CatchUp([], 0))
    await nodes["trainer"].board.post(POLICY)
    answers = [await board.catching_up.answer(FLOODER.address, asked) for _ in range(100)]
    empty = msgspec.msgpack.encode([])
    assert answers[0] != empty and answers[-1] == empty and board.counts["over_budget.asked"] > 50
    assert await board.catching_up.answer(WORKER.address, asked) != empty


async def test_what_was_refused_is_looked_at_again_when_it_is_handed_over_later(autojump_clock, nodes) -> None:
    board = nodes["trainer"].board
    early = seal(STRANGER, DOMAIN, committed(STRANGER))
    await board.catching_up.take(FLOODER.address, [early])
    board._authority.joined(STRANGER.address, "")  # type: ignore[attr-defined]
    await board.catching_up.take(FLOODER.address, [early])
    assert by(nodes["trainer"], STRANGER) == [], "who repeats it at once has it looked at no sooner"
    await trio.sleep(21.0)
    await board.catching_up.take(FLOODER.address, [early])
    assert by(nodes["trainer"], STRANGER) == [0]


async def test_a_peer_that_hands_over_rubbish_is_not_listened_to_for_long(autojump_clock, nodes) -> None:
    board = nodes["trainer"].board
    rubbish = [b"rubbish %d" % n for n in range(5000)]
    good = nodes["worker"].board.sealed(committed(WORKER))
    await board.catching_up.take(FLOODER.address, [*rubbish, good])
    assert board.counts["refused"] == catchup.MAX_REFUSED and by(nodes["trainer"], WORKER) == []
    await board.catching_up.take(FLOODER.address, [*rubbish[: catchup.MAX_REFUSED], good])
    assert board.counts["refused"] == catchup.MAX_REFUSED  # what was refused a moment ago costs nothing
    assert by(nodes["trainer"], WORKER) == [0]


async def test_what_one_carries_must_be_of_the_kind_that_was_meant(autojump_clock, nodes) -> None:
    board = nodes["trainer"].board
    raw = nodes["worker"].board.sealed(committed(WORKER))
    assert board.opened(raw, RolloutCommitted).message.commitment.index == 0
    for kind in (VerdictIssued, Heartbeat):
        with pytest.raises(MalformedMessage):
            board.opened(raw, kind)
    assert board.opened(raw).author == WORKER.address


async def test_nothing_that_a_stranger_sends_raises(autojump_clock, nodes) -> None:
    board: Board = nodes["trainer"].board
    verdict = nodes["validator"].board.sealed(judged(VALIDATOR))
    commitment = nodes["worker"].board.sealed(committed(WORKER))
    honest = [
        verdict,
        commitment,
        nodes["validator"].board.sealed(DisputeRaised(pool=1, first=verdict, second=verdict)),
        nodes["trainer"].board.sealed(VerdictRequested(pool=1, commitment=commitment)),
        nodes["trainer"].board.sealed(POLICY),
        nodes["worker"].board.sealed(beat()),
    ]
    source = random.Random(0)
    publishers = (TRAINER, WORKER, VALIDATOR, FLOODER, STRANGER)
    for count in range(2000):
        raw = mutated(source.choice(honest), source, NUMBERS)
        board._accept(source.choice(publishers).address, raw)
        if count % 100 == 0:
            await board.catching_up.take(FLOODER.address, [raw, b"", b"\xc0"])
            await trio.sleep(60)
        try:
            await board.catching_up.answer(FLOODER.address, raw)
        except ProtocolError:
            pass
    assert board.counts["refused"] > 100
    for raw, key in zip(honest, (VALIDATOR, WORKER, VALIDATOR, TRAINER, TRAINER, WORKER), strict=True):
        assert board._accept(key.address, raw)  # the control


def said(key: NodeKey, *verdicts: VerdictIssued, seals: int = 0) -> ValidatorBatch:
    works = (number.to_bytes(32) for number in range(seals))
    return ValidatorBatch(pool=1, seals=tuple(Seal(one, one) for one in works), carried=verdicts)


async def test_a_verdict_of_somebody_else_in_a_message_refuses_the_whole_of_it(autojump_clock, nodes) -> None:
    """The control: its author's own verdict beside the same seal."""
    trainer, validator = nodes["trainer"], nodes["validator"]
    await say(validator, *sealed(validator, said(VALIDATOR, judged(FLOODER), seals=1)))
    assert trainer.board.messages(ValidatorBatch) == [] and trainer.board.messages(VerdictIssued) == []
    assert trainer.board.counts["refused"] == 1
    await say(validator, *sealed(validator, said(VALIDATOR, judged(VALIDATOR), seals=1)))
    (one,) = trainer.board.messages(VerdictIssued)
    assert one.author == VALIDATOR.address and len(trainer.board.messages(ValidatorBatch)) == 1
    assert trainer.board.opened(one.raw, VerdictIssued) == one, "it is evidence without what carried it"


@pytest.mark.parametrize("at_once", [1, 32])
async def test_who_says_much_in_one_message_saves_nothing(autojump_clock, nodes, at_once: int) -> None:
    trainer, validator = nodes["trainer"], nodes["validator"]
    many = int(ENTRIES[Seal][1])
    for start in range(0, 2 * many, at_once):
        works = [number.to_bytes(32) for number in range(start, start + at_once)]
        message = ValidatorBatch(pool=1, seals=tuple(Seal(one, one) for one in works))
        await say(validator, validator.board.sealed(message))
    heard = sum(len(one.message.seals) for one in trainer.board.messages(ValidatorBatch))
    assert heard == many and trainer.board.counts["muted"] == (at_once == 1)


async def test_what_waits_to_be_said_goes_in_one_message_when_the_first_of_it_must(autojump_clock, nodes) -> None:
    trainer, board = nodes["trainer"], nodes["validator"].board
    verdict = judged(VALIDATOR)
    heard, late = trainer.board.subscribe(VerdictIssued), Seal(bytes(32), bytes(32))
    board.say([verdict], within=5.0)
    board.say([late], within=60.0)
    board.say([Seal(bytes(32), b"\x01" * 32)], within=1.0)
    assert board.withdraw(late) and not board.withdraw(late)
    await trio.sleep(0.9)
    assert trainer.board.messages(ValidatorBatch) == []
    await trio.sleep(0.2)
    (one,) = trainer.board.messages(ValidatorBatch)
    assert one.message.carried == (verdict,) and [seal.seal[0] for seal in one.message.seals] == [1]
    assert (await heard.receive()).message == verdict
    newcomer = trainer.board.subscribe(VerdictIssued)
    assert (await newcomer.receive()).message == verdict
