"""The learner's process of a node whose run has rounds: it does what its daemon asks (node.training.jobs).

A worker's trains a replica, a validator's looks at contributions, the run's owner's evaluates. Outer states come from
the daemon, which applies the rounds. Nothing here knows of peers, cuts or verdicts. What steps learn from is text in
`TextPeer` and rollouts in `ReplicaPeer`, which audits at a desk use, too (node.audit.replicas).
"""

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import structlog

from node.training.contributing import COPY
from node.training.errors import TrainingError
from node.training.inner import Tensors
from node.training.jobs import Check, Job, JobDirectory, JobFailure, Publish, StartRound, Train
from node.training.outer import OuterStateFile, state_size, strangers_state
from node.training.pretrainer import Pretrainer, RoundTrainer
from node.training.replicas import ReplicaRounds
from protocol.contribution import Contribution, ContributionHeader
from protocol.errors import IntellectError, OwnFailure
from protocol.exchange import F32, ContributionError
from protocol.rounds import state_root

log = structlog.get_logger()


class AsAsked(RoundTrainer):
    """Waits for jobs, one at a time, until it is ended."""

    _given: tuple[str, ...] = ()
    """Files of the batches of the steps that are made again, where the spool has none."""

    def train(self) -> None:
        jobs = JobDirectory(self._spool)
        while True:
            found = jobs.next() if self._world.first else None
            # All ranks do one job, and the directory of jobs is on the first one's machine.
            said = self._world.hand_out(msgspec.json.encode(found))
            name, job = msgspec.json.decode(said, type=tuple[str, Job] | None) or ("", None)
            if job is None:
                self._spool.wait()
                continue
            answer = self.answer(job)
            if not self._world.first:
                continue
            try:
                jobs.answer(name, answer)
            except OSError as error:  # a job without an answer is done again
                log.warning("job.not_answered", name=name, why=str(error))
                time.sleep(1.0)

    def answer(self, job: Job) -> JobFailure:
        """A job that fails is over, too: the daemon says why, and asks for the next. What this process is of no use for
        any more is raised."""
        self._seconds = {}
        try:
            with self._smaller_passes():
                return JobFailure(self._do(job))
        except OwnFailure:
            raise
        except IntellectError as error:
            return JobFailure({}, error.what, error.why, error.remedy)
        except OSError as error:
            why = f"{error.filename or self._spool.root}: {error.strerror or error}"
            return JobFailure({}, "pre-training cannot use its files", why, "free space there, or see who may write")

    def _do(self, job: Job) -> dict[str, Any]:
        match job:
            case StartRound():
                return self._started()
            case Train():
                return self._trained(job)
            case Check():
                return self._checked(job)
            case Publish():
                self._publish(job.round, dict(job.metrics))
                return {}

    def _started(self) -> dict[str, Any]:
        """The outer state with which to begin; a damaged one is made again, or fetched."""
        if not self._here(self._outer_path(0)):
            self._begin()
        shapes = {name: list(shape) for name, shape in self._learner.shapes.items()}
        own = self._own_shapes()
        # Of the last round, whose number has the most digits: no own state of this run is longer.
        most = state_size(self._run.recipe.steps + 1, own) if own else 0
        told = {"path": str(self._outer_path(0)), "arithmetic": self.arithmetic, "own_bytes": most}
        return {"shapes": shapes, **told}

    def _trained(self, job: Train) -> dict[str, Any]:
        self._contribute(job.round, job.replica_id, job.until, fresh=job.fresh, most=job.steps or None)
        path, own = self._contribution_path(job.round, job.replica_id), self._own_path(job.round, job.replica_id)
        header = self._decoded(path, self._begun(job.round), job.round).header
        told = {"path": str(path), "tokens": header.tokens, "loss": header.loss_last, "seconds": self._seconds}
        return told | {"own": str(own) if own.exists() else "", "began": not self._begins_with_nothing(header)}

    # What an audit at a desk asks

    def outer_file(self, round_: int) -> Path:
        """The outer state with which a round begins."""
        return self._outer_path(round_)

    def replica_files(self, round_: int, replica_id: int) -> tuple[Path, Path, Path]:
        """A replica's contribution to a round, and what it kept for itself before and after."""
        return (
            self._contribution_path(round_, replica_id),
            self._own_path(round_ - 1, replica_id),
            self._own_path(round_, replica_id),
        )

    def header_of(self, path: Path, outer: OuterStateFile) -> ContributionHeader:
        """Raises ContributionError."""
        return self._decoded(path, outer).header

    # Looking at what others made

    def _begun(self, round_: int) -> OuterStateFile:
        """The outer state that a round's steps begin at."""
        return OuterStateFile(self._outer_path(self._rules.begins_at(round_)))

    def _checked(self, job: Check) -> dict[str, Any]:
        """What there is to say of a contribution: `fault` in its form; or what it does to the loss, and whether its
        steps come to the same here."""
        outer = self._begun(job.round)
        try:
            contribution = self._decoded(Path(job.path), outer, job.round)
            found: dict[str, Any] = {"norm": contribution.check()}
        except ContributionError as error:
            return {"fault": error.why}
        header = contribution.header
        # How many steps are made again follows from this number.
        if header.tokens % (self._batch or self._rules.batch_tokens):
            return {"fault": f"it says that it learnt from {header.tokens} tokens, which is no whole number of steps"}
        found |= {"replica_id": header.replica_id, "tokens": header.tokens, "loss": header.loss_last}
        found |= {"batches": [root.hex() for root in header.batches]}
        found |= {"inner": [root.hex() for root in header.inner], "near": header.arithmetic == self.arithmetic}
        found |= self._likeness(contribution, outer, job.others)
        # Cosine of two contributions from which on one may be a copy: honest ones had at most 0.7 (measured), a copy
        # with 5 % of noise has 0.999. Where batches are large honest ones come closer; so it only asks for a replay.
        if job.replay or found["alike"] > 0.9:
            found |= self._replayed(outer, contribution, job)
        if not {"distance", "state", "lacks"} & found.keys():
            # whoever made the same steps knows more than the loss says
            found |= self._effect(outer, contribution)
            # Standard errors by which the loss must fall, or the steps are made again: an honest contribution may fall
            # short of that, and is then found to be honest.
            if "own" in found and found["own"] <= 2.0 * found["error"]:
                found |= self._replayed(outer, contribution, job)
        return found | {"seconds": self._seconds.get("check", 0.0)}

    def _begins_with_nothing(self, header: ContributionHeader) -> bool:
        return header.inner[0] == state_root(header.round, ())

    def _likeness(self, contribution: Contribution, outer: OuterStateFile, others: tuple[str, ...]) -> dict[str, Any]:
        """The largest cosine with another contribution of the round, and whose that is."""
        found, whose = 0.0, ""
        for path in others:
            try:
                other = self._decoded(Path(path), outer, contribution.header.round)
                cosine = _cosine(contribution, other)
            except (ContributionError, OSError):  # it is no contribution, which is its own judge's to say
                continue
            if cosine > found:
                found, whose = cosine, path
        return {"alike": found, "whose": whose}

    def _replayed(self, outer: OuterStateFile, contribution: Contribution, job: Check) -> dict[str, Any]:
        """Make the steps again. same: whether the file's arithmetic is this machine's; equal: whether every byte is;
        distance: of the two results, as a share of this one; after: what two validators that replay it can compare.
        Or else lacks: own states of its node that are to be fetched before;
        state: why one of them is none."""
        header, shapes = contribution.header, self._own_shapes()
        same = header.arithmetic == self.arithmetic
        begins = bool(shapes) and not self._begins_with_nothing(header)
        # In another arithmetic only a comparison can tell what a peer says to keep from what it made up.
        lacks = ["before"] * (begins and not job.before) + ["after"] * (bool(shapes) and not same and not job.after)
        lacks += ["batches"] * (len(job.batches) < len(header.batches))
        if lacks:
            return {"lacks": lacks}
        try:
            before = strangers_state(Path(job.before), header.round, shapes) if begins else None
            after = strangers_state(Path(job.after), header.round + 1, shapes) if shapes and not same else None
        except TrainingError as error:
            return {"state": error.why}
        path, own = self._rounds / "replayed.inc", self._rounds / "replayed.safetensors"
        try:
            with self._timed("check"):
                count = header.tokens // (self._batch or self._rules.batch_tokens)
                self._given = job.batches
                said, _ = self._steps(header.round, header.replica_id, before, most=count)
                # whoever asks has made the batches of the manifests that the header names
                self._write(msgspec.structs.replace(said, batches=header.batches), before, path, own)
            ours = self._decoded(path, outer, header.round)
            error, size, equal = _compared(ours, contribution)
            distances = [math.sqrt(error / size) if size else math.inf if error else 0.0]
            distances += _apart(OuterStateFile(own), after, self._weights_in(header.round, outer)) if after else []
        except TrainingError as error:  # numbers that no honest steps begin with
            return {"state": f"steps from it come to nothing: {error.why}"}
        finally:
            self._given = ()
            self._world.share(b"\0")  # all ranks have read them
            if self._world.first:
                path.unlink(missing_ok=True)
                own.unlink(missing_ok=True)
        equal = equal and msgspec.structs.replace(ours.header, arithmetic=header.arithmetic) == header
        pairs = zip(ours.header.stretches, header.stretches, strict=False)
        wrong = [at for at, (one, other) in enumerate(pairs) if one != other]
        # JSON knows no infinity: msgspec would write null.
        distance = min(max(distances), 1e30)
        told = {"same": same, "equal": equal, "distance": distance, "wrong": wrong[:1]}
        return told | {"after": self._after(header, math.sqrt(size))}

    def _weights_in(self, round_: int, outer: OuterStateFile) -> Tensors:
        """What stands for nothing in the own state of a round: the outer state, in place of a copy's weights."""
        changed = frozenset(COPY + name for name in self._sent(round_ - 1))

        def tensor(name: str) -> F32:
            is_weight = name.startswith(COPY) and name not in changed
            return outer.tensor(name.removeprefix(COPY)) if is_weight else np.zeros(1, dtype=np.float32)

        return tensor

    def _after(self, header: ContributionHeader, norm: float) -> float:
        """What two validators that made the same steps can compare. norm: of what came of them."""
        return norm

    def _effect(self, outer: OuterStateFile, contribution: Contribution) -> dict[str, Any]:
        """What a contribution does to the loss, where one can be looked at."""
        return {}


class TextPeer(AsAsked, Pretrainer):
    """Of a run that learns from text."""

    def _effect(self, outer: OuterStateFile, contribution: Contribution) -> dict[str, Any]:
        """By how much the loss falls on the replica's own rows and on another's, nats per token; error: of the
        first."""
        header, first = contribution.header, contribution.header.round * self._rules.round_steps
        # Batches of the own rows, and as many of others', on which a contribution's effect is looked at.
        steps = np.linspace(0, header.tokens // self._rules.batch_tokens - 1, 4).astype(int)
        steps = sorted({first + int(step) for step in steps})
        replicas = (header.replica_id, (header.replica_id + 1) % self._rules.max_contributions)
        rows = [self._data.rows(replica_id, step) for replica_id in replicas for step in steps]
        with self._timed("check"):
            self._learner.load(outer.tensor)
            before = [self._learner.loss(each) for each in rows]
            self._learner.load(lambda name: _less(outer.tensor(name), contribution, name))
            after = [self._learner.loss(each) for each in rows]
        falls = np.array(before) - np.array(after)
        own, others = falls[: len(steps)], falls[len(steps) :]
        return {
            "own": _finite(float(own.mean())),
            "error": _finite(float(own.std(ddof=1) / math.sqrt(len(own))) if len(own) > 1 else 0.0),
            "others": _finite(float(others.mean())),
        }

    def _after(self, header: ContributionHeader, norm: float) -> float:
        """The loss on the contribution's first rows."""
        return self._learner.loss(self._data.rows(header.replica_id, header.round * self._rules.round_steps))


class ReplicaPeer(AsAsked, ReplicaRounds):
    """Of a run that learns from rollouts."""

    def _handed(self, place: int, number: int) -> bytes:
        return Path(self._given[number]).read_bytes() if self._given else super()._handed(place, number)

    def _batches(self, round_: int, replica_id: int, count: int) -> tuple[bytes, ...]:
        return () if self._given else super()._batches(round_, replica_id, count)

    def _is_used_up(self, files: Sequence[str], place: int) -> bool:
        # Steps that are made again are another node's: what a group was used for before is not this process's to say.
        return not self._given and super()._is_used_up(files, place)


def _compared(ours: Contribution, theirs: Contribution) -> tuple[float, float, bool]:
    """(squared distance, the square of ours, whether every byte is equal)."""
    error, size, equal = 0.0, 0.0, True
    for name in ours.shapes:
        equal = equal and ours.parts[name] == theirs.parts[name]
        mine = ours.tensor(name).astype(np.float64)
        error += float(np.square(mine - theirs.tensor(name)).sum())
        size += float(np.square(mine).sum())
    return error, size, equal


def _less(weights: F32, contribution: Contribution, name: str) -> F32:
    """The weights as a contribution by itself would leave them."""
    return weights - contribution.tensor(name).reshape(weights.shape) if name in contribution.parts else weights


def _apart(ours: OuterStateFile, theirs: OuterStateFile, nothing: Tensors) -> list[float]:
    """The distance of two own states, as a share of ours: of each kind of tensor, since their sizes differ. nothing:
    what ours is compared with for its size."""
    error, size = defaultdict[str, float](float), defaultdict[str, float](float)
    for name in ours.shapes:
        kind, mine = name.partition("/")[0], ours.tensor(name).astype(np.float64)
        error[kind] += float(np.square(mine - theirs.tensor(name)).sum())
        size[kind] += float(np.square(mine - nothing(name)).sum())
    return [math.sqrt(error[kind] / size[kind]) if size[kind] else math.inf if error[kind] else 0.0 for kind in error]


def _cosine(one: Contribution, other: Contribution) -> float:
    """0 where one of them is nothing."""
    product = first = second = 0.0
    for name in one.shapes:
        a, b = one.tensor(name), other.tensor(name)
        product += float(np.dot(a.astype(np.float64), b))
        first += float(np.dot(a.astype(np.float64), a))
        second += float(np.dot(b.astype(np.float64), b))
    return product / math.sqrt(first * second) if first and second else 0.0


def _finite(value: float) -> float:
    return value if math.isfinite(value) else -1e30
