"""Evaluation environments beside what is trained on: each scored by itself, under its label."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from node.metrics.prometheus import render
from node.training.evaluator import Evaluator
from protocol.run import EnvironmentSpec, EvaluationSpec, RolloutSpec, RunSpec
from protocol.sections import EvaluationEnvironment

SORT = {"digits": 2, "held_back": 20}


def evaluated(assets: Path, *environments: EvaluationEnvironment) -> dict:
    run = RunSpec(
        name="evaluated",
        environment=EnvironmentSpec(name="sort", args=SORT),
        rollout=RolloutSpec(max_output_tokens=4),
        evaluation=EvaluationSpec(problems=12, environments=environments),
    )
    evaluator = Evaluator(run, assets, torch.device("cpu"))
    try:
        return evaluator.evaluate(load_file(assets / "model" / "model.safetensors"), 3)
    finally:
        evaluator.close()


def test_evaluation_environments_stand_by_label_and_leave_the_runs_own_reward_alone(
    tiny_assets: Path, tmp_path: Path
) -> None:
    (tmp_path / "model").symlink_to(tiny_assets / "model")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("def score(row, answer):\n    return len(row['prompt'])\n")
    asked = EvaluationEnvironment(name="reverse", label="length", args=SORT, reward="mine:score")
    both = evaluated(tmp_path, asked, EvaluationEnvironment(name="reverse", args=SORT))
    table = both["eval_reward_by_environment"]
    assert table["length"] == len("=12=") and set(table) == {"sort", "reverse", "length"}
    alone = evaluated(tmp_path)
    assert "eval_reward_by_environment" not in alone
    assert both["eval_reward"] == alone["eval_reward"] == pytest.approx(table["sort"])
    shown = render({"training": {"latest": both}})
    assert 'intellect_step_eval_reward_by_environment{environment="length"} 4.0' in shown
