import tomllib
from pathlib import Path

import msgspec
import pytest

from node.errors import RunFileError
from node.inference.errors import ModelError
from node.inference.model_files import read_json
from node.run.file import compile_run, describe_file, load_run_file
from node.run.problems import check_run
from protocol.blobs import describe
from protocol.run import decode_run

SECTIONS = """
[rollout]
group_size = 4
[recipe]
steps = 9
[evaluation]
problems = 3
[verification]
quorum = 2
[length_budget]
alpha = 0.5
[filters]
online = true
[budget]
hours = 1.5
[alarms]
window = 3
[audit]
window = 5
[weights]
snapshot_every = 8
"""


@pytest.fixture
def run_file(tmp_path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors", "README.md"):
        (model / name).write_text(name)
    (tmp_path / "train.jsonl").write_text("{}\n")
    path = tmp_path / "run.toml"
    path.write_text('name = "t"\nmodel = "model"\ndataset = "train.jsonl"\n[environment]\nname = "dataset"\n')
    return path


def test_a_run_file_becomes_a_run_that_names_its_files_by_hash(run_file: Path) -> None:
    compiled = compile_run(run_file)
    assert [asset.path for asset in compiled.spec.assets] == [
        "data/train.jsonl",
        "model/config.json",
        "model/model.safetensors",
        "model/tokenizer.json",
    ]
    assert compiled.spec.environment.args["path"] == "data/train.jsonl"
    assert decode_run(compiled.encoded) == compiled.spec
    assert compiled.root == describe(compiled.encoded).root
    assert compile_run(run_file).root == compiled.root


def test_every_section_of_a_file_is_in_its_run_and_the_runs_root_stays(run_file: Path) -> None:
    """Golden: pools on chain name their runs by this root."""
    run_file.write_text(run_file.read_text() + SECTIONS)
    compiled = compile_run(run_file)
    plain, written = msgspec.to_builtins(compiled.spec), tomllib.loads(SECTIONS)
    assert {name: {key: plain[name][key] for key in table} for name, table in written.items()} == written
    assert compiled.root.hex() == "63e128b9f6cf9dd98ec88c98b0c8a8262e85a184c9432bec641d3d72c392f6c9"


def test_any_change_of_model_or_data_is_another_run(run_file: Path) -> None:
    before = compile_run(run_file).root
    (run_file.parent / "train.jsonl").write_text("{} \n")
    assert compile_run(run_file).root != before


def test_a_file_has_the_blob_root_of_its_bytes(tmp_path) -> None:
    data = b"x" * 700_000
    (tmp_path / "f").write_bytes(data)
    assert describe_file(tmp_path / "f") == describe(data)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('model = "model"', 'model = "nowhere"', "no model directory"),
        ('dataset = "train.jsonl"', 'dataset = "gone.jsonl"', "no data set"),
        ('name = "t"', 'nmae = "t"', "did you mean 'name'"),
        ('name = "t"', 'name = ""', "1 to 128"),
        ('name = "t"', "name = [", "TOML"),
        ('name = "t"', "name = " + "[" * 5000, "recursion"),
        ('name = "t"', "name = 3", "Expected `str`"),
    ],
)
def test_a_broken_run_file_says_what_to_do(run_file: Path, old: str, new: str, message: str) -> None:
    run_file.write_text(run_file.read_text().replace(old, new))
    with pytest.raises(RunFileError) as caught:
        compile_run(run_file)
    assert message in f"{caught.value.what} {caught.value.why} {caught.value.remedy}"


def test_an_unknown_recipe_key_names_the_nearest_right_one(run_file: Path) -> None:
    run_file.write_text(run_file.read_text() + "[recipe]\nlearning_rte = 1e-4\n")
    with pytest.raises(RunFileError) as caught:
        load_run_file(run_file)
    assert "'learning_rate'" in caught.value.remedy


def test_an_incomplete_model_directory_names_what_is_missing(run_file: Path) -> None:
    (run_file.parent / "model" / "tokenizer.json").unlink()
    with pytest.raises(RunFileError, match=r"tokenizer\.json"):
        compile_run(run_file)


def test_brackets_without_end_in_a_models_file_are_a_clear_error(run_file: Path) -> None:
    """Whoever joins reads what a run's owner wrote."""
    (run_file.parent / "model" / "config.json").write_bytes(b'{"x": ' + b"[" * 100_000)
    with pytest.raises(RunFileError, match=r"config\.json"):
        check_run(compile_run(run_file))
    with pytest.raises(ModelError):
        read_json(run_file.parent / "model" / "config.json")


def test_a_missing_run_file_is_a_clear_error(tmp_path) -> None:
    with pytest.raises(RunFileError, match="cannot read"):
        compile_run(tmp_path / "absent.toml")


@pytest.mark.parametrize(("hidden", "said", "points"), [(64, "", 16), (5120, "", 128), (64, "toploc_k = 8", 8)])
def test_proofs_have_as_many_points_as_a_row_is_good_for(tmp_path: Path, hidden: int, said: str, points: int) -> None:
    """The proof of an answer of two tokens must not reach down to values that rounding alone decides."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(f'{{"hidden_size": {hidden}}}')
    run_file = tmp_path / "run.toml"
    run_file.write_text(f'name = "x"\nmodel = "model"\n[environment]\nname = "sort"\n[verification]\n{said}\n')
    assert load_run_file(run_file).verification.toploc_k == points


def test_what_tools_look_through_and_run_with_are_files_of_the_run(run_file: Path) -> None:
    from node.sandbox import RuntimeMissing, find_runtime

    (run_file.parent / "facts.jsonl").write_text('{"text": "a"}\n')
    tools = '"tools"\nargs = {{ tools = "{}", corpus = "facts.jsonl" }}\n'
    plain = run_file.read_text()
    run_file.write_text(plain.replace('"dataset"', tools.format("search")))
    spec = compile_run(run_file).spec
    assert spec.environment.args["corpus"] == "data/facts.jsonl" in [asset.path for asset in spec.assets]
    assert "python.wasm" not in [asset.path for asset in spec.assets]
    try:
        find_runtime()
    except RuntimeMissing:
        return
    run_file.write_text(plain.replace('"dataset"', tools.format("search python")))
    assert "python.wasm" in [asset.path for asset in compile_run(run_file).spec.assets]
