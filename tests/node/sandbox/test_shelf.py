"""The shelf: a package is what its hash says, on every machine, or it is not there."""

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from node.sandbox import (
    CallStatus,
    RuntimeMissing,
    SandboxError,
    SandboxLimits,
    open_confined,
    open_wasi,
    runtime,
    shelf,
)
from node.sandbox.process import ProcessSandbox
from node.sandbox.shelf import Package

MODULES = {
    "small/__init__.py": "from small.one import VALUE\nimport needed\n",
    "small/one.py": "VALUE = needed_later = 7\n",
    "small/tests/test_one.py": "assert False\n",
    "small-1.0.dist-info/LICENSE.txt": "free",
    "small-1.0.dist-info/RECORD": "",
}


@cache
def _wheel() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as file:
        for name, text in MODULES.items():
            file.writestr(name, text)
    return made.getvalue()


@pytest.fixture
def package(tmp_path: Path, interpreter: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """A package whose wheel the index has, in a cache of its own. Its archive's hash is not known yet."""
    (tmp_path / runtime.NAME).symlink_to(interpreter)
    monkeypatch.setattr(shelf, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(shelf, "private_directory", lambda: tmp_path)

    def download(requirement: str, folder: Path) -> None:
        (folder / "small-1.0-py3-none-any.whl").write_bytes(_wheel())

    monkeypatch.setattr(shelf, "download", download)
    made = Package("small", "1.0", hashlib.sha256(_wheel()).hexdigest(), "", (), (("needed.py", "X = 1\n"),))
    monkeypatch.setitem(shelf.PACKAGES, "small", made)
    return made


def _known(package: Package, interpreter: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """The same with its hash, as somebody found it who made it before."""
    with pytest.raises(RuntimeMissing, match="is another one") as refused:
        shelf.install(package, _opener(interpreter))
    known = replace(package, archive=_found(refused.value, interpreter, package))
    monkeypatch.setitem(shelf.PACKAGES, "small", known)
    return known


def _found(refused: RuntimeMissing, interpreter: Path, package: Package) -> str:
    source = Path(shelf.guest.__file__ or "").with_name("compiler.py").read_bytes()
    with open_wasi({"compiler.py": source}, "compiler", SandboxLimits(), interpreter) as sandbox:
        found = hashlib.sha256(shelf._archive(package, _wheel(), sandbox)).hexdigest()
    assert found[:16] in refused.why
    return found


def _opener(interpreter: Path):
    def opened(files: Mapping[str, bytes], entry: str, limits: SandboxLimits) -> ProcessSandbox:
        return open_wasi(files, entry, limits, interpreter)

    return opened


def test_a_package_is_compiled_to_one_hash_and_imported_from_it(
    package: Package, tmp_path: Path, interpreter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = _known(package, interpreter, monkeypatch)
    path = shelf.install(known, _opener(interpreter))
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == [
            "needed.pyc", "small-1.0.dist-info/LICENSE.txt", "small/__init__.pyc", "small/one.pyc",
        ]  # fmt: skip
    source = b"def f():\n    import small\n    return small.VALUE"
    limits = SandboxLimits(packages=("small",))
    with open_wasi({"e.py": source}, "e", limits, tmp_path / runtime.NAME) as sandbox:
        assert sandbox.call("f").value == 7
    with open_wasi({"e.py": source}, "e", SandboxLimits(), tmp_path / runtime.NAME) as sandbox:
        assert sandbox.call("f").status is CallStatus.RAISED  # the control: not asked for, not there
    path.write_bytes(path.read_bytes().replace(b"free", b"evil"))
    with pytest.raises(RuntimeMissing, match="is another one"):
        open_wasi({"e.py": source}, "e", limits, tmp_path / runtime.NAME)


def test_another_wheel_is_refused_before_anything_of_it_is_read(package: Package, interpreter: Path) -> None:
    with pytest.raises(RuntimeMissing, match="could not be fetched"):
        shelf.install(replace(package, wheel="0" * 64), _opener(interpreter))


def test_what_is_not_on_the_shelf_is_told_with_what_is(interpreter: Path) -> None:
    with pytest.raises(SandboxError, match="numpy") as refused:
        open_wasi({"e.py": b""}, "e", SandboxLimits(packages=("numpy",)), interpreter)
    assert "sympy" in refused.value.remedy
    with pytest.raises(SandboxError, match="cannot confine"):
        open_confined({"e.py": b""}, "e", SandboxLimits(packages=("mpmath",)))


def test_a_package_brings_what_it_needs() -> None:
    assert [one.name for one in shelf.wanted(["sympy"])] == ["mpmath", "sympy"]
    assert all(len(one.wheel) == len(one.archive) == 64 for one in shelf.PACKAGES.values())
    assert runtime.download is shelf.download
