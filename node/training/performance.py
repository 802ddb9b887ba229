"""What the hardware gave: tokens per second, share of its peak, memory. Measured, so it differs between replays."""

import re
import resource
import sys
from typing import Any

import torch

from node.inference.architectures import routing_of
from protocol.routing import Routing

# Dense bf16 peak of one device in TFLOP/s, from the makers' data sheets.
PEAK_TFLOPS = {
    "H100": 989.0,
    "H200": 989.0,
    "GH200": 989.0,
    "B200": 2250.0,
    "A100": 312.0,
    "A800": 312.0,
    "L40S": 362.0,
    "L4": 121.0,
    "A10G": 70.0,
    "RTX 4090": 165.0,
    "RTX 3090": 71.0,
}


def peak_flops(device: torch.device, given_tflops: float) -> float | None:
    """FLOP/s of one device at bf16; None if nobody knows."""
    if given_tflops > 0:
        return given_tflops * 1e12
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    # As a whole word: the L40 has L4 in its name, and is another card.
    return next((peak * 1e12 for key, peak in PEAK_TFLOPS.items() if re.search(rf"\b{key}\b", name)), None)


def training_flops(parameters: float, tokens: float, mean_length: float, layers: int, hidden: int) -> float:
    """Of forward and backward pass: 6 per parameter and token, and causal attention's 6 layers hidden per token and
    position (Chowdhery et al. 2022, appendix B, halved for the causal mask). Recomputation counts as nothing."""
    return tokens * (6.0 * parameters + 6.0 * layers * hidden * mean_length)


def computing_parameters(model: Any, routing: Routing | None) -> float:
    """Those that compute one token, in trained ones: of a stack of experts the chosen ones."""
    share = routing.chosen / routing.experts if routing else 1.0
    return sum(
        # The share of the work that a parameter without a gradient of its own makes: it has no third product.
        p.numel() * (1 if p.requires_grad else 4 / 6) * (share if ".experts." in name else 1)
        for name, p in model.named_parameters()
    )


def peak_memory(device: torch.device) -> int:
    """Bytes: of the GPU's allocator, or of this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    # Kilobytes on Linux, bytes on macOS.
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def measured(
    model: Any, tokens: float, mean_length: float, seconds: float, device: torch.device, size: int, peak_tflops: float
) -> dict[str, float]:
    """tokens: of the whole world, fed in `seconds`; `mfu` is there where the device's peak is known."""
    found = {"peak_memory_bytes": float(peak_memory(device))}
    if seconds <= 0 or tokens <= 0:
        return found
    found["tokens_per_second"] = tokens / seconds
    peak = peak_flops(device, peak_tflops)
    if peak is not None:
        config = model.config
        parameters = computing_parameters(model, routing_of(config))
        work = training_flops(parameters, tokens, mean_length, config.num_hidden_layers, config.hidden_size)
        found["mfu"] = work / seconds / (peak * size)
    return found
