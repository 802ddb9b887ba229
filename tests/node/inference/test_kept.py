"""Which policies an engine's process keeps, and what several jobs have of one environment."""

import threading
import time
from pathlib import Path

import pytest

from node.environments.base import OneTurn
from node.inference.errors import EngineError
from node.inference.guarded import MOST_LANES, Guarded
from node.inference.session import KeptPolicies, KeptPolicy

KEY = bytes(32)


@pytest.fixture
def path(tiny_assets: Path) -> str:
    return str(tiny_assets / "model" / "model.safetensors")


def test_the_oldest_that_nobody_is_at_work_with_is_forgotten(path: str) -> None:
    kept = KeptPolicies(lambda *given: {}, limit=2)
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
    kept = KeptPolicies(lambda path, *given: reads.append(path) or {}, limit=2)
    for root in (b"a", b"b", b"a", b"c"):
        kept.keep(root, path)
    assert kept.roots() == [b"a", b"c"] and len(reads) == 3


def test_a_policy_that_comes_again_is_there_all_the_time(path: str) -> None:
    class Slowly(dict[bytes, KeptPolicy]):
        """Somebody asks between out and in."""

        def pop(self, *key):
            gone = super().pop(*key)
            asking.start()
            asking.join(0.2)
            return gone

    kept, found = KeptPolicies(lambda *given: {}, limit=2), []
    kept.keep(b"a", path)
    asking = threading.Thread(target=lambda: found.append((kept.get(b"a"), kept.roots())))
    kept._kept = Slowly(kept._kept)
    kept.keep(b"a", path)
    asking.join()
    assert found == [(kept.get(b"a"), [b"a"])]


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


class Lanes(Slow):
    """An environment that can be had several times. hold: its next score waits for that."""

    def __init__(self, hold: threading.Event | None = None) -> None:
        super().__init__()
        self.hold, self.others = hold, []

    def score(self, problems, transcripts) -> list[float]:
        hold, self.hold = self.hold, None
        if hold is not None:
            hold.wait()
        return super().score(problems, transcripts)

    def problem(self, number: int) -> int:
        return number

    def another(self) -> "Lanes":
        self.others.append(Lanes())
        return self.others[-1]


def test_a_job_whose_answers_hold_their_scorer_up_holds_no_other_job_up() -> None:
    """It has the environment's own scorer; who comes meanwhile has another, and no more of them than are needed."""
    through = threading.Event()
    first = Lanes(hold=through)
    environment = Guarded(first)  # type: ignore[arg-type]
    held = threading.Thread(target=lambda: environment.score([], []))
    held.start()
    while first.hold is not None:
        time.sleep(0.001)
    for _ in range(3):
        environment.score([], [])
    assert environment.problem(3) == 3 and environment.gave_up == 3 and first.gave_up == 0
    through.set()
    held.join()
    assert first.gave_up == 1 and [other.gave_up for other in first.others] == [3]
    environment.close()
    assert [one.closed for one in (first, *first.others)] == [1, 1]


def test_there_are_no_more_scorers_than_jobs() -> None:
    through = threading.Event()
    first = Lanes(hold=through)
    first.another = lambda: first.others.append(Lanes(hold=through)) or first.others[-1]  # type: ignore[method-assign]
    environment = Guarded(first)  # type: ignore[arg-type]
    jobs = [threading.Thread(target=lambda: environment.score([], [])) for _ in range(3 * MOST_LANES)]
    for one in jobs:
        one.start()
    while any(one.hold is not None for one in (first, *first.others)) or len(first.others) < MOST_LANES - 1:
        time.sleep(0.001)
    through.set()
    for one in jobs:
        one.join()
    assert len(first.others) == MOST_LANES - 1
    assert first.gave_up + sum(other.gave_up for other in first.others) == len(jobs)


def test_an_environment_is_closed_when_its_last_user_is_gone() -> None:
    slow = Slow()
    kept, used = [Guarded(slow)], None  # type: ignore[arg-type]
    used = kept[0]
    kept.clear()
    assert slow.closed == 0
    del used
    assert slow.closed == 1
