"""MATH, AIME and NuminaMath: problem, with an answer or a solution that boxes it."""

from collections.abc import Mapping
from typing import Any

from node.environments.task_types.shapes.base import Published, Shape, id_of, present, whole_question
from node.environments.task_types.shapes.intellect import mathematics

NAME = "MATH"


def fits(row: Mapping[str, Any]) -> bool:
    return "problem" in row and "tests" not in row and ("solution" in row or "answer" in row)


def read(row: Mapping[str, Any]) -> Published:
    problem, solution = row["problem"], row.get("solution")
    if not isinstance(problem, str):
        raise ValueError("problem is no text")
    whole_question(row)
    if str(row.get("question_type")).lower() == "proof":
        raise ValueError("it asks for a proof, which is not scored here")
    for column in ("problem_is_valid", "solution_is_valid"):
        if str(row.get(column, "Yes")) != "Yes":
            raise ValueError(f"its publisher says {column} = {str(row[column])[:40]!r}")
    truth = present({"ground_truth": row.get("answer")})
    _, form, info = mathematics("verifiable_math", truth, solution)
    name = id_of(row.get("unique_id", row.get("id")), problem)
    form = "gold solution" if form == "gold solution" else "answer"
    return Published(f"{NAME}, {form}", name, problem, "verifiable_math", info, solution)


SHAPE = Shape(NAME, "problem, answer or solution", fits, read)
