"""All benchmarks one after the other: what becomes of one that can measure nothing on this machine."""

import subprocess
from types import SimpleNamespace

import pytest

from benchmarks import quick
from benchmarks.command import SKIPPED


@pytest.mark.parametrize("name", ["nat", "long_links"])
def test_a_benchmark_that_can_measure_nothing_here_is_skipped_with_its_reason(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = SimpleNamespace(returncode=SKIPPED, stdout="skipped: network namespaces need root\n", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    assert quick._run(name, 1.0)
    assert "skipped: network namespaces need root" in capsys.readouterr().out
