"""A run file's own functions: found beside it or installed, recorded by their source, refused by swarms."""

from pathlib import Path

import msgspec
import pytest

from cli.run_template import with_real_paths
from node.errors import RunFileError
from node.run.file import CompiledRun, compile_run, load_run_file
from protocol.run import RunError, decode_run

SOURCE = "def loss(tokens, objective): ...\nfrom math import dist as advantage\nscore = max\n"
RUN = """
name = "own"
model = "model"
[environment]
name = "sort"
reward = "{reward}"
[recipe]
loss = "{loss}"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / "model" / name).write_text(name)
    (tmp_path / "lib").mkdir()
    for place in ("mine.py", "lib/mine.py"):
        (tmp_path / place).write_text(SOURCE)
    return tmp_path


def compiled(folder: Path, loss: str = "mine:loss", reward: str = "", *, desk: bool = True) -> CompiledRun:
    (folder / "run.toml").write_text(RUN.format(loss=loss, reward=reward))
    return compile_run(folder / "run.toml", desk=desk)


@pytest.mark.parametrize("written", ["mine:loss", "mine.py:loss"])
def test_a_function_beside_the_run_file_is_named_by_module_and_its_source_is_an_asset(
    folder: Path, written: str
) -> None:
    run = compiled(folder, written, reward="mine:score")
    assert run.spec.recipe.loss == "mine:loss" and run.spec.environment.reward == "mine:score"
    assert run.files["code/mine.py"] == folder / "mine.py"
    assert "code/mine.py" in [asset.path for asset in run.spec.assets]
    assert decode_run(run.encoded, desk=True) == run.spec


def test_another_line_of_source_is_another_run(folder: Path) -> None:
    before = compiled(folder).root
    (folder / "mine.py").write_text(SOURCE + "# changed\n")
    assert compiled(folder).root != before


@pytest.mark.parametrize("written", ["lib/mine.py:loss", "lib.mine:loss", "mine:advantage"])
def test_a_run_file_that_is_moved_still_means_the_same_functions(folder: Path, written: str, tmp_path: Path) -> None:
    """What `train --resume` reads is a copy in another directory."""
    run = compiled(folder, written)
    moved = with_real_paths(load_run_file(folder / "run.toml"), folder)
    assert compile_run(tmp_path / "elsewhere" / "run.toml", moved, desk=True).encoded == run.encoded


def test_an_installed_module_is_found_by_its_name(folder: Path) -> None:
    run = compiled(folder, "node.training.advantages:group_advantages")
    assert run.spec.recipe.loss == "node.training.advantages:group_advantages"
    assert run.files["code/node/training/advantages.py"].name == "advantages.py"


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("gone:loss", "no module 'gone'"),
        ("gone.py:loss", "cannot read"),
        ("mine:lost", "did you mean 'loss'"),
        ("mine:", "does not name a function"),
        (":loss", "no module ''"),
        ("mine:loss:x", "no module 'mine:loss'"),
        ("../../etc/passwd:root", "no module"),
        ("json.decoder.x.y:z", "no module"),
        ("mine.loss", "must be one of"),
    ],
)
def test_a_function_that_is_not_there_is_named(folder: Path, written: str, message: str) -> None:
    with pytest.raises(RunFileError) as caught:
        compiled(folder, written)
    assert message in f"{caught.value.what} {caught.value.why} {caught.value.remedy}"


@pytest.mark.parametrize("source", ["def loss(:", "x = " + "-" * 100_000 + "1", "x = " + "(" * 100_000], ids=len)
def test_a_source_that_is_no_python_is_named(folder: Path, source: str) -> None:
    (folder / "mine.py").write_text(source)
    with pytest.raises(RunFileError, match="is no Python"):
        compiled(folder)


def test_two_modules_of_one_name_are_refused(folder: Path) -> None:
    with pytest.raises(RunFileError, match="two modules are called mine"):
        compiled(folder, "mine:loss", reward="lib/mine.py:score")


@pytest.mark.parametrize(("loss", "reward"), [("mine:loss", ""), ("dppo", "mine:score")])
def test_a_swarm_takes_no_run_that_brings_code(folder: Path, loss: str, reward: str) -> None:
    """Neither from its owner's run file (`contract pool create`) nor from a pool's bytes (`join`)."""
    with pytest.raises(RunFileError, match="desk only") as caught:
        compiled(folder, loss, reward, desk=False)
    assert "environment package" in caught.value.remedy
    with pytest.raises(RunError, match="desk only"):
        decode_run(compiled(folder, loss, reward).encoded)


def test_an_edited_source_does_not_go_on_with_the_run_that_was_begun(folder: Path, tmp_path: Path) -> None:
    from node.training.errors import TrainingError
    from node.training.length import same_but_for_length
    from node.training.spool import Spool

    spool = Spool(tmp_path / "spool")
    spool.prepare(compiled(folder).encoded, tmp_path, same_but_for_length)
    longer = msgspec.structs.replace(load_run_file(folder / "run.toml"))
    spool.prepare(compile_run(folder / "run.toml", longer, desk=True).encoded, tmp_path, same_but_for_length)
    (folder / "mine.py").write_text(SOURCE + "# changed\n")
    with pytest.raises(TrainingError, match="another run"):
        spool.prepare(compiled(folder).encoded, tmp_path, same_but_for_length)
