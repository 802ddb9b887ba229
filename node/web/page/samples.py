"""Sample answers of held-back problems, from the first and the newest evaluation that the trainer's spool holds.

Only the trainer has them. The model wrote them: they are shown as text, cut, and without anything invisible.
"""

from pathlib import Path
from typing import Any

import msgspec

from node.web.page.plain import number, words

EVALUATIONS = "spool/eval"
MAX_BYTES = 1 << 20
SHOWN = 6
"""Answers of an evaluation."""
LONGEST = 600
"""Characters of a problem, and of an answer."""


class Samples:
    """directory: the node's state. Blocking: call from a thread."""

    def __init__(self, directory: Path) -> None:
        self._place = directory / EVALUATIONS
        self._read: dict[int, list[dict[str, Any]]] = {}

    def look(self) -> dict[str, Any] | None:
        """{"before": {"step", "answers"}, "after": the same or None}; None where there is no evaluation."""
        steps = sorted(
            int(path.stem.removeprefix("answers-"))
            for path in self._place.glob("answers-*.json")
            if path.stem.removeprefix("answers-").isdecimal()
        )
        if not steps:
            return None
        wanted = {steps[0], steps[-1]}
        self._read = {step: self._read.get(step) or self._answers(step) for step in wanted}
        told = [{"step": step, "answers": self._read[step]} for step in sorted(wanted)]
        return {"before": told[0], "after": told[1] if len(told) > 1 else None}

    def _answers(self, step: int) -> list[dict[str, Any]]:
        """Empty for a file that is damaged, or gone by now."""
        try:
            with (self._place / f"answers-{step:06d}.json").open("rb") as file:
                told = msgspec.json.decode(file.read(MAX_BYTES), type=list[dict[str, Any]])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return []
        return [
            {
                "problem": words(one.get("prompt"), LONGEST),
                "answer": words(one.get("answer"), LONGEST),
                "reward": number(one.get("reward")),
                "length": number(one.get("length")),
                "target": number(one.get("target")),
                "finished": bool(one.get("finished")),
            }
            for one in told[:SHOWN]
        ]
