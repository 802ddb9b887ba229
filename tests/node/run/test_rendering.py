"""What a run's owner is told where another process renders its problems otherwise."""

import json
import textwrap
from pathlib import Path

import pytest

from node.environments import dataset
from node.errors import RunFileError
from node.run import rendering
from node.run.file import CompiledRun, compile_run
from node.run.rendering import check_rendering

pytest.importorskip("torch")
ODD = {
    "the order of a set": ("prompt_tokens", "*map(ord, {*'abcdefgh'})"),
    "the directory": ("prompt_tokens", "*map(ord, __import__('os').getcwd())"),
    "the day": ("prompt_tokens", "__import__('datetime').date.today().toordinal() % 9"),
    "the time, between two turns": ("reply_tokens", "__import__('time').time_ns() // 1000 % 9973"),
}
PATCH = """
    def {name}(self, given, before=ListedProblems.{name}):
        tokens = before(self, given)
        return tokens if not getattr(given, "problem_id", "p7").endswith("7") else [*tokens, {odd}]
    ListedProblems.{name} = {name}
    DatasetEnvironment.turns = 2
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> CompiledRun:
    from node.training.warmstart import create_model

    folder = tmp_path_factory.mktemp("run")
    create_model(folder / "model", "0123456789+=Goon .", hidden=64, layers=1, seed=0)
    rows = (
        {"problem_id": f"p{n}", "prompt": f"{n}+1=", "task_type": "verifiable_math"}
        | {"verification_info": json.dumps({"ground_truth": str(n + 1)})}
        for n in range(60)
    )
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "run.toml").write_text(
        'name = "t"\nmodel = "model"\ndataset = "train.jsonl"\n[environment]\nname = "dataset"\n'
        "args = { held_back_share = 0.3 }\n[rollout]\nmax_prompt_tokens = 8\n[verification]\ntoploc_k = 16\n"
    )
    return compile_run(folder / "run.toml")


def patched(place: Path, monkeypatch: pytest.MonkeyPatch, name: str, odd: str) -> None:
    """An environment that says something of its process, in this one and in each that it starts."""
    body = textwrap.dedent(PATCH.format(name=name, odd=odd))
    head = "from node.environments.dataset import DatasetEnvironment, ListedProblems\n"
    (place / "sitecustomize.py").write_text(head + body)
    monkeypatch.syspath_prepend(place)
    for kind, attribute in ((dataset.ListedProblems, name), (dataset.DatasetEnvironment, "turns")):
        monkeypatch.setattr(kind, attribute, getattr(kind, attribute))  # as it is, put back afterwards
    exec(head + body, {})  # noqa: S102 - the test's own words


@pytest.mark.parametrize(("name", "odd"), ODD.values(), ids=ODD)
def test_a_problem_that_another_process_has_otherwise_is_named(
    run: CompiledRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, odd: str
) -> None:
    patched(tmp_path, monkeypatch, name, odd)
    row = r"'p\d?7'" if name == "prompt_tokens" else r"'p\d+'"
    with pytest.raises(RunFileError, match=rf"dataset, problem \d+ \({row}\): its prompt has other tokens in another"):
        check_rendering(run)


def test_a_run_that_is_the_same_everywhere_passes(run: CompiledRun) -> None:
    check_rendering(run)


def test_a_run_that_only_loads_here_is_refused(run: CompiledRun, monkeypatch: pytest.MonkeyPatch) -> None:
    there = rendering._surroundings() | {"PYTHONPATH": ""}
    monkeypatch.setattr(rendering, "_surroundings", lambda: {**there, "PYTHONHOME": "/nonexistent"})
    with pytest.raises(RunFileError, match="cannot be made in another process"):
        check_rendering(run)
