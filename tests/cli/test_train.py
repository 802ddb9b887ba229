"""`intellect-node train` with its real learner and engine, interrupted in between; and what it refuses."""

import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import psutil
import pytest

from cli.main import main
from tests.node.training.forks import ForkedPopen

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
[length_budget] # an untrained model sorts nothing, and answers of other lengths get other rewards
targets = [2, 3]
alpha = 0.1
text = "{{target}}"
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
    return ForkedPopen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_step(process: subprocess.Popen[str], metrics: Path, step: int) -> None:
    limit = time.monotonic() + 100
    while time.monotonic() < limit:
        if metrics.exists() and metrics.read_bytes().count(b"\n") > step:
            return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    raise AssertionError(f"step {step} was not reached")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def scrape(process: subprocess.Popen[str], address: str) -> str:
    """/metrics, as soon as it answers."""
    while True:
        try:
            return httpx.get(f"http://{address}/metrics", timeout=5).text
        except httpx.TransportError:
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.05)


def test_ctrl_c_leaves_nothing_running_and_what_it_ended_goes_on_to_curves_and_a_model(
    run_file: Path, tmp_path: Path
) -> None:
    desk = tmp_path / "desk"
    stopped = train("--run", str(run_file), "--dir", str(desk), "--async-level", "1", "--recipe", "dppo")
    wait_for_step(stopped, desk / "metrics.jsonl", 0)
    children = psutil.Process(stopped.pid).children(recursive=True)
    stopped.send_signal(signal.SIGINT)
    _, err = stopped.communicate(timeout=60)
    assert stopped.returncode == 130 and "--resume" in err, err
    assert not psutil.wait_procs(children, timeout=20)[1]

    address = f"127.0.0.1:{free_port()}"
    longer = str(STEPS + 1)
    resumed = train("--dir", str(desk), "--resume", "--steps", longer, "--json", "--metrics-address", address)
    metrics = scrape(resumed, address)
    assert "intellect_step_eval_reward " in metrics and f"intellect_run_last_step {longer}.0" in metrics
    out, err = resumed.communicate(timeout=150)
    assert resumed.returncode == 0, err
    summary = json.loads(out.splitlines()[-1])["summary"]
    assert (summary["steps"], summary["recipe"], summary["async_level"]) == (STEPS + 1, "dppo", 1)
    assert all("step" in json.loads(line) for line in out.splitlines()[:-1])
    records = [json.loads(line) for line in (desk / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(STEPS + 2))
    assert {"wait", "load", "forward_backward", "publish", "generate", "score"} <= set(records[-1]["seconds"])
    assert set(records[-1]["reward_by_environment"]) <= {"sort", "reverse"}
    page = (desk / "report" / "report.html").read_text()
    assert "data:image/png;base64" in page and "http" not in page
    assert (desk / "report" / "curve-reward.png").read_bytes().startswith(b"\x89PNG")
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (desk / "model" / name).stat().st_size > 0
    assert not (desk / ".lock").exists()

    assert main(["train", "--run", str(run_file), "--dir", str(desk)]) == 3  # it would delete a finished run


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        ([], 2, "no run file was named"),
        (["--run", "x.toml", "--resume", "--fresh"], 2, "contradict"),
        (["--run", "absent.toml"], 6, "cannot read the run file"),
        (["--dir", "nowhere", "--resume", "--steps", "3"], 3, "no run to go on with"),
        (["--run", "x.toml", "--metrics-address", "9464"], 3, "127.0.0.1:9464"),
        (["--run", "x.toml", "--metrics-log", "wandbb"], 3, "'wandbb' is no place"),
        (["--run", "x.toml", "--trainer", "world_size=0"], 6, "must be 1 to 1024"),
    ],
)
def test_flags_that_make_no_sense_say_so(
    flags: list[str], code: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    assert main(["train", *flags]) == code
    assert words in capfd.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.fixture
def begun(run_file: Path, tmp_path: Path) -> Path:
    """A run's directory, three steps after its beginning as far as the spool says."""
    from cli.resume import RunOverrides, begin
    from cli.run_directory import RunDirectory
    from node.run.file import load_run_file

    home = RunDirectory(tmp_path / "home")
    with home.hold():
        said = load_run_file(run_file, ["recipe.seed=5", "recipe.name=dppo"])
        begin(home, said, run_file, RunOverrides(), fresh=False, begun=load_run_file(run_file))
    (home.spool / "out").mkdir(parents=True)
    for step in range(4):
        (home.spool / "out" / f"step-{step:06d}.json").write_text("{}")
    return home.directory


def test_whoever_trains_sees_the_notes_of_validate(run_file: Path, capfd) -> None:
    from cli.resume import compile_checked
    from node.run.file import load_run_file

    compile_checked(load_run_file(run_file), run_file)
    assert "only 20 held-back problems" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--seed", "6"], "cannot change recipe.seed"),
        (["--recipe", "cispo"], "cannot change recipe.name"),
        (["--set", "rollout.temperature=0.5"], "cannot change rollout.temperature"),
        (["--set", "recipe.stepz=5"], "[recipe] 'stepz' is not a setting; did you mean [recipe] 'steps'?"),
        (["--async-level", "0"], "cannot change --async-level (it is 1)"),
        (["--steps", "2"], "it has done 3 already"),
        (["--steps", "151"], "the learning rate is 0 from step 150 on"),
    ],
)
def test_a_resumed_run_keeps_its_past(begun: Path, flags: list[str], words: str, capfd) -> None:
    before = (begun / "run.toml").read_text()
    assert main(["train", "--dir", str(begun), "--resume", *flags]) == (6 if "stepz" in words else 2)
    assert words in " ".join(capfd.readouterr().err.split())
    assert (begun / "run.toml").read_text() == before


def test_a_run_file_that_was_edited_since_is_not_quietly_ignored(begun: Path, run_file: Path, capfd) -> None:
    edited = run_file.with_name("edited.toml")
    edited.write_text(RUN.replace("learning_rate = 1e-3", "learning_rate = 1e-4"))
    assert main(["train", "--run", str(edited), "--dir", str(begun), "--resume"]) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "recipe.learning_rate: 0.001, now 0.0001" in said and "--steps N" in said


def test_a_run_can_be_lengthened_and_what_it_was_begun_with_may_be_said_again(begun: Path, run_file: Path) -> None:
    from cli.resume import RunOverrides, go_on
    from cli.run_directory import RunDirectory
    from node.run.file import load_run_file
    from node.training.length import same_but_for_length

    home, named = RunDirectory(begun), load_run_file(run_file)
    first, level = go_on(home, named, run_file, RunOverrides(sets=("recipe.seed=5", "recipe.name=dppo"), async_level=1))
    longer, _ = go_on(home, named, run_file, RunOverrides(sets=("recipe.steps=20",)))
    assert (level, first.spec.recipe.steps, longer.spec.recipe.steps) == (1, STEPS, 20)
    assert same_but_for_length(first.encoded, longer.encoded) and first.encoded != longer.encoded
    again, _ = go_on(home, None, None, RunOverrides())
    assert again.encoded == longer.encoded


def test_another_preset_brings_its_own_loss(run_file: Path) -> None:
    from node.run.file import load_run_file

    file = run_file.with_name("clipped.toml")
    file.write_text(RUN.replace("[recipe]", "[recipe]\nclip_high = 0.3"))
    changed = load_run_file(file, ["recipe.clip_low=0.1", "recipe.name=cispo"]).recipe
    assert changed.objective().loss == "cispo" and (changed.clip_high, changed.clip_low) == (None, 0.1)
    assert load_run_file(file, ["recipe.steps=9"]).recipe.clip_high == 0.3


def test_settings_of_the_machine_come_from_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from cli.errors import CommandError
    from cli.run_directory import trainer_settings
    from node.training.errors import TrainingError

    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path))
    settings = trainer_settings(["micro_batch_tokens=512", "dtype=bfloat16", "packing=false"])
    assert (settings.micro_batch_tokens, settings.dtype, settings.packing) == (512, "bfloat16", False)
    with pytest.raises(CommandError, match="NAME=VALUE"):
        trainer_settings(["packing"])
    with pytest.raises(TrainingError, match="wrold_size"):
        trainer_settings(["wrold_size=2"])


@pytest.mark.parametrize(
    "words",
    [
        ["run", "size"],
        ["audit", "step", "3", "--dir", "training", "--trainer", "dtype=float32"],
        ["trainer", "rank", "--rdzv-endpoint", "127.0.0.1:4000", "--dir", "rank"],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_wrong_line_in_config_toml_is_no_bug_of_the_commands_that_read_trainer(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INTELLECT_NODE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.toml").write_text("store_quotas = 5\n")
    assert main(words) == 3
    what, why, remedy = capfd.readouterr().err.splitlines()
    assert what == "error: there is no setting store_quotas"
    assert str(tmp_path / "config.toml") in why and "did you mean store_quota?" in remedy


def test_a_directory_with_other_files_is_left_alone(run_file: Path, tmp_path: Path, capfd) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    assert main(["train", "--run", str(run_file), "--dir", str(tmp_path), "--fresh"]) == 3
    assert "thesis.tex" in capfd.readouterr().err and (tmp_path / "thesis.tex").exists()


def test_a_step_without_signal_says_so_and_shows_no_number_that_nobody_measured() -> None:
    from cli.train import numbers_of
    from node.metrics.observer import merged

    learner = {"step": 3, "reward_mean": 0.0, "tokens": 9000.0, "updates": 0, "grad_norm": None, "loss": 0.0}
    shown = numbers_of(merged(learner, {"reward_mean": 0.0}, {"step": 0.005}))
    assert shown == "reward 0.000  nothing learnt: no group carried signal"
    learnt = merged({**learner, "updates": 1, "grad_norm": 0.5}, {"reward_mean": 0.25}, {"step": 2.0})
    assert numbers_of(learnt) == "reward 0.250  grad 0.5  4,500 tok/s"
    for count, words in ((1, "1 batch"), (2, "2 batches")):
        said = numbers_of({"step": 3, "updates": 0, "barren_batches": count})
        assert said == f"nothing learnt: no group carried signal in {words}"


def test_without_a_terminal_it_says_what_it_does_where_nothing_else_was_said_in_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loading a real model and a step of it take minutes."""
    from cli import train

    now = 0.0
    monkeypatch.setattr(train.time, "monotonic", lambda: now)
    out = io.StringIO()
    run = SimpleNamespace(spec=SimpleNamespace(name="r", recipe=SimpleNamespace(steps=2)))
    with train.ProgressView(out, run) as view:  # type: ignore[arg-type]
        view.activity("loading")
        now = 20.0 - 1
        view.activity("sampling")
        now = 20.0
        view.activity("learning")
        view.step({"step": 1})
        view.activity("sampling again")
    said = [line.strip() for line in out.getvalue().splitlines()]
    assert said == ["training r: 2 steps", "loading", "learning", "step 1/2"]
