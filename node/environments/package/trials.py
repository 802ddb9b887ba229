"""One answer to one row, played to its end as in a rollout, in words instead of tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

from node.environments.package.loaded import LoadedPackage, Row, Turn
from node.environments.package.scoring import FLOOR, PackageScorer, Question


@dataclass(frozen=True, slots=True)
class Played:
    """What came of it. turns: everything that was said; fault: what the scorer did instead of a reward, else empty;
    undecided: whether this machine could not tell."""

    turns: tuple[tuple[str, str], ...]
    reward: float
    fault: str = ""
    undecided: bool = False


def play(package: LoadedPackage, scorer: PackageScorer, row: Row, answers: Sequence[str]) -> Played:
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
        return Played(told, FLOOR)
    faults, gave_up = scorer.faults.total(), scorer.gave_up
    reward = scorer.score([Question(row, turns)])[0]
    fault = scorer.complaint if scorer.faults.total() > faults else ""
    return Played(told, reward, fault, scorer.gave_up > gave_up)
