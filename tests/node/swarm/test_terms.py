"""Whose word counts: terms as the chain tells them, and the policies that a clock keeps and orphans by them."""

from typing import Any

import msgspec

from contracts.bindings import ChairInfo, TermTaken
from node.swarm.facts import PolicyFollowed
from node.swarm.policies import GRACE_SECONDS, PolicyIndex
from node.swarm.terms import FOREVER, LeaderTerms
from protocol.identity import Address
from protocol.messages import Signed
from tests.words import announced as policy_announced

A, B, C = (Address("0x" + digit * 40) for digit in "abc")
NOBODY = Address("0x" + "9" * 40)
ROOTS = [bytes([step]) * 32 for step in range(1, 40)]


class Scene:
    """A pool of three trainers, of which the first leads, and one node's clock."""

    def __init__(self) -> None:
        self.time = 0.0
        self.terms = LeaderTerms(NOBODY, lambda: self.time)
        self.terms.take(0, A, 0, bytes(32), 200)
        self.terms.seat((A, B, C), 200, 30)
        self.clock = PolicyIndex(lambda: self.time, self.terms, lambda _: 2**62)
        self.terms.follow(self.clock.begin_term)

    def say(self, by: Address, term: int, step: int, root: bytes | None = None, **more: Any) -> bool:
        root = root or ROOTS[step]
        message = policy_announced(step, root, term=term, **more)
        found = self.clock.announce(Signed(by, message, bytes([term, step]) + root))
        return isinstance(found, PolicyFollowed)

    def lead_to(self, step: int) -> None:
        for one in range(step + 1):
            assert self.say(A, 0, one)


def test_a_pool_that_nobody_seated_is_its_managers_for_good() -> None:
    terms = LeaderTerms(A, lambda: 0.0)
    assert terms.now.holder == A and terms.now.until == FOREVER and terms.trainers == (A,)
    assert terms.counts(A, 0, 7) and not terms.counts(B, 0, 7) and not terms.counts(A, 1, 7)
    assert terms.turn(A) is None and terms.is_trainer(A) and not terms.is_trainer(B)


def test_a_term_is_its_holders_from_its_first_policy_to_the_next_terms() -> None:
    scene = Scene()
    scene.terms.take(1, B, 5, ROOTS[4], 400)
    terms = scene.terms
    assert terms.counts(A, 0, 4) and not terms.counts(A, 0, 5)
    assert terms.counts(B, 1, 5, ROOTS[4]) and terms.counts(B, 1, 9) and not terms.counts(B, 1, 4)
    assert not terms.counts(C, 1, 5, ROOTS[4]) and not terms.counts(B, 2, 5)
    assert terms.is_trainer(A) and terms.now.holder == B


def test_a_term_that_was_taken_from_far_ahead_keeps_nobody_from_going_on() -> None:
    scene = Scene()
    scene.lead_to(4)
    scene.terms.take(1, B, 10**9, ROOTS[4], 400)
    assert scene.say(A, 0, 5), "the control: of these nobody else's term is"
    scene.terms.take(2, C, 6, ROOTS[5], 600)
    assert not scene.say(A, 0, 6) and scene.say(C, 2, 6, parent=ROOTS[5])
    assert scene.terms.of(5).holder == A and scene.terms.of(10**9).holder == C
    assert not scene.terms.counts(B, 1, 10**9, ROOTS[4])


def test_a_terms_first_policy_comes_after_the_one_that_was_named_on_chain() -> None:
    scene = Scene()
    scene.terms.take(1, B, 5, ROOTS[4], 400)
    assert not scene.terms.counts(B, 1, 5, ROOTS[3]) and scene.terms.counts(B, 1, 6, ROOTS[3])


def test_standbys_have_their_turn_one_grace_after_the_other_and_the_last_holder_comes_last() -> None:
    terms = Scene().terms
    assert [terms.turn(one) for one in (B, C, A)] == [200, 230, 260]
    terms.hold(0, 300)
    assert terms.turn(B) == 300
    terms.end(0, 250)
    assert terms.turn(B) == 250 and terms.now.ended
    terms.take(1, C, 3, ROOTS[2], 500)
    assert [terms.turn(one) for one in (A, B, C)] == [500, 530, 560] and not terms.now.ended


def test_words_about_an_older_term_change_nothing() -> None:
    terms = Scene().terms
    terms.take(1, B, 5, ROOTS[4], 400)
    terms.end(0, 100)
    terms.hold(0, 900)
    assert terms.now.until == 400 and not terms.now.ended


def test_what_an_old_term_said_beyond_the_new_ones_start_is_orphaned_and_what_it_says_then_is_no_policy() -> None:
    scene = Scene()
    scene.lead_to(6)
    scene.time = 50.0
    scene.terms.take(1, B, 5, ROOTS[4], 400)
    assert scene.clock.newest_step == 4 and scene.clock.of_step(5) is None
    assert scene.clock.is_orphan(ROOTS[5]) and scene.clock.is_orphan(ROOTS[6]) and not scene.clock.is_orphan(ROOTS[4])
    assert scene.clock.announcement(ROOTS[5]) is not None  # whoever judges files of it can still fetch it
    assert not scene.say(A, 0, 7) and scene.clock.is_orphan(ROOTS[7])  # on its way when the term ended
    scene.time += GRACE_SECONDS + 1
    assert not scene.say(A, 0, 8) and scene.clock.find(ROOTS[8]) is None


def test_the_new_term_says_the_step_again_and_that_is_no_fork() -> None:
    scene = Scene()
    scene.lead_to(5)
    scene.terms.take(1, B, 5, ROOTS[4], 400)
    assert scene.say(B, 1, 5, ROOTS[30], parent=ROOTS[4])
    assert scene.clock.equivocation is None and scene.clock.newest_step == 5
    assert scene.clock.of_step(5).message.policy_root == ROOTS[30]  # type: ignore[union-attr]
    assert not scene.say(B, 1, 5, ROOTS[31], parent=ROOTS[4])
    assert scene.clock.equivocation is not None  # two in one term are


def test_who_is_not_believed_is_that_for_its_term_and_the_next_one_goes_on_from_the_policy_that_it_names() -> None:
    """Of two policies of one step each node heard another one first: the taker's word on chain decides."""
    for first in (ROOTS[4], ROOTS[30]):
        scene = Scene()
        scene.lead_to(3)
        other = ROOTS[30] if first == ROOTS[4] else ROOTS[4]
        assert scene.say(A, 0, 4, first) and not scene.say(A, 0, 4, other)
        assert scene.clock.equivocation is not None and not scene.say(A, 0, 5), "nothing of it counts any more"
        scene.terms.take(1, B, 5, ROOTS[4], 400)
        assert scene.clock.equivocation is None and scene.clock.equivocations.keys() == {0}
        for root in (ROOTS[4], ROOTS[30]):  # heard again
            scene.say(A, 0, 4, root)
        assert scene.clock.of_step(4).message.policy_root == ROOTS[4]  # type: ignore[union-attr]
        assert scene.clock.is_orphan(ROOTS[30]) == (first == ROOTS[30])
        assert scene.say(B, 1, 5, ROOTS[31], parent=ROOTS[4]) and scene.clock.newest_step == 5
        assert not scene.say(A, 0, 6) and scene.clock.equivocation is None


def test_a_fork_in_a_term_that_is_over_stops_nobody_and_stays_evidence() -> None:
    scene = Scene()
    scene.lead_to(4)
    scene.terms.take(1, B, 5, ROOTS[4], 400)
    assert not scene.say(A, 0, 3, ROOTS[30]) and scene.clock.equivocations.keys() == {0}
    assert scene.clock.equivocation is None and scene.say(B, 1, 5, ROOTS[31], parent=ROOTS[4])


def test_a_policy_that_the_new_term_makes_again_bit_for_bit_is_a_policy_and_no_orphan_any_more() -> None:
    """From the same state and the same files it does; the old term's word of it may have come before or after."""
    scene = Scene()
    scene.lead_to(5)
    scene.terms.take(1, B, 5, ROOTS[4], 400)
    assert not scene.say(A, 0, 6) and scene.clock.is_orphan(ROOTS[5]) and scene.clock.is_orphan(ROOTS[6])
    assert scene.say(B, 1, 5, parent=ROOTS[4]) and scene.say(B, 1, 6, parent=ROOTS[5])
    assert not scene.clock.is_orphan(ROOTS[5]) and scene.clock.newest_step == 6 and scene.clock.equivocation is None
    assert scene.clock.of_step(6).author == B  # type: ignore[union-attr]


def test_a_standby_says_nothing_that_counts_and_a_term_that_nobody_knows_yet_is_heard_again() -> None:
    scene = Scene()
    scene.lead_to(4)
    assert not scene.say(B, 0, 5) and not scene.say(B, 1, 5, ROOTS[30], parent=ROOTS[4])
    assert scene.clock.newest_step == 4 and scene.clock.find(ROOTS[30]) is None
    scene.terms.take(1, B, 5, ROOTS[4], 400)
    assert scene.say(B, 1, 5, ROOTS[30], parent=ROOTS[4])


def test_a_term_whose_block_was_replaced_never_was() -> None:
    scene = Scene()
    scene.terms.take(1, B, 5, ROOTS[4], 400)
    scene.terms.undo()
    assert scene.terms.now.holder == A and scene.terms.counts(A, 0, 5)


def test_each_word_of_the_chain_can_be_taken_back_the_newest_first() -> None:
    scene = Scene()
    terms, stood = scene.terms, []
    words = (
        lambda: terms.take(1, B, 5, ROOTS[4], 400),
        lambda: terms.hold(1, 600, 9),
        lambda: terms.end(1, 500),
        lambda: terms.hold(0, 900, 12),  # of a term that is over
        lambda: terms.seat((B, C), 100, 10),
    )
    for word in words:
        stood.append((terms.now, terms.reached, terms.trainers, terms.lease, terms.grace))
        word()
    assert terms.now.ended and terms.reached == 12 and terms.trainers == (B, C)
    for before in reversed(stood):
        terms.undo()
        assert (terms.now, terms.reached, terms.trainers, terms.lease, terms.grace) == before


def test_settled_policies_are_none_that_were_orphaned() -> None:
    scene = Scene()
    scene.lead_to(6)
    scene.time = 100.0
    assert scene.clock.settled_step == 6
    scene.terms.take(1, B, 5, ROOTS[4], 400)
    assert scene.clock.settled_step == 4


class Told:
    """A chain that tells these terms: holders with the first policies that are theirs."""

    def __init__(self, *terms: tuple[Address, int]) -> None:
        self.terms_taken = [
            TermTaken(
                block=n,
                transaction="",
                log_index=0,
                pool=1,
                term=n,
                holder=by,
                from_step=at,
                parent=ROOTS[at],
                until=900,
            )
            for n, (by, at) in enumerate(terms)
        ]

    async def chair(self, pool: int) -> ChairInfo | None:
        if not self.terms_taken:
            return None
        term, order = self.terms_taken[-1], (A, B, C)
        place, reached = order.index(term.holder), term.from_step
        seating = (pool, order, 200, 30, (), 0)
        return ChairInfo(*seating, term.term, place, False, term.until, term.from_step, reached, term.parent)

    async def terms(self, pool: int) -> list[TermTaken]:
        return self.terms_taken


async def test_who_follows_no_events_asks_who_leads_and_who_led() -> None:
    terms = LeaderTerms(NOBODY, lambda: 0.0)
    await terms.ask_who_leads(Told(), 1)
    await terms.ask_who_led(Told(), 1)
    assert terms.now.holder == NOBODY and not terms.seated
    late = Told((A, 0), (B, 4), (C, 9))
    await terms.ask_who_leads(late, 1)
    assert terms.counts(C, 2, 10) and not terms.counts(B, 1, 8)
    await terms.ask_who_led(late, 1)
    assert terms.trainers == (A, B, C) and terms.now.holder == C
    assert [terms.counts(by, n, step) for by, n, step in ((A, 0, 3), (B, 1, 8), (C, 2, 10))] == [True] * 3
    assert not (terms.counts(A, 0, 4) or terms.counts(NOBODY, 0, 3) or terms.counts(B, 0, 3))
    await terms.ask_who_leads(Told((A, 0), (B, 4)), 1)  # an endpoint that is behind
    assert terms.now.holder == C


async def test_until_the_first_policy_of_a_term_a_light_client_has_the_one_that_its_holder_named_and_no_other() -> None:
    scene, late = Scene(), Told((A, 0), (B, 4), (C, 9))
    late.terms_taken[-1] = msgspec.structs.replace(late.terms_taken[-1], parent=ROOTS[8])
    scene.terms = LeaderTerms(NOBODY, lambda: scene.time)
    scene.clock = PolicyIndex(lambda: scene.time, scene.terms, lambda _: 2**62)
    await scene.terms.ask_who_leads(late, 1)
    assert not scene.say(B, 1, 7) and not scene.say(B, 1, 8, ROOTS[30])
    assert scene.say(B, 1, 8) and scene.clock.newest_step == 8
    assert not scene.say(B, 1, 8, ROOTS[30]) and scene.clock.equivocation is None
    assert scene.say(C, 2, 9, parent=ROOTS[8]) and scene.clock.newest_step == 9
