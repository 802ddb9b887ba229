"""Is each honest answer of `serve` accepted by `audit answer`, and each falsified one refused?

    python -m benchmarks.answer_proofs [--quick] [--json FILE]

Answers of 32 to 64 tokens to prompts of their own, of made-up models (a base and an adapter, two sizes). The look is
that of the command: one pass, activations and sampling, the cuts of an uncalibrated run. What another server would do
(other weights, weights in eight bits, another seed) is computed by one; the rest is edited.
"""

import string
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks.command import parser_of, save
from node.inference.answer_proofs import AnswerProof, look_again, model_root
from node.inference.answering import Answerer, AnswerQuestion, opened
from node.inference.settings import EngineSettings
from node.inference.start_weights import StartWeights
from node.inference.torch_engine import TorchEngine, build_model, image_names
from node.training.evaluator import beside
from node.training.warmstart import create_model, write_weights
from tests.node.inference.test_adapters import adapter
from tests.node.inference.test_answer_proofs import FALSIFIED

SIZES = ((64, 2), (256, 4))
SHORTEST, LONGEST = 32, 64
ALPHABET = string.ascii_letters + string.digits + " .=+"


def main() -> None:
    a = parser_of(__doc__, "ten answers each instead of a hundred").parse_args()
    count, rows = 10 if a.quick else 100, []
    for hidden, layers in SIZES:
        with tempfile.TemporaryDirectory(prefix="intellect-answers-") as folder:
            rows += list(_size(Path(folder), hidden, layers, count))
    print(f"{'model':<22}{'what':<34}{'accepted':>10}{'of':>6}")
    for row in rows:
        print(f"{row['model']:<22}{row['what']:<34}{row['accepted']:>10}{row['of']:>6}")
    save(a.json, rows)


def _size(folder: Path, hidden: int, layers: int, count: int) -> Iterator[dict[str, Any]]:
    base = folder / "base"
    create_model(base, ALPHABET, seed=hidden, hidden=hidden, layers=layers)
    tuned = adapter(image_names(build_model(base, "cpu")), 1, 3, size=0.3)
    honest = _served(base, {"tuned": tuned})
    others = {"another model's weights": _other(base, folder / "other"), "weights in eight bits": _eight(base, folder)}
    for name in ("", "tuned"):
        title, root = f"{hidden} x {layers}{', adapter' if name else ''}", model_root(base, tuned if name else None)
        look = partial(_accepted, honest, root, name)
        proofs = _answers(honest, name, count)
        yield {"model": title, "what": "honest", "accepted": sum(map(look, proofs)), "of": count}
        for what, change in FALSIFIED.items():
            yield {"model": title, "what": what, "accepted": sum(look(change(one)) for one in proofs), "of": count}
        if name:
            continue
        for what, place in others.items():
            said = [msgspec.structs.replace(one, model=root) for one in _answers(_served(place, {}), "", count)]
            yield {"model": title, "what": what, "accepted": sum(map(look, said)), "of": count}


def _served(folder: Path, adapters: dict[str, Any]) -> Answerer:
    engine = TorchEngine(
        folder, beside(EngineSettings(), adapters.values()) if adapters else EngineSettings(attention="lora")
    )
    return opened(folder, engine, engine.tokenizer, adapters)


def _answers(server: Answerer, name: str, count: int) -> list[AnswerProof]:
    """Of different prompts and seeds; an answer that ends at once proves little, and is asked for again."""
    found: list[AnswerProof] = []
    for seed in range(1000, 1000 + 20 * count):
        prompt = server.tokenizer.encode(f"{seed} = {ALPHABET[seed % 50 :][:6]}")
        question = AnswerQuestion(prompt, LONGEST, name, seed=seed)
        (answer,) = server.answer(question, server.call())
        if len(answer.output) >= SHORTEST:
            found.append(msgspec.convert(server.proven(question, 0, answer), AnswerProof))
        if len(found) == count:
            return found
    raise SystemExit(f"only {len(found)} answers of {count} are long enough")


def _accepted(server: Answerer, root: str, name: str, proof: AnswerProof) -> bool:
    return look_again(proof, server._engine, root, name.encode()).accepted


def _other(base: Path, out: Path) -> Path:
    """One that was made by the next seed."""
    return _changed(base, out, lambda values: values + 0.02 * torch.randn(values.shape, generator=_random()))


def _eight(base: Path, folder: Path) -> Path:
    def rounded(values: torch.Tensor) -> torch.Tensor:
        if values.dim() < 2:
            return values
        scale = values.abs().amax(1, keepdim=True).clamp(min=1e-9) / 127
        return (values / scale).round() * scale

    return _changed(base, folder / "eight", rounded)


def _random() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _changed(base: Path, out: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> Path:
    import shutil

    shutil.copytree(base, out)
    model, weights = build_model(base), StartWeights(base)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(change(weights[name].float()))
    write_weights(out, model)
    return out


if __name__ == "__main__":
    main()
