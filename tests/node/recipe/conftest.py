"""Groups made of numbers."""

from collections.abc import Callable, Sequence

import pytest

from node.recipe.pool import Group, PoolSample
from node.training.batch import BatchRow

MakeGroup = Callable[..., Group]


@pytest.fixture
def make_group() -> MakeGroup:
    """make_group(number, rewards, policy_step=0, index=0, label=...)."""

    def make(number: int, rewards: Sequence[float], policy_step: int = 0, index: int = 0, label: str = "sort") -> Group:
        root = bytes([policy_step, index]) + bytes(30)
        rows = tuple(BatchRow(number, [1], [2, 3], [-0.5, -0.5], reward, policy_step) for reward in rewards)
        samples = tuple(PoolSample(2, reward, reward, True) for reward in rewards)
        return Group((root, number), policy_step, rows, samples, label, (policy_step, index))

    return make
