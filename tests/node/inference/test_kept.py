"""Which policies an engine's process keeps, and what several jobs have of one environment."""

import threading
from pathlib import Path

import pytest

from node.environments.base import OneTurn
from node.inference.errors import EngineError
from node.inference.guarded import Guarded
from node.inference.kept import KeptPolicies

KEY = bytes(32)


@pytest.fixture
def path(tiny_assets: Path) -> str:
    return str(tiny_assets / "model" / "model.safetensors")


def test_the_oldest_that_nobody_is_at_work_with_is_forgotten(path: str) -> None:
    kept = KeptPolicies(lambda path: {}, limit=2)
    with kept.in_use(b"a"):
        for root in (b"a", b"b", b"c", b"d"):
            kept.keep(root, path)
        assert kept.roots() == [b"a", b"d"]
        assert len(kept.get(b"a").image.answer(KEY)) == 64
    kept.keep(b"e", path)
    assert kept.roots() == [b"d", b"e"]
    with pytest.raises(EngineError, match="not among"):
        kept.get(b"a")


def test_a_policy_that_comes_again_is_the_newest_and_read_once(path: str) -> None:
    reads: list[str] = []
    kept = KeptPolicies(lambda path: reads.append(path) or {}, limit=2)
    for root in (b"a", b"b", b"a", b"c"):
        kept.keep(root, path)
    assert kept.roots() == [b"a", b"c"] and len(reads) == 3


class Slow(OneTurn):
    """Gives up on every answer, and notices when two ask at a time."""

    name, size, held_back, determinism = "slow", 1, 0, "exact"

    def __init__(self) -> None:
        self.gave_up = 0
        self.inside = 0
        self.closed = 0

    def score(self, problems, transcripts) -> list[float]:
        self.inside += 1
        assert self.inside == 1
        threading.Event().wait(0.01)
        self.gave_up += 1
        self.inside -= 1
        return []

    def close(self) -> None:
        self.closed += 1


def test_jobs_score_one_after_the_other_and_count_their_own() -> None:
    slow = Slow()
    environment, own = Guarded(slow), []  # type: ignore[arg-type]

    def job() -> None:
        for _ in range(3):
            environment.score([], [])
        own.append(environment.gave_up)

    jobs = [threading.Thread(target=job) for _ in range(4)]
    for one in jobs:
        one.start()
    for one in jobs:
        one.join()
    assert own == [3, 3, 3, 3] and slow.gave_up == 12 and environment.gave_up == 0


def test_an_environment_is_closed_when_its_last_user_is_gone() -> None:
    slow = Slow()
    kept, used = [Guarded(slow)], None  # type: ignore[arg-type]
    used = kept[0]
    kept.clear()
    assert slow.closed == 0
    del used
    assert slow.closed == 1
