"""`sort`: put n digits in ascending order. Exact match scores 1, anything else 0.

All 10^n inputs exist; a fixed set of them is held back for evaluation. An affine permutation of the
inputs puts the held-back ones first, so that any problem is found without a table.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import msgspec

from node.environments.base import (
    Determinism,
    Environment,
    OneTurn,
    Problem,
    Tokenizer,
    Transcript,
    last_answer,
    numbered,
)
from node.environments.errors import EnvironmentFault

MAX_HELD_BACK = 1 << 24
"""An evaluation draws a number for each."""


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """digits: how many; held_back: how many of the 10^digits inputs are kept for evaluation."""

    digits: int = 4
    held_back: int = 512


class SortEnvironment(OneTurn):
    name = "sort"
    gave_up = 0
    determinism: Determinism = "exact"

    def __init__(self, arguments: Arguments, tokenizer: Tokenizer) -> None:
        # Before the power: a run of many digits would have every member compute for ever.
        total = 10**arguments.digits if 2 <= arguments.digits <= 18 else 0
        if not 1 <= arguments.held_back <= min(total // 2, MAX_HELD_BACK):
            raise EnvironmentFault(
                f"environment {self.name!r} cannot be loaded",
                f"digits={arguments.digits}, held_back={arguments.held_back} is out of range",
                f"use 2..18 digits and hold back at most half of the 10^digits inputs, {MAX_HELD_BACK} at most",
            )
        self._digits = arguments.digits
        self._total = total
        self._tokenizer = tokenizer
        self.held_back = arguments.held_back
        self.size = total - arguments.held_back

    def _digits_at(self, place: int) -> str:
        offset = 2_718
        # Coprime to 10, so number -> number * stride + offset is a permutation of Z/10^n.
        return str((place * 6_180_339_889 + offset) % self._total).zfill(self._digits)

    def _input(self, place: int) -> Problem:
        text = self._digits_at(place)
        return Problem(problem_id=f"{self.name}-{text}", prompt=f"{text}=", answer=("".join(sorted(text)),))

    def problem(self, number: int) -> Problem:
        return self._input(self.held_back + numbered(range(self.size), number))

    def held_back_problem(self, number: int) -> Problem:
        if not 0 <= number < self.held_back:
            raise IndexError(f"held-back problem {number} of {self.held_back}")
        return self._input(number)

    def prompt_tokens(self, problem: Problem) -> list[int]:
        return self._tokenizer.encode(problem.prompt)

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        answers = [self._tokenizer.decode(last_answer(transcript)) for transcript in transcripts]
        return [float(answer == problem.answer[0]) for problem, answer in zip(problems, answers, strict=True)]

    def another(self) -> Self:
        """Nothing is remembered."""
        return self

    def close(self) -> None:
        """Nothing to stop."""


def load(arguments: Arguments, assets: Path, tokenizer: Tokenizer) -> Environment:
    """Raises EnvironmentFault for arguments out of range."""
    return SortEnvironment(arguments, tokenizer)
