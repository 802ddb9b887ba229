"""Each how-to of CONTRIBUTING.md is followed in a copy of the tree: the skeleton is made and runs, the copy goes."""

import os
import re
import runpy
import shutil
import sys
import warnings
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook

from tests.node.training.forks import end_of, fork

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python (file=\S+|check)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
PLACE = re.compile(r'(after|before|replace|with)="((?:[^"\\]|\\.)*)"')
TREES = ("protocol", "contracts", "node", "cli", "tests")


def apply(tree: Path, name: str, where: dict[str, str], body: str) -> None:
    """Write a new file, or put lines behind or before the first line that holds some text, or replace that text."""
    file = tree / name
    if not where:
        assert not file.exists(), f"{name} is there already"
        file.write_text(body, encoding="utf-8")
        return
    text = file.read_text(encoding="utf-8")
    mark = next(where[key] for key in ("after", "before", "replace") if key in where)
    assert mark in text, f"{name} has no {mark!r} any more: CONTRIBUTING.md is wrong"
    if "replace" in where:
        file.write_text(text.replace(mark, where["with"], 1), encoding="utf-8")
        return
    lines = text.splitlines(keepends=True)
    at = (
        next(i for i, line in enumerate(lines) if line.lstrip().startswith(mark.lstrip()))
        if "before" in where
        else next(i for i, line in enumerate(lines) if mark in line)
    )
    while "before" in where and lines[at - 1].startswith("@"):  # a decorator belongs to what stands below it
        at -= 1
    lines.insert(at + ("after" in where), body)
    file.write_text("".join(lines), encoding="utf-8")


def test_every_how_to_can_be_followed(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("node_modules", "cache", "out", "test", "src", ".tools")
    for name in TREES:
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            ignore=ignored if name == "contracts" else None,
        )
    checks = []
    for kind, place, body in BLOCK.findall(TEXT):
        if kind == "check":
            checks.append(body)
        else:
            where = {key: value.replace('\\"', '"') for key, value in PLACE.findall(place)}
            apply(tmp_path, kind.removeprefix("file="), where, body)
    assert len(checks) == len(re.findall(r"^```python check", TEXT, re.MULTILINE)) == 6
    program = tmp_path / "checks.py"
    program.write_text("\n".join(checks), encoding="utf-8")
    errors = tmp_path / "errors"
    assert end_of(fork(follow, tmp_path, program, errors)) == 0, errors.read_text()[-3000:]


def follow(tree: Path, program: Path, errors: Path) -> None:
    """In a fork, which has the libraries: our own modules are those of the tree, whatever was imported before."""
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    os.environ["INTELLECT_NODE_HOME"] = str(tree)
    os.chdir(tree)
    warnings.simplefilter("default")  # in a program they are no errors
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, AssertionRewritingHook)]
    sys.path.insert(0, str(tree))
    for name in [name for name in sys.modules if name.partition(".")[0] in TREES]:
        del sys.modules[name]
    names = runpy.run_path(str(program), run_name="__main__")
    assert Path(names["tests"].__file__).is_relative_to(tree)


def test_a_how_to_that_names_what_is_gone_fails(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("TABLE = {\n}\n")
    with pytest.raises(AssertionError, match="CONTRIBUTING.md is wrong"):
        apply(tmp_path, "module.py", {"after": "ROWS = {"}, "    1,\n")
    apply(tmp_path, "module.py", {"after": "TABLE = {"}, "    1,\n")
    assert (tmp_path / "module.py").read_text() == "TABLE = {\n    1,\n}\n"
