"""A learner goes on from another trainer's checkpoint: bit for bit where it is the stated one, not at all otherwise."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from node.training.adoption import answered, end, order
from node.training.checkpoint import Checkpoints
from node.training.settings import TrainerSettings
from node.training.spool import Spool
from node.training.trainer import SpoolTrainer
from protocol.manifest import CheckpointCard, CheckpointFile, encode_manifest
from protocol.run import RunSpec, encode_run
from tests.node.training.test_trainer import batch

STEPS, AT = 3, 2
SETTINGS = TrainerSettings(checkpoint_every=1, keep_checkpoints=9)


def prepared(spool: Spool, run: RunSpec, assets: Path, first: int) -> Spool:
    """With the batches from `first` on, but not those before."""
    recipe = msgspec.structs.replace(run.recipe, steps=STEPS)
    spool.prepare(encode_run(msgspec.structs.replace(run, recipe=recipe)), assets)
    for step in range(first, STEPS):
        spool.write_batch(step, batch(step))
    return spool


@pytest.fixture(scope="module")
def leader(tiny_run: RunSpec, tiny_assets: Path, tmp_path_factory: pytest.TempPathFactory) -> Spool:
    """Has done a run, and is only read."""
    spool = prepared(Spool(tmp_path_factory.mktemp("leader")), tiny_run, tiny_assets, 0)
    SpoolTrainer(spool, SETTINGS).train()
    return spool


class Pair:
    """A leader that has done a run, and a newcomer that holds its batches from AT on."""

    def __init__(self, leader: Spool, newcomer: Spool) -> None:
        self.leader, self.newcomer = leader, newcomer

    def said(self, spool: Spool, step: int) -> dict[str, str]:
        return json.loads(spool.metrics_path(step).read_bytes())

    def files(self) -> tuple[CheckpointCard, list[Path]]:
        folder = self.leader.checkpoints / f"step-{AT:06d}"
        told = json.loads((folder / "state.json").read_bytes())
        files = [folder / name for name in sorted(told["files"])]
        named = tuple(CheckpointFile(bytes(32), path.stat().st_size) for path in files)
        return CheckpointCard(AT, told["updates"], tuple(sorted(told["consumed"].items())), named), files

    def hand_over(self, change: Callable[[CheckpointCard], CheckpointCard] = lambda card: card) -> None:
        card, files = self.files()
        said = self.said(self.leader, AT)
        roots = bytes.fromhex(said["state_root"]), bytes.fromhex(said["policy_root"])
        order(self.newcomer, AT, encode_manifest(change(card)), tuple(files), roots)

    def train(self) -> None:
        SpoolTrainer(Spool(self.newcomer.root), SETTINGS).train()

    def same(self, steps: range) -> bool:
        both = [(self.said(self.leader, step), self.said(self.newcomer, step)) for step in steps]
        return all(a[name] == b[name] for a, b in both for name in ("policy_root", "state_root", "image"))


@pytest.fixture
def pair(leader: Spool, tmp_path: Path, tiny_run: RunSpec, tiny_assets: Path) -> Pair:
    return Pair(leader, prepared(Spool(tmp_path), tiny_run, tiny_assets, AT))


def test_a_newcomer_goes_on_from_a_checkpoint_with_the_leaders_own_bits(pair: Pair) -> None:
    pair.hand_over()
    pair.train()
    assert end(pair.newcomer) is None and pair.same(range(AT, STEPS + 1))
    spool = Spool(pair.newcomer.root)
    assert (spool.adopted(), spool.newest_step(), spool.goes_on) == (AT, STEPS, True)
    assert [step for step in range(STEPS + 1) if spool.was_skipped(step)] == [1]
    assert not list((spool.root / "handed").iterdir())


@pytest.mark.parametrize("dies_in", ["save", "remember_adopted", "_publish"])
def test_who_is_killed_while_it_takes_a_state_over_does_so_at_its_next_start(
    pair: Pair, dies_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: object, step: int, *rest: object) -> None:
        if step == AT:
            raise KeyboardInterrupt
        real(self, step, *rest)

    owner = {"save": Checkpoints, "remember_adopted": Spool, "_publish": SpoolTrainer}[dies_in]
    real = getattr(owner, dies_in)
    pair.hand_over()
    with monkeypatch.context() as patch:
        patch.setattr(owner, dies_in, die)
        with pytest.raises(KeyboardInterrupt):
            pair.train()
    assert not answered(pair.newcomer)
    pair.train()
    assert answered(pair.newcomer) and pair.same(range(AT, STEPS + 1))


def cut_off(pair: Pair) -> None:
    path = pair.newcomer.root / "handed" / "0.safetensors"
    data = path.read_bytes()
    path.unlink()  # it is the leader's own file, too
    path.write_bytes(data[:-4])


def other_bits(pair: Pair) -> None:
    cut_off(pair)
    path = pair.newcomer.root / "handed" / "0.safetensors"
    path.write_bytes(path.read_bytes() + b"\0\0\x80?")


def other_policy(pair: Pair) -> None:
    card, files = pair.files()
    state = bytes.fromhex(pair.said(pair.leader, AT)["state_root"])
    order(pair.newcomer, AT, encode_manifest(card), tuple(files), (state, bytes(32)))


def another_step(pair: Pair) -> None:
    pair.hand_over(lambda card: msgspec.structs.replace(card, step=AT + 1))


def more_updates(pair: Pair) -> None:
    pair.hand_over(lambda card: msgspec.structs.replace(card, updates=99))


def no_card(pair: Pair) -> None:
    card, files = pair.files()
    order(pair.newcomer, AT, b"\x93\x01", tuple(files), (bytes(32), bytes(32)))


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (cut_off, "it is cut off"),
        (other_bits, "not the state that the trainer stated"),
        (other_policy, "not the rounding of its weights"),
        (another_step, "asked for was step 2"),
        (more_updates, "not the state that the trainer stated"),
        (no_card, ""),
    ],
)
def test_a_hostile_checkpoint_is_refused_with_its_reason_and_changes_nothing(
    pair: Pair, harm: Callable[[Pair], None], why: str
) -> None:
    pair.hand_over()
    harm(pair)
    for step in range(AT):
        pair.newcomer.write_batch(step, batch(step))
    pair.train()
    refused = end(pair.newcomer)
    assert refused is not None and refused.step == AT and why in refused.why
    assert pair.same(range(STEPS + 1)), "it went on from what it had"
