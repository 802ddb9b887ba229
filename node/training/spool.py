"""The spool: the directory through which daemon and trainer meet. Either may be killed at any instant.

    run.json                       canonical RunSpec
    trainer.json                   TrainerSettings, of this start
    lowered.json                   which steps need smaller micro-batches: node.training.lowering
    assets                         link to the run's files
    works/batch-000012.msgpack     by name what that batch is made of: protocol.manifest
    in/batch-000012.arrow          daemon -> trainer: what step 12 learns from (policy 12 -> policy 13)
    out/policy-000013.safetensors  trainer -> daemon: the image, then
    out/step-000013.json           its metrics; its presence means that the step is complete
    eval/step-000013.json          evaluator -> daemon: what the policy scored, some time after, where that is asked for
    eval/answers-000013.json       some of its answers, for people
    milestones/policy-000020.safetensors  images that are kept for good, once they are not worked with any more
    ckpt/step-000010/              weights, optimiser state, position: node.training.checkpoint
    peers, rounds/                 of a run with [diloco], instead of ckpt/: node.training.pretrainer
    adopted                        the newest step whose state was taken from another trainer: node.training.adoption
    error.json                     why the trainer gave up, if it did; evaluator-error.json: why the evaluator did

Every file appears whole or not at all. Knows names and atomicity; knows nothing of what is inside.
"""

import operator
import os
import re
import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from node.state.files import write_whole
from node.state.kept import kept
from node.training.bells import ring, wait
from node.training.errors import TrainingError

_STEP = re.compile(r"(?:step|batch)-(\d{6,})(?:\.json|\.arrow)?")


class SpoolPaths:
    """Where everything stands below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.run_path = root / "run.json"
        self.settings_path = root / "trainer.json"
        self.assets = root / "assets"
        self.checkpoints = root / "ckpt"
        self.peers_path = root / "peers"
        """How many peers train here in rounds, in decimal digits."""
        self.lowered_path = root / "lowered.json"
        self.adoption_path = root / "adopt.msgpack"
        """The order to go on from another trainer's checkpoint."""
        self.adoption_error_path = root / "adopt-error.json"
        self.error_path = root / "error.json"
        self.evaluator_error_path = root / "evaluator-error.json"

    def batch_path(self, step: int) -> Path:
        return self.root / "in" / f"batch-{step:06d}.arrow"

    def works_path(self, step: int) -> Path:
        return self.root / "works" / f"batch-{step:06d}.msgpack"

    def policy_path(self, step: int) -> Path:
        return self.root / "out" / f"policy-{step:06d}.safetensors"

    def metrics_path(self, step: int) -> Path:
        return self.root / "out" / f"step-{step:06d}.json"

    def evaluation_path(self, step: int) -> Path:
        return self.root / "eval" / f"step-{step:06d}.json"

    def answers_path(self, step: int) -> Path:
        """Some answers of the policy's evaluation, for people to read."""
        return self.root / "eval" / f"answers-{step:06d}.json"


class Spool(SpoolPaths):
    """The progress that can be read off what is there, and what may go. milestones: steps between images that are kept
    for good; 0: none is."""

    def __init__(self, root: Path, milestones: int = 0) -> None:
        super().__init__(root)
        self._milestones = milestones
        self.bell: int | None = None
        """Of this process, where it listens (node.training.bells)."""
        self._next_batch = 0
        self._newest = -1
        self._adopted = ((0, 0), -1)

    def images(self) -> dict[int, Path]:
        """The image of each complete step that has one still, or that is kept for good."""
        found = {step_of(path): path for path in (self.root / "milestones").glob("policy-*.safetensors")}
        found |= {step_of(path): path for path in (self.root / "out").glob("policy-*.safetensors")}
        return {step: found[step] for step in sorted(found) if self.is_complete(step)}

    def age(self, step: int) -> float:
        """Seconds since a complete step was done: it may wait for its evaluation. Raises OSError."""
        return max(0.0, time.time() - self.metrics_path(step).stat().st_mtime)

    def record(self, step: int) -> dict[str, Any]:
        """The metrics of a complete step, with those of its evaluation, if that is there. Raises OSError, and
        StateError."""
        found = _read(self.metrics_path(step))
        try:
            return found | _read(self.evaluation_path(step))
        except FileNotFoundError:
            return found

    def prepare(self, run: bytes, assets: Path, same: Callable[[bytes, bytes], bool] = operator.eq) -> None:
        """Create the spool of a run, or find it again. same(old, new): whether two encoded runs count as one.

        Raises TrainingError if it belongs to another run.
        """
        for part in ("works", "in", "out", "eval", "ckpt"):
            (self.root / part).mkdir(parents=True, exist_ok=True)
        if self.run_path.exists() and not same(self.run_path.read_bytes(), run):
            raise TrainingError(
                "the training directory belongs to another run",
                f"{self.run_path} is not the run to be trained now: its settings, model or data differ",
                "use another directory (--dir of `train`, --state-dir of `join`), or put back what was changed",
            )
        # Here and nowhere else: what children write is cleared when they are started, and one may be at work.
        self.forget_halves("in")
        # Also where one stands: a run that goes on for longer has another number of steps.
        write_whole(self.run_path, run)
        link = self.root / "assets.new"
        link.unlink(missing_ok=True)
        link.symlink_to(assets.resolve(), target_is_directory=True)
        if self.assets.is_dir() and not self.assets.is_symlink():
            shutil.rmtree(self.assets)  # a backup that followed the link: copies of what the run has
        # In one step: whoever reads meanwhile finds the old assets or the new ones, never none.
        os.replace(link, self.assets)
        # What made an earlier process give up stops this one only if it happens again.
        self.error_path.unlink(missing_ok=True)
        self.evaluator_error_path.unlink(missing_ok=True)

    def is_complete(self, step: int) -> bool:
        """Whether policy `step` and its metrics are there."""
        return self.metrics_path(step).exists()

    def newest_step(self) -> int:
        """The newest complete step, -1 if there is none."""
        # In one assignment, here and in `next_batch`: threads ask, too.
        newest = self._newest if self._newest >= 0 else max(_steps(self.root / "out"), default=-1)
        adopted = self.adopted()
        # The steps before it may be missing for ever: counting up alone would stop in front of the gap.
        if adopted > newest and self.is_complete(adopted):
            newest = adopted
        while self.is_complete(newest + 1):
            newest += 1
        self._newest = newest
        return newest

    def adopted(self) -> int:
        """The newest step whose state was taken from another trainer, -1 if none was."""
        try:
            status = (self.root / "adopted").stat()
            # Opened when it was written anew: the event loop asks again and again, also where nothing may be opened.
            if self._adopted[0] != (written := (status.st_ino, status.st_mtime_ns)):
                self._adopted = written, int((self.root / "adopted").read_text(encoding="ascii"))
            return self._adopted[1]
        except FileNotFoundError:
            return -1

    def remember_adopted(self, step: int) -> None:
        write_whole(self.root / "adopted", f"{step}\n".encode())

    def consumed_by(self, step: int) -> dict[str, int]:
        """Group learnt from -> step, by this node's own checkpoint of `step`; nothing where it is not kept any more."""
        try:
            told = _read(self.checkpoints / f"step-{step:06d}" / "state.json")
        except FileNotFoundError:
            return {}
        return dict(told["consumed"])

    def was_skipped(self, step: int) -> bool:
        """Whether a later state was taken over, so that this step will never be complete."""
        adopted = self.adopted()
        return step < adopted and self.is_complete(adopted) and not self.is_complete(step)

    def next_batch(self) -> int:
        """The first step that has no batch yet."""
        first = self._next_batch or max(_steps(self.root / "in"), default=-1) + 1
        # Batches of steps that are complete may be deleted, and are not made again.
        first = max(first, self.newest_step(), 0)
        while self.batch_path(first).exists():
            first += 1
        self._next_batch = first
        return first

    def write_works(self, step: int, data: bytes) -> None:
        """Before the batch itself: one that stands has its works. They are kept for good, a few kilobytes a step."""
        write_whole(self.works_path(step), data)

    def write_batch(self, step: int, data: bytes) -> None:
        write_whole(self.batch_path(step), data)
        ring(self.root)

    def wait(self) -> None:
        """For something new, or a moment. Blocking."""
        wait(self.bell)

    def batch(self, step: int) -> bytes:
        """The learner's end: a batch, as soon as it is there; nothing where a state is to be taken over. Blocking."""
        # The order is looked for first: where a state is taken over, no batch of the steps before is learnt from.
        while not self.adoption_path.exists():
            try:
                return self.batch_path(step).read_bytes()
            except FileNotFoundError:
                self.wait()
        return b""

    def checkpoint_steps(self) -> list[int]:
        """Those of the checkpoints there, ascending."""
        return sorted(_steps(self.checkpoints))

    def cut(self, step: int) -> None:
        """Delete policies from `step` on, and what they were made from: another trainer decides them. The learner must
        not run."""
        for path in self._beyond(step):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        if self.adopted() >= step:
            (self.root / "adopted").unlink()
        # Both only ever count up: after a cut they begin anew.
        self._newest, self._next_batch = -1, 0

    @property
    def goes_on(self) -> bool:
        """Whether batches lead from the newest checkpoint to the newest policy."""
        base = max(self.checkpoint_steps(), default=0)
        return all(self.batch_path(step).exists() for step in range(base, self.newest_step()))

    def _beyond(self, step: int) -> list[Path]:
        """Metrics come first: without them a step is not complete."""
        metrics = sorted((self.root / "out").glob("step-*"))
        made = metrics + [path for part in ("out", "eval", "ckpt") for path in sorted((self.root / part).iterdir())]
        fed = [path for part in ("in", "works", "stats") for path in sorted((self.root / part).glob("batch-*"))]
        found = [path for path in made if (at := _number(path)) is not None and at >= step]
        return found + [path for path in fed if (at := _number(path)) is not None and at >= step - 1]

    def oldest_checkpoint(self) -> int:
        """Its step, 0 if there is none: what came before it is replayed by nobody."""
        return min(self.checkpoint_steps(), default=0)

    def forget_batches(self, before: int) -> None:
        """Delete the batches of steps below `before`: a checkpoint makes them unnecessary."""
        for step in _steps(self.root / "in"):
            if step < before:
                self.batch_path(step).unlink(missing_ok=True)

    def forget_policies(self, before: int, keep: Collection[int] = ()) -> None:
        """Delete the images (not the metrics) of steps below `before` that are not in `keep`; put milestones away."""
        for path in (self.root / "out").glob("policy-*.safetensors"):
            step = step_of(path)
            if step >= before or step in keep:
                continue
            if self._milestones and step % self._milestones == 0:
                (self.root / "milestones").mkdir(exist_ok=True)
                path.replace(self.root / "milestones" / path.name)
            else:
                path.unlink(missing_ok=True)

    def forget_halves(self, part: str) -> None:
        """Delete what a killed writer left in `part`, "in", "out" or "eval", of files that never got their names."""
        for path in (self.root / part).glob(".*"):
            path.unlink(missing_ok=True)


def image_of(root: Path, step: int | None) -> tuple[int, Path]:
    """The step and the image of a policy that the spool at `root` holds; None: the newest. Raises TrainingError."""
    images = Spool(root).images()
    if images and step is None:
        step = max(images)
    if step in images:
        return step, images[step]
    near = sorted(sorted(images, key=lambda one: abs(one - (step or 0)))[:8])
    raise TrainingError(
        f"no policy of step {step} is held in {root}" if images else f"{root} holds no policy",
        f"of the nearest there are {', '.join(map(str, near))}" if images else "nothing was trained there",
        "choose one of them; runs keep every Nth with `--trainer milestones=N`",
    )


def step_of(image: Path) -> int:
    return int(image.stem.removeprefix("policy-"))


def _number(path: Path) -> int | None:
    """Of a file or directory that is named for a step."""
    digits = re.search(r"-(\d{6,})(?:\.|$)", path.name)
    return int(digits[1]) if digits else None


def _read(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return kept(path, lambda: msgspec.json.decode(data, type=dict[str, Any]))


def _steps(directory: Path) -> list[int]:
    """None where the spool is not prepared yet."""
    matches = (_STEP.fullmatch(name) for name in os.listdir(directory)) if directory.exists() else ()
    return [int(match[1]) for match in matches if match]
