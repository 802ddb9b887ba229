"""Where the program runs, and by which name it refuses elsewhere."""

import subprocess
import sys
from pathlib import Path

import pytest

from node.config import NodeConfig
from node.hardware import Hardware
from node.platforms import lacking, refusal
from node.preflight import guest
from node.preflight.finding import PreflightFailed


@pytest.mark.parametrize("platform", ["linux", "linux2", "darwin"])
def test_it_runs_on_linux_and_macos(platform: str) -> None:
    assert refusal(platform) is None


@pytest.mark.parametrize("platform", ["win32", "cygwin", "freebsd14", "sunos5", "emscripten"])
def test_other_systems_are_refused_by_name_with_what_to_do(platform: str) -> None:
    what, why, remedy = refusal(platform) or ("", "", "")
    assert platform in what and "fork" in why and ("WSL2" in remedy) == (platform in ("win32", "cygwin"))


def test_a_program_that_is_started_there_says_so_in_three_lines_and_imports_nothing_else() -> None:
    pretended = "import sys; sys.platform = 'win32'; sys.modules['typer'] = None; import cli.main"
    done = subprocess.run([sys.executable, "-c", pretended], capture_output=True, text=True)
    assert done.returncode == 3 and len(done.stderr.splitlines()) == 3
    assert "does not run on win32" in done.stderr and "WSL2" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(("role", "refused"), [("worker", False), ("validator", True), ("trainer", True)])
def test_on_macos_a_node_is_a_worker(role: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bool(lacking(role, "darwin")) is refused and lacking(role, "linux") == ""
    monkeypatch.setattr(guest.sys, "platform", "darwin")
    own = (NodeConfig(home=tmp_path), role, Hardware(8, 1 << 35, ()))
    if not refused:
        return guest.refuse_guest(*own)
    with pytest.raises(PreflightFailed, match="platform"):
        guest.refuse_guest(*own)
