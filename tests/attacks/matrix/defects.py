"""Faults that are put back into the product, one function each: the matrix must find every one of them.

A defect is a context manager in which the product has the fault; `FOUND_BY` names it and the cell that finds it, with
the probe in which it shows. The same cell finds less without it. A new defect is a function here and a line there.

What this world cannot show is put back where it shows, with a control beside it:

- C1, who speaks first in a round (`tests/node/services/rounds/test_round_closer.py`); C1b and F4, a last ballot, the
  first
  word of two, a smaller quorum (`tests/protocol/test_agreement.py`): they need files that some have not accepted when
  the round ends, thousands of plays with delays, or seven validators. The matrix' rounds are two peers and four judges.
- H2, disputes that waiting decides (`tests/node/swarm/test_dispute_plays.py`): two liars of five, or one honest away.
  Here are four, and policies that nobody loses.
- M1, reports that are not served (`tests/node/services/training/test_ingest.py`): who leads here is a script, and takes
  nothing in.
- Faults of a state alone: `tests/node/swarm/pool_plays.py`, and of who judges itself `test_own_case.py` beside it.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from node.bounded_dict import BoundedDict
from node.services import certifier
from node.services.certifier import Certifier
from node.services.leader_watch import LeaderWatch
from node.services.run_progress import RunProgress
from node.swarm import board, catchup, pool_state, works
from node.swarm.checkpoints import OfferedCheckpoints
from node.swarm.facts import PolicyFollowed, RunTold
from node.swarm.membership import Membership
from node.swarm.policies import PolicyIndex
from node.swarm.seals import Seals
from node.swarm.step_votes import StepVotes
from node.swarm.task_table import TaskTable
from node.swarm.terms import LeaderTerms
from node.swarm.vote_set import VoteSet
from protocol.checks import slot_of
from protocol.earnings import of_policy
from protocol.errors import ProtocolError
from protocol.messages import Heartbeat, PolicyAnnounced, RolloutCommitted, parse_envelope
from protocol.statements import WorkCommitment, work_id
from tests.attacks.matrix.world import KEYS, POOL, QUORUM

WAITING = 512


@contextmanager
def former_trainers_count() -> Iterator[None]:
    with patch.object(LeaderTerms, "counts", lambda terms, author, *_: terms.is_trainer(author)):
        yield


@contextmanager
def one_verdict_ends_a_term() -> Iterator[None]:
    against = StepVotes.against
    with patch.object(StepVotes, "against", lambda *given: QUORUM * against(*given)):
        yield


@contextmanager
def any_trainer_says_that_the_run_is_over() -> Iterator[None]:
    async def run(self: RunProgress) -> None:
        async for signed in self._context.board.subscribe(Heartbeat):
            if signed.message.finished:
                self._hear(RunTold(signed.author, over=True, step=0, reward=None))

    with patch.object(RunProgress, "run", run):
        yield


@contextmanager
def anybody_closes_a_task() -> Iterator[None]:
    update = TaskTable._update

    def closing(self: TaskTable, task: Any, author: Any = None) -> None:
        update(self, task, author)
        task.open = all(one.open for one in task.offers.values())

    with patch.object(TaskTable, "_update", closing):
        yield


@contextmanager
def every_member_says_everything() -> Iterator[None]:
    with ExitStack() as held:
        for module in (board, pool_state, works):
            held.enter_context(patch.object(module, "may_say", lambda *_: True))
        yield


@contextmanager
def a_policy_is_paid_to_whoever_announces_it() -> Iterator[None]:
    def trained(self: Certifier) -> list[Any]:
        known = self._context.state.policies
        found = [(waiting, root) for waiting in self._policies.values() for root in waiting if known.find(root)]
        return [waiting.pop(root) for waiting, root in found]

    async def hear(self: Certifier) -> None:
        async for signed in self._context.board.subscribe(PolicyAnnounced):
            said, author = signed.message, signed.author
            waiting = self._policies.setdefault(author, BoundedDict(WAITING))
            root = said.policy_root
            waiting[root] = of_policy(self._run, self._context.pool, author, said.step, root, said.epoch)

    with patch.object(Certifier, "_trained", trained), patch.object(Certifier, "_hear_policies", hear):
        yield


@contextmanager
def who_left_office_is_still_a_validator() -> Iterator[None]:
    former = KEYS["former"].address

    def in_office(self: Membership, address: Any) -> bool:
        return address == former or (address in self._validators and address in self.table)

    with patch.object(Membership, "is_validator", in_office):
        yield


@contextmanager
def one_announcement_moves_the_clock() -> Iterator[None]:
    with patch.object(PolicyIndex, "_is_reached", lambda *_: True):
        yield


@contextmanager
def who_led_offers_tasks() -> Iterator[None]:
    with patch.object(Membership, "in_office", Membership.is_trainer):
        yield


@contextmanager
def the_last_checkpoint_replaces_the_leaders() -> Iterator[None]:
    def of(checkpoints: OfferedCheckpoints, first: Any) -> Any:
        return {step: list(offers.values())[-1:] for (_, step), offers in checkpoints._offered.items()}

    with patch.object(OfferedCheckpoints, "of", of):
        yield


@contextmanager
def one_voice_accepts() -> Iterator[None]:
    needed = VoteSet._needed

    def alone(vote_set: VoteSet, case: Any, rejecting: Any) -> int:
        waited = vote_set._clock() - case.heard >= vote_set._audit.verdict_seconds
        return 1 if waited and len(case.votes) else needed(vote_set, case, rejecting)

    with patch.object(VoteSet, "_needed", alone):
        yield


@contextmanager
def a_policy_of_another_epoch_is_another_work() -> Iterator[None]:
    announce, real = PolicyIndex.announce, of_policy

    def named(run: Any, pool: int, trainer: Any, step: int, root: bytes, epoch: int) -> Any:
        made = real(run, pool, trainer, step, root, epoch)
        return msgspec.structs.replace(
            made, work=work_id(WorkCommitment(pool, trainer, root, step, root, made.units, epoch))
        )

    def announced(clock: PolicyIndex, signed: Any, *, anchored: bool = False) -> Any:
        known = clock.of_step(signed.message.step)
        if known is not None and known.root == signed.message.policy_root and known.author == signed.author:
            return PolicyFollowed(signed.author, signed.message, signed.raw)
        return announce(clock, signed, anchored=anchored)

    # Both: what is followed once is paid once, and so is what has one name.
    with patch.object(PolicyIndex, "announce", announced), patch.object(certifier, "of_policy", named):
        yield


@contextmanager
def names_leave_out_what_an_author_varies() -> Iterator[None]:
    """M2: who gave two words one name left no evidence. Here all of a place have one."""
    real = catchup.name_of

    def of_a_place(raw: bytes) -> bytes:
        try:
            word = parse_envelope(POOL, raw).message
        except ProtocolError:
            return real(raw)
        if not isinstance(word, RolloutCommitted):
            return real(raw)
        return real(repr(slot_of(word.commitment)).encode())

    with patch.object(catchup, "name_of", of_a_place), patch.object(board, "name_of", of_a_place):
        yield


@contextmanager
def words_alone_are_a_sign_of_life() -> Iterator[None]:
    # Who invents a policy has nothing to hand over of its making, either: by both rules its words are no life.
    with patch.object(LeaderWatch, "_is_empty", lambda *_: False), what_is_withheld_speaks_against_nobody():
        yield


@contextmanager
def what_is_withheld_speaks_against_nobody() -> Iterator[None]:
    with patch.object(LeaderWatch, "_is_withheld", lambda *_: False):
        yield


@contextmanager
def who_hurries_takes_the_pay_of_slower_ones() -> Iterator[None]:
    with patch.object(Seals, "_hurried", lambda *_: frozenset()):
        yield


Defect = Callable[[], AbstractContextManager[None]]
FOUND_BY: dict[Defect, tuple[str, str]] = {
    former_trainers_count: ("dismissed/PolicyAnnounced/statement.step+1 fresh/once/apart/all/honest", "policies"),
    one_verdict_ends_a_term: ("validator 4/StepVerdict/opposite/every/before/all/honest", "forks"),
    any_trainer_says_that_the_run_is_over: ("standby/Heartbeat/finished flipped/once/apart/all/honest", "over"),
    anybody_closes_a_task: ("standby/TaskOffered/open flipped/once/apart/all/honest", "tasks"),
    every_member_says_everything: ("member/StepVerdict/unchanged/every/before/all/honest", "step_book"),
    a_policy_is_paid_to_whoever_announces_it: (
        "dismissed/PolicyAnnounced/unchanged/once/apart/all/honest",
        "leaves",
    ),
    one_announcement_moves_the_clock: (
        "leader/PolicyAnnounced/statement.step+999 fresh/once/apart/all/honest",
        "policies",
    ),
    who_led_offers_tasks: ("dismissed/TaskOffered/another task/once/apart/all/honest", "tasks"),
    the_last_checkpoint_replaces_the_leaders: (
        "standby/CheckpointOffered/root other/every/after/all/honest",
        "checkpoints",
    ),
    one_voice_accepts: ("worker 2/RolloutCommitted/withheld from all but one/every/before/all/honest", "alone"),
    a_policy_of_another_epoch_is_another_work: (
        "leader/PolicyAnnounced/statement.epoch+1/once/apart/all/honest",
        "overpaid",
    ),
    names_leave_out_what_an_author_varies: ("worker 2/RolloutCommitted/another file/every/before/some/honest", "torn"),
    words_alone_are_a_sign_of_life: ("leader/PolicyAnnounced/fresh/every/instead/all/honest", "unled"),
    what_is_withheld_speaks_against_nobody: (
        "leader/PolicyAnnounced/statement.batch_root other/every/instead/all/drops",
        "dropped",
    ),
    who_hurries_takes_the_pay_of_slower_ones: (
        "validator 4/ValidatorBatch/unchanged/every/before/all/honest",
        "leaves",
    ),
    who_left_office_is_still_a_validator: ("former/StepVerdict/unchanged/every/before/all/honest", "step_book"),
}
FROM_THE_START = {any_trainer_says_that_the_run_is_over, a_policy_is_paid_to_whoever_announces_it}
"""What runs already where a liar's first word is near: planted before the world begins."""
