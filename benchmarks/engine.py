"""The torch engine beside transformers (and vLLM), what sampling and proofs cost, and a validator's prefill at size.

    python -m benchmarks.engine [--quick] [--json] [--only decoding,costs,prefill] [--small] [--works 1,8,64,mixed]
        [--vllm-python PATH]

One thread, random weights, tokens per CPU second, the better of two runs taken in turns. *mixed* are lengths of 16 to
512 tokens: transformers' `generate` decodes a batch until its longest sequence ends, and only tokens that were asked
for count. `--vllm-python` names an interpreter that can import vLLM; it gets the same weights. `--json` puts everything
on the last line.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config

from benchmarks.measuring import Clock, clock_of, peak, reset_peak
from node.inference import device_sampling
from node.inference.decoding import TorchDecoder
from node.inference.engine import Finished, Request
from node.inference.language_model import LanguageModel
from node.inference.memory import keep_freed_memory
from node.inference.prefilling import Prefiller
from node.inference.proofs import prove_all

SMALL: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 8}
MEDIUM: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
}
LARGE: dict[str, Any] = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
}
"""The shape of Qwen2.5-0.5B."""
VOCABULARY, LARGE_VOCABULARY = 1024, 151_936
PROMPT = 16
Run = Callable[[list[int]], int]
"""Decodes as many tokens as each number says, all at a time; returns how many those were."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller models, shorter sequences")
    parser.add_argument("--json", action="store_true", help="all figures as one object on the last line")
    parser.add_argument("--only", default="decoding,costs,prefill")
    parser.add_argument("--small", action="store_true", help="decode with 3.7 M parameters at full lengths, float32")
    parser.add_argument("--works", default="1,8,64,mixed", help="what to decode: some of them")
    parser.add_argument("--vllm-python", type=Path)
    a = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    parts: dict[str, Callable[[], Any]] = {
        "decoding": lambda: decoding(a.quick, a.small, a.works.split(","), a.vllm_python),
        "costs": lambda: costs(a.quick),
        "prefill": lambda: prefill(a.quick),
    }
    result = {name: parts[name]() for name in a.only.split(",")}
    if a.json:
        print(json.dumps(result))


def configuration(shape: dict[str, Any], vocabulary: int, *, tied: bool = True) -> Qwen3Config:
    heads = shape["num_attention_heads"]
    dim = shape["hidden_size"] // heads
    return Qwen3Config(
        **shape, vocab_size=vocabulary, num_key_value_heads=max(2, heads // 7), head_dim=dim, tie_word_embeddings=tied
    )


def model_of(config: Qwen3Config, dtype: torch.dtype = torch.float32, device: str = "cpu") -> LanguageModel:
    with torch.device("meta"):
        shell = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model = LanguageModel(shell, device, dtype, "sdpa")
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


def decoding(quick: bool, small: bool, wanted: list[str], vllm: Path | None) -> list[dict[str, Any]]:
    asked = {name: work for name, work in works(quick).items() if name.split()[0] in wanted}
    found: list[dict[str, Any]] = []
    for dtype in (torch.float32,) if quick or small else (torch.float32, torch.bfloat16):
        config = configuration(SMALL if quick or small else MEDIUM, VOCABULARY)
        model = model_of(config, dtype)
        ways: dict[str, Run] = {"torch engine": engine_run(model), **transformers_runs(config, dtype)}
        for name, work in asked.items():
            rates = beside(ways, work)
            found.append({"dtype": str(dtype).removeprefix("torch."), "batch": name, **rates})
            print_rates(found[-1])
        if vllm is not None:
            for name, rate in vllm_rates(vllm, config, dtype, asked).items():
                found.append({"dtype": str(dtype).removeprefix("torch."), "batch": name, "vllm": rate})
                print_rates(found[-1])
    return found


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


def print_rates(row: dict[str, Any]) -> None:
    rates = {name: value for name, value in row.items() if name not in ("dtype", "batch")}
    own = rates.get("torch engine")
    shown = [
        f"{name} {rate:8.0f}" + (f" ({own / rate:.2f}x)" if own and rate != own else "") for name, rate in rates.items()
    ]
    print(f"{row['dtype']:9} batch {row['batch']:14}", ", ".join(shown), flush=True)


def engine_run(model: LanguageModel, batch_tokens: int = 1 << 15) -> Run:
    def run(work: list[int]) -> int:
        decoder = TorchDecoder(model, frozenset(), batch_tokens, 1.0)
        drawn = np.random.default_rng(3)
        for prompt, count in zip(prompts(len(work), model.vocabulary), work, strict=True):
            decoder.submit(Request(prompt, drawn.random(count)))
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


def vllm_rates(python: Path, config: Qwen3Config, dtype: torch.dtype, works: dict[str, list[int]]) -> dict[str, float]:
    hugging = AutoModelForCausalLM.from_config(config, dtype=dtype)
    fill(hugging.named_parameters())
    with tempfile.TemporaryDirectory() as folder:
        hugging.save_pretrained(folder)
        job = vllm_job(Path(folder), dtype, works, config.vocab_size)
        done = subprocess.run(
            vllm_command(python, job, Path(folder) / "job.json"),
            env={**os.environ, **VLLM_ON_CPU},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        sys.exit(f"vLLM failed:\n{done.stderr[-2000:]}")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {row["batch"]: row["tokens_per_s"] for row in rows}


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


def costs(quick: bool) -> dict[str, float]:
    """CPU seconds within one run of 64 sequences at a vocabulary of 151,936, as shares of the rest of decoding."""
    model = model_of(configuration(MEDIUM if quick else LARGE, LARGE_VOCABULARY))
    rows, new = (16, 8) if quick else (64, 12)
    found = cost_of_hooks(model, rows, new, clock_of("cpu"))
    print(f"vocabulary {LARGE_VOCABULARY}, batch {rows}:", found, flush=True)
    return found


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

    device_sampling.draw = timed
    try:
        decoder = TorchDecoder(model, frozenset(), batch_tokens, 1.0)
        drawn = np.random.default_rng(3)
        for prompt in prompts(rows, model.vocabulary):
            decoder.submit(Request(prompt, drawn.random(new)))
        decoder.step()
        spent["sampler"], started, done = 0.0, clock(), []
        while len(decoder):
            done += [completion for _, completion in decoder.step()]
        whole = clock() - started
    finally:
        device_sampling.draw = real
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


# A validator's prefill


def prefill(quick: bool) -> list[dict[str, float]]:
    model = model_of(configuration(SMALL, LARGE_VOCABULARY))
    found: list[dict[str, float]] = []
    for length in (2048, 8192) if quick else (2048, 8192, 32768):
        row = read(model, length)
        found.append(row)
        print(f"prefill of {length} tokens: {row['tokens_per_s']} tokens/s, peak {row['peak_mib']} MiB", flush=True)
    return found


def read(model: LanguageModel, length: int, device: str = "cpu") -> dict[str, float]:
    """One sequence, 512 tokens of it a prompt, once the device is awake."""
    clock, prefiller = clock_of(device), Prefiller(model, model.pass_tokens)
    tokens = np.random.default_rng(4).integers(2, model.vocabulary, size=length).tolist()
    prefiller.prefill([Finished([1] * 8, [2] * 8)], 1.0)
    before = reset_peak(device)
    started = clock()
    prefiller.prefill([Finished(tokens[:512], tokens[512:])], 1.0)
    spent = clock() - started
    return {
        "tokens": length,
        "tokens_per_s": round(length / spent, 1),
        "peak_mib": round(peak(device) - before, 1),
    }


if __name__ == "__main__":
    main()
