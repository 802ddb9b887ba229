from collections import Counter

import numpy as np

from protocol.draw import draw_problems, sample_seed
from protocol.identity import NodeKey

NODE, OTHER = NodeKey(b"\x05" * 32).address, NodeKey(b"\x06" * 32).address
ROOT = b"\x11" * 32
GOLDEN_PROBLEMS = (1660, 6628, 1194, 6582, 6636, 2732)
GOLDEN_SEED = "b2e14b2a647b90945ef963931d11a4759dd0da3f94025cc383e47a3c5a123cb4"


def test_policy_node_and_index_each_change_the_draw() -> None:
    draws = {
        draw_problems(ROOT, NODE, 0, 8, 10_000),
        draw_problems(b"\x12" * 32, NODE, 0, 8, 10_000),
        draw_problems(ROOT, OTHER, 0, 8, 10_000),
        draw_problems(ROOT, NODE, 1, 8, 10_000),
    }
    assert len(draws) == 4


def test_no_problem_is_favoured() -> None:
    counts = Counter(draw_problems(ROOT, NODE, 0, 30_000, 10))
    expected = 3000.0
    chi2 = sum((counts[i] - expected) ** 2 / expected for i in range(10))
    assert chi2 < 33.7  # 9 degrees of freedom, p = 1e-4


def test_every_sample_has_its_own_seed() -> None:
    seeds = {sample_seed(ROOT, NODE, i, g, s) for i in range(3) for g in range(5) for s in range(8)}
    assert len(seeds) == 120
    assert np.unique([len(seed) for seed in seeds]).tolist() == [32]


def test_a_longer_draw_begins_with_the_shorter_one() -> None:
    assert draw_problems(ROOT, NODE, 3, 4, 1000) == draw_problems(ROOT, NODE, 3, 8, 1000)[:4]


def test_the_draw_never_changes_between_versions() -> None:
    assert draw_problems(bytes(32), NODE, 0, 6, 10_000) == GOLDEN_PROBLEMS
    assert sample_seed(bytes(32), NODE, 0, 1, 2).hex() == GOLDEN_SEED
