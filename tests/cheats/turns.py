"""Dishonest turns: what the environment said, forged; and answers drawn from something else than all that was said.

A careful cheat proves, seals and answers anew for what it changed, so that nothing but the environment's own words
contradict it. In a run of one turn there is nothing to forge: then a turn is made up.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from node.environments.base import Defaults, Problem, Transcript
from node.inference.engine import Completion, Engine, FinishedSequence, GenerationRequest, generate
from node.inference.proofs import prove_all
from node.inference.session import EngineFactory, EngineSession
from node.inference.turns import Bounds
from protocol.draw import sample_seed
from protocol.envelope import ENVELOPE_BYTES
from protocol.rollout import RolloutBatch, SampleRow
from protocol.run import RunSpec
from protocol.sampling import uniforms
from tests.cheats.sessions import Resampling
from tests.cheats.tampering import Scene, careful


def changed_turn(scene: Scene) -> bytes:
    """One token that the environment said is another."""

    def change(row: SampleRow) -> SampleRow | None:
        if not row.segments:
            return None
        output = list(row.output)
        output[row.segments[0]] = _another(output[row.segments[0]])
        return msgspec.structs.replace(row, output=output)

    return _forged(scene, map(change, scene.batch.rows))


def left_out_turn(scene: Scene) -> bytes:
    """Ends after an answer to which the environment had more to say."""

    def change(row: SampleRow) -> SampleRow | None:
        if not row.segments:
            return None
        said = row.segments[:-2]
        output = row.output[: sum(said)]
        return msgspec.structs.replace(row, output=output, segments=said if len(said) > 1 else [], finished=True)

    return _forged(scene, map(change, scene.batch.rows))


def extra_turn(scene: Scene) -> bytes:
    """Goes on where the environment was done: another reply, and an answer to it, drawn as it ought to be."""
    turns = scene.session.bounds.turns
    shorter = (row for row in scene.batch.rows if row.finished and len(row.segments) // 2 + 1 < turns)
    return _forged(scene, (_with_a_turn(scene, row) for row in shorter))


def turn_as_answer(scene: Scene) -> bytes:
    """What the environment said counts as sampled, and is to be paid."""
    most = scene.session.run.rollout.max_output_tokens
    fitting = (row for row in scene.batch.rows if row.segments and len(row.output) <= most)
    return _forged(scene, (msgspec.structs.replace(row, segments=[]) for row in fitting))


def answer_as_turn(scene: Scene) -> bytes:
    """The last token of an answer counts as the environment's."""

    def change(row: SampleRow) -> SampleRow | None:
        if not row.segments or row.segments[0] < 2:
            return None
        first, second, *rest = row.segments
        return msgspec.structs.replace(row, segments=[first - 1, second + 1, *rest])

    return _forged(scene, map(change, scene.batch.rows))


def _forged(scene: Scene, changed: Iterator[SampleRow | None]) -> bytes:
    """The file with the first row that could be changed, proven anew; with a turn that nobody took, if none could."""
    forged = next((row for row in changed if row is not None), None) or _with_a_turn(scene, scene.batch.rows[0])
    rows = tuple(
        forged if (row.group, row.sample) == (forged.group, forged.sample) else row for row in scene.batch.rows
    )
    return careful(scene, _proven(scene, msgspec.structs.replace(scene.batch, rows=rows), forged))


def _with_a_turn(scene: Scene, row: SampleRow) -> SampleRow:
    """The row, a reply of ours, and an answer from the numbers that are due."""
    said = [*row.output, scene.batch.rows[0].prompt[0]]
    limit = max(scene.session.run.rollout.max_output_tokens, row.units + 1)
    place = scene.order.policy_root, scene.batch.header.node, scene.batch.header.index, row.group, row.sample
    left = uniforms(sample_seed(*place), limit)[row.units :]
    scene.session.put()
    (made,) = generate(
        scene.session.engine, [GenerationRequest([*row.prompt, *said], left)], scene.session.run.rollout.temperature
    )
    segments = [*(row.segments or [len(row.output)]), 1, len(made.output)]
    output = [*said, *made.output]
    return msgspec.structs.replace(row, output=output, segments=segments, finished=made.finished)


def _proven(scene: Scene, batch: RolloutBatch, forged: SampleRow) -> RolloutBatch:
    """With the activations that the policy has over the forged tokens."""
    session, rules = scene.session, scene.session.run.verification
    session.put()
    sequence = FinishedSequence(forged.prompt, forged.output, forged.segments)
    (seen,) = session.engine.prefill([sequence], session.run.rollout.temperature)
    (core,) = prove_all([seen.rows], rules.toploc_k, rules.toploc_batch)
    new = msgspec.structs.replace(forged, proofs=bytes(ENVELOPE_BYTES) + core)
    return msgspec.structs.replace(batch, rows=tuple(new if row is forged else row for row in batch.rows))


def _another(token: int) -> int:
    return 2 + (token - 1) % 9


class OwnTurns(EngineSession):
    """Says the solution itself where the environment ought to speak; all else is honest."""

    def __init__(self, run: RunSpec, assets: Path, factory: EngineFactory) -> None:
        super().__init__(run, assets, factory)
        self.environment = _Prompter(self.environment)

    @property
    def bounds(self) -> Bounds:
        return Bounds(max(2, super().bounds.turns), 1024)


class _Prompter(Defaults):
    """An environment that tells the answer."""

    def __init__(self, environment: object) -> None:
        self._environment = environment

    def __getattr__(self, name: str) -> object:
        return getattr(self._environment, name)

    def step(self, problem: Problem, transcript: Transcript) -> list[int]:
        return [*transcript[0].tokens[:1], *self._environment.within._tokenizer.encode(problem.answer[0])]  # type: ignore[attr-defined]


class _LaterTurns(EngineSession):
    """Draws the answers behind the first in a way of its own; the first, where there is one only."""

    def __init__(self, run: RunSpec, assets: Path, factory: EngineFactory) -> None:
        super().__init__(run, assets, factory)
        self.engine = Resampling(self.engine, self._draw)

    def _draw(self, engine: Engine, requests: Sequence[GenerationRequest], temperature: float) -> list[Completion]:
        whole = self.run.rollout.max_output_tokens
        changed = [self.change(one) if self.bounds.turns == 1 or len(one.uniforms) < whole else one for one in requests]
        return generate(engine, changed, temperature)

    def change(self, request: GenerationRequest) -> GenerationRequest:
        raise NotImplementedError


class ShortenedPrefix(_LaterTurns):
    """Forgets a token in the middle of what was said, as who drops the thoughts of earlier turns."""

    def change(self, request: GenerationRequest) -> GenerationRequest:
        middle = len(request.prompt) // 2
        return GenerationRequest([*request.prompt[:middle], *request.prompt[middle + 1 :]], request.uniforms)


class ShiftedNumbers(_LaterTurns):
    """Begins each turn with other random numbers than are due."""

    def change(self, request: GenerationRequest) -> GenerationRequest:
        return GenerationRequest(request.prompt, np.roll(request.uniforms, 1))
