"""Does the recipe learn, and how fast? One process: warm start, then GRPO on `sort` with stale rollouts.

`python -m benchmarks.recipe --seed 0` prints a JSON line per step and a summary: reward on held-back
problems at the start, the mean of the last ten steps, and the CPU seconds of each part.
"""

import argparse
import json
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from node.environments.base import Environment, one_answer
from node.environments.registry import load_environment
from node.inference.engine import Finished, Request, generate
from node.inference.torch_engine import TorchEngine, build_model
from node.training.batch import BatchRow
from node.training.learner import Learner
from node.training.warmstart import SORT_ALPHABET, create_model, mean_reward, warm_start
from protocol.run import EnvironmentSpec, Recipe, RolloutSpec
from protocol.sampling import uniforms

Weights = dict[str, torch.Tensor]


class Clock:
    """CPU seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.process_time()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.process_time() - started


def rollouts(
    engine: TorchEngine,
    environment: Environment,
    rollout: RolloutSpec,
    random: np.random.Generator,
    step: int,
    clock: Clock,
) -> list[BatchRow]:
    problems = [environment.problem(int(i)) for i in random.integers(environment.size, size=rollout.prompts_per_step)]
    with clock("worker"):
        drawn = uniforms(random.bytes(32), rollout.prompts_per_step * rollout.group_size * rollout.max_output_tokens)
        drawn = drawn.reshape(-1, rollout.max_output_tokens)
        requests = [
            Request(environment.prompt_tokens(problems[i // rollout.group_size]), u) for i, u in enumerate(drawn)
        ]
        completions = generate(engine, requests, rollout.temperature)
    with clock("validator"):
        checked = engine.prefill(
            [Finished(r.prompt, c.output) for r, c in zip(requests, completions, strict=True)], rollout.temperature
        )
    solved = [problems[i // rollout.group_size] for i in range(len(requests))]
    rewards = environment.score(solved, [one_answer(completion.output) for completion in completions])
    return [
        BatchRow(
            i // rollout.group_size,
            list(requests[i].prompt),
            completions[i].output,
            checked[i].logprobs.tolist(),
            rewards[i],
            step,
        )
        for i in range(len(requests))
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--decay", type=int, default=150)
    parser.add_argument("--digits", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--warm-target", type=float, default=0.25)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--staleness", type=int, default=2)
    parser.add_argument("--quiet", action="store_true")
    a = parser.parse_args()
    torch.set_num_threads(1)
    clock, random = Clock(), np.random.default_rng(a.seed)
    rollout = RolloutSpec(prompts_per_step=a.prompts, group_size=a.group, max_output_tokens=8)
    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        with clock("warm start"):
            model = create_model(out, SORT_ALPHABET, a.seed)
            sampler, evaluator = TorchEngine(out), TorchEngine(out)
            environment = load_environment(
                EnvironmentSpec(name="sort", args={"digits": a.digits}), out, sampler.tokenizer
            )
            warm_start(out, model, environment, seed=a.seed, target=a.warm_target)
        learner = Learner(
            build_model(out), Recipe(learning_rate=a.learning_rate, decay_steps=a.decay, clip_high=0.28), 1.0
        )
        learner.load_weights(evaluator.read(str(out / "model.safetensors")))
    held_back = [environment.held_back_problem(i) for i in range(128)]
    policies: deque[Weights] = deque([learner.image()], maxlen=a.staleness + 1)
    evaluations: list[float] = []
    for step in range(a.steps):
        stale = policies[0]
        sampler.load(stale)
        rows = rollouts(sampler, environment, rollout, random, max(0, step - a.staleness), clock)
        with clock("learn"):
            metrics = learner.step(rows, step)
        policies.append(learner.image())
        with clock("evaluate"):
            evaluator.load(policies[-1])
            evaluations.append(
                mean_reward(evaluator, environment, held_back, random.bytes(32), rollout.max_output_tokens)
            )
        if not a.quiet:
            print(
                json.dumps(
                    {"step": step + 1, "eval": evaluations[-1], **{k: round(float(v), 4) for k, v in metrics.items()}}
                )
            )
    summary = {
        "seed": a.seed,
        "first": evaluations[0],
        "by 30": [round(float(np.mean(evaluations[i : i + 10])), 3) for i in range(0, a.steps, 30)],
        "last ten": round(float(np.mean(evaluations[-10:])), 4),
        "cpu_seconds": {k: round(v, 2) for k, v in clock.seconds.items()},
    }
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
