"""What fits where: sizes of known models against cards of 24, 80 and 141 GB. No device is asked."""

from pathlib import Path

import pytest

from cli.run_directory import Means, beside_a_learner
from node.config import NodeConfig
from node.hardware import nvidia
from node.hardware.gpu import Gpu
from node.inference.room import CONTEXT, GIB, PASS_TOKENS, SHARE, ModelSize, NoRoom, Plan, plan
from node.training.settings import TrainerSettings
from node.training.sizing import KNOWN, engine_plan, engine_size, left_for_training
from protocol.run import RunSpec

SMALL, MIDDLE, LARGE = "qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-32b"


def fits(model: str, gib: int, dtype: str = "bfloat16", leave: int = 0) -> Plan:
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
    settings = TrainerSettings(activation_checkpointing=True)
    leave = left_for_training(KNOWN[SMALL], settings, gpus=1)
    assert 30 * GIB < leave < 40 * GIB
    beside = fits(SMALL, 80, leave=leave)
    assert 0.3 * alone.batch_tokens < beside.batch_tokens < 0.6 * alone.batch_tokens
    assert left_for_training(KNOWN[SMALL], settings, gpus=2) < leave, "the evaluator has a card of its own"
    with pytest.raises(NoRoom, match="memory") as caught:
        fits(SMALL, 24, leave=leave)
    assert "learner" in caught.value.why
    assert "room for" in engine_plan(KNOWN[SMALL], 80 * GIB) and "needs" in engine_plan(KNOWN[LARGE], 24 * GIB)


def test_a_size_is_counted_alike_from_a_configuration_and_from_a_shape() -> None:
    class Configuration:
        model_type = "qwen2"
        num_attention_heads, num_key_value_heads, head_dim = 12, 2, 128
        num_hidden_layers, hidden_size, intermediate_size, vocab_size = 28, 1536, 8960, 151_936

    shape = KNOWN[SMALL]
    assert ModelSize.of(Configuration, shape.parameters) == engine_size(shape)


def test_an_engine_on_the_learners_gpu_is_told_what_to_leave(
    tiny_run: RunSpec, tiny_assets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = NodeConfig.engine_program()
    means = Means([*program, "--engine", "torch"], "", TrainerSettings())
    monkeypatch.setattr(nvidia, "look", lambda: ((), ""))
    assert beside_a_learner(tiny_run, tiny_assets, means) == [*program, "--engine", "torch"]
    monkeypatch.setattr(nvidia, "look", lambda: ((Gpu("H200", 141 << 30),), "580"))
    *same, flag, gib = beside_a_learner(tiny_run, tiny_assets, means)
    assert same == [*program, "--engine", "torch"] and flag == "--leave-gib" and 0.5 < float(gib) < 10
    own = Means(["mine"], "", TrainerSettings())
    assert beside_a_learner(tiny_run, tiny_assets, own) == ["mine"]
