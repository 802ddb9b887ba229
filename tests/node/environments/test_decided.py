"""Scores of which some are not known: what is unknown is no zero."""

from collections.abc import Sequence

from node.environments.base import Problem, Transcript, decided, mean_of, one_answer
from tests.node.environments.unsure import Unsure


class Halves:
    """Pays 1 for problems with an even number, and 0 else."""

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        return [float(int(problem.problem_id) % 2 == 0) for problem in problems]


PROBLEMS = [Problem(str(number), "", ()) for number in range(20)]
ANSWERS = [one_answer([1])] * 20
PAID = [1.0, 0.0] * 10


def test_what_is_known_is_told_as_it_was_scored_and_asked_once() -> None:
    environment = Unsure(Halves(), lambda problem, times: False)
    assert decided(environment, PROBLEMS, ANSWERS) == PAID and environment.asked == 20


def test_an_answer_without_a_verdict_is_unknown_and_not_wrong() -> None:
    environment = Unsure(Halves(), lambda problem, times: problem.problem_id in ("4", "7"))
    found = decided(environment, PROBLEMS, ANSWERS)
    assert [place for place, score in enumerate(found) if score is None] == [4, 7]
    assert [score for score in found if score is not None] == [PAID[at] for at in range(20) if at not in (4, 7)]
    assert mean_of(found) == 0.5 and sum(PAID[:4] + [0.0] + PAID[5:]) / 20 == 0.45, "as zeros they lowered the mean"


def test_a_machine_that_was_busy_once_is_asked_again() -> None:
    environment = Unsure(Halves(), lambda problem, times: problem.problem_id == "4" and times == 0)
    assert decided(environment, PROBLEMS, ANSWERS) == PAID


def test_where_nothing_can_be_told_nothing_is_asked_twice() -> None:
    environment = Unsure(Halves(), lambda problem, times: True)
    assert decided(environment, PROBLEMS, ANSWERS) == [None] * 20 and environment.asked == 20
    assert mean_of([None] * 20) is None and mean_of([]) is None


def test_nobody_waits_for_more_deadlines_than_leave_a_figure() -> None:
    """Where only one answer of twenty is known, three are asked again and not nineteen."""
    environment = Unsure(Halves(), lambda problem, times: problem.problem_id != "6")
    found = decided(environment, PROBLEMS, ANSWERS, most=2)
    assert environment.asked == 20 + 3 and mean_of(found) is None and found[6] == 1.0
    assert found.count(None) == 19, "what is not asked again is unknown"


def test_a_mean_of_too_few_is_refused() -> None:
    assert mean_of([1.0] * 9 + [None]) == 1.0
    assert mean_of([1.0] * 8 + [None] * 2) is None
