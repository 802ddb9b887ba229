import json
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from node.errors import ConfigError
from node.metrics.journal import StepJournal, read_records
from node.metrics.observer import Observer, flat_numbers, merged, open_observer, open_sinks
from node.metrics.prometheus import render
from protocol.run import EnvironmentSpec, RunSpec
from protocol.sections import Alarms

RUN = RunSpec(name="t", environment=EnvironmentSpec(name="sort"), alarms=Alarms(window=1, mismatch=0.1))


def test_a_record_joins_learner_batch_and_times() -> None:
    learner = {
        "step": 3,
        "loss": math.nan,
        "reward_mean": 0.9,
        "tokens": 100.0,
        "seconds": {"step": 0.5, "wait": 1},
        "performance": {"mfu": 0.4},
    }
    record = merged(learner, {"reward_mean": 0.5, "staleness": {"1": 8}}, {"generate": 2.0})
    assert (record["reward_mean"], record["trained_reward_mean"]) == (0.5, 0.9)  # the filter must not flatter
    assert record["loss"] is None and record["mfu"] == 0.4 and record["tokens_per_second"] == 200.0
    assert record["seconds"] == {"step": 0.5, "wait": 1, "generate": 2.0}
    json.dumps(record, allow_nan=False)


def test_every_step_is_on_record_once_and_alarms_survive_a_restart(tmp_path: Path) -> None:
    first = Observer(RUN, tmp_path)
    first.observe({"step": 0, "mismatch_kl": 0.0}, {}, {})
    fresh = first.observe({"step": 1, "mismatch_kl": 0.5}, {}, {})
    assert [alarm.name for alarm in fresh] == ["mismatch"]
    with first.path.open("a") as file:
        file.write('{"step": 2, "mism')  # killed in the middle of a line

    second = Observer(RUN, tmp_path)
    assert second.newest == 1 and second.latest["step"] == 1
    assert [alarm.name for alarm in second.alarms] == ["mismatch"]
    assert second.observe({"step": 1, "mismatch_kl": 0.0}, {}, {}) == []
    second.observe({"step": 2, "mismatch_kl": 0.6}, {}, {})
    records = list(read_records(second.path))
    assert [record["step"] for record in records] == [0, 1, 2]
    assert [bool(record.get("alarms")) for record in records] == [False, True, False]


def test_a_journal_of_nothing_is_empty(tmp_path: Path) -> None:
    assert list(read_records(tmp_path / "absent")) == []
    path = tmp_path / "sub" / "metrics.jsonl"
    assert StepJournal(path).newest == -1
    path.write_bytes(b"\xff\xfe not json\n")
    assert StepJournal(path).append({"step": 0}) and list(read_records(path)) == [{"step": 0}]


def test_numbers_inside_tables_get_a_path() -> None:
    record = {"step": 1, "seconds": {"wait": 0.5}, "name": "x", "done": True}
    assert dict(flat_numbers(record)) == {"step": 1.0, "seconds/wait": 0.5}


@pytest.mark.parametrize("name", ["wandb", "trackio", "tensorboard"])
def test_a_package_that_is_missing_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match="not installed") as caught:
        open_observer(RUN, tmp_path, name)
    assert f"pip install {name}" in caught.value.remedy


def test_an_unknown_place_for_metrics_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'wandbb' is no place"):
        open_observer(RUN, tmp_path, "wandbb")


def test_wandb_hears_every_step_and_a_resumed_run_keeps_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, started = [], []
    run = SimpleNamespace(log=lambda values, step: heard.append((step, values)), finish=lambda: heard.append("end"))
    fake = ModuleType("wandb")
    fake.init = lambda **settings: started.append(settings) or run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for _ in range(2):
        observer = open_observer(RUN, tmp_path, "wandb")
        observer.observe({"step": observer.newest + 1, "loss": 0.5}, {}, {})
        observer.close()
    assert [one["id"] for one in started] == [started[0]["id"]] * 2 and started[0]["resume"] == "allow"
    assert [one[0] for one in heard if one != "end"] == [0, 1] and heard[0][1]["loss"] == 0.5
    assert started[0]["config"]["recipe/steps"] == 150.0


def test_the_answers_of_each_evaluation_are_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[int, dict[str, object]]] = []
    run = SimpleNamespace(log=lambda values, step: heard.append((step, values)), finish=lambda: None)
    for name in ("wandb", "trackio"):
        fake = ModuleType(name)
        fake.init = lambda *_, **__: run  # type: ignore[attr-defined]
        fake.Table = lambda columns, data: [dict(zip(columns, row, strict=True)) for row in data]  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, fake)
    told = {"problem": "p", "prompt": "1+1=", "answer": "2", "reward": 1.0, "length": 2, "target": None}
    (tmp_path / "answers-2.json").write_text(json.dumps([told]))
    (tmp_path / "answers-3.json").write_text("[{]")
    observer = open_observer(RUN, tmp_path, "wandb,trackio", lambda step: tmp_path / f"answers-{step}.json")
    for step in range(4):
        observer.observe({"step": step}, {}, {})
    tables = [(step, values["answers"]) for step, values in heard if "answers" in values]
    assert tables == [(2, [{**told, "finished": None}])] * 2
    # A file that cannot be read stops those that would show it, and not the training.
    assert observer.newest == 3 and [step for step, _ in heard] == [0, 0, 1, 1, 2, 2]


def test_tensorboard_hears_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = []
    writer = SimpleNamespace(
        add_scalar=lambda name, value, step: heard.append((name, value, step)),
        add_text=lambda *_: None,
        flush=lambda: None,
        close=lambda: heard.append("end"),
    )
    package, module = ModuleType("tensorboard"), ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = lambda log_dir: writer  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorboard", package)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    (sink,) = open_sinks("tensorboard, tensorboard", tmp_path, "t", {})
    sink.write({"step": 4, "seconds": {"wait": 2.0}})
    sink.close()
    assert ("seconds/wait", 2.0, 4) in heard and heard[-1] == "end"


def test_a_place_that_fails_does_not_stop_the_training(tmp_path: Path) -> None:
    class Broken:
        calls = 0

        def write(self, record: object) -> None:
            self.calls += 1
            raise RuntimeError("no network")

        def close(self) -> None:
            """Never reached: it was left out."""

    broken = Broken()
    observer = Observer(RUN, tmp_path, [broken])
    for step in range(3):
        observer.observe({"step": step}, {}, {})
    assert broken.calls == 1 and observer.newest == 2


def test_prometheus_gets_status_step_tables_and_alarms() -> None:
    latest = {
        "step": 7,
        "loss": -0.25,
        "entropy": None,
        "staleness": {"0": 8, "1": 24},
        "reward_by_environment": {'a"b': 0.5},
        "seconds": {"wait": 0.25},
    }
    training = {"step": 7, "done": False, "latest": latest, "alarms": [{"name": "mismatch"}]}
    lines = render({"training": training, "work": {"units": 5}, "verdicts": None}).splitlines()
    for line in (
        "intellect_training_step 7.0",
        "intellect_work_units_total 5.0",
        "intellect_step_loss -0.25",
        'intellect_step_staleness{age="1"} 24.0',
        'intellect_step_reward_by_environment{environment="a\\"b"} 0.5',
        'intellect_step_seconds{part="wait"} 0.25',
        'intellect_alarm{name="mismatch"} 1.0',
        'intellect_alarm{name="entropy_rise"} 0.0',
    ):
        assert line in lines
    assert not any(line.startswith("intellect_step_entropy") for line in lines)


def test_restarts_of_child_processes_are_a_metric() -> None:
    text = render({"processes": [{"name": "learner", "pid": 1, "restarts": 2}, {"name": "engine", "pid": None}]})
    assert 'intellect_process_restarts_total{name="learner"} 2.0' in text
    assert 'intellect_process_restarts_total{name="engine"} 0.0' in text
