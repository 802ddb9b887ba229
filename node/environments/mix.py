"""`mix`: several environments as one, each with its share of the problems.

The number that the draw names chooses the environment (by weight) and the problem in it. Problem ids are
"<label>/<id>", so rewards can be told apart afterwards. Everything else is the environments' own business.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import Protocol, Self

from node.environments.base import Determinism, Environment, EnvironmentSettings, Problem, Reply, Transcript
from node.environments.errors import EnvironmentFault

SHARES = 1 << 20
"""Resolution of the weights."""


LEAST_DEPENDABLE_LAST: tuple[Determinism, ...] = ("exact", "bounded", "witnessed", "judged")


def least_dependable(kinds: Iterable[Determinism]) -> Determinism:
    """Of several, what verdicts on all of them together depend on."""
    return max(kinds, key=LEAST_DEPENDABLE_LAST.index)


class MixPart(EnvironmentSettings, Protocol):
    """One environment of a mix (`protocol.sections.EnvironmentPart`)."""

    @property
    def weight(self) -> float: ...
    @property
    def title(self) -> str: ...


class MixEnvironment:
    """parts: (label, weight, environment)."""

    name = "mix"

    def __init__(self, parts: Sequence[tuple[str, float, Environment]]) -> None:
        if not parts:
            raise EnvironmentFault("environment 'mix' cannot be loaded", "it has no parts", "add [[environments]]")
        self.labels = tuple(label for label, _, _ in parts)
        self._environments = {label: environment for label, _, environment in parts}
        self._bounds = _bounds([weight for _, weight, _ in parts])
        self._counts = [environment.held_back for _, _, environment in parts]
        # Virtual problem numbers: the low 20 bits choose the environment, the high ones the problem (bias below 2^-12
        # for environments of up to a billion problems).
        self.size = 1 << 62
        self.held_back = sum(self._counts)

    @property
    def gave_up(self) -> int:
        return sum(environment.gave_up for environment in self._environments.values())

    @property
    def determinism(self) -> Determinism:
        """That of the least dependable part."""
        return least_dependable(part.determinism for part in self._environments.values())

    @property
    def turns(self) -> int:
        return max(environment.turns for environment in self._environments.values())

    @property
    def parts(self) -> dict[str, Environment]:
        """The environments by their labels."""
        return dict(self._environments)

    @property
    def held_back_parts(self) -> list[Sequence[int]]:
        """The numbers of each environment's held-back problems."""
        return [[self._number(which, place) for place in range(count)] for which, count in enumerate(self._counts)]

    def problem(self, number: int) -> Problem:
        if not 0 <= number < self.size:
            raise IndexError(f"problem {number} of {self.size}")
        share, place = number % SHARES, number // SHARES
        label = self.labels[next(i for i, bound in enumerate(self._bounds) if share < bound)]
        environment = self._environments[label]
        return _labelled(label, environment.problem(place % environment.size))

    def held_back_problem(self, number: int) -> Problem:
        if not 0 <= number < self.held_back:
            raise IndexError(f"held-back problem {number} of {self.held_back}")
        # Computed and not listed: a run that holds back millions must not fill its members' memory.
        place = bisect_right(range(max(self._counts)), number, key=self._before) - 1
        which = [i for i, count in enumerate(self._counts) if count > place][number - self._before(place)]
        label = self.labels[which]
        return _labelled(label, self._environments[label].held_back_problem(place))

    def _before(self, place: int) -> int:
        """Held-back problems that stand before the ones at this place. Environments take turns, so that any first n are
        of all of them."""
        return sum(min(count, place) for count in self._counts)

    def _number(self, which: int, place: int) -> int:
        return self._before(place) + sum(count > place for count in self._counts[:which])

    def prompt_tokens(self, problem: Problem) -> list[int]:
        label, inner = self._inner(problem)
        return self._environments[label].prompt_tokens(inner)

    def step(self, problem: Problem, transcript: Transcript) -> list[int] | None:
        label, inner = self._inner(problem)
        environment = self._environments[label]
        sampled = sum(segment.sampled for segment in transcript)
        # The mix takes the turns of its longest part. A shorter part must not be asked beyond its own.
        return environment.step(inner, transcript) if sampled < environment.turns else None

    def steps(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[Reply]:
        replies: list[Reply] = [None] * len(problems)
        inner = [self._inner(problem) for problem in problems]
        answers = [sum(segment.sampled for segment in transcript) for transcript in transcripts]
        for label, part in self._environments.items():
            places = [i for i, (own, _) in enumerate(inner) if own == label and answers[i] < part.turns]
            # One call for all of a part's rollouts: parts may wait for their servers or processes side by side.
            said = part.steps([inner[i][1] for i in places], [transcripts[i] for i in places]) if places else []
            for place, reply in zip(places, said, strict=True):
                replies[place] = reply
        return replies

    def is_judged(self, problem: Problem) -> bool:
        label, inner = self._inner(problem)
        return self._environments[label].is_judged(inner)

    def is_witnessed(self, problem: Problem) -> bool:
        label, inner = self._inner(problem)
        return self._environments[label].is_witnessed(inner)

    def states(self, problem: Problem, transcript: Transcript) -> bytes:
        label, inner = self._inner(problem)
        return self._environments[label].states(inner, transcript)

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        scores = [0.0] * len(problems)
        inner = [self._inner(problem) for problem in problems]
        for label, environment in self._environments.items():
            places = [i for i, (own, _) in enumerate(inner) if own == label]
            given = environment.score([inner[i][1] for i in places], [transcripts[i] for i in places]) if places else []
            for place, value in zip(places, given, strict=True):
                scores[place] = value
        return scores

    def another(self) -> Self | None:
        others = {label: environment.another() for label, environment in self._environments.items()}
        # One part that cannot be doubled forbids the whole; the copies made until then have processes to be ended.
        if None in others.values():
            for other in filter(None, others.values()):
                other.close()
            return None
        view = copy(self)
        view._environments = {label: other for label, other in others.items() if other is not None}
        return view

    def close(self) -> None:
        for environment in self._environments.values():
            environment.close()

    def _inner(self, problem: Problem) -> tuple[str, Problem]:
        # A label has no slash, but the id behind it may have one: the first slash divides them.
        label, _, problem_id = problem.problem_id.partition("/")
        return label, replace(problem, problem_id=problem_id)


def load_mix(parts: Sequence[MixPart], load: Callable[[EnvironmentSettings], Environment]) -> MixEnvironment:
    """load: the registry's loader of a single environment."""
    return MixEnvironment([(part.title, part.weight, load(part)) for part in parts])


def label_of(settings: EnvironmentSettings, problem_id: str) -> str:
    """The environment that a problem is from: its label in a mix, else the environment's name."""
    label, slash, _ = problem_id.partition("/")
    # The name decides, not the slash: ids of a single environment may hold one, too.
    return label if slash and settings.name == MixEnvironment.name else settings.name


def _labelled(label: str, problem: Problem) -> Problem:
    return replace(problem, problem_id=f"{label}/{problem.problem_id}")


def _bounds(weights: Sequence[float]) -> list[int]:
    """Upper end of each environment's shares, cumulative; the last is SHARES."""
    total, seen, bounds = sum(weights), 0.0, []
    for weight in weights:
        seen += weight
        # The running sum is rounded and not each weight, so that errors do not add up.
        bounds.append(round(SHARES * seen / total))
    # Whatever rounding did: no share may belong to no environment.
    bounds[-1] = SHARES
    return bounds
