"""The row of looks in vain: when it begins, what is in it, and what ends it."""

import msgspec
import pytest

from node.audit.looks import LookHistory
from protocol.manifest import PolicyStatement

STATED = PolicyStatement(1, 3, 10, 0, bytes(32), bytes(32), bytes(32), bytes(32))


def of(step: int, term: int = 3) -> PolicyStatement:
    return msgspec.structs.replace(STATED, step=step, term=term)


def test_a_row_goes_from_the_first_look_in_vain_and_three_steps_of_it_are_enough() -> None:
    now = [5.0]
    looks = LookHistory(lambda: now[0])
    assert looks.in_vain_since(3) is None and looks.sound(3) is None
    for at, step in ((7.0, 12), (9.0, 12), (11.0, 10), (13.0, 20), (15.0, 31)):
        now[0] = at
        looks.withheld(of(step))
        assert looks.in_vain_since(3) == 7.0 and looks.are_enough == (step >= 20)
    assert looks.sound(3) == 9 and {one.step for one in looks.vain} == {10, 20, 31}, "the first and the newest stay"
    assert looks.in_vain_since(4) is None and looks.sound(4) is None, "nothing speaks against the next leader"


def test_a_look_that_could_be_made_ends_the_row_and_another_term_begins_its_own() -> None:
    looks = LookHistory(lambda: 1.0)
    looks.withheld(of(10))
    looks.came(of(11))
    assert looks.vain == () and looks.in_vain_since(3) is None
    looks.withheld(of(10))
    looks.withheld(of(14, term=4))
    assert looks.sound(4) == 13 and looks.sound(3) is None and not looks.are_enough


def looked(outcomes: str, apart: float = 300.0) -> LookHistory:
    """A step a letter, drawn one after the other: . came, x in vain, ! an own failure."""
    now = [0.0]
    looks = LookHistory(lambda: now[0])
    for step, outcome in enumerate(outcomes):
        now[0] += apart
        match outcome:
            case "x":
                looks.withheld(of(step))
            case ".":
                looks.came(of(step))
            case "!":
                looks.forget()
    return looks


FOUR = "x...x.......x......x"


@pytest.mark.parametrize(
    ("outcomes", "sound"),
    [
        (FOUR, 18),
        ("x...x.......x.......", None),
        ("x" + 20 * "." + "x" + 20 * "." + "x" + 20 * "." + "x", 62),
        ("x" + 20 * "." + "x" + 20 * "." + "x" + 21 * "." + "x", None),
        ("x...x...!...x......x", None),
        ("....", None),
    ],
    ids=["four", "three", "the first of four is the last but 63", "it is forgotten", "an own failure between", "none"],
)
def test_four_of_the_last_sixty_four_in_vain_say_that_some_are_withheld_whatever_came_between(
    outcomes: str, sound: int | None
) -> None:
    looks = looked(outcomes)
    assert looks.sound_of_some(3) == sound and looks.sound_of_some(4) is None
    assert looks.sound(3) is None or outcomes.endswith("x"), "what came ends the row all the same"


def test_what_a_restart_spoils_at_once_counts_once() -> None:
    """Four steps within five minutes; the control has as many, each five minutes after the one before."""
    assert looked("xxxx", apart=75.0).sound_of_some(3) is None and looked("xxxx").sound_of_some(3) == 2


def test_what_comes_on_another_try_was_late_and_not_withheld() -> None:
    looks = looked(FOUR)
    looks.came(of(4))
    assert looks.sound_of_some(3) is None
    looks.withheld(of(4))
    assert looks.sound_of_some(3) is None, "it is looked at, once and for ever"


def test_each_of_a_row_is_tried_again_every_time_and_others_once() -> None:
    looks = looked("x..x.xx")
    assert sorted(one.step for one in looks.to_try_again()) == [0, 3, 5, 6]
    assert sorted(one.step for one in looks.to_try_again()) == [5, 6]
