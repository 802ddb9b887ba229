"""The GPU benchmark runs, in its tiny form on the CPU, and says what it is there for."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")


def test_the_tiny_form_measures_what_the_large_one_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.trainer_gpu import main

    main(["--tiny", "--json", str(tmp_path / "figures.json")])
    figures = json.loads((tmp_path / "figures.json").read_bytes())
    last = figures["steps"][-1]
    assert last["tokens_per_second"] > 0 and last["peak_memory_bytes"] > 0 and last["fed_tokens"] >= 1024
    parts = {"pack", "forward_backward", "optimizer", "publish", "checkpoint, until training goes on"}
    assert parts <= set(last["seconds"])
    assert "bf16" in capsys.readouterr().out
