"""A replica's round: its inner steps from an outer state, and the contribution that comes of them.

Knows the learner, the files below the spool's rounds/ and the order in which ranks gather; nothing of who asks for a
replica's steps, and nothing of how contributions become the next outer state. Killed at any time, a replica begins its
round again, and the same numbers come out.
"""

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
import torch
from blake3 import blake3

from node.hardware.cpu import look
from node.inference.settings import hardware
from node.inference.torch_engine import build_model
from node.state.files import mapped, whole_file, write_whole
from node.training.inner import Inner, Tensors
from node.training.length import without_length
from node.training.lowering import MicroBatchLimit
from node.training.outer import OuterStateFile, Take, state_file
from node.training.settings import TrainerSettings
from node.training.sharding import without_memory
from node.training.spool import Spool
from node.training.world import World, compute_dtype
from protocol.blobs import describe
from protocol.contribution import Contribution, ContributionHeader, decode_contribution, encode_header, expected_of
from protocol.exchange import F32, form_of
from protocol.rounds import fragment, state_root
from protocol.run import RunSpec

CARRIED = "carried/"
"""Before the names of what a peer has not sent yet, among its own tensors."""
COPY = "copy/"
"""Before the names of its own copy of the model, where a round exchanges a fragment: weights as the round left them; of
what the round before sent, whose outcome the round's steps do not see yet, by how much these steps changed it."""


def newest_of(spool: Spool, world: World) -> int:
    """The newest policy, -1 before the first; all ranks ask. Other machines than the first rank's have none."""
    # One more, so that nothing negative is sent.
    return int.from_bytes(world.share((spool.newest_step() + 1).to_bytes(8, "little")), "little") - 1


class Contributing:
    """One run on one spool. Who derives from it says what an inner step is."""

    _learner: Inner
    _batch = 0
    """Rollouts of an inner step; 0 where it learns from text."""

    def __init__(self, spool: Spool, run: RunSpec, settings: TrainerSettings, world: World) -> None:
        if run.diloco is None:
            raise ValueError("a run without [diloco]")
        self._limit = MicroBatchLimit(spool.lowered_path, settings, world)
        # For as long as this process lives: the arithmetic that a contribution names has the size of its passes in it.
        self._spool, self._run, self._world = spool, run, world
        most = self._limit.at(max(0, newest_of(spool, world)))
        self._settings = msgspec.structs.replace(settings, micro_batch_tokens=most)
        self._rules, self._form = run.diloco, form_of(run.diloco)
        self._root = blake3(without_length(run)).digest()
        self._seconds: dict[str, float] = {}

    def _new_model(self) -> Any:
        with without_memory(self._world):
            return build_model(self._spool.assets / "model")

    def _inner_step(self, round_: int, replica_id: int, number: int) -> dict[str, Any]:
        """Make an inner step of a replica with the learner; its metrics, `loss` and `grad_norm` among them."""
        raise NotImplementedError

    def _batches(self, round_: int, replica_id: int, count: int) -> tuple[bytes, ...]:
        """Roots of the manifests of a replica's first inner steps, where batches have some."""
        return ()

    # A replica's round

    def _contribute(
        self, round_: int, replica_id: int, until: float = math.inf, *, fresh: bool = False, most: int | None = None
    ) -> None:
        """Train from the outer state for inner_steps (or at most `most` of them), or until the time is over, and write
        what came of it; nothing if that is there already. fresh: the replica leaves what its last round left it."""
        if self._here(self._contribution_path(round_, replica_id)):
            return
        before = None if fresh else self._own(round_, replica_id)
        header, steps = self._steps(round_, replica_id, before, until, most)
        with self._timed("exchange"):
            paths = self._contribution_path(round_, replica_id), self._own_path(round_, replica_id)
            if self._world.first:
                # Before the contribution, whose presence ends the round of this replica.
                write_whole(paths[0].with_suffix(".json"), json.dumps(self._said(steps)).encode())
            self._write(header, before, *paths)

    def _steps(
        self,
        round_: int,
        replica_id: int,
        before: OuterStateFile | None,
        until: float = math.inf,
        most: int | None = None,
    ) -> tuple[ContributionHeader, list[dict[str, Any]]]:
        """Make a replica's steps of a round with the learner. (what their contribution says, but for the replica's own
        state afterwards; metrics of each). before: the replica's own state, None where it begins; most: steps."""
        learner, rules = self._learner, self._rules
        outer = OuterStateFile(self._outer_path(rules.begins_at(round_)))
        learner.load(self._beginning(outer, before, round_))
        learner.begin(before.tensor if before and rules.inner_state == "kept" else None)
        steps, digests = list[dict[str, Any]](), list[bytes]()
        with self._timed("inner"):
            for number in range(rules.round_steps if most is None else most):
                step = round_ * rules.round_steps + number
                if number and self._is_over(until):
                    break
                if rules.stretch and number % rules.stretch == 0:
                    digests.append(learner.digest(step))
                steps.append(self._inner_step(round_, replica_id, number))
        header = ContributionHeader(
            self._root,
            round_,
            outer.root,
            replica_id,
            len(steps) * (self._batch or rules.batch_tokens),
            steps[0]["loss"],
            steps[-1]["loss"],
            # The second root is of what the replica keeps afterwards: `_write` fills it in.
            (blob_root(before.path) if before else state_root(round_, ()), bytes(32)),
            tuple(digests),
            self.arithmetic,
            self._batches(round_, replica_id, len(steps)),
        )
        return header, steps

    def _said(self, steps: list[dict[str, Any]]) -> dict[str, Any]:
        """Of a replica's steps, for the round's record."""
        norms = [one["grad_norm"] for one in steps]
        return {
            "loss": float(np.mean([one["loss"] for one in steps])),
            "loss_last": steps[-1]["loss"],
            "grad_norm": float(np.mean(norms)),
            "grad_norm_max": max(norms),
        }

    def _beginning(self, outer: OuterStateFile, before: OuterStateFile | None, round_: int) -> Tensors:
        """The weights with which a replica's steps of a round begin: the outer state; with fragments its own copy of
        what is not exchanged yet, and the outcome of what is, changed as much as it was meanwhile."""
        if before is None or self._rules.fragments == 1:
            return outer.tensor
        changed = frozenset(self._sent(round_ - 2))

        def tensor(name: str) -> F32:
            own = before.tensor(COPY + name)
            return outer.tensor(name) + own if name in changed else own

        return tensor

    def _sent(self, round_: int) -> list[str]:
        """The tensors that a round exchanges."""
        return fragment(self._learner.shapes, round_, self._rules.fragments)

    def _shapes_of(self, round_: int) -> dict[str, tuple[int, ...]]:
        """Of a contribution."""
        return {name: self._learner.shapes[name] for name in self._sent(round_)}

    def _is_over(self, until: float) -> bool:
        """Whether a time is over by the first rank's clock: all ranks make the same steps."""
        return until < math.inf and self._world.share(bytes([time.time() > until])) == b"\1"

    def _own(self, round_: int, replica_id: int) -> OuterStateFile | None:
        """What the replica's last round left of it; None if it begins, or keeps nothing."""
        path = self._own_path(round_ - 1, replica_id)
        return OuterStateFile(path) if path.exists() else None

    # What it leaves

    def _write(self, header: ContributionHeader, before: OuterStateFile | None, path: Path, own: Path) -> None:
        """What the replica keeps for itself, and its contribution. Tensor by tensor; all ranks take part in
        gathering."""
        learner = self._learner
        if self._world.first:
            with whole_file(path) as file:
                file.write(encode_header(header))
                # Inside the block: what the replica keeps is whole before the contribution has its name.
                root = self._write_tensors(header, before, own, file)
                whole = msgspec.structs.replace(header, inner=(header.inner[0], root))
                file.seek(0)
                file.write(encode_header(whole))  # of the same length: only a root is another
        else:
            # As many tensors, and in the order, as the first rank gathers in `_write_tensors`: all take part in each.
            copies = learner.weights() if self._rules.fragments > 1 else ()
            for _ in chain(learner.weights(), copies, learner.own_tensors() if self._kept else ()):
                continue
        self._world.share(b"\0")

    def _own_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of what a replica keeps for itself from one round to the next."""
        learner, rules = self._learner, self._rules
        shapes = learner.own_shapes() if self._kept else {}
        shapes |= {CARRIED + name: shape for name, shape in learner.shapes.items()} if rules.carries_over else {}
        return shapes | ({COPY + name: shape for name, shape in learner.shapes.items()} if rules.fragments > 1 else {})

    def _write_tensors(
        self, header: ContributionHeader, before: OuterStateFile | None, own: Path, file: BinaryIO
    ) -> bytes:
        """The contribution's tensors into `file`, the replica's own into theirs; the root of these."""
        learner, carries, shapes = self._learner, self._rules.carries_over, self._own_shapes()
        outer = OuterStateFile(self._outer_path(self._rules.begins_at(header.round)))
        sent = frozenset(self._sent(header.round))
        if not shapes:
            for name, values in learner.weights():
                file.write(self._form.encode(outer.tensor(name).reshape(-1) - values))
            return state_root(header.round + 1, ())
        with state_file(own, header.round + 1, shapes) as (take, _):
            for name, values in learner.weights():  # "carried/" stands before all other names, and then "copy/"
                left = before.tensor(CARRIED + name).reshape(-1) if before and carries else np.zeros_like(values)
                if name in sent:
                    difference = outer.tensor(name).reshape(-1) - values
                    if before and carries:
                        difference += np.float32(self._rules.feedback) * left
                    data = self._form.encode(difference)
                    file.write(data)
                    left = difference - self._form.decode(data, difference.size) if carries else left
                if carries:
                    take(CARRIED + name, left)
            if self._rules.fragments > 1:
                self._take_copy(header.round, self._beginning(outer, before, header.round), take)
            for name, values in learner.own_tensors() if self._kept else ():
                take(name, values)
        return blob_root(own)

    def _take_copy(self, round_: int, beginning: Tensors, take: Take) -> None:
        """The replica's copy of the model, into its own state."""
        changed = frozenset(self._sent(round_ - 1))
        for name, values in self._learner.weights():
            take(COPY + name, values - beginning(name).reshape(-1) if name in changed else values)

    @property
    def _kept(self) -> bool:
        """Whether the optimisers' moments outlive a round."""
        return self._rules.inner_state == "kept"

    def _decoded(self, path: Path, outer: OuterStateFile, round_: int | None = None) -> Contribution:
        """Of steps that began at an outer state; round_: None for that state's own. Raises ContributionError."""
        round_ = outer.round if round_ is None else round_
        expected = expected_of(self._rules, self._root, {round_: outer.root}, self._batch)
        return decode_contribution(mapped(path), self._shapes_of(round_), self._form, expected)

    # Places

    @property
    def _rounds(self) -> Path:
        return self._spool.root / "rounds"

    def _outer_path(self, round_: int) -> Path:
        return self._rounds / f"outer-{round_:06d}.safetensors"

    def _contribution_path(self, round_: int, replica_id: int) -> Path:
        return self._rounds / f"{round_:06d}" / f"replica-{replica_id}.inc"

    def _own_path(self, round_: int, replica_id: int) -> Path:
        return self._rounds / f"{round_:06d}" / f"own-{replica_id}.safetensors"

    def _here(self, path: Path) -> bool:
        """Whether the first rank sees a file: all ranks do the same."""
        return self._world.share(bytes([path.exists()])) == b"\1"

    @property
    def arithmetic(self) -> str:
        """As a header names it: whatever the last bits of a contribution depend on. Whoever names the same and comes to
        other bits loses its stake, so the processor's model is part of it: libraries choose kernels by vendor and
        cache, too."""
        s, device = self._settings, self._world.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{hardware('cpu')} {look().name}"
        kind = f"{compute_dtype(s, device)} {'sharded' if self._world.mesh else 'plain'} x{self._world.size}"
        by = f" {self._learner.compiled}" if self._learner.compiled else ""
        return f"{name} {kind} {s.micro_batch_tokens} {s.logit_cells} threads {s.threads} torch {torch.__version__}{by}"

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)
        self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - started


def blob_root(path: Path) -> bytes:
    """By which others can fetch a file."""
    return describe(mapped(path)).root
