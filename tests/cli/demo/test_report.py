"""What a demo leaves behind."""

import json
from pathlib import Path

import numpy as np
import pytest

from cli.demo.command import say_goodbye
from cli.demo.report import summarise, write_report
from cli.demo.snapshot import Snapshot
from protocol.policy import encode_image
from tests.cli.demo.screenshot import sample_snapshot


def image(step: int) -> bytes:
    return encode_image({"weight": np.full(4, step, np.uint16)})


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    spool = tmp_path / "spool"
    model = spool / "assets" / "model"
    model.mkdir(parents=True)
    (spool / "out").mkdir()
    (model / "config.json").write_text('{"model_type": "qwen3"}')
    (model / "tokenizer.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"the first weights")
    for step in (0, 1, 2):
        (spool / "out" / f"policy-{step:06d}.safetensors").write_bytes(image(step))
    for step in (0, 1):
        (spool / "out" / f"step-{step:06d}.json").write_text(json.dumps({"step": step, "eval_reward": 0.3}))
    return spool


def test_a_report_holds_curve_numbers_events_and_the_newest_complete_model(tmp_path: Path, spool: Path) -> None:
    report = tmp_path / "report"
    events = [{"event": "Slashed", "block": 61, "transaction": "0x5a"}]
    summary = write_report(report, sample_snapshot(), spool=spool, events=events, seed=3)
    assert (report / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (report / "reward.svg").read_text()
    metrics = [json.loads(line) for line in (report / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in metrics] == [0, 1]
    assert json.loads((report / "events.jsonl").read_text()) == events[0]
    assert json.loads((report / "summary.json").read_text()) == summary
    assert (report / "model" / "model.safetensors").read_bytes() == image(1)
    assert json.loads((report / "model" / "config.json").read_bytes()) == {"model_type": "qwen3", "dtype": "bfloat16"}
    assert not [path for path in report.rglob(".*")]


def test_the_summary_has_what_programs_rely_on() -> None:
    snapshot = sample_snapshot()
    summary = summarise(snapshot, seed=0, report=None)
    assert summary["schema_version"] == 1
    assert summary["steps"] == 96
    assert summary["seconds"] == 58.0
    assert summary["nodes"] == 5
    assert summary["slashed"] == {"0x" + "5" * 40: "0x" + "5a" * 32}
    first = [value for _, value in snapshot.rewards[:10]]
    assert summary["reward_first"] == pytest.approx(sum(first) / 10, abs=1e-4)
    assert summary["reward_last"] > summary["reward_first"]


def test_a_report_of_a_demo_that_never_trained_is_still_written(tmp_path: Path) -> None:
    summary = write_report(tmp_path / "report", Snapshot(), spool=None, events=[], seed=None)
    assert summary["reward_first"] is None
    assert not (tmp_path / "report" / "reward.png").exists()


def test_a_torn_metrics_file_is_left_out(tmp_path: Path, spool: Path) -> None:
    (spool / "out" / "step-000002.json").write_text('{"step": 2, "ev')
    write_report(tmp_path / "report", sample_snapshot(), spool=spool, events=[], seed=0)
    assert (tmp_path / "report" / "metrics.jsonl").read_text().count("\n") == 2


def test_a_short_demos_fall_is_reported_as_a_fall() -> None:
    rewards = tuple(enumerate([0.5] * 4 + [0.25] * 4))
    summary = summarise(Snapshot(rewards=rewards), seed=0, report=None)
    assert (summary["reward_first"], summary["reward_last"], summary["reward_window"]) == (0.5, 0.25, 4)


def test_pay_is_what_the_chain_says_of_this_pool_and_is_told_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    sample = sample_snapshot()
    trainer, worker = (row.participant.address for row in sample.rows[:2])
    claims = [(trainer, 1, 15), (worker, 1, 20), (worker, 1, 5), (worker, 2, 100)]
    events = [{"event": "EarningsPosted", "pool": 1, "epoch": epoch} for epoch in (0, 1)]
    events += [{"event": "Claimed", "pool": p, "node": n, "amount_wei": str(wei * 10**17)} for n, p, wei in claims]
    summary = summarise(sample, seed=0, report=None, events=events)
    assert summary["pay"] == {"tables": 2, "claims": 3, "paid_wei": str(4 * 10**18)}
    assert [int(member["paid_wei"]) for member in summary["members"]] == [15 * 10**17, 25 * 10**17, 0, 0, 0]
    say_goodbye(summary, Path("demo"), to_errors=False)
    assert "2 tables of earnings posted, 4 tokens claimed: trainer 1.5, worker 1 2.5" in capsys.readouterr().out
    say_goodbye(summarise(sample, seed=0, report=None), Path("demo"), to_errors=False)
    assert "nobody was paid yet" in capsys.readouterr().out
