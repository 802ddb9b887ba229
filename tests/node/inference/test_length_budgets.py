"""Length budgets from the worker's file to the validator's report."""

from pathlib import Path

import msgspec
import pytest

from node.environments.base import Problem
from node.inference.engines import torch_engine
from node.inference.errors import EngineError
from node.inference.session import EngineSession
from node.inference.wire import Inspect, Inspected, Produce, Produced
from protocol.budgets import draw_targets
from protocol.checks import Reason
from protocol.identity import address_from_bytes
from protocol.rollout import RolloutBatch, decode, decode_report, encode
from protocol.run import RunSpec
from protocol.sections import LengthBudget
from protocol.statements import VerdictOutcome
from tests.node.inference.work import produced_by, seen_by

ROOT = b"\x11" * 32
NODE = address_from_bytes(b"\x05" * 20)


@pytest.fixture(scope="module")
def session(tiny_run: RunSpec, tiny_assets: Path) -> EngineSession:
    budget = LengthBudget(targets=(3, 6, 12), alpha=0.01, text="{target}=", cut=2.0)
    rollout = msgspec.structs.replace(tiny_run.rollout, max_prompt_tokens=16, prompts_per_file=12, prompts_per_step=12)
    made = EngineSession(
        msgspec.structs.replace(tiny_run, length_budget=budget, rollout=rollout), tiny_assets, torch_engine
    )
    made.keep(ROOT, str(tiny_assets / "model" / "model.safetensors"))
    return made


def make(session: EngineSession, path: Path, capacity: int) -> tuple[Produced, RolloutBatch]:
    order = Produce(policy_root=ROOT, node=NODE, pool=3, index=5, out_path=str(path), capacity=capacity)
    produced = produced_by(session, order)
    return produced, decode(path.read_bytes(), 48)


def judge(session: EngineSession, path: Path, units: int) -> Inspected:
    return seen_by(
        session,
        Inspect(
            policy_root=ROOT, node=NODE, pool=3, index=5, units=units, path=str(path), report_path=f"{path}.report"
        ),
    )


@pytest.mark.parametrize("capacity", [0, 1, 2])
def test_a_file_is_made_and_accepted_within_the_class_it_states(
    session: EngineSession, tmp_path: Path, capacity: int
) -> None:
    produced, batch = make(session, tmp_path / "f", capacity)
    targets = draw_targets(session.run, ROOT, NODE, 5, capacity)
    assert batch.header.capacity == capacity and set(targets) <= {3, 6, 12}
    assert max(len(row.output) for row in batch.rows) <= 2 * max(targets)
    tokenizer = session.engine.tokenizer  # type: ignore[attr-defined]
    assert all(tokenizer.decode(row.prompt).endswith(f"{targets[row.group]}=") for row in batch.rows)

    seen = judge(session, tmp_path / "f", produced.units)
    assert (seen.outcome, seen.detail) == (VerdictOutcome.ACCEPT, "")
    report = decode_report(Path(seen.report_path).read_bytes(), 48)
    for row, value in zip(batch.rows, report.rows, strict=True):
        lost = 0.01 * abs(len(row.output) - targets[row.group])
        assert min(abs(value.reward + lost), abs(value.reward + lost - 1)) < 1e-6
    assert seen.rewards_mean == pytest.approx(produced.reward_estimate, abs=1e-6)


@pytest.mark.parametrize(
    ("claimed", "reason"), [(0, Reason.WRONG_PROMPT), (3, Reason.MALFORMED), (-1, Reason.MALFORMED)]
)
def test_another_class_than_the_file_was_made_for_is_refused(
    session: EngineSession, tmp_path: Path, claimed: int, reason: Reason
) -> None:
    produced, batch = make(session, tmp_path / "f", 2)
    header = msgspec.structs.replace(batch.header, capacity=claimed)
    (tmp_path / "f").write_bytes(encode(RolloutBatch(header, batch.rows)))
    assert judge(session, tmp_path / "f", produced.units).reason == reason


@pytest.mark.parametrize("error", [ValueError("a row is damaged"), UnicodeDecodeError("utf-8", b"x", 0, 1, "damaged")])
def test_an_environment_that_fails_on_this_machine_is_no_fault_of_the_file(
    session: EngineSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: ValueError
) -> None:
    """The control is the test above: a class that the run does not have is one."""
    produced, _ = make(session, tmp_path / "f", 0)

    def fails(number: int) -> Problem:
        raise error

    monkeypatch.setattr(session.environment, "problem", fails)
    with pytest.raises(ValueError, match="damaged"):
        judge(session, tmp_path / "f", produced.units)


def test_an_answer_beyond_its_cut_is_refused(session: EngineSession, tmp_path: Path) -> None:
    _, batch = make(session, tmp_path / "f", 0)
    place = next(i for i, row in enumerate(batch.rows) if not row.finished)
    rows = list(batch.rows)
    rows[place] = msgspec.structs.replace(rows[place], output=[*rows[place].output, 5])
    longer = RolloutBatch(batch.header, tuple(rows))
    (tmp_path / "f").write_bytes(encode(longer))
    assert judge(session, tmp_path / "f", longer.units).reason == Reason.TERMINATION


def test_a_class_that_the_run_does_not_have_is_not_worked_for(session: EngineSession, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="capacity class 3"):
        make(session, tmp_path / "f", 3)
