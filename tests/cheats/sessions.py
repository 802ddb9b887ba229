"""Dishonest sessions: engines that compute something else than the policy, or draw tokens in their own way."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count, cycle
from pathlib import Path
from typing import Any

import numpy as np

from node.calibration import measure
from node.calibration.measure import Sampler
from node.environments.base import Problem, one_answer
from node.inference.engine import MOST_IN_FLIGHT, Completion, Engine, GenerationRequest, Weights, generate
from node.inference.session import EngineFactory, EngineSession
from protocol.audit import MAX_ANSWER_CHARACTERS
from protocol.engines import arithmetic, with_arithmetic
from protocol.run import RunSpec
from tests.cheats.hostile import HOSTILE


class AllAtOnce:
    """A decoder that answers everything that was submitted in one step, by somebody's own idea."""

    def __init__(self, answers: Callable[[Sequence[GenerationRequest]], list[Completion]]) -> None:
        self._answers = answers
        self._waiting: dict[int, GenerationRequest] = {}
        self._numbers = count()

    def submit(self, request: GenerationRequest) -> int:
        number = next(self._numbers)
        self._waiting[number] = request
        return number

    def cancel(self, number: int) -> None:
        self._waiting.pop(number, None)

    def step(self) -> list[tuple[int, Completion]]:
        waiting, self._waiting = self._waiting, {}
        asked = [replace(one, rows=None) for one in waiting.values()]  # cheats see to their rows themselves
        return list(zip(waiting, self._answers(asked), strict=True)) if waiting else []

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def room(self) -> int:
        return MOST_IN_FLIGHT - len(self)


class Resampling:
    """An engine whose decoder is somebody else's idea; everything else is the engine's own."""

    def __init__(self, engine: Engine, sampler: Sampler) -> None:
        self._engine, self._sampler = engine, sampler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def decoder(self, temperature: float) -> AllAtOnce:
        return AllAtOnce(lambda requests: self._sampler(self._engine, requests, temperature))


def with_weights(change: Callable[[Weights], Weights]) -> type[EngineSession]:
    """Samples and proves with changed weights."""

    class Changed(EngineSession):
        def adjust(self, weights: Weights) -> Weights:
            return change(weights)

    return Changed


def with_sampler(sampler: Sampler) -> type[EngineSession]:
    """Draws tokens in another way."""

    class Drawn(EngineSession):
        def __init__(self, run: RunSpec, assets: Path, factory: EngineFactory) -> None:
            super().__init__(run, assets, factory)
            self.engine = Resampling(self.engine, sampler)

    return Drawn


class SaysBfloat16(EngineSession):
    """Computes with int8 weights and says that it computes in bfloat16, where more is forgiven."""

    def __init__(self, run: RunSpec, assets: Path, factory: EngineFactory) -> None:
        super().__init__(run, assets, factory)
        own = self.engine.name
        self.engine = Renamed(self.engine, with_arithmetic(own, ("bfloat16", arithmetic(own)[1])))

    def adjust(self, weights: Weights) -> Weights:
        return measure.int8(weights)


class Renamed:
    """An engine under another name."""

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine, self.name = engine, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


def stale(steps: int) -> type[EngineSession]:
    """Uses the weights that it loaded `steps` policies earlier, to save itself the download."""

    class Stale(EngineSession):
        def adjust(self, weights: Weights) -> Weights:
            kept = self.policies.roots()
            return self.policies.get(kept[max(0, kept.index(self.policy) - steps)]).weights

    return Stale


class SmallModel(EngineSession):
    """Half of the layers decode; the whole model prefills, so that the activations are in order."""

    def __init__(self, run: RunSpec, assets: Path, factory: EngineFactory) -> None:
        super().__init__(run, assets, factory)
        self._right: list[Weights] = []
        self.engine = Resampling(self.engine, self._draw)

    def adjust(self, weights: Weights) -> Weights:
        self._right[:] = [self.kept.weights]  # in place: a job has a copy of its session
        return weights

    def _draw(self, engine: Engine, requests: Sequence[GenerationRequest], temperature: float) -> list[Completion]:
        (right,) = self._right
        engine.load(half_of_the_layers(right))
        drawn = generate(engine, requests, temperature)
        engine.load(right)
        return measure.prefilled(engine, requests, [completion.output for completion in drawn], temperature)


CHARACTERS_OF_A_TOKEN = 32
"""More than any tokenizer makes of these texts: what is beyond the limit is cut off again."""


class HostileAnswers(EngineSession):
    """Says what is made to hold up scorers instead of what it draws; the whole model prefills, so that the activations
    are in order."""

    def __init__(self, run: RunSpec, assets: Path, factory: EngineFactory) -> None:
        super().__init__(run, assets, factory)
        self.engine = Resampling(self.engine, self._say)

    def _say(self, engine: Engine, requests: Sequence[GenerationRequest], temperature: float) -> list[Completion]:
        texts = cycle(HOSTILE.values())
        outputs = [self._tokens(text, len(request.uniforms)) for text, request in zip(texts, requests, strict=False)]
        return measure.prefilled(engine, requests, outputs, temperature)

    def _tokens(self, text: Callable[[int], str], limit: int) -> list[int]:
        """As long as the run allows, and ended: what is cut off is not scored. The model may know none of it."""
        eos = self._tokenizer.eos
        characters = min(MAX_ANSWER_CHARACTERS, CHARACTERS_OF_A_TOKEN * limit)
        said = [token for token in self._tokenizer.encode(text(characters)) if token not in eos]
        said = (said or self._tokenizer.encode("9")) * limit
        return [*said[: limit - 1], min(eos)]


def half_of_the_layers(weights: Weights) -> Weights:
    """The later layers add nothing to the residual stream any more."""
    layers = 1 + max(int(name.split(".layers.")[1].split(".")[0]) for name in weights if ".layers." in name)
    dropped = tuple(f".layers.{i}." for i in range(layers // 2, layers))
    outputs = ("o_proj.weight", "down_proj.weight")
    return {
        name: tensor * 0 if name.endswith(outputs) and any(part in name for part in dropped) else tensor
        for name, tensor in weights.items()
    }


class BestOfMany(EngineSession):
    """Draws every answer four times with numbers of its own and hands over the one with the best reward."""

    TRIES = 4

    def __init__(self, run: RunSpec, assets: Path, factory: EngineFactory) -> None:
        super().__init__(run, assets, factory)
        self._drawn: list[Problem] = []
        self.engine = Resampling(self.engine, self._draw)

    def problems(self) -> list[Problem]:
        self._drawn[:] = super().problems()  # in place: a job has a copy of its session
        return self._drawn

    def _draw(self, engine: Engine, requests: Sequence[GenerationRequest], temperature: float) -> list[Completion]:
        solved = [self._drawn[i // self.run.rollout.group_size] for i in range(len(requests))]
        random = np.random.default_rng(0)
        best = generate(engine, requests, temperature)
        for _ in range(self.TRIES - 1):
            other = generate(
                engine, [GenerationRequest(r.prompt, random.random(len(r.uniforms))) for r in requests], temperature
            )
            scores = [self.environment.score(solved, [one_answer(c.output) for c in made]) for made in (best, other)]
            # at equal reward the shorter answer: it is cheaper
            keys = [
                [(score, -len(c.output)) for score, c in zip(*pair, strict=True)]
                for pair in zip(scores, (best, other), strict=True)
            ]
            best = [b if keys[0][i] >= keys[1][i] else o for i, (b, o) in enumerate(zip(best, other, strict=True))]
        return best


def changed_prompt(engine: Engine, requests: Sequence[GenerationRequest], temperature: float) -> list[Completion]:
    """Answers a prompt of its own (one token differs), and names the drawn one."""
    return generate(engine, [GenerationRequest(_other_prompt(r.prompt), r.uniforms) for r in requests], temperature)


def _other_prompt(prompt: Sequence[int]) -> list[int]:
    middle = len(prompt) // 2
    other = prompt[middle - 1] if prompt[middle - 1] != prompt[middle] else prompt[middle] + 1
    return [*prompt[:middle], other, *prompt[middle + 1 :]]


def early_stop(engine: Engine, requests: Sequence[GenerationRequest], temperature: float) -> list[Completion]:
    """Ends every answer after half of its tokens, with an end token that was never drawn."""
    end = min(engine.eos)
    return [
        Completion([*c.output[: len(c.output) // 2], end], True, c.heads[: len(c.output) // 2 + 1])
        for c in generate(engine, requests, temperature)
    ]


def runs_on(engine: Engine, requests: Sequence[GenerationRequest], temperature: float) -> list[Completion]:
    """Goes on after the end of every answer, to be paid for more tokens."""
    made = generate(engine, requests, temperature)
    outputs = [[*c.output, c.output[-1]] for c in made]
    return measure.prefilled(engine, requests, outputs, temperature)


def nan_activations(engine: Engine, requests: Sequence[GenerationRequest], temperature: float) -> list[Completion]:
    """Claims activations that are not numbers, in the hope that comparisons with them are never true."""
    return [
        Completion(c.output, c.finished, np.full_like(c.heads, 0x7FC0)) for c in generate(engine, requests, temperature)
    ]
