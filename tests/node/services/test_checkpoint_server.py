"""A trainer's checkpoints as blobs: offered once, pinned with what replays them, let go with them."""

import errno
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from node.blobs.store import BlobStore
from node.changes import Changes
from node.services import checkpoint_server
from node.services.checkpoint_server import CheckpointServer
from node.swarm.terms import LeaderTerms
from node.training.spool import Spool
from protocol.identity import NodeKey
from protocol.manifest import ComposedBatch, UsedReport, UsedWork, decode_card, encode_manifest
from protocol.messages import CheckpointOffered, Signed
from tests.attacks.validators.court import court_run
from tests.words import announced as policy_announced
from tests.words import policies as policies_of

BEHIND = 4

KEY = NodeKey(b"\1" * 32)


class Place:
    """A trainer's directory, its store and what it says."""

    def __init__(self, directory: Path, quota: int = 1 << 20) -> None:
        self.spool = Spool(directory / "spool")
        self.store = BlobStore(directory / "blobs", quota)
        self.said: list[CheckpointOffered] = []
        self.now = 0.0
        self.troubles: list[str] = []
        self.clock = policies_of(KEY.address)
        self.terms = LeaderTerms(KEY.address, lambda: 0.0)
        context = SimpleNamespace(
            pool=1,
            membership=SimpleNamespace(terms=self.terms),
            board=self,
            blobs=self.store,
            state=SimpleNamespace(policies=self.clock),
            run=SimpleNamespace(spec=court_run()),
            clock=SimpleNamespace(monotonic=lambda: self.now),
            progress=SimpleNamespace(trouble=self.troubles.append),
        )
        self.showing = CheckpointServer(context, self.store, self.spool, directory / "offering", Changes())  # type: ignore[arg-type]

    async def post(self, message: CheckpointOffered) -> None:
        self.said.append(message)

    def write(self, step: int, size: int = 100) -> None:
        folder = self.spool.checkpoints / f"step-{step:06d}"
        folder.mkdir(parents=True)
        (folder / "shard.safetensors").write_bytes(bytes([step]) * size)
        told = {"step": step, "updates": step, "model": "m", "consumed": {"x:1": 0}, "random": [], "version": 3}
        (folder / "state.json").write_bytes(json.dumps(told | {"files": {"shard.safetensors": "00"}}).encode())

    def delete(self, step: int) -> None:
        folder = self.spool.checkpoints / f"step-{step:06d}"
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()

    def announce(self, step: int, batch_root: bytes) -> None:
        message = policy_announced(step, bytes([step]) * 32, batch=batch_root)
        self.clock.announce(Signed(KEY.address, message, b""))

    async def fill(self, roots: Sequence[bytes], size: int) -> set[bytes]:
        """What is still there after so many bytes of something else came."""
        for number in range(size // 1000):
            await self.store.add(number.to_bytes(4, "little") * 250)
        return {root for root in roots if self.store.has(root)}


async def test_checkpoints_and_what_replays_them_stay_as_long_as_they_are_kept(tmp_path: Path) -> None:
    place = Place(tmp_path, quota=20_000)
    file, report, manifest = [(await place.store.add(bytes([n]) * 50)).root for n in (201, 202, 203)]
    used = UsedReport(bytes(20), report, 50, b"\1")
    work = UsedWork(bytes(20), bytes(32), 1, 0, file, 1, 0, 50, (used,), b"\1", b"\0")
    place.spool.works_path(1).parent.mkdir(parents=True)
    place.spool.works_path(1).write_bytes(encode_manifest(ComposedBatch(bytes(32), 1, 1, (work,))))
    place.write(1)
    place.write(2)
    place.announce(2, manifest)
    await place.showing.tick()
    await place.showing.tick()
    assert [one.step for one in place.said] == [1, 2], "each is said once"
    card = decode_card(place.store.path(place.said[0].root).read_bytes())
    card.check(1)
    assert card.consumed == (("x:1", 0),) and place.store.path(card.files[0].root).read_bytes() == b"\1" * 100
    named = [place.said[0].root, card.files[0].root, file, report, manifest]
    assert await place.fill(named, 30_000) == set(named)
    place.delete(1)
    for step in range(3, 2 + BEHIND):
        place.announce(step, bytes(32))
        await place.showing.tick()
        assert await place.fill(named, 30_000) == set(named), "an auditor may still be busy with an earlier step"
    place.announce(2 + BEHIND, bytes(32))
    await place.showing.tick()
    assert await place.fill(named, 30_000) == set(), "the manifest of step 1 begins before the oldest one"
    assert place.store.has(place.said[1].root)
    assert place.showing.status()["checkpoints"].bytes_by_step == {"2": 100}


async def test_a_disk_that_fills_while_a_checkpoint_is_copied_costs_its_offer_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path)

    def full(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint_server, "link_or_copy", full)
    place.write(1)
    await place.showing.tick()
    assert place.said == [] and "No space left" in place.troubles[0]
    monkeypatch.undo()
    place.write(2)
    await place.showing.tick()
    assert [one.step for one in place.said] == [2]


@pytest.mark.parametrize(("every", "kept"), [(1, 1), (1, 2), (3, 1)])
async def test_what_an_audit_replays_is_there_however_few_checkpoints_the_learner_keeps(
    tmp_path: Path, every: int, kept: int
) -> None:
    """Of each step whose policy is at most so far behind the newest one."""
    place = Place(tmp_path, quota=20_000)
    roots, lacking = dict[int, bytes](), 0
    for newest in range(1, 30):
        if newest % every == 0:
            place.write(newest)
            for step in place.spool.checkpoint_steps()[:-kept]:
                place.delete(step)
        place.announce(newest, bytes(32))
        await place.showing.tick()
        await place.fill([], 20_000)  # what is not pinned goes
        roots |= {one.step: one.root for one in place.said}
        for drawn in range(max(newest - BEHIND + 1, every), newest + 1):
            base = drawn - drawn % every
            assert place.store.has(roots[base]), f"policy {drawn}, at {newest}"
            lacking += base not in place.spool.checkpoint_steps()
    assert lacking, "the learner's own directory would have done: this tested nothing"
    assert sum(map(place.store.has, roots.values())) <= BEHIND // every + 2


async def test_what_past_audits_need_gives_way_to_new_checkpoints_where_the_store_is_small(tmp_path: Path) -> None:
    place = Place(tmp_path, quota=1000)
    for step in range(1, 9):
        place.write(step, 150)
        if step > 1:
            place.delete(step - 1)
        place.announce(step, bytes(32))
        await place.showing.tick()
    assert [one.step for one in place.said] == list(range(1, 9))
    assert list(place.showing.status()["checkpoints"].bytes_by_step) == ["6", "7", "8"]
    assert len(place.troubles) == 1 and "more disk" in place.troubles[0]


async def test_of_a_step_that_a_later_term_decides_anew_its_parts_are_kept_and_no_others(tmp_path: Path) -> None:
    place = Place(tmp_path, quota=20_000)
    place.write(1)
    place.spool.works_path(1).parent.mkdir(parents=True)
    first, file, then, other = [(await place.store.add(bytes([n]) * 50)).root for n in (201, 202, 203, 204)]
    for manifest, root in ((first, file), (then, other)):
        work = UsedWork(
            bytes(20), bytes(32), 1, 0, root, 1, 0, 50, (UsedReport(bytes(20), root, 50, b"\1"),), b"\1", b"\0"
        )
        place.spool.works_path(1).write_bytes(encode_manifest(ComposedBatch(bytes(32), 1, 1, (work,))))
        place.clock = policies_of(KEY.address)
        place.showing._context.state.policies = place.clock
        place.announce(2, manifest)
        await place.showing.tick()
    assert await place.fill([first, file, then, other], 30_000) == {then, other}


async def test_a_checkpoint_is_offered_in_the_term_in_which_its_step_lies(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.terms.take(1, NodeKey(b"\2" * 32).address, 3, bytes(32), 10**10)
    for step in (2, 3):
        place.write(step)
    await place.showing.tick()
    assert [(one.step, one.term) for one in place.said] == [(2, 0), (3, 1)]


@pytest.mark.parametrize("size", [499, 501])
async def test_a_checkpoint_that_would_take_the_place_of_policies_is_not_offered_and_that_is_said(
    tmp_path: Path, size: int
) -> None:
    place = Place(tmp_path, quota=1000)
    place.write(1, size)
    await place.showing.tick()
    assert bool(place.troubles) == (size > 500) and bool(place.said) == (size < 500)
