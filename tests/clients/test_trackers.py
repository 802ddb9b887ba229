"""wandb, trackio and TensorBoard themselves, without a network; each is skipped where it is not installed."""

import importlib
import json
from pathlib import Path

import pytest

from node.metrics.observer import open_observer
from tests.node.metrics.test_observer import RUN

ANSWER = {"problem": "p", "prompt": "1+1=", "answer": "the answer is two", "reward": 1.0, "length": 2, "target": None}


def observe(directory: Path, name: str) -> None:
    answers = directory / "answers.json"
    answers.write_text(json.dumps([{**ANSWER, "finished": True}]))
    for steps in ((0, 1), (2,)):  # the second time it goes on where it was
        observer = open_observer(RUN, directory, name, lambda step: answers)
        for step in steps:
            observer.observe({"step": step, "eval_reward": 0.25 + step, "seconds": {"wait": 0.5}}, {}, {})
        observer.close()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["wandb", "trackio", "tensorboard"])
def test_steps_and_answers_are_on_its_disk(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    try:
        importlib.import_module(name)
    except ImportError:
        pytest.skip(f"{name} is not installed: pip install {name}")
    observe(tmp_path, name)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"eval_reward" in written and b"seconds/wait" in written
    assert name == "tensorboard" or b"the answer is two" in written.replace(b"answers.json", b"")
