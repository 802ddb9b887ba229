"""Which files a run's data set is, by what its file says of it."""

from pathlib import Path

import pytest

from node.errors import RunFileError
from node.run.file import compile_run
from node.run.sources import data_files


def laid_out(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}\n")


@pytest.mark.parametrize("base", ["plain", "c#", "#", "sums [old]"])
def test_signs_in_the_name_of_a_directory_name_no_split_and_no_pattern(tmp_path: Path, base: str) -> None:
    home = tmp_path / base
    laid_out(home, "sums/train.jsonl", "sums/test.jsonl")
    named = {"sums": "train", "sums#test": "test", "sums/te*.jsonl": "test", "sums/*n.jsonl": "train"}
    for text, file in named.items():
        assert data_files(text, home, "dataset") == {f"sums/{file}.jsonl": home / "sums" / f"{file}.jsonl"}
        if "[" not in base:
            assert list(data_files(f"{home}/{text}", tmp_path, "dataset")) == [f"sums/{file}.jsonl"]
    with pytest.raises(RunFileError, match="no data set"):
        data_files("none#train", home, "dataset")


def test_files_of_one_name_in_several_directories_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    laid_out(tmp_path, "rows/de/train.jsonl", "rows/en/train.jsonl")
    for pattern in ("rows/*/train.jsonl", "rows/**/*.jsonl", "ro?s/*/train.jsonl"):
        found = data_files(pattern, tmp_path, "dataset")
        assert [path.parent.name for path in found.values()] == ["de", "en"], pattern


@pytest.mark.parametrize(
    ("one", "other"), [("a b/train.jsonl", "a-b/train.jsonl"), ("a/b/train.jsonl", "a-b/train.jsonl")]
)
def test_two_files_that_would_be_one_asset_are_refused_by_name(tmp_path: Path, one: str, other: str) -> None:
    laid_out(tmp_path, f"rows/{one}", f"rows/{other}")
    with pytest.raises(RunFileError) as refused:
        data_files("rows/**/*.jsonl", tmp_path, "dataset")
    assert str(tmp_path / "rows" / one) in refused.value.what and str(tmp_path / "rows" / other) in refused.value.what
    (tmp_path / "rows" / other).rename(tmp_path / "rows" / "c.jsonl")
    assert len(data_files("rows/**/*.jsonl", tmp_path, "dataset")) == 2, "the control"


RUN = """
name = "t"
model = "model"
[[environments]]
name = "dataset"
label = "a"
dataset = "sums#train"
[[environments]]
name = "dataset"
label = "b"
dataset = "old/sums"
[[evaluation.environments]]
name = "dataset"
label = "c"
dataset = "sums#test"
[[evaluation.environments]]
name = "dataset"
label = "d"
dataset = "./sums#train"
"""


def test_each_split_and_each_directory_of_one_name_is_read_by_its_own_environment_only(tmp_path: Path) -> None:
    laid_out(tmp_path, "sums/train.jsonl", "sums/test.jsonl", "old/sums/train.jsonl")
    laid_out(tmp_path, *(f"model/{name}" for name in ("config.json", "tokenizer.json", "model.safetensors")))
    (tmp_path / "run.toml").write_text(RUN)
    compiled = compile_run(tmp_path / "run.toml")
    assert [part.args["path"] for part in compiled.spec.environment.parts] == ["data/sums", "data/sums-2"]
    assert [one.args["path"] for one in compiled.spec.evaluation.environments] == ["data/sums-3", "data/sums"]
    data = {name: str(path.relative_to(tmp_path)) for name, path in compiled.files.items() if name.startswith("data/")}
    assert data == {
        "data/sums/train.jsonl": "sums/train.jsonl",
        "data/sums-2/train.jsonl": "old/sums/train.jsonl",
        "data/sums-3/test.jsonl": "sums/test.jsonl",
    }
