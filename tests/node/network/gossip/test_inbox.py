"""What one peer says: heard as it comes, and never for so long that others wait."""

from collections.abc import Callable, Iterator

import pytest
import trio
import trio.testing
from libp2p.stream_muxer.exceptions import MuxedStreamEOF
from libp2p.utils import encode_varint_prefixed

from node.network.gossip import gossip
from node.network.gossip.gossip import Inbox


class Stream:
    """What an inbox needs of a stream."""

    def __init__(self) -> None:
        self.here = b""
        self.over = False
        self.told: Callable[[], None] = lambda: None

    def listen(self, listener: Callable[[], None]) -> None:
        self.told = listener
        listener()

    def read_now(self) -> bytes:
        if not self.here and self.over:
            raise MuxedStreamEOF("the stream ended")
        data, self.here = self.here, b""
        return data

    def brings(self, *packets: bytes) -> None:
        self.here += b"".join(encode_varint_prefixed(packet) for packet in packets)
        self.told()


class Heard:
    """Hears what comes; `bad` is an error."""

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        self.runs = 0
        self.stream = Stream()
        self.inbox = Inbox(self.stream, 100_000, self.hear, self.heard)  # type: ignore[arg-type]

    def hear(self, packet: bytes) -> Iterator[None]:
        if packet == b"bad":
            raise RuntimeError("no packet")
        self.packets.append(packet)
        yield

    def heard(self) -> None:
        self.runs += 1


async def test_a_packet_is_heard_at_once_and_no_task_is_woken(nursery: trio.Nursery) -> None:
    node = Heard()
    nursery.start_soon(node.inbox.run)
    await trio.testing.wait_all_tasks_blocked()
    runs = node.runs
    node.stream.brings(b"one", b"two")
    assert node.packets == [b"one", b"two"] and node.runs == runs + 1
    whole = encode_varint_prefixed(b"three")
    for part in (whole[:2], whole[2:]):
        node.stream.here += part
        node.stream.told()
    assert node.packets[2:] == [b"three"]


@pytest.mark.parametrize(("size", "most"), [(1, 8), (2048 * 8, 1)])
async def test_of_many_packets_others_run_between(nursery: trio.Nursery, size: int, most: int) -> None:
    node, seen = Heard(), [0]
    nursery.start_soon(node.inbox.run)
    await trio.testing.wait_all_tasks_blocked()
    node.stream.brings(*[bytes(size)] * 5 * most)
    while len(node.packets) < 5 * most:
        seen.append(len(node.packets))
        node.stream.told()  # more comes meanwhile
        await trio.lowlevel.checkpoint()
    runs = [after - before for before, after in zip(seen, seen[1:], strict=False)]
    assert max(runs) <= 2 * most  # tasks of one turn run in any order
    await trio.testing.wait_all_tasks_blocked()
    node.stream.brings(b"again at once")
    assert node.packets[-1] == b"again at once"


async def test_what_came_before_the_end_is_heard_and_then_the_end() -> None:
    node = Heard()
    node.stream.brings(*[b"x"] * 50)
    node.stream.over = True
    with pytest.raises(MuxedStreamEOF):
        await node.inbox.run()
    assert len(node.packets) == 50


async def test_a_packet_that_is_none_or_too_long_ends_it() -> None:
    for data, error in ((encode_varint_prefixed(b"bad"), RuntimeError), (b"\xff\xff\xff\x7f", ValueError)):
        node = Heard()
        node.stream.here = encode_varint_prefixed(b"good") + data
        with pytest.raises(error):
            await node.inbox.run()
        assert node.packets == [b"good"]


async def test_once_it_is_closed_nothing_is_heard(nursery: trio.Nursery) -> None:
    node, ended = Heard(), trio.Event()

    async def run() -> None:
        await node.inbox.run()
        ended.set()

    nursery.start_soon(run)
    await trio.testing.wait_all_tasks_blocked()
    node.inbox.close()
    node.stream.brings(b"late")
    with trio.fail_after(5):
        await ended.wait()
    node.stream.brings(b"later")
    assert node.packets == []


async def test_who_says_more_than_its_budget_is_heard_later_and_nothing_is_lost(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    rate, burst = gossip.HEARD
    node = Heard()
    nursery.start_soon(node.inbox.run)
    await trio.testing.wait_all_tasks_blocked()
    for _ in range(int(burst)):
        node.stream.brings(b"x", b"x")
    await trio.sleep(0.5)
    assert burst <= len(node.packets) <= burst + 0.5 * rate + 2 * 8
    await trio.sleep(burst / rate + 1)
    assert len(node.packets) == 2 * burst
