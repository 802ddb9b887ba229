import json
from pathlib import Path
from typing import Any

import pytest

from cli import report
from cli.main import main
from cli.report import PANELS, find_metrics, points_of, summarise

pytest.importorskip("matplotlib")


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def full(step: int) -> dict[str, Any]:
    """A record with a number for nearly every picture: each takes a tenth of a second to draw."""
    return {
        "step": step,
        "elapsed": 2.0 * step,
        "reward_mean": 0.01 * step,
        "eval_reward": 0.02 * step,
        "entropy": 1.0,
        "mfu": None,
        "reward_by_environment": {"sort": 0.1, "reverse": 0.2},
        "staleness": {"0": 3, "1": 1},
        "seconds": {"wait": 0.1, "step": 0.2, "forward_backward": 0.15, "generate": 0.5},
        "file_seconds": {"commit": 2.0, "verify": 0.5},
        "output_tokens": 10,
        "alarms": [{"name": "mismatch", "text": "a < b & c"}],
    }


@pytest.mark.parametrize("place", ["metrics.jsonl", "nodes/trainer/metrics.jsonl", "report/metrics.jsonl"])
def test_a_report_is_drawn_wherever_the_numbers_lie(tmp_path: Path, place: str) -> None:
    write(tmp_path / "run" / place, [])
    assert find_metrics(tmp_path / "run") == tmp_path / "run" / place


def test_one_run_becomes_pictures_and_a_page_that_needs_nothing_else(tmp_path: Path, capfd) -> None:
    write(tmp_path / "a<b" / "metrics.jsonl", [full(step) for step in range(25)])
    assert main(["report", str(tmp_path / "a<b"), "--json"]) == 0
    said = json.loads(capfd.readouterr().out)
    assert said["runs"][0]["reward_last"] == pytest.approx(0.39) and said["runs"][0]["tokens"] == 250
    report = tmp_path / "a<b" / "report"
    names = {path.name for path in report.glob("*.png")}
    expected = ("reward", "staleness", "time", "environments", "files")
    assert {f"curve-{name}.png" for name in expected} <= names
    assert "curve-mfu.png" not in names  # it was never known
    page = (report / "report.html").read_text()
    assert "a&lt;b" in page and "a &lt; b &amp; c" in page and page.count("<figure>") == len(names)
    assert 'src="http' not in page and "<script" not in page


def test_a_run_on_text_has_a_table_of_losses_and_none_of_rewards(tmp_path: Path, capfd) -> None:
    learnt = {"outer_root": "00", "tokens": 100, "perplexity": 12.5, "bits_per_parameter": 4.2}
    rows = [{"step": step, "elapsed": 2.0 * step, "eval_loss": 5.0 - step, **learnt} for step in range(3)]
    write(tmp_path / "metrics.jsonl", rows)
    assert main(["report", str(tmp_path)]) == 0
    assert "loss 3.000 on held-back text" in capfd.readouterr().out
    page = (tmp_path / "report" / "report.html").read_text()
    assert "perplexity" in page and "12.5" in page and "reward" not in page.partition("<figure>")[0]


def test_several_runs_are_laid_over_each_other(tmp_path: Path, capfd) -> None:
    rows = [{"step": step, "eval_reward": 0.02 * step, "staleness": {"0": 3, "1": 1}} for step in range(3)]
    for name in ("one", "two"):
        write(tmp_path / name / "run" / "metrics.jsonl", rows)
    out = tmp_path / "both"
    assert main(["report", str(tmp_path / "one/run"), str(tmp_path / "two/run"), "--out", str(out)]) == 0
    assert "one/run" in capfd.readouterr().out
    assert (out / "curve-reward.png").exists() and not (out / "curve-staleness.png").exists()


def test_nothing_on_record_is_a_clear_error(tmp_path: Path, capfd) -> None:
    assert main(["report", str(tmp_path)]) == 6
    assert "nothing on record" in capfd.readouterr().err


def test_numbers_are_found_in_records_and_their_tables() -> None:
    records = [{"step": 1, "loss": 0.5, "seconds": {"wait": 2}, "done": True}, {"step": 2, "loss": None}]
    assert points_of(records, "loss") == [(1.0, 0.5)]
    assert points_of(records, "seconds_wait") == [(1.0, 2.0)]
    assert points_of(records, "done") == []
    assert len({panel.name for panel in PANELS}) == len(PANELS)


def test_a_run_without_evaluations_is_summed_up_by_its_rollouts() -> None:
    summary = summarise("x", [{"step": step, "reward_mean": 0.5} for step in range(12)])
    assert summary["reward_last"] == 0.5 and summary["seconds"] is None


def test_a_short_runs_fall_is_reported_as_a_fall() -> None:
    values = [0.467] * 3 + [0.133] * 3
    summary = summarise("x", [{"step": step, "eval_reward": value} for step, value in enumerate(values)])
    assert (summary["reward_first"], summary["reward_last"], summary["reward_window"]) == (0.467, 0.133, 3)


def test_noise_is_drawn_as_a_band_and_several_runs_have_a_mean(tmp_path: Path) -> None:
    from matplotlib import pyplot

    records = [{"step": step, "eval_reward": 0.5, "eval_error": 0.1} for step in range(5)]
    panel = next(one for one in PANELS if one.name == "reward")
    figure, axes = pyplot.subplots()
    try:
        assert report._draw(axes, panel, [("a", records), ("b", [{**one, "eval_reward": 0.7} for one in records])])
        heights = [path.vertices[:, 1] for band in axes.collections for path in band.get_paths()]
        assert [(round(float(one.min()), 3), round(float(one.max()), 3)) for one in heights] == [(0.4, 0.6), (0.6, 0.8)]
        (mean,) = [line for line in axes.get_lines() if str(line.get_label()).startswith("mean of 2 runs")]
        assert list(mean.get_ydata()) == pytest.approx([0.6] * 5)
        assert all(line.get_marker() == "." for line in axes.get_lines() if line is not mean)
    finally:
        pyplot.close(figure)


def test_answers_stand_in_the_report_before_and_after(tmp_path: Path, capfd) -> None:
    write(tmp_path / "metrics.jsonl", [{"step": step, "eval_reward": 0.02 * step} for step in range(3)])
    folder = tmp_path / "spool" / "eval"
    folder.mkdir(parents=True)
    for step, answer in ((0, "<b>four</b>\x1b[31m"), (2, "4")):
        row = {"prompt": "2 + 2", "answer": answer, "reward": step / 2, "length": 3, "target": 8, "finished": step > 0}
        (folder / f"answers-{step:06d}.json").write_text(json.dumps([row]))
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report" / "report.html").read_text()
    assert "step 0" in page and "&lt;b&gt;four" in page and "reward 1, 3 tokens of 8 asked for<" in page
    capfd.readouterr()
    assert main(["answers", str(tmp_path), "--step", "0"]) == 0
    shown = capfd.readouterr().out
    assert "answer: <b>four</b>?[31m" in shown and "cut off" in shown and "\x1b" not in shown
    assert main(["answers", str(tmp_path), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["step"] == 2
    assert main(["answers", str(tmp_path), "--step", "1"]) == 6
    assert "the nearest that were: 0, 2" in capfd.readouterr().err
    (folder / "answers-000002.json").write_text("{")
    assert main(["answers", str(tmp_path)]) == 6
    assert main(["answers", str(tmp_path / "nowhere")]) == 6
