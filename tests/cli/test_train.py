"""`intellect-node train` with its real learner and engine, killed in between; and what it refuses."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cli.main import main

ROOT = Path(__file__).resolve().parents[2]
STEPS = 4
RUN = f"""
name = "desk"
model = "model"
[[environments]]
name = "sort"
args = {{ digits = 2, held_back = 20 }}
[[environments]]
name = "reverse"
weight = 2
args = {{ digits = 2, held_back = 20 }}
[rollout]
group_size = 4
prompts_per_step = 4
prompts_per_file = 2
max_output_tokens = 4
[recipe]
steps = {STEPS}
learning_rate = 1e-3
[evaluation]
problems = 8
[verification]
toploc_k = 16
"""


@pytest.fixture(scope="module")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch")
    from node.training.warmstart import SORT_ALPHABET, create_model

    folder = tmp_path_factory.mktemp("desk")
    create_model(folder / "model", SORT_ALPHABET, seed=3, hidden=64, layers=1)
    (folder / "run.toml").write_text(RUN)
    return folder / "run.toml"


def train(*flags: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "cli", "train", *flags]
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for_step(process: subprocess.Popen[str], metrics: Path, step: int) -> None:
    limit = time.monotonic() + 100
    while time.monotonic() < limit:
        if metrics.exists() and metrics.read_bytes().count(b"\n") > step:
            return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    raise AssertionError(f"step {step} was not reached")


@pytest.mark.timeout(240)
def test_a_training_that_is_killed_and_interrupted_ends_with_curves_and_a_model(run_file: Path, tmp_path: Path) -> None:
    desk = tmp_path / "desk"
    killed = train("--run", str(run_file), "--dir", str(desk), "--async-level", "1", "--recipe", "dppo")
    wait_for_step(killed, desk / "metrics.jsonl", 1)
    children = psutil.Process(killed.pid).children(recursive=True)
    killed.kill()
    killed.communicate()
    assert not psutil.wait_procs(children, timeout=20)[1]

    resumed = train("--dir", str(desk), "--resume", "--json")
    out, err = resumed.communicate(timeout=150)
    assert resumed.returncode == 0, err
    summary = json.loads(out.splitlines()[-1])["summary"]
    assert (summary["steps"], summary["recipe"], summary["async_level"]) == (STEPS, "dppo", 1)
    assert all("step" in json.loads(line) for line in out.splitlines()[:-1])
    records = [json.loads(line) for line in (desk / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(STEPS + 1))
    assert set(records[-1]["reward_by_environment"]) <= {"sort", "reverse"}
    page = (desk / "report" / "report.html").read_text()
    assert "data:image/png;base64" in page and "http" not in page
    assert (desk / "report" / "curve-reward.png").read_bytes().startswith(b"\x89PNG")
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (desk / "model" / name).stat().st_size > 0
    assert not (desk / ".lock").exists()

    assert main(["train", "--run", str(run_file), "--dir", str(desk)]) == 3  # it would delete a finished run


@pytest.mark.timeout(120)
def test_ctrl_c_leaves_nothing_running(run_file: Path, tmp_path: Path) -> None:
    process = train("--run", str(run_file), "--dir", str(tmp_path / "desk"))
    wait_for_step(process, tmp_path / "desk" / "metrics.jsonl", 0)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "--resume" in err, err
    assert not psutil.wait_procs(children, timeout=20)[1]


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        ([], 2, "no run file was named"),
        (["--run", "x.toml", "--resume", "--fresh"], 2, "contradict"),
        (["--dir", "x", "--resume", "--steps", "3"], 2, "cannot change --steps"),
        (["--run", "absent.toml"], 6, "cannot read the run file"),
        (["--dir", "nowhere", "--resume"], 3, "no run to go on with"),
    ],
)
def test_flags_that_make_no_sense_say_so(
    flags: list[str], code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    assert main(["train", *flags]) == code
    assert words in capfd.readouterr().err


def test_another_preset_brings_its_own_loss(run_file: Path) -> None:
    from cli.train import with_overrides
    from node.runfile import load_run_file

    run = load_run_file(run_file)
    changed = with_overrides(run, steps=9, seed=5, async_level=4, recipe="cispo").recipe
    assert (changed.name, changed.steps, changed.seed, changed.max_staleness) == ("cispo", 9, 5, 4)
    assert changed.objective().loss == "cispo" and changed.clip_high is None
    assert with_overrides(run, steps=None, seed=None, async_level=None, recipe=None) == run


def test_settings_of_the_machine_come_from_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from cli.errors import CommandError
    from cli.train import trainer_settings
    from node.training.errors import TrainingError

    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path))
    settings = trainer_settings(["micro_batch_tokens=512", "dtype=bfloat16", "packing=false"])
    assert (settings.micro_batch_tokens, settings.dtype, settings.packing) == (512, "bfloat16", False)
    with pytest.raises(CommandError, match="NAME=VALUE"):
        trainer_settings(["packing"])
    with pytest.raises(TrainingError, match="wrold_size"):
        trainer_settings(["wrold_size=2"])


def test_a_directory_with_other_files_is_left_alone(run_file: Path, tmp_path: Path, capfd) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    assert main(["train", "--run", str(run_file), "--dir", str(tmp_path), "--fresh"]) == 3
    assert "thesis.tex" in capfd.readouterr().err and (tmp_path / "thesis.tex").exists()
