"""GSM8K: question, and an answer whose last line is `#### 72`."""

from collections.abc import Mapping
from typing import Any

from node.environments.task_types.shapes.base import Published, Shape, id_of, whole_question

NAME = "GSM8K"
MARK = "####"


def fits(row: Mapping[str, Any]) -> bool:
    return "question" in row and isinstance(row.get("answer"), str) and MARK in row["answer"]


def read(row: Mapping[str, Any]) -> Published:
    question, truth = row["question"], row["answer"].rpartition(MARK)[2].strip().replace(",", "")
    if not isinstance(question, str) or not truth:
        raise ValueError("a question or what stands behind #### is missing")
    whole_question(row)
    info = {"ground_truth": truth}
    return Published(NAME, id_of(row.get("id"), question), question, "marked_math", info, row["answer"])


SHAPE = Shape(NAME, "question, answer with ####", fits, read)
