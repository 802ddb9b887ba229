"""An engine at the shards of a task: answers do not depend on who gives them, a file of another shard is refused."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from node.inference.engines import torch_engine
from node.inference.errors import EngineError
from node.inference.opinions import NO_OPINION, agreed, load_opinions, read_score
from node.inference.session import EngineSession
from node.inference.tasks import problem_of, problems_in
from node.inference.wire import Inspect, Inspected, Produce, ShardOrder
from protocol.audit import MAX_ANSWER_CHARACTERS
from protocol.checks import Reason
from protocol.identity import NodeKey
from protocol.rollout import RolloutBatch, decode, encode
from protocol.run import EnvironmentSpec, RunSpec
from protocol.statements import VerdictOutcome
from protocol.tasks import TaskSpec, encode_task, task_id
from tests.node.inference.work import produced_by, seen_by

POLICY = bytes(range(32))
A, B = (NodeKey(bytes([n]) * 32).address for n in (7, 8))
TASK = TaskSpec(
    kind="evaluate", policy=POLICY.hex(), part="held_out", first=1, last=6, samples=3, shard_size=2, max_output_tokens=6
)


@pytest.fixture(scope="module")
def session(tiny_assets: Path, tiny_run: RunSpec) -> EngineSession:
    made = EngineSession(tiny_run, tiny_assets, torch_engine)
    made.keep(POLICY, str(tiny_assets / "model" / "model.safetensors"))
    return made


def order_of(spec: TaskSpec, assets: Path) -> ShardOrder:
    return ShardOrder(encode_task(spec), str(assets), POLICY)


def make(
    session: EngineSession, assets: Path, out: Path, spec: TaskSpec = TASK, shard: int = 0, node: str = A
) -> Produce:
    """The order that was carried out."""
    id, order = task_id(encode_task(spec)), order_of(spec, assets)
    asked = Produce(policy_root=id, node=node, pool=3, index=shard, out_path=str(out), task=order)
    produced_by(session, asked)
    return asked


def judge(session: EngineSession, made: Produce, *, shard: int | None = None) -> Inspected:
    """A validator's look at what was made, as the result of `shard`."""
    units = decode(Path(made.out_path).read_bytes(), 64).units
    fields = {name: getattr(made, name) for name in ("policy_root", "node", "pool", "index", "task")}
    asked = Inspect(**fields, units=units, path=made.out_path, report_path=f"{made.out_path}.report")
    if shard is not None:
        asked = msgspec.structs.replace(asked, index=shard)
    return seen_by(session, asked)


def asked(order: ShardOrder, shard: int) -> Produce:
    return Produce(policy_root=task_id(order.spec), node=A, pool=3, index=shard, out_path="", task=order)


def read(made: Produce) -> RolloutBatch:
    return decode(Path(made.out_path).read_bytes(), 64)


def test_a_shard_is_made_and_accepted_like_any_rollout_file(
    session: EngineSession, tiny_assets: Path, tmp_path: Path
) -> None:
    made = make(session, tiny_assets, tmp_path / "a")
    seen = judge(session, made)
    assert (seen.outcome, seen.detail) == (VerdictOutcome.ACCEPT, "") and seen.checked == (0, 1) and seen.report_path
    batch = read(made)
    held_out = [session.environment.held_back_problem(number).problem_id for number in (1, 2)]
    assert [row.problem_id for row in batch.rows] == [held_out[0]] * 3 + [held_out[1]] * 3
    assert batch.header.policy_root == task_id(encode_task(TASK)).hex()
    assert max(len(row.output) for row in batch.rows) <= 6


def test_whoever_does_a_shard_gives_the_same_answers(session: EngineSession, tiny_assets: Path, tmp_path: Path) -> None:
    first, second = (make(session, tiny_assets, tmp_path / node, node=node) for node in (A, B))
    assert [row.output for row in read(first).rows] == [row.output for row in read(second).rows]
    other = make(session, tiny_assets, tmp_path / "other", spec=msgspec.structs.replace(TASK, nonce="another"))
    assert [row.output for row in read(first).rows] != [row.output for row in read(other).rows]


def test_the_last_shard_may_be_shorter(session: EngineSession, tiny_assets: Path, tmp_path: Path) -> None:
    made = make(session, tiny_assets, tmp_path / "last", shard=2)
    assert len(read(made).rows) == 3 and judge(session, made).outcome == VerdictOutcome.ACCEPT


def test_a_result_for_another_shard_is_an_objective_fault(
    session: EngineSession, tiny_assets: Path, tmp_path: Path
) -> None:
    made = make(session, tiny_assets, tmp_path / "moved", shard=1)
    assert judge(session, made, shard=0).reason == Reason.WRONG_IDENTITY
    batch = read(made)
    moved = msgspec.structs.replace(batch, header=msgspec.structs.replace(batch.header, index=0))

    Path(made.out_path).write_bytes(encode(moved))
    seen = judge(session, made, shard=0)
    assert (seen.outcome, seen.reason) == (VerdictOutcome.SLASH, Reason.WRONG_DRAW)


def test_answers_of_another_policy_or_other_numbers_are_found(
    session: EngineSession, tiny_assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("node.inference.tasks.shard_seed", lambda *place: bytes(32))
        made = make(session, tiny_assets, tmp_path / "lucky")
    assert judge(session, made).reason == Reason.SAMPLING


def test_a_task_brings_its_own_environment(session: EngineSession, tiny_assets: Path, tmp_path: Path) -> None:
    spec = msgspec.structs.replace(TASK, environment=EnvironmentSpec(name="reverse"), part="training")
    made = make(session, tiny_assets, tmp_path / "own", spec=spec)
    assert all(row.problem_id.startswith("reverse") for row in read(made).rows)
    assert judge(session, made).outcome == VerdictOutcome.ACCEPT


def test_problems_that_there_are_not_cannot_be_asked_for(
    session: EngineSession, tiny_assets: Path, tmp_path: Path
) -> None:
    environment = session.environment
    number = environment.size + environment.held_back
    assert problems_in(environment, "all") == number
    assert problem_of(environment, "all", number - 1) == environment.held_back_problem(environment.held_back - 1)
    spec = msgspec.structs.replace(TASK, part="held_out", first=environment.held_back, last=environment.held_back + 1)
    with pytest.raises(EngineError, match="cannot be done"):
        make(session, tiny_assets, tmp_path / "none", spec=spec)
    with pytest.raises(EngineError):
        session.at(asked(order_of(TASK, tiny_assets), 3))
    with pytest.raises(EngineError):
        session.at(asked(ShardOrder(b"{}", "", POLICY), 0))


class Words:
    """A tokenizer whose tokens are letters."""

    eos = frozenset({0})

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    encode_chat = encode_reply = encode

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(token) for token in tokens if token)


def test_a_judge_is_asked_about_every_answer_of_a_file(
    session: EngineSession, tiny_assets: Path, tmp_path: Path
) -> None:
    made = Produce(policy_root=POLICY, node=A, pool=3, index=0, out_path=str(tmp_path / "judged"))
    produced_by(session, made)
    judged = load_opinions(Path(made.out_path), session.environment, Words())
    rows = read(made).rows
    assert judged.size == len(rows)
    asked = judged.problem(5)
    assert asked.problem_id == f"{rows[5].group}/{rows[5].sample}" and "<answer>" in asked.prompt
    with pytest.raises(EngineError, match="file to judge"):
        load_opinions(tmp_path / "nothing", session.environment, Words())


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("I like it.\nScore: 12", 0.75),
        ("score = 0", 0.0),
        ("Score: 3 ... no, Score: 16", 1.0),
        ("It is sound. Score: 12.", 0.75),
        ("Score: 17", NO_OPINION),
        ("Score: 1.5", NO_OPINION),
        ("excellent!", NO_OPINION),
        ("", NO_OPINION),
    ],
)
def test_a_score_is_read_off_what_the_judge_says_last(text: str, score: float) -> None:
    assert read_score(text) == score


def test_three_opinions_make_a_score_unless_they_are_apart() -> None:
    assert agreed([0.5, 0.75, 0.625], 3) == 0.625
    assert agreed([0.5, 0.8125, 0.625], 3) is None
    assert agreed([0.5, 0.5, NO_OPINION], 3) is None and agreed([0.5, 0.5], 3) is None


def test_an_overlong_answer_of_a_judge_is_no_opinion_and_costs_no_time() -> None:
    """Nor is one that ends with a score; a judge without an opinion drops the group, not the others."""
    most = MAX_ANSWER_CHARACTERS
    fits = "score: " * (most // 7 - 2) + "Score: 12"
    assert len(fits) <= most and read_score(fits) == 0.75
    assert read_score(fits + " " * most) == read_score(" " * most + fits) == NO_OPINION
    assert agreed([0.75, 0.75, read_score(fits * 2)], 3) is None and agreed([0.75, 0.75, 0.8125], 3) == 0.75
