"""The row of looks in vain: when it begins, what is in it, and what ends it."""

import msgspec

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
    looks.forget()
    assert looks.vain == () and looks.in_vain_since(3) is None
    looks.withheld(of(10))
    looks.withheld(of(14, term=4))
    assert looks.sound(4) == 13 and looks.sound(3) is None and not looks.are_enough
