"""What the benchmarks of engines share: models of random weights, work to decode, and rates. No program by itself."""

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config

from benchmarks.command import Clock, clock_of, peak, reset_peak
from node.inference import device_sampling
from node.inference.decoding import TorchDecoder
from node.inference.engine import FinishedSequence, GenerationRequest
from node.inference.fixed import model_for
from node.inference.language_model import LanguageModel
from node.inference.prefilling import Prefiller
from node.inference.proofs import prove_all
from node.inference.room import PASS_TOKENS, ROWS

VOCABULARY, LARGE_VOCABULARY = 1024, 151_936
PROMPT = 16
ON_A_GPU = {"pass_tokens": PASS_TOKENS, "logit_cells": ROWS * LARGE_VOCABULARY}
"""What node.inference.room gives a card with room."""
Run = Callable[[list[int]], int]
"""Decodes as many tokens as each number says, all at a time; returns how many those were."""


def configuration(shape: dict[str, Any], vocabulary: int, *, tied: bool = True) -> Qwen3Config:
    heads = shape["num_attention_heads"]
    dim = shape["hidden_size"] // heads
    return Qwen3Config(
        **shape, vocab_size=vocabulary, num_key_value_heads=max(2, heads // 7), head_dim=dim, tie_word_embeddings=tied
    )


def model_of(
    config: Qwen3Config, dtype: torch.dtype = torch.float32, device: str = "cpu", attention: str = "sdpa"
) -> LanguageModel:
    with torch.device("meta"):
        shell = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model = model_for(shell, device, dtype, attention, **({} if device == "cpu" else ON_A_GPU))
    weights = shell.to_empty(device=device)
    fill(weights.named_parameters())
    with torch.no_grad():
        model.load(dict(weights.named_parameters()))
    return model


def fill(parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Norms of 1, and for all else the same million random numbers over and over: quick, and equal for equal shapes."""
    some = torch.empty(1 << 20).normal_(0, 0.02, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, tensor in parameters:
            if name.endswith("norm.weight"):
                tensor.fill_(1)
            else:
                tensor.copy_(some.repeat(-(-tensor.numel() // len(some)))[: tensor.numel()].view(tensor.shape))


def prompts(count: int, vocabulary: int) -> list[list[int]]:
    return np.random.default_rng(1).integers(2, vocabulary, size=(count, PROMPT)).tolist()


# Decoding


def works(quick: bool) -> dict[str, list[int]]:
    """Name -> the lengths to decode, all at a time."""
    new, longest = (32, 128) if quick else (64, 512)
    mixed = np.random.default_rng(2).permutation(np.linspace(16, longest, 64).astype(int)).tolist()
    return {"1": [new], "8": [new] * 8, "64": [new] * 64, f"mixed 16..{longest}": mixed}


def beside(ways: dict[str, Run], work: list[int], clock: Clock = time.process_time) -> dict[str, float]:
    """Tokens per second of each, the better of two turns."""
    best = dict.fromkeys(ways, 0.0)
    for _ in range(2):
        for name, run in ways.items():
            best[name] = max(best[name], rate(run, work, clock))
    return {name: round(tokens_per_s, 1) for name, tokens_per_s in best.items()}


def rate(run: Run, work: list[int], clock: Clock) -> float:
    """Tokens per second of one turn."""
    started = clock()
    tokens = run(work)
    return tokens / (clock() - started)


def engine_run(model: LanguageModel, batch_tokens: int = 1 << 15) -> Run:
    def run(work: list[int]) -> int:
        decoder = TorchDecoder(model, frozenset(), batch_tokens, 1.0)
        drawn = np.random.default_rng(3)
        for prompt, count in zip(prompts(len(work), model.vocabulary), work, strict=True):
            decoder.submit(GenerationRequest(prompt, drawn.random(count)))
        made = 0
        while len(decoder):
            made += sum(len(completion.output) for _, completion in decoder.step())
        return made

    return run


def transformers_runs(config: Qwen3Config, dtype: torch.dtype, device: str = "cpu") -> dict[str, Run]:
    with torch.device(device):
        hugging = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    fill(hugging.named_parameters())

    def generate(work: list[int]) -> int:
        settings = GenerationConfig(do_sample=True, max_new_tokens=max(work), pad_token_id=0, eos_token_id=None)
        asked = torch.tensor(prompts(len(work), config.vocab_size), device=device)
        with torch.inference_mode():
            hugging.generate(asked, attention_mask=torch.ones_like(asked), generation_config=settings)
        return sum(work)

    return {"transformers": generate}


VLLM = """
import json, sys, time
job = json.load(open(sys.argv[1]))
clock = getattr(time, job["clock"])
from vllm import LLM, SamplingParams
llm = LLM(model=job["model"], dtype=job["dtype"], skip_tokenizer_init=True, **job["arguments"])

def seconds(prompts, work):
    settings = [SamplingParams(temperature=1.0, max_tokens=n, ignore_eos=True, detokenize=False) for n in work]
    started = clock()
    llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], settings, use_tqdm=False)
    return clock() - started

for name, work in job["works"].items():
    best = min(seconds(job["prompts"][: len(work)], work) for _ in range(2))
    print(json.dumps({"batch": name, "tokens_per_s": sum(work) / best}), flush=True)
for asked in job["read"]:
    best = min(seconds([asked[turn]], [1]) for turn in range(2))
    print(json.dumps({"prefill": len(asked[0]), "tokens_per_s": len(asked[0]) / best}), flush=True)
"""
VLLM_ON_CPU = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
}


def vllm_job(
    model: Path, dtype: torch.dtype, works: dict[str, list[int]], vocabulary: int, *, device: str = "cpu"
) -> dict[str, Any]:
    """What VLLM does: decode each of the works, then read prompts (none here), of which it needs two of a length."""
    on_cpu = {"enforce_eager": True, "max_model_len": 1024}
    return {
        "model": str(model),
        "dtype": str(dtype).removeprefix("torch."),
        "arguments": on_cpu if device == "cpu" else {"enable_prefix_caching": False},
        "clock": "process_time" if device == "cpu" else "perf_counter",
        "works": works,
        "prompts": prompts(max(map(len, works.values()), default=0), vocabulary),
        "read": [],
    }


def vllm_command(python: Path, job: dict[str, Any], file: Path) -> list[str]:
    """Prints a JSON object a line as it goes."""
    file.write_text(json.dumps(job))
    return [str(python), "-c", VLLM, str(file)]


# What sampling and proofs cost


def cost_of_hooks(
    model: LanguageModel, rows: int, new: int, clock: Clock, batch_tokens: int = 1 << 15
) -> dict[str, float]:
    """What drawing replayable tokens and proving takes within one run of so many sequences."""
    spent = {"sampler": 0.0}
    real = device_sampling.draw

    def timed(*arguments: Any) -> torch.Tensor:
        started = clock()
        try:
            return real(*arguments)
        finally:
            spent["sampler"] += clock() - started

    with patch.object(device_sampling, "draw", timed):
        decoder = TorchDecoder(model, frozenset(), batch_tokens, 1.0)
        drawn = np.random.default_rng(3)
        for prompt in prompts(rows, model.vocabulary):
            decoder.submit(GenerationRequest(prompt, drawn.random(new)))
        decoder.step()
        spent["sampler"], started, done = 0.0, clock(), []
        while len(decoder):
            done += [completion for _, completion in decoder.step()]
        whole = clock() - started
    started = clock()
    prove_all([completion.rows for completion in done], 128, 32)
    proofs = clock() - started
    plain = whole - spent["sampler"]
    tokens = rows * (new - 1)
    return {
        "tokens_per_s": round(tokens / whole, 1),
        "sampler_ms_per_token": round(1e3 * spent["sampler"] / tokens, 3),
        "sampler_share": round(spent["sampler"] / plain, 4),
        "proofs_share": round(proofs / plain, 4),
    }


def read(model: LanguageModel, length: int, device: str = "cpu") -> dict[str, float]:
    """One sequence, 512 tokens of it a prompt, once the device is awake."""
    clock, prefiller = clock_of(device), Prefiller(model, model.pass_tokens)
    tokens = np.random.default_rng(4).integers(2, model.vocabulary, size=length).tolist()
    prefiller.prefill([FinishedSequence([1] * 8, [2] * 8)], 1.0)
    before = reset_peak(device)
    started = clock()
    prefiller.prefill([FinishedSequence(tokens[:512], tokens[512:])], 1.0)
    spent = clock() - started
    return {"tokens": length, "tokens_per_s": round(length / spent, 1), "peak_mib": round(peak(device) - before, 1)}
