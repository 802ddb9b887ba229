"""`intellect-node calibrate` as a person meets it."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from cli.main import main
from node.training.warmstart import SORT_ALPHABET, create_model

RUN_FILE = """
name = "tiny"
model = "model"
[environment]
name = "sort"
args = { digits = 3, held_back = 64 }
[rollout]
group_size = 4
prompts_per_step = 4
prompts_per_file = 2
max_prompt_tokens = 8
max_output_tokens = 6
[verification]
toploc_k = 16
"""


def test_a_run_file_is_calibrated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create_model(tmp_path / "model", SORT_ALPHABET, seed=0, hidden=64, layers=1)
    run = tmp_path / "run.toml"
    run.write_text(RUN_FILE)
    few = ["--samples", "16", "--dtypes", "float32", "--attentions", "sdpa", "--json"]
    assert main(["calibrate", "--run", str(run), "--dry-run", *few]) == 0
    assert run.read_text() == RUN_FILE
    assert main(["calibrate", "--run", str(run), *few]) == 0
    said = capsys.readouterr()
    assert "making honest work: 16 of 16" in said.err and "looking at work: 176 of 176" in said.err
    told = [json.loads(line) for line in said.out.splitlines()]
    assert told[0]["run_file"] is None and told[1]["run_file"] == str(run)
    assert set(told[1]["cheating"]) >= {"int8", "garbage", "stale-1"}
    assert "[verification.decision.cheating.int8]" in run.read_text()


def test_an_engine_that_does_not_exist_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "--run", str(tmp_path / "none.toml"), "--dtypes", "fp4"]) == 2
    assert "float32" in capsys.readouterr().err
    assert main(["calibrate", "--run", str(tmp_path / "none.toml")]) == 6


def test_types_may_stand_with_blanks_between_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    types = ["--dtypes", "float32, bfloat16"]
    assert main(["calibrate", "--run", str(tmp_path / "none.toml"), *types]) == 6  # the file is what is missing
    assert main(["calibrate", "--run", str(tmp_path / "none.toml"), *types, "--workers", "fp4"]) == 2
    assert "--workers names 'fp4'" in capsys.readouterr().err
