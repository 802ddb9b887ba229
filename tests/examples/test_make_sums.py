"""The rows of examples/smollm.toml: such as can be scored."""

import json
from pathlib import Path

from examples.make_sums import problems, row, write_rows
from node.environments.files import read_rows
from node.run.file import load_run_file


def test_every_problem_shows_another_of_its_kind_solved_and_has_an_answer(tmp_path: Path) -> None:
    made = list(problems())
    assert len({problem.text for problem in made}) > 0.9 * len(made)
    for number, problem in enumerate(made):
        left, sign, right, _, result = problem.solution.split()
        assert int(result) == (int(left) + int(right) if sign == "+" else int(left) - int(right))
        said = row(number, problem)["prompt"]
        assert [one["role"] for one in said] == ["system", "user", "assistant", "user"]
    assert write_rows(tmp_path) == len(made)
    assert list(read_rows(tmp_path / "sums.jsonl")) == list(read_rows(tmp_path / "sums.parquet"))
    lines = (tmp_path / "words.jsonl").read_text().splitlines()
    words = [json.loads(line)["prompt"][-1]["content"] for line in lines]
    assert len(words) == len(set(words)) > 100


def test_its_run_files_can_be_read() -> None:
    lengths = load_run_file(Path("examples/smollm_lengths.toml"))
    assert lengths.length_budget.targets[-1] < lengths.rollout.max_output_tokens
    rollout = load_run_file(Path("examples/smollm.toml")).rollout
    assert rollout.max_output_tokens < 16 and rollout.prompts_per_step % rollout.prompts_per_file == 0
