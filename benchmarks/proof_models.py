"""Two trained models to measure proofs and cheats on, made once and kept in a working directory.

`small`: the demo's model (0.7 M parameters, sort four digits), warm-started and then trained by the demo's recipe.
`large`: 26 M parameters, a character model briefly taught English on the Python documentation that ships with CPython.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from node.environments.base import Environment, one_answer
from node.environments.registry import load_environment
from node.inference.engine import FinishedSequence, GenerationRequest, generate
from node.inference.tokenizer import LocalTokenizer
from node.inference.torch_engine import TorchEngine, build_model
from node.training.batch import BatchRow
from node.training.learner import Learner
from node.training.warmstart import SORT_ALPHABET, create_model, warm_start, write_weights
from protocol.run import EnvironmentSpec, Recipe, RolloutSpec, RunSpec, VerificationSpec
from protocol.sampling import uniforms

WORK = Path("~/.cache/intellect-node/benchmarks").expanduser()
PROMPT, ANSWER = 32, 96
_MIDDLE_LR = 1e-5


@dataclass(frozen=True, slots=True)
class Subject:
    """A trained model as a run sees it. assets: with model/."""

    name: str
    assets: Path
    run: RunSpec

    @property
    def model(self) -> Path:
        return self.assets / "model"

    def environment(self) -> Environment:
        return load_environment(self.run.environment, self.assets, LocalTokenizer(self.model))


def subjects(work: Path, names: list[str]) -> Iterator[Subject]:
    """The models of these names, `small` or `large`; made if they are not there."""
    torch.set_num_threads(1)
    for name in names:
        yield _MAKERS[name](work)


def small(work: Path) -> Subject:
    assets = work / "small"
    run = RunSpec(
        name="sort",
        environment=EnvironmentSpec(name="sort", args={"digits": 4}),
        rollout=RolloutSpec(
            group_size=8, prompts_per_step=48, prompts_per_file=24, max_prompt_tokens=8, max_output_tokens=8
        ),
        recipe=Recipe(name="intellect2", learning_rate=3e-4),
        verification=VerificationSpec(toploc_k=32),
    )
    _once(assets, lambda: _make_small(assets, run))
    return Subject("small", assets, run)


def _make_small(assets: Path, run: RunSpec) -> None:
    """As the demo does: warm start, then 40 steps of its recipe."""
    out = assets / "model"
    model = create_model(out, SORT_ALPHABET, 0)
    engine = TorchEngine(out)
    environment = load_environment(run.environment, assets, engine.tokenizer)
    warm_start(out, model, environment, seed=0, target=0.25)
    learner = Learner(build_model(out), run.recipe, run.rollout.temperature)
    learner.load_weights(engine.read(str(out / "model.safetensors")))
    random, steps = np.random.default_rng(0), 40
    for step in range(steps):
        engine.load(learner.image())
        rows = rollouts(engine, environment, run.rollout, random, step)
        learner.step(rows, step)
        _say("small", step + 1, steps)
    write_weights(out, learner.model)


def large(work: Path) -> Subject:
    assets = work / "large"
    run = RunSpec(
        name="english",
        environment=EnvironmentSpec(name="dataset", args={"path": "data/prompts.jsonl"}),
        rollout=RolloutSpec(
            group_size=4, prompts_per_step=16, prompts_per_file=4, max_prompt_tokens=PROMPT, max_output_tokens=ANSWER
        ),
        recipe=Recipe(learning_rate=_MIDDLE_LR),
    )
    _once(assets, lambda: _make_large(assets))
    return Subject("large", assets, run)


def _make_large(assets: Path) -> None:
    out = assets / "model"
    text = _english()
    alphabet = "".join(sorted(set(text)))
    model = create_model(out, alphabet, 0, hidden=512, layers=8)
    _write_prompts(assets / "data" / "prompts.jsonl", text)
    ids = np.array(LocalTokenizer(out).encode(text), dtype=np.int64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), fused=True)
    random, steps, older = np.random.default_rng(0), 60, 4
    for step in range(steps + older):
        for group in optimizer.param_groups:
            group["lr"] = 6e-4 * min(1.0, (step + 1) / 15) * (1 - 0.9 * step / steps) if step < steps else _MIDDLE_LR
        at = random.integers(len(ids) - 129, size=4)
        batch = torch.from_numpy(np.stack([ids[i : i + 129] for i in at]))
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        _say(f"large, loss {float(loss.detach()):.2f}", step + 1, steps + older)
    write_weights(out, model)


def _english() -> str:
    import pydoc_data.topics

    text = "".join(pydoc_data.topics.topics.values())
    return "".join(
        character for character in text if character.isascii() and (character.isprintable() or character == "\n")
    )


def _write_prompts(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    starts = np.random.default_rng(1).choice(len(text) - PROMPT, 3000, replace=False)
    with path.open("w") as file:
        for number, start in enumerate(starts):
            row = {
                "prompt": text[start : start + PROMPT],
                "task_type": "verifiable_math",
                "verification_info": {"ground_truth": "0"},
                "problem_id": f"p{number}",
            }
            file.write(json.dumps(row) + "\n")


def _once(assets: Path, make: Callable[[], None]) -> None:
    done = assets / "made"
    if not done.exists():
        assets.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        make()
        done.touch()
        print(f"made {assets.name} in {time.monotonic() - started:.0f} s", file=sys.stderr)


def _say(what: str, done: int, total: int) -> None:
    if done % 10 == 0 or done == total:
        print(f"{what}: {done}/{total}", file=sys.stderr, flush=True)


_MAKERS: dict[str, Callable[[Path], Subject]] = {"small": small, "large": large}


def rollouts(
    engine: TorchEngine, environment: Environment, rollout: RolloutSpec, random: np.random.Generator, step: int
) -> list[BatchRow]:
    problems = [environment.problem(int(i)) for i in random.integers(environment.size, size=rollout.prompts_per_step)]
    drawn = uniforms(random.bytes(32), rollout.prompts_per_step * rollout.group_size * rollout.max_output_tokens)
    drawn = drawn.reshape(-1, rollout.max_output_tokens)
    requests = [
        GenerationRequest(environment.prompt_tokens(problems[i // rollout.group_size]), u) for i, u in enumerate(drawn)
    ]
    completions = generate(engine, requests, rollout.temperature)
    checked = engine.prefill(
        [FinishedSequence(r.prompt, c.output) for r, c in zip(requests, completions, strict=True)], rollout.temperature
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
