import pytest
import trio
import trio.testing

from node.swarm import author_queue
from node.swarm.author_queue import AuthorQueue
from protocol.identity import Address, NodeKey
from protocol.messages import LotsRevealed, Signed

HONEST, FLOODER, OTHER = (NodeKey(bytes([n]) * 32).address for n in (1, 2, 3))


def told(author: Address, window: int = 0) -> Signed[LotsRevealed]:
    return Signed(author, LotsRevealed(pool=1, window=window, secret=bytes(32)), b"")


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> AuthorQueue[Signed[LotsRevealed]]:
    monkeypatch.setattr(author_queue, "ROOM", 10)
    monkeypatch.setattr(author_queue, "ROOM_EACH", 4)
    return AuthorQueue[Signed[LotsRevealed]]()


async def test_a_flood_pushes_nobody_elses_messages_out_of_a_slow_subscribers_channel(reader) -> None:
    heard = [reader.offer(FLOODER, told(FLOODER)) for _ in range(100)]
    assert heard == [True] * 4 + [False] * 96
    assert all(reader.offer(HONEST, told(HONEST)) for _ in range(4))
    assert reader.offer(OTHER, told(OTHER)) and reader.offer(OTHER, told(OTHER))
    assert not reader.offer(OTHER, told(OTHER))  # the control: the channel is full, whoever it is


async def test_what_was_read_makes_room_again(reader) -> None:
    for window in range(3):
        for _ in range(3):
            assert reader.offer(FLOODER, told(FLOODER, window)) and reader.offer(HONEST, told(HONEST, window))
        for _ in range(6):
            assert (await reader.channel.receive()).message.window == window
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.channel.receive)
        await trio.testing.wait_all_tasks_blocked()
        assert [reader.offer(FLOODER, told(FLOODER)) for _ in range(6)] == [True] * 5 + [
            False
        ]  # one went straight to its reader


async def test_a_reader_that_went_away_is_noticed(reader) -> None:
    reader.channel.close()
    with pytest.raises(trio.BrokenResourceError):
        reader.offer(HONEST, told(HONEST))


async def test_what_one_author_may_leave_unread_is_bounded_however_much_was_read_before() -> None:
    reader = AuthorQueue[Signed[LotsRevealed]]()
    for _ in range(3 * author_queue.ROOM_EACH):
        assert reader.offer(FLOODER, told(FLOODER))
        await reader.channel.receive()
    heard = [reader.offer(FLOODER, told(FLOODER)) for _ in range(author_queue.ROOM_EACH + 5)]
    assert heard == [True] * author_queue.ROOM_EACH + [False] * 5
