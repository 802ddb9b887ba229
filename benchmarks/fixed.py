"""What batch-invariant arithmetic costs beside the ordinary kind, and what is equal in each.

    python -m benchmarks.fixed [--quick] [--json FILE]

A Qwen3 of random weights on a CPU, one thread: tokens per CPU second drawn at batch 1, 8 and 64 and read, the better of
two turns taken one after the other; and of how many rows decoding at each batch size and one pass over the finished
sequence give the same bits. `benchmarks.gpu --only invariance` asks the same of a GPU.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config

from benchmarks.command import clock_of, parser_of, save
from benchmarks.engine import VOCABULARY, configuration, engine_run, model_of, prompts, rate, read
from node.inference.decoding import TorchDecoder
from node.inference.engine import Completion, Finished, Request
from node.inference.language_model import LanguageModel
from node.inference.prefilling import Prefiller

KERNELS = ("sdpa", "fixed")
SHAPE = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8}
Row = dict[str, Any]


def rows(
    config: Qwen3Config, dtype: torch.dtype, device: str, batches: tuple[int, ...], new: int, length: int
) -> Iterator[Row]:
    """One a kernel and batch. length: of the sequence that is read."""
    clock = clock_of(device)
    for kernel in KERNELS:
        model = model_of(config, dtype, device, kernel)
        common = {"kernel": kernel, "dtype": str(dtype).removeprefix("torch.")}
        reading = read(model, length, device)["tokens_per_s"]
        for batch in batches:
            speed = max(rate(engine_run(model), [new] * batch, clock) for _ in range(2))
            yield {**common, "batch": batch, "drawn_per_s": speed, "read_per_s": reading, "equal": equal(model, batch)}


def equal(model: LanguageModel, batch: int, new: int = 24) -> float:
    """The share of rows that decoding so many sequences together, decoding each alone and reading them agree about, to
    the bit."""
    drawn = np.random.default_rng(5)
    asked = [Request(prompt, drawn.random(new)) for prompt in prompts(min(batch, 16), model.vocabulary)]
    together, alone = decoded(model, asked), [decoded(model, [one])[0] for one in asked]
    finished = [Finished(request.prompt, one.output) for request, one in zip(asked, together, strict=True)]
    seen = Prefiller(model, model.pass_tokens).prefill(finished, 1.0)
    same = [
        (one.heads == other.heads).all(1) & (one.heads == looked.heads).all(1)
        if one.output == other.output
        else np.zeros(new, dtype=bool)
        for one, other, looked in zip(together, alone, seen, strict=True)
    ]
    return float(np.concatenate(same).mean())


def decoded(model: LanguageModel, asked: list[Request]) -> list[Completion]:
    decoder = TorchDecoder(model, frozenset(), 1 << 15, 1.0)
    numbers, done = [decoder.submit(request) for request in asked], dict[int, Completion]()
    while len(decoder):
        done |= dict(decoder.step())
    return [done[number] for number in numbers]


def main() -> None:
    parser = parser_of(__doc__, "batches of 1 and 8, 16 tokens")
    a = parser.parse_args()
    batches, new, length = ((1, 8), 16, 600) if a.quick else ((1, 8, 64), 64, 1024)
    found: list[Row] = []
    for dtype in (torch.float32, torch.bfloat16):
        for row in rows(configuration(SHAPE, VOCABULARY), dtype, "cpu", batches, new, length):
            found.append(row)
            print(
                f"{row['dtype']:9} {row['kernel']:6} batch {row['batch']:3}: {row['drawn_per_s']:8.1f} drawn a second, "
                f"{row['read_per_s']:8.1f} read, {row['equal']:7.2%} of rows equal"
            )
    save(a.json, {"rows": found})


if __name__ == "__main__":
    main()
