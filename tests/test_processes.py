"""The processes that share the tests lose none of them, whatever a test does to its process."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ONE = """
import os, pytest

@pytest.fixture(scope="session")
def world():
    yield 1
    raise RuntimeError("the world ends")

def test_passes(): print("not shown")
def test_fails(): print("shown"); assert 1 == 2
def test_ends_its_process(): os._exit(3)
def test_after_it(tmp_path): tmp_path.joinpath("mine").write_text("x")
@pytest.mark.skip(reason="a reason")
def test_is_skipped(): pass
def test_reads_what_all_read(made_once): made_once("it", lambda place: open("made", "a").write("once"))
def test_whose_world_ends_badly(world): pass
"""
OTHER = """
import pytest, warnings

def test_captures(capfd, tmp_path): print("x"); assert capfd.readouterr().out == "x\\n"
@pytest.mark.xfail
def test_is_expected_to_fail(): assert 0
def test_warns(): warnings.warn("beware")
def test_reads_it_too(made_once): assert made_once("it", lambda place: open("made", "a").write("twice")).is_dir()
"""


def run(directory: Path, *options: str) -> tuple[int, str]:
    """The exit status of pytest there, and what it says."""
    command = [sys.executable, "-m", "pytest", "-p", "tests.processes", "-ra", "-c", "pytest.ini", *options, "."]
    done = subprocess.run(
        command,
        cwd=directory,
        # Without the plugins that are installed here: they are most of what a start costs.
        env={"PYTHONPATH": str(ROOT), "COLUMNS": "200", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_one.py").write_text(ONE)
    (tmp_path / "test_other.py").write_text(OTHER)
    return tmp_path


def test_each_test_has_its_outcome(suite: Path) -> None:
    status, said = run(suite, "--processes", "2")
    assert status == 1
    assert "3 failed, 7 passed, 1 skipped, 1 xfailed, 1 warning in" in said
    assert (suite / "made").read_text() in ("once", "twice")
    for line in (
        "FAILED test_one.py::test_fails - assert 1 == 2",
        "FAILED test_one.py::test_ends_its_process - the process ended with status 3",
        "FAILED test_one.py::test_whose_world_ends_badly - the process ended with status 1",
        "SKIPPED [1] test_one.py:13: a reason",
        "XFAIL test_other.py::test_is_expected_to_fail",
        "RuntimeError: the world ends",
        "UserWarning: beware",
    ):
        assert line in said
    assert "not shown" not in said and "shown" in said


def test_the_first_failure_can_end_all(suite: Path) -> None:
    (suite / "test_other.py").write_text("import time\ndef test_long(): time.sleep(60)\n")
    status, said = run(suite, "--processes", "2", "-x")
    assert status == 1
    assert "stopping after 1 failures" in said


def test_a_file_begins_while_the_others_are_collected(suite: Path) -> None:
    (suite / "test_other.py").write_text("open('begun')\ndef test_passes(): pass\n")
    (suite / "test_third.py").write_text(
        "import pathlib\ndef test_begins(): pathlib.Path('begun').write_text('')\ndef test_goes_on(): pass\n"
    )
    (suite / "conftest.py").write_text(
        "import pathlib, time\ndef pytest_collectreport(report):\n"
        "    while report.nodeid == 'test_one.py' and not pathlib.Path('begun').exists(): time.sleep(0.01)\n"
    )
    status, said = run(suite, "--processes", "2", "--first", "./test_third.py")
    assert status == 1
    assert "3 failed, 7 passed, 1 skipped in" in said
    begun = suite / "begun"
    begun.unlink()
    (suite / "test_other.py").write_text("what is this?")
    status, said = run(suite, "--processes", "2", "--first", "./test_third.py")
    assert status == 2 and begun.exists()
    assert "passed" not in said and "1 error in" in said


def test_one_process_runs_as_pytest_does(suite: Path) -> None:
    (suite / "test_one.py").write_text("def test_passes(): pass\n")
    assert run(suite)[0] == 0
