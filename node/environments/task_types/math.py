"""`verifiable_math`: the answer's last box, or all of it, equals one of the ground truths."""

from collections.abc import Sequence

from node.environments.errors import Undecided
from node.environments.math_scorer import MathScorer, final_answer
from node.environments.programs import ProgramRunner
from node.environments.task_types.base import Question, Row, Truth, read

MAX_TRUTHS = 8
MAX_TRUTH = 1024


def read_truth(info: Row, row: Row) -> Truth:  # noqa: ARG001 - all of it stands in the info
    truth = info.get("ground_truth")
    truths = truth if isinstance(truth, list) else [truth]
    if not 0 < len(truths) <= MAX_TRUTHS or not all(isinstance(t, str) and 0 < len(t) <= MAX_TRUTH for t in truths):
        raise ValueError("verification_info needs ground_truth: a string, or a list of up to 8, none too long")
    return tuple(map(str, truths))


class MathematicalScorer:
    """Computer algebra in a child of its own."""

    def __init__(self) -> None:
        self._scorer = MathScorer()
        self._unread = 0

    @property
    def gave_up(self) -> int:
        return self._scorer.gave_up + self._unread

    def score(self, questions: Sequence[Question]) -> list[float]:
        answers = dict(enumerate(read(final_answer, questions)))
        self._unread += sum(isinstance(answer, Undecided) for answer in answers.values())
        asked = {place: answer for place, answer in answers.items() if isinstance(answer, str)}
        found = self._scorer.match([(answer, questions[place][1]) for place, answer in asked.items()])
        right = dict(zip(asked, found, strict=True))
        return [float(right.get(place, False)) for place in answers]

    def close(self) -> None:
        self._scorer.close()


def open_scorer(runner: ProgramRunner) -> MathematicalScorer:  # noqa: ARG001 - runs no programs
    return MathematicalScorer()
