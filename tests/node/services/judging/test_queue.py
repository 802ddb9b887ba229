"""A file that takes long holds up its author's next ones, and nobody else's."""

from typing import Any

import trio

from node.services.judging.queue import InspectionQueue

PATIENCE = 10.0
MOST_BEHIND = 2
MOST_WAITING = 64


class Diary:
    """When each look was over, by the clock."""

    def __init__(self) -> None:
        self.over: list[tuple[str, float]] = []
        self.started = trio.current_time()

    def look(self, name: str, seconds: float) -> Any:
        async def looking() -> None:
            await trio.sleep(seconds)
            self.over.append((name, round(trio.current_time() - self.started)))

        return looking


async def test_looks_are_taken_one_after_the_other(autojump_clock: Any) -> None:
    diary = Diary()
    async with trio.open_nursery() as nursery:
        looks = InspectionQueue(nursery)
        for author, name in (("a", "1"), ("b", "2"), ("a", "3")):
            assert await looks.take(author, diary.look(name, 5))
    assert diary.over == [("1", 5), ("2", 10), ("3", 15)]


async def test_one_whose_answers_hold_their_scorer_up_is_left_behind(autojump_clock: Any) -> None:
    """Its next files wait for it, in their order; of the others none waits longer than the patience."""
    diary = Diary()
    async with trio.open_nursery() as nursery:
        looks = InspectionQueue(nursery)
        assert await looks.take("hostile", diary.look("stalls", 60))
        for author, name in (("hostile", "next"), ("b", "1"), ("hostile", "last"), ("c", "2")):
            assert await looks.take(author, diary.look(name, 3))
        assert trio.current_time() - diary.started == PATIENCE + 6
    assert diary.over == [("1", 13), ("2", 16), ("stalls", 60), ("next", 63), ("last", 66)]


async def test_an_author_is_looked_at_as_before_once_its_slow_look_is_over(autojump_clock: Any) -> None:
    diary = Diary()
    async with trio.open_nursery() as nursery:
        looks = InspectionQueue(nursery)
        await looks.take("a", diary.look("slow", PATIENCE + 1))
        await trio.sleep(5)
        await looks.take("a", diary.look("quick", 1))
        assert trio.current_time() - diary.started == PATIENCE + 6, "it was waited for"


async def test_what_waits_behind_a_slow_look_is_bounded_and_so_are_slow_looks(autojump_clock: Any) -> None:
    diary = Diary()
    async with trio.open_nursery() as nursery:
        looks = InspectionQueue(nursery)
        for author in range(MOST_BEHIND):
            await looks.take(author, diary.look(f"slow {author}", 1000))
        taken = [await looks.take(0, diary.look("waits", 0)) for _ in range(MOST_WAITING + 1)]
        assert taken == [True] * MOST_WAITING + [False]
        await looks.take("another", diary.look("slow, too", 500))
        assert diary.over == [("slow, too", PATIENCE * MOST_BEHIND + 500)], "it was waited for to the end"


async def test_a_look_that_is_over_at_the_last_moment_is_over(autojump_clock: Any) -> None:
    diary = Diary()
    async with trio.open_nursery() as nursery:
        looks = InspectionQueue(nursery)
        for _ in range(3):
            await looks.take("a", diary.look("at the last moment", PATIENCE))
    assert len(diary.over) == 3
