"""`code_output_prediction`: the answer's last JSON object has an "output" that is the ground truth.

SYNTHETIC-2 asks for a "code_output".
"""

import json
from typing import Any

from node.environments.programs import ProgramRunner
from node.environments.task_types.base import PureScorer, Row, Truth, said
from node.environments.task_types.comparison import same_value

MAX_CHARACTERS = 64 * 1024
MAX_TRIED = 64
"""Opening braces from the end at which an object is looked for."""


def read_truth(info: Row, row: Row) -> Truth:  # noqa: ARG001 - all of it stands in the info
    if info.get("ground_truth") is None:
        raise ValueError("verification_info needs ground_truth: what the program prints or returns")
    return (json.dumps(info["ground_truth"]),)


def reward(answer: str, truth: Truth) -> float:
    """1 for the predicted output, else 0."""
    found = last_object(said(answer)[-MAX_CHARACTERS:]) or {}
    told = [found[name] for name in ("output", "code_output") if name in found]
    return float(len(told) == 1 and same_value(told[0], json.loads(truth[0])))


def last_object(text: str) -> dict[str, Any] | None:
    """The JSON object that ends last, the outermost of those; None if there is none."""
    decoder = json.JSONDecoder()
    best: tuple[int, dict[str, Any]] | None = None
    place = len(text)
    for _ in range(MAX_TRIED):
        place = text.rfind("{", 0, place)
        if place < 0:
            break
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and (best is None or end >= best[0]):
            best = (end, value)
    return best[1] if best else None


def open_scorer(runner: ProgramRunner) -> PureScorer:  # noqa: ARG001 - runs no programs
    return PureScorer(reward)
