"""Who may do a shard, until when, and whose result counts."""

from protocol.identity import Address, NodeKey
from protocol.leases import CLASH_SECONDS, MOST_HELD, Leases, ResultStanding
from protocol.tasks import TaskSpec, weight

STRIKES = 3.0
FORGIVEN_AFTER = 10.0
PATIENCE_SECONDS = 3.0

TASK = bytes(32)
A, B, C = (NodeKey(bytes([n]) * 32).address for n in (1, 2, 3))
LEASE = 60.0


def leases(**changes: object) -> Leases:
    fields = {"kind": "filter", "policy": "ab" * 32, "last": 64, "lease_seconds": LEASE, "shard_size": 8, **changes}
    return Leases(TASK, TaskSpec(**fields), 0.0)  # type: ignore[arg-type]


def alive(_: Address) -> bool:
    return True


def dead(_: Address) -> bool:
    return False


def by_weight(shard: int = 0) -> tuple[Address, Address]:
    """(the lighter, the heavier) of two nodes."""
    return (A, B) if weight(TASK, shard, A) < weight(TASK, shard, B) else (B, A)


def test_the_first_claim_holds_and_a_second_one_of_its_node_changes_nothing() -> None:
    table = leases()
    assert table.claim(0, A, 1.0, alive)
    assert table.claim(0, A, 50.0, alive)
    assert table.holder(0, 60.9) == A and table.holder(0, 61.0) is None  # the second claim moved no end
    assert table.free_since(0, 61.0, alive) == 61.0


def test_another_ones_claim_is_void_while_the_lease_runs_and_not_after() -> None:
    table = leases()
    table.claim(0, A, 1.0, alive)
    assert not table.claim(0, B, 30.0, alive)
    assert table.claim(0, B, 61.5, alive) and table.holder(0, 62.0) == B


def test_of_two_claims_at_once_the_lighter_holds_whichever_was_heard_first() -> None:
    lighter, heavier = by_weight()
    for order in ((lighter, heavier), (heavier, lighter)):
        table = leases()
        for moment, node in enumerate(order):
            table.claim(0, node, 1.0 + moment, alive)
        assert table.holder(0, 3.0) == lighter
        assert table.taken_over == 0  # and nobody has a strike for it
    table = leases()
    table.claim(0, heavier, 1.0, alive)
    assert not table.claim(0, lighter, 1.0 + CLASH_SECONDS + 0.1, alive)


def test_a_dead_holders_shard_is_taken_over_at_once() -> None:
    table = leases()
    table.claim(0, A, 1.0, alive)
    assert table.free_since(0, 9.0, alive) is None
    assert table.free_since(0, 10.0, dead) == 10.0 == table.free_since(0, 12.0, dead)
    assert table.claim(0, B, 12.0, dead)
    assert table.holder(0, 13.0) == B and table.taken_over == 1


def test_a_late_result_after_a_take_over_counts_for_nothing_and_one_before_it_does() -> None:
    table = leases()
    table.claim(0, A, 0.0, alive)
    table.claim(0, B, 61.0, alive)
    assert table.commit(0, A, b"late") is ResultStanding.LATE
    assert table.commit(0, B, b"good") is ResultStanding.COVERED
    assert table.standing(b"late") is ResultStanding.LATE  # it stays so
    table.claim(1, A, 0.0, alive)
    assert table.commit(1, A, b"slow") is ResultStanding.COVERED  # its time was over, and nobody had come


def test_two_results_of_one_shard_never_both_count() -> None:
    table = leases()
    table.claim(0, A, 0.0, alive)
    assert table.commit(0, A, b"first") is ResultStanding.COVERED
    assert not table.claim(0, B, 100.0, dead)
    assert table.commit(0, B, b"second") is ResultStanding.UNCLAIMED
    table.decided(0, b"first", accepted=True, now=101.0)
    assert table.done == {0} and table.free_since(0, 500.0, dead) is None


def test_a_result_that_overtakes_its_claim_counts_once_the_claim_is_heard() -> None:
    table = leases()
    assert table.commit(0, A, b"fast") is ResultStanding.UNCLAIMED
    table.claim(0, A, 1.0, alive)
    assert table.standing(b"fast") is ResultStanding.COVERED
    assert table.commit(1, B, b"never claimed") is ResultStanding.UNCLAIMED


def test_results_without_claims_crowd_out_nobody_elses() -> None:
    table = leases(last=4096, shard_size=1)
    for shard in range(4096):
        table.commit(shard, B, b"%d" % shard)
    assert table.commit(0, A, b"fast") is ResultStanding.UNCLAIMED
    table.claim(0, A, 1.0, alive)
    assert table.standing(b"fast") is ResultStanding.COVERED


def test_a_refused_result_frees_the_shard() -> None:
    table = leases()
    table.claim(0, A, 0.0, alive)
    table.commit(0, A, b"bad")
    table.decided(0, b"bad", accepted=False, now=20.0)
    assert table.free_since(0, 21.0, alive) == 20.0
    assert table.claim(0, B, 22.0, alive) and table.commit(0, B, b"good") is ResultStanding.COVERED


def test_a_hoarder_holds_two_shards_at_most_and_is_soon_heard_no_more() -> None:
    table = leases()
    held = sum(table.claim(shard, A, 0.0, alive) for shard in range(8))
    assert held == MOST_HELD and table.held(A, 1.0) == [0, 1]
    delayed, now = 0.0, 0.0
    for _ in range(10):
        delayed += LEASE * bool(table.held(A, now))
        now += LEASE + 1
        for shard in range(8):
            if table.free_since(shard, now, alive) is not None and table.claim(shard, B, now, alive):
                table.commit(shard, B, b"%d" % shard)
                table.decided(shard, b"%d" % shard, accepted=True, now=now)
                break
        for shard in range(8):
            table.claim(shard, A, now, alive)
    assert table.is_barred(A, now) and delayed <= (STRIKES + 1) * LEASE
    assert not table.claim(7, A, now, alive)
    assert not table.is_barred(A, now + FORGIVEN_AFTER * LEASE)  # a bad hour is forgiven, with what it may cost again


def test_an_accepted_result_clears_strikes() -> None:
    table = leases()
    for shard in range(int(STRIKES) - 1):
        table.claim(shard, A, 0.0, alive)
        table.claim(shard, B, 100.0 + shard, alive)
    table.claim(5, A, 200.0, alive)
    table.commit(5, A, b"done")
    table.decided(5, b"done", accepted=True, now=201.0)
    table.claim(6, A, 300.0, alive)
    table.claim(6, C, 400.0, alive)
    assert not table.is_barred(A, 401.0)


def test_nodes_that_died_three_times_may_go_on() -> None:
    table = leases()
    for shard in range(4):
        table.claim(shard, A, 100.0 * shard, alive)
        table.claim(shard, B, 100.0 * shard + 20.0, dead)
        table.commit(shard, B, b"%d" % shard)
    assert table.taken_over == 4 and not table.is_barred(A, 400.0)


def test_no_node_does_two_copies_of_the_same() -> None:
    table = leases(kind="judge", subject="cd" * 32, copies=3, shard_size=64)
    assert table.spec.shards == 3
    assert table.claim(0, A, 0.0, alive) and not table.claim(1, A, 0.0, alive)
    table.commit(0, A, b"one")
    table.decided(0, b"one", accepted=True, now=1.0)
    assert not table.claim(1, A, 2.0, alive) and table.claim(1, B, 2.0, alive) and table.claim(2, C, 2.0, alive)


def test_what_the_owner_has_needs_nobody_any_more() -> None:
    table = leases()
    for shard in range(8):
        table.finished(shard)
    table.finished(99)
    assert len(table.done) == 8 and not table.claim(3, A, 0.0, alive)


def test_a_node_chooses_what_suits_it_best_and_others_may_follow_after_a_while() -> None:
    table = leases(last=64, shard_size=1)
    others = [A, B, C]
    now = 0.5
    chosen = {node: table.choose(node, others, now, alive) for node in others}
    for node, shard in chosen.items():
        assert shard is not None and min(others, key=lambda one: weight(TASK, shard, one)) == node
    for shard in range(64):
        if shard != chosen[A]:
            table.finished(shard)
    assert table.choose(B, others, now, alive) is None  # the last one is A's for a while
    assert table.choose(B, others, now + 2 * PATIENCE_SECONDS, alive) == chosen[A]
    assert table.choose(B, [B], now, alive) == chosen[A]  # or A is not there


def test_what_somebody_left_undone_comes_first() -> None:
    table = leases(last=64, shard_size=1)
    worst = max(range(64), key=lambda shard: weight(TASK, shard, A))
    table.claim(worst, B, 0.0, alive)
    assert table.choose(A, [A], 1.0, alive) != worst
    assert table.choose(A, [A], 1.0, dead) == worst


def test_who_holds_enough_chooses_nothing() -> None:
    table = leases()
    for shard in range(MOST_HELD):
        table.claim(shard, A, 0.0, alive)
    assert table.choose(A, [A], 1.0, alive) is None


def test_a_shard_that_does_not_exist_is_nobodys() -> None:
    assert not leases().claim(8, A, 0.0, alive) and not leases().claim(-1, A, 0.0, alive)
