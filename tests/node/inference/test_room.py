"""What fits where: sizes of known models against cards of 24, 80 and 141 GB. No device is asked."""

from pathlib import Path

import pytest

from cli.run_directory import TrainingMeans, engines_of
from node.config import NodeConfig
from node.inference.room import CONTEXT, GIB, LEAST_TOKENS, PASS_TOKENS, MemoryPlan, ModelSize, NoRoom, needed, plan
from node.processes.forkserver import Anew
from node.training.planner import GpuCard, PlannedMachine
from node.training.planning import plan_here
from node.training.settings import TrainerSettings
from node.training.sizing import KNOWN, engine_size
from protocol.run import RunSpec, encode_run

SHARE = 0.9

SMALL, MIDDLE, LARGE = "qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-32b"


def fits(model: str, gib: int, dtype: str = "bfloat16", leave: int = 0) -> MemoryPlan:
    return plan(engine_size(KNOWN[model]), gib * GIB, dtype, leave=leave)


@pytest.mark.parametrize(
    ("model", "gib", "least", "most"),
    [
        (SMALL, 24, 500_000, 700_000),
        (SMALL, 80, 2_200_000, 2_600_000),
        (SMALL, 141, 4_000_000, 1 << 22),
        (MIDDLE, 24, 50_000, 130_000),
        (MIDDLE, 80, 900_000, 1_100_000),
        (MIDDLE, 141, 1_900_000, 2_200_000),
        (LARGE, 80, 2_048, 40_000),
        (LARGE, 141, 200_000, 300_000),
    ],
)
def test_the_budget_follows_from_the_card(model: str, gib: int, least: int, most: int) -> None:
    found = fits(model, gib)
    assert least <= found.batch_tokens <= most
    assert found.weights + found.passes + found.logits + found.cache + CONTEXT <= SHARE * gib * GIB
    assert found.logit_cells >= KNOWN[model].vocabulary and found.pass_tokens <= PASS_TOKENS


def test_a_model_that_does_not_fit_is_refused_with_both_numbers() -> None:
    with pytest.raises(NoRoom) as caught:
        fits(LARGE, 24)
    assert "24.0 GiB" in caught.value.why and "needs 6" in caught.value.why and "bfloat16" in caught.value.remedy
    with pytest.raises(NoRoom):
        fits(MIDDLE, 24, "float32")


def test_little_room_is_said_and_a_full_card_is_not() -> None:
    tight = plan(engine_size(KNOWN[SMALL]), int(4.8 * GIB), "bfloat16")
    assert tight.small and "fewer than the 32,768" in tight.text and tight.pass_tokens < PASS_TOKENS
    assert not fits(SMALL, 24).small


def test_a_head_of_its_own_in_float32_and_others_on_the_card_take_from_the_cache() -> None:
    size, free = engine_size(KNOWN[SMALL]), 80 * GIB
    alone, wide = plan(size, free, "bfloat16"), plan(size, free, "bfloat16", wide_head=True)
    assert wide.weights - alone.weights == 4 * 151_936 * 1536
    assert wide.batch_tokens < alone.batch_tokens
    beside = fits(SMALL, 80, leave=36 * GIB)
    assert 0.3 * alone.batch_tokens < beside.batch_tokens < 0.6 * alone.batch_tokens
    with pytest.raises(NoRoom, match="memory") as caught:
        fits(SMALL, 24, leave=23 * GIB)
    assert "learner" in caught.value.why


def test_what_a_cache_needs_is_what_just_has_room_for_it() -> None:
    for tokens in (LEAST_TOKENS, 40_000):
        least = needed(engine_size(KNOWN[SMALL]), tokens, "bfloat16")
        assert plan(engine_size(KNOWN[SMALL]), least, "bfloat16").batch_tokens >= tokens
        assert needed(engine_size(KNOWN[SMALL]), tokens + 1000, "bfloat16") > least


def test_a_size_is_counted_alike_from_a_configuration_and_from_a_shape() -> None:
    class Configuration:
        model_type = "qwen2"
        num_attention_heads, num_key_value_heads, head_dim = 12, 2, 128
        num_hidden_layers, hidden_size, intermediate_size, vocab_size = 28, 1536, 8960, 151_936

    shape = KNOWN[SMALL]
    assert ModelSize.of(Configuration, shape.parameters) == engine_size(shape)


def test_each_engine_is_told_its_card_and_what_it_may_take_there(tiny_run: RunSpec, tiny_assets: Path) -> None:
    program = NodeConfig.engine_program()
    cards = tuple(GpuCard(str(at), "H200", 141 * GIB) for at in range(3))

    def engines(count: int, *command: str) -> list[tuple[list[str], str]]:
        found = plan_here(tiny_run, tiny_assets, {}, PlannedMachine(cards[:count], 64 * GIB), samples=True)
        means = TrainingMeans(command, "", {}, TrainerSettings())
        made = engines_of(found, means, encode_run(tiny_run), tiny_assets, Anew())
        return [(one._command, one._env["CUDA_VISIBLE_DEVICES"]) for one in made]

    ((command, card),) = engines(1, *program, "--engine", "torch")
    assert command[:-2] == [*program, "--engine", "torch"] and command[-2] == "--most-gib" and card == "0"
    assert 100 < float(command[-1]) < 136
    several = engines(3, *program)
    # The evaluator stands on one of them, and the other is an engine's alone.
    assert [card for _, card in several] == ["1", "2"] and "--most-gib" in several[0][0]
    assert several[1][0] == program
    assert engines(1, "mine")[0][0] == ["mine"]
    assert engines(1, *program, "--most-gib", "3")[0][0] == [*program, "--most-gib", "3"], "what was said stands"
    assert not plan_here(tiny_run, tiny_assets, {}, PlannedMachine((), 64 * GIB), samples=True).engines[0].card
