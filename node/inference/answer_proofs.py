"""Answers with proofs: whoever has a model's weights can know that this very model gave an answer, by a seed.

A proof holds what was asked and drawn, and TOPLOC's proofs of the activations that tokens were drawn from. To look
again, the sequence goes through the model once: the activations must agree, and each token must be the one that seed
and distribution give. Whoever has no weights trusts who looks; and nothing is said of how often a server declined.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3

from node.inference.engine import Completion, Engine, FinishedSequence, Weights
from node.inference.errors import EngineError
from node.inference.model_files import is_model_file
from node.inference.proofs import compare_all, prove_all
from protocol.checks import check_activations, check_sampling, sampling_statistics
from protocol.engines import arithmetic, is_engine_class
from protocol.run import VerificationSpec
from protocol.sampling import distance, uniforms
from protocol.thresholds import Thresholds
from protocol.toploc import MalformedProof, most_points, proof_count, split_proofs

BATCH = 32
"""Rows of a proof."""
ALIKE = Thresholds(exponent_mismatches=2, mantissa_mean=0.1, mantissa_median=0.1)
"""Where both computed in one class of float32: honest answers lie at 0.008 at most there, those of weights in eight
bits above 0.3 (docs/figures/verification.md). An uncalibrated run's thresholds let six of ten of the latter through."""
COLDEST = 1e-4
"""Temperature 0, which has no distribution: the likeliest token, but for ties."""
_CONTEXT, _DRAW = "intellect-node answered model v1", "intellect-node answer draw v1"


def draw_of(seed: int, number: int, most: int) -> np.ndarray:
    """float64[most]: the numbers that draw answer `number` to a question of this seed."""
    key = blake3(seed.to_bytes(16, "little", signed=True) + number.to_bytes(4, "little"), derive_key_context=_DRAW)
    return uniforms(key.digest(), most)


class BadAnswerProof(EngineError):
    """A proof that is none, whatever model it is of."""


class AnswerProof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """model: root of the base's files and the adapter (`model_root`), hex; engine: class that computed; number: of the
    answers to one question; most: tokens that it might have; output: with its end token; k, proofs: points of a TOPLOC
    proof, and these in base64."""

    model: str
    engine: str
    temperature: float
    seed: int
    number: int
    most: int
    prompt: list[int]
    output: list[int]
    k: int
    proofs: str


class Looked(msgspec.Struct, frozen=True):
    """What a second look found. why: empty where nothing is wrong; ended: by its end token or its limit; early: by a
    stop text, or it was cut, which the caller has to know."""

    why: str
    tokens: int
    proofs: int
    exponent_mismatches: int = 0
    mantissa_mean: float = 0.0
    sampling_mean: float = 0.0
    sampling_outside: float = 0.0
    same_class: bool = True
    ended: str = "early"

    @property
    def accepted(self) -> bool:
        return not self.why


def model_root(directory: Path, adapter: Weights | None = None) -> str:
    """Hex; of weights, settings and tokenizer of a model directory, and of an adapter's tensors. Reads all of it."""
    told = blake3(derive_key_context=_CONTEXT)
    files = (path for path in directory.iterdir() if path.suffix == ".safetensors" or is_model_file(path))
    for path in sorted(files, key=lambda one: one.name):
        content = blake3()
        with path.open("rb") as file:
            while piece := file.read(1 << 20):
                content.update(piece)
        told.update(path.name.encode() + b"\0" + content.digest())
    for name in sorted(adapter or ()):
        assert adapter is not None  # it has names
        told.update(name.encode() + b"\0" + blake3(_bytes_of(adapter[name])).digest())
    return told.hexdigest()


def _bytes_of(tensor: Any) -> bytes:
    import torch

    return tensor.detach().to(torch.bfloat16).cpu().contiguous().view(torch.int16).numpy().tobytes()


def prove(
    completion: Completion,
    prompt: Sequence[int],
    *,
    model: str,
    engine: str,
    temperature: float,
    seed: int,
    number: int,
    most: int,
) -> AnswerProof:
    """Of one answer to a question whose seed the caller chose."""
    k = min(VerificationSpec().toploc_k, most_points(completion.heads.shape[1]))
    (proofs,) = prove_all([completion.rows], k, BATCH)
    return AnswerProof(
        model,
        engine,
        temperature,
        seed,
        number,
        most,
        list(prompt),
        completion.output,
        k,
        base64.b64encode(proofs).decode("ascii"),
    )


def read_proofs(data: Any) -> list[AnswerProof]:
    """Those of a saved answer of /v1/chat/completions or /v1/completions, or one by itself. Raises BadAnswerProof."""
    found = data.get("choices") if isinstance(data, Mapping) else None
    written = (
        [one.get("proof") if isinstance(one, Mapping) else None for one in found] if isinstance(found, list) else [data]
    )
    try:
        proofs = [msgspec.convert(one, AnswerProof) for one in written]
    except msgspec.ValidationError as error:
        raise _bad(f"{error}; was it asked for with proofs = true?") from None
    for proof in proofs:
        _check_form(proof)
    return proofs


def _check_form(proof: AnswerProof) -> None:
    """Bounds before anything is computed."""
    most_tokens = 1 << 20
    if not proof.prompt or not proof.output or len(proof.prompt) + len(proof.output) > most_tokens:
        raise _bad(f"it has {len(proof.prompt)} and {len(proof.output)} tokens")
    if (
        not 1 <= proof.most <= most_tokens
        or not 0 <= proof.temperature <= 2
        or not 0 <= proof.number < 1 << 16
        or not -(1 << 63) <= proof.seed < 1 << 63
    ):
        raise _bad("temperature, number, most or seed is out of bounds")
    # An answer that is longer than it might be ended by nothing: no look at its tokens could find that.
    if len(proof.output) > proof.most:
        raise _bad(f"it has {len(proof.output)} tokens of {proof.most} that it might have")
    if not 1 <= proof.k <= 1024 or not is_engine_class(proof.engine):
        raise _bad("k or the engine's class is none")


def _bad(why: str) -> BadAnswerProof:
    return BadAnswerProof("the proof cannot be read", why, "save the whole answer, as the server gave it")


def _end(proof: AnswerProof, eos: frozenset[int]) -> str:
    if proof.output[-1] in eos:
        return "end token"
    return "limit" if len(proof.output) == proof.most else "early"


def look_again(
    proof: AnswerProof, engine: Engine, model: str, adapter: bytes = b"", thresholds: Thresholds | None = None
) -> Looked:
    """engine: with the weights of `model`, a root; thresholds: by default ALIKE, or of an uncalibrated run where that
    says nothing. Raises EngineError."""
    alike = proof.engine == engine.name and arithmetic(engine.name)[0] == "float32"
    thresholds = thresholds or (ALIKE if alike else VerificationSpec())
    count = proof_count(len(proof.output), BATCH)
    looked = Looked("", len(proof.output), count, same_class=proof.engine == engine.name, ended=_end(proof, engine.eos))
    if proof.model != model:
        return msgspec.structs.replace(looked, why="it is of another model: the roots differ")
    if max(*proof.prompt, *proof.output) >= engine.vocabulary or min(*proof.prompt, *proof.output) < 0:
        return msgspec.structs.replace(looked, why="it has tokens outside the model's vocabulary")
    if any(token in engine.eos for token in proof.output[:-1]):
        return msgspec.structs.replace(looked, why="it goes on behind an end token")
    try:
        data = base64.b64decode(proof.proofs.encode("ascii"), validate=True)
        split = split_proofs(data, proof.k, count)
    except (binascii.Error, UnicodeEncodeError, MalformedProof) as error:
        return msgspec.structs.replace(looked, why=f"its proofs cannot be read: {error}")
    # The draw is made again from the seed: numbers that the server chose itself could give any token.
    temperature = max(proof.temperature, COLDEST)
    (found,) = engine.prefill([FinishedSequence(proof.prompt, proof.output, adapter=adapter)], temperature)
    errors = compare_all([split], [found.rows], BATCH)
    distances = distance(draw_of(proof.seed, proof.number, len(proof.output)), found.lo, found.hi)
    fault = check_activations(errors, thresholds) or check_sampling(distances, thresholds)
    mean, outside = sampling_statistics(distances)
    return msgspec.structs.replace(
        looked,
        why=fault.detail if fault else "",
        exponent_mismatches=max((one.exponent_mismatches for one in errors), default=0),
        mantissa_mean=float(np.max([one.mantissa_mean for one in errors], initial=0.0)),
        sampling_mean=mean,
        sampling_outside=outside,
    )
