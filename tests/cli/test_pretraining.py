"""`train`, `run` and `report` of runs that pre-train: from the run file to a model, killed in between."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cli.main import main
from cli.run import notes_of
from node.run.problems import check_run

pytest.importorskip("torch")

from node.training.pretrainer import Pretrainer
from node.training.settings import TrainerSettings
from node.training.warmstart import SORT_ALPHABET, create_model
from node.training.world import World
from tests.node.training.forks import ForkedPopen
from tests.node.training.texts import compiled, records, spool_of, write_texts

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 4


def train(*flags: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "cli", "train", *flags]
    return ForkedPopen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_killed_training_goes_on_exactly_and_leaves_a_model(tmp_path: Path, capfd) -> None:
    run_file, desk = write_texts(tmp_path, steps=ROUNDS), tmp_path / "desk"
    killed = train("--run", str(run_file), "--peers", "2", "--dir", str(desk), "--json")
    assert killed.stdout is not None
    first = [json.loads(killed.stdout.readline()) for _ in range(2)]
    assert [record["step"] for record in first] == [0, 1] and first[1]["bits_per_parameter"] < 5
    children = psutil.Process(killed.pid).children(recursive=True)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not psutil.wait_procs(children, timeout=20)[1]

    assert main(["train", "--dir", str(desk), "--resume", "--peers", "3"]) == 2
    assert "--peers (there are 2)" in capfd.readouterr().err
    resumed = train("--dir", str(desk), "--resume", "--no-report", "--json")
    out, err = resumed.communicate(timeout=150)
    assert resumed.returncode == 0, err
    summary = json.loads(out.splitlines()[-1])["summary"]
    assert (summary["kind"], summary["peers"], summary["steps"]) == ("pretrain", 2, ROUNDS)
    assert summary["loss_last"] < summary["loss_first"] and summary["tokens"] == ROUNDS * 2 * 4 * 64
    assert "async_level" not in summary and "reward_last" not in summary
    assert (desk / "model" / "model.safetensors").stat().st_size > 0

    run = compiled(tmp_path, steps=ROUNDS)
    through = spool_of(run, tmp_path / "through")
    Pretrainer(through, run.spec, TrainerSettings(), World()).train()
    assert records(through)[-1]["outer_root"] == summary["outer_root"]

    assert main(["train", "--dir", str(desk), "--resume", "--steps", "8"]) == 2  # the rate has begun to fall
    assert "decay_from" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (["--peers", "5"], 2, "max_contributions = 4"),
        (["--async-level", "2"], 2, "rollouts"),
        (["--recipe", "dppo"], 2, "rollouts"),
        (["--trainer", "nodes=2", "--trainer", "rendezvous=127.0.0.1:1"], 2, "a peer trains on one machine only"),
    ],
)
def test_flags_that_do_not_fit_say_so(flags: list[str], code: int, words: str, tmp_path: Path, capfd) -> None:
    run_file = write_texts(tmp_path)
    assert main(["train", "--run", str(run_file), "--dir", str(tmp_path / "desk"), *flags]) == code
    assert words in capfd.readouterr().err


def test_a_new_run_file_can_be_run_as_it_is_and_says_what_it_sends(tmp_path: Path, capfd) -> None:
    write_texts(tmp_path)
    new = tmp_path / "new.toml"
    (tmp_path / "long.txt").write_text("one line of text\n" * 8000)
    assert main(["run", "new", str(new), "--kind", "pretrain", "--dataset", "long.txt"]) == 0
    capfd.readouterr()
    assert main(["run", "validate", str(new), "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["diloco"]["exchange"] == "int4" and said["facts"]["parts"][0]["tokens"] == 8000 * 17 + 1
    assert "objective" not in said and any("positions" in warning for warning in said["warnings"])
    assert main(["run", "size", str(new), "--json"]) == 0
    sent = {one["exchange"]: one for one in json.loads(capfd.readouterr().out)["exchange"]}
    assert sent["int4"]["chosen"] and round(sent["sparse"]["bits_per_parameter"], 2) == 0.23
    assert main(["run", "show", str(new), "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)["settings"]
    assert "diloco.inner_steps" in shown and "rollout.group_size" not in shown and "recipe.lora" not in shown
    assert main(["run", "new", str(new), "--kind", "pretrain", "--package", "x.py", "--force"]) == 2


def test_what_several_trainers_cannot_do_yet_is_said_before_anything_is_made(tmp_path: Path, capfd) -> None:
    text = (ROOT / "examples/trainers.toml").read_text()
    create_model(tmp_path / "trainers" / "model", SORT_ALPHABET, seed=1, hidden=128, layers=1)
    run_file = tmp_path / "run.toml"
    run_file.write_text(text)
    assert main(["run", "validate", str(run_file)]) == 0
    said = " ".join("".join(capfd.readouterr()).split())
    assert "of 2 inner steps of each trainer" in said and "no swarm" not in said
    assert main(["run", "size", str(run_file), "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)["exchange"]) == 4
    assert main(["train", "--peers", "25", "--dir", str(tmp_path / "desk"), "--run", str(run_file)]) != 0
    assert "max_contributions = 2" in " ".join(capfd.readouterr().err.split())
    run_file.write_text(text.split("[diloco]")[0] + "[recipe]" + text.split("[recipe]")[1])
    assert main(["train", "--run", str(run_file), "--peers", "2", "--dir", str(tmp_path / "desk")]) == 2
    assert "runs with [diloco]" in capfd.readouterr().err
    run_file.write_text(text.replace("[recipe]", "[audit]\njudges = true\n[recipe]"))
    assert main(["run", "validate", str(run_file)]) != 0
    assert "audit.judges" in capfd.readouterr().err


def test_notes_about_a_run_are_those_of_its_kind(tmp_path: Path) -> None:
    """The demo said of each run that pre-trains, in its swarm, that no swarm takes it."""
    run = compiled(tmp_path, rounds='exchange = "int4"\ninner_state = "reset"', steps=ROUNDS)
    notes = notes_of(run, check_run(run))
    assert not any("no swarm" in note for note in notes), notes
