"""The demo's picture, its plain lines, and the tracker that puts a moment together."""

import io
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from cli.api import parse_status
from cli.demo.plot import plot, running_mean
from cli.demo.report import summarise
from cli.demo.snapshot import DemoMember, Disbelief, JudgingTally, ProcessState, Snapshot, Tracker
from cli.demo.view import LiveView, PlainView, last_step_shown, render
from cli.errors import CommandError
from node.status_schema import (
    DaemonStatus,
    NetworkPart,
    NodePart,
    QuarantinedPart,
    RunPart,
    SlashPart,
    TrainingPart,
    ValidatorAuditsPart,
    VerdictPart,
    VerdictsPart,
    WorkPart,
)
from tests.cli.demo.screenshot import draw, sample_snapshot


def text(snapshot: Snapshot, width: int = 110, height: int = 50) -> str:
    console = Console(width=width, record=True, file=io.StringIO(), color_system=None)
    console.print(render(snapshot, width, height))
    return console.export_text()


def test_the_picture_tells_step_reward_swarm_verdicts_staleness_and_the_cheats_fate() -> None:
    shown = text(sample_snapshot())
    for expected in (
        "step 96/150",
        "goal 0.7",
        "worker 2",
        "evicted",
        "379 accepted",
        "1 rejected",
        "wrong draw",
        "dropped",
        "stake of 100 tokens",
        "0x5a5a5a5a",
        "block 184",
        "2,210",
    ):
        assert expected in shown, expected


@pytest.mark.parametrize(("width", "height"), [(60, 24), (80, 24), (100, 24), (110, 50), (200, 60)])
def test_the_picture_fits_the_terminal(width: int, height: int) -> None:
    lines = text(sample_snapshot(), width, height).splitlines()
    assert max(len(line) for line in lines) <= width
    assert len(lines) <= max(height, 25)


def test_the_picture_can_be_drawn_before_anything_is_known() -> None:
    assert "step 0/?" in text(Snapshot())


def test_a_cheat_that_only_loses_its_pay_is_said_to_earn_nothing() -> None:
    assert "earns nothing: 1 files rejected" in text(replace(sample_snapshot(), slashed=()))


def jury_snapshot() -> Snapshot:
    """Three validators, one of whom lies; two of them rejected the cheat's file."""
    sample = sample_snapshot()
    lies = {1: "rubber-stamp"}
    judges = [DemoMember(f"validator {i}", "validator", lies.get(i), f"0x{i}") for i in (1, 2, 3)]
    rows = [row for row in sample.rows if row.participant.role != "validator"]
    rows += [replace(sample.rows[3], participant=judge, files_accepted=7) for judge in judges]
    cheat = sample.rows[4].participant.address
    return replace(
        sample,
        rows=tuple(rows),
        quorum=2,
        tallies=(JudgingTally(cheat, 1, 0, accepting=1, rejecting=2),),
        quarantined=(Disbelief("0x1", "it invented values", by=6, seconds=9.0),),
        disputes={"raised": 1},
    )


def test_several_validators_are_shown_with_their_quorum_and_who_rejected_the_cheat() -> None:
    shown = text(jury_snapshot())
    for expected in (
        "2/3 cheat #0 wrong draw",
        "caught: wrong draw by 2 of 3 validators",
        "quorum 2 of 3",
        "disputes 1",
        "validator 1 (rubber-stamp) is not believed by 6 of",
        "it invented values",
        "quarantined",
    ):
        assert expected in shown, expected
    summary = summarise(jury_snapshot(), seed=0, report=None)
    assert (summary["validators"], summary["quorum"], summary["quarantined"]) == (3, 2, {"0x1": "it invented values"})


def test_the_tracker_counts_how_each_validator_judged_a_file_and_whom_honest_nodes_doubt() -> None:
    judges = [DemoMember(f"validator {i}", "validator") for i in (1, 2)]
    liar = DemoMember("validator 3", "validator", "silent")
    tracker = Tracker([*judges, liar, WORKER], target=None, run_name="sort", quorum=2)
    audit = ValidatorAuditsPart(quarantined=[QuarantinedPart("0xBad", "it lied")])
    for judge, outcome in zip([*judges, liar], (2, 2, 0), strict=True):
        verdicts = VerdictsPart(recent=[VerdictPart("0xAa", 4, 1, outcome, "units", 0.0)])
        tracker.absorb(
            judge.name, DaemonStatus(node=NodePart(role="validator"), verdicts=verdicts, validator_audits=audit)
        )
    snapshot = tracker.snapshot("training", 5.0, ALIVE)
    assert snapshot.tallies == (JudgingTally("0xaa", 1, 4, accepting=1, rejecting=2),)
    assert snapshot.first_rejection(WORKER) == snapshot.tallies[0]
    assert snapshot.quarantined == (Disbelief("0xBad", "it lied", by=2, seconds=5.0),)


def test_plain_lines_tell_a_slash_once_and_the_state_every_few_seconds() -> None:
    written: list[str] = []
    with PlainView(written.append, every=5) as view:
        view.say("starting [dim]the chain[/]")
        for _ in range(3):
            view.show(sample_snapshot())
    assert written[0] == "- starting the chain"
    assert sum("was slashed 100 tokens for wrong draw" in line for line in written) == 1
    assert sum("step 96/150" in line for line in written) == 1


def test_plain_lines_tell_of_a_slashed_validator_that_it_is_not_believed_any_more() -> None:
    written: list[str] = []
    with PlainView(written.append) as view:
        slashed = sample_snapshot()
        view.show(slashed)
        doubt = Disbelief(slashed.slashed[0].node, "it lied", by=2, seconds=5.0)
        for _ in range(2):
            view.show(replace(slashed, quarantined=(doubt,)))
    assert sum("was slashed" in line for line in written) == 1
    assert sum("is not believed any more: it lied" in line for line in written) == 1


def test_the_live_view_leaves_the_last_picture_standing() -> None:
    out = io.StringIO()
    with LiveView(Console(file=out, width=100, force_terminal=True)) as view:
        view.show(sample_snapshot())
    assert "step" in out.getvalue()


def test_the_readmes_picture_is_an_svg(tmp_path: Path) -> None:
    draw(sample_snapshot(), tmp_path / "demo.svg")
    assert (tmp_path / "demo.svg").read_text().startswith("<svg")


def test_a_curve_rises_from_the_lower_left_to_the_upper_right() -> None:
    lines = [line.plain[6:] for line in plot([([(0, 0.0), (10, 1.0)], "", True)], width=30, height=5, x_range=(0, 10))]
    first_dots = [next((i for i, c in enumerate(line) if c != " "), None) for line in lines[:5]]
    assert first_dots == sorted(first_dots, reverse=True)


def test_a_long_runs_curve_fills_the_picture_and_a_short_ones_axis_stands_still() -> None:
    def axis(now: int, total: int) -> int:
        return last_step_shown(Snapshot(steps_total=total, rewards=tuple((step, 0.5) for step in range(now + 1))))

    assert [axis(now, 150) for now in (0, 75, 150)] == [150, 150, 150]
    assert [axis(now, 10_000) for now in (0, 300, 9_000, 10_000)] == [200, 400, 10_000, 10_000]


def test_the_running_mean_looks_back_only() -> None:
    assert running_mean([(0, 1.0), (1, 0.0), (2, 0.5)], window=2) == [(0, 1.0), (1, 0.5), (2, 0.25)]


WORKER = DemoMember("worker 1", "worker", address="0xAa")
TRAINER = DemoMember("trainer", "trainer")
ALIVE = {"worker 1": ProcessState(1, "running"), "trainer": ProcessState(2, "running")}


def test_the_tracker_keeps_the_whole_curve_although_answers_hold_only_its_end() -> None:
    tracker = Tracker([TRAINER, WORKER], target=0.7, run_name="sort")
    for window in ([(0, 0.2), (1, 0.3)], [(1, 0.3), (2, 0.4)]):
        training = TrainingPart(step=window[-1][0], reward_eval=window)
        tracker.absorb("trainer", DaemonStatus(node=NodePart(role="trainer"), training=training))
    assert tracker.snapshot("training", 1.0, ALIVE).rewards == ((0, 0.2), (1, 0.3), (2, 0.4))


def test_a_slash_seen_by_several_members_is_one_slash() -> None:
    tracker = Tracker([TRAINER, WORKER], target=None, run_name="sort")
    slash = SlashPart("0xAa", transaction="0x1")
    tracker.absorb("trainer", DaemonStatus(slashed=[slash]))
    tracker.absorb("worker 1", DaemonStatus(slashed=[msgspec.structs.replace(slash, node="0xaa")]))
    snapshot = tracker.snapshot("training", 1.0, ALIVE)
    assert len(snapshot.slashed) == 1
    assert snapshot.slash_of(WORKER) == slash


def test_a_moment_combines_what_each_member_knows_best() -> None:
    tracker = Tracker([TRAINER, WORKER], target=None, run_name="sort")
    tracker.absorb(
        "trainer",
        DaemonStatus(
            node=NodePart(role="trainer", state="working"),
            network=NetworkPart(block=7, pool=1),
            run=RunPart(step=3, steps_total=150),
            training=TrainingPart(step=3, done=True, seconds=9.0),
            verdicts=VerdictsPart(accepted=2),
        ),
    )
    tracker.absorb(
        "worker 1",
        DaemonStatus(
            node=NodePart(role="worker", state="idle"),
            network=NetworkPart(block=9),
            work=WorkPart(tokens_per_second=50.0),
            verdicts=VerdictsPart(accepted=5, rejected=1),
        ),
    )
    snapshot = tracker.snapshot("training", 1.0, ALIVE)
    assert (snapshot.block, snapshot.pool, snapshot.steps_total, snapshot.done) == (9, 1, 150, True)
    assert snapshot.verdicts.accepted == 5
    assert snapshot.tokens_per_second == 50.0
    assert [row.state for row in snapshot.rows] == ["working", "idle"]


def test_a_member_whose_process_is_gone_is_not_shown_as_working() -> None:
    tracker = Tracker([WORKER], target=None, run_name="sort")
    tracker.absorb("worker 1", DaemonStatus(node=NodePart(role="worker", state="working")))
    snapshot = tracker.snapshot("training", 1.0, {"worker 1": ProcessState(None, "restarting", 1)})
    assert snapshot.rows[0].state == "restarting"


def test_a_status_with_fields_of_a_later_version_is_read_and_another_schema_is_refused() -> None:
    status = parse_status(b'{"schema_version": 1, "node": {"role": "worker", "mood": "good"}, "new": {}}')
    assert status.node.role == "worker"
    with pytest.raises(CommandError, match="another version"):
        parse_status(b'{"schema_version": 2}')
    with pytest.raises(CommandError, match="cannot be read"):
        parse_status(b"<html>")
