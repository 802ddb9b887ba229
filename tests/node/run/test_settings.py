"""A run file's tables: words of the command line in them, and other programs' configurations."""

from pathlib import Path
from typing import Any

import pytest

from node.errors import RunFileError
from node.run.file import load_run_file
from node.run.settings import read_tables, with_words

RUN = 'name = "r"\nmodel = "m"\n[[environments]]\nname = "sort"\n[recipe]\nsteps = 3\n'


@pytest.mark.parametrize(
    ("word", "path", "value"),
    [
        ("recipe.learning_rate=1e-5", ("recipe", "learning_rate"), 1e-5),
        ("recipe.steps = 20", ("recipe", "steps"), 20),
        ("name=two words", ("name",), "two words"),
        ("environments[0].weight=2", ("environments", 0, "weight"), 2),
        ("environments[0].args.digits=3", ("environments", 0, "args", "digits"), 3),
        ("recipe.lora.rank=16", ("recipe", "lora", "rank"), 16),
        ("evaluation={ every = 5 }", ("evaluation", "every"), 5),
        ("environments[0].args.instruction=a = b", ("environments", 0, "args", "instruction"), "a = b"),
    ],
)
def test_a_word_stands_where_it_would_stand_in_the_file(
    word: str, path: tuple[Any, ...], value: Any, tmp_path: Path
) -> None:
    (tmp_path / "r.toml").write_text(RUN)
    found: Any = read_tables(tmp_path / "r.toml", [word])
    for key in path:
        found = found[key]
    assert found == value


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("steps", "not NAME=VALUE"),
        ("recipe.stepz=4", "did you mean [recipe] 'steps'?"),
        ("recipe.steps=many", "Expected `int`, got `str` - at `$.recipe.steps`"),
        ("name.deeper=1", "which is no table"),
        ("environments[3].weight=1", "there is no number 3 in the list"),
        ("nothing[0].x=1", "there is no list nothing"),
    ],
)
def test_a_words_mistake_is_told_as_the_files_own(word: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RUN)
    with pytest.raises(RunFileError) as error:
        load_run_file(tmp_path / "r.toml", [word])
    assert why in f"{error.value.what} {error.value.why} {error.value.remedy}"


def test_words_come_in_any_order() -> None:
    recipe = {"name": "dppo", "clip_high": 0.3}
    assert with_words({"recipe": dict(recipe)}, ["recipe.clip_high=0.1", "recipe.name=cispo"])["recipe"] == {
        "name": "cispo",
        "clip_high": 0.1,
    }
    assert with_words({"recipe": dict(recipe)}, ["recipe.name=dppo"])["recipe"] == recipe


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        (
            "trl.yaml",
            "model_name_or_path: a/b\ndataset_name: c/d\nlearning_rate: 1.0e-6 # low\nnum_generations: 8\n",
            "TRL|intellect-node train a/b c/d --set recipe.learning_rate=1e-06 --set rollout.group_size=8",
        ),
        (
            "prime.toml",
            "max_steps = 50\n[model]\nname = 'a/b'\n[orchestrator]\nrollouts_per_example = 4\n"
            "[trainer.optim]\nlr = 3e-6\n",
            "prime-rl|intellect-node train a/b DATASET --set recipe.learning_rate=3e-06 --set recipe.steps=50 "
            "--set rollout.group_size=4",
        ),
        (
            "verl.yaml",
            "data:\n  train_files: x.parquet\n  max_prompt_length: 512\nactor_rollout_ref:\n  model:\n    path: a/b\n",
            "verl|intellect-node train a/b x.parquet --set rollout.max_prompt_tokens=512",
        ),
    ],
)
def test_another_programs_configuration_is_told_what_to_type(name: str, text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(RunFileError) as error:
        load_run_file(tmp_path / name)
    program, remedy = told.split("|")
    assert error.value.what.endswith(f"is a configuration of {program}") and error.value.remedy == remedy


def test_a_run_file_with_a_mistake_is_no_other_programs(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text(RUN + "max_steps = 4\n")
    with pytest.raises(RunFileError, match="unusable run file"):
        load_run_file(tmp_path / "r.toml")
    (tmp_path / "r.yaml").write_text("name: r\nsteps: 4\n")
    with pytest.raises(RunFileError, match="cannot read the run file"):
        load_run_file(tmp_path / "r.yaml")
