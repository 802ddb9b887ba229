"""Packages in a run: named by path or root, kept here, and the same bytes for every member."""

import shutil
from pathlib import Path

import pytest

from node.blobs.store import BlobStore
from node.environments import programs
from node.environments.errors import PackageError
from node.environments.package.archive import pack, unpack
from node.environments.package.templates import template
from node.errors import RunFileError
from node.run import packages
from node.run.file import compile_run, describe_file, load_run_file
from node.run.packages import by_root, known, named, put_into_store

RUN = """
name = "mine"
model = "model"
{rest}
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(programs, "find_runtime", lambda: interpreter(tmp_path))
    return tmp_path / "home"


def interpreter(folder: Path) -> Path:
    (folder / "python.wasm").write_bytes(b"an interpreter")
    return folder / "python.wasm"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (model / name).write_text("{}")
    (tmp_path / "mine.py").write_text(template("single", "mine"))
    return tmp_path


async def test_a_node_that_holds_a_package_loses_nothing_for_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The node's service has another environment than the terminal of whoever publishes.
    monkeypatch.setenv("INTELLECT_NODE_STORE_QUOTA", "15500")
    package, state = named("mine.py", folder), tmp_path / "node"
    policy = await BlobStore(state / "blobs", 1 << 20).add(bytes(15_000))
    await put_into_store(package, state)
    store = BlobStore(state / "blobs", 1 << 20)
    assert store.has(policy.root) and store.has(bytes.fromhex(package.root))


def run_file(folder: Path, rest: str) -> Path:
    path = folder / "run.toml"
    path.write_text(RUN.format(rest=rest))
    return path


def test_a_path_and_its_root_make_the_same_run(folder: Path) -> None:
    by_path = compile_run(run_file(folder, '[environment]\npackage = "mine.py"\nargs = { held_back_share = 0.2 }'))
    assert by_path.spec.environment.name == "mine"
    asset = next(one for one in by_path.spec.assets if one.path == "environments/mine.tar")
    archive = by_path.files["environments/mine.tar"].read_bytes()
    assert unpack(archive) == {"environment.py": (folder / "mine.py").read_bytes()}
    assert "python.wasm" in by_path.files and asset.root == describe_file(by_path.files[asset.path]).root.hex()
    (folder / "mine.py").unlink()
    text = f'[environment]\npackage = "{asset.root}"\nargs = {{ held_back_share = 0.2 }}'
    assert compile_run(run_file(folder, text)).root == by_path.root


def test_packages_are_mixed_and_evaluated_on_like_others(folder: Path) -> None:
    (folder / "other.py").write_text(template("code", "other"))
    rest = '[[environments]]\npackage = "mine.py"\n[[environments]]\nname = "sort"\nweight = 2\n'
    rest += '[[evaluation.environments]]\npackage = "other.py"\nlabel = "programs"\n'
    spec = compile_run(run_file(folder, rest)).spec
    assert [(part.name, part.title) for part in spec.environment.parts] == [("mine", "mine"), ("sort", "sort")]
    assert [(one.name, one.title) for one in spec.evaluation.environments] == [("other", "programs")]
    assert {"environments/mine.tar", "environments/other.tar"} <= {asset.path for asset in spec.assets}


def test_runs_of_built_in_environments_bring_no_interpreter(folder: Path) -> None:
    assert "python.wasm" not in compile_run(run_file(folder, '[environment]\nname = "sort"')).files


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ('[environment]\npackage = "mine.py"\nname = "sort"', "a name or a package"),
        ("[environment]\nargs = {}", "a name or a package"),
        ('[environment]\npackage = "mine.py"\nargs = { templat = "chat" }', "did you mean 'template'"),
        ('[environment]\nname = "mine"', "there is no environment 'mine'"),
        ('[environment]\npackge = "mine.py"', "did you mean [environment] 'package'"),
        ('[[environments]]\npackage = "mine.py"\n[[environments]]\npackage = "same.py"', "two packages"),
    ],
)
def test_a_wrong_table_is_told_with_its_remedy(folder: Path, rest: str, says: str) -> None:
    (folder / "same.py").write_text(template("code", "mine"))
    with pytest.raises(RunFileError) as caught:
        compile_run(run_file(folder, rest), load_run_file(folder / "run.toml"))
    assert says in f"{caught.value.why} {caught.value.remedy} {caught.value.what}"


def test_a_package_that_is_not_here_is_told_how_to_get(folder: Path) -> None:
    for text in ("0" * 64, "none.py"):
        with pytest.raises(PackageError) as caught:
            named(text, folder)
        assert caught.value.remedy


def test_a_root_is_found_among_the_blobs_of_a_node_here_and_checked(folder: Path, home: Path) -> None:
    one = named("mine.py", folder)
    complete = home / "nodes" / "local" / "a" / "blobs" / "complete"
    complete.mkdir(parents=True)
    (complete / one.root).write_bytes(one.path.read_bytes())
    shutil.rmtree(packages.directory())
    assert by_root(one.root) == one and [*known()] == [one]
    damaged = pack({"environment.py": template("single", "mined").encode()})
    one.path.write_bytes(damaged)
    (complete / one.root).write_bytes(damaged)
    assert [*known()] == []
    with pytest.raises(PackageError):
        by_root(one.root)
