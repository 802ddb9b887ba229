"""Blobs between nodes."""

import os
from pathlib import Path

import msgspec
import pytest
import trio

from node.blobs import wire as wire
from node.blobs.errors import BlobTooLarge, BlobUnavailable, StoreFull
from node.blobs.exchange import BlobExchange
from node.blobs.store import BlobStore
from protocol.blobs import MAX_BLOB_SIZE, BlobInfo, choose_piece_size, describe
from protocol.identity import Address

MIB = 1024**2


class Node:
    """A network with a store and an exchange."""

    def __init__(self, swarm, folder: Path, quota: int = 64 * MIB) -> None:
        self.network = swarm.make()
        self.store = BlobStore(folder, quota)
        self.exchange = BlobExchange(self.network, self.store)
        self.served = 0
        answer = self.exchange._answer

        async def counted(asker: Address, request: bytes) -> bytes:
            self.served += 1
            return await answer(asker, request)

        self.network.serve(wire.PROTOCOL, counted, max_request=wire.MAX_REQUEST)

    @property
    def address(self) -> Address:
        return self.network.address


class Liar(Node):
    """Has the right piece list, and one flipped bit in every run of pieces."""

    def __init__(self, swarm, folder: Path) -> None:
        super().__init__(swarm, folder)
        read = self.exchange._read

        async def lie(*args: object) -> bytes:
            data = bytearray(await read(*args))
            data[-1] ^= 1
            return bytes(data)

        self.exchange._read = lie


async def _nodes(swarm, folders, *kinds: type[Node]) -> list[Node]:
    nodes = [kind(swarm, Path(next(folders))) for kind in kinds]
    await swarm.start(*(node.network for node in nodes))
    await swarm.introduce(*(node.network for node in nodes))
    return nodes


async def _offer(data: bytes, *nodes: Node) -> BlobInfo:
    return [await node.store.add(data) for node in nodes][0]


async def test_a_blob_arrives_from_several_sources(swarm, folders) -> None:
    one, two, three = await _nodes(swarm, folders, Node, Node, Node)
    data = os.urandom(5 * MIB + 17)
    info = await _offer(data, one, two)
    path = await three.exchange.fetch(info.root, [one.address, two.address], timeout=60)
    assert path.read_bytes() == data
    assert one.served and two.served


async def test_who_lacks_a_blob_is_not_asked_about_it_while_somebody_else_sends_all_of_it(swarm, folders) -> None:
    one, two, three = await _nodes(swarm, folders, Node, Node, Node)
    asked = list[int]()
    for _ in range(4):  # where the machine stands still for half a second, somebody else may be asked
        info, before = await _offer(os.urandom(wire.INLINE + MIB), one), three.served
        await two.exchange.fetch(info.root, [one.address, three.address], timeout=60)
        asked.append(three.served - before)
    assert min(asked) == 0, asked


async def test_pieces_of_the_largest_blobs_arrive(swarm, folders) -> None:
    """An image of 141 GB has pieces of 4 MiB, and one of a TiB of 16: more than fits an answer, or a window."""
    one, two = await _nodes(swarm, folders, Node, Node)
    for whole in (141 * 10**9, MAX_BLOB_SIZE):
        data = os.urandom(choose_piece_size(whole) + 17)
        path = one.store.directory / "source"
        path.write_bytes(data)
        info = describe(data, choose_piece_size(whole))
        await one.store.add(path, move=True, known=info)
        assert (await two.exchange.fetch(info.root, [one.address], timeout=60)).read_bytes() == data


async def test_small_and_empty_blobs_arrive(swarm, folders) -> None:
    one, two = await _nodes(swarm, folders, Node, Node)
    for data in (b"", b"x", os.urandom(100_000)):
        info = await _offer(data, one)
        assert (await two.exchange.fetch(info.root, [one.address], timeout=30)).read_bytes() == data


async def test_a_lying_source_is_blamed_and_the_blob_still_arrives(swarm, folders) -> None:
    honest, liar, fetcher = await _nodes(swarm, folders, Node, Liar, Node)
    data = os.urandom(6 * MIB)
    info = await _offer(data, honest, liar)
    path = await fetcher.exchange.fetch(info.root, [liar.address, honest.address], timeout=60)
    assert path.read_bytes() == data
    assert fetcher.exchange.reputation.lies(liar.address) >= 1
    assert fetcher.exchange.reputation.lies(honest.address) == 0


async def test_callers_share_one_transfer_and_outlive_its_first_caller(swarm, folders) -> None:
    one, two = await _nodes(swarm, folders, Node, Node)
    data = os.urandom(6 * MIB)
    info = await _offer(data, one)
    first = trio.CancelScope()
    paths = []

    async def call(scope: trio.CancelScope) -> None:
        with scope:
            paths.append(await two.exchange.fetch(info.root, [one.address], timeout=60))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(call, first)
        await trio.sleep(0.01)
        for _ in range(3):
            nursery.start_soon(call, trio.CancelScope())
        await trio.sleep(0.01)
        first.cancel()
    assert len(set(paths)) == 1 and len(paths) >= 3
    assert paths[0].read_bytes() == data
    assert one.exchange.scores()[two.address].sent <= 2 * info.size


async def test_a_partial_blob_is_resumed_and_its_pieces_are_not_asked_for_again(swarm, folders) -> None:
    one, two = await _nodes(swarm, folders, Node, Node)
    data = os.urandom(3 * MIB)
    info = await _offer(data, one)
    partial = await two.store.open_partial(info)
    await partial.write(0, data[: 2 * MIB])
    partial.close()
    path = await two.exchange.fetch(info.root, [one.address], timeout=60)
    assert path.read_bytes() == data
    assert one.exchange.scores()[two.address].sent == MIB


async def test_verified_pieces_of_an_unfinished_blob_are_served_on(swarm, folders) -> None:
    source, middle, last = await _nodes(swarm, folders, Node, Node, Node)
    data = os.urandom(4 * MIB)
    info = await _offer(data, source)
    half = await middle.store.open_partial(info)
    await half.write(0, data[: 2 * MIB])
    half.close()
    other = await last.store.open_partial(info)
    await other.write(8, data[2 * MIB :])
    other.close()
    async with trio.open_nursery() as nursery:  # neither has it all, nor asks the one who has
        for node, peer in ((middle, last), (last, middle)):
            nursery.start_soon(lambda n, p: n.exchange.fetch(info.root, [p.address], timeout=60), node, peer)
    assert middle.store.path(info.root).read_bytes() == last.store.path(info.root).read_bytes() == data
    assert source.served == 0


async def test_a_blob_that_nobody_has_or_that_is_too_large_is_refused(swarm, folders) -> None:
    one, two = await _nodes(swarm, folders, Node, Node)
    info = await _offer(os.urandom(2 * MIB), one)
    with pytest.raises(BlobUnavailable):
        await two.exchange.fetch(bytes(32), [one.address], timeout=0.5)
    with pytest.raises(BlobUnavailable):
        await two.exchange.fetch(bytes(32), [], timeout=0.1)
    with pytest.raises(BlobTooLarge):
        await two.exchange.fetch(info.root, [one.address], max_size=MIB, timeout=30)
    two.store.room.quota = 3 * MIB
    two.store.pin((await two.store.add(os.urandom(2 * MIB))).root)
    with pytest.raises(StoreFull):
        await two.exchange.fetch(info.root, [one.address], timeout=30)


async def test_a_source_that_learns_of_the_blob_late_is_asked_again(swarm, folders) -> None:
    one, two = await _nodes(swarm, folders, Node, Node)
    data = os.urandom(MIB)
    info = await two.store.add(data)
    two.store.evict(info.root)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: two.exchange.fetch(info.root, [one.address], timeout=30))
        await trio.sleep(0.3)
        await one.store.add(data)
    assert two.store.path(info.root).read_bytes() == data


async def test_nonsense_on_the_blob_protocol_costs_nothing_but_the_request(swarm, folders) -> None:
    one, two = await _nodes(swarm, folders, Node, Node)
    info = await _offer(os.urandom(MIB), one)
    for request in (b"", b"\xff" * 100, b"\x00" * 256):
        with pytest.raises(Exception, match="unavailable"):
            await two.network.request(one.address, wire.PROTOCOL, request, max_response=10, timeout=10)
    for ask in (wire.AskPieces(info.root, (99,)), wire.AskPieces(info.root, (-1,)), wire.AskInfo(b"short")):
        request = msgspec.msgpack.encode(ask)
        reply = await two.network.request(one.address, wire.PROTOCOL, request, max_response=10, timeout=10)
        assert reply == b"\x00"
