"""Which files a run's data set is, by what its file says of it."""

from pathlib import Path

import pytest

from node.errors import RunFileError
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
