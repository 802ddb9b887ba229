"""The catalogue: what is offered, what looks alike, and what reviewers signed."""

import pytest

from node.swarm.catalogue import ReviewBook, Reviews, entries, look
from protocol.identity import NodeKey
from protocol.messages import EnvironmentPublished, Signed

A, B, C = (NodeKey(bytes([n]) * 32).address for n in (1, 2, 3))
ONE, OTHER = bytes([1]) * 32, bytes([2]) * 32


def offered(author: str, name: str, root: bytes = ONE, **changes: object) -> Signed[EnvironmentPublished]:
    fields = {"size": 9, "determinism": "exact", "turns": 1, "about": "", "sequence": 1, **changes}
    return Signed(author, EnvironmentPublished(pool=1, name=name, root=root, **fields), b"")  # type: ignore[arg-type]


def test_one_package_that_several_offer_is_one_entry_and_another_of_its_name_is_told() -> None:
    found = entries([offered(A, "maze"), offered(B, "maze"), offered(C, "maze", OTHER)], ReviewBook())
    assert [(one.name, one.publishers) for one in found] == [("maze", (A, B)), ("maze", (C,))]
    assert found[0].alike == (f"maze@{OTHER.hex()}",) and found[1].alike == (f"maze@{ONE.hex()}",)


@pytest.mark.parametrize("name", ["co1ors", "c0lors", "co-lors", "coiors", "s0rt"])
def test_a_name_that_looks_like_another_is_told(name: str) -> None:
    found = {one.name: one for one in entries([offered(A, "colors"), offered(B, name, OTHER)], ReviewBook())}
    assert found[name].alike in ((f"colors@{ONE.hex()}",), ("sort (built in)",))


def test_names_that_do_not_look_alike_are_not_marked() -> None:
    found = entries([offered(A, "colors"), offered(B, "flowers", OTHER)], ReviewBook())
    assert [one.alike for one in found] == [(), ()]
    assert look("modern") == look("modem")


def test_a_badge_counts_reviewers_once_and_by_the_task_with_most() -> None:
    book = ReviewBook()
    for node, report in ((A, "x"), (A, "y"), (B, "y"), (C, "z")):
        book.heard(ONE.hex(), b"task", node, report, 3)
    book.heard(ONE.hex(), b"own task of the publisher", A, "z", 1)
    assert book.of(ONE.hex()) == Reviews(reviewers=3, agreeing=2, report="y", asked=3)
    assert book.of(ONE.hex()).confirmed and book.of(OTHER.hex()) is None  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "changes",
    [{"name": name} for name in ("Maze", "a" * 64, "m\u0430ze", "\uff4daze", "maze\u200b")]
    + [{"name": name} for name in ("maze.", "maze ", "../maze", "")]
    + [{"about": about} for about in ("x" * 201, "\x1b[2J", "\u202eezam")]
    + [{"root": b"1"}, {"size": 0}, {"size": 1 << 40}, {"determinism": "sure"}, {"turns": 0}, {"sequence": -1}],
)  # fmt: skip
def test_an_offer_out_of_bounds_is_malformed(changes: dict[str, object]) -> None:
    good = offered(A, "maze").message
    assert good.fault() is None
    fields = {name: getattr(good, name) for name in good.__struct_fields__}
    assert EnvironmentPublished(**{**fields, **changes}).fault() is not None  # type: ignore[arg-type]
