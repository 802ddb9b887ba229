"""The chair, node by node: who says silence, who carries it, who takes, and what a leader does without the chain."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from node.audit.looks import LookHistory
from node.chain.errors import Reverted, RpcUnreachable
from node.progress import ProgressRecord
from node.services.context import Context
from node.services.leader_lease import LeaderLease, LeadFrom
from node.swarm.facts import Facts, TermMoved, WorkTouched
from node.swarm.terms import LeaderTerms
from node.swarm.vote_set import FileState
from node.weights.fetch_history import FetchHistory
from protocol.checks import Reason
from protocol.identity import Address, NodeKey
from protocol.liveness import MemberState
from protocol.manifest import PolicyStatement
from protocol.messages import LeaderSilent, Signed, StepVerdict
from protocol.run import RunError
from protocol.sections import ChairRules
from protocol.statements import Domain, TermSilent, VerdictOutcome, sign, signer_of, work_id
from tests.attacks.validators.court import court_run

STALL_BATCHES = 8

A, B, C, V, W = (NodeKey(bytes([n]) * 32) for n in range(1, 6))
DOMAIN = Domain(31337, A.address)
LEASE, GRACE = 200, 30
ROOT = b"\x55" * 32
RUN = court_run()
SILENCE_SECONDS = RUN.chair.silence_seconds


class Table(dict[Any, Any]):
    """Of members. crowd: how many of them are heard, beside this node."""

    crowd = 4

    def live(self, now: float) -> range:
        return range(self.crowd)


class World:
    """Chain and clocks of a pool with three trainers and two validators, both of which are a quorum."""

    def __init__(self) -> None:
        self.time = 1000.0
        self.said: list[Any] = []
        self.sent: list[tuple[str, Any]] = []
        self.steps: list[int] = []
        self.heard = [900.0, 950.0, 1000.0]
        self.works: dict[bytes, Any] = {}
        self.bad: set[bytes] = set()
        self.facts = Facts(lambda: self.time)
        self.away = False
        self.first: NodeKey | None = None
        self.unfit: Address | None = None
        self.nodes: list[LeaderTerms] = []
        self.verdicts: dict[Any, Any] = {}
        self.evicted: set[Any] = set()
        self.run = RUN
        self.alive, self.held_by_others = [V.address, W.address], -1
        self.history = FetchHistory(1 << 20, lambda: self.time)
        self.looks = LookHistory(lambda: self.time)

    def node(self, key: NodeKey, ready: LeadFrom | None = None) -> LeaderLease:
        terms = LeaderTerms(A.address, lambda: self.time)
        terms.take(0, A.address, 0, bytes(32), int(self.time) + LEASE)
        terms.seat([one.address for one in (A, B, C)], LEASE, GRACE)
        self.nodes.append(terms)
        seen = Table({A.address: SimpleNamespace(seen_at=self.time, gone=None)})
        members = SimpleNamespace(
            own=key.address,
            terms=terms,
            table=seen,
            quorum=2,
            validators=(V.address, W.address),
            may_validate=lambda one: one in (V.address, W.address),
            is_evicted=lambda one: one in self.evicted,
        )
        context = SimpleNamespace(
            key=key,
            domain=DOMAIN,
            run=SimpleNamespace(spec=self.run),
            pool=7,
            membership=members,
            jury=SimpleNamespace(step_verdicts=lambda domain, term: self.verdicts if term == 0 else {}),
            facts=self.facts,
            quorum=2,
            policy_cache=SimpleNamespace(newest=None),
            state=SimpleNamespace(
                validators=lambda: self.alive,
                reached=lambda trainer: self.held_by_others,
                newest=5,
                disputes=SimpleNamespace(quarantined=()),
                policies=SimpleNamespace(newest_step=5, heard_at=lambda count: self.heard[-count:]),
                register=SimpleNamespace(get=self.works.get),
                vote_set=SimpleNamespace(state=lambda id: FileState.REJECTED if id in self.bad else FileState.ACCEPTED),
            ),
            board=SimpleNamespace(post=self.post),
            clock=SimpleNamespace(monotonic=lambda: self.time),
            time=SimpleNamespace(now=lambda: self.time),
            progress=ProgressRecord(),
        )
        context.until = partial(Context.until, context)
        context.on_news = partial(Context.on_news, context)
        candidate = SimpleNamespace(holds=lambda: True, ready=lambda: ready, at=lambda: (0, bytes(32)))
        policies = SimpleNamespace(history=self.history)
        return LeaderLease(context, Door(self, key), candidate, policies, self.looks)  # type: ignore[arg-type]

    async def post(self, message: Any) -> None:
        self.said.append(message)

    def tell(self, change: Any) -> None:
        for terms in self.nodes:
            change(terms)
        self.facts.tell([TermMoved(A.address, self.nodes[0].now)])


class Door:
    """One node's way to the chain, whose word reaches everybody at once."""

    def __init__(self, world: World, key: NodeKey) -> None:
        self.world, self.key = world, key

    def _open(self, what: str, given: Any) -> None:
        if self.world.away:
            raise RpcUnreachable({"http://nowhere": "no answer"})
        self.world.sent.append((what, given))

    async def hold_chair(self, pool: int, step: int, root: bytes) -> None:
        self._open("hold", step)
        until = int(self.world.time) + LEASE
        self.world.tell(lambda terms: terms.hold(terms.now.number, until))

    async def take_chair(self, pool: int, term: int, from_step: int, parent: bytes) -> None:
        self._open("take", (self.key.address, from_step))
        if self.world.nodes[0].now.number >= term:
            raise Reverted("take the chair", "OtherTerm", {"term": term, "until": 0})
        until = int(self.world.time) + LEASE
        self.world.tell(lambda terms: terms.take(term, self.key.address, from_step, parent, until))

    async def end_term_by_verdicts(self, term: int, bad: Any, verdicts: list[Any], signatures: list[bytes]) -> None:
        signers = [signer_of(DOMAIN, said, one) for said, one in zip(verdicts, signatures, strict=True)]
        assert all(said.node == bad.node and said.work == work_id(bad) for said in verdicts)
        self._open("convict", (term, bad.node, sorted(signers)))
        if self.world.unfit in signers:
            raise Reverted("end the term", "ValidatorUnfit", {"validator": self.world.unfit})
        self.world.tell(lambda terms: terms.end(term, int(self.world.time)))

    async def end_term(self, silent: list[TermSilent], signatures: list[bytes]) -> None:
        self._open("end", sorted(signer_of(DOMAIN, *one) for one in zip(silent, signatures, strict=True)))
        self.world.steps = [one.step for one in silent]
        assert self.world.steps == sorted(self.world.steps, reverse=True), "as the contract wants them"
        self.world.tell(lambda terms: terms.end(silent[0].term, int(self.world.time)))


def hears(world: World, *validators: NodeKey) -> None:
    for one, said in zip(validators, world.said, strict=True):
        world.facts.tell([Signed(one.address, said, b"")])


async def silence(world: World, *validators: LeaderLease) -> None:
    for one in validators:
        term = one._terms.now
        if why := one._watch.gone(term):
            await one._say_silent(term, why)


async def test_a_validator_says_once_that_it_does_not_hear_who_it_heard_before() -> None:
    world = World()
    judge = world.node(V)
    world.time += SILENCE_SECONDS
    await silence(world, judge)
    assert world.said == []
    world.time += 1
    await silence(world, judge)
    await silence(world, judge)
    (said,) = world.said
    assert isinstance(said, LeaderSilent) and said.fault() is None
    assert signer_of(DOMAIN, said.statement, said.signature) == V.address
    judge._context.membership.table = Table()  # type: ignore[assignment]
    assert not judge._watch.gone(judge._terms.now)


@pytest.mark.parametrize(
    "but", ["", "too few files", "refused ones", "a task's", "a policy came", "steps are long", "the run is over"]
)
async def test_a_leader_that_speaks_and_makes_no_policy_of_what_is_accepted_is_said_to_be_gone(
    autojump_clock: Any, but: str
) -> None:
    world = World()
    judge = world.node(V)
    context = judge._context
    enough = STALL_BATCHES * RUN.rollout.files_per_step
    for number in range(enough - (but == "too few files")):
        id = number.to_bytes(32)
        world.works[id] = SimpleNamespace(task=b"t" if but == "a task's" else None)
        world.bad |= {id} if but == "refused ones" else set()
    if but == "steps are long":
        world.heard = [0.0, 500.0, 1000.0]
    if but == "the run is over":
        context.state.policies.newest_step = RUN.recipe.steps
    async with trio.open_nursery() as nursery:
        nursery.start_soon(judge._watch.run)
        await trio.testing.wait_all_tasks_blocked()
        world.facts.tell(WorkTouched(W.address, id) for id in world.works)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    if but == "a policy came":
        context.state.policies.newest_step += 1
    for later, gone in ((RUN.chair.stall_seconds, False), (RUN.chair.stall_seconds + 1, not but)):
        world.time = 1000.0 + later
        context.membership.table[A.address].seen_at = world.time
        assert bool(judge._watch.gone(judge._terms.now)) is gone
    if but == "steps are long":
        world.time += 5000
        context.membership.table[A.address].seen_at = world.time
        assert judge._watch.gone(judge._terms.now)


@pytest.mark.parametrize(
    "but",
    ["", "one came", "its disk was full", "it hears nobody", "a quorum has one", "lines are slow", "another one leads"],
)
async def test_a_leader_whose_policies_nobody_can_have_is_said_to_be_gone_by_who_tried(but: str) -> None:
    """It announces the next one every second, and speaks."""
    world = World()
    judge = world.node(V)
    if but == "lines are slow":
        world.history.took(RUN.chair.stall_seconds)
    world.history.failed()
    for _ in range(60):
        world.time += RUN.chair.stall_seconds / 60
        world.heard.append(world.time)
        world.history.failed()
    judge._context.membership.table[A.address].seen_at = world.time
    assert not judge._watch.gone(judge._terms.now)
    match but:
        case "one came":
            world.history.came()
        case "its disk was full":
            world.history.forget()
        case "it hears nobody":
            world.alive = []
        case "a quorum has one":
            world.held_by_others = 5
        case "another one leads":
            world.tell(lambda terms: terms.take(1, B.address, 6, ROOT, int(world.time) + LEASE))
    world.time += 1
    judge._context.membership.table[A.address].seen_at = world.time
    assert bool(judge._watch.gone(judge._terms.now)) is (not but)
    await silence(world, judge)
    assert len(world.said) == (not but)
    if but == "lines are slow":
        world.time += 10 * RUN.chair.stall_seconds
        judge._context.membership.table[A.address].seen_at = world.time
        assert judge._watch.gone(judge._terms.now)


@pytest.mark.parametrize("but", ["", "it hears nobody", "its own disk failed", "one came late", "another one leads"])
async def test_a_leader_that_withholds_some_of_what_is_drawn_is_said_to_be_gone_by_who_tried(but: str) -> None:
    """It hands over all else, fresh: nine in ten of the steps that this validator draws."""
    world = World()
    judge = world.node(V)
    judge._context.state.policies.newest_step = 400
    for step in range(10, 341):
        world.time += 60
        judge._context.membership.table[A.address].seen_at = world.time
        assert not judge._watch.gone(judge._terms.now), step
        world.looks.withheld(stated(step)) if step in (280, 300, 320, 340) else world.looks.came(stated(step))
        if step == 330 and but == "its own disk failed":
            world.looks.forget()
        if step == 330 and but == "another one leads":
            world.tell(lambda terms: terms.take(1, B.address, 350, ROOT, int(world.time) + LEASE))
    if but == "one came late":
        world.looks.came(stated(300))
    if but == "it hears nobody":
        world.alive = []
    assert bool(judge._watch.gone(judge._terms.now)) is (not but)
    await silence(world, judge)
    assert [said.step for said in world.said] == ([] if but else [339]), "the policy before the newest that is withheld"


@pytest.mark.parametrize("liars", [1, 2])
async def test_a_validator_that_says_so_alone_ends_no_term(liars: int) -> None:
    """Two of two are a quorum, and what they say is what they tried: the control."""
    world = World()
    for step in (1, 2, 3, 4):
        world.time += 300
        world.looks.withheld(stated(step))
    judges, standby = [world.node(V), world.node(W)], world.node(B, LeadFrom(6, ROOT))
    await silence(world, *judges[:liars])
    hears(world, *(V, W)[:liars])
    await standby._act(standby._candidate)
    assert [what for what, _ in world.sent] == (["end"] if liars == 2 else [])


async def test_how_long_a_leader_may_be_silent_is_the_runs_to_say_but_no_shorter_than_its_heartbeats() -> None:
    world = World()
    world.run = msgspec.structs.replace(RUN, chair=ChairRules(silence_seconds=90.0))
    judge = world.node(V)
    world.time += 90
    assert not judge._watch.gone(judge._terms.now)
    world.time += 1
    assert judge._watch.gone(judge._terms.now)
    judge._context.membership.table.crowd = 1000  # type: ignore[attr-defined]
    assert not judge._watch.gone(judge._terms.now)
    for wrong in (4.0, 3601.0, float("nan")):
        with pytest.raises(RunError, match="chair.silence_seconds"):
            msgspec.structs.replace(RUN, chair=ChairRules(silence_seconds=wrong)).check()
    for wrong in (59.0, 604801.0, float("nan")):
        with pytest.raises(RunError, match="chair.stall_seconds"):
            msgspec.structs.replace(RUN, chair=ChairRules(stall_seconds=wrong)).check()


async def test_a_quorum_of_words_ends_the_term_and_the_next_standby_leads() -> None:
    world = World()
    judges, standby = (world.node(V), world.node(W)), world.node(B, LeadFrom(6, ROOT))
    world.time += SILENCE_SECONDS + 1
    await silence(world, *judges)
    hears(world, V, W)
    await standby._act(standby._candidate)
    assert world.sent == [("end", sorted([V.address, W.address]))]
    await standby._act(standby._candidate)
    assert world.sent[-1] == ("take", (B.address, 6)) and standby.leads(6) and not standby.leads(5)


def stated(step: int) -> PolicyStatement:
    return PolicyStatement(7, 0, step, 0, ROOT, bytes(32), bytes(32), bytes(32))


def judged(by: NodeKey, outcome: VerdictOutcome = VerdictOutcome.REJECT, holder: NodeKey = A) -> StepVerdict:
    """A verdict on the step that led to policy 6."""
    statement = PolicyStatement(7, 0, 6, 0, ROOT, bytes(32), bytes(32), bytes(32))
    reason = Reason.DISTANCE if outcome else Reason.NONE
    word = sign(holder, DOMAIN, statement.commitment(holder.address))
    said = (statement, holder.address, word, int(outcome), int(reason), b"")
    draft = StepVerdict(*said, pool=7)
    return msgspec.structs.replace(draft, signature=sign(by, DOMAIN, draft.verdict))


async def test_a_quorum_that_found_a_step_bad_ends_the_term_at_once_and_the_next_standby_leads() -> None:
    """Nobody waits for silence or the lease: the leader speaks on."""
    world = World()
    standby, second = world.node(B, LeadFrom(6, ROOT)), world.node(C, None)
    world.verdicts = {V.address: judged(V), W.address: judged(W)}
    await second._act(second._candidate)
    assert world.sent == []
    await standby._act(standby._candidate)
    assert world.sent == [("convict", (0, A.address, sorted([V.address, W.address])))]
    await standby._act(standby._candidate)
    assert world.sent[-1] == ("take", (B.address, 6)) and standby.leads(6)
    await standby._act(standby._candidate)
    assert len(world.sent) == 2, "verdicts of a term that is over end no other one"


async def test_a_standby_that_cannot_lead_ends_a_convicted_term_all_the_same() -> None:
    world = World()
    standby = world.node(B, None)
    world.verdicts = {V.address: judged(V), W.address: judged(W)}
    await standby._act(standby._candidate)
    assert [what for what, _ in world.sent] == ["convict"]


@pytest.mark.parametrize("second", ["nobody", "accepts", "a stranger", "of another one's step"])
async def test_less_than_a_quorums_verdicts_ends_no_term(second: str) -> None:
    """The control is above: two of two."""
    world = World()
    standby = world.node(B, LeadFrom(6, ROOT))
    others = {
        "nobody": {},
        "accepts": {W.address: judged(W, VerdictOutcome.ACCEPT)},
        "a stranger": {C.address: judged(C)},
        "of another one's step": {W.address: judged(W, holder=C)},
    }[second]
    first = judged(V, holder=C) if "another" in second else judged(V)
    world.verdicts = {V.address: first, **others}
    await standby._act(standby._candidate)
    assert world.sent == []


async def test_one_judge_without_its_stake_does_not_keep_a_convicted_leader(autojump_clock: Any) -> None:
    world = World()
    standby = world.node(B, LeadFrom(6, ROOT))
    standby._context.membership.validators = (V.address, W.address, C.address)  # type: ignore[misc]
    world.verdicts = {one.address: judged(one) for one in (V, W, C)}
    world.unfit = V.address
    with trio.move_on_after(10):
        await standby._act_always(standby._candidate)
    assert [given[2] for what, given in world.sent if what == "convict"] == [
        sorted([V.address, W.address]),
        sorted([W.address, C.address]),
    ]


async def test_the_chair_of_a_holder_that_was_thrown_out_is_free_at_once() -> None:
    world = World()
    first, second = world.node(B, LeadFrom(6, ROOT)), world.node(C, LeadFrom(6, ROOT))
    await first._act(first._candidate)
    assert world.sent == [], "the control: it leads"
    world.evicted = {A.address}
    await second._act(second._candidate)
    assert world.sent == [], "the next one first"
    await first._act(first._candidate)
    assert world.sent == [("take", (B.address, 6))]


async def test_the_chair_of_a_holder_that_left_the_pool_is_free_at_once_but_for_the_first_ones() -> None:
    """Who leads from the start may not have joined yet, and comes back in its first lease."""
    world = World()
    standby = world.node(C, LeadFrom(6, ROOT))
    for one in (A, B):
        gone = SimpleNamespace(seen_at=world.time, gone=MemberState.LEFT)
        standby._context.membership.table[one.address] = gone  # type: ignore[index]
    await standby._act(standby._candidate)
    assert world.sent == []
    world.tell(lambda terms: terms.take(1, B.address, 6, ROOT, int(world.time) + LEASE))
    await standby._act(standby._candidate)
    assert world.sent == [("take", (C.address, 6))]


async def test_a_validator_that_says_the_run_is_far_ahead_keeps_no_standby_from_taking() -> None:
    """The least words of a quorum are carried; the chain takes none above the others on trust."""
    world = World()
    judges = [world.node(V), world.node(W), world.node(C)]
    standby = world.node(B, LeadFrom(6, ROOT))
    standby._context.membership.validators = (V.address, W.address, C.address)  # type: ignore[misc]
    judges[2]._context.membership.may_validate = lambda _: True  # type: ignore[method-assign]
    judges[0]._context.state.policies.newest_step = 10**9
    world.time += SILENCE_SECONDS + 1
    await silence(world, *judges)
    hears(world, V, W, C)
    await standby._act(standby._candidate)
    assert world.sent == [("end", sorted([W.address, C.address]))] and world.steps == [5, 5]


async def test_one_word_of_two_ends_nothing() -> None:
    world = World()
    judge, standby = world.node(V), world.node(B, LeadFrom(6, ROOT))
    world.time += SILENCE_SECONDS + 1
    await silence(world, judge)
    hears(world, V)
    await standby._act(standby._candidate)
    assert world.sent == []


async def test_one_validator_that_speaks_of_leases_without_end_keeps_no_other_word_out() -> None:
    """The control is two tests above: the same two words end the term."""
    world = World()
    judges, standby = [world.node(V), world.node(W)], world.node(B, LeadFrom(6, ROOT))
    for until in range(5000, 5100):
        flood = LeaderSilent(pool=7, term=9, until=until, step=0, signature=bytes(65))
        world.facts.tell([Signed(C.address, flood, b"")])
    world.time += SILENCE_SECONDS + 1
    await silence(world, *judges)
    hears(world, V, W)
    await standby._act(standby._candidate)
    assert [what for what, _ in world.sent] == ["end"]


async def test_words_about_a_lease_that_was_held_again_count_for_nothing() -> None:
    world = World()
    leader, judges, standby = world.node(A), (world.node(V), world.node(W)), world.node(B, LeadFrom(6, ROOT))
    world.time += SILENCE_SECONDS + 1
    await silence(world, *judges)
    hears(world, V, W)
    world.tell(lambda terms: terms.hold(0, int(world.time) + LEASE))
    await standby._act(standby._candidate)
    assert world.sent == [] and leader.leads(6)


async def test_without_validators_the_lease_runs_out_by_itself_and_each_standby_has_its_turn() -> None:
    world = World()
    first, second = world.node(B, LeadFrom(6, ROOT)), world.node(C, LeadFrom(6, ROOT))
    world.time += LEASE
    await second._act(second._candidate)
    assert world.sent == []
    await first._act(first._candidate)
    assert world.sent == [("take", (B.address, 6))]


async def test_of_two_that_take_at_once_one_leads_and_the_other_goes_on_following() -> None:
    world = World()
    first, second = world.node(B, LeadFrom(6, ROOT)), world.node(C, LeadFrom(7, ROOT))
    world.time += LEASE + GRACE
    term = second._terms.now
    await first._act(first._candidate)
    with pytest.raises(Reverted):
        await second._take(term, LeadFrom(7, ROOT))
    assert first.leads(7) and not second.leads(7)


async def test_a_standby_that_could_not_lead_takes_nothing() -> None:
    """It has not replayed all, or what it replayed came out otherwise than was stated."""
    world = World()
    standby = world.node(B, None)
    world.time += LEASE + 1
    await standby._act(standby._candidate)
    assert world.sent == []


async def test_a_leader_holds_in_the_last_third_of_its_lease_and_pauses_at_its_end_while_the_chain_is_away() -> None:
    world = World()
    leader = world.node(A)
    leader._candidate.at = lambda: (5, ROOT)
    await leader._act(leader._candidate)
    world.time += LEASE * 2 / 3 - 1
    await leader._act(leader._candidate)
    assert world.sent == []
    world.time += 2
    world.away = True
    with pytest.raises(RpcUnreachable):
        await leader._act(leader._candidate)
    assert leader.leads(6)
    world.time += LEASE / 3
    assert not leader.leads(6)
    world.away = False
    await leader._act(leader._candidate)
    assert world.sent == [("hold", 5)] and leader.leads(6)


async def test_a_leader_whose_term_was_ended_publishes_nothing_more_and_takes_as_the_last() -> None:
    world = World()
    leader = world.node(A, LeadFrom(6, ROOT))
    world.tell(lambda terms: terms.end(0, int(world.time)))
    assert not leader.leads(6)
    await leader._act(leader._candidate)
    assert world.sent == []
    world.time += 2 * GRACE
    await leader._act(leader._candidate)
    assert world.sent == [("take", (A.address, 6))] and leader.leads(6)


async def test_a_chain_that_is_away_during_a_take_over_is_asked_again(autojump_clock: trio.testing.MockClock) -> None:
    world = World()
    standby = world.node(B, LeadFrom(6, ROOT))
    world.time += LEASE
    world.away = True
    with trio.move_on_after(10):
        await standby._act_always(standby._candidate)
    assert world.sent == []
    world.away = False
    with trio.move_on_after(10):
        await standby._act_always(standby._candidate)
    assert world.sent[0] == ("take", (B.address, 6))
