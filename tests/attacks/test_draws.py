"""What a chosen node key or capacity class gains by an easier draw; docs/attacks/work.md has the figures."""

from protocol.draw import draw_problems
from protocol.identity import Address

PROBLEMS, PER_FILE = 10_000, 24
EASY = PROBLEMS // 10
"""The tenth of the problems that an attacker would like to be dealt."""


def _easy(root: bytes, node: Address) -> int:
    return sum(problem < EASY for problem in draw_problems(root, node, 0, PER_FILE, PROBLEMS))


def _keys(count: int) -> list[Address]:
    return [Address(f"0x{number:040x}") for number in range(count)]


def test_known_gap_a_key_made_after_the_policy_is_known_can_be_ground_for_one_file() -> None:
    """2.4 of 24 are easy by luck. Of 4,096 keys the best has 9 or more for its first file; it costs a registration."""
    best = max(_keys(4096), key=lambda node: _easy(b"\x01" * 32, node))
    assert _easy(b"\x01" * 32, best) >= 8


def test_a_ground_key_is_worth_nothing_for_the_next_policy() -> None:
    """Keys ground for one policy are average for the others."""
    chosen = sorted(_keys(4096), key=lambda node: _easy(b"\x01" * 32, node))[-64:]
    mean = sum(_easy(b"\x02" * 32, node) for node in chosen) / len(chosen)
    assert 1.7 < mean < 3.1


def test_an_index_is_not_a_second_try() -> None:
    """A better index can be had only by doing the ones before it: indices are contiguous."""
    root, node = b"\x01" * 32, _keys(1)[0]
    files = [draw_problems(root, node, index, PER_FILE, PROBLEMS) for index in range(200)]
    mean = sum(problem < EASY for file in files for problem in file) / len(files)
    assert 1.9 < mean < 2.9
