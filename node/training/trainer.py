"""The trainer process, from top to bottom: load, then batch in, policy out, until the last step.

`python -m node.training.trainer --spool DIR` (started by launch.py through torchrun). Knows the spool and the
learner; knows nothing of peers, verdicts or chains: the daemon decides what stands in a batch. On one machine
the same batches give the same policies, bit for bit, however often the process is killed in between.
"""

import argparse
import fcntl
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from node.training.orphan import die_with_launcher  # noqa: E402 - the environment must be set before torch loads

if __name__ == "__main__":
    die_with_launcher()

import msgspec  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from blake3 import blake3  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from node.environments.base import Environment  # noqa: E402
from node.environments.registry import load_environment  # noqa: E402
from node.inference.engine import Request  # noqa: E402
from node.inference.torch_engine import TorchEngine, bf16_bits, build_model  # noqa: E402
from node.training.batch import Batch, decode_batch  # noqa: E402
from node.training.checkpoint import available_checkpoints, load_newest, save_checkpoint  # noqa: E402
from node.training.errors import TrainingError  # noqa: E402
from node.training.learner import Learner  # noqa: E402
from node.training.spool import Spool, write_whole  # noqa: E402
from protocol.errors import IntellectError  # noqa: E402
from protocol.policy import describe_tensors, encode_image, policy_root  # noqa: E402
from protocol.run import RunSpec, decode_run  # noqa: E402
from protocol.sampling import uniforms  # noqa: E402

CHECKPOINT_EVERY = 10
POLL_SECONDS = 0.01
_EVALUATION = "intellect-node evaluation draw v1"


class Stopwatch:
    """Wall seconds of one step, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - started, 4)


class Trainer:
    """One run on one spool."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._run: RunSpec = decode_run(spool.run_path.read_bytes())
        model_dir = spool.assets / "model"
        self._evaluator = TorchEngine(model_dir)
        self._environment: Environment = load_environment(
            self._run.environment, spool.assets, self._evaluator.tokenizer
        )
        self._learner = Learner(build_model(model_dir), self._run.recipe, self._run.rollout.temperature)

    def train(self) -> None:
        """Work until the run's last step is published."""
        step = load_newest(self._spool.checkpoints, self._learner)
        if step is None:
            step = 0
            self._learner.load_weights(_initial_weights(self._spool.assets / "model", self._learner))
            self._publish(0, {}, Stopwatch())
        while step < self._run.recipe.steps:
            watch = Stopwatch()
            with watch("wait"):
                data = self._wait_for(self._spool.batch_path(step))
            with watch("load"):
                batch = _checked_batch(data, step)
            with watch("step"):
                metrics: dict[str, Any] = dict(self._learner.step(batch.rows, step))
            metrics["staleness"] = dict(Counter(str(step - row.policy_step) for row in batch.rows))
            step += 1
            self._publish(step, metrics, watch)
            if step % CHECKPOINT_EVERY == 0 or step == self._run.recipe.steps:
                self._checkpoint(step)

    def close(self) -> None:
        self._environment.close()

    def _wait_for(self, path: Path) -> bytes:
        while True:
            try:
                return path.read_bytes()
            except FileNotFoundError:
                time.sleep(POLL_SECONDS)

    def _publish(self, step: int, metrics: dict[str, Any], watch: Stopwatch) -> None:
        """Image first, then evaluation, then the metrics, which make the step complete."""
        with watch("publish"):
            weights = self._learner.image()
            tensors = {name: bf16_bits(tensor) for name, tensor in weights.items()}
            image = encode_image(tensors)
            digest = blake3(image).hexdigest()
            if self._published_before(step, digest):
                return
            write_whole(self._spool.policy_path(step), image)
        evaluation = self._run.evaluation
        if step % evaluation.every == 0 or step == self._run.recipe.steps:
            with watch("eval"):
                self._evaluator.load(weights)
                metrics["eval_reward"] = self._evaluate(step)
        metrics |= {
            "step": step,
            "seconds": watch.seconds,
            "policy_root": policy_root(describe_tensors(tensors)).hex(),
            "image": digest,
        }
        write_whole(self._spool.metrics_path(step), json.dumps(metrics, allow_nan=False).encode())

    def _published_before(self, step: int, digest: str) -> bool:
        """Whether step is complete already. Raises TrainingError if what was published differs."""
        image = self._spool.policy_path(step)
        complete = self._spool.is_complete(step)
        known = None
        if complete:
            known = json.loads(self._spool.metrics_path(step).read_bytes()).get("image")
        elif image.exists():
            known = blake3(image.read_bytes()).hexdigest()
        if known is not None and known != digest:
            raise TrainingError(
                f"step {step} came out differently than before the restart",
                "the replay of its batches gave other weights than those that were published",
                "resume on the machine and with the program versions that the run was trained with",
            )
        return complete

    def _evaluate(self, step: int) -> float:
        """Mean reward of one sample per held-back problem; the random numbers follow from seed and step."""
        count = min(self._run.evaluation.problems, self._environment.held_back)
        limit = self._run.rollout.max_output_tokens
        place = self._run.recipe.seed.to_bytes(8, "little", signed=True) + step.to_bytes(8, "little")
        drawn = uniforms(blake3(place, derive_key_context=_EVALUATION).digest(), count * limit).reshape(count, limit)
        problems = [self._environment.held_back_problem(i) for i in range(count)]
        requests = [Request(self._environment.prompt_tokens(p), u) for p, u in zip(problems, drawn, strict=True)]
        completions = self._evaluator.generate(requests, self._run.rollout.temperature)
        return float(np.mean(self._environment.score(problems, [completion.output for completion in completions])))

    def _checkpoint(self, step: int) -> None:
        """Keep the two newest; batches from before the older one are not needed any more.

        Old images are the daemon's to delete, who knows what it has published; the metrics keep their digests.
        """
        save_checkpoint(self._spool.checkpoints, self._learner, step)
        self._spool.forget_batches(min(available_checkpoints(self._spool.checkpoints)[-2:]))


def _initial_weights(model_dir: Path, learner: Learner) -> dict[str, torch.Tensor]:
    """The model's own weights, rounded to bf16: policy 0. Raises TrainingError."""
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(model_dir.glob("*.safetensors")):
        tensors |= load_file(path)
    for name, parameter in learner.parameters.items():
        if name not in tensors or tensors[name].shape != parameter.shape:
            raise TrainingError(
                "the start model cannot be loaded",
                f"{model_dir}: tensor {name!r} is missing or has another shape",
                "use a complete model directory in Hugging Face form",
            )
    return {name: tensors[name].to(torch.bfloat16) for name in learner.parameters}


def _checked_batch(data: bytes, step: int) -> Batch:
    batch = decode_batch(data)
    if batch.header.step != step:
        raise TrainingError(
            f"the batch of step {step} cannot be used",
            f"it says that it is for step {batch.header.step}",
            "delete the batch file; the daemon writes it anew",
        )
    return batch


def main() -> int:
    parser = argparse.ArgumentParser(description="Train on a spool. Started by node.training.launch.")
    parser.add_argument("--spool", type=Path, required=True)
    spool = Spool(parser.parse_args().spool)
    torch.set_num_threads(1)
    with (spool.root / "trainer.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if int(os.environ.get("WORLD_SIZE", "1")) != 1:
                raise TrainingError("training cannot start", "this version trains with one process", "use one process")
            trainer = Trainer(spool)
            trainer.train()
            trainer.close()
        except IntellectError as error:
            reason = {"what": error.what, "why": error.why, "remedy": error.remedy}
            write_whole(spool.error_path, msgspec.json.encode(reason))
            print(json.dumps({"event": "training.failed", **reason}), file=sys.stderr, flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
