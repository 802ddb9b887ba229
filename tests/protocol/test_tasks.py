"""What a task asks for, and how it is cut."""

import msgspec
import pytest

from protocol.identity import NodeKey
from protocol.merging import Merge
from protocol.run import Asset, EnvironmentSpec, RolloutSpec, RunSpec
from protocol.sections import EnvironmentPart
from protocol.tasks import (
    MAX_SPEC_BYTES,
    MergeOrder,
    TaskError,
    TaskSpec,
    admits_engine,
    by_weight,
    decode_task,
    encode_task,
    rank,
    run_of_shard,
    shard_seed,
    task_id,
    weight,
)

POLICY = "ab" * 32
NODES = [NodeKey(bytes([n]) * 32).address for n in range(1, 8)]


def spec(**changes: object) -> TaskSpec:
    return TaskSpec(**{"kind": "filter", "policy": POLICY, "last": 100, "samples": 8, **changes})  # type: ignore[arg-type]


def mixed(*parts: EnvironmentPart) -> EnvironmentSpec:
    return EnvironmentSpec(name="mix", parts=parts)


def test_shards_cover_every_problem_once() -> None:
    task = spec(first=3, last=100, shard_size=16)
    assert task.shards == 7
    assert [n for shard in range(task.shards) for n in task.numbers(shard)] == list(range(3, 100))
    with pytest.raises(IndexError):
        task.numbers(7)


def test_copies_ask_three_nodes_for_the_same_and_know_each_other() -> None:
    task = spec(kind="review", subject=POLICY, copies=3, last=40, shard_size=32)
    assert task.shards == 6
    assert task.numbers(0) == task.numbers(2) == range(0, 32) and task.numbers(5) == range(32, 40)
    assert list(task.siblings(4)) == [3, 4, 5]


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (MergeOrder(models=(POLICY,), rule=Merge(weights=(1, 1))), "1 models have 2 weights"),
        (MergeOrder(models=("ab",), rule=Merge(weights=(1,))), "64 hex digits"),
        (MergeOrder(models=(POLICY,), rule=Merge("ties", (1,))), "needs a base"),
        (MergeOrder(models=(POLICY,), base=POLICY, rule=Merge(weights=(1,))), "has no base"),
        (MergeOrder(models=(POLICY,), rule=Merge(weights=(0,))), "weights must be whole"),
        (MergeOrder(models=(POLICY,), base=POLICY, rule=Merge("dare", (1,), density=2.0)), "density"),
        (MergeOrder(models=(POLICY,), base=POLICY, rule=Merge("ties", (1,), scale=float("inf"))), "scale"),
        (None, "must be there to merge"),
    ],
)
def test_a_merge_that_makes_no_sense_is_named(order: MergeOrder | None, words: str) -> None:
    good = TaskSpec(kind="merge", last=9, units=5, merge=MergeOrder(models=(POLICY,), rule=Merge(weights=(1,))))
    assert decode_task(encode_task(good)) == good and good.most_bytes > 2 * 16 << 20
    with pytest.raises(TaskError, match=words):
        msgspec.structs.replace(good, merge=order).check()
    with pytest.raises(TaskError, match="at most 16 a shard"):
        msgspec.structs.replace(good, shard_size=17).check()


def test_a_task_has_one_encoding_and_so_one_id() -> None:
    task = spec()
    data = encode_task(task)
    assert decode_task(data) == task and task_id(data) == task_id(encode_task(spec()))
    assert task_id(data) != task_id(encode_task(spec(nonce="again")))
    with pytest.raises(TaskError, match="canonical"):
        decode_task(msgspec.json.format(data))
    with pytest.raises(TaskError):
        decode_task(data.ljust(MAX_SPEC_BYTES + 1))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"last": 0}, "problems"),
        ({"shard_size": 0}, "samples"),
        ({"samples": 256, "shard_size": 64}, "samples"),
        ({"last": 1 << 40}, "shards"),
        ({"policy": "AB" * 32}, "policy"),
        ({"copies": 3}, "copies"),
        ({"kind": "judge", "copies": 3}, "subject"),
        ({"subject": POLICY}, "subject"),
        ({"lease_seconds": 0.5}, "lease_seconds"),
        ({"temperature": 11.0}, "temperature"),
        ({"max_output_tokens": -1}, "tokens"),
        ({"nonce": "n" * 200}, "nonce"),
        ({"version": 2}, "version"),
        ({"environment": EnvironmentSpec(name="sort", reward="my.module:score")}, "environment"),
        ({"environment": EnvironmentSpec(name="verifiers")}, "environment"),
        ({"environment": mixed(EnvironmentPart(name="sort", reward="my.module:score"))}, "environment"),
        ({"environment": mixed(EnvironmentPart(name="verifiers"))}, "environment"),
        ({"kind": "judge", "copies": 3, "subject": POLICY}, "assets"),
        ({"step": -2}, "step"),
        ({"assets": (Asset(path="a", root="no root", size=5),)}, "assets"),
        ({"assets": (Asset(path="a", root=POLICY, size=-5),)}, "assets"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(changes: dict[str, object], field: str) -> None:
    with pytest.raises(TaskError, match=field):
        decode_task(encode_task(spec(**changes)))


def test_a_step_that_no_message_can_carry_is_refused() -> None:
    encoded = encode_task(spec()).replace(b'"step":-1', b'"step":1' + bytes(30 * b"0"))
    with pytest.raises(TaskError, match="step"):
        decode_task(encoded)


def test_a_shard_is_checked_by_the_tasks_sizes_and_without_length_budgets() -> None:
    run = RunSpec(name="r", environment=EnvironmentSpec(name="sort"), rollout=RolloutSpec(max_output_tokens=20))
    task = spec(environment=EnvironmentSpec(name="reverse"), last=20, shard_size=16, temperature=0.5)
    shard = run_of_shard(run, task, 1)
    assert (shard.rollout.prompts_per_file, shard.rollout.group_size) == (4, 8)
    assert (shard.rollout.max_output_tokens, shard.rollout.temperature) == (20, 0.5)
    assert shard.environment.name == "reverse" and run_of_shard(run, spec(), 0).environment.name == "sort"


def test_seeds_follow_from_the_shard_and_not_from_who_does_it() -> None:
    id = task_id(encode_task(spec()))
    seeds = {shard_seed(id, shard, group, sample) for shard in (0, 1) for group in (0, 1) for sample in (0, 1)}
    assert len(seeds) == 8


def test_rendezvous_shares_the_shards_out_and_moves_only_those_of_who_leaves() -> None:
    id = task_id(encode_task(spec()))

    def first(shard: int, nodes: list[str]) -> str:
        return next(node for node in nodes if rank(id, shard, node, nodes) == 0)  # type: ignore[arg-type]

    before = [first(shard, NODES) for shard in range(350)]
    after = [first(shard, NODES[1:]) for shard in range(350)]
    assert min(before.count(node) for node in NODES) > 25
    assert all(old == new for old, new in zip(before, after, strict=True) if old != NODES[0])
    assert by_weight(id, 350, NODES[0]) == sorted(range(350), key=lambda shard: weight(id, shard, NODES[0]))


def test_what_a_task_requires_is_read_from_the_engine_that_a_node_names() -> None:
    assert admits_engine(spec(), "")
    assert admits_engine(spec(device="cuda"), "torch 2.9 (cuda, bfloat16)")
    assert not admits_engine(spec(device="cuda"), "torch 2.9 (cpu, float32)")
