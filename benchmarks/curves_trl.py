"""TRL's side of `benchmarks.curves`, which starts it: `python -m benchmarks.curves_trl JOB`, a JSON object.

GRPOTrainer draws its problems from our environment, which scores its answers, and our evaluator answers the held-back
problems with the bfloat16 image of each step. What a run file sets and TRL names is set: two-sided clipping is TRL's
`delta`. The rest are TRL's defaults, but recomputed activations, which would make it slower here.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from node.environments.base import one_answer
from node.environments.registry import load_environment
from node.inference.settings import EngineSettings
from node.inference.tokenizer import LocalTokenizer
from node.inference.torch_engine import bf16_bits
from node.run.file import compile_run
from node.run.problems import place_files
from node.training.evaluator import Evaluator
from protocol.policy import encode_image


class Judge(TrainerCallback):
    """What each policy scores on held-back problems. seconds: of the processor, for that alone."""

    def __init__(self, evaluator: Evaluator, folder: Path) -> None:
        self._evaluator, self._image = evaluator, folder / "policy.safetensors"
        self.rewards, self.seconds = list[float](), 0.0

    def judge(self, model: Any) -> None:
        began = time.process_time()
        self._image.write_bytes(encode_image({name: bf16_bits(one.detach()) for name, one in model.named_parameters()}))
        figures = self._evaluator.evaluate(self._evaluator.read(self._image), len(self.rewards))
        self.rewards.append(figures["eval_reward"])
        self.seconds += time.process_time() - began

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.judge(others["model"])


def main() -> None:
    job = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    folder = Path(job["folder"])
    compiled = compile_run(Path(job["run"]), desk=True, sets=job["sets"])
    run, recipe, assets = compiled.spec, compiled.spec.recipe, folder / "assets"
    place_files(compiled, assets)
    model = assets / "model"
    environment = load_environment(run.environment, assets, LocalTokenizer(model))
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    eos = tokenizer.eos_token_id

    objective = recipe.objective()
    random, numbers, wanted = (
        np.random.default_rng(recipe.seed),
        list[int](),
        recipe.steps * run.rollout.prompts_per_step,
    )
    while len(numbers) < wanted:
        numbers += random.permutation(environment.size).tolist()
    problems = {number: environment.problem(number) for number in set(numbers[:wanted])}
    for problem in problems.values():
        if tokenizer(problem.prompt)["input_ids"] != environment.prompt_tokens(problem):
            raise SystemExit(f"TRL would be asked something else than {problem.problem_id}")

    def scored(completion_ids: list[list[int]], number: list[int], **others: Any) -> list[float]:
        answers = [ids[: ids.index(eos) + 1] if eos in ids else ids for ids in completion_ids]
        return environment.score([problems[one] for one in number], [one_answer(answer) for answer in answers])

    rows = run.rollout.prompts_per_step * run.rollout.group_size
    settings = GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        seed=recipe.seed,
        max_steps=recipe.steps,
        per_device_train_batch_size=rows,
        steps_per_generation=1,
        num_generations=run.rollout.group_size,
        max_completion_length=run.rollout.max_output_tokens,
        learning_rate=recipe.learning_rate,
        lr_scheduler_type="linear",
        adam_beta1=recipe.beta1,
        adam_beta2=recipe.beta2,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.grad_clip,
        epsilon=objective.clip_low,
        epsilon_high=objective.clip_high,
        delta=objective.ratio_cap,
        gradient_checkpointing=False,
        shuffle_dataset=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        model_init_kwargs={"dtype": "float32"},
    )
    judge = Judge(Evaluator(run, assets, EngineSettings(device="cpu", dtype="float32")), folder)
    trainer = GRPOTrainer(
        model=str(model),
        reward_funcs=scored,
        args=settings,
        train_dataset=Dataset.from_list([{"prompt": problems[one].prompt, "number": one} for one in numbers[:wanted]]),
        processing_class=tokenizer,
        callbacks=[judge],
    )
    judge.judge(trainer.model)
    trainer.train()
    Path(job["out"]).write_text(json.dumps({"rewards": judge.rewards, "evaluating": judge.seconds}), encoding="utf-8")


if __name__ == "__main__":
    main()
