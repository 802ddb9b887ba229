"""An honest file passes; every cheat is rejected for its own reason; no bytes make the inspector fail."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from node.environments.base import Problem
from node.environments.math_scorer import ALGEBRA
from node.environments.registry import load_environment
from node.inference.engines import torch_engine
from node.inference.guarded import Guarded
from node.inference.inspect import Scores, score_groups
from node.inference.session import EngineSession
from node.inference.tasks import DrawnTasks
from node.inference.wire import Inspect, Inspected, Produce, Produced
from protocol.blobs import describe
from protocol.checks import Reason, subject_of
from protocol.disputes import UNDECIDED
from protocol.envelope import ENVELOPE_BYTES, seal
from protocol.errors import OwnFailure
from protocol.identity import NodeKey
from protocol.messages import DIGEST
from protocol.rollout import RolloutBatch, SampleRow, decode, decode_report, encode
from protocol.run import EnvironmentSpec, RunSpec, VerificationSpec
from protocol.statements import VerdictOutcome
from protocol.values import prompts_hash, reward_tags
from tests.cheats.other_weights import OtherWeights
from tests.cheats.own_problems import OwnProblems
from tests.node.environments.tokens import Characters
from tests.node.inference.work import produced_by, seen_by

ROOT = bytes(range(32))
NODE = NodeKey(b"\x07" * 32).address


@pytest.fixture(scope="module")
def make(tiny_assets: Path, tiny_run: RunSpec) -> Callable[[type[EngineSession]], EngineSession]:
    def session(kind: type[EngineSession]) -> EngineSession:
        made = kind(tiny_run, tiny_assets, torch_engine)
        made.keep(ROOT, str(tiny_assets / "model" / "model.safetensors"))
        return made

    return session


@pytest.fixture(scope="module")
def honest(make: Callable[[type[EngineSession]], EngineSession]) -> EngineSession:
    return make(EngineSession)


@pytest.fixture(scope="module")
def produced(honest: EngineSession, tmp_path_factory: pytest.TempPathFactory) -> Produced:
    return produced_by(honest, order(tmp_path_factory.mktemp("files") / "honest.arrow"))


def order(path: Path) -> Produce:
    return Produce(policy_root=ROOT, node=NODE, pool=3, index=5, out_path=str(path))


def judge(session: EngineSession, path: str | Path, units: int, **changes: Any) -> Inspected:
    asked = Inspect(
        policy_root=ROOT, node=NODE, pool=3, index=5, units=units, path=str(path), report_path=f"{path}.report"
    )
    return seen_by(session, msgspec.structs.replace(asked, **changes))


def test_an_honest_file_is_accepted_with_a_report(honest: EngineSession, produced: Produced, tiny_run: RunSpec) -> None:
    seen = judge(honest, produced.path, produced.units)
    assert (seen.outcome, seen.reason, seen.detail) == (VerdictOutcome.ACCEPT, Reason.NONE, "")
    assert seen.statistics["sampling_mean"] < 1e-6
    assert seen.rewards_mean == pytest.approx(produced.reward_estimate)
    batch = decode(Path(produced.path).read_bytes(), 8)
    report = decode_report(Path(seen.report_path).read_bytes(), 8)
    assert report.header.policy_root == ROOT.hex()
    assert [len(row.logprobs) for row in report.rows] == [len(row.output) for row in batch.rows]
    prompts = [row.prompt for row in batch.rows if row.sample == 0]
    assert seen.prompts == prompts_hash(prompts)
    assert seen.tokens == produced.units == sum(len(row.output) for row in batch.rows)


@pytest.mark.parametrize(
    ("kind", "reasons"),
    [(OwnProblems, {Reason.WRONG_DRAW}), (OtherWeights, {Reason.ACTIVATIONS, Reason.SAMPLING})],
)
def test_a_cheating_engine_is_rejected(
    make: Callable[[type[EngineSession]], EngineSession],
    honest: EngineSession,
    tmp_path: Path,
    kind: type[EngineSession],
    reasons: set[Reason],
) -> None:
    made = produced_by(make(kind), order(tmp_path / "cheat.arrow"))
    seen = judge(honest, made.path, made.units)
    assert seen.reason in reasons
    assert seen.outcome == (VerdictOutcome.SLASH if reasons == {Reason.WRONG_DRAW} else VerdictOutcome.REJECT)
    assert seen.report_path == ""


def change_row(batch: RolloutBatch, **changes: Any) -> RolloutBatch:
    first, *rest = batch.rows
    return msgspec.structs.replace(batch, rows=(msgspec.structs.replace(first, **changes), *rest))


def resealed(batch: RolloutBatch) -> RolloutBatch:
    """The same with every envelope made for the row that it stands in, as a careful cheat would."""
    rules = VerificationSpec(toploc_k=32)
    rows = [
        msgspec.structs.replace(
            row,
            proofs=seal(row.proofs[ENVELOPE_BYTES:], subject_of(batch.header, row), rules.toploc_k, rules.toploc_batch),
        )
        for row in batch.rows
    ]
    return msgspec.structs.replace(batch, rows=tuple(rows))


def other_token(row: SampleRow) -> list[int]:
    """The same length, with another first token (never the end token 1)."""
    return [2 + (row.output[0] - 1) % 9, *row.output[1:]]


TAMPERINGS: list[tuple[Reason, Callable[[RolloutBatch], RolloutBatch]]] = [
    (Reason.WRONG_IDENTITY, lambda b: msgspec.structs.replace(b, header=msgspec.structs.replace(b.header, index=6))),
    (Reason.INCOMPLETE_GROUP, lambda b: msgspec.structs.replace(b, rows=b.rows[1:])),
    (Reason.MALFORMED, lambda b: change_row(b, output=[1 << 20, *b.rows[0].output[1:]])),
    (Reason.MALFORMED, lambda b: change_row(b, output=[])),
    (Reason.WRONG_DRAW, lambda b: change_row(b, problem_id="sort-1")),
    (Reason.WRONG_PROMPT, lambda b: change_row(b, prompt=b.rows[0].prompt[:-1])),
    (Reason.TERMINATION, lambda b: change_row(b, finished=not b.rows[0].finished)),
    (Reason.BAD_PROOF_FORM, lambda b: change_row(b, proofs=bytes(len(b.rows[0].proofs)))),
    (Reason.BAD_PROOF_FORM, lambda b: change_row(b, proofs=b.rows[0].proofs + b"\0" * 66)),
    (Reason.BAD_PROOF_FORM, lambda b: change_row(b, proofs=b.rows[1].proofs)),
    (Reason.BAD_PROOF_FORM, lambda b: change_row(b, output=other_token(b.rows[0]))),
    (Reason.SAMPLING, lambda b: resealed(change_row(b, output=other_token(b.rows[0])))),
]


@pytest.mark.parametrize(("reason", "tamper"), TAMPERINGS)
def test_a_tampered_file_is_rejected_for_its_reason(
    honest: EngineSession,
    produced: Produced,
    tmp_path: Path,
    reason: Reason,
    tamper: Callable[[RolloutBatch], RolloutBatch],
) -> None:
    batch = tamper(decode(Path(produced.path).read_bytes(), 8))
    path = tmp_path / "tampered.arrow"
    path.write_bytes(encode(batch))
    seen = judge(honest, path, batch.units)
    assert seen.outcome != VerdictOutcome.ACCEPT
    if reason == Reason.SAMPLING:  # another token is another activation too
        assert seen.reason in (Reason.SAMPLING, Reason.ACTIVATIONS)
    else:
        assert seen.reason == reason


def test_a_prompt_beyond_all_limits_is_refused_before_it_stands_in_memory(
    honest: EngineSession, produced: Produced, tmp_path: Path
) -> None:
    batch = change_row(decode(Path(produced.path).read_bytes(), 8), prompt=[1000] * (1 << 18))
    path = tmp_path / "long.arrow"
    path.write_bytes(encode(batch))
    seen = judge(honest, path, batch.units)
    assert seen.reason == Reason.MALFORMED and "values instead of at most" in seen.detail


def test_claiming_more_units_than_tokens_is_rejected(honest: EngineSession, produced: Produced) -> None:
    assert judge(honest, produced.path, produced.units + 1).reason == Reason.UNITS


def test_random_numbers_of_another_submission_do_not_fit(
    honest: EngineSession, produced: Produced, tmp_path: Path
) -> None:
    """The tokens of submission 5, offered with the right prompts as if another seed had drawn them."""
    batch = decode(Path(produced.path).read_bytes(), 8)
    rows = list(batch.rows)
    for group in range(0, 8, 4):  # within a group the prompts are equal: swap whole answers
        a, b = rows[group], rows[group + 1]
        rows[group] = msgspec.structs.replace(b, sample=a.sample)
        rows[group + 1] = msgspec.structs.replace(a, sample=b.sample)
    path = tmp_path / "swapped.arrow"
    path.write_bytes(encode(resealed(msgspec.structs.replace(batch, rows=tuple(rows)))))
    assert judge(honest, path, batch.units).reason == Reason.SAMPLING


def test_no_damage_to_the_bytes_makes_the_inspector_fail(
    honest: EngineSession, produced: Produced, tmp_path: Path
) -> None:
    data = Path(produced.path).read_bytes()
    random = np.random.default_rng(0)
    path = tmp_path / "damaged.arrow"
    for trial in range(60):
        damaged = bytearray(data[: int(random.integers(len(data)))] if trial % 3 == 0 else data)
        for _ in range(int(random.integers(1, 9))):
            if damaged:
                damaged[int(random.integers(min(len(damaged), 2000 if trial % 2 else len(damaged))))] ^= 255
        path.write_bytes(bytes(damaged))
        assert judge(honest, path, produced.units).outcome in (
            VerdictOutcome.ACCEPT,
            VerdictOutcome.REJECT,
            VerdictOutcome.SLASH,
        )


def test_only_the_drawn_groups_go_through_the_model(honest: EngineSession, produced: Produced, tmp_path: Path) -> None:
    report_path = str(tmp_path / "report")
    seen = judge(honest, produced.path, produced.units, groups=(1,), report_path=report_path)
    assert (seen.outcome, seen.checked) == (VerdictOutcome.ACCEPT, (1,))
    assert {row.group for row in decode_report(Path(report_path).read_bytes(), 8).rows} == {1}
    assert len(seen.rewards) == 2 * DIGEST  # rewards are recomputed of every group
    assert len(seen.logprobs) == 4
    unseen = judge(honest, produced.path, produced.units, groups=(), report_path=str(tmp_path / "none"))
    assert (unseen.outcome, unseen.checked, unseen.report_path) == (VerdictOutcome.ACCEPT, (), "")


def test_a_fault_is_seen_where_it_is_looked_for(
    make: Callable[[type[EngineSession]], EngineSession], honest: EngineSession, produced: Produced, tmp_path: Path
) -> None:
    """The second group of the file comes from other weights."""
    made = produced_by(make(OtherWeights), order(tmp_path / "cheat.arrow"))
    ours, theirs = (decode(Path(path).read_bytes(), 8) for path in (produced.path, made.path))
    rows = ours.rows[:4] + theirs.rows[4:]
    there = honest.at(order(tmp_path))
    header = msgspec.structs.replace(ours.header, freshness=there.answer(there.challenge(rows)))
    path = tmp_path / "mixed.arrow"
    path.write_bytes(encode(RolloutBatch(header, rows)))
    units = sum(len(row.output) for row in rows)
    assert judge(honest, path, units, groups=(0,), report_path="").outcome == VerdictOutcome.ACCEPT
    seen = judge(honest, path, units, groups=(1,), report_path="")
    assert seen.reason in (Reason.ACTIVATIONS, Reason.SAMPLING)
    assert seen.group == (1 if seen.reason == Reason.ACTIVATIONS else -1)


def test_a_byte_that_the_own_disk_turned_over_is_not_the_workers_lie(
    honest: EngineSession, produced: Produced, tmp_path: Path
) -> None:
    whole = Path(produced.path).read_bytes()
    torn, root = tmp_path / "torn", describe(whole).root
    torn.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:-1])
    control = judge(honest, torn, produced.units, file_root=describe(torn.read_bytes()).root)
    assert control.outcome == VerdictOutcome.SLASH, "what came so is its author's"
    with pytest.raises(OwnFailure, match="damaged on this machine"):
        judge(honest, torn, produced.units, file_root=root)
    assert judge(honest, produced.path, produced.units, file_root=root).outcome == VerdictOutcome.ACCEPT


def test_scoring_that_takes_too_long_is_nobodys_fault(
    honest: EngineSession, produced: Produced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first group cannot be scored in time, the second not at all: neither is trained on."""
    now = iter([0.0, 0.0, 0.0, 0.0, 0.0, 1e6])  # the look, the budget, before and behind the prefill, the two groups
    monkeypatch.setattr("node.inference.inspect.time.monotonic", lambda: next(now, 1e6))

    _cannot_tell(honest, monkeypatch)
    seen = judge(honest, produced.path, produced.units, report_path=str(tmp_path / "report"))
    assert seen.outcome == VerdictOutcome.ACCEPT
    assert seen.rewards == 2 * UNDECIDED and seen.rewards_mean is None
    assert seen.report_path == ""


def test_a_mean_is_of_the_groups_that_are_decided() -> None:
    assert Scores([1.0, 0.5, 0.0, 0.0], frozenset({1})).mean(2) == 0.75
    assert Scores([1.0, 0.5, 0.0, 0.0]).mean(2) == 0.375 and Scores().mean(2) is None


@pytest.mark.parametrize("knows", [True, False])
def test_a_worker_that_cannot_tell_its_rewards_says_none(
    honest: EngineSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows: bool
) -> None:
    _cannot_tell(honest, monkeypatch, knows=knows)
    made = produced_by(honest, order(tmp_path / "file"))
    assert (made.reward_estimate, made.informative) == ((0.0, 0.0) if knows else (None, None))


def test_of_a_group_with_an_undecided_answer_no_more_is_asked(
    honest: EngineSession, produced: Produced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every answer of a file may run into a deadline of seconds; only the first of each group is waited for."""
    monkeypatch.setattr("node.inference.inspect.SCORED_TOGETHER", 1)
    for unsure, asked in ((True, 2), (False, 8)):
        with monkeypatch.context() as patch:
            _cannot_tell(honest, patch, knows=not unsure)
            seen = judge(honest, produced.path, produced.units, report_path=str(tmp_path / "report"))
            assert honest.environment.asked == asked  # type: ignore[attr-defined]
            assert (seen.rewards == 2 * UNDECIDED) is unsure and len(seen.rewards) == 2 * DIGEST


@pytest.mark.parametrize("deadline", [0.0, 60.0], ids=["slow", "fast"])
def test_of_a_mathematical_answer_a_slow_machine_says_no_other_reward_than_a_fast_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: float
) -> None:
    """It says none: an answer without a verdict in time leaves its group undecided, however right it is."""
    monkeypatch.setattr(ALGEBRA, "_deadline", deadline)
    ALGEBRA.close()  # a child's first answer takes longer than any other
    question = {"task_type": "verifiable_math", "verification_info": json.dumps({"ground_truth": "0.5"})}
    rows = [{"problem_id": f"p{n}", "prompt": f"{n}?", **question} for n in range(20)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    spec = EnvironmentSpec(name="dataset", args={"path": "rows.jsonl", "held_back_share": 0.5})
    environment = Guarded(load_environment(spec, tmp_path, Characters()))
    problems = [Problem(name, "", ("0.5",), "verifiable_math") for name in ("plain", "hard")]
    tasks = DrawnTasks(None, problems, [], (), [])  # type: ignore[arg-type]
    said = [(0, "0.5"), (0, "0.6"), (1, "\\frac{2}{4}"), (1, "0.6")]
    batch = [SampleRow(group, 0, "", [], Characters().encode(text + "\n"), True, b"") for group, text in said]
    session: Any = SimpleNamespace(environment=environment)
    rewards, undecided = score_groups(session, SimpleNamespace(rows=batch), tasks, (), math.inf)  # type: ignore[arg-type]
    unsure = {1} if deadline == 0 else set()
    assert undecided == unsure
    fast = reward_tags([1.0, 0.0, 1.0, 0.0], 2, ())
    found = reward_tags(rewards, 2, undecided)
    assert found == (fast[:DIGEST] + UNDECIDED if unsure else fast)
    environment.close()


def test_where_judges_are_to_say_the_reward_the_report_has_all_but_that(
    honest: EngineSession, produced: Produced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = honest.at(order(tmp_path)).problems()
    _cannot_tell(honest, monkeypatch, judged=problems[1].problem_id)
    seen = judge(honest, produced.path, produced.units, report_path=str(tmp_path / "report"))
    assert (seen.outcome, seen.rewards) == (VerdictOutcome.ACCEPT, 2 * UNDECIDED)
    report = decode_report(Path(seen.report_path).read_bytes(), 8)
    assert {row.group for row in report.rows} == {1} and all(math.isnan(row.reward) for row in report.rows)
    assert all(row.logprobs for row in report.rows)


def _cannot_tell(
    session: EngineSession, monkeypatch: pytest.MonkeyPatch, judged: str = "", *, knows: bool = False
) -> None:
    """The session's environment finds no reward. judged: the problem of which nobody is to find one; knows: it does."""
    inner = session.environment

    class Unsure:
        gave_up, turns, determinism, asked = 0, 1, "exact", 0
        size, problem = inner.size, inner.problem

        def score(self, problems: Any, transcripts: Any) -> list[float]:
            self.gave_up += not knows
            self.asked += len(transcripts)
            return [0.0] * len(transcripts)

        def prompt_tokens(self, problem: Any) -> list[int]:
            return inner.prompt_tokens(problem)

        def is_judged(self, problem: Any) -> bool:
            return problem.problem_id == judged

        def is_witnessed(self, problem: Any) -> bool:
            return False

    monkeypatch.setattr(session, "environment", Unsure())
