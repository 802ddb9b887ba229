"""The vLLM engine beside the torch engine and vLLM's own sampling, and what our hooks in vLLM cost.

    .venv-vllm/bin/python -m benchmarks.vllm_engine [--quick] [--json] [--only decoding,costs]

Runs in the environment of `make test-vllm`. One thread, random weights in float32, tokens per CPU second, the better of
two runs taken in turns. *plain* is vLLM with the same arguments, its own head and its own sampler at temperature 1.
*costs* are CPU seconds inside of the hooks over those of everything else, with a model that a vocabulary of 151,936
belongs to. `--json` puts everything on the last line.
"""

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch

from benchmarks.command import clock_of, parser_of
from benchmarks.engine import LARGE_VOCABULARY, VOCABULARY, Run, beside, prompts, works
from node.inference.engine import Engine, Request, generate
from node.inference.engines import make_engine
from node.inference.model_files import read_json
from node.inference.settings import EngineSettings
from node.inference.torch_engine import build_model
from node.inference.vllm import hooks as hooks_module
from node.inference.vllm.arguments import arguments
from node.inference.vllm.core import start
from node.inference.vllm.engine import VllmEngine
from node.inference.vllm.hooks import Recorder
from node.training.sizing import engine_size, shape_of
from node.training.warmstart import SORT_ALPHABET, write_config, write_tokenizer, write_weights

SMALL, MEDIUM, LARGE = (256, 4), (512, 8), (896, 24)
"""Width and layers: 3.7 and 26 million parameters, and without the vocabulary 229 million, two thirds of
Qwen2.5-0.5B."""


def main() -> None:
    parser = parser_of(__doc__, "the smaller model, shorter sequences", "line")
    parser.add_argument("--only", default="decoding,costs")
    a = parser.parse_args()
    parts: dict[str, Callable[[bool], Any]] = {"decoding": decoding, "costs": costs}
    result = {name: parts[name](a.quick) for name in a.only.split(",")}
    sys.stdout.flush()
    if a.json:
        print(json.dumps(result), flush=True)


def write_model(folder: Path, shape: tuple[int, int], vocabulary: int) -> Path:
    """A model directory of random weights with positions enough for every work."""
    folder.mkdir()
    hidden, layers = shape
    write_tokenizer(folder, SORT_ALPHABET)
    write_config(folder, vocabulary, hidden, layers)
    config = json.loads((folder / "config.json").read_text()) | {"max_position_embeddings": 1024}
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    write_weights(folder, build_model(folder))
    return folder


def engine(model: Path, settings: EngineSettings) -> Engine:
    """With the model's weights, and without an end token: lengths are those that were asked for."""
    made, _ = make_engine(model, settings)
    made.load(made.read(str(model / "model.safetensors")))
    made.eos = frozenset()  # type: ignore[misc]
    return made


# Decoding


def decoding(quick: bool) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "model", SMALL if quick else MEDIUM, VOCABULARY)
        ways = {"vllm engine": ours(model, "vllm"), "torch engine": ours(model, "sdpa"), "plain": plain(model)}
        found = [{"batch": name, **beside(ways, work)} for name, work in works(quick).items()]
    for row in found:
        print(row, flush=True)
    return found


def ours(model: Path, kernel: str) -> Run:
    made = engine(model, EngineSettings(attention=kernel))
    return lambda work: decode(made, work)


def decode(made: Engine, work: list[int]) -> int:
    drawn = np.random.default_rng(3)
    asked = zip(prompts(len(work), made.vocabulary), work, strict=True)
    requests = [Request(prompt, drawn.random(count)) for prompt, count in asked]
    return sum(len(completion.output) for completion in generate(made, requests, 1.0))


def plain(model: Path) -> Run:
    settings = EngineSettings(attention="vllm")
    core = start(
        arguments(model, settings, read_json(model / "config.json"), None, engine_size(shape_of(model))),
        settings.device,
    )

    def run(work: list[int]) -> int:
        from vllm.inputs import TokensPrompt  # pyright: ignore[reportMissingImports]
        from vllm.sampling_params import RequestOutputKind, SamplingParams  # pyright: ignore[reportMissingImports]

        kind = RequestOutputKind.FINAL_ONLY
        for number, (prompt, count) in enumerate(zip(prompts(len(work), VOCABULARY), work, strict=True)):
            wanted = SamplingParams(max_tokens=count, ignore_eos=True, detokenize=False, output_kind=kind)
            core.add_request(str(number), TokensPrompt(prompt_token_ids=prompt), wanted)
        made = 0
        while core.has_unfinished_requests():
            made += sum(len(output.outputs[0].token_ids) for output in core.step())
        return made

    return run


# What the hooks cost


def costs(quick: bool) -> list[dict[str, Any]]:
    """At a vocabulary of 151,936, by batch: of the sampler, and of keeping rows."""
    new = 8 if quick else 12
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(Path(folder) / "model", SMALL if quick else LARGE, LARGE_VOCABULARY)
        made = engine(model, EngineSettings(attention="vllm"))
        assert isinstance(made, VllmEngine)  # noqa: S101 - what the registry makes for its kernel
        for batch in (1, 8, 64):
            decode(made, [2] * batch)
            found.append({"batch": batch, **cost_of_hooks(made, [new] * batch)})
            print(found[-1], flush=True)
    return found


def cost_of_hooks(made: VllmEngine, work: list[int]) -> dict[str, float]:
    clock = clock_of(made.device)
    spent = {"sampler": 0.0, "rows": 0.0}

    def timed(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            started = clock()
            try:
                return call(*arguments)
            finally:
                spent[name] += clock() - started

        return run

    hooked = [
        (hooks_module, "choose", "sampler"),
        (hooks_module, "force", "sampler"),
        (hooks_module, "bf16_bits", "rows"),
        (Recorder, "add", "rows"),
        (Recorder, "take", "rows"),
    ]
    before = [getattr(place, name) for place, name, _ in hooked]
    for (place, name, part), call in zip(hooked, before, strict=True):
        setattr(place, name, timed(part, call))
    try:
        started = clock()
        tokens = decode(made, work)
        whole = clock() - started
    finally:
        for (place, name, _), call in zip(hooked, before, strict=True):
            setattr(place, name, call)
    rest = whole - sum(spent.values())
    shares = {f"{name}_share": round(seconds / rest, 4) for name, seconds in spent.items()}
    return {"tokens_per_s": round(tokens / whole, 1), **shares}


if __name__ == "__main__":
    main()
