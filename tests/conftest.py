"""The longest files begin first: two processes share the tests file by file, and the last one would run alone. And no
property fails because the machine is busy."""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("ours", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")

LONGEST = ("tests/swarm/test_swarm.py", "tests/node/training/test_trainer.py", "tests/cli/test_train.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        file = item.nodeid.partition("::")[0]
        return LONGEST.index(file) if file in LONGEST else len(LONGEST)

    items.sort(key=place)
