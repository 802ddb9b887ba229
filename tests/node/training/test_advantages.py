import numpy as np
import pytest

from node.training.advantages import group_advantages, overlong_penalty, row_weights
from protocol.recipe import ADVANTAGES, NORMALISATIONS

GROUPS = np.array([9, 9, 9, 9, 4, 4, 7])
REWARDS = np.array([1, 0, 0, 0, 1, 1, 1], dtype=np.float32)
LENGTHS = np.array([6, 2, 2, 2, 3, 5, 4])


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        ("grpo", [1.5, -0.5, -0.5, -0.5]),
        ("mean", [0.75, -0.25, -0.25, -0.25]),
        ("opo", [0.5, -0.5, -0.5, -0.5]),  # six of twelve tokens were right
        ("max_rl", [3.0, -1.0, -1.0, -1.0]),
        ("batch", [0.75 / 0.3273, -0.25 / 0.3273, -0.25 / 0.3273, -0.25 / 0.3273]),  # sqrt(0.75 / 7)
    ],
)
def test_advantages_are_relative_to_their_group(kind: str, first: list[float]) -> None:
    found = group_advantages(GROUPS, REWARDS, LENGTHS, kind)
    assert found[:4] == pytest.approx(first, rel=1e-3)
    assert found[4:].tolist() == [0, 0, 0], "equal rewards and groups of one teach nothing"


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_nothing_to_compare_gives_zeros(kind: str) -> None:
    assert group_advantages(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32), None, kind).size == 0
    same = group_advantages(np.zeros(5, dtype=np.int64), np.full(5, 0.1, dtype=np.float32), np.arange(1, 6), kind)
    assert same.tolist() == [0] * 5
    nothing = group_advantages(np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.float32), np.arange(1, 4), kind)
    assert nothing.tolist() == [0] * 3


def test_negative_rewards_have_no_relative_advantage() -> None:
    found = group_advantages(np.zeros(2, dtype=np.int64), np.array([-1, -3], dtype=np.float32), None, "max_rl")
    assert found.tolist() == [0, 0]


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ValueError, match="surprise"):
        group_advantages(GROUPS, REWARDS, LENGTHS, "surprise")
    with pytest.raises(ValueError, match="surprise"):
        row_weights("surprise", GROUPS, LENGTHS, 8)


def test_long_outputs_lose_reward_in_the_last_share_only() -> None:
    found = overlong_penalty(np.array([10, 80, 90, 100, 120]), 100, 0.2)
    assert found.tolist() == pytest.approx([0, 0, -0.5, -1, -1])
    assert overlong_penalty(np.array([100]), 100, 0.0).tolist() == [0]


@pytest.mark.parametrize("kind", NORMALISATIONS)
def test_what_one_update_weighs_does_not_depend_on_lengths(kind: str) -> None:
    total = float((row_weights(kind, GROUPS, LENGTHS, 8) * LENGTHS).sum())
    assert total == pytest.approx(LENGTHS.sum() / (7 * 8) if kind == "constant" else 1.0)


def test_normalisations_differ_in_whom_they_favour() -> None:
    tokens, samples, prompts, constant = (row_weights(kind, GROUPS, LENGTHS, 8) for kind in NORMALISATIONS)
    assert tokens.tolist() == pytest.approx([1 / 24] * 7)
    assert samples.tolist() == pytest.approx((1 / 7 / LENGTHS).tolist())
    assert prompts.tolist() == pytest.approx([1 / 36] * 4 + [1 / 24] * 2 + [1 / 12])
    assert constant.tolist() == pytest.approx([1 / 56] * 7)
