"""LoRA beside full fine-tuning on the demo's task: the curve, and the bytes that each step's policy travels as.

`python -m benchmarks.lora [--quick] [--json] [--seed N]`: one warm start, then the same rollout settings twice, two
versions stale, in one process. Prints a line per ten steps, and a table; with --json one object on the last line.
"""

import argparse
import json
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.recipe import Clock, rollouts
from node.environments.registry import load_environment
from node.inference.start_weights import StartWeights
from node.inference.torch_engine import TorchEngine, bf16_bits, build_model
from node.training.learner import Learner
from node.training.lora import StartAdapter
from node.training.warmstart import SORT_ALPHABET, create_model, mean_reward, warm_start
from protocol.delta import encode_patch
from protocol.lora import Lora
from protocol.policy import encode_image
from protocol.recipe import preset
from protocol.run import EnvironmentSpec, RolloutSpec

STALENESS = 2
ROLLOUT = RolloutSpec(prompts_per_step=48, group_size=8, max_output_tokens=8)
WAYS: dict[str, tuple[float, Lora | None]] = {
    "full": (3e-4, None),
    "lora 16": (1e-3, Lora(rank=16, alpha=32)),
    "lora 4": (1e-3, Lora(rank=4, alpha=8)),
}
"""Learning rate and adapter. At 3e-3, rank 16 lost half of its reward in the first steps and learnt less."""


@dataclass(slots=True)
class Course:
    """Of one way. rewards: on held-back problems after each step; patches: bytes from the policy before."""

    rewards: list[float] = field(default_factory=list)
    patches: list[int] = field(default_factory=list)
    image_bytes: int = 0
    parameters: int = 0
    learn_seconds: float = 0.0

    def row(self) -> dict[str, Any]:
        ends = max(1, min(10, len(self.rewards) // 2))
        return {
            "reward_first": round(float(np.mean(self.rewards[:ends])), 3),
            "reward_last": round(float(np.mean(self.rewards[-ends:])), 3),
            "curve": [round(float(np.mean(self.rewards[i : i + 10])), 3) for i in range(0, len(self.rewards), 10)],
            "parameters": self.parameters,
            "image_bytes": self.image_bytes,
            "patch_bytes": round(float(np.mean(self.patches))),
            "bytes_per_step": round(float(np.mean([min(one, self.image_bytes) for one in self.patches]))),
            "learn_cpu_seconds_per_step": round(self.learn_seconds / len(self.rewards), 3),
        }


def follow(model_dir: Path, rate: float, lora: Lora | None, steps: int, seed: int) -> Course:
    """Train one way; the rollouts of both begin with the same random numbers."""
    random, clock, course = np.random.default_rng(seed), Clock(), Course()
    engine = TorchEngine(model_dir)
    environment = load_environment(EnvironmentSpec(name="sort", args={"digits": 4}), model_dir, engine.tokenizer)
    recipe = preset("intellect2", learning_rate=rate, decay_steps=150, clip_high=0.28, lora=lora, seed=seed)
    learner = Learner(build_model(model_dir), recipe, 1.0)
    start = StartWeights(model_dir)
    learner.load_frozen(start)
    learner.load_weights(StartAdapter(learner.parameters, seed) if lora else start)
    held_back = [environment.held_back_problem(i) for i in range(128)]
    policies = deque([learner.image()], maxlen=STALENESS + 1)
    course.parameters = sum(tensor.numel() for tensor in learner.parameters.values())
    course.image_bytes = len(encode_image({name: bf16_bits(t) for name, t in policies[0].items()}))
    for step in range(steps):
        engine.load(policies[0])
        rows = rollouts(engine, environment, ROLLOUT, random, max(0, step - STALENESS), clock)
        with clock("learn"):
            learner.step(rows, step)
        before, now = policies[-1], learner.image()
        course.patches.append(sum(len(encode_patch(bf16_bits(before[name]), bf16_bits(now[name]))) for name in now))
        policies.append(now)
        engine.load(now)
        course.rewards.append(mean_reward(engine, environment, held_back, random.bytes(32), ROLLOUT.max_output_tokens))
    course.learn_seconds = clock.seconds["learn"]
    return course


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 steps of each instead of 120")
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[*WAYS], help="one way alone")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    steps, found = 20 if arguments.quick else 120, {}
    with tempfile.TemporaryDirectory() as name:
        model_dir = Path(name)
        model = create_model(model_dir, SORT_ALPHABET, arguments.seed)
        tokenizer = TorchEngine(model_dir).tokenizer
        environment = load_environment(EnvironmentSpec(name="sort", args={"digits": 4}), model_dir, tokenizer)
        warm_start(model_dir, model, environment, seed=arguments.seed, target=0.25)
        for way, (rate, lora) in WAYS.items():
            if arguments.only not in (None, way):
                continue
            started = time.monotonic()
            found[way] = follow(model_dir, rate, lora, steps, arguments.seed).row()
            if not arguments.json:
                print(f"{way:8} {time.monotonic() - started:5.0f} s  {json.dumps(found[way])}", flush=True)
    if arguments.json:
        print(json.dumps({"benchmark": "lora", "seed": arguments.seed, "steps": steps, "ways": found}))


if __name__ == "__main__":
    main()
