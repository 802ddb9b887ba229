"""How many operations a decoding step gives a GPU, and how often it is waited for.

    python -m benchmarks.launches [--quick] [--json FILE]

Counted on a pretended GPU (tests/pretended_cuda.py), since none is at hand: operations of torch that are no views, of
which each is one launch or a little more. 64 sequences at a time in bfloat16, the layers of Qwen2.5-1.5B (28) at a
small width, by which no operation comes or goes; with CUDA graphs, which count as one launch each, and without.
"""

from typing import Any

import numpy as np
import torch

from benchmarks.command import parser_of, save
from benchmarks.engine import configuration, model_of, prompts
from node.inference.decoding import TorchDecoder
from node.inference.engine import Request
from tests.pretended_cuda import PretendedGPU, pretended_cuda

LAYERS, ROWS, STEPS = 28, 64, 4
WIDTH = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}


def count(gpu: PretendedGPU, layers: int, *, graphs: bool, rows: int = ROWS) -> dict[str, float]:
    """Of one step, in the mean of some, once everything is captured."""
    model = model_of(configuration({**WIDTH, "num_hidden_layers": layers}, 256), torch.bfloat16, "cuda")
    model.graphs.works = graphs
    decoder = TorchDecoder(model, frozenset(), 1 << 15, 1.0)
    drawn = np.random.default_rng(3)
    for prompt in prompts(rows, 256):
        decoder.submit(Request(prompt, drawn.random(STEPS + 3)))
    for _ in range(2):
        decoder.step()
    gpu.launches = 0
    gpu.waits.clear()
    for _ in range(STEPS):
        decoder.step()
    return {"launches": gpu.launches / STEPS, "waits": gpu.waits.total() / STEPS}


def main() -> None:
    parser = parser_of(__doc__, "4 layers, 8 sequences")
    a = parser.parse_args()
    layers, rows = (4, 8) if a.quick else (LAYERS, ROWS)
    found: dict[str, Any] = {}
    with pretended_cuda() as gpu:
        for graphs in (False, True):
            name = "with graphs" if graphs else "without"
            found[name] = count(gpu, layers, graphs=graphs, rows=rows)
            print(f"{layers} layers, {rows} sequences, {name}: {found[name]}")
    save(a.json, found)


if __name__ == "__main__":
    main()
