"""Publisher and follower together, as trainer and members use them."""

from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import trio
import trio.testing

from node.blobs.errors import BlobUnavailable, StoreFull
from node.blobs.files import NotWhole, check_pieces
from node.blobs.store import BlobStore
from node.inference import layers
from node.inference.layers import LayeredImage, PatchFile
from node.swarm.facts import Undone
from node.weights import fetch, images
from node.weights import workshop as workshop_module
from node.weights.errors import WeightsDiskError
from node.weights.manifests import Manifests
from node.weights.policy_cache import HeldPolicy
from node.weights.records import PolicyRecords
from protocol.blobs import describe
from protocol.delta import PatchError
from protocol.errors import OwnFailure
from protocol.identity import NodeKey
from protocol.messages import PolicyAnnounced, parse_envelope, seal
from protocol.policy import MalformedPolicy, decode_image, encode_image, encode_manifest
from tests.counts import Counts
from tests.node.weights import little_swarm
from tests.node.weights.little_swarm import DOMAIN, POOL, bytes_of, disk, until, word_of
from tests.words import announced as policy_announced


def announce(key: NodeKey, described, root: bytes, **changes) -> bytes:
    """A signed announcement of a manifest that need not be an honest one."""
    encoded = encode_manifest(described)
    fields = {"manifest_root": root, "manifest_size": len(encoded), "manifest": encoded} | changes
    policy, step = fields.pop("policy_root", described.policy_root), fields.pop("step", described.step)
    return seal(key, DOMAIN, policy_announced(step, policy, key, DOMAIN, pool=POOL, **fields))


async def test_followers_receive_patches_and_hold_the_very_same_bytes(run, origin, peer, wire) -> None:
    trainer = origin()
    follower = peer("a", trainer.key.address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.follower.run)
        for step in range(5):
            held = await trainer.publish(step, run.step())
            await until(
                lambda step=step: follower.policy_cache.newest is not None and follower.policy_cache.newest.step == step
            )
            assert bytes_of(follower.policy_cache.newest) == bytes_of(held)
        nursery.cancel_scope.cancel()
    assert follower.follower.counts == {"image": 1, "patches": 4}
    assert held.manifest.snapshot.step == 0 and len(held.manifest.patches) == 4
    assert sum(patch.size for patch in held.manifest.patches) < held.manifest.image_size / 4
    assert disk(follower.directory) == disk(trainer.directory) == []
    assert not follower.blamed


async def test_who_comes_late_gets_the_newest_from_the_others_while_the_trainer_is_down(
    run, origin, peer, wire
) -> None:
    trainer = origin()
    early = peer("early", trainer.key.address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(early.follower.run)
        for step in range(4):
            held = await trainer.publish(step, run.step())
            await until(
                lambda step=step: early.policy_cache.newest is not None and early.policy_cache.newest.step == step
            )
        del wire.stores[trainer.key.address]
        late = peer("late", trainer.key.address)
        wire.say(held.announcement)  # as the board of any member repeats it
        nursery.start_soon(late.follower.run)
        await until(lambda: late.policy_cache.newest is not None and late.policy_cache.newest.step == 3)
        nursery.cancel_scope.cancel()
    assert bytes_of(late.policy_cache.newest) == bytes_of(held)
    assert late.follower.counts == {"snapshot": 1}
    sources = {source for asker, source, _ in wire.log if asker == late.key.address}
    assert sources == {early.key.address}


async def test_snapshots_come_in_time_and_patches_never_cost_more_than_a_quarter(run, origin) -> None:
    trainer = origin(snapshot_every=3)
    helds = [await trainer.publish(step, run.step()) for step in range(7)]
    begins = [held.manifest.snapshot.step if held.manifest.snapshot else held.step for held in helds]
    assert begins == [0, 0, 0, 3, 3, 3, 6]
    for held in helds[1:]:
        assert held.manifest.patches_from(helds[held.step - 1].root), (
            "also at a snapshot, a member needs the patch only"
        )
        assert 4 * sum(patch.size for patch in held.manifest.patches) <= held.manifest.image_size


async def test_where_most_weights_change_the_image_itself_is_sent(origin, peer) -> None:
    from tests.node.weights.little_swarm import Run

    wild, trainer = Run(lr=0.01), origin()
    follower = peer("a", trainer.key.address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.follower.run)
        for step in range(3):
            held = await trainer.publish(step, wild.step())
            await until(
                lambda step=step: follower.policy_cache.newest is not None and follower.policy_cache.newest.step == step
            )
        nursery.cancel_scope.cancel()
    assert held.manifest.patches == () and held.manifest.snapshot is None
    assert follower.follower.counts == {"image": 3}


async def test_steps_that_are_skipped_are_patched_in_one_go(run, origin, peer) -> None:
    trainer = origin()
    follower = peer("a", trainer.key.address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.follower.run)
        await trainer.publish(0, run.step())
        await until(lambda: follower.policy_cache.newest is not None)
        for step in range(1, 6):
            held = await trainer.publish(step, run.step())
        await until(lambda: follower.policy_cache.newest.step == 5)
        nursery.cancel_scope.cancel()
    assert bytes_of(follower.policy_cache.newest) == bytes_of(held)


async def test_steps_are_fetched_side_by_side_and_built_in_their_order(run, origin, peer, wire) -> None:
    trainer = origin()
    follower = peer("a", trainer.key.address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.follower.run)
        await trainer.publish(0, run.step())
        await until(lambda: follower.policy_cache.newest is not None)
        held = []
        trainer.board.muted = True
        for step in (1, 2):
            held.append(await trainer.publish(step, run.step()))
        first, second = held[0].manifest.patches[-1].root, held[1].manifest.patches[-1].root
        wire.held_back[first] = trio.Event()
        wire.say(held[0].announcement)
        await trio.testing.wait_all_tasks_blocked()
        wire.say(held[1].announcement)
        await until(lambda: follower.store.has(second))
        assert follower.policy_cache.newest.step == 0
        wire.held_back[first].set()
        await until(lambda: follower.policy_cache.newest.step == 2)
        nursery.cancel_scope.cancel()
    assert bytes_of(follower.policy_cache.newest) == bytes_of(held[1])


async def test_a_follower_waits_for_no_disk_since_others_have_all_that_it_keeps(
    run, origin, peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = origin(snapshot_every=2)
    follower, counts = peer("a", trainer.key.address), Counts(monkeypatch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.follower.run)
        for step in range(5):
            await trainer.publish(step, run.step())
            await until(
                lambda step=step: follower.policy_cache.newest is not None and follower.policy_cache.newest.step == step
            )
        nursery.cancel_scope.cancel()
    assert follower.follower.counts == {"image": 1, "patches": 4}
    assert follower.policy_cache.newest.patches == (), "its image was built here"
    assert counts.below(follower.directory) == []
    assert len(counts.below(trainer.store.directory)) >= 4, "nobody else has its patches yet"


async def test_a_small_manifest_of_a_batch_travels_with_the_policy_and_only_what_does_not_is_synced(
    run, origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, counts = origin(), Counts(monkeypatch)

    async def published(step: int, batch: bytes) -> PolicyAnnounced:
        tensors = run.step()
        word = word_of(trainer.key, step, tensors, batch=batch)
        held = await trainer.publish(step, tensors, word)
        assert trainer.store.path(describe(batch).root).read_bytes() == batch
        message = parse_envelope(POOL, held.announcement).message
        assert isinstance(message, PolicyAnnounced)
        return message

    assert (await published(0, b"small")).told_batch == b"small"
    assert counts.below(trainer.store.directory) == [], "its journal has it"
    assert (await published(1, b"large" * 1024)).told_batch == b""
    assert len([name for name in counts.below(trainer.store.directory) if name == "complete"]) == 3, "and the patch"
    counts.jobs.clear()
    await published(2, b"another")
    assert counts.jobs.total() <= 9, counts.jobs


# steps that leave the weights as they were


async def test_unchanged_weights_are_another_policy_that_rests_on_the_same_image(run, origin, peer, wire) -> None:
    trainer = origin()
    size = len(encode_image(run.step()))
    follower = peer("a", trainer.key.address, keep=2, quota=int(4.5 * size))
    weights = run.step()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.follower.run)
        for step, tensors in enumerate((run.step(), weights, weights, weights, weights)):
            await trainer.publish(step, tensors)
            await until(
                lambda step=step: follower.policy_cache.newest is not None and follower.policy_cache.newest.step == step
            )
        nursery.cancel_scope.cancel()
    assert follower.follower.counts == {"image": 1, "patches": 4} and not follower.blamed
    helds = follower.policy_cache.held
    assert [policy.step for policy in helds] == [3, 4]
    assert helds[0].root != helds[1].root and helds[0].path == helds[1].path
    for filler in range(8):  # whatever is not pinned goes
        await follower.store.add(bytes([filler]) * size)
    assert bytes_of(helds[1]) == encode_image(weights)
    records = PolicyRecords(follower.directory / "weights" / "held").read()
    assert [record.manifest.step for record in records] == [3, 4]


async def test_the_last_step_that_has_an_image_lets_go_of_it(run, origin, peer) -> None:
    trainer = origin()
    weights = run.step()
    helds = [await trainer.publish(step, weights) for step in range(3)]
    helds += [await trainer.publish(step, run.step()) for step in range(3, 7)]
    assert [policy.step for policy in trainer.policy_cache.held] == [3, 4, 5, 6]
    trainer.store.room.quota = trainer.store.used
    assert helds[-1].manifest.snapshot.image_root == helds[0].manifest.image_root
    while trainer.policy_cache.make_room():
        pass
    await trainer.store.add(b"x" * len(encode_image(weights)))
    assert not trainer.store.has(helds[0].manifest.image_root)


async def test_a_chain_leads_on_over_steps_that_changed_nothing(run, origin, peer, wire) -> None:
    trainer = origin()
    follower = peer("a", trainer.key.address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.follower.run)
        await trainer.publish(0, run.step())
        await until(lambda: follower.policy_cache.newest is not None)
        trainer.board.muted = True
        changed = run.step()
        for step, tensors in enumerate((changed, changed, changed, run.step()), start=1):
            held = await trainer.publish(step, tensors)
        wire.say(held.announcement)
        await until(lambda: follower.policy_cache.newest.step == 4)
        nursery.cancel_scope.cancel()
    roots = [held.manifest.patches[0].base_root, *(patch.target_root for patch in held.manifest.patches)]
    assert len(set(roots)) == 5
    assert follower.follower.counts == {"image": 1, "patches": 1}
    assert bytes_of(follower.policy_cache.newest) == bytes_of(held)


async def test_a_restarted_trainer_knows_its_unchanged_steps_apart(run, origin) -> None:
    first = origin()
    weights = run.step()
    helds = [await first.publish(step, weights) for step in range(3)]
    first.journal.close()
    second = origin(key=first.key)
    again = [await second.publish(step, weights) for step in range(3)]
    assert [held.announcement for held in again] == [held.announcement for held in helds]
    assert len({held.root for held in again}) == 3 and len({held.path for held in again}) == 1


# what the trainer signs and what does not hold


async def published(run, origin, follower, nursery, steps: int = 2):
    """A trainer with a few policies that a follower holds."""
    trainer = origin()
    follower = follower("a", trainer.key.address)
    nursery.start_soon(follower.follower.run)
    for step in range(steps):
        held = await trainer.publish(step, run.step())
        await until(
            lambda step=step: follower.policy_cache.newest is not None and follower.policy_cache.newest.step == step
        )
    return trainer, follower, held


async def test_a_second_policy_for_a_step_is_a_fork_and_blamed(run, origin, peer, wire) -> None:
    async with trio.open_nursery() as nursery:
        trainer, follower, held = await published(run, origin, peer, nursery)
        other = msgspec.structs.replace(held.manifest, policy_root=b"?" * 32)
        wire.say(announce(trainer.key, other, b"x" * 32))
        await until(lambda: follower.blamed)
        assert "two policies" in follower.blamed[0]
        assert follower.policy_cache.newest.root == held.root and follower.follower.newest_step == 1
        nursery.cancel_scope.cancel()


async def test_a_second_step_for_a_policy_is_a_lie_and_blamed(run, origin, peer, wire) -> None:
    async with trio.open_nursery() as nursery:
        trainer, follower, held = await published(run, origin, peer, nursery)
        wire.say(announce(trainer.key, msgspec.structs.replace(held.manifest, step=9), b"x" * 32))
        await until(lambda: follower.blamed)
        assert "one policy was announced for steps 1 and 9" in follower.blamed[0]
        assert follower.follower.newest_step == 1
        nursery.cancel_scope.cancel()


async def test_a_chain_that_gives_a_known_policy_another_step_is_blamed(run, origin, peer, wire) -> None:
    async with trio.open_nursery() as nursery:
        trainer, follower, _ = await published(run, origin, peer, nursery)
        trainer.board.muted = True
        good = await trainer.publish(4, run.step())
        chain = (msgspec.structs.replace(good.manifest.patches[0], step=2), *good.manifest.patches[1:])
        bad = msgspec.structs.replace(good.manifest, patches=chain)
        info = await trainer.store.add(encode_manifest(bad))
        wire.say(announce(trainer.key, bad, info.root))
        await until(lambda: follower.blamed)
        assert "another policy of step 2" in follower.blamed[0] and follower.policy_cache.newest.step == 1
        nursery.cancel_scope.cancel()


async def test_a_replayed_announcement_changes_nothing(run, origin, peer, wire) -> None:
    async with trio.open_nursery() as nursery:
        trainer, follower, held = await published(run, origin, peer, nursery, steps=3)
        fetched = len(wire.log)
        for policy in trainer.policy_cache.held:
            wire.say(policy.announcement)
        await trio.testing.wait_all_tasks_blocked()
        assert follower.policy_cache.newest.step == 2 and len(wire.log) == fetched and not follower.blamed
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("manifest_changes", "announcement_changes", "why"),
    [
        ({"image_size": 1 << 50}, {}, "do not make an image"),
        ({}, {"manifest_size": 1 << 40}, "cannot be one"),
        ({"run_root": b"z" * 32}, {}, "not the one that was announced"),
        ({"policy_root": b"z" * 32}, {}, "another policy"),
        ({"policy_root": b"z" * 32, "patches": (), "snapshot": None}, {}, "does not follow"),
        ({"step": 3, "patches": (), "snapshot": None}, {}, "does not follow"),
        ({}, {"manifest_root": b"q" * 32}, "not the one it names"),
        ({}, {"step": 9}, "not the one that was announced"),
        ({}, {"manifest": b"garbage"}, "not the one it names"),
    ],
)
async def test_a_manifest_that_does_not_hold_is_refused_once_and_its_signer_blamed(
    manifest_changes, announcement_changes, why, run, origin, peer, wire
) -> None:

    async with trio.open_nursery() as nursery:
        trainer, follower, held = await published(run, origin, peer, nursery)
        trainer.board.muted = True
        good = await trainer.publish(2, run.step())
        bad = msgspec.structs.replace(good.manifest, **manifest_changes)
        root = describe(encode_manifest(bad)).root
        wire.say(announce(trainer.key, bad, root, **announcement_changes))
        await until(lambda: follower.blamed)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert len(follower.blamed) == 1 and why in follower.blamed[0]
        assert follower.policy_cache.newest.step == held.step
        assert await follower.follower.get(bad.policy_root, 5.0) is None
        nursery.cancel_scope.cancel()


async def test_a_manifest_that_this_disk_changed_is_blamed_on_nobody(tmp_path) -> None:
    file = tmp_path / "manifest"

    async def fetch(root: bytes, sources: Any, **_: Any) -> Path:
        await trio.lowlevel.checkpoint()
        return file

    none: Any = None
    manifests = Manifests(none, SimpleNamespace(fetch=fetch), bytes(32), lambda author: [author], 1, 1)  # type: ignore[arg-type]
    file.write_bytes(b"no manifest")
    named = describe(file.read_bytes()).root
    for root, error in ((bytes(32), OwnFailure), (named, MalformedPolicy)):
        said: Any = SimpleNamespace(manifest_root=root, manifest_size=9, manifest=b"")
        with pytest.raises(error):
            await manifests.get(said, NodeKey(bytes(range(32))).address)


async def test_an_image_beyond_what_the_run_allows_is_not_fetched(run, origin, peer, wire) -> None:
    async with trio.open_nursery() as nursery:
        trainer = origin()
        follower = peer("a", trainer.key.address, limit=1000)
        nursery.start_soon(follower.follower.run)
        await trainer.publish(0, run.step())
        await until(lambda: follower.blamed)
        assert "too large" in follower.blamed[0] and not wire.log
        nursery.cancel_scope.cancel()


async def test_a_patch_that_leads_elsewhere_is_blamed_and_avoided(run, origin, peer, wire) -> None:
    async with trio.open_nursery() as nursery:
        trainer, follower, _ = await published(run, origin, peer, nursery)
        trainer.board.muted = True
        good = await trainer.publish(2, run.step())
        patch = good.manifest.patches[-1]
        honest = trainer.store.path(patch.root).read_bytes()
        forged = await trainer.store.add(honest[:-1] + bytes([honest[-1] ^ 1]))
        chain = (*good.manifest.patches[:-1], msgspec.structs.replace(patch, root=forged.root))
        bad = msgspec.structs.replace(good.manifest, patches=chain)
        info = await trainer.store.add(encode_manifest(bad))
        wire.say(announce(trainer.key, bad, info.root))
        await until(lambda: follower.policy_cache.newest.step == 2)
        assert bytes_of(follower.policy_cache.newest) == bytes_of(good)
        assert len(follower.blamed) == 1 and follower.follower.counts["image"] == 2
        assert disk(follower.directory) == []
        nursery.cancel_scope.cancel()


async def test_an_image_that_is_not_its_policy_never_reaches_the_shelf(run, origin, peer, wire) -> None:
    async with trio.open_nursery() as nursery:
        trainer, follower, held = await published(run, origin, peer, nursery)
        trainer.board.muted = True
        good = await trainer.publish(2, run.step())
        other = await trainer.store.add(encode_image(run.step()))
        bad = msgspec.structs.replace(good.manifest, patches=(), snapshot=None, image_root=other.root)
        info = await trainer.store.add(encode_manifest(bad))
        wire.say(announce(trainer.key, bad, info.root))
        await until(lambda: follower.blamed)
        assert "not those of the manifest" in follower.blamed[0]
        assert follower.policy_cache.newest.step == held.step
        nursery.cancel_scope.cancel()


# disks


async def test_a_base_that_rotted_on_our_own_disk_is_nobody_elses_fault(run, origin, peer) -> None:
    async with trio.open_nursery() as nursery:
        trainer, follower, held = await published(run, origin, peer, nursery)
        path = follower.policy_cache.newest.path
        data = bytearray(path.read_bytes())
        data[-100] ^= 4
        path.write_bytes(data)
        good = await trainer.publish(2, run.step())
        await until(lambda: follower.policy_cache.newest.step == 2)
        assert bytes_of(follower.policy_cache.newest) == bytes_of(good)
        assert not follower.blamed and not follower.store.has(held.manifest.image_root)
        nursery.cancel_scope.cancel()


async def test_a_base_stays_while_others_are_built_first_whatever_leaves_the_shelf(run, origin, peer) -> None:
    size = len(encode_image(run.step()))
    trainer = origin()
    follower = peer("a", trainer.key.address, quota=int(2.9 * size), keep=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.follower.run)
        base = await trainer.publish(0, run.step())
        await until(lambda: follower.policy_cache.newest is not None)
        async with follower.follower._workshop._building:
            held = await trainer.publish(1, run.step())
            await until(lambda: follower.follower._workshop._building.statistics().tasks_waiting == 1)
            newer = msgspec.structs.replace(held.manifest, step=9, image_root=b"n" * 32, patches=(), snapshot=None)
            follower.policy_cache.put(HeldPolicy(9, b"n" * 32, follower.directory, newer))
            assert follower.policy_cache.by_root(base.root) is None
            with suppress(StoreFull):
                await follower.store.add(bytes(int(1.95 * size)))
        await until(lambda: follower.follower.counts["patches"] == 1)
        nursery.cancel_scope.cancel()


async def test_an_image_that_rotted_here_is_fetched_again_and_nobody_is_blamed(run, origin, peer) -> None:
    trainer, tensors = origin(), {"w": np.arange(700_000, dtype=np.uint32).astype(np.uint16)}
    follower = peer("a", trainer.key.address)
    info = await follower.store.add(encode_image(tensors))  # from an earlier life, as far as the follower knows
    path = follower.store.path(info.root)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4  # in a piece that is one tensor's alone
    path.write_bytes(data)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.follower.run)
        held = await trainer.publish(0, tensors)
        assert held.manifest.image_root == info.root
        await until(lambda: follower.policy_cache.newest is not None)
        assert bytes_of(follower.policy_cache.newest) == encode_image(tensors) and not follower.blamed
        nursery.cancel_scope.cancel()


async def test_an_image_that_has_just_arrived_is_not_hashed_twice(run, origin, peer, monkeypatch) -> None:
    honest, blobs = workshop_module.verify_file, []

    def verify(manifest, path, blob=None) -> None:
        blobs.append(blob and blob.root)
        honest(manifest, path, blob)

    monkeypatch.setattr(workshop_module, "verify_file", verify)
    async with trio.open_nursery() as nursery:
        _, _, held = await published(run, origin, peer, nursery, steps=1)
        nursery.cancel_scope.cancel()
    assert blobs == [held.manifest.image_root]


async def test_a_full_disk_delays_a_policy_and_wedges_nothing(run, origin, peer, monkeypatch) -> None:
    full, tries, peer = [True], [0], partial(peer, retry=(0.01, 0.01))
    honest = workshop_module.build_image

    def build(*arguments) -> None:
        tries[0] += 1
        if full[0]:
            raise WeightsDiskError("cannot be written", "No space left on device", "free some")
        return honest(*arguments)

    monkeypatch.setattr(workshop_module, "build_image", build)
    async with trio.open_nursery() as nursery:
        trainer, follower, _ = await published(run, partial(origin, snapshot_every=1), peer, nursery, steps=1)
        await trainer.publish(1, run.step())
        await until(lambda: tries[0] > 3)
        assert follower.policy_cache.newest.step == 0 and disk(follower.directory) == []
        assert follower.follower.history.in_vain_since is None, "it is nobody else's fault"
        full[0] = False
        await until(lambda: follower.policy_cache.newest.step == 1)
        nursery.cancel_scope.cancel()
    assert follower.follower.counts["patches"] == 1 and not follower.blamed


def invented(trainer: NodeKey, step: int) -> bytes:
    """An announcement of words only."""
    root = bytes([step]) * 32
    return seal(trainer, DOMAIN, policy_announced(step, root, trainer, DOMAIN, pool=POOL, manifest_root=root))


async def test_policies_that_nobody_has_take_no_place_from_one_that_somebody_has(run, origin, peer, wire) -> None:
    async with trio.open_nursery() as nursery:
        trainer, follower, _ = await published(run, origin, partial(peer, retry=(0.01, 0.01)), nursery, steps=1)
        history = follower.follower.history
        assert history.in_vain_since is None
        for step in range(1, 1 + fetch.IN_FLIGHT):
            wire.say(invented(trainer.key, step))
        await until(lambda: history.in_vain_since is not None)
        since = history.in_vain_since
        wire.say(invented(trainer.key, 1 + fetch.IN_FLIGHT))
        await trio.sleep(0.05)
        assert history.in_vain_since == since, "another invented one is no sign of life"
        await trainer.publish(9, run.step())
        await until(lambda: follower.policy_cache.newest.step == 9)
        # A try at an invented one may have ended since, and begins another wait.
        assert history.in_vain_since is None or history.in_vain_since > since, "one that came ends the wait"
        nursery.cancel_scope.cancel()


async def test_policies_that_a_term_takes_back_are_not_waited_for(run, origin, peer, wire) -> None:
    """Who announced them hands them over without an end."""
    async with trio.open_nursery() as nursery:
        trainer, follower, _ = await published(run, origin, peer, nursery, steps=1)
        ear, door = wire.ears[-1], [bytes([step]) * 32 for step in range(1, 1 + fetch.IN_FLIGHT)]
        wire.held_back |= {root: trio.Event() for root in door}
        for step in range(1, 1 + fetch.IN_FLIGHT):
            wire.say(invented(trainer.key, step))
            await trio.testing.wait_all_tasks_blocked()
        await trainer.publish(9, run.step())
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert follower.policy_cache.newest.step == 0, "the control: three are on their way"
        ear.facts.tell([Undone(ear.policies.announcement(root)) for root in door])
        await until(lambda: follower.policy_cache.newest.step == 9)
        nursery.cancel_scope.cancel()


def test_no_space_while_building_leaves_no_file(run, tmp_path) -> None:
    before, after = run.step(), run.step()
    (tmp_path / "base").write_bytes(encode_image(before))
    manifest = manifest_for(after)
    patch, path = patch_between(tmp_path, before, after)

    (tmp_path / "out").symlink_to("/dev/full")
    with pytest.raises(WeightsDiskError, match="No space"):
        images.build_image(layered(tmp_path / "base", patch, path), manifest.tensors, tmp_path / "out")
    assert not (tmp_path / "out").is_symlink()


async def test_a_quota_that_cannot_hold_all_keeps_the_newest(run, origin, peer) -> None:
    size = len(encode_image(run.step()))
    trainer = origin()
    follower = peer("a", trainer.key.address, quota=int(2.6 * size), keep=4)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(follower.follower.run)
        for step in range(5):
            await trainer.publish(step, run.step())
            await until(
                lambda step=step: follower.policy_cache.newest is not None and follower.policy_cache.newest.step == step
            )
        nursery.cancel_scope.cancel()
    assert follower.store.used <= follower.store.room.quota


@pytest.mark.parametrize("images", [2.1, 2.18, 2.26])
async def test_a_full_store_drops_no_policy_for_its_own_patch(run, origin, monkeypatch, images) -> None:
    monkeypatch.setattr(little_swarm, "QUOTA", int(images * len(encode_image(run.step()))))
    trainer = origin()
    for step in range(5):
        held = await trainer.publish(step, run.step())
        assert trainer.store.has(held.manifest.image_root) and trainer.policy_cache.newest == held
        assert trainer.store.has(held.manifest_root)
        assert all(trainer.store.has(patch.root) for patch in held.manifest.patches[-1:])


async def test_room_is_made_of_what_is_needed_least(run, origin) -> None:
    trainer = origin()
    held = [await trainer.publish(step, run.step()) for step in range(4)]
    trainer.policy_cache.hold(held[0].root)
    trainer.policy_cache.orphan(held[3].root)
    left = []
    while trainer.policy_cache.count > 1:
        assert trainer.policy_cache.make_room()
        left.append([policy.step for policy in trainer.policy_cache.held])
    assert left == [[0, 1, 2], [0, 2], [2]]
    assert trainer.policy_cache.newest == held[2]


async def test_a_fetch_that_fails_as_the_time_is_up_is_one_error(origin, peer) -> None:
    follower, (one, two) = peer("a", NodeKey.generate().address).follower, (b"1" * 32, b"2" * 32)

    async def fetch(root, sources, **options):
        if root == one:
            raise BlobUnavailable(root, "nobody has it")
        try:
            await trio.sleep_forever()
        finally:
            time_is_up.cancel()

    workshop = follower._workshop
    workshop._blobs = SimpleNamespace(fetch=fetch)
    with trio.CancelScope() as time_is_up, pytest.raises(BlobUnavailable):
        await workshop._fetch_all([(one, 1), (two, 1)], [], 0, 0)
    assert time_is_up.cancel_called


# restarts


async def test_a_restart_checks_what_it_has_and_says_it_again(run, origin, peer, wire) -> None:
    async with trio.open_nursery() as nursery:
        trainer, follower, held = await published(run, origin, peer, nursery, steps=3)
        nursery.cancel_scope.cancel()
    (follower.directory / "weights" / "building" / "half").write_bytes(b"what kill -9 left")
    spoiled = follower.store.path(follower.policy_cache.held[2].patches[-1].root)
    spoiled.write_bytes(spoiled.read_bytes()[:-1] + b"!")
    again = peer("a", trainer.key.address)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(again.follower.run)
        await until(lambda: again.repeated)
        nursery.cancel_scope.cancel()
    restored = again.policy_cache.held
    assert [policy.step for policy in restored] == [0, 1] and not again.store.has(held.manifest.patches[-1].root)
    assert again.repeated == [policy.announcement for policy in restored]
    assert bytes_of(restored[1]) == bytes_of(follower.policy_cache.held[1])
    assert disk(again.directory) == []


async def test_a_restarted_trainer_repeats_its_words_and_goes_on_from_them(run, origin) -> None:
    first = origin()
    tensors = [run.step() for _ in range(3)]
    helds = [await first.publish(step, tensors[step]) for step in range(2)]
    first.journal.close()
    second = origin(key=first.key)
    again = [await second.publish(step, tensors[step]) for step in range(2)]
    assert [held.announcement for held in again] == [held.announcement for held in helds]
    newest = await second.publish(2, tensors[2])
    assert len(newest.manifest.patches) == 2 and newest.manifest.snapshot.step == 0
    with pytest.raises(MalformedPolicy, match="two policies"):
        await second.publish(1, run.step())


async def test_an_image_in_another_safetensors_form_is_published_in_ours(run, origin, tmp_path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    tensors = run.step()
    as_torch = {name: torch.from_numpy(bits.view("int16")).view(torch.bfloat16) for name, bits in tensors.items()}
    save_file(as_torch, tmp_path / "theirs.safetensors")
    trainer = origin()
    held = await trainer.publisher.publish(0, tmp_path / "theirs.safetensors", word_of(trainer.key, 0, tensors))
    assert bytes_of(held) == encode_image(tensors)


def manifest_for(tensors, step: int = 1):
    from protocol.policy import PolicyManifest, describe_tensors, image_size, policy_root

    infos = describe_tensors(tensors)
    return PolicyManifest(b"r" * 32, step, policy_root(step, infos), infos, b"i" * 32, image_size(infos))


def layered(base, patch, path) -> LayeredImage:
    return LayeredImage(base, [PatchFile(str(path), patch.base_root, patch.target_root)])


def patch_between(directory, before, after):
    from protocol.policy import PolicyPatch

    old, new = manifest_for(before, 0), manifest_for(after)
    paths = [directory / name for name in ("old", "new", "patch")]
    for path, tensors in zip(paths, (before, after), strict=False):
        path.write_bytes(encode_image(tensors))
    images.write_patch(
        paths[0], old.tensors, paths[1], new.tensors, paths[2], 1 << 30, roots=(old.policy_root, new.policy_root)
    )
    path = paths[2]
    return PolicyPatch(1, old.policy_root, new.policy_root, b"p" * 32, path.stat().st_size), path


def test_records_that_are_damaged_are_as_if_they_had_never_been(tmp_path) -> None:
    records = PolicyRecords(tmp_path / "held")
    assert records.read() == []
    (tmp_path / "held").mkdir()
    (tmp_path / "held" / "000000001-ab.policy").write_bytes(b"half a rec")
    (tmp_path / "held" / "000000002-ab.policy").write_bytes(b"\x81\xa1\xff\xc0")  # a name that is no UTF-8
    assert records.read() == []


def test_the_store_and_the_images_agree_on_what_a_sound_blob_is(tmp_path, run) -> None:
    async def add():
        return await store.add(encode_image(run.step()))

    store = BlobStore(tmp_path, 1 << 24)
    info = trio.run(add)
    path = store.path(info.root)
    check_pieces(path, info, 0, len(info.pieces))
    assert set(decode_image(images.mapped(path))) == {"lm_head.weight", "model.embed.weight", "model.norm.weight"}
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    with pytest.raises(NotWhole):
        check_pieces(path, info, 0, len(info.pieces))


def test_work_on_several_threads_keeps_its_order_and_its_errors(monkeypatch) -> None:
    monkeypatch.setattr(images.os, "cpu_count", lambda: 4)

    def half(number: int) -> int:
        if number % 2:
            raise MalformedPolicy("odd", str(number))
        return number // 2

    for size in (0, 1 << 40):
        assert list(images.in_order(half, range(0, 100, 2), size)) == list(range(50))
        with pytest.raises(MalformedPolicy, match="7"):
            list(images.in_order(half, [2, 4, 7, 8, 9], size))


def test_a_big_image_is_patched_by_several_threads_to_the_same_bytes(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(layers, "PARALLEL_BYTES", 0)
    monkeypatch.setattr(images.os, "cpu_count", lambda: 3)
    before, after = run.step(), run.step()
    patch, path = patch_between(tmp_path, before, after)
    images.build_image(layered(tmp_path / "old", patch, path), manifest_for(after).tensors, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == encode_image(after)
    with pytest.raises(images.PatchTooLong):
        infos = [manifest_for(tensors).tensors for tensors in (before, after)]
        images.write_patch(
            tmp_path / "old", infos[0], tmp_path / "new", infos[1], tmp_path / "short", 500, roots=(b"", b"")
        )


def test_policies_of_other_shapes_have_no_patch(run, tmp_path) -> None:
    before = run.step()
    after = {name: bits.T.copy() for name, bits in before.items()}
    with pytest.raises(PatchError, match="shapes"):
        patch_between(tmp_path, before, after)
