import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from setuptools import Distribution

from contracts import build, javascript, mutants
from contracts.bindings import ARTIFACTS
from contracts.build import (
    CONTRACTS,
    HERE,
    SIZE_LIMIT,
    BuildError,
    artifacts_of,
    differing,
    standard_input,
)
from contracts.wheel import BuildPy


def test_the_sources_compile_to_the_checked_in_artifacts_from_the_input_for_explorers_alone() -> None:
    """What `compile_sources` compiles, too; here it comes from JSON, to a place without any other source."""
    given = json.loads(json.dumps(standard_input()))
    assert given["language"] == "Solidity" and "src/Payroll.sol" in given["sources"]
    assert all(text.keys() == {"content"} for text in given["sources"].values())
    assert any(name.startswith("@openzeppelin/") for name in given["sources"])
    assert differing(artifacts_of(given)) == []
    # the control: what is missing is found nowhere else
    given["sources"] = {"src/Missing.sol": {"content": 'import "./Counters.sol";'}}
    with pytest.raises(BuildError, match=r"Counters\.sol"):
        artifacts_of(given)


def test_a_wheel_takes_the_sources_along_and_needs_no_npm_to_tell_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = standard_input()
    monkeypatch.chdir(HERE.parent)
    command = BuildPy(Distribution({"packages": ["contracts"], "script_name": "setup.py"}))
    command.build_lib = str(tmp_path)
    command.ensure_finalized()
    command.run()
    monkeypatch.setattr(build, "HERE", tmp_path / "nothing is here")
    monkeypatch.setattr(build, "find_installed", lambda *_: pytest.fail("npm was called"))
    monkeypatch.setattr(build, "SOURCES", tmp_path / "contracts" / "artifacts" / "sources.json")
    assert standard_input() == given


def test_a_program_appears_whole_and_is_installed_once_however_many_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that is seen while npm still writes it dies of "Text file busy": so whoever asks then must wait."""
    target, asked = tmp_path / "cache" / "node_modules" / "tool", []

    def npm(folder: Path) -> None:
        asked.append(others.submit(javascript.find_installed, HERE, tmp_path / "cache", "tool"))
        (folder / "node_modules").mkdir()
        with (folder / "node_modules" / "tool").open("w") as file:
            file.write("half")
            file.flush()
            assert not target.exists()
            file.write(" and half")

    monkeypatch.setattr(javascript, "_run_npm", npm)
    torn = tmp_path / "cache" / ".installing" / "node_modules"
    torn.mkdir(parents=True)  # of one that was killed
    with ThreadPoolExecutor() as others:
        assert javascript.find_installed(HERE, tmp_path / "cache", "tool") == target
        assert [each.result() for each in asked] == [target]
    assert target.read_text() == "half and half"
    monkeypatch.setattr(javascript, "_run_npm", lambda folder: (folder / "node_modules").mkdir())
    with pytest.raises(javascript.JavaScriptError, match="another"):
        javascript.find_installed(HERE, tmp_path / "cache", "another")


def test_every_contract_fits_into_the_size_limit() -> None:
    for name in CONTRACTS:
        code = json.loads((ARTIFACTS / f"{name}.json").read_bytes())["deployedBytecode"]
        assert 0 < len(code) // 2 - 1 < SIZE_LIMIT


def test_the_lock_files_pin_contents_and_name_no_host() -> None:
    folders = (HERE, HERE / "forge", HERE.parent / "node" / "chain" / "anvil")
    for path in (folder / "package-lock.json" for folder in folders):
        packages = json.loads(path.read_text())["packages"]
        assert all("resolved" not in entry for entry in packages.values())
        assert all(name == "" or "integrity" in entry for name, entry in packages.items())


def test_each_row_of_who_can_take_what_names_a_solidity_test_that_is_there() -> None:
    page = (HERE.parent / "docs" / "economics.md").read_text()
    rows = re.findall(r"^\| .* \| `(\w+)` \|$", page.split("## Who can take what")[1].split("\n## ")[0], re.MULTILINE)
    tests = "".join(path.read_text() for path in (HERE / "test").rglob("*.sol"))
    assert len(rows) == 15 and [name for name in rows if f"function {name}(" not in tests] == []


def test_every_explanation_is_of_one_mutant_and_every_change_by_hand_changes_something() -> None:
    everyone = mutants.everyone()
    names = [mutant.name for mutant in everyone]
    assert len(set(names)) == len(names)
    assert mutants.EXPLAINED.keys() <= set(names)
    for file, text, other in mutants.BY_HAND:
        assert any(one.file == file and one.new == one.old.replace(text, other) != one.old for one in everyone), text
