"""The quorum's hand: carries what validators agree on to the chain, and nothing that one of them still disputes; and
what one key signed against itself: two commitments for one slot, two verdicts on one work, two roots with one number,
a leaf of a root beside a word against the work.

A trainer's step is judged like a file: a quorum's verdicts of one proven fault cost the stake (`Court.slash` takes them
as they stand), two statements about one step as two commitments do.

An objective fault needs the pool's quorum, and that every living validator has spoken or had the time to. A conviction
by a worker's whole record needs, besides, two validators that look with different kinds of engines: the same arithmetic
on two machines sees twice the same (protocol.engines).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import structlog
import trio

from node.bounded_dict import BoundedDict
from node.chain.cases import (
    Case,
    CommitmentContradiction,
    Contradiction,
    FalseLeaf,
    FileCase,
    RootContradiction,
    TableContradiction,
    VerdictContradiction,
    Vote,
)
from node.chain.errors import InsufficientFunds, Reverted
from node.changes import Bell
from node.services.context import Context
from node.services.court.turns import seconds_to_wait
from node.state.kept import cached
from node.swarm.facts import JudgeContradicted, LeavesRead
from node.swarm.register import RegisteredWork, WorkId
from node.swarm.vote_set import FileState
from protocol.checks import OBJECTIVE, PUBLIC_HEARSAY, STEP_PROOF, Reason
from protocol.earnings import Leaf, proof_of
from protocol.engines import kind
from protocol.errors import IntellectError
from protocol.identity import Address, address_from_bytes
from protocol.messages import (
    EarningsVote,
    EpochRootSigned,
    PolicyAnnounced,
    Signed,
    StepVerdict,
    VerdictIssued,
    VerdictRechecked,
    of_kind,
    open_envelope,
)
from protocol.statements import Earnings, EpochRoot, Rechecked, Verdict, VerdictOutcome, WorkCommitment, work_id

log = structlog.get_logger()
PENDING = 1024


class OnChainCourt(Protocol):
    """The part of node.chain that executes a quorum's verdict, and takes what a key signed against itself."""

    async def carry(self, case: Case) -> object: ...


class Slashing:
    """Executes verdicts until cancelled."""

    def __init__(self, context: Context, court: OnChainCourt) -> None:
        self._turn_seconds = 1.0
        self._context = context
        self._court = court
        self._register = context.state.register
        self._pending: dict[Address, BoundedDict[tuple[WorkId, int], Verdict]] = {}
        """By who accuses: nobody crowds out others."""
        self._executed: set[Address] = set()
        self._evidence: dict[Address, tuple[str, Contradiction]] = {}
        """By whom it convicts: the log's word, and one piece of it, which is enough for a key."""
        self._evidenced: set[Address] = set()
        self._news = Bell()
        self._terms: set[int] = set()
        self._tallies: dict[Address, BoundedDict[tuple[type, int, int], tuple[EpochRoot | Earnings, bytes]]] = {}
        self._leaves: dict[Address, BoundedDict[bytes, tuple[LeavesRead, dict[WorkId, Leaf]]]] = {}
        self._refused: dict[Address, BoundedDict[WorkId, tuple[Verdict, bytes]]] = {}

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._register.follow_rivals(self._on_rivals)
            nursery.start_soon(self._collect)
            nursery.start_soon(self._context.handle, self._on_contradiction, JudgeContradicted)
            nursery.start_soon(self._context.handle, self._on_recheck, VerdictRechecked)
            nursery.start_soon(self._collect_tallies)
            nursery.start_soon(self._collect_leaves)
            while True:
                for term in self._context.state.policies.equivocations.keys() - self._terms:
                    self._terms.add(term)
                    # An equivocation is two statements, or a quorum's verdicts: each of these returns where it is the
                    # other.
                    self._on_fork(term)
                    nursery.start_soon(self._execute_step, term)
                for key in self._evidence.keys() - self._evidenced:
                    self._evidenced.add(key)
                    nursery.start_soon(self._report, key, *self._evidence.pop(key))
                for verdict in self._ripe():
                    # Before it is carried: one stake is taken once, however many files it could be taken for.
                    self._executed.add(verdict.node)
                    nursery.start_soon(self._execute, verdict)
                # What is pending ripens by what others say; an equivocation is told to nobody.
                await self._news.wait(self._turn_seconds)

    # what a key signed against itself

    def _convict(self, key: Address, what: str, case: Contradiction) -> None:
        # One piece is enough for a key, so the first stays and a flood of pairs costs nothing.
        if key not in self._evidence:
            self._evidence[key] = what, case
            self._news.ring()

    def _on_rivals(self, one: RegisteredWork, other: RegisteredWork) -> None:
        """Two different commitments for one slot."""
        first, second = one.signed.message, other.signed.message
        pair = first.commitment, first.signature, second.commitment, second.signature
        self._convict(one.node, "worker.equivocated", CommitmentContradiction(*pair))

    def _on_fork(self, term: int) -> None:
        """Two statements of the trainer about one step: to the chain they are two commitments of one slot."""
        domain, pool = self._context.domain, self._context.pool
        evidence = self._context.state.policies.equivocations[term].evidence
        opened = cached("an equivocation's evidence", lambda: [open_envelope(domain, pool, one) for one in evidence])
        if opened is None:
            return
        # Evidence of another kind: `_execute_step` carries it.
        if not all(isinstance(one.message, PolicyAnnounced) for one in opened):
            return  # a quorum convicted it
        first, second = (of_kind(one, PolicyAnnounced) for one in opened)
        one, other = first.message.statement, second.message.statement
        if (one.term, one.step) != (other.term, other.step):
            log.warning("trainer.fork_not_for_the_chain", why="the two are not signed statements about one step")
            return
        words = one.commitment(first.author), first.message.signature, other.commitment(second.author)
        case = CommitmentContradiction(*words, second.message.signature)
        self._convict(first.author, "trainer.forked", case)

    def _on_contradiction(self, one: JudgeContradicted) -> None:
        """Two different verdicts on one work."""
        pair = one.first.verdict, one.first.signature, one.second.verdict, one.second.signature
        self._convict(one.author, "validator.contradicted_itself", VerdictContradiction(*pair))

    async def _collect_tallies(self) -> None:
        """Two different roots, or tables, of one epoch with one number, by somebody who has a seat to lose."""
        roots = 256  # roots and tables that one validator signed
        async for signed in self._context.facts.subscribe(EpochRootSigned, EarningsVote):
            if not self._context.membership.may_validate(signed.author):
                continue
            message = signed.message
            said = message.earnings if isinstance(message, EarningsVote) else message.statement
            known = self._tallies.setdefault(signed.author, BoundedDict(roots))
            first, signature = known.setdefault((type(said), said.epoch, said.number), (said, message.signature))
            if first == said:
                continue
            pair: tuple[Any, ...] = first, signature, said, message.signature
            case = TableContradiction(*pair) if isinstance(said, Earnings) else RootContradiction(*pair)
            self._convict(signed.author, "validator.signed_two_words", case)

    async def _collect_leaves(self) -> None:
        """A leaf beside a word of the same key against the work, whichever came first."""
        async for read in self._context.facts.subscribe(LeavesRead):
            works = {leaf.work: leaf for leaf in read.leaves}
            # Roots of one validator whose leaves are kept in mind.
            self._leaves.setdefault(read.author, BoundedDict(4))[read.said.signature] = read, works
            refused: Mapping[WorkId, tuple[Verdict, bytes]] = self._refused.get(read.author, {})
            if (work := next((one for one in refused if one in works), None)) is not None:
                await self._on_leaf(read, works[work], *refused[work])

    async def _on_leaf(self, read: LeavesRead, leaf: Leaf, verdict: Verdict, signature: bytes) -> None:
        path = await trio.to_thread.run_sync(proof_of, read.leaves, leaf)
        pair = read.said.statement, read.said.signature, verdict, signature
        case = FalseLeaf(*pair, address_from_bytes(leaf.node), leaf.work, leaf.units, path)
        self._convict(read.author, "validator.named_what_it_refused", case)

    async def _report(self, key: Address, what: str, case: Contradiction) -> None:
        log.warning(what, node=key, evidence=case.name)
        await trio.sleep(seconds_to_wait(self._context, key.encode()))
        if not await self._carry(key, lambda unfit: case):
            # The next piece of evidence against this key may be carried.
            self._evidenced.discard(key)

    # what a quorum says

    async def _collect(self) -> None:
        async for signed in self._context.facts.subscribe(VerdictIssued):
            message = signed.message
            if message.verdict.outcome != VerdictOutcome.ACCEPT:
                verdict, signature, work = message.verdict, message.signature, work_id(message.verdict)
                most = 8192  # works that one validator spoke against
                refused = self._refused.setdefault(signed.author, BoundedDict(most))
                refused.setdefault(work, (verdict, signature))
                for read, works in list(self._leaves.get(signed.author, {}).values()):
                    if work in works:
                        await self._on_leaf(read, works[work], verdict, signature)
            self._consider(signed.author, message.verdict)

    def _on_recheck(self, signed: Signed[VerdictRechecked]) -> None:
        self._consider(signed.author, signed.message.verdict)

    def _consider(self, author: Address, verdict: Verdict) -> None:
        # What one validator's arithmetic shows by itself takes no stake.
        proven = verdict.reason in OBJECTIVE or verdict.reason in (Reason.CONVICTED, Reason.NOT_REPRODUCED)
        slashable = proven or self._heard_by_all(verdict)
        if verdict.outcome == VerdictOutcome.SLASH and slashable:
            self._accuse(author, verdict)

    def _accuse(self, by: Address, verdict: Verdict) -> None:
        pending = self._pending.setdefault(by, BoundedDict(PENDING))
        if not pending:
            self._news.ring()
        pending[work_id(verdict), verdict.reason] = verdict

    def _ripe(self) -> list[Verdict]:
        """Accusations that a quorum shares and nobody disputes."""
        ripe: dict[Address, Verdict] = {}
        for pending in self._pending.values():
            for key, verdict in list(pending.items()):
                gone = verdict.node in self._executed or self._context.membership.is_evicted(verdict.node)
                if gone or self._register.is_closed(verdict.policy_root):
                    del pending[key]
                elif verdict.node not in ripe and self._may_execute(key[0], verdict):
                    ripe[verdict.node] = verdict
                    del pending[key]
        return list(ripe.values())

    def _may_execute(self, id: WorkId, verdict: Verdict) -> bool:
        vote_set = self._context.state.vote_set
        accusing = vote_set.accusations(id, verdict.reason)
        if len(accusing) < self._context.quorum or not vote_set.undisputed(id):
            return False
        # What rests on hearing is so only if nobody alive heard otherwise (ADR 008).
        if self._heard_by_all(verdict) and not accusing.keys() >= set(vote_set.active_validators()):
            return False
        if verdict.reason == Reason.CONVICTED:
            # One kind of hardware may have a flaw that makes honest work look bad.
            return len({kind(vote.verifier) for vote in accusing.values()}) >= 2
        return vote_set.state(id) is FileState.REJECTED

    def _heard_by_all(self, verdict: Verdict) -> bool:
        """Whether this rests on what was heard, and costs the stake unless somebody heard otherwise."""
        return verdict.reason in PUBLIC_HEARSAY and self._context.run.spec.audit.hearsay_slashes

    async def _execute(self, verdict: Verdict) -> None:
        id = work_id(verdict)
        work = self._register.get(id)
        if work is None:
            self._executed.discard(verdict.node)
            return
        message = work.signed.message
        # by the node and not by the work: of several accusations each validator may find another one ripe first
        await trio.sleep(seconds_to_wait(self._context, verdict.node.encode()))

        def case(unfit: set[Any]) -> FileCase | None:
            if not self._may_execute(id, verdict):  # while it waited somebody objected, or is not believed any more
                self._accuse(self._context.key.address, verdict)
                return None
            accusing = self._context.state.vote_set.accusations(id, verdict.reason)
            said = {author: (vote.verdict, vote.signature) for author, vote in accusing.items()}
            return self._file_case(message.commitment, message.signature, verdict.reason, said, unfit)

        if not await self._carry(verdict.node, case):
            self._executed.discard(verdict.node)

    async def _execute_step(self, term: int) -> None:
        """Carry what a quorum found in a step, once a quorum saw one proven fault, all who may audit have spoken or had
        the time to, and fewer hold the step to be good."""
        context, began = self._context, self._context.clock.monotonic()
        while True:
            said = context.jury.step_verdicts(context.domain, term)
            if not said:
                return  # its holder convicted itself
            one = next(iter(said.values()))
            if context.membership.is_evicted(one.trainer):
                return
            # Seconds that others are given to audit a step that a quorum found bad, before the stake is touched.
            patient = context.clock.monotonic() - began < 60.0
            # An auditor that finds the step good must have had the time to say so.
            awaited = patient and not said.keys() >= set(context.state.vote_set.active_validators())
            reason, proof = _proof_of(said)
            held = sum(each.outcome == VerdictOutcome.ACCEPT for each in said.values())
            if not awaited and len(proof) >= context.quorum and len(proof) > held:
                await trio.sleep(seconds_to_wait(context, one.trainer.encode()))
                bad = one.statement.commitment(one.trainer)
                if await self._carry(one.trainer, partial(self._file_case, bad, one.word, reason, proof)):
                    return
            await trio.sleep(self._turn_seconds)

    async def _carry(self, node: Address, case: "Callable[[set[Any]], Case | None]") -> bool:
        """Whether it is done, by this node or another; not if there is nothing to show any more. case: asked anew
        before each attempt, and given validators without their stake."""
        unfit = set[Any]()
        tries = 20
        for attempt in range(tries):
            if self._context.membership.is_evicted(node):
                return True
            shown = case(unfit)
            if shown is None:
                return False
            try:
                await self._court.carry(shown)
                return True
            except IntellectError as error:
                if isinstance(error, Reverted) and error.name == "AlreadyJudged":  # and overturned since
                    return True
                if isinstance(error, Reverted) and error.name == "ValidatorUnfit":
                    unfit |= {*error.args_.values()}
                log.warning("case.not_carried", node=node, why=error.why, attempt=attempt)
                if isinstance(error, InsufficientFunds) and not attempt:  # gas, or the bond of a case
                    self._context.progress.trouble(f"the slash of {node} was not carried: {error.why}")
                await trio.sleep(min(2.0**attempt, 30.0))
        return False

    def _file_case(
        self, commitment: WorkCommitment, signature: bytes, reason: int, said: "_Votes", unfit: set[Any]
    ) -> FileCase:
        """One signature of somebody who left, or is without its stake, spoils the others."""
        in_office = self._context.membership.is_validator
        # The contract takes all signatures or none.
        fit = [vote for author, vote in said.items() if in_office(author) and author not in unfit]
        votes = tuple(Vote(one, verdict.values, isinstance(verdict, Rechecked)) for verdict, one in fit)
        return FileCase(commitment, signature, reason, votes)


def _proof_of(said: Mapping[Address, StepVerdict]) -> "tuple[int, _Votes]":
    """The proven fault that most of them saw in a step, and who."""
    by_reason: dict[int, _Votes] = {}
    for author, one in said.items():
        if one.outcome == VerdictOutcome.SLASH and one.reason in STEP_PROOF:
            by_reason.setdefault(one.reason, {})[author] = one.verdict, one.signature
    return max(by_reason.items(), key=lambda item: len(item[1]), default=(int(Reason.NONE), {}))


_Votes = dict[Address, tuple[Verdict, bytes]]
"""By author: a verdict and its signature."""
