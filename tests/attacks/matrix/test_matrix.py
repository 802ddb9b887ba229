"""The adversarial matrix on whole nodes: cells that ever found something, planted faults, and a few others by turns.

`python -m benchmarks.adversary` runs the rest. An attack that works today is in `known.py`, and its test is expected to
fail: whoever mends the product takes the lines away there.
"""

import logging
import math
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from benchmarks.adversary import Ran, Results, examined, in_order
from node.swarm.counts import COUNTS
from tests.attacks.matrix import words
from tests.attacks.matrix.cells import Cell, Finding, cell_of, cells, compared, examine, templates
from tests.attacks.matrix.defects import FOUND_BY, FROM_THE_START, Defect, names_leave_out_what_an_author_varies
from tests.attacks.matrix.expected import ROWS
from tests.attacks.matrix.known import OPEN, SHOWN_BY, attack_of
from tests.attacks.matrix.warmed import Warmed
from tests.attacks.matrix.world import HONEST, HONEST_WORDS, OWN_WORDS

BY_TURNS = 2
"""Cells of each day: all of them come in some years, a nightly run does them in hours."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.configure(**before)


@pytest.fixture(scope="module")
def world() -> Iterator[Warmed]:
    with Warmed() as warmed:
        yield warmed


@pytest.fixture(scope="module")
def held(world: Warmed) -> Callable[[str], list[Finding]]:
    """What a cell finds in the product as it is: several tests ask for the same."""
    return cache(lambda name: world.examine(cell_of(name))[1])


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.xfail(strict=True, reason=name)] if SHOWN_BY[name].works else []


@pytest.mark.parametrize("name", [pytest.param(one, marks=_marks(one)) for one in SHOWN_BY])
def test_an_attack_of_the_table_moves_nothing(name: str, held: Callable[[str], list[Finding]]) -> None:
    shown = SHOWN_BY[name]
    assert [str(one) for one in held(shown.cell) if one.probe == shown.probe] == []


@pytest.mark.parametrize("defect", FOUND_BY, ids=lambda one: one.__name__)
def test_a_fault_that_is_put_back_into_the_product_is_found(
    defect: Defect, world: Warmed, held: Callable[[str], list[Finding]]
) -> None:
    cell, probe = FOUND_BY[defect]

    def facts(found: list[Finding]) -> set[str]:
        return {fact for one in found if one.probe == probe for fact in (*one.more, *one.fewer)}

    before = facts(held(cell))
    if defect in FROM_THE_START:
        with defect():
            found = examine(cell_of(cell))
    else:
        found = world.examine(cell_of(cell), defect.__name__)[1]
    assert facts(found) - before
    assert not before or any(probe in probes for _, probes in OPEN.values()), "the control"


def test_cells_of_the_day_move_nothing_that_is_not_known(world: Warmed) -> None:
    day = datetime.now(UTC).date().toordinal()
    # Of those who have no right: there the rule has no exception, so that what fails is the product.
    strict = [one for one in cells() if not any(lie.right for lie in one.lies)]
    drawn = random.Random(day).sample(strict, BY_TURNS)
    found = [one for cell in drawn for one in world.examine(cell)[1] if attack_of(one) is None]
    assert not found, "\n".join(map(str, found))


def test_who_convicts_itself_sooner_than_others_would_have_moved_nothing_once_everybody_knows() -> None:
    """The control: one honest node does not have its words against it."""
    cell = cell_of("leader/PolicyAnnounced/fresh/every/before/all/drops")
    others = [name for name in HONEST if name != "leader"]

    def seen(shown_by: str, newest: int, who: list[str]) -> dict[str, frozenset[tuple[Any, ...]]]:
        forks = frozenset((name, "leader", shown_by, 2) for name in who)
        return {"forks": forks, "policies": frozenset((name, "", "newest", newest) for name in others)}

    base = seen(HONEST_WORDS, 6, list(HONEST))
    assert compared(cell, base, seen(OWN_WORDS, 5, others)) == []
    assert {one.probe for one in compared(cell, base, seen(OWN_WORDS, 5, others[1:]))} == {"policies"}
    assert {one.probe for one in compared(cell, base, seen(HONEST_WORDS, 5, others))} == {"policies"}


def test_cells_in_several_processes_come_to_what_they_come_to_alone(held: Callable[[str], list[Finding]]) -> None:
    some = [cell_of(shown.cell) for shown in list(SHOWN_BY.values())[:2]]
    ran = {one.cell: list(one.findings) for one in examined(some, 2, math.inf)}
    assert ran == {str(one): held(str(one)) for one in some}
    assert list(examined(some, 1, -math.inf)) == []


def test_every_message_is_attacked_in_each_of_its_fields() -> None:
    assert ROWS.keys() == COUNTS.keys(), "a message without a row in expected.py"
    said = {kind for kind, _ in templates()}
    assert said == COUNTS.keys(), "a message that no liar of the world can begin with"
    names = [str(one) for one in cells()]
    assert len(set(names)) == len(names) > 5000
    assert all(cell_of(name) == one for name, one in zip(names[::500], cells()[::500], strict=True))


def test_a_long_run_comes_to_each_cell_once_and_to_rounds_pairs_and_each_lie_first() -> None:
    ordered = list(in_order(cells(), 5))
    assert sorted(map(str, ordered)) == sorted(map(str, cells()))
    rare = {one for one in ordered if one.history == "rounds" or "+" in one.author}
    once = {(one.author, one.kind, one.deviation) for one in ordered if one not in rare}
    first = ordered[: len(rare) + len(once)]
    assert rare < set(first) and once < {(one.author, one.kind, one.deviation) for one in first}


def test_a_run_goes_on_from_its_file_also_where_the_last_one_was_killed_as_it_wrote(tmp_path: Path) -> None:
    path, ran = tmp_path / "results", Ran("one", 1.5, (Finding("one", "forks", ("a",), ()),))
    Results(path, 7).add(ran)
    with path.open("a") as out:
        out.write('{"cell":"two"')
    again = Results(path, 9)
    assert (again.seed, again.ran) == (7, [ran])
    again.add(Ran("two", 2.0))
    assert [one.cell for one in Results(path, 9).ran] == ["one", "two"]
    path.write_text("not results\n")
    with pytest.raises(msgspec.DecodeError):
        Results(path, 7)


def test_a_cell_that_goes_on_from_a_warmed_world_finds_what_it_finds_alone(world: Warmed) -> None:
    fault = names_leave_out_what_an_author_varies
    name, probe = FOUND_BY[fault]
    with fault():
        alone = {str(one) for one in examine(cell_of(name))}
    found = [{str(one) for one in world.examine(cell_of(name), fault.__name__)[1]} for _ in range(2)]
    assert found == [alone, alone], "the second time, too: a cell leaves nothing behind"
    assert {one.split(": ")[1].split()[0] for one in alone} == {probe}


class Inner(msgspec.Struct, frozen=True):
    root: bytes
    many: int


class New(msgspec.Struct, frozen=True):
    """A message that is added tomorrow."""

    step: int
    inner: Inner
    files: tuple[bytes, ...] = ()
    open: bool = True


def test_deviations_change_one_field_each() -> None:
    word = New(5, Inner(bytes(32), 7), (bytes(32),))
    made = {name: words.deviated(word, name) for name in words.deviations(New)}
    assert {name.split()[0] for name in made} >= {"inner.root", "inner.many=0", "files", "open", "step+999"}
    assert made["step=2^40"] == [msgspec.structs.replace(word, step=2**40)]
    assert made["inner.many-1"] == [msgspec.structs.replace(word, inner=Inner(bytes(32), 6))]
    assert made["open flipped"][0].open is False and made["files none"][0].files == made["bare"][0].files == ()
    (fresh,) = made["step+1 fresh"]
    assert fresh.step == 6 and fresh.inner.root != word.inner.root and fresh.files != word.files
    assert len({one.step for one in made["many"]}) == len({one.inner.root for one in made["many"]}) == words.HOW_MANY


def test_a_cell_is_its_name() -> None:
    cell = Cell("standby", "PolicyAnnounced", "step=2^40", "second", "before")
    assert cell_of(str(cell)) == cell and str(cell).count("/") == 6
