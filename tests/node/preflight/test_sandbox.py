"""What doctor says of the sandbox."""

from pathlib import Path

import pytest

from node.preflight.machine import check_sandbox
from node.sandbox import RuntimeMissing, find_runtime, runtime
from node.sandbox.confined import walls


def test_a_user_without_the_interpreter_is_told_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INTELLECT_NODE_CACHE", str(tmp_path))
    finding = check_sandbox()
    assert (finding.level, finding.remedy) == ("warning", "intellect-node sandbox install")


def test_a_kernel_without_a_wall_and_an_interpreter_that_is_not_compiled_are_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    try:
        find_runtime()
    except RuntimeMissing as missing:
        pytest.skip(f"{missing}; {missing.remedy}")
    monkeypatch.setattr(runtime, "is_compiled", lambda: False)
    assert "not compiled" in check_sandbox().what
    monkeypatch.setattr(runtime, "is_compiled", lambda: True)
    monkeypatch.setattr(walls, "missing", lambda: "the kernel has no Landlock")
    assert "Landlock" in check_sandbox().what
    monkeypatch.setattr(walls, "missing", lambda: None)
    assert check_sandbox().level == "ok"
