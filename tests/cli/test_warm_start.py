"""`intellect-node run warm-start`: a run's model is taught by example before the run begins."""

import json
from pathlib import Path

import pytest

from cli.main import main

RUN = """
name = "warm"
model = "warm"
[environment]
name = "sort"
args = {{ digits = 2, held_back = 20 }}
[rollout]
max_output_tokens = 4
[evaluation]
problems = 20
[warm_start]
model = "base"
data = "answers.jsonl"
steps = {steps}
batch = 32
learning_rate = 5e-3
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    from node.training.warmstart import SORT_ALPHABET, create_model

    create_model(tmp_path / "base", SORT_ALPHABET, seed=3, hidden=64, layers=1)
    rows = [{"prompt": f"{n:02d}=", "answer": "".join(sorted(f"{n:02d}"))} for n in range(100)]
    (tmp_path / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.toml").write_text(RUN.format(steps=40))
    return tmp_path


def test_a_run_begins_with_what_it_was_taught(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(home / "run.toml")
    assert main(["run", "validate", run]) == 6 and "warm-start" in capsys.readouterr().err
    assert main(["run", "warm-start", run, "--trainer", "micro_batch_tokens=64", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["examples"] == 100 and told["loss_last"] < 0.7 * told["loss_first"]
    assert main(["run", "validate", run, "--json"]) == 0
    capsys.readouterr()
    assert main(["eval", str(home / "base"), str(home / "warm"), "--run", run, "--json"]) == 0
    (pair,) = json.loads(capsys.readouterr().out)["pairs"]
    assert pair["difference"] > 3 * pair["error"] > 0
    assert main(["run", "warm-start", run]) == 3 and "will not overwrite" in capsys.readouterr().err


def test_what_is_no_example_is_named_by_its_row(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = home / "run.toml"
    for row, said in (({"prompt": "12="}, "row 101"), ({"prompt": "12=", "answer": "1" * 5000}, "max_tokens is 4096")):
        with (home / "answers.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
        assert main(["run", "warm-start", str(run)]) == 6
        assert said in capsys.readouterr().err
        lines = (home / "answers.jsonl").read_text().splitlines(keepends=True)
        (home / "answers.jsonl").write_text("".join(lines[:100]))
    run.write_text(RUN.format(steps=0))
    assert main(["run", "warm-start", str(run)]) == 6 and "warm_start.steps must be" in capsys.readouterr().err
    assert not (home / "warm").exists()
