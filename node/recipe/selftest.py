"""How fast this machine's engine is: tokens a second, drawn and read, with a small model that is made on the spot.

`python -m node.recipe.selftest [the engine's options]` prints one JSON object. Weights are random: no speed depends on
what they are.
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import torch

from node.inference.engine import Engine, FinishedSequence, GenerationRequest, generate
from node.inference.engines import make_engine
from node.inference.options import EngineOptions, options_from
from node.inference.settings import devices
from node.recipe.speed import Speed
from node.training.warmstart import create_model

ALPHABET = "".join(map(chr, range(0x100, 0x500)))
"""1,024 tokens."""
REQUESTS, PROMPT, OUTPUT = 16, 64, 48


def decode_once(engine: Engine) -> int:
    """Tokens drawn, in requests that begin together. The random number leads to the middle of the vocabulary, where no
    end token is."""
    requests = [GenerationRequest(row[:PROMPT], np.full(OUTPUT, 0.5)) for row in _tokens(engine)]
    return sum(len(done.output) for done in generate(engine, requests, 1.0))


def prefill_once(engine: Engine) -> int:
    """Tokens recomputed."""
    engine.prefill([FinishedSequence(row[:PROMPT], row[PROMPT:]) for row in _tokens(engine)], 1.0)
    return REQUESTS * (PROMPT + OUTPUT)


def rate(once: Callable[[Engine], int], engine: Engine) -> float:
    """Tokens per second, over as many seconds as a measurement takes."""
    once(engine)
    began, tokens, took = time.perf_counter(), 0, 0.0
    least = 0.8  # seconds for each measurement, at least; its first pass is not counted
    while took < least:
        tokens += once(engine)
        took = time.perf_counter() - began
    return tokens / took


def measure(options: EngineOptions) -> Speed:
    """Raises EngineError."""
    with tempfile.TemporaryDirectory(prefix="intellect-speed-") as folder:
        model = Path(folder)
        create_model(model, ALPHABET, seed=0, hidden=256, layers=4)
        engine, _ = make_engine(model, options.granted(("*/*/*",), devices()))
        engine.load(engine.read(str(model / "model.safetensors")))
        return Speed(rate(decode_once, engine), rate(prefill_once, engine), engine.name, engine.parameters)


def _tokens(engine: Engine) -> list[list[int]]:
    places = np.arange(REQUESTS * (PROMPT + OUTPUT)).reshape(REQUESTS, -1)
    return (places % (engine.vocabulary - 2) + 2).tolist()


def main() -> None:
    torch.set_num_threads(1)
    print(msgspec.json.encode(measure(options_from(sys.argv[1:]))).decode())


if __name__ == "__main__":
    main()
