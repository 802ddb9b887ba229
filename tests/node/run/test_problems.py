import json
from pathlib import Path

import pytest

from node.run.file import compile_run
from node.run.problems import check_run
from node.run.settings import MAX_RUN_FILE
from node.run.survey import survey
from protocol.errors import IntellectError

ROWS = [
    {
        "problem_id": f"p{i}",
        "prompt": f"{i}+1=",
        "task_type": "verifiable_math",
        "verification_info": json.dumps({"ground_truth": str(i + 1)}),
    }
    for i in range(40)
]


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    from node.training.warmstart import create_model

    create_model(tmp_path / "model", "0123456789+=", hidden=64, layers=1, seed=0)
    write_rows(tmp_path, ROWS)
    path = tmp_path / "run.toml"
    path.write_text(
        'name = "t"\nmodel = "model"\ndataset = "train.jsonl"\n'
        '[environment]\nname = "dataset"\nargs = { held_back_share = 0.3 }\n'
        "[rollout]\nmax_prompt_tokens = 8\n[verification]\ntoploc_k = 16\n"
    )
    return path


def write_rows(folder: Path, rows: list[dict]) -> None:
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def complaint(run_file: Path) -> str:
    with pytest.raises(IntellectError) as caught:
        check_run(compile_run(run_file))
    assert caught.value.remedy
    return f"{caught.value.what} {caught.value.why}"


def test_a_run_that_members_can_work_with_passes(run_file: Path) -> None:
    check_run(compile_run(run_file))


def test_a_malformed_row_is_named_by_file_and_line(run_file: Path) -> None:
    write_rows(run_file.parent, [*ROWS[:20], {**ROWS[20], "prompt": 7}, *ROWS[21:]])
    assert f"{run_file.parent / 'train.jsonl'}, line 21" in complaint(run_file)


def test_a_prompt_that_does_not_fit_is_named(run_file: Path) -> None:
    write_rows(run_file.parent, [*ROWS, {**ROWS[0], "problem_id": "long", "prompt": "1" * 9}])
    text = complaint(run_file)
    assert "'long'" in text and "9 tokens" in text


def test_weights_that_are_no_safetensors_are_named(run_file: Path) -> None:
    (run_file.parent / "model" / "model.safetensors").write_bytes(b"torn")
    assert "model.safetensors" in complaint(run_file)


def test_a_tokenizer_that_cannot_be_read_is_named(run_file: Path) -> None:
    (run_file.parent / "model" / "tokenizer.json").write_text("{")
    assert "tokenizer.json" in complaint(run_file)


def test_proofs_wider_than_the_model_are_refused(run_file: Path) -> None:
    run_file.write_text(run_file.read_text().replace("toploc_k = 16", "toploc_k = 17"))
    assert "verification.toploc_k = 17" in complaint(run_file)


def test_a_run_says_how_many_rows_of_which_form_it_took_and_skipped_and_is_known_by_that(run_file: Path) -> None:
    gsm8k = [{"question": f"{i}+{i}", "answer": f"so\n#### {2 * i}"} for i in range(20)]
    write_rows(run_file.parent, [*ROWS, *gsm8k, {"question": "1", "answer": "a long story of a king"}])
    run_file.write_text(run_file.read_text().replace("held_back_share", 'on_bad_row = "skip", held_back_share'))
    compiled = compile_run(run_file)
    assert compiled.spec.environment.args["bad_rows"] == 1
    (part,) = check_run(compiled).parts
    assert part.shapes == {"INTELLECT-2, verifiable_math": 40, "GSM8K": 20} and sum(part.skipped.values()) == 1
    write_rows(run_file.parent, [*ROWS, *gsm8k])
    assert compile_run(run_file).root != compiled.root


def test_a_survey_refuses_what_cannot_be_read_though_nothing_in_it_is_wrong(run_file: Path) -> None:
    run_file.write_text(run_file.read_text() + "#" * MAX_RUN_FILE)
    assert ["too long" in one.remedy + one.what for one in survey(run_file).findings.first] == [True]


def test_a_survey_tells_a_wrong_number_alone_where_functions_and_teacher_are_there(run_file: Path) -> None:
    (run_file.parent / "mine.py").write_text("def clipped(): ...\n")
    text = run_file.read_text().replace("[rollout]", "[rollout]\ngroup_size = 1")
    sections = '[recipe]\nloss = "mine.py:{}"\n[distill]\nteacher = "{}"\n'
    run_file.write_text(text + sections.format("clipped", "model"))
    assert ["group_size" in one.what for one in survey(run_file).findings.first] == [True]
    run_file.write_text(text + sections.format("gone", "nowhere"))
    told = [one.what for one in survey(run_file).findings.first]
    assert len(told) == 3 and "'gone'" in told[0] and "nowhere" in told[1] and "group_size" in told[2]


def test_a_survey_finds_mistakes_of_all_kinds_at_once(run_file: Path) -> None:
    bad = [{**row, "verification_info": "{"} for row in ROWS[:25]]
    write_rows(run_file.parent, [*ROWS[25:], *bad])
    (run_file.parent / "model" / "model.safetensors").write_bytes(b"torn")
    text = (
        run_file.read_text()
        .replace("[rollout]", "[rollout]\ngroup_size = 1\nprompts_per_stepp = 4")
        .replace("toploc_k = 16", "")
    )
    run_file.write_text(text + '[[evaluation.environments]]\nname = "sortt"\n[recipe]\nsteps = "many"\n')
    found = survey(run_file)
    assert found.compiled is None and found.facts is None
    told = " ".join(f"{one.what} {one.remedy}" for one in found.findings.first)
    for words in (
        "did you mean",
        "prompts_per_stepp",
        "group_size",
        "'sortt'",
        "recipe",
        "int",
        "safetensors",
        "neither JSON",
    ):
        assert words in told
    assert found.findings.total == 25 + 5 and sum(found.findings.rest().values()) == 10
    write_rows(run_file.parent, ROWS)
