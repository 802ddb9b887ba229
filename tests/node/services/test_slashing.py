"""What a key signed against itself, and what a quorum says, is carried to the chain: by whose turn it is, once."""

from typing import Any

import msgspec
import pytest
import trio

from node.chain.cases import (
    Case,
    CommitmentContradiction,
    FalseLeaf,
    FileCase,
    RootContradiction,
    TableContradiction,
    VerdictContradiction,
)
from node.chain.errors import ChainError, Reverted
from node.services.court.slashing import Slashing
from node.services.judging.judge import Validator
from node.swarm import jury
from node.swarm.facts import LeavesRead
from node.swarm.jury import Jury
from node.swarm.vote_set import FileState
from protocol.checks import Reason
from protocol.earnings import Accepted, Leaf, leaves_of
from protocol.identity import Address, address_bytes
from protocol.lots import pack_groups
from protocol.manifest import PolicyStatement
from protocol.messages import (
    EarningsVote,
    EpochRootSigned,
    StepVerdict,
    VerdictIssued,
    VerdictRechecked,
    signed,
)
from protocol.pages import read_page, verify
from protocol.statements import (
    Earnings,
    EpochRoot,
    Rechecked,
    Verdict,
    VerdictOutcome,
    WorkCommitment,
    sign,
    signer_of,
    work_id,
)
from protocol.values import mean_logprobs, reward_tags
from tests.attacks.validators.court import (
    DOMAIN,
    GROUPS,
    POOL,
    SIZE,
    TRAINER,
    VALIDATORS,
    WORKER,
    Court,
    RecordingJudge,
    policy_root,
    root_of,
    truth,
)
from tests.words import stating

STEP_PATIENCE = 60.0
TURN = 10.0

LIAR = VALIDATORS[0]
EVERYBODY = (len(VALIDATORS) + 1) * TURN
"""Seconds in which each validator has had its turn."""


class Watching(Validator):
    """Slashes, and judges nothing."""

    async def run(self) -> None:
        await self._slashing.run()


class Chain(RecordingJudge):
    """Checks signatures as the contract does, and tells everybody of what was done. unfit: without their stake."""

    def __init__(self, court: Court) -> None:
        super().__init__()
        self._court = court
        self.calls: list[tuple[float, Address, str]] = []
        self.bitmaps: list[int] = []
        self.unfit: set[Address] = set()
        self.fails = 0
        self.overturned = False

    async def carry(self, case: Case) -> None:
        if isinstance(case, FileCase):
            await self._slash(case)
            return
        author = signer_of(DOMAIN, case.first, case.first_signature)
        assert case.first != case.second
        match case:
            case CommitmentContradiction():
                what = "two commitments"
                assert (case.first.policy_root, case.first.index) == (case.second.policy_root, case.second.index)
                assert signer_of(DOMAIN, case.second, case.second_signature) == author == case.first.node
            case VerdictContradiction():
                what = "two verdicts"
            case RootContradiction():
                what = "two roots"
                assert (case.first.epoch, case.first.number) == (case.second.epoch, case.second.number)
            case TableContradiction():
                what = "two tables"
                assert (case.first.epoch, case.first.number) == (case.second.epoch, case.second.number)
            case FalseLeaf():
                what = "a false leaf"
                leaf = Leaf(address_bytes(case.node), case.work, case.units)
                assert verify(case.first.root, leaf.leaf(), case.proof)
                assert case.second.work == case.work and case.second.outcome != VerdictOutcome.ACCEPT
            case _:
                raise AssertionError(case)
        self.calls.append((trio.current_time(), author, what))
        if self.fails:
            self.fails -= 1
            raise ChainError("no answer", "the endpoint is down", "wait")
        await super().carry(case)
        self._evict(author)

    async def _slash(self, case: FileCase) -> None:
        commitment = case.commitment
        self.calls.append((trio.current_time(), commitment.node, "slash"))
        assert signer_of(DOMAIN, commitment, case.signature) == commitment.node
        if self.overturned:
            raise Reverted("slash", "AlreadyJudged", {"root": commitment.file_root})
        place = {name: getattr(commitment, name) for name in commitment.__struct_fields__}
        judges = []
        for vote in case.votes:
            kind = Rechecked if vote.rechecked else Verdict
            said = kind(**place, outcome=VerdictOutcome.SLASH, reason=case.reason, values=vote.values)
            judges.append(signer_of(DOMAIN, said, vote.signature))
            if judges[-1] in self.unfit:
                raise Reverted("slash", "ValidatorUnfit", {"validator": judges[-1]})
        assert len(set(judges)) == len(judges) >= 2 and {*judges} <= {key.address for key in VALIDATORS}
        self.bitmaps.append(sum(1 << i for i, vote in enumerate(case.votes) if vote.rechecked))
        await super().carry(case)
        self._evict(commitment.node)

    def _evict(self, node: Address) -> None:
        for seat in [self._court.trainer, *self._court.workers, *self._court.seats]:
            seat.membership.evict(node)


def stated(step: int, state: bytes = b"\1" * 32) -> PolicyStatement:
    return PolicyStatement(POOL, 0, step, 0, policy_root(step - 1), policy_root(step), bytes(32), state)


class Bench:
    """Three validators that slash and judge nothing, over one chain; what they say is said by the test."""

    def __init__(self) -> None:
        self.court = Court([Watching, Watching, Watching])
        self.chain = Chain(self.court)
        for validator in self.court.validators:
            validator._slashing = Slashing(validator._context, self.chain)  # type: ignore[attr-defined]

    def verdict(self, work: Any, key: Any, outcome: int, reason: int = 0, *, again: bool = False, **more: Any) -> Any:
        """again: in a dispute."""
        fields = {name: getattr(work, name) for name in work.__struct_fields__}
        rewards, logprobs = truth(work.file_root)
        values: Any = {
            "window": 0,
            "rewards": reward_tags(rewards, SIZE, ()),
            "checked": pack_groups(range(GROUPS), GROUPS),
        }
        values["logprobs"] = mean_logprobs({group: [logprobs[group]] for group in range(GROUPS)})
        kind: Any = VerdictRechecked if again else VerdictIssued
        word = (Rechecked if again else Verdict)(**fields, outcome=outcome, reason=reason)
        said = {"pool": POOL, "verdict": word, "signature": b""} | (values if outcome == VerdictOutcome.ACCEPT else {})
        return signed(kind(**said | more), key, DOMAIN)

    async def say(self, key: Any, message: Any) -> None:
        await self.court.seats[VALIDATORS.index(key)].board.post(message)
        await trio.sleep(0.5)

    async def root(self, key: Any, *works: Accepted, number: int = 1, total: int | None = None) -> None:
        """Signed, heard, and read by every validator."""
        leaves, files = leaves_of(works)
        units = sum(one.units for one in works)
        said = EpochRoot(POOL, 0, number, leaves.root(), units if total is None else total, bytes(32))
        message = EpochRootSigned(pool=POOL, statement=said, signature=sign(key, DOMAIN, said))
        await self.say(key, message)
        works_files = zip(files[: len(leaves.pages)], leaves.pages, strict=True)
        rows = [row for file, page in works_files for row in read_page(file, page, Leaf)]
        for seat in self.court.seats:
            seat.context.facts.tell([LeavesRead(key.address, message, tuple(rows))])
        await trio.sleep(0.5)

    async def commit(self, index: int = 0) -> WorkCommitment:
        await self.court.commit(index=index)
        await trio.sleep(0.5)
        return WorkCommitment(POOL, WORKER.address, policy_root(0), index, root_of(index=index), 100)

    async def state(self, upto: int) -> None:
        """The trainer states its steps, each once."""
        known = self.court.trainer.jury.state.policies.newest_step
        for step in range(known + 1, upto + 1):
            await self.court.trainer.board.post(stating(stated(step), TRAINER, DOMAIN))
            await trio.sleep(0.5)

    async def judge_step(self, key: Any, outcome: int, reason: int = 0, step: int = 3) -> None:
        """Of a step that the trainer stated."""
        await self.state(step)
        statement = stated(step)
        word = sign(TRAINER, DOMAIN, statement.commitment(TRAINER.address))
        draft = StepVerdict(statement, TRAINER.address, word, outcome, reason, b"", pool=POOL, detail=f"seen by {key}")
        signature = sign(key, DOMAIN, draft.verdict)
        await self.say(key, msgspec.structs.replace(draft, signature=signature))

    def done(self) -> list[tuple[Address, str]]:
        """What reached the chain, without when."""
        return [(node, what) for _, node, what in self.chain.calls]


def of(work: WorkCommitment) -> Accepted:
    return Accepted(POOL, work.node, work.epoch, work_id(work), work.units)


async def speak(bench: Bench, work: WorkCommitment, what: str) -> None:
    """The liar says two things about one work, that other ones say about two."""
    accepts, refuses = (
        bench.verdict(work, LIAR, outcome) for outcome in (VerdictOutcome.ACCEPT, VerdictOutcome.REJECT)
    )
    others = [Accepted(POOL, WORKER.address, 0, bytes([n]) * 32, 9) for n in range(5)]
    match what:
        case "two verdicts":
            await bench.say(LIAR, accepts)
            await bench.say(LIAR, bench.verdict(work, LIAR, VerdictOutcome.ACCEPT, rewards=bytes(16 * GROUPS)))
        case "refused, then named":
            await bench.say(LIAR, refuses)
            await bench.root(LIAR, of(work), *others, number=work.index + 1)
        case "named, then refused":
            await bench.root(LIAR, *others, of(work), number=work.index + 1)
            await bench.say(LIAR, refuses)
        case "two roots":
            await bench.root(LIAR, of(work), number=work.index + 1)
            await bench.root(LIAR, of(work), *others, number=work.index + 1)
        case "two totals":
            await bench.root(LIAR, of(work), number=work.index + 1)
            await bench.root(LIAR, of(work), number=work.index + 1, total=7)
        case "two tables":
            for total in (7, 8):
                table = Earnings(POOL, 0, work.index + 1, bytes(32), total, bytes(32))
                signature = sign(LIAR, DOMAIN, table)
                said = EarningsVote(pool=POOL, earnings=table, table=bytes(32), size=9, signature=signature)
                await bench.say(LIAR, said)


LIES = {
    "two verdicts": "two verdicts",
    "refused, then named": "a false leaf",
    "named, then refused": "a false leaf",
    "two roots": "two roots",
    "two totals": "two roots",
    "two tables": "two tables",
}


@pytest.mark.parametrize("what", LIES)
async def test_what_a_validator_signed_against_itself_is_carried_once_by_whose_turn_it_is(
    autojump_clock: Any, what: str
) -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        await bench.court.open(nursery)
        work, other = await bench.commit(), await bench.commit(1)
        start = trio.current_time()
        await speak(bench, work, what)
        await speak(bench, other, what)
        await trio.sleep(EVERYBODY)
        assert bench.done() == [(LIAR.address, LIES[what])]
        assert bench.chain.calls[0][0] - start < TURN, "who is first waits for nobody"
        nursery.cancel_scope.cancel()


async def test_what_repeats_or_agrees_is_no_evidence(autojump_clock: Any) -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        await bench.court.open(nursery)
        work, other = await bench.commit(), await bench.commit(1)
        for _ in range(2):
            await bench.say(LIAR, bench.verdict(work, LIAR, VerdictOutcome.ACCEPT))
            await bench.say(LIAR, bench.verdict(other, LIAR, VerdictOutcome.REJECT))
            await bench.root(LIAR, of(work))
            await bench.root(LIAR, of(work), number=2)  # once more, with a number of its own
            await bench.root(VALIDATORS[1], of(other))  # somebody else's rejection binds it to nothing
        await bench.say(LIAR, bench.verdict(work, LIAR, VerdictOutcome.REJECT, again=True))  # found in a dispute
        await trio.sleep(EVERYBODY)
        assert bench.done() == []
        nursery.cancel_scope.cancel()


async def test_evidence_that_the_chain_does_not_answer_is_carried_by_the_next_one(autojump_clock: Any) -> None:
    bench = Bench()
    bench.chain.fails = 3
    async with trio.open_nursery() as nursery:
        await bench.court.open(nursery)
        work = await bench.commit()
        await speak(bench, work, "two roots")
        await trio.sleep(2 * EVERYBODY)
        assert bench.done() == [(LIAR.address, "two roots")] * 4
        nursery.cancel_scope.cancel()


async def test_a_slash_shows_verdicts_and_second_looks_as_what_they_are(autojump_clock: Any) -> None:
    bench = Bench()
    one, two, three = VALIDATORS
    async with trio.open_nursery() as nursery:
        await bench.court.open(nursery)
        work = await bench.commit()
        await bench.say(one, bench.verdict(work, one, VerdictOutcome.SLASH, Reason.WRONG_DRAW))
        await bench.say(two, bench.verdict(work, two, VerdictOutcome.ACCEPT))
        assert bench.court.trainer.jury.state.vote_set.state(work_id(work)) is FileState.DISPUTED
        for key in (two, three):
            await bench.say(key, bench.verdict(work, key, VerdictOutcome.SLASH, Reason.WRONG_DRAW, again=True))
        await trio.sleep(2 * EVERYBODY)
        assert bench.chain.slashed == [(WORKER.address, Reason.WRONG_DRAW, 2)]  # who accepted is not believed any more
        assert bench.chain.bitmaps[0].bit_count() == 1
        assert bench.done() == [(WORKER.address, "slash")], "who is next sees that it was done"
        nursery.cancel_scope.cancel()


async def test_one_judge_without_its_stake_does_not_spoil_the_signatures_of_the_others(autojump_clock: Any) -> None:
    bench = Bench()
    bench.chain.unfit = {LIAR.address}
    async with trio.open_nursery() as nursery:
        await bench.court.open(nursery)
        work = await bench.commit()
        for key in VALIDATORS:
            await bench.say(key, bench.verdict(work, key, VerdictOutcome.SLASH, Reason.WRONG_DRAW))
        await trio.sleep(2 * EVERYBODY)
        assert bench.chain.slashed == [(WORKER.address, Reason.WRONG_DRAW, 2)]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("step", [3, 4], ids=["one step", "two steps"])
async def test_two_statements_of_the_trainer_about_one_step_are_carried_once(autojump_clock: Any, step: int) -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        await bench.court.open(nursery)
        await bench.state(3)
        other = stating(stated(step, b"\2" * 32), TRAINER, DOMAIN)
        await bench.court.trainer.board.post(other)
        await trio.sleep(EVERYBODY)
        told = [(TRAINER.address, "two commitments")] if step == 3 else []
        assert bench.done() == told
        nursery.cancel_scope.cancel()


async def test_a_quorum_that_saw_one_proven_fault_in_a_step_takes_the_trainers_stake(autojump_clock: Any) -> None:
    """Its verdicts go to the contract as those on a file do, once, when the third has had its time to look."""
    bench = Bench()
    one, two, _ = VALIDATORS
    async with trio.open_nursery() as nursery:
        await bench.court.open(nursery)
        await bench.judge_step(one, VerdictOutcome.SLASH, Reason.STATE)
        await trio.sleep(STEP_PATIENCE)
        assert bench.done() == [], "the control: one of two"
        await bench.judge_step(two, VerdictOutcome.SLASH, Reason.STATE)
        since = trio.current_time()
        await trio.sleep(STEP_PATIENCE + 3 * TURN)
        assert bench.chain.slashed == [(TRAINER.address, Reason.STATE, 2)]
        assert bench.done() == [(TRAINER.address, "slash")] and bench.chain.calls[0][0] - since >= STEP_PATIENCE - 3
        nursery.cancel_scope.cancel()


async def test_all_have_spoken_of_a_step_and_nobody_waits(autojump_clock: Any) -> None:
    bench = Bench()
    async with trio.open_nursery() as nursery:
        await bench.court.open(nursery)
        since = trio.current_time()
        for key, reason in zip(VALIDATORS, (Reason.STATE, Reason.RULE, Reason.RULE), strict=True):
            await bench.judge_step(key, VerdictOutcome.SLASH, reason)
        await trio.sleep(3 * TURN)
        assert bench.chain.slashed == [(TRAINER.address, Reason.RULE, 2)]
        assert bench.chain.calls[0][0] - since < 3 * TURN
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "said",
    [
        [(VerdictOutcome.REJECT, Reason.DISTANCE), (VerdictOutcome.REJECT, Reason.DISTANCE)],
        [(VerdictOutcome.SLASH, Reason.STATE), (VerdictOutcome.SLASH, Reason.RULE)],
        [(VerdictOutcome.SLASH, Reason.STATE), (VerdictOutcome.REJECT, Reason.DISTANCE)],
        [(VerdictOutcome.SLASH, Reason.DISTANCE), (VerdictOutcome.SLASH, Reason.DISTANCE)],
    ],
    ids=["measured, not proven", "two faults", "one proof", "a stake for what is measured"],
)
async def test_what_a_quorum_did_not_prove_alike_ends_the_trust_and_takes_no_stake(
    autojump_clock: Any, said: list[tuple[VerdictOutcome, Reason]]
) -> None:
    """The control is above."""
    bench = Bench()
    async with trio.open_nursery() as nursery:
        await bench.court.open(nursery)
        for key, (outcome, reason) in zip(VALIDATORS, said, strict=False):
            await bench.judge_step(key, outcome, reason)
        await trio.sleep(STEP_PATIENCE + EVERYBODY)
        assert bench.done() == [] and bench.court.trainer.jury.state.policies.equivocation is not None
        nursery.cancel_scope.cancel()


async def test_what_a_quorum_proved_is_carried_after_a_restart_and_not_again_once_it_was_overturned(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    one, two, _ = VALIDATORS
    async with trio.open_nursery() as nursery:
        await bench.court.open(nursery)
        for key in (one, two):
            await bench.judge_step(key, VerdictOutcome.SLASH, Reason.STATE)
        await trio.sleep(1)
        seat = bench.court.seats[2]
        again = Jury(seat.board, seat.membership, bench.court.run, POOL, seat.context.journal)
        await again._recall()
        opened: list[bytes] = []
        verify = jury.open_envelope
        monkeypatch.setattr(jury, "open_envelope", lambda *of: (opened.append(of[2]), verify(*of))[1])
        for _ in range(3):
            assert again.step_verdicts(DOMAIN, 0).keys() == {one.address, two.address}
        assert len(opened) == 2, "who asks twice a second verifies no signature twice"
        assert again.state.policies.equivocation == seat.jury.state.policies.equivocation and again.state.distrust
        bench.chain.overturned = True
        await trio.sleep(STEP_PATIENCE + EVERYBODY)
        tried = bench.done()
        assert tried and {what for _, what in tried} == {"slash"}
        await trio.sleep(EVERYBODY)
        assert bench.done() == tried, "the contract says that it was judged: nobody tries again"
        nursery.cancel_scope.cancel()
