from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.swarm import message_store as shelf_module
from node.swarm.counts import COUNTS
from node.swarm.message_store import KEPT_STEPS, MessageStore, SeenMessage
from protocol.identity import Address, NodeKey
from protocol.messages import (
    EpochRootSigned,
    Heartbeat,
    LotsRevealed,
    Message,
    PolicyAnnounced,
    RolloutCommitted,
    Signed,
    VerdictRequested,
)
from protocol.statements import EpochRoot, WorkCommitment
from tests.words import announced as policy_announced

PER_STEP = 2

TRAINER, WORKER, FLOODER, OTHER = (NodeKey(bytes([n]) * 32).address for n in (1, 2, 3, 4))


def beat(sequence: int) -> Heartbeat:
    return Heartbeat(
        pool=1, boot=0, count=sequence, at=sequence, role="", state="", contact="", policy_step=0, interval=1.0
    )


def policy(step: int) -> PolicyAnnounced:
    return policy_announced(step, bytes(32))


def committed(node: Address, index: int) -> RolloutCommitted:
    commitment = WorkCommitment(1, node, bytes(32), index, bytes(32), 5)
    return RolloutCommitted(pool=1, commitment=commitment, signature=b"", size=9)


def nothing(name: bytes) -> bool:
    """What one knows who has just come."""
    return False


class Played:
    """A shelf, and names for what is put there."""

    def __init__(self) -> None:
        self.message_store = MessageStore()
        self._count = 0

    def name(self) -> bytes:
        self._count += 1
        return self._count.to_bytes(8, "big")

    def put(self, author: Address, message: Message, now: float = 0.0, *, direct: bool = True, size: int = 8) -> bytes:
        name = self.name()
        self.message_store.put(name, Signed(author, message, name.ljust(size, b".")), now, direct=direct)
        return name

    def commit(self, author: Address, many: int, *, direct: bool = True, size: int = 8) -> list[bytes]:
        return [self.put(author, committed(author, index), direct=direct, size=size) for index in range(many)]


@pytest.fixture
def played() -> Played:
    return Played()


def test_who_says_too_much_loses_its_own_oldest_and_nobody_elses(played: Played) -> None:
    honest = played.commit(WORKER, 5)
    flood = played.commit(FLOODER, 10_000)
    assert played.message_store.many(FLOODER, RolloutCommitted) == COUNTS[RolloutCommitted].kept
    assert [name in played.message_store for name in honest] == [True] * 5
    assert flood[-1] in played.message_store and flood[0] not in played.message_store
    assert played.message_store.many(WORKER, RolloutCommitted) == 5  # the control: nothing is let go of below the bound


def test_what_others_hand_on_takes_no_place_from_what_the_author_said(played: Played) -> None:
    said = played.commit(WORKER, COUNTS[RolloutCommitted].kept)
    handed_on = played.commit(WORKER, 500, direct=False)
    assert all(name in played.message_store for name in said)
    assert not any(name in played.message_store for name in handed_on)


def test_what_others_handed_on_goes_first(played: Played) -> None:
    handed_on = played.commit(WORKER, COUNTS[RolloutCommitted].kept, direct=False)
    assert all(name in played.message_store for name in handed_on)  # the control: where there is room it is kept
    said = played.commit(WORKER, 100)
    assert all(name in played.message_store for name in said)
    assert sum(name in played.message_store for name in handed_on) == COUNTS[RolloutCommitted].kept - 100


def test_when_all_of_it_is_too_much_who_holds_most_loses(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf_module, "MAX_MESSAGES", 60)
    honest = played.commit(WORKER, 20)
    played.commit(FLOODER, 50)
    played.commit(OTHER, 25)
    assert [name in played.message_store for name in honest] == [True] * 20
    assert (
        played.message_store.many(FLOODER, RolloutCommitted) == played.message_store.many(OTHER, RolloutCommitted) == 20
    )
    played.commit(WORKER, 5)  # now it is the one that holds most
    assert played.message_store.many(WORKER, RolloutCommitted) in (20, 21)


def test_only_the_newest_heartbeat_is_kept_and_an_older_one_is_no_news(played: Played) -> None:
    for sequence in (5, 7, 6):
        played.put(WORKER, beat(sequence))
    assert [signed.message.count for signed in played.message_store.messages(Heartbeat)] == [7]
    assert played.message_store.names(100) == [(2).to_bytes(8, "big")]  # nobody keeps an old one, so nobody hands it on


def test_the_newest_policies_stay_whatever_their_age(played: Played) -> None:
    for step in range(3 * KEPT_STEPS):
        played.put(TRAINER, policy(step), now=step * played.message_store.max_age)
    steps = [signed.message.step for signed in played.message_store.messages(PolicyAnnounced)]
    assert steps == list(range(2 * KEPT_STEPS, 3 * KEPT_STEPS))
    late = played.put(TRAINER, policy(1))
    assert late not in played.message_store


@pytest.mark.parametrize("steps", [[7] * 500, [10**18 - n for n in range(500)], list(range(500)) * 3])
def test_a_trainer_out_of_its_mind_is_bounded(played: Played, steps: list[int]) -> None:
    for step in steps:
        played.put(TRAINER, policy(step))
    kept = [signed.message.step for signed in played.message_store.messages(PolicyAnnounced)]
    assert len(kept) <= KEPT_STEPS * PER_STEP and max(kept.count(step) for step in kept) <= PER_STEP
    assert max(kept) == max(steps)


def test_what_is_old_goes_and_is_still_recognised(played: Played) -> None:
    name = played.put(WORKER, committed(WORKER, 0))
    played.put(WORKER, committed(WORKER, 1), now=played.message_store.max_age)
    assert name in played.message_store
    played.put(WORKER, committed(WORKER, 2), now=played.message_store.max_age + 1)
    assert name not in played.message_store and played.message_store.seen(name) == SeenMessage(WORKER, RolloutCommitted)
    assert played.message_store.seen(played.name()) is None


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf_module, "REMEMBERED", 100)
    played = Played()
    names = played.commit(WORKER, 300)
    assert [name for name in names if played.message_store.seen(name)] == names[-100:]


def test_of_what_is_remembered_each_author_stands_there_once(played: Played) -> None:
    names = [played.put(Address(str(WORKER)[:2] + str(WORKER)[2:]), committed(WORKER, n)) for n in range(50)]
    assert len({id(played.message_store.seen(name)) for name in names}) == 1


def test_pinned_evidence_stays_whatever_its_author_says(played: Played) -> None:
    evidence = [(played.name(), Signed(FLOODER, committed(FLOODER, n), b"evidence")) for n in range(3)]
    for name, signed in evidence[:2]:
        played.message_store.pin(name, signed, 0.0)
    loose, signed = evidence[2]
    played.message_store.put(loose, signed, 0.0, direct=True)
    played.commit(FLOODER, 1000)
    played.put(WORKER, committed(WORKER, 0), now=10 * played.message_store.max_age)
    assert [name in played.message_store for name, _ in evidence] == [True, True, False]
    assert len(played.message_store.messages(RolloutCommitted)) == 3
    assert len(played.message_store.share(nothing, 10_000)) == 3


def test_of_pinned_evidence_the_newest_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shelf_module, "MAX_PINNED", 2)
    played = Played()
    names = [played.name() for _ in range(3)]
    for number, name in enumerate(names):
        played.message_store.pin(name, Signed(FLOODER, committed(FLOODER, number), name), 0.0)
    assert [name in played.message_store for name in names] == [False, True, True]


def test_a_flood_leaves_the_others_their_place_in_an_answer(played: Played) -> None:
    honest = {played.put(WORKER, committed(WORKER, n), size=1000) for n in range(8)}
    flood = played.commit(FLOODER, 100, size=1000)
    answer = [raw[:8] for raw in played.message_store.share(nothing, 16_000)]
    assert honest < set(answer) and len(answer) == 16
    assert answer == sorted(answer)  # the oldest first
    assert set(answer) - honest == set(flood[-8:])  # and of each the newest, where not all fit
    more = [raw[:8] for raw in played.message_store.share(set(answer).__contains__, 16_000)]
    assert not set(more) & set(answer) and len(more) == 16  # what is known takes no room


def test_what_was_let_go_of_is_not_asked_for_again(played: Played) -> None:
    names = played.commit(FLOODER, COUNTS[RolloutCommitted].kept + 10)
    assert set(played.message_store.names(10_000)) == set(names)
    assert len(played.message_store.names(20)) == 20
    other = Played()
    other.commit(FLOODER, 10)  # the control: it still holds what was let go of here
    assert other.message_store.share(set(played.message_store.names(10_000)).__contains__, 10_000) == []


AUTHORS = (TRAINER, WORKER, FLOODER, OTHER)


def messages_of(author: Address) -> Iterator[st.SearchStrategy[Message]]:
    yield st.builds(beat, st.integers(0, 20))
    yield st.builds(policy, st.integers(0, 80))
    yield st.builds(lambda index: committed(author, index), st.integers(0, 3))
    yield st.builds(lambda window: LotsRevealed(pool=1, window=window, secret=bytes(32)), st.integers(0, 3))
    yield st.just(VerdictRequested(pool=1, commitment=b""))
    yield st.just(EpochRootSigned(pool=1, statement=EpochRoot(1, 0, 1, bytes(32), 1, bytes(32)), signature=bytes(65)))


said = st.one_of([st.tuples(st.just(author), one) for author in AUTHORS for one in messages_of(author)])
moves = st.tuples(said, st.booleans(), st.integers(0, 30), st.sampled_from(["put", "put", "put", "pin", "again"]))
FEW = {Heartbeat: 1, PolicyAnnounced: 6, RolloutCommitted: 4, LotsRevealed: 2, VerdictRequested: 3, EpochRootSigned: 1}
LITTLE = {kind: msgspec.structs.replace(COUNTS[kind], kept=kept) for kind, kept in FEW.items()}


@given(st.lists(moves, max_size=120))
def test_the_bounds_hold_whatever_comes(story: list) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shelf_module, "COUNTS", LITTLE)
        patch.setattr(shelf_module, "KEPT_STEPS", 3)
        patch.setattr(shelf_module, "MAX_MESSAGES", 12)
        patch.setattr(shelf_module, "MAX_PINNED", 5)
        patch.setattr(shelf_module, "LET_GO", 7)
        patch.setattr(shelf_module, "REMEMBERED", 40)
        played, now, last = Played(), 0.0, b""
        for (author, message), direct, pause, move in story:
            now += pause
            name = last if move == "again" and last else played.name()
            last = name
            signed = Signed(author, message, name)
            if move == "pin":
                played.message_store.pin(name, signed, now)
            elif played.message_store.put(name, signed, now, direct=direct):
                assert name in played.message_store or not direct  # what others hand on goes first
            hold(played.message_store, now)


def hold(message_store: MessageStore, now: float) -> None:
    """Every bound, and that the shelf's indexes say the same as one another."""
    kept = message_store._kept.values()
    for author in AUTHORS:
        for kind, most in FEW.items():
            of_it = [one for one in kept if one.signed.author == author and type(one.signed.message) is kind]
            assert len(of_it) == message_store.many(author, kind) <= most
    free = [one for one in kept if isinstance(one.signed.message, Heartbeat | PolicyAnnounced)]
    assert len(kept) - len(free) == message_store._ranks.total <= 12
    assert message_store._ranks.total == sum(message_store._ranks._many.values())
    assert message_store._ranks._most == max(message_store._ranks._many.values(), default=0)
    rows = sum(len(row) for held in message_store._held.values() for row in held.values())
    assert rows + len(message_store._beats) == len(message_store)
    assert len(message_store._aging) + len(message_store._beats) + sum(
        isinstance(one.signed.message, PolicyAnnounced) for one in kept
    ) == len(message_store)
    assert len(message_store._pinned) <= 5 and len(message_store._let_go) <= 7 and len(message_store._seen) <= 40
    assert sorted(raw for raw in message_store.share(nothing, 10**6)) == sorted(
        {*message_store._kept, *message_store._pinned}
    )
    assert all(
        one.at >= now - 2 * message_store.max_age
        for one in [*message_store._aging.values(), *message_store._beats.values()]
    )


@pytest.mark.parametrize(("members", "kept"), [(10, 0), (1000, 1000)])
def test_heartbeats_are_kept_until_the_next_is_overdue_in_a_large_pool(played: Played, members: int, kept: int) -> None:
    authors = [Address(f"0x{number:040x}") for number in range(members)]
    for author in authors:
        played.put(author, beat(1))
    played.put(WORKER, committed(WORKER, 0), now=390.0)  # 8 intervals of a thousand members are 400 s
    assert len(played.message_store.messages(Heartbeat)) == kept
    played.put(WORKER, committed(WORKER, 1), now=410.0)
    assert played.message_store.messages(Heartbeat) == []
