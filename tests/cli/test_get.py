"""A model and rows by their names on the hub, from `get` to the run that `validate` accepts."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.main import main
from tests.hub import Hub, opened, ours

pytest.importorskip("torch")
SUMS = [{"question": f"{a}+{b}=", "answer": f"{a} and {b}\n#### {a + b}"} for a in range(12) for b in range(12)]
GROUPED = json.dumps({"inputs": ["1\n"], "outputs": ["1\n"]})
FORMS: dict[str, list[dict[str, Any]]] = {
    "GSM8K": SUMS,
    "MATH": [{"problem": f"{n}+1=", "solution": f"It is \\boxed{{{n + 1}}}."} for n in range(144)],
    "AIME": [{"problem": f"{n}+1=", "answer": str(n + 1)} for n in range(144)],
    "verifiers": [{"question": f"{n}+1=", "answer": str(n + 1)} for n in range(144)],
    "verl": [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": f"{n}+1="}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(n + 1)},
        }
        for n in range(144)
    ],
    "INTELLECT-2": [
        {
            "problem_id": f"p{n}",
            "prompt": f"{n}+1=",
            "task_type": "verifiable_math",
            "verification_info": json.dumps({"ground_truth": str(n + 1)}),
        }
        for n in range(144)
    ],
    "some bad": [*SUMS, {"question": "a proof", "answer": "prose that nobody can compare with anything"}],
    "one long": [*SUMS, {"question": "1+" * 400 + "1=", "answer": "#### 401"}],
}


def parquet(rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from node.training.warmstart import create_model

    folder = tmp_path_factory.mktemp("tiny")
    create_model(folder, "0123456789+=Whatpoiseu\n ?#and", seed=1, hidden=64, layers=1)
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}="
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": template}))
    return folder


@pytest.fixture
def site(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.chdir(tmp_path)
    with opened() as made:
        ours(made, tmp_path, monkeypatch)
        made.add("me/tiny", {path.name: path.read_bytes() for path in weights.iterdir()}, card={"license": "mit"})
        parts = {"main/train-0.parquet": parquet(SUMS[:70]), "main/train-1.parquet": parquet(SUMS[70:])}
        made.add("me/sums", {**parts, "main/test-0.parquet": parquet(SUMS[:30])}, "datasets")
        yield made


def test_from_two_names_to_a_run_that_validate_accepts(site: Hub, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "new", "r.toml", "--model", "me/tiny", "--dataset", "me/sums"]) == 0
    text = Path("r.toml").read_text()
    commit = site.repositories["models/me/tiny"].refs["main"]
    assert f'model = "hf:me/tiny@{commit}"' in text and "#default/train" in text
    assert not any(
        path.endswith(".safetensors") and "GET" == method for method, path, h in site.asked if "range" not in h
    )
    capfd.readouterr()
    assert main(["run", "validate", "r.toml"]) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "of weights of me/tiny are not here" in said and "no root yet" in said and "144 taken: GSM8K" in said
    # Where money is near nothing is fetched: the remedy is `get`.
    assert main(["contract", "pool", "create", "--run", "r.toml", "--network", "local"]) != 0
    assert main(["get", "r.toml"]) == 0
    assert "licence   mit" in capfd.readouterr().out
    assert main(["run", "validate", "r.toml", "--sample", "2", "--json"]) == 0
    told = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert len(told["run_root"]) == 64 and told["sample"]["answers"] == 2 and told["sample"]["follows"]


def test_get_writes_commits_into_a_run_file_and_leaves_its_comments(
    site: Hub, capfd: pytest.CaptureFixture[str]
) -> None:
    lines = ['name = "r"', 'model = "me/tiny" # mine', 'dataset = "me/sums#test"', "[environment]", 'name = "dataset"']
    Path("r.toml").write_text("\n".join(lines) + "\n")
    assert main(["get", "r.toml", "--write", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)["sources"]
    assert [one["compared"] for one in told] == [5, 1] and all(len(one["commit"]) == 40 for one in told)
    text = Path("r.toml").read_text()
    assert f'model = "hf:me/tiny@{told[0]["commit"]}" # mine' in text and "#default/test" in text


def test_a_pool_takes_no_name_without_its_commit(site: Hub) -> None:
    from node.errors import RunFileError
    from node.run.file import compile_run
    from node.run.survey import survey
    from protocol.run import decode_run

    text = 'name = "r"\nmodel = "MODEL"\ndataset = "DATA"\n[environment]\nname = "dataset"\n'
    Path("r.toml").write_text(text.replace("MODEL", "me/tiny").replace("DATA", "me/sums"))
    with pytest.raises(RunFileError, match="names no commit"):
        compile_run(Path("r.toml"))
    commit = site.repositories["models/me/tiny"].refs["main"]
    Path("r.toml").write_text(Path("r.toml").read_text().replace("me/tiny", f"hf:me/tiny@{commit}"))
    (told,) = survey(Path("r.toml")).findings.first  # as `contract pool plan` looks
    assert told.remedy == f"intellect-node get 'hf:me/tiny@{commit}'" and site.asked == []
    assert main(["get", "r.toml", "--write"]) == 0
    site.asked.clear()
    compiled = compile_run(Path("r.toml"))
    assert site.asked == [] and decode_run(compiled.encoded) == compiled.spec
    commit = site.repositories["datasets/me/sums"].refs["main"]
    assert compiled.spec.sources["data/sums-default-train"] == f"hf:datasets/me/sums@{commit}/main"


@pytest.mark.parametrize("form", FORMS)
def test_what_run_new_writes_validate_accepts(form: str, weights: Path, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in FORMS[form]))
    file = tmp_path / "r.toml"
    assert main(["run", "new", str(file), "--model", str(weights), "--dataset", "d.jsonl"]) == 0
    assert main(["run", "validate", str(file)]) == 0
    text = file.read_text()
    assert ('on_bad_row = "skip"' in text) == (form == "some bad")
    assert ('long_prompts = "skip"' in text) == (form == "one long")
    assert ("instruction" in text) == (form not in ("INTELLECT-2", "MATH", "AIME"))


def test_rows_with_columns_of_their_own_are_named_on_the_way(weights: Path, tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"Q": f"{n}+1=", "A": n + 1}) + "\n" for n in range(144)))
    words = ["run", "new", str(tmp_path / "r.toml"), "--model", str(weights), "--dataset", "d.jsonl"]
    assert main(words) != 0 and "--set environment.args.prompt_column=NAME" in " ".join(capfd.readouterr().err.split())
    named = ["--set", "environment.args.prompt_column=q", "--set", "environment.args.answer_column=a"]
    assert main([*words, *named]) == 0 and main(["run", "validate", str(tmp_path / "r.toml")]) == 0


def test_a_model_and_rows_are_a_training(site: Hub) -> None:
    from cli.train import name_of, written
    from node.run.sources import names_in

    run = written("me/tiny", "me/sums", "sums", ["recipe.steps=7", "recipe.lora.rank=4"])
    assert (run.name, run.recipe.steps, run.recipe.lora and run.recipe.lora.rank) == ("sums", 7, 4)
    assert all(name.pinned for name in names_in(run, Path()))
    assert [name_of(text) for text in ("my/sums.jsonl", "a/gsm8k#main/train", "hf:a/b@c", "dir/*", "x/d/")] == [
        "sums", "gsm8k", "b", "dir", "d",
    ]  # fmt: skip


@pytest.mark.parametrize("words", [["nothing.here"], ["a", "b", "c"], ["a.toml", "--run", "b.toml"]])
def test_what_is_meant_is_asked_before_anything_is_made(words: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words]) == 2 and not list(tmp_path.iterdir())
