"""Origin -> relay -> client over HTTP, and what a relay refuses."""

from collections.abc import Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest
import trio

from node.blobs.http.fetch import HttpBlobs, fetch_listing
from node.blobs.http.mirror import Mirror, root_of_image
from node.blobs.http.server import Gateway, ServedPolicy
from node.blobs.http.sources import (
    HttpSource,
    MalformedListing,
    PolicyRow,
    decode_listing,
    encode_listing,
    parse_source,
)
from node.blobs.store import BlobStore
from node.web.host import bind
from node.web.listener import HttpListener
from protocol.policy import MalformedPolicy, decode_image, describe_tensors, encode_image, policy_root


def image_of(step: int) -> bytes:
    return encode_image({"a": np.full((64, 1024), step, np.uint16), "b": np.arange(7, dtype=np.uint16)})


async def origin(store: BlobStore, steps: Sequence[int]) -> list[ServedPolicy]:
    policies: list[ServedPolicy] = []
    for step in steps:
        data = image_of(step)
        info = await store.add(data)
        root = policy_root(step, describe_tensors(decode_image(data)))
        policies.append(ServedPolicy(step, root, info.root, info.size, store.path(info.root), b"signed"))
    return policies


@asynccontextmanager
async def serving(store: BlobStore, policies: Callable[[], Sequence[ServedPolicy]]):
    listener = HttpListener(bind("127.0.0.1:0", "the gateway", "--gateway"))
    gateway = Gateway(listener, store, policies)
    async with trio.open_nursery() as nursery:
        await nursery.start(listener.run)
        yield parse_source(gateway.source(), private=True)
        nursery.cancel_scope.cancel()


async def until(true: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not true():
            await trio.sleep(0.02)


async def test_a_relay_follows_an_origin_and_serves_what_it_holds(tmp_path: Path) -> None:
    first, middle, last = (BlobStore(tmp_path / name, quota=10**8) for name in ("first", "middle", "last"))
    policies = await origin(first, [3, 4])
    async with serving(first, lambda: policies) as source, trio.open_nursery() as nursery:
        mirror = Mirror(middle, [HttpSource("http://127.0.0.1:1", private=True), source], keep=2, every=0.02)
        await nursery.start(mirror.run)
        await until(lambda: [held.step for held in mirror.policies()] == [3, 4])
        async with serving(middle, mirror.policies) as relay:
            rows = await fetch_listing(relay)
            assert bytes.fromhex(rows[0].announcement) == b"signed"
            path = await HttpBlobs(last).fetch(bytes.fromhex(rows[-1].image_root), [relay], max_size=10**7, timeout=20)
            assert path.read_bytes() == image_of(rows[-1].step)
        nursery.cancel_scope.cancel()


async def test_a_relay_whose_store_is_full_goes_on_to_the_newest(tmp_path: Path) -> None:
    first = BlobStore(tmp_path / "first", quota=10**8)
    middle = BlobStore(tmp_path / "middle", quota=int(2.5 * len(image_of(0))))
    policies = await origin(first, range(6))
    shown = 1
    async with serving(first, lambda: policies[:shown]) as source, trio.open_nursery() as nursery:
        mirror = Mirror(middle, [source], every=0.02)
        await nursery.start(mirror.run)
        for shown in range(1, 7):
            await until(lambda shown=shown: bool(mirror.policies()) and mirror.policies()[-1].step == shown - 1)
            assert all(middle.has(held.image_root) for held in mirror.policies())
        nursery.cancel_scope.cancel()
    assert [held.step for held in mirror.policies()] == [4, 5]


async def test_a_relay_drops_the_oldest_and_what_it_took(tmp_path: Path) -> None:
    first, middle = (BlobStore(tmp_path / name, quota=10**8) for name in ("first", "middle"))
    policies = await origin(first, range(4))
    shown = 2
    async with serving(first, lambda: policies[:shown]) as source, trio.open_nursery() as nursery:
        mirror = Mirror(middle, [source], keep=2, every=0.02)
        await nursery.start(mirror.run)
        await until(lambda: [held.step for held in mirror.policies()] == [0, 1])
        shown = 4
        await until(lambda: [held.step for held in mirror.policies()] == [2, 3])
        assert middle.used == 2 * len(image_of(0))
        nursery.cancel_scope.cancel()


async def test_an_image_that_is_not_the_listed_policy_is_never_served_on(tmp_path: Path) -> None:
    first, middle = (BlobStore(tmp_path / name, quota=10**8) for name in ("first", "middle"))
    (good,) = await origin(first, [1])
    lie = ServedPolicy(2, bytes(32), good.image_root, good.image_size, good.path)
    junk = await first.add(b"no image at all")
    noise = ServedPolicy(3, b"\1" * 32, junk.root, junk.size, first.path(junk.root))
    async with serving(first, lambda: [lie, noise]) as source, trio.open_nursery() as nursery:
        mirror = Mirror(middle, [source], every=0.02)
        await nursery.start(mirror.run)
        await until(lambda: mirror.refused == 2)
        assert mirror.policies() == () and middle.used == 0
        nursery.cancel_scope.cancel()


def same_weights(good: ServedPolicy, steps: Sequence[int]) -> list[ServedPolicy]:
    """What steps that changed nothing leave: the same image under other roots."""
    tensors = describe_tensors(decode_image(good.path.read_bytes()))
    return [msgspec.structs.replace(good, step=step, policy_root=policy_root(step, tensors)) for step in steps]


async def test_steps_that_changed_nothing_share_an_image_until_the_last_of_them_goes(tmp_path: Path) -> None:
    first, middle = (BlobStore(tmp_path / name, quota=10**8) for name in ("first", "middle"))
    (good,) = await origin(first, [1])
    policies = [good, *same_weights(good, [2, 3, 4]), *await origin(first, [5, 6])]
    shown = 4
    async with serving(first, lambda: policies[:shown]) as source, trio.open_nursery() as nursery:
        mirror = Mirror(middle, [source], keep=2, every=0.02)
        await nursery.start(mirror.run)
        await until(lambda: [held.step for held in mirror.policies()] == [3, 4])
        assert middle.used == len(image_of(1)) and len({held.policy_root for held in mirror.policies()}) == 2
        shown = 5
        await until(lambda: [held.step for held in mirror.policies()] == [4, 5])
        assert middle.has(good.image_root)
        shown = 6
        await until(lambda: [held.step for held in mirror.policies()] == [5, 6])
        assert not middle.has(good.image_root)
        nursery.cancel_scope.cancel()


async def test_a_policy_under_another_step_is_refused_and_costs_nobody_an_image(tmp_path: Path) -> None:
    first, middle = (BlobStore(tmp_path / name, quota=10**8) for name in ("first", "middle"))
    (good,) = await origin(first, [1])
    lie = msgspec.structs.replace(good, step=2)
    shown = [good]
    async with serving(first, lambda: shown) as source, trio.open_nursery() as nursery:
        mirror = Mirror(middle, [source], every=0.02)
        await nursery.start(mirror.run)
        await until(lambda: len(mirror.policies()) == 1)
        shown = [good, lie]
        await until(lambda: mirror.refused == 1)
        assert [held.step for held in mirror.policies()] == [1] and middle.has(good.image_root)
        shown = [good, *same_weights(good, [2])]
        await until(lambda: [held.step for held in mirror.policies()] == [1, 2])
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "change",
    [{"step": -1}, {"policy_root": "00"}, {"image_root": "zz" * 32}, {"image_size": 0}, {"announcement": "0"}],
)
def test_a_list_that_makes_no_sense_is_refused(change: dict) -> None:
    fields = {"step": 1, "policy_root": "00" * 32, "image_root": "00" * 32, "image_size": 1, "announcement": ""}
    decode_listing(encode_listing([PolicyRow(**fields)]))
    for rows in ([PolicyRow(**{**fields, **change})], [PolicyRow(**fields)] * 2, [PolicyRow(**fields)] * 65):
        with pytest.raises(MalformedListing):
            decode_listing(encode_listing(rows))
    with pytest.raises(MalformedListing):
        decode_listing(b'{"policies": [], "x": ' + b"[" * 100_000)
    with pytest.raises(MalformedListing):
        decode_listing(b"[" * 100_000)


def test_what_is_no_image_has_no_policy_root(tmp_path: Path) -> None:
    for data in (b"", b"x", image_of(1)[:-1]):
        (tmp_path / "image").write_bytes(data)
        with pytest.raises(MalformedPolicy):
            root_of_image(tmp_path / "image", 1)
