from node.swarm.files_ahead import ActiveWorkers
from protocol.identity import NodeKey

ONE, TWO, IDLE = (NodeKey(bytes([n]) * 32).address for n in (1, 2, 3))


def test_who_makes_nothing_shares_in_the_work_of_its_first_steps_only() -> None:
    makers = ActiveWorkers(memory=2)
    counted = []
    for step in range(6):
        counted.append(makers.among([ONE, TWO, IDLE], step))
        makers.made(ONE, step)
        makers.made(TWO, step)
    assert counted == 3 * [sorted([ONE, TWO, IDLE])] + 3 * [sorted([ONE, TWO])]


def test_who_makes_something_again_counts_again_and_old_work_does_not_take_that_back() -> None:
    makers = ActiveWorkers(memory=2)
    makers.among([ONE, IDLE], 0)
    makers.made(ONE, 9)
    assert makers.among([ONE, IDLE], 9) == [ONE]
    makers.made(IDLE, 8)
    makers.made(IDLE, 3)
    assert makers.among([ONE, IDLE], 9) == sorted([ONE, IDLE])


def test_a_newcomer_counts_at_once() -> None:
    makers = ActiveWorkers(memory=2)
    makers.among([ONE], 0)
    makers.made(ONE, 9)
    assert makers.among([ONE, TWO], 9) == sorted([ONE, TWO])


def test_where_nobody_made_anything_lately_all_share() -> None:
    makers = ActiveWorkers(memory=2)
    makers.among([ONE, TWO], 0)
    assert makers.among([ONE, TWO], 9) == sorted([ONE, TWO])
    assert makers.among([], 9) == []
