"""One step of a training in one process: answers are drawn, checked by a prefill and scored. No program by itself."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from node.environments.base import Environment, one_answer
from node.inference.engine import Finished, Request, generate
from node.inference.torch_engine import TorchEngine
from node.training.batch import BatchRow
from protocol.run import RolloutSpec
from protocol.sampling import uniforms


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
