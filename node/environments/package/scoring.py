"""What a transcript is worth, by the package's own word: checked, counted, and the same on every machine.

A scorer that raises, runs out of fuel or says what is no reward gives the floor. Only where this machine has no
outcome at all is nothing decided.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from node.bounded_dict import BoundedDict
from node.environments.base import key_of
from node.environments.package.loaded import LoadedPackage, Row, Turn
from node.environments.package.sessions import PackageSessions
from node.environments.programs import ProgramRunner, ProgramTrial, finished
from node.sandbox import CallOutcome, CallStatus, Undecided

FLOOR = 0.0
MAX_TRIALS = 256
MAX_INPUT_CHARACTERS = 1 << 20


class _Program(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `program` returns. stdin: one run each; or calls: arguments of `function`, one run each."""

    source: str
    stdin: tuple[str, ...] = ()
    function: str = ""
    calls: tuple[tuple[Any, ...], ...] = ()

    def trials(self) -> list[ProgramTrial]:
        if self.function:
            return [ProgramTrial(function=self.function, arguments=call) for call in self.calls]
        return [ProgramTrial(stdin=text) for text in self.stdin]


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A row and what was said about it."""

    row: Row
    turns: list[Turn]

    @property
    def key(self) -> bytes:
        """32 bytes to remember it by."""
        return key_of((self.row, self.turns))


class PackageScorer:
    """gave_up: scores that this machine could not find; faults: how often the scorer failed, by what it did."""

    def __init__(self, package: LoadedPackage, runner: ProgramRunner) -> None:
        self._package = package
        self._runner = runner
        self._known = BoundedDict[bytes, float](1 << 14)
        self.gave_up = 0
        self.spent_on_programs = 0
        """instructions of all programs so far"""
        self.faults: Counter[str] = Counter()
        self.complaint = ""
        """of the last fault, in words"""

    def score(self, questions: Sequence[ScoredRow]) -> list[float]:
        """One reward for each, 0 to 1. Equal questions are asked once: they have one answer.

        Of a judged package, judges say what it is: here, nothing is decided.
        """
        if self._package.manifest.determinism == "judged":
            self.gave_up += len(questions)
            return [FLOOR] * len(questions)
        new = {question.key: question for question in questions if question.key not in self._known}
        scores = dict(zip(new, self._ask(list(new.values())), strict=True))
        # Read before the new ones are remembered: these may push the old ones out.
        found = [scores[q.key] if q.key in scores else self._known[q.key] for q in questions]
        self.gave_up += sum(score is None for score in found)
        # What this machine could not tell is asked again: it may have been busy.
        self._known.update({key: score for key, score in scores.items() if score is not None})
        return [FLOOR if score is None else score for score in found]

    def another(self, package: LoadedPackage) -> "PackageScorer":
        return PackageScorer(package, self._runner.another())

    def close(self) -> None:
        """The package's sandbox, and that of programs."""
        self._package.close()
        self._runner.close()

    def _ask(self, questions: list[ScoredRow]) -> list[float | None]:
        if self._package.sessions is not None:
            return self._ask_with(questions, [_left(self._package.sessions, question) for question in questions])
        if "program" in self._package.functions:
            return self._ask_with(questions, self._runs(questions))
        asked = [(q.row, q.turns) for q in questions]
        return [self._reward(outcome) for outcome in self._package.call_all("score", asked)]

    def _ask_with(self, questions: list[ScoredRow], told: Iterable[Any]) -> list[float | None]:
        """told: to the scorer, besides what was said; empty: the floor, None: this machine cannot tell."""
        found = list(told)
        # A scorer is never asked about no runs: `all` of nothing is true, and would be paid.
        asked = [place for place, one in enumerate(found) if one]
        calls = [(questions[place].row, questions[place].turns, found[place]) for place in asked]
        rewards = dict(zip(asked, map(self._reward, self._package.call_all("score_with", calls)), strict=True))
        return [rewards.get(place, None if one is None else FLOOR) for place, one in enumerate(found)]

    def _runs(self, questions: list[ScoredRow]) -> Iterator[list[dict[str, Any]] | None]:
        """What the programs of answers did; empty: there is none, None: this machine cannot tell."""
        for outcome in self._package.call_all("program", [(q.row, q.turns) for q in questions]):
            if isinstance(outcome, Undecided):
                yield None
            else:
                program = self._program(outcome)
                ran = list(self._runner.run(program.source, program.trials())) if program else []
                self.spent_on_programs += sum(one.fuel for one in ran if isinstance(one, CallOutcome))
                yield _did(ran)

    def _program(self, outcome: CallOutcome) -> _Program | None:
        if outcome.status is CallStatus.OK and outcome.value is None:
            return None
        try:
            program = msgspec.convert(outcome.value, _Program)
        except msgspec.ValidationError:
            return self._fault(outcome, "no program")
        within = len(program.trials()) <= MAX_TRIALS and len(program.source) <= MAX_INPUT_CHARACTERS
        return program if within and program.trials() else self._fault(outcome, "no program")

    def _reward(self, outcome: CallOutcome | Undecided) -> float | None:
        if isinstance(outcome, Undecided):
            return None
        value = outcome.value
        # No comparison holds of NaN, so that it is a fault as well.
        if outcome.status is CallStatus.OK and isinstance(value, int | float) and 0 <= value <= 1:
            return float(value)
        self._fault(outcome, "no reward")
        return FLOOR

    def _fault(self, outcome: CallOutcome, otherwise: str) -> None:
        what = otherwise if outcome.status is CallStatus.OK else str(outcome.status)
        self.faults[what] += 1
        self.complaint = f"{what}: {outcome.error or repr(outcome.value)[:80]}"


def _left(sessions: PackageSessions, question: ScoredRow) -> dict[str, Any] | None:
    try:
        return sessions.left(question.row, question.turns)
    except Undecided:
        return None


def _did(outcomes: Sequence[CallOutcome | Undecided]) -> list[dict[str, Any]] | None:
    """For the scorer: whether each run came to its end, what it printed, what it returned."""
    told: list[dict[str, Any]] = []
    for outcome in outcomes:
        if isinstance(outcome, Undecided):
            return None
        told.append(
            {
                "ok": finished(outcome),
                "output": outcome.printed.decode(errors="replace"),
                "value": outcome.value if outcome.status is CallStatus.OK else None,
            }
        )
    return told


@dataclass(frozen=True, slots=True)
class ScoredPlay:
    """What came of it. turns: everything that was said; fault: what the scorer did instead of a reward, else empty;
    undecided: whether this machine could not tell; states: of a session's machine."""

    turns: tuple[tuple[str, str], ...]
    reward: float
    fault: str = ""
    undecided: bool = False
    states: bytes = b""


def play(package: LoadedPackage, scorer: PackageScorer, row: Row, answers: Sequence[str]) -> ScoredPlay:
    """answers: of the turns in order; the last one is repeated while the environment goes on. Raises Undecided."""
    turns: list[Turn] = []
    for number in range(package.manifest.turns):
        turns.append({"role": "assistant", "content": answers[min(number, len(answers) - 1)]})
        said = package.step(row, turns) if number + 1 < package.manifest.turns else None
        if said is None:
            break
        turns.append({"role": "user", "content": said})
    told = tuple((turn["role"], turn["content"]) for turn in turns)
    if package.manifest.determinism == "judged":
        return ScoredPlay(told, FLOOR)
    faults, gave_up = scorer.faults.total(), scorer.gave_up
    reward = scorer.score([ScoredRow(row, turns)])[0]
    fault = scorer.complaint if scorer.faults.total() > faults else ""
    states = package.sessions.states(row, turns) if package.sessions else b""
    return ScoredPlay(told, reward, fault, scorer.gave_up > gave_up, states)
