"""What reasoning-gym's data sets hold, exported as they are: question, answer, metadata with source_dataset.

Many answers to such a question may be right, and only its data set knows which.
"""

from collections.abc import Mapping
from typing import Any

from node.environments.task_types.shapes.base import Published, Shape, id_of, mapping

NAME = "reasoning-gym"


def fits(row: Mapping[str, Any]) -> bool:
    return {"question", "metadata"} <= row.keys() and "source_dataset" in str(row["metadata"])


def read(row: Mapping[str, Any]) -> Published:
    metadata = mapping(row["metadata"], "metadata")
    entry = {"question": row["question"], "answer": row.get("answer"), "metadata": metadata}
    info = {"dataset_name": metadata.get("source_dataset"), "entry": entry}
    return Published(NAME, id_of(row.get("id"), entry), row["question"], "reasoning_gym", info)


SHAPE = Shape(NAME, "question, answer, metadata.source_dataset", fits, read)
