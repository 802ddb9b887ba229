"""Old gossip messages that somebody sends again."""

import time

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from libp2p.pubsub.pb import rpc_pb2

from node.network.host import Libp2pNetwork
from node.network.screening import PUBLISHED, WIDTH, Window

START = time.time_ns()


def test_messages_may_overtake_each_other_and_come_once() -> None:
    window = Window()
    assert [window.take(START + n) for n in (0, 3, 1, 2, 3, 0, 4)] == [True, True, True, True, False, False, True]


def test_after_a_restart_nothing_of_before_is_news() -> None:
    window = Window()
    assert window.take(START) and window.take(START + 10**9)
    assert not window.fresh(START + 1) and not window.take(START + 1)
    assert window.fresh(START + 10**9 + 1)


def test_a_number_from_the_future_is_taken_and_makes_nothing_of_later_old() -> None:
    window, latest = Window(), START + 300 * 10**9
    tomorrow = START + 86_400 * 10**9
    assert window.take(tomorrow, latest) and window.fresh(tomorrow, latest)
    assert window.take(START, latest) and not window.take(START, latest)


def test_who_numbers_at_random_is_let_be() -> None:
    window = Window()
    assert all(window.take(number) for number in (2**63, 17, START, 17, START - 5))


@given(st.lists(st.integers(0, 2 * WIDTH), max_size=200))
def test_a_window_says_what_a_set_of_all_numbers_would(numbers: list[int]) -> None:
    window, taken = Window(), set()
    for number in numbers:
        fresh = number not in taken and max(taken, default=0) - number < WIDTH
        assert window.fresh(START + number) == window.take(START + number) == fresh
        taken.add(number)


def gossip(publisher: Libp2pNetwork, number: int) -> rpc_pb2.Message:
    """As libp2p hands it to our validator: its signature was checked."""
    author = publisher._host.get_id().to_bytes()
    return rpc_pb2.Message(data=b"x", topicIDs=["news"], from_id=author, seqno=number.to_bytes(8, "big"))


@pytest.fixture
async def pair(real) -> tuple[Libp2pNetwork, Libp2pNetwork]:
    one, two = real.make(), real.make()
    one.subscribe("news", lambda publisher, data: True)
    await real.start(one, two)
    await real.introduce(one, two)
    return one, two


async def test_a_replay_is_dropped_unread_and_spends_nothing_of_its_publishers_budget(pair) -> None:
    one, two = pair
    message = gossip(two, START)
    forwarder = two._host.get_id().to_bytes()
    assert one._screen.admit(forwarder, message) and one._screen.accepts("news", message)
    assert not one._screen.admit(forwarder, message)
    assert not any(one._screen.accepts("news", message) for _ in range(2 * int(PUBLISHED[1])))
    assert one._screen.accepts("news", gossip(two, START + 1))
    accepted = [one._screen.accepts("news", gossip(two, START + n)) for n in range(2, 2 * int(PUBLISHED[1]))]
    assert accepted[0] and not accepted[-1]  # the control: new messages do spend it


async def test_what_a_muted_member_publishes_is_not_read_and_what_it_forwards_is(pair) -> None:
    one, two = pair
    forwarder = two._host.get_id().to_bytes()
    one.mute(two.address, 0.2)
    assert not one._screen.admit(forwarder, gossip(two, START))
    assert one._screen.admit(forwarder, gossip(one, START))  # the control: it may forward others' words
    await trio.sleep(0.25)
    assert one._screen.admit(forwarder, gossip(two, START))
