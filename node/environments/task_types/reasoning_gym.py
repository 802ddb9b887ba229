"""`reasoning_gym`: a problem that a data set of reasoning-gym made, scored by it in a process of its own.

Only the data sets that `node.environments.reasoning.table` lets through; the others are refused by name.
"""

import json
from collections.abc import Sequence
from typing import Any

from node.bounded_dict import BoundedDict
from node.environments.base import key_of
from node.environments.errors import Undecided
from node.environments.reasoning.environment import ReasoningGym, answer_in, score_row
from node.environments.reasoning.table import refusal
from node.environments.task_types.base import Question, Row, Truth, read
from node.environments.task_types.shapes.base import parsed

MAX_ENTRY = 256 * 1024


def read_truth(info: Row, row: Row) -> Truth:
    """(data set, what it made as JSON), under either of the published pairs of names."""
    dataset = info.get("reasoning_gym_dataset", info.get("dataset_name"))
    entry: Any = info.get("reasoning_gym_entry", info.get("entry"))
    if isinstance(entry, str):
        entry = parsed(entry, "its entry")
    if not isinstance(dataset, str) or not isinstance(entry, dict) or "answer" not in entry:
        raise ValueError("verification_info needs dataset_name, and entry with question, answer and metadata")
    if wrong := refusal(dataset):
        raise ValueError(f"rows of {dataset[:80]!r} are not scored: {wrong[0]}")
    text = json.dumps(entry)
    if len(text) > MAX_ENTRY:
        raise ValueError(f"its entry has more than {MAX_ENTRY} characters")
    return dataset, text


class ReasoningScorer:
    """What the data set pays for the answer, above what it pays for any."""

    def __init__(self, gym: ReasoningGym | None = None) -> None:
        self._gym = gym or ReasoningGym()
        self._known = BoundedDict[bytes, float](1 << 14)
        self.gave_up = 0

    def start(self) -> None:
        """Raises EnvironmentFault where this machine cannot score."""
        self._gym.start()

    def score(self, questions: Sequence[Question]) -> list[float]:
        answers = read(answer_in, questions)
        return [self._score(answer, truth) for answer, (_, truth) in zip(answers, questions, strict=True)]

    def _score(self, answer: str | None | Undecided, truth: Truth) -> float:
        if not answer or isinstance(answer, Undecided):
            self.gave_up += isinstance(answer, Undecided)
            return 0.0
        key = key_of((answer, truth))
        if key not in self._known:
            dataset, entry = truth
            try:
                self._known[key] = score_row(self._gym, dataset, json.loads(entry), answer)
            except Undecided:
                self.gave_up += 1
                return 0.0
        return self._known[key]

    def close(self) -> None:
        self._gym.close()
