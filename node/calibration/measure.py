"""One worker's work and one verifier's look at it, without files: the raw statistics that decisions rest on.

And what a cheat could run instead of the policy: cheaper weights, older ones, other ways of computing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from node.inference.engine import Completion, Engine, FinishedSequence, GenerationRequest, Prefill, generate
from node.inference.proofs import compare_all, prove_all
from node.inference.settings import EngineSettings
from node.inference.torch_engine import build_model, image_names
from node.inference.turns import PlayedRollout
from protocol.decision import SampleStatistics
from protocol.lora import WEIGHT, Lora, tensors_of
from protocol.run import RunSpec
from protocol.sampling import distance
from protocol.toploc import ActivationProof, proof_count, split_proofs

Progress = Callable[[str, int, int], None]
"""(stage, how much is done, of how much)."""


class MeasureStage:
    """Samples that are made or looked at, as progress."""

    def __init__(self, progress: Progress, name: str, total: int) -> None:
        self._progress, self._name, self._total = progress, name, total
        self._done = 0
        progress(name, 0, total)

    def parts(self, count: int, first: int = 0) -> Iterator[slice]:
        """Of samples from `first` up to `count`, so few at a time that there is something to tell."""
        at_once = 32  # samples between two words of progress
        return (slice(at, min(at + at_once, count)) for at in range(first, count, at_once))

    def advance(self, samples: int) -> None:
        self._done += samples
        self._progress(self._name, self._done, self._total)


def most_samples(run: RunSpec, model: Path, settings: Sequence[EngineSettings]) -> int:
    """Samples of each kind of work: what an engine for this model does in some minutes. Raises ModelError."""
    parameters = sum(tensor.numel() for tensor in image_names(build_model(model, "meta")).values())
    tokens = run.rollout.max_prompt_tokens + run.rollout.max_output_tokens
    # These weights are only counted: none are made before somebody asks for them.
    kinds = len(settings) + len(OTHER_DRAWS) + len(other_weights({}, 0.0))
    looks = 1 + len(settings)  # made once, looked at by each
    on_cpu = any(one.device == "cpu" for one in settings)
    # Multiplications and additions: some minutes of one core, or of a GPU.
    affordable = (2e13 if on_cpu else 2e15) / (2 * parameters * tokens * kinds * looks)
    # What fewer leave open, the tables allow (node.calibration.calibrate._expectations).
    least, most = 64, 256
    return int(min(most, max(least, affordable)))


@dataclass(frozen=True, slots=True)
class MeasuredWork:
    """What a worker hands over. sequences, uniforms and proofs are per sample; encoded: the proofs' bytes."""

    sequences: list[FinishedSequence]
    uniforms: list[np.ndarray]
    proofs: list[list[ActivationProof]]
    encoded: list[bytes]

    @property
    def tokens(self) -> int:
        return sum(len(sequence.sampled) for sequence in self.sequences)


def hand_over(
    requests: Sequence[GenerationRequest], rollouts: Sequence[PlayedRollout], k: int, rows: int
) -> MeasuredWork:
    """Proofs of what an engine made. k: points per proof; rows: decode rows per proof."""
    encoded = prove_all([rollout.rows for rollout in rollouts], k, rows)
    proofs = [
        split_proofs(data, k, proof_count(rollout.sampled, rows))
        for data, rollout in zip(encoded, rollouts, strict=True)
    ]
    sequences = [
        FinishedSequence(list(r.prompt), one.output, one.segments, one.experts)
        for r, one in zip(requests, rollouts, strict=True)
    ]
    drawn = [request.uniforms[: one.sampled] for request, one in zip(requests, rollouts, strict=True)]
    return MeasuredWork(sequences, drawn, proofs, list(encoded))


def look_at(
    engine: Engine, work: MeasuredWork, temperature: float, rows: int, stage: MeasureStage
) -> list[SampleStatistics]:
    """What a verifier with `engine` sees, one result per sample."""
    prefills: list[Prefill] = []
    for part in stage.parts(len(work.sequences)):
        prefills += engine.prefill(work.sequences[part], temperature)
        stage.advance(len(work.sequences[part]))
    # One list for all samples: each takes as many as it has proofs.
    errors = iter(compare_all(work.proofs, [prefill.rows for prefill in prefills], rows))
    return [
        SampleStatistics(
            tuple(next(errors) for _ in proofs),
            distance(drawn, prefill.lo, prefill.hi),
            routing=None if prefill.routing is None else float(prefill.routing.max()),
        )
        for proofs, drawn, prefill in zip(work.proofs, work.uniforms, prefills, strict=True)
    ]


# What a cheat could run instead of the policy: cheaper weights, older weights, other ways of drawing tokens.
# Weights are maps of tensor name -> bf16 tensor, as an engine reads them; every change gives float32 tensors of the
# same names and shapes.
Weights = Mapping[str, Tensor]


def int8(weights: Weights) -> dict[str, Tensor]:
    """Symmetric int8 with one scale per output channel."""
    return _matrices(weights, lambda w: _rounded(w, w.abs().amax(dim=1, keepdim=True) / 127))


def int4(weights: Weights) -> dict[str, Tensor]:
    """Symmetric int4 in groups of 128 along the input (the rest of a row is a smaller group)."""
    return _matrices(weights, _int4)


def fp8(weights: Weights) -> dict[str, Tensor]:
    """e4m3 with one scale per tensor."""

    e4m3_largest = 448.0

    def cast(matrix: Tensor) -> Tensor:
        scale = (matrix.abs().amax() / e4m3_largest).clamp(min=1e-12)
        return (matrix / scale).to(torch.float8_e4m3fn).float() * scale

    return _matrices(weights, cast)


def stepped(weights: Weights, learning_rate: float, steps: int = 1) -> dict[str, Tensor]:
    """Weights some optimiser steps away: every step moves each weight by +-learning_rate, as Adam's do, then bf16."""
    random = {device: torch.Generator(device).manual_seed(0) for device in {one.device for one in weights.values()}}
    moved = {name: tensor.float() for name, tensor in weights.items()}
    for _ in range(steps):
        for name, tensor in moved.items():
            draw = random[tensor.device]
            sign = torch.randint(0, 2, tensor.shape, generator=draw, device=tensor.device) * 2 - 1
            moved[name] = tensor + learning_rate * sign
    return {name: tensor.to(torch.bfloat16).float() for name, tensor in moved.items()}


def adapter_for(weights: Weights, lora: Lora, learning_rate: float, steps: int = 10) -> dict[str, Tensor]:
    """An adapter as it may be after some optimiser steps; the same on every machine."""
    random = np.random.default_rng(0)
    made: dict[str, Tensor] = {}
    for name in sorted(weights):
        if name.endswith(tuple(f".{target}{WEIGHT}" for target in lora.targets)) and weights[name].ndim == 2:
            rows, columns = weights[name].shape
            a, b = tensors_of(name)
            made[a] = torch.from_numpy(random.standard_normal((lora.rank, columns)) / columns**0.5).to(torch.bfloat16)
            moved = steps * learning_rate * lora.scale * random.uniform(-1, 1, (rows, lora.rank))
            made[b] = torch.from_numpy(moved).to(torch.bfloat16)
    return made


def _matrices(weights: Weights, change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """Experts are a stack of them."""

    def changed(tensor: Tensor) -> Tensor:
        if tensor.ndim == 3:
            return torch.stack([change(matrix.float()) for matrix in tensor])
        return change(tensor.float()) if tensor.ndim == 2 and min(tensor.shape) > 1 else tensor.float()

    return {name: changed(tensor) for name, tensor in weights.items()}


def _rounded(values: Tensor, scale: Tensor) -> Tensor:
    scale = scale.clamp(min=1e-12)
    return (values / scale).round() * scale


def _int4(matrix: Tensor) -> Tensor:
    group = 128
    parts = [_rounded(part, part.abs().amax(dim=1, keepdim=True) / 7) for part in matrix.split(group, dim=1)]
    return torch.cat(parts, dim=1)


Sampler = Callable[[Engine, Sequence[GenerationRequest], float], list[Completion]]


def at_temperature(factor: float) -> Sampler:
    """Sample at `factor` times the run's temperature."""
    return lambda engine, requests, temperature: generate(engine, requests, max(0.01, temperature * factor))


def greedy(engine: Engine, requests: Sequence[GenerationRequest], temperature: float) -> list[Completion]:
    """Always (nearly) the likeliest token."""
    return generate(engine, requests, 0.01)


def other_draw(engine: Engine, requests: Sequence[GenerationRequest], temperature: float) -> list[Completion]:
    """Another seed's tokens, as somebody submits who tries many and picks the best."""
    random = np.random.default_rng(0)
    drawn = [GenerationRequest(request.prompt, random.random(len(request.uniforms))) for request in requests]
    return generate(engine, drawn, temperature)


def garbage(engine: Engine, requests: Sequence[GenerationRequest], temperature: float) -> list[Completion]:
    """Random tokens with an honest prefill over them: proofs in order, nothing was generated."""
    random = np.random.default_rng(0)
    # No end tokens: one of them in the middle would end the answer.
    ordinary = np.setdiff1d(np.arange(engine.vocabulary), list(engine.eos))
    outputs = [random.choice(ordinary, len(request.uniforms)).tolist() for request in requests]
    return prefilled(engine, requests, outputs, temperature)


OTHER_DRAWS: dict[str, Sampler] = {
    "temperature-0.9": at_temperature(0.9),
    "temperature-1.1": at_temperature(1.1),
    "greedy": greedy,
    "other-draw": other_draw,
    "garbage": garbage,
}
"""Name -> a way to draw tokens with the right weights."""


def other_weights(weights: Weights, learning_rate: float, device: str = "cpu") -> dict[str, Callable[[], Weights]]:
    """Name -> what makes the weights to sample with. Each is a whole model: make one at a time. device: where they are
    made; one core of a CPU took 27 s for a step of 10^9 weights."""

    def there() -> Weights:
        return {name: tensor.to(device) for name, tensor in weights.items()}

    return {
        "int8": lambda: int8(there()),
        "int4": lambda: int4(there()),
        "fp8": lambda: fp8(there()),
        "stale-1": lambda: stepped(there(), learning_rate),
        "stale-4": lambda: stepped(there(), learning_rate, 4),
    }


def prefilled(
    engine: Engine, requests: Sequence[GenerationRequest], outputs: Sequence[list[int]], temperature: float
) -> list[Completion]:
    """Somebody else's tokens, with the activations of this engine's prefill."""
    sequences = [FinishedSequence(request.prompt, output) for request, output in zip(requests, outputs, strict=True)]
    prefills = engine.prefill(sequences, temperature)
    return [
        Completion(output, output[-1] in engine.eos, prefill.heads, experts=prefill.experts)
        for output, prefill in zip(outputs, prefills, strict=True)
    ]
