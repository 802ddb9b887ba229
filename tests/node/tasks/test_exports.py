"""What a finished task is made into: figures, filtered rows, data with provenance, scores that judges agree on."""

import json
from pathlib import Path

import pyarrow.json
import pyarrow.parquet as pq
import pytest

from node.environments.base import one_answer
from node.environments.dataset import Arguments, load
from node.errors import StateError
from node.tasks.exports import write_filtered, write_generated
from node.tasks.findings import evaluate, judgement, review
from node.tasks.measures import measure, pass_at_k, solve_rate
from node.tasks.records import ShardRecord, TaskFolder, VerdictRecord
from protocol.blobs import describe
from protocol.identity import Address
from protocol.rollout import (
    ReportHeader,
    ReportRow,
    RolloutBatch,
    RolloutHeader,
    SampleRow,
    ValidatorReport,
    encode,
    encode_report,
)
from protocol.run import Asset, EnvironmentSpec
from protocol.tasks import TaskSpec, encode_task, task_id
from tests.node.environments.tokens import Characters
from tests.node.inference.test_tokenizer import CHATML
from tests.node.inference.test_tokenizer import tokenizer as chat_model

NODE = Address("0x" + "11" * 20)
ROOT = "ab" * 32
Scores = dict[str, list[float]]


def folder(tmp_path: Path, scores: Scores, shard_size: int = 2, **changes: object) -> TaskFolder:
    """A task whose shards have been gathered. scores: problem id -> of its answers; below 0: nobody could decide."""
    samples = len(next(iter(scores.values())))
    fields = {"kind": "filter", "policy": ROOT, "step": 7, "last": len(scores), "samples": samples, **changes}
    spec = TaskSpec(shard_size=shard_size, **fields)  # type: ignore[arg-type]
    encoded = encode_task(spec)
    made = TaskFolder(tmp_path / task_id(encoded).hex())
    made.create(encoded)
    names = list(scores)
    for shard in range(spec.shards):
        add(made, shard, {names[n]: scores[names[n]] for n in spec.numbers(shard)}, tmp_path)
    made.close()
    return made


def add(made: TaskFolder, shard: int, scores: Scores, tmp_path: Path, node: str = NODE) -> bool:
    header = RolloutHeader(1, Address(node), made.path.name, shard)
    pairs = [(g, name, s, score) for g, name in enumerate(scores) for s, score in enumerate(scores[name])]
    rows = tuple(SampleRow(g, s, name, [5, 6], [7 + s, 1], True, b"") for g, name, s, _ in pairs)
    values = tuple(ReportRow(g, s, score, [-0.5, -1.5]) for g, _, s, score in pairs if score >= 0)
    data = encode(RolloutBatch(header, rows))
    file_root = describe(data).root.hex()
    verdicts = (VerdictRecord(NODE, 0, 0, "cd" * 65),)
    record = ShardRecord(shard, node, "ef" * 32, file_root, 10, "01" * 65, verdicts, 1.0)
    file = tmp_path / "file"
    file.write_bytes(data)
    return made.add(record, file, encode_report(ValidatorReport(ReportHeader(file_root, made.path.name), values)))


def test_a_shard_is_kept_once_and_survives_a_restart(tmp_path: Path) -> None:
    made = folder(tmp_path, {"a": [1.0], "b": [0.0], "c": [1.0]})
    assert made.done() == [0, 1]
    assert not add(made, 1, {"c": [0.0]}, tmp_path)  # a second result of the same shard changes nothing
    again = TaskFolder(made.path)
    assert again.spec().samples == 1 and again.state().closed and evaluate(again).mean == pytest.approx(2 / 3)
    with pytest.raises(StateError, match="no task"):
        TaskFolder(tmp_path / ("00" * 32)).spec()


def test_an_evaluation_has_a_mean_its_error_and_pass_at_k(tmp_path: Path) -> None:
    found = evaluate(folder(tmp_path, {"a": [1, 1, 0, 0], "b": [0, 0, 0, 0], "c": [1, 1, 1, 1], "d": [-1] * 4}))
    assert (found.problems, found.answers, found.undecided) == (3, 12, 1)
    assert found.mean == pytest.approx(0.5) and found.standard_error == pytest.approx(0.5 / 3**0.5)
    assert found.pass_at[1] == pytest.approx(0.5)
    assert found.pass_at[2] == pytest.approx((5 / 6 + 0 + 1) / 3) and found.pass_at[4] == pytest.approx(2 / 3)


def test_figures_of_nothing_are_none_and_partial_scores_solve_nothing() -> None:
    nothing = measure({"a": [], "b": []}, [1])
    assert (nothing.mean, nothing.standard_error, nothing.pass_at, nothing.undecided) == (None, None, {1: None}, 2)
    assert solve_rate([0.9, 1.0]) == 0.5 and solve_rate([]) is None
    assert pass_at_k([1.0, 0.0], 2) == 1.0


def test_the_filter_writes_what_the_dataset_environment_reads(tmp_path: Path) -> None:
    source = tmp_path / "rows.jsonl"
    scores: Scores = {f"p{n}": [float(s < n % 5) for s in range(4)] for n in range(60)}
    rows = [
        {"problem_id": name, "prompt": "2+2=", "task_type": "verifiable_math", "extra": n}
        | {"verification_info": json.dumps({"ground_truth": "4"})}
        for n, name in enumerate(scores)
    ]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    task = folder(tmp_path, {**scores, "p0": [-1.0] * 4}, shard_size=16)
    for name in ("kept.jsonl", "kept.parquet"):
        found = write_filtered(task, source, tmp_path / name, 0.25, 0.5)
        assert (found.rows, found.kept, found.undecided) == (60, 24, 1)
        assert found.spread == {"0": 11, "0.25": 12, "0.5": 12, "0.75": 12, "1": 12}
        arguments = Arguments(path=name, solve_rate_field="solve_rate", solve_rate_min=0.5, held_back_share=0.2)
        loaded = load(arguments, tmp_path, None)  # type: ignore[arg-type] - nothing is asked of it
        assert loaded.size + loaded.held_back == 12
    first = json.loads((tmp_path / "kept.jsonl").read_text().splitlines()[0])
    assert first == {**rows[1], "solve_rate": 0.25}


def test_generated_data_says_where_each_answer_comes_from(tmp_path: Path) -> None:
    task = folder(tmp_path, {"a": [1.0, -1.0], "b": [0.0, 1.0], "c": [1.0, 1.0]}, kind="generate")
    out = tmp_path / "data.parquet"
    assert write_generated(task, chat_model(tmp_path, CHATML), out, EnvironmentSpec(name="sort"), tmp_path) == 6
    rows = pq.read_table(out).to_pylist()
    told = {
        "prompt": "de",
        "task_type": "sort",
        "response": "f",
        "llm_response": "f",
        "score": 1.0,
        "shard": 0,
        "policy_step": 7,
        "response_mask": [1, 1],
    }
    assert rows[0] | told == rows[0]
    assert rows[0]["messages"] == [{"role": "user", "content": "de"}, {"role": "assistant", "content": "f"}]
    assert rows[1]["score"] is None and rows[0]["mean_logprob"] == -1.0
    assert (rows[5]["shard"], rows[5]["node"], rows[5]["task"]) == (1, NODE, task.path.name)
    assert rows[0]["commitment_signature"] == "01" * 65
    assert json.loads(rows[0]["verdicts"])[0]["signature"] == "cd" * 65


@pytest.mark.parametrize("name", ["data.parquet", "data.jsonl"])
def test_generated_data_is_filtered_and_trained_on_and_strangers_read_it(tmp_path: Path, name: str) -> None:
    first = [
        {"problem_id": n, "prompt": f"{n}+2=", "task_type": "verifiable_math", "difficulty": n / 2, "tags": ["a", n]}
        | {"verification_info": {"ground_truth": n + 2}, "in_source_id": f"s{n}"}
        for n in range(40)
    ]
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "9+9="}]
    rows = [*first, {"question": "8*9=", "answer": "So\n#### 72"}]
    rows += [{"data_source": "math_dapo", "prompt": chat, "reward_model": {"ground_truth": "18"}}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    environment = EnvironmentSpec(name="dataset", args={"path": "rows.jsonl", "template": "chat"})
    source = load(Arguments(path="rows.jsonl", template="chat", held_back_share=0.3), tmp_path, None)  # type: ignore[arg-type]
    problems = [source.problem(n) for n in range(source.size)]
    problems += [source.held_back_problem(n) for n in range(source.held_back)]
    task = folder(tmp_path, {one.problem_id: [1.0, 0.0, 1.0, 0.0] for one in problems}, 16, kind="generate")
    assert write_generated(task, chat_model(tmp_path, CHATML), tmp_path / name, environment, tmp_path) == 42 * 4

    if name.endswith("parquet"):
        table = pq.read_table(tmp_path / name)
    else:  # as `datasets.load_dataset("json", ...)` reads it
        table = pyarrow.json.read_json(tmp_path / name)
    written = {row["problem_id"]: row for row in table.to_pylist()}
    assert {"task_type", "gold_standard_solution", "source", "llm_response", "response_id"} < set(table.column_names)
    assert written["7"]["in_source_id"] == "s7" and written["7"]["difficulty"] == 3.5
    assert json.loads(written["7"]["verification_info"]) == {"ground_truth": "9"} and written["7"]["tags"] == '["a", 7]'

    again = load(Arguments(path=name, template="chat", held_back_share=0.3), tmp_path, None)  # type: ignore[arg-type]
    read = [again.problem(n) for n in range(again.size)] + [again.held_back_problem(n) for n in range(again.held_back)]
    assert {(one.problem_id, one.prompt, one.answer, one.task, one.before) for one in read} == {
        (one.problem_id, one.prompt, one.answer, one.task, one.before) for one in problems
    }
    rates: Scores = {one.problem_id: [float(n % 2), 0.0] for n, one in enumerate(read)}
    kept = write_filtered(folder(tmp_path, rates), tmp_path / name, tmp_path / f"kept-{name}", 0.25, 0.75)
    assert kept.kept == 21 * 4
    arguments = Arguments(path=f"kept-{name}", template="chat", solve_rate_field="solve_rate", held_back_share=0.3)
    trained = load(arguments, tmp_path, Characters())
    assert trained.size + trained.held_back == 21
    problem = trained.problem(0)
    right = one_answer(Characters().encode(problem.answer[0] + "\n"))
    assert trained.score([problem], [right]) == [1.0]
    trained.close()


@pytest.mark.parametrize("name", ["data.parquet", "data.jsonl"])
def test_generated_rollouts_of_several_turns_load_as_a_training_set(tmp_path: Path, name: str) -> None:
    texts = chat_model(tmp_path, CHATML)
    (end,) = texts.eos
    prompt, reply = texts.encode_messages([("system", "be brief"), ("user", "ab")]), texts.encode_reply("no")
    turns = [*texts.encode("cd"), end], reply, [*texts.encode("ef"), end]
    row = SampleRow(0, 0, "p", prompt, [token for turn in turns for token in turn], True, b"", [*map(len, turns)])
    task, out = one_answer_task(tmp_path, row, logprobs=[-1.0, -2.0, -1.0, -2.0, -1.0, -2.0]), tmp_path / name
    assert write_generated(task, texts, out, EnvironmentSpec(name="sort"), tmp_path) == 1
    (loaded,) = pq.read_table(out).to_pylist() if out.suffix == ".parquet" else [json.loads(out.read_text())]
    said = [(message["role"], message["content"]) for message in loaded["messages"]]
    wanted = [("system", "be brief"), ("user", "ab"), ("assistant", "cd"), ("user", "no"), ("assistant", "ef")]
    assert said == wanted
    tokens = loaded["prompt_tokens"] + loaded["response_tokens"]
    assert texts.render(said) == texts.spell(tokens) + "[assistant]"  # whoever trains on messages gets these tokens
    learnt = [token for token, one in zip(loaded["response_tokens"], loaded["response_mask"], strict=True) if one]
    assert learnt == [*turns[0], *turns[2]] and len(loaded["response_mask"]) == len(loaded["response_tokens"])
    assert (loaded["mean_logprob"], loaded["turns"], loaded["response"]) == (-1.5, 2, "ef")


def one_answer_task(tmp_path: Path, row: SampleRow, logprobs: list[float]) -> TaskFolder:
    spec = TaskSpec(kind="generate", policy=ROOT, step=7, last=1)
    made = TaskFolder(tmp_path / task_id(encode_task(spec)).hex())
    made.create(encode_task(spec))
    file = tmp_path / "file"
    data = encode(RolloutBatch(RolloutHeader(1, NODE, made.path.name, 0), (row,)))
    file.write_bytes(data)
    root = describe(data).root.hex()
    report = ValidatorReport(ReportHeader(root, made.path.name), (ReportRow(0, 0, 1.0, logprobs),))
    made.add(ShardRecord(0, NODE, "ef" * 32, root, 6, "01" * 65, (), 1.0), file, encode_report(report))
    return made


def test_a_group_on_which_judges_differ_is_dropped(tmp_path: Path) -> None:
    subject = Asset(path="subject.arrow", root=ROOT, size=9)
    opinions: Scores = {"0/0": [0.5], "0/1": [0.75], "1/0": [0.25], "1/1": [0.0], "2/0": [1.0]}
    changes = {"kind": "judge", "copies": 3, "subject": ROOT, "assets": (subject,), "samples": 1}
    spec = TaskSpec(last=5, shard_size=8, policy=ROOT, **changes)  # type: ignore[arg-type]
    made = TaskFolder(tmp_path / task_id(encode_task(spec)).hex())
    made.create(encode_task(spec))
    shifted = {**opinions, "1/1": [0.75], "2/0": [0.9375]}
    for judge, said in enumerate((opinions, shifted, opinions)):
        add(made, judge, said, tmp_path, node=f"0x{judge:040x}")
    found = judgement(made)
    assert found.scores == {"0/0": 0.5, "0/1": 0.75, "2/0": 1.0}
    assert found.dropped == (1,) and len(found.judges) == 3


def test_equal_reports_of_most_reviewers_confirm_each_other(tmp_path: Path) -> None:
    spec = TaskSpec(kind="review", last=1, copies=3, subject=ROOT, units=100)
    made = TaskFolder(tmp_path / task_id(encode_task(spec)).hex())
    made.create(encode_task(spec))
    file = tmp_path / "report"
    for shard, text in enumerate([b'{"good":true}', b"{}", b'{"good":true}']):
        file.write_bytes(text)
        root = describe(text).root.hex()
        assert review(made).confirmed is None
        made.add(ShardRecord(shard, f"0x{shard:040x}", "", root, 0, "", (), 1.0), file, b"")
    assert review(made).confirmed == {"good": True} and len(review(made).reports) == 2
