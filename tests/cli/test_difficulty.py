import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import main

RUN = """
name = "rated"
model = "model"
dataset = "train.jsonl"
[environment]
name = "dataset"
args = { held_back_share = 0.3 }
[rollout]
group_size = 2
prompts_per_step = 2
prompts_per_file = 2
max_output_tokens = 3
[verification]
toploc_k = 16
"""


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    from node.training.warmstart import create_model

    create_model(tmp_path / "model", "0123456789+=", seed=3, hidden=64, layers=1)
    rows = [
        {
            "problem_id": f"p{i}",
            "prompt": f"{i}+1=",
            "task_type": "verifiable_math",
            "verification_info": json.dumps({"ground_truth": str(i + 1)}),
            "source": "made up",
        }
        for i in range(20)
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path / "run.toml"


def rate(run_file: Path, *flags: str) -> tuple[int, Path]:
    out = run_file.parent / "rated.jsonl"
    return main(["run", "difficulty", str(run_file), "--out", str(out), "--samples", "4", *flags]), out


def test_every_problem_gets_its_rate_and_the_filter_reads_it(run_file: Path, capfd) -> None:
    code, out = rate(run_file, "--json")
    assert code == 0
    said = json.loads(capfd.readouterr().out.splitlines()[-1])
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["problem_id"] for row in rows] == [f"p{i}" for i in range(20)]  # held-back ones too, in order
    assert all(row["solve_rate"] in (0, 0.25, 0.5, 0.75, 1) and row["source"] == "made up" for row in rows)
    assert said["problems"] == 20 and sum(said["shares"].values()) == pytest.approx(1)
    assert not out.with_name("rated.jsonl.measured").exists()

    for row in rows:
        row["solve_rate"] = 1.0 if row["problem_id"] in ("p1", "p2", "p3") else 0.5
    out.write_text("".join(json.dumps(row) + "\n" for row in rows))
    filtered = RUN.replace("train.jsonl", "rated.jsonl").replace(
        "held_back_share = 0.3", 'held_back_share = 0.3, solve_rate_field = "solve_rat", solve_rate_max = 0.8'
    )
    run_file.write_text(filtered)
    assert main(["run", "validate", str(run_file)]) == 6
    assert "did you mean 'solve_rate'" in capfd.readouterr().err
    run_file.write_text(filtered.replace('"solve_rat"', '"solve_rate"'))
    assert main(["run", "validate", str(run_file), "--json"]) == 0
    (part,) = json.loads(capfd.readouterr().out.splitlines()[-1])["facts"]["parts"]
    assert (part["problems"] + part["held_back"], part["left_out"]) == (17, 3)


def test_an_interrupted_measurement_goes_on_with_the_same_numbers(run_file: Path) -> None:
    _, out = rate(run_file)
    expected = out.read_bytes()
    from node.run.file import compile_run

    head = json.dumps({"run": compile_run(run_file).root.hex(), "samples": 4})
    known = [json.dumps([f"p{i}", json.loads(expected.splitlines()[i])["solve_rate"]]) for i in range(5)]
    out.with_name("rated.jsonl.measured").write_text("\n".join([head, *known, '["p5", 0.']))
    assert rate(run_file)[0] == 0
    assert out.read_bytes() == expected


def test_a_problem_whose_answers_got_no_verdict_is_neither_hard_nor_easy_and_is_asked_again(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from node.calibration import difficulty
    from tests.node.environments.unsure import Unsure

    _, out = rate(run_file)
    expected, busy, asked = out.read_text(), True, []
    real = difficulty.load_environment

    def load(*given: Any) -> Any:
        made = Unsure(real(*given), lambda problem, times: busy and problem.problem_id == "p3")
        asked.append(made)
        return made

    monkeypatch.setattr(difficulty, "load_environment", load)
    capfd.readouterr()
    code, out = rate(run_file, "--json")
    said = json.loads(capfd.readouterr().out.splitlines()[-1])
    rated = [line for line in expected.splitlines() if json.loads(line)["problem_id"] != "p3"]
    assert code == 0 and out.read_text().splitlines() == rated
    assert (said["problems"], said["undecided"]) == (19, 1)
    busy = False
    assert rate(run_file)[0] == 0
    assert out.read_text() == expected and asked[-1].asked == 4, "only what is not known is asked again"
    assert not out.with_name("rated.jsonl.measured").exists()


def test_with_length_budgets_problems_are_asked_as_workers_ask_them(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from node.calibration import difficulty
    from node.inference.tokenizer import LocalTokenizer

    asked: list[tuple[str, int]] = []
    tokenizer = LocalTokenizer(run_file.parent / "model")
    real = difficulty.generate

    def generate(engine, requests, temperature: float):
        asked.extend((tokenizer.decode(request.prompt), len(request.uniforms)) for request in requests)
        return real(engine, requests, temperature)

    monkeypatch.setattr(difficulty, "generate", generate)
    budget = """
[length_budget]
targets = [1, 2]
alpha = 0.5
text = "={target}="
cut = 1.5
"""
    rollout = "max_prompt_tokens = 20\nmax_output_tokens = 4"
    run_file.write_text(RUN.replace("max_output_tokens = 3", rollout) + budget)
    code, out = rate(run_file)
    assert code == 0
    assert [limit for _, limit in asked[:4]] == [2, 3, 2, 3]
    texts = [text for text, _ in asked[:4]]
    assert texts[0] == texts[2] != texts[1] == texts[3] and "=1=" in texts[0] and "=2=" in texts[1]
    rates = {json.loads(line)["solve_rate"] for line in out.read_text().splitlines()}
    assert rates <= {0, 0.25, 0.5, 0.75, 1}, "what the length takes from the reward is not the problem's difficulty"


def test_the_runs_own_data_is_not_overwritten(run_file: Path, capfd) -> None:
    data = run_file.parent / "train.jsonl"
    before = data.read_bytes()
    assert main(["run", "difficulty", str(run_file), "--out", str(data)]) == 2
    assert data.read_bytes() == before and "will not overwrite" in capfd.readouterr().err
