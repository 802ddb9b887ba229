"""The trainer process, from top to bottom: load, then batch in, policy out, until the last step.

`python -m node.training.trainer --spool DIR` (launch.py starts it; where there are several, torchrun does, once per
rank). Knows the spool and the learner; knows nothing of peers, verdicts or chains: the daemon decides what stands in a
batch. Where machine, world size and settings stay the same, the same batches give the same policies, bit for bit,
however often the process is killed in between. The first rank reads and writes; the others compute.
"""

# ruff: noqa: E402 - the environment must be set before torch loads

import json
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Deterministic kernels need it: without a fixed workspace torch refuses products on GPUs in that mode.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from node.training.bells import ring
from node.training.orphan import die_with_launcher

if __name__ == "__main__":
    die_with_launcher()

import msgspec
import torch
from torch import Tensor

from node.inference.start_weights import StartWeights
from node.inference.torch_engine import build_model, image_names
from node.state.files import whole_file, write_whole
from node.training.adoption import AdoptionOrder, read_order, refuse
from node.training.arithmetic import SLOTS, arithmetic_of, state_root_of
from node.training.batch import Batch, decode_batch, unusable
from node.training.checkpoint import Checkpoints, identity
from node.training.computed_by import arithmetic_in
from node.training.determinism import as_deterministic_as_set
from node.training.errors import TrainingError
from node.training.handover import hand_over
from node.training.image import Image, stream_image
from node.training.learner import Learner
from node.training.length import without_length
from node.training.lora import StartAdapter, given
from node.training.lowering import AGAIN, MicroBatchLimit
from node.training.meeting import meet, open_store
from node.training.memory import DeviceLost, OutOfMemory, during
from node.training.performance import measured
from node.training.planning import with_less
from node.training.program import alone, settings_of, spool_named_on_the_command_line, tell
from node.training.pulse import keep_watch
from node.training.settings import TrainerSettings
from node.training.sharding import fill, without_memory
from node.training.spool import Spool
from node.training.state import State, read_state
from node.training.world import World, join_world, leave_world, place_in_world
from protocol.errors import IntellectError
from protocol.lora import ADAPTER
from protocol.manifest import Arithmetic, decode_card
from protocol.policy import policy_root
from protocol.run import MODEL, RunSpec, decode_run
from protocol.sections import TEACHER

PARTS = ("wait", "load", "forward_backward", "optimizer", "publish")


class Stopwatch:
    """Wall seconds of one step, by name. The parts that every step has are there from the start: one without signal
    spends nothing on its gradient, and says so."""

    def __init__(self, device: torch.device) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._device = device

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        if self._device.type == "cuda":
            # Kernels run behind the program: without this their time would be charged to whoever waits next.
            torch.cuda.synchronize(self._device)
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - started, 4)


class SpoolTrainer:
    """One run on one spool."""

    def __init__(self, spool: Spool, settings: TrainerSettings | None = None, world: World | None = None) -> None:
        self._spool = spool
        self._settings = settings or TrainerSettings()
        self._world = world or World()
        self._run: RunSpec = decode_run(spool.run_path.read_bytes(), desk=True)  # the daemon has checked it
        recipe, rollout = self._run.recipe, self._run.rollout
        self._start_weights = StartWeights(spool.assets / MODEL)
        self._learner = Learner(
            self._new_model(),
            recipe,
            rollout.temperature,
            self._settings,
            self._world,
            rollout.max_output_tokens,
            spool.assets,
            distill=self._run.distill,
        )
        self._limit = MicroBatchLimit(spool.lowered_path, self._settings, self._world)
        self._consumed: dict[str, int] = {}
        self._state = b""
        """State root of what the learner holds now."""
        self._checkpoints = Checkpoints(
            spool.checkpoints,
            self._learner,
            identity(self._learner, without_length(self._run)),
            self._world,
            keep=self._settings.keep_checkpoints,
            written=self._forget_batches,
        )

    def train(self) -> None:
        """Work until the run's last step is published."""
        step, watch = self._start(), self._stopwatch()
        recipe = self._run.recipe
        while step < recipe.steps:
            with watch("wait"):
                # Batches are on the first rank's machine alone; nothing comes where a state is to be taken over.
                data = self._world.hand_out(self._spool.batch(step) if self._world.first else b"")
            if not data:
                step, watch = self._adopt(step), self._stopwatch()
                continue
            with watch("load"):
                batch = self._admit(decode_batch(data), step)
            with watch("step"):
                metrics = self._learn(batch, step, watch)
            metrics["staleness"] = dict(Counter(str(step - row.policy_step) for row in batch.rows))
            metrics["performance"] = self._measure(metrics, watch)
            step += 1
            self._publish(step, metrics, watch)
            watch = self._stopwatch()
            # After publishing: a crash in between repeats the step, and `_compare` finds the same image.
            if step % self._settings.checkpoint_every == 0 or step == recipe.steps:
                with watch("checkpoint"), during("publish", self._settings, step):
                    self._checkpoints.save(step, self._consumed)
                    if not self._settings.async_checkpoints:
                        self._checkpoints.wait()
        self._checkpoints.wait()

    def _learn(self, batch: Batch, step: int, watch: Stopwatch) -> dict[str, Any]:
        """Where memory runs out in a pass and smaller ones may help, all ranks start again with them: what the step had
        begun is undone by the checkpoint. Raises SystemExit then, OutOfMemory where another try would be the same."""
        limit = self._learner.micro_batch_tokens = self._limit.at(step)
        self._teach(batch)
        try:
            metrics = self._learner.step(batch.rows, step, watch)
        except OutOfMemory as error:
            self._limit.begin_again(error, step, self._learner.divisible)
            raise
        return metrics | ({"micro_batch_tokens": limit} if limit < self._settings.micro_batch_tokens else {})

    def _stopwatch(self) -> Stopwatch:
        return Stopwatch(self._world.device)

    def _new_model(self, name: str = MODEL) -> Any:
        with without_memory(self._world):
            return build_model(self._spool.assets / name)

    # From where

    def _start(self) -> int:
        """Restore the newest checkpoint, or begin with policy 0; returns the step to go on with."""
        self._place_model()
        # Behind the model: frozen weights, a reference and a teacher are in no checkpoint.
        state = self._checkpoints.load_newest()
        step = 0 if state is None else state.step
        if state is not None:
            self._consumed = dict(state.consumed)
        # The daemon does not write batches of published steps again: the trainer would wait for ever.
        if self._world.first and self._spool.newest_step() > step and not self._spool.batch_path(step).exists():
            raise TrainingError(
                "training cannot go on where it stopped",
                f"step {self._spool.newest_step()} was published, but the newest sound checkpoint is of step {step}, "
                "and the batches between them are gone",
                "restore the checkpoints of this state directory from a copy",
            )
        if state is None:
            self._publish(0, {}, self._stopwatch())
        elif self._spool.adopted() == step and not self._spool.is_complete(step):
            self._publish(step, {"adopted": True}, self._stopwatch())  # killed while it took this state over
        else:
            self._state = self._state_root(step)
        return step

    def _place_model(self) -> None:
        """What every run begins with: the start model's weights, and beside them a reference or a teacher where that is
        needed."""
        learner = self._learner
        adapter = self._start_adapter() if self._run.recipe.lora else None
        self._start_weights.check(learner.frozen if adapter else learner.parameters)
        learner.load_frozen(self._start_weights)
        if learner.beside.needs_reference:
            learner.beside.set_reference(self._new_model(), self._start_weights)
        if self._run.distill and not self._run.distill.tasks:
            self._place_teacher()
        learner.load_weights(adapter or self._start_weights)

    def _start_adapter(self) -> Mapping[str, torch.Tensor]:
        """As parameters: a policy has the adapter's scale in it, and they have not."""
        learner, directory = self._learner, self._spool.assets / ADAPTER
        if not directory.is_dir():
            return StartAdapter(learner.parameters, self._run.recipe.seed)
        return {name: learner.as_learnt(name, one.float()) for name, one in given(directory, learner.shapes).items()}

    def _teach(self, batch: Batch) -> None:
        """Have a teacher for rows that do not bring what it says: at a desk nobody does tasks."""
        if (
            self._run.distill
            and not self._learner.beside.has_teacher
            and not all(row.teacher_logprobs for row in batch.rows)
        ):
            self._place_teacher()

    def _place_teacher(self) -> None:
        teacher, weights = self._new_model(TEACHER), StartWeights(self._spool.assets / TEACHER)
        weights.check(image_names(teacher))
        self._learner.beside.set_teacher(teacher, weights)

    # From another trainer's state

    def _adopt(self, step: int) -> int:
        """Go on from a checkpoint that the daemon has fetched, if it is the stated one; the step to go on with. What is
        refused changes nothing here."""
        order = read_order(self._spool)
        if order is None:
            return step
        try:
            state = self._stated(order, step)
        except IntellectError as error:
            tell({"event": "checkpoint.refused", "step": order.step, "why": error.why})
            refuse(self._spool, order, error)
            return step
        self.take(state)
        self._spool.remember_adopted(state.step)  # first: who is killed from here on knows what to go on with
        self._checkpoints.save(state.step, self._consumed)
        self._checkpoints.wait()
        self._publish(state.step, {"adopted": True}, self._stopwatch())
        self._spool.adoption_path.unlink(missing_ok=True)
        ring(self._spool.root)
        return state.step

    def _stated(self, order: AdoptionOrder, step: int) -> State:
        """The state that an order names. Raises ProtocolError and TrainingError for any other."""
        if self._world.size > 1:
            raise TrainingError("no checkpoint of others", "this trainer has several ranks", "replay every step")
        if order.step <= step:
            raise TrainingError("no checkpoint of others", f"this trainer has step {step} already", "go on with it")
        card = decode_card(order.card)
        card.check(order.step)
        state = read_state(card, [Path(path) for path in order.files], self._learner.shapes, order.state_root)
        if self._image_root(state) != order.policy_root:
            raise TrainingError(
                f"the checkpoint of step {order.step} cannot be used",
                "the published policy is not the rounding of its weights",
                "follow another trainer",
            )
        return state

    def _image_root(self, state: State) -> bytes:
        """Policy root of a state that the learner does not hold yet."""
        weights = state.tensors["weight"]
        shown = ((name, self._learner.as_published(name, torch.from_numpy(weights[name]))) for name in weights)
        tensors = ((name, tensor.to(torch.bfloat16)) for name, tensor in shown)
        return policy_root(state.step, stream_image(self._learner.shapes, tensors).tensors)

    def take(self, state: State) -> None:
        """Hold a copy of a state."""
        learner = self._learner
        learner.load_weights({name: torch.from_numpy(values) for name, values in state.tensors["weight"].items()})
        moments = dict[str, dict[str, Tensor]]()
        for name, parameter in learner.parameters.items() if state.updates else ():
            moments[name] = {slot: torch.zeros_like(parameter.detach()) for slot in SLOTS}
            for slot, tensor in moments[name].items():
                fill(tensor, torch.from_numpy(state.tensors[slot][name]))
        learner.restore_optimizer(state.updates, moments)
        self._consumed = dict(state.consumed)

    # Batches in

    def _admit(self, batch: Batch, step: int) -> Batch:
        """Only batches of this step, of rollouts that are fresh and were never learnt from."""
        which = f"the batch of step {step}"
        if batch.header.step != step:
            raise unusable(which, f"it says that it is for step {batch.header.step}")
        limit = self._run.recipe.max_staleness
        ages = [step - row.policy_step for row in batch.rows]
        # The daemon checks all of this, too. A defect there must not train on anything twice.
        if ages and (max(ages) > limit or min(ages) < 0):
            raise unusable(which, f"it has rollouts that are {min(ages)} to {max(ages)} versions old (0 to {limit})")
        files = batch.header.files
        again = [root for root in files if root in self._consumed]
        if again or len(set(files)) != len(files):
            raise unusable(which, f"{len(again) or 'some'} of its rollout files were learnt from before")
        self._consumed |= dict.fromkeys(files, step)
        # a file that is forgotten here is too stale to be admitted
        self._consumed = {root: at for root, at in self._consumed.items() if at >= step - limit}
        return batch

    # Policies out

    def _publish(self, step: int, metrics: dict[str, Any], watch: Stopwatch) -> None:
        """Image, then metrics: their presence makes the step complete."""
        before = self._state
        with watch("publish"), during("publish", self._settings, step):
            image = self._write_image(step)
            # All ranks gather for it. A step that was published before needs it, too: the next one names it as its own
            # state before.
            self._state = self._state_root(step)
        if image is None or not self._world.first:
            return
        metrics |= {
            "step": step,
            "seconds": watch.seconds,
            "policy_root": policy_root(step, image.tensors).hex(),
            "image": image.digest,
            "state_before": before.hex(),
            "state_root": self._state.hex(),
            "arithmetic": msgspec.structs.asdict(self._arithmetic(step)),
        }
        # json would write NaN, which is no JSON: readers of the spool refuse it.
        write_whole(self._spool.metrics_path(step), json.dumps(metrics, allow_nan=False).encode())
        ring(self._spool.root)

    def _state_root(self, step: int) -> bytes:
        return state_root_of(self._learner, self._world, step, self._consumed)

    def _write_image(self, step: int) -> Image | None:
        """On the first rank, with what the others bring; None where it was published before.

        Raises TrainingError if that was another one.
        """
        learner = self._learner
        if not self._world.first:
            # All ranks take part in gathering each.
            for _ in learner.tensors():
                continue
            return None
        # Published before a restart. It was sampled from, so it stays as it is; the replay is only compared.
        if self._spool.is_complete(step):
            self._compare(step, stream_image(learner.shapes, learner.tensors()).digest)
            return None
        with whole_file(self._spool.policy_path(step)) as file:
            return stream_image(learner.shapes, learner.tensors(), file)

    def _compare(self, step: int, digest: str) -> None:
        """With what was published. Raises TrainingError if that differs without a reason, or on a machine that was not
        chosen for it.

        Another world size or setting rounds differently, and so may every replay that is not deterministic. Then the
        published images stand as they are: they are what was sampled from, and the log-probs of their rollouts are
        theirs. The state is another one from here on, and what is published next says so (`state_before`).
        """
        known = json.loads(self._spool.metrics_path(step).read_bytes())
        if known.get("image") == digest:
            return
        differences = self._arithmetic(step).differences(arithmetic_in(known))
        if self._settings.deterministic:
            _refuse_to_differ(step, differences)
        tell({"event": "replay.rounded_differently", "step": step, "differences": differences})

    def _arithmetic(self, step: int) -> Arithmetic:
        """In which policy `step` is computed."""
        return arithmetic_of(self._learner, self._settings, self._world, self._limit.at(step - 1))

    def _measure(self, metrics: dict[str, Any], watch: Stopwatch) -> dict[str, float]:
        fed = float(metrics.get("fed_tokens", 0.0))
        length = fed / max(metrics["trained_tokens"], 1.0) * metrics.get("length_mean", 0.0)
        seconds = watch.seconds.get("forward_backward", 0.0) + watch.seconds.get("optimizer", 0.0)
        return measured(
            self._learner.model, fed, length, seconds, self._world.device, self._world.size, self._settings.peak_tflops
        )

    def _forget_batches(self, step: int) -> None:
        """A checkpoint is in place: batches from before the oldest kept one are not needed any more.

        Old images are the daemon's to delete, who knows what it has published; the metrics keep their digests.
        """
        self._spool.forget_batches(min(self._checkpoints.available(), default=step))


def _refuse_to_differ(step: int, differences: list[str]) -> None:
    """Raises TrainingError unless the difference was asked for by a setting."""
    if not differences:
        raise TrainingError(
            f"step {step} came out differently than before the restart",
            "the replay of its batches gave other weights than those that were published",
            "look for a faulty disk or memory, or a batch file that was changed; the published policies are in out/",
        )
    machine = [each for each in differences if each.startswith(("processor", "versions", "adamw"))]
    if machine:
        raise TrainingError(
            f"this machine cannot go on exactly: it rounds step {step} otherwise than the one that published it",
            "; ".join(machine),
            "resume on such a processor with those versions, or set trainer.deterministic = false to go on from the "
            "checkpoint all the same: the published policies stay, and an audit of the next step names the break",
        )


def main() -> int:
    spool = spool_named_on_the_command_line("Train on a spool. Started by node.training.launch.")
    rank, _ = place_in_world()
    said = {"event": "training.failed", "rank": str(rank)}
    return alone(f"trainer-{rank}", spool, lambda: _train(spool), spool.error_path, said)


def _train(spool: Spool) -> None:
    settings = settings_of(spool)
    store = welcome = None
    if settings.nodes > 1:
        store, own = open_store(), spool.run_path.read_bytes() if spool.run_path.exists() else b""
        welcome = meet(settings, own, store, *place_in_world())
        settings = welcome.settings
    torch.set_num_threads(settings.threads)
    warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # a single process is meant
    world = join_world(settings, store)
    if welcome is not None:
        if world.leader:
            keep_watch(open_store, settings.node_rank, settings.nodes)
        hand_over(world, spool, welcome.run)
    try:
        with as_deterministic_as_set(settings, world.device), during("load", settings):
            _program(spool, settings, world)
    except OutOfMemory as error:
        raise TrainingError(error.what, error.why, f"{error.remedy}{_fitting(spool, settings, world)}") from error
    except DeviceLost as error:
        tell({"event": "training.device_lost", "what": error.what, "why": error.why})
        # A new process may reach it again, and the step is made anew from the checkpoint. It ends after a few.
        raise SystemExit(AGAIN) from error
    leave_world(world)  # not after an error: the other ranks may wait for this one, and torchrun ends them


def _fitting(spool: Spool, settings: TrainerSettings, world: World) -> str:
    """What the planner would do with a sixth less memory than it had counted on."""
    run = decode_run(spool.run_path.read_bytes(), desk=True)
    found = with_less(run, spool.assets, settings, gpu=world.device.type == "cuda")
    return f"; by count this fits into a sixth less: {found}" if found else ""


def _program(spool: Spool, settings: TrainerSettings, world: World) -> None:
    """What the run's kind asks for."""
    run = decode_run(spool.run_path.read_bytes(), desk=True)  # the daemon has checked it
    if run.diloco is None:
        SpoolTrainer(spool, settings, world).train()
        return
    from node.training.jobs import JobDirectory
    from node.training.peer import ReplicaPeer, TextPeer
    from node.training.pretrainer import Pretrainer
    from node.training.replicas import ReplicaRounds

    asked = JobDirectory(spool).exist
    if run.pretraining is None:
        (ReplicaPeer if asked else ReplicaRounds)(spool, run, settings, world).train()
    else:
        (TextPeer if asked else Pretrainer)(spool, run, settings, world).train()


if __name__ == "__main__":
    sys.exit(main())
