from node.swarm.files_ahead import UnclaimedShare
from protocol.identity import NodeKey

ONE, TWO, THREE = (NodeKey(bytes([n]) * 32).address for n in (1, 2, 3))
QUIET = 10.0


def made(*, each: int) -> UnclaimedShare:
    """Three workers made so many files of policy 5, the last at 20 s."""
    leftovers = UnclaimedShare()
    leftovers.began(5, 0.0)
    for number in range(each):
        for worker in (ONE, TWO, THREE):
            leftovers.made(worker, 5, 20.0 * (number + 1) / each)
    return leftovers


def test_who_makes_files_divides_what_is_missing_once_nobody_commits_to_any() -> None:
    leftovers = made(each=4)
    assert leftovers.taken(16, QUIET, 29.0) == 0
    assert leftovers.taken(16, QUIET, 30.0) == 2
    assert leftovers.taken(16, QUIET, 31.0) == 2


def test_what_is_missing_still_is_divided_again_after_another_quiet_time() -> None:
    leftovers = made(each=4)
    leftovers.taken(16, QUIET, 30.0)
    leftovers.made(ONE, 5, 33.0)
    assert leftovers.taken(16, QUIET, 42.0) == 2
    assert leftovers.taken(16, QUIET, 43.0) == 3


def test_where_enough_is_made_nobody_makes_more() -> None:
    assert made(each=4).taken(12, QUIET, 1000.0) == 0


def test_a_new_policy_begins_with_its_own_files_and_older_ones_count_no_more() -> None:
    leftovers = made(each=4)
    leftovers.taken(16, QUIET, 30.0)
    leftovers.made(TWO, 6, 40.0)  # it has the policy before we do
    leftovers.began(6, 42.0)
    leftovers.made(ONE, 5, 45.0)
    assert leftovers.taken(2, QUIET, 51.0) == 0
    assert leftovers.taken(2, QUIET, 52.0) == 1
