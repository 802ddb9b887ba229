"""What a follower keeps of policies: an image now and then, and the patches that lead on from it."""

import shutil
from functools import partial

import msgspec
import pytest
import trio
from blake3 import blake3

from node.blobs.http.fetch import HttpBlobs
from node.blobs.http.server import Gateway
from node.blobs.store import BlobStore
from node.inference.errors import EngineError
from node.services.gateway import make_whole, served
from node.web.host import bind
from node.web.listener import HttpListener
from node.weights import publish, workshop
from node.weights.workshop import written_out
from protocol.policy import encode_image, encode_manifest
from tests.node.blobs.http.test_gateway import ask, serving
from tests.node.weights.little_swarm import Comparing, bytes_of, disk, until
from tests.node.weights.test_weights import announce, published


def at(follower, step: int) -> bool:
    return follower.policy_cache.newest is not None and follower.policy_cache.newest.step == step


async def test_a_follower_writes_patches_and_an_image_where_the_trainer_sets_a_snapshot(run, origin, peer) -> None:
    async with trio.open_nursery() as nursery:
        trainer, follower, held = await published(run, partial(origin, snapshot_every=4), peer, nursery, steps=1)
        size, wrote = held.manifest.image_size, list[int]()
        for step in range(1, 10):
            before = follower.store.written
            held = await trainer.publish(step, run.step())
            await until(lambda step=step: at(follower, step))
            wrote.append(follower.store.written - before)
            assert bytes_of(follower.policy_cache.newest) == bytes_of(held)
        nursery.cancel_scope.cancel()
    assert [step for step, count in enumerate(wrote, start=1) if count > size] == [4, 8]
    assert all(count < size / 20 for count in wrote if count <= size)
    assert [len(policy.patches) for policy in follower.policy_cache.held] == [2, 3, 0, 1]
    used = sum(follower.store.room.complete.values())
    assert follower.follower.counts == {"image": 1, "patches": 9} and used < 3.5 * size
    while follower.policy_cache.make_room():
        pass
    assert bytes_of(follower.policy_cache.newest) == bytes_of(held), "what the newest rests on is never let go of"


async def test_no_more_patches_than_engines_are_asked_to_apply(run, origin, monkeypatch) -> None:
    monkeypatch.setattr(publish, "MOST_LAYERS", 3)
    trainer = origin(snapshot_every=50)
    helds = [await trainer.publish(step, run.step()) for step in range(6)]
    assert [held.manifest.snapshot.step if held.manifest.snapshot else held.step for held in helds] == [
        0,
        0,
        0,
        3,
        3,
        3,
    ]


@pytest.mark.parametrize("has_room", [True, False])
async def test_what_the_engine_has_compared_is_not_put_together_here(run, origin, peer, monkeypatch, has_room) -> None:
    engine, honest, built = Comparing(has_room=has_room), workshop.build_image, list[object]()
    monkeypatch.setattr(workshop, "build_image", lambda *given: built.append(given[2]) or honest(*given))
    async with trio.open_nursery() as nursery:
        beside = partial(peer, engine=engine)
        trainer, follower, _ = await published(run, partial(origin, snapshot_every=4), beside, nursery, steps=1)
        for step in range(1, 7):
            held = await trainer.publish(step, run.step())
            await until(lambda step=step: at(follower, step))
            assert bytes_of(follower.policy_cache.newest) == bytes_of(held)
        nursery.cancel_scope.cancel()
    # The snapshot of step 4 is built here, as an image is what engines read then.
    assert engine.asked == [1, 2, 3, 5, 6] and [out is not None for out in built] == [True]
    assert not follower.blamed


async def test_an_engine_that_cannot_say_is_not_waited_for_and_one_that_errs_blames_nobody(run, origin, peer) -> None:
    engine = Comparing(refuses=EngineError("the policy's weights cannot be used", "its memory is broken", "mend it"))
    async with trio.open_nursery() as nursery:
        _, follower, held = await published(run, origin, partial(peer, engine=engine), nursery, steps=3)
        nursery.cancel_scope.cancel()
    assert engine.asked == [1, 2] and not follower.blamed
    assert bytes_of(follower.policy_cache.newest) == bytes_of(held)


@pytest.mark.parametrize("lie", ["a patch that leads elsewhere", "another image's root"])
@pytest.mark.parametrize("has_room", [True, False])
async def test_what_the_engine_objects_to_is_looked_at_here_and_its_signer_blamed(
    run, origin, peer, wire, lie, has_room
) -> None:
    engine = Comparing(has_room=has_room)
    async with trio.open_nursery() as nursery:
        trainer, follower, held = await published(run, origin, partial(peer, engine=engine), nursery, steps=2)
        trainer.board.muted = True
        good = (await trainer.publish(2, run.step())).manifest
        if lie == "another image's root":
            bad = msgspec.structs.replace(good, image_root=held.manifest.image_root)
        else:
            patch = trainer.store.path(good.patches[-1].root).read_bytes()
            wrong = await trainer.store.add(patch[:-1] + bytes([patch[-1] ^ 1]))
            last = msgspec.structs.replace(good.patches[-1], root=wrong.root)
            bad = msgspec.structs.replace(good, patches=(*good.patches[:-1], last))
        info = await trainer.store.add(encode_manifest(bad))
        wire.say(announce(trainer.key, bad, info.root))
        await until(lambda: follower.blamed)
        assert bad.policy_root not in engine.kept.roots(), "no rollout is made with it"
        third = await trainer.publish(3, run.step())
        wire.say(third.announcement)
        await until(lambda: at(follower, 3))
        assert len(follower.blamed) == 1 and bytes_of(follower.policy_cache.newest) == bytes_of(third)
        nursery.cancel_scope.cancel()


async def test_who_was_away_when_an_snapshot_was_set_makes_its_image_and_rests_on_it(run, origin, peer, wire) -> None:
    async with trio.open_nursery() as nursery:
        trainer, follower, _ = await published(run, partial(origin, snapshot_every=3), peer, nursery, steps=2)
        trainer.board.muted = True
        helds = [await trainer.publish(step, run.step()) for step in range(2, 6)]
        wire.say(helds[-1].announcement)
        await until(lambda: at(follower, 5))
        newest = follower.policy_cache.newest
        assert follower.store.has(helds[1].manifest.image_root) and len(newest.patches) == 2
        assert bytes_of(newest) == bytes_of(helds[-1]) and not follower.blamed
        fetched = [root for asker, _, root in wire.log if asker == follower.key.address]
        assert helds[1].manifest.image_root not in fetched
        nursery.cancel_scope.cancel()


async def test_the_image_of_a_snapshot_that_patches_do_not_lead_to_is_blamed_and_fetched(
    run, origin, peer, wire
) -> None:
    async with trio.open_nursery() as nursery:
        trainer, follower, _ = await published(run, partial(origin, snapshot_every=3), peer, nursery, steps=2)
        trainer.board.muted = True
        helds = [await trainer.publish(step, run.step()) for step in range(2, 5)]
        good = helds[-1].manifest
        wrong = await trainer.store.add(b"\0" + trainer.store.path(good.patches[2].root).read_bytes()[1:])
        chain = [
            msgspec.structs.replace(one, root=wrong.root) if at == 2 else one for at, one in enumerate(good.patches)
        ]
        bad = msgspec.structs.replace(good, patches=tuple(chain))
        info = await trainer.store.add(encode_manifest(bad))
        wire.say(announce(trainer.key, bad, info.root))
        await until(lambda: at(follower, 4))
        assert len(follower.blamed) == 1 and follower.follower.counts["snapshot"] == 1
        assert bytes_of(follower.policy_cache.newest) == bytes_of(helds[-1])
        nursery.cancel_scope.cancel()


async def test_a_patch_whose_base_nobody_has_waits_and_loses_nothing(run, origin, peer, wire) -> None:
    trainer = origin()
    for step in range(3):
        held = await trainer.publish(step, run.step())
    gone, image = {}, held.manifest.image_root
    for root in (held.manifest.snapshot.image_root, image):
        gone[root] = trainer.store.path(root).read_bytes()
        trainer.store.evict(root)
    follower = peer("late", trainer.key.address, retry=(0.01, 0.01))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.follower.run)
        wire.say(held.announcement)
        await until(lambda: follower.store.has(held.manifest.patches[-1].root))
        await trio.sleep(0.1)
        assert follower.policy_cache.newest is None and not follower.blamed
        await trainer.store.add(gone[held.manifest.snapshot.image_root])
        await until(lambda: at(follower, 2))
        nursery.cancel_scope.cancel()
    assert follower.follower.counts == {"snapshot": 1}


async def test_a_base_that_is_lost_under_its_patches_is_fetched_again(run, origin, peer) -> None:
    async with trio.open_nursery() as nursery:
        trainer, follower, _ = await published(run, origin, peer, nursery, steps=3)
        base = follower.policy_cache.newest.path
        follower.store.evict(bytes.fromhex(base.name))
        with pytest.raises(FileNotFoundError):
            follower.policy_cache.newest.image()
        held = await trainer.publish(3, run.step())
        await until(lambda: at(follower, 3))
        assert base.is_file() and bytes_of(follower.policy_cache.newest) == bytes_of(held) and not follower.blamed
        assert bytes_of(follower.policy_cache.held[1]), "the older ones rest on it again"
        nursery.cancel_scope.cancel()


async def test_a_base_stays_whatever_asks_for_room(run, origin, peer) -> None:
    async with trio.open_nursery() as nursery:
        _, follower, held = await published(run, origin, peer, nursery, steps=3)
        nursery.cancel_scope.cancel()
    follower.store.room.quota = follower.store.used + held.manifest.image_size
    for filler in range(4):
        await follower.store.add(bytes([filler]) * held.manifest.image_size)
    assert [bytes_of(policy)[:8] for policy in follower.policy_cache.held] == [bytes_of(held)[:8]] * 3
    assert bytes_of(follower.policy_cache.newest) == bytes_of(held)


async def test_a_disk_that_is_full_between_two_patches_delays_and_loses_nothing(run, origin, peer, monkeypatch) -> None:
    async with trio.open_nursery() as nursery:
        trainer, follower, second = await published(run, origin, partial(peer, retry=(0.01, 0.01)), nursery, steps=2)
        usage, full = shutil.disk_usage, follower.directory
        monkeypatch.setattr(
            shutil, "disk_usage", lambda path: usage(path)._replace(free=0) if full in path.parents else usage(path)
        )
        third = await trainer.publish(2, run.step())
        await trio.sleep(0.2)
        assert at(follower, 1) and not follower.blamed
        # The older policy made room, which was no help to a full disk; the newest and all it rests on are there.
        assert bytes_of(follower.policy_cache.newest) == bytes_of(second)
        monkeypatch.setattr(shutil, "disk_usage", usage)
        await until(lambda: at(follower, 2))
        assert bytes_of(follower.policy_cache.newest) == bytes_of(third) and disk(follower.directory) == []
        nursery.cancel_scope.cancel()


async def test_a_restart_with_a_half_written_patch_goes_on_from_what_is_whole(run, origin, peer, wire) -> None:
    async with trio.open_nursery() as nursery:
        trainer, follower, held = await published(run, origin, peer, nursery, steps=3)
        nursery.cancel_scope.cancel()
    path = follower.store.path(held.manifest.patches[-1].root)
    path.write_bytes(path.read_bytes()[:100])  # the machine lost power before its bytes were on the disk
    again = peer("a", trainer.key.address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(again.follower.run)
        await until(lambda: at(again, 1))
        wire.say(held.announcement)
        await until(lambda: at(again, 2))
        nursery.cancel_scope.cancel()
    assert again.follower.counts == {"patches": 1} and bytes_of(again.policy_cache.newest) == bytes_of(held)


async def test_an_image_is_made_for_whoever_reads_files_and_kept_by_nobody(run, origin, peer) -> None:
    async with trio.open_nursery() as nursery:
        _, follower, held = await published(run, origin, peer, nursery, steps=3)
        nursery.cancel_scope.cancel()
    newest = follower.policy_cache.newest
    for _ in range(2):
        path = await written_out(newest, follower.store, follower.directory)
        assert path.read_bytes() == encode_image(dict(held.image())) and path.name == held.manifest.image_root.hex()
    follower.store.room.quota = follower.store.used
    await follower.store.add(b"room")
    assert not path.exists() and bytes_of(newest) == bytes_of(held)


async def test_a_gateway_makes_the_image_that_it_is_asked_for(run, origin, peer, tmp_path, monkeypatch) -> None:
    async with trio.open_nursery() as nursery:
        _, follower, held = await published(run, origin, peer, nursery, steps=3)
        nursery.cancel_scope.cancel()
    cache, image, data = follower.policy_cache, held.manifest.image_root, encode_image(dict(held.image()))
    listener = HttpListener(bind("127.0.0.1:0", "the gateway", "--gateway"), None)
    whole = partial(make_whole, cache, follower.store, tmp_path / "scratch")
    gateway = Gateway(listener, follower.store, lambda: served(cache), None, whole)
    async with serving(listener, gateway) as source:
        told = (await ask(source, "/distribution.txt")).text.splitlines()
        assert told[-1] == f"v2: {blake3(data).hexdigest()}|1" and not follower.store.has(image)
        assert (await ask(source, "/v2/shard_00001.bin")).content == data and follower.store.has(image)
        follower.store.evict(image)
        other = BlobStore(tmp_path / "other", 10**8)
        path = await HttpBlobs(other).fetch(image, [source], max_size=len(data), timeout=20)
        assert path.read_bytes() == data
        follower.store.evict(image)
        follower.store.room.quota = follower.store.used  # all of it pinned: there is no room to make it in
        with monkeypatch.context() as patched:
            patched.setattr(workshop, "build_image", None)  # who asks again and again has nothing made for it
            assert (await ask(source, f"/v1/blobs/{image.hex()}")).status_code == 404
        assert (await ask(source, f"/v1/blobs/{bytes(32).hex()}/info")).status_code == 404
