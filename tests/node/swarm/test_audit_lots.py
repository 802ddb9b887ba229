"""The meter of the swarm's power, and promises that are seen to be broken."""

import msgspec

from node.swarm.audit_lots import AuditLots, BrokenPromise
from node.swarm.register import RegisteredWork
from protocol.audit import RATE_ONE, AuditSpec
from protocol.identity import NodeKey
from protocol.lots import LotPledge, drawn_groups, pack_groups, secret_hash, window_secret
from protocol.messages import Heartbeat, LotsRevealed, RolloutCommitted, Signed, VerdictIssued
from protocol.run import EnvironmentSpec, Recipe, RolloutSpec, RunSpec
from protocol.statements import Verdict, VerdictOutcome, WorkCommitment, work_id
from tests.words import announced as policy_announced
from tests.words import policies as policies_of

OVERDUE_WINDOWS = 8

VALIDATOR, WORKER, OTHER = (NodeKey(bytes([n]) * 32).address for n in (1, 2, 3))
GROUPS = 16
RUN = RunSpec(
    name="t",
    environment=EnvironmentSpec(name="sort"),
    rollout=RolloutSpec(prompts_per_step=16, prompts_per_file=GROUPS),
    recipe=Recipe(max_staleness=1),
    audit=AuditSpec(window=2),
)
RATE = RATE_ONE // 2


def secret(window: int) -> bytes:
    return window_secret(b"\x09" * 32, 1, window)


def policy(step: int) -> bytes:
    return step.to_bytes(32)


def beat(*windows: int, rate: int = RATE) -> Signed:
    lots = tuple(LotPledge(w, secret_hash(secret(w), VALIDATOR, 1, w), rate) for w in windows)
    message = Heartbeat(
        pool=1, boot=0, count=1, at=1, role="validator", state="", contact="", policy_step=0, interval=1.0, lots=lots
    )
    return Signed(VALIDATOR, message, b"beat %d" % rate)


def work(step: int, file: bytes, node=WORKER) -> RegisteredWork:
    commitment = WorkCommitment(1, node, policy(step), 0, file, 5)
    message = RolloutCommitted(pool=1, commitment=commitment, signature=b"", size=9)
    return RegisteredWork(work_id(commitment), Signed(node, message, b""), step, 0.0, 0, False, 4)


def verdict(step: int, file: bytes, groups: tuple[int, ...], **change) -> Signed[VerdictIssued]:
    statement = Verdict(1, WORKER, policy(step), 0, file, 5, VerdictOutcome.ACCEPT, 0)
    message = VerdictIssued(
        pool=1, verdict=statement, signature=b"", window=step // 2, rate=RATE, checked=pack_groups(groups, GROUPS)
    )
    return Signed(VALIDATOR, msgspec.structs.replace(message, **change), b"verdict")


def reveal(window: int) -> Signed:
    return Signed(VALIDATOR, LotsRevealed(pool=1, window=window, secret=secret(window)), b"reveal")


class Book(AuditLots):
    """A book with the clock and the works that belong to it."""

    def __init__(self, newest: int) -> None:
        self.clock = policies_of(OTHER)
        super().__init__(RUN, 1, self.clock)
        for step in range(newest + 1):
            self.policy(step)

    def policy(self, step: int) -> None:
        message = policy_announced(step, policy(step))
        self.clock.announce(Signed(OTHER, message, b""))

    def judge(self, step: int, file: bytes, groups: tuple[int, ...]) -> BrokenPromise | None:
        return self.verdict(work(step, file), verdict(step, file, groups))


def book(newest: int = 0) -> Book:
    return Book(newest)


def test_power_is_what_was_really_recomputed_of_the_worker_that_was_checked_least() -> None:
    made = book(1)
    for n in range(4):
        made.judge(0, bytes([n]) * 32, tuple(range(GROUPS)))
    made.committed(work(1, b"\x77" * 32, OTHER))
    powers = {row.node: row for row in made.powers(0)}
    assert powers[WORKER].groups == powers[WORKER].checked == 64
    assert powers[WORKER].power == 1.0
    assert powers[OTHER].power == 0.0


def test_two_validators_that_look_at_different_groups_add_up() -> None:
    made = book(1)
    made.judge(0, bytes(32), (0, 1, 2, 3))
    made.judge(0, bytes(32), (3, 4, 5))
    (row,) = made.powers(0)
    assert row.checked == 6


def test_only_pledges_from_before_a_window_count() -> None:
    made = book(1)
    made.beat(beat(0, 1))
    assert made.pledged_share(0, {VALIDATOR}) == 0.0
    assert made.pledged_share(1, {VALIDATOR}) == 0.5
    assert made.pledged_share(1, {OTHER}) == 0.0


def test_a_kept_lot_earns_credit_and_one_told_too_early_does_not() -> None:
    made = book()
    made.beat(beat(0, 1))
    for step in range(9):
        made.policy(step)
    made.beat(beat(4, 5, 900))
    file = b"\x05" * 32
    made.judge(0, file, drawn_groups(secret(0), work(0, file).id, GROUPS, RATE))
    assert made.reveal(reveal(0)) is None
    assert made.reveal(reveal(4)) is None
    assert (made.kept, made.early, made.broken) == (1, 1, 0)
    assert made.pledged_share(900, {VALIDATOR}) == 0.0  # nobody can pledge for all time and crowd out others


def test_a_lot_that_was_not_kept_is_shown_by_three_envelopes() -> None:
    made = book()
    made.beat(beat(0))
    for step in range(9):
        made.policy(step)
    file = b"\x05" * 32
    drawn = drawn_groups(secret(0), work(0, file).id, GROUPS, RATE)
    assert len(drawn) > 1
    made.judge(0, file, drawn[1:])
    broken = made.reveal(reveal(0))
    assert broken is not None
    assert broken.validator == VALIDATOR
    assert broken.evidence == (beat(0).raw, b"reveal", b"verdict")


def test_a_secret_that_is_told_first_clears_no_verdict_that_follows() -> None:
    """Before, whoever told its secret early could look at nothing from then on."""
    made = book()
    made.beat(beat(0))
    made.policy(0)
    file, other = b"\x05" * 32, b"\x06" * 32
    assert made.reveal(reveal(0)) is None
    assert made.judge(0, other, drawn_groups(secret(0), work(0, other).id, GROUPS, RATE)) is None
    broken = made.judge(0, file, drawn_groups(secret(0), work(0, file).id, GROUPS, RATE)[1:])
    assert broken is not None and broken.evidence == (beat(0).raw, b"reveal", b"verdict")


def test_one_window_has_one_pledge() -> None:
    made = book()
    assert made.beat(beat(1)) is None
    assert made.beat(beat(1)) is None
    broken = made.beat(beat(1, rate=1))
    assert broken is not None and "two pledges" in broken.why


def test_a_verdict_by_the_lot_of_another_window_does_not_count() -> None:
    """Only the trainer's word says which policy belongs to which window, so it is no fault either."""
    made = book(5)
    file = work(0, bytes(32))
    assert made.is_of_its_window(file, verdict(0, bytes(32), ()).message)
    assert not made.is_of_its_window(file, verdict(0, bytes(32), (), window=-1).message)
    assert not made.is_of_its_window(file, verdict(0, bytes(32), (), window=1).message)


def test_secrets_that_are_never_told_end_the_belief_in_their_owner() -> None:
    made = book()
    seen = []
    for step in range(2 * 3 * OVERDUE_WINDOWS):
        made.policy(step)
        made.beat(beat(step // 2, step // 2 + 1))
        seen.append(made.judge(step, policy(step), tuple(range(GROUPS))))
    first = next(step for step, broken in enumerate(seen) if broken is not None)
    assert first > 2 * OVERDUE_WINDOWS  # patience first: a reveal can be late or lost
    assert "did not reveal" in seen[first].why


def test_of_windows_that_are_full_and_told_of_nothing_is_kept_but_the_last() -> None:
    heard = policies_of(VALIDATOR)
    book = AuditLots(RUN, 1, heard)
    for step in range(4 * OVERDUE_WINDOWS + 8):
        heard.announce(Signed(VALIDATOR, policy_announced(step, policy(step)), b"%d" % step))
        file = work(step, step.to_bytes(32))
        book.committed(file)
        book.verdict(file, verdict(step, step.to_bytes(32), (0,)))  # its secret is never told
    assert len(book._files) <= 3 and len(book.powers(book.last_full_window())) == 1
    assert len(book._verdicts) <= 2 * OVERDUE_WINDOWS + 1
    late = work(0, b"\7" * 32)
    book.committed(late)
    book.covered(late, verdict(0, b"\7" * 32, (0,)).message)
    assert 0 not in book._files
