"""How many operations a decoding step gives a GPU, and how often it is waited for.

    python -m benchmarks.launches [--quick] [--json FILE]

Counted on a pretended GPU (tests/pretended_cuda.py), since none is at hand: operations of torch that are no views, of
which each is one launch or a little more. 64 sequences at a time in bfloat16, the layers of Qwen2.5-1.5B (28) at a
small width, by which no operation comes or goes; with CUDA graphs, which count as one launch each, and without; with
one policy, and with several whose adapters are kept apart (`--attention lora`).
"""

from itertools import product
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.command import parser_of, save
from benchmarks.engine import configuration, model_of, prompts
from node.inference.adapters import Adapters
from node.inference.decoding import TorchDecoder
from node.inference.engine import Request
from protocol.engines import LORA
from protocol.lora import EVERY_LINEAR, WEIGHT, tensors_of
from tests.pretended_cuda import PretendedGPU, pretended_cuda

LAYERS, ROWS, STEPS, RANK = 28, 64, 4, 16
WIDTH = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}


def count(gpu: PretendedGPU, layers: int, *, graphs: bool, rows: int = ROWS, adapters: int = 0) -> dict[str, float]:
    """Of one step, in the mean of some, once everything is captured. adapters: of so many policies by turns."""
    config = configuration({**WIDTH, "num_hidden_layers": layers}, 256)
    model = model_of(config, torch.bfloat16, "cuda", LORA if adapters else "sdpa")
    for number in range(adapters):
        cast(Adapters, model.adapters).hold(bytes([number]), _adapter(config))
    model.graphs.works = graphs
    decoder = TorchDecoder(model, frozenset(), 1 << 15, 1.0)
    drawn = np.random.default_rng(3)
    for number, prompt in enumerate(prompts(rows, 256)):
        name = bytes([number % adapters]) if adapters else b""
        decoder.submit(Request(prompt, drawn.random(STEPS + 3), adapter=name))
    for _ in range(2):
        decoder.step()
    gpu.launches = 0
    gpu.waits.clear()
    for _ in range(STEPS):
        decoder.step()
    return {"launches": gpu.launches / STEPS, "waits": gpu.waits.total() / STEPS}


def _adapter(config: Any) -> dict[str, Tensor]:
    with torch.device("meta"):
        weights = dict(AutoModelForCausalLM.from_config(config).named_parameters())
    made: dict[str, Tensor] = {}
    for name in (name for name in weights if name.endswith(tuple(f"{one}{WEIGHT}" for one in EVERY_LINEAR))):
        (a, b), (out, width) = tensors_of(name), weights[name].shape
        made |= {a: torch.full((RANK, width), 0.01), b: torch.full((out, RANK), 0.01)}
    return made


def main() -> None:
    parser = parser_of(__doc__, "4 layers, 8 sequences")
    a = parser.parse_args()
    layers, rows = (4, 8) if a.quick else (LAYERS, ROWS)
    found: dict[str, Any] = {}
    with pretended_cuda() as gpu:
        for adapters, graphs in product((0, 1, 8), (False, True)):
            name = f"{'with graphs' if graphs else 'without'}{f', {adapters} adapters' if adapters else ''}"
            found[name] = count(gpu, layers, graphs=graphs, rows=rows, adapters=adapters)
            print(f"{layers} layers, {rows} sequences, {name}: {found[name]}")
    save(a.json, found)


if __name__ == "__main__":
    main()
