import json
from pathlib import Path

import msgspec
import pytest

from node.errors import ConfigError
from node.hardware import Gpu, Hardware
from node.recipe.capacity import CapacityGauge, MachineCapacity, cache_per_token, measure
from node.recipe.requirements import check_requirements, reached_target, shortfalls, spent
from protocol.run import EnvironmentSpec, Recipe, RolloutSpec, RunSpec
from protocol.sections import Budget, LengthBudget, Requirement, Requirements

RUN = RunSpec(
    name="t",
    environment=EnvironmentSpec(name="sort"),
    rollout=RolloutSpec(group_size=4, prompts_per_file=2, prompts_per_step=2, max_prompt_tokens=20),
    recipe=Recipe(target_reward=0.8),
    length_budget=LengthBudget(targets=(10, 100, 1000), seconds=10.0),
    requirements=Requirements(worker=Requirement(cores=4, memory_gib=8, gpu_memory_gib=20)),
)
ROOMY = MachineCapacity(memory=1 << 40, cache_per_token=1000)


@pytest.mark.parametrize(("speed", "capacity"), [(5, 0), (8, 0), (80, 1), (799, 1), (800, 2), (1e6, 2)])
def test_a_slow_node_is_dealt_short_budgets(speed: float, capacity: int) -> None:
    gauge = CapacityGauge(RUN, ROOMY)
    assert gauge.capacity == 0  # nothing is measured yet
    gauge.note(int(speed * 100), 100.0)
    assert gauge.capacity == capacity


def test_a_node_with_little_memory_is_dealt_short_budgets() -> None:
    # class 1: 4 sequences of 120 tokens of 1000 bytes, in half of the memory
    for memory, capacity in ((2 * 480_000, 1), (2 * 480_000 - 1, 0), (2 * 4_080_000, 2)):
        gauge = CapacityGauge(RUN, MachineCapacity(memory, 1000))
        gauge.note(1_000_000, 1.0)
        assert gauge.capacity == capacity


def test_the_memory_of_a_gpu_counts_once_others_have_seen_it_compute() -> None:
    believed = False
    gauge = CapacityGauge(RUN, MachineCapacity(960_000, 1000, gpu_memory=1 << 40), 1e6, lambda: believed)
    assert gauge.capacity == 1
    believed = True
    assert gauge.capacity == 2


def test_the_measured_speed_follows_slowly() -> None:
    gauge = CapacityGauge(RUN, ROOMY)
    gauge.note(1000, 1.0)
    gauge.note(0, 1.0)
    gauge.note(10, 0.0)
    gauge.note(100, 1.0)
    assert gauge.speed == pytest.approx(730)


def test_without_budgets_there_is_one_class() -> None:
    gauge = CapacityGauge(msgspec.structs.replace(RUN, length_budget=LengthBudget()), ROOMY)
    gauge.note(1_000_000, 1.0)
    assert gauge.capacity == 0


def test_the_cache_of_a_token_follows_from_the_model(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    shape = {"num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 256}
    config.write_text(json.dumps(shape))
    assert cache_per_token(config) == 2 * 3 * 2 * 32 * 4
    for broken in ("{}", "[]", "no", '{"num_hidden_layers": null}'):
        config.write_text(broken)
        assert cache_per_token(config) == 0
    assert measure(tmp_path, (Gpu("g", 5), Gpu("h", 9))).gpu_memory == 9


def test_a_machine_that_is_too_small_is_told_what_it_lacks() -> None:
    small = Hardware(cores=2, memory=4 * 2**30, gpus=(Gpu("g", 16 * 2**30),))
    assert shortfalls(RUN, "trainer", small) == []
    assert len(shortfalls(RUN, "worker", small)) == 3
    with pytest.raises(ConfigError, match=r"2 cores, the run asks for 4 .*requirements\.worker\.cores"):
        check_requirements(RUN, "worker", small)
    check_requirements(RUN, "worker", Hardware(4, 8 * 2**30, (Gpu("g", 20 * 2**30),)))


def test_a_run_ends_at_its_goal_or_with_its_budget() -> None:
    assert not reached_target(RUN, [1.0] * 9)
    assert reached_target(RUN, [0.0] * 5 + [0.8] * 10)
    assert not reached_target(msgspec.structs.replace(RUN, recipe=Recipe()), [1.0] * 20)
    limited = msgspec.structs.replace(RUN, budget=Budget(hours=0.5, tokens=100))
    assert spent(limited, 1799, 99) is None and spent(RUN, 1e9, 1 << 50) is None
    assert "hours" in (spent(limited, 1800, 0) or "") and "tokens" in (spent(limited, 0, 100) or "")
