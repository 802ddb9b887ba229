"""One optimiser step with TRL's GRPO loss, timed: the other side of benchmarks/trainer_vs_trl.py.

Runs in an environment of its own (trl, not this project): reads a model directory and a batch in JSON, prints JSON.
TRL's own trainer object computes the loss; generation and rewards, which would need an engine, are left out.
"""

import json
import resource
import sys
import time
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far (proc(5)), the imports' among it
    began = resident("VmRSS")
    torch.set_num_threads(1)
    model_dir, rows, repeats = job["model"], job["rows"], job["repeats"]
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    tokenizer.padding_side = "left"
    config = GRPOConfig(
        output_dir=job["scratch"],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        loss_type="dapo",
        beta=0.0,
        epsilon=job["clip_low"],
        epsilon_high=job["clip_high"],
        delta=job["ratio_cap"],
        temperature=1.0,
        num_generations=job["group"],
        per_device_train_batch_size=job["group"],
        max_completion_length=max(len(row["output"]) for row in rows),
        report_to=[],
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["1"] * job["group"]}),
        processing_class=tokenizer,
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = config.steps_per_generation
    batch = padded(rows, tokenizer.pad_token_id)
    best = None
    for size in job["micro_batches"]:
        optimizer = torch.optim.AdamW(trainer.model.parameters(), lr=0.0, weight_decay=0.0, fused=True)
        told = [step(trainer, optimizer, batch, size, job["grad_clip"]) for _ in range(repeats + 1)][1:]
        seconds, busy = (sorted(values)[repeats // 2] for values in list(zip(*told, strict=True))[:2])
        if best is None or seconds < best["seconds"]:
            kept = {"loss": told[0][2], "grad_norm": told[0][3], "rows_per_micro_batch": size}
            best = {"seconds": seconds, "cpu_seconds": busy, **kept}
    assert best is not None  # noqa: S101
    best["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    best["peak"] = max(resident("VmHWM") - began, 0)
    print(json.dumps(best))


def resident(name: str) -> int:
    """Bytes, as benchmarks/learner.py counts them: `peak` is above what the process has after its imports."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def padded(rows: list[dict], pad: int) -> dict[str, torch.Tensor]:
    """As TRL's trainer has it: prompts padded on the left, completions on the right, to the batch's longest."""
    prompt = max(len(row["prompt"]) for row in rows)
    output = max(len(row["output"]) for row in rows)
    batch = {
        "prompt_ids": torch.full((len(rows), prompt), pad),
        "prompt_mask": torch.zeros(len(rows), prompt, dtype=torch.long),
        "completion_ids": torch.full((len(rows), output), pad),
        "completion_mask": torch.zeros(len(rows), output, dtype=torch.long),
        "old_per_token_logps": torch.zeros(len(rows), output),
        "advantages": torch.tensor([row["advantage"] for row in rows], dtype=torch.float32),
    }
    for i, row in enumerate(rows):
        p, o = len(row["prompt"]), len(row["output"])
        batch["prompt_ids"][i, prompt - p :] = torch.tensor(row["prompt"])
        batch["prompt_mask"][i, prompt - p :] = 1
        batch["completion_ids"][i, :o] = torch.tensor(row["output"])
        batch["completion_mask"][i, :o] = 1
        batch["old_per_token_logps"][i, :o] = torch.tensor(row["sampler_logprobs"])
    return batch


def step(
    trainer: GRPOTrainer, optimizer: torch.optim.Optimizer, batch: dict[str, torch.Tensor], size: int, clip: float
) -> tuple[float, float, float, float]:
    """(seconds, seconds of the processor, loss, gradient norm)"""
    started, at_work = time.perf_counter(), time.process_time()
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    count = batch["completion_mask"].sum()
    for at in range(0, len(batch["advantages"]), size):
        part = {name: tensor[at : at + size] for name, tensor in batch.items()}
        loss = trainer.compute_loss(trainer.model, {**part, "num_items_in_batch": count})
        loss.backward()
        total += float(loss.detach())
    norm = float(torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), clip))
    optimizer.step()
    return time.perf_counter() - started, time.process_time() - at_work, total, norm


if __name__ == "__main__":
    main()
