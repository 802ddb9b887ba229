"""How many operations a decoding step gives a GPU, and how often it is waited for.

Counted on a pretended GPU (tests/pretended_cuda.py), since none is at hand: operations of torch that are no views, of
which each is one launch or a little more. 64 sequences at a time in bfloat16, at a small width, by which no operation
comes or goes. A CUDA graph counts as one launch.
"""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.engine import configuration, model_of, prompts
from node.inference.adapters import Adapters
from node.inference.decoding import TorchDecoder
from node.inference.engine import GenerationRequest
from protocol.engines import LORA
from protocol.lora import EVERY_LINEAR, WEIGHT, tensors_of
from tests.pretended_cuda import PretendedGPU

ROWS, STEPS, RANK = 64, 2, 16
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
        decoder.submit(GenerationRequest(prompt, drawn.random(STEPS + 3), adapter=name))
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
