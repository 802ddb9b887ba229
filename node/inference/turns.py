"""Rollouts of several turns, out of an engine's answers and an environment's replies.

An answer is drawn; the environment says something behind it or is done; the next answer is drawn from a prompt that
holds every token so far. Nothing that was sampled is ever encoded anew or left out, so the prompt of each turn extends
the one before it exactly. One sequence of random numbers and one budget of tokens reach over all turns.

The same rule says when a rollout is over for who makes it and for who replays it: `reply`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from node.environments.base import Environment, Problem, Segment, Transcript
from node.environments.errors import Undecided
from node.inference.engine import U16, Completion, Request
from node.inference.errors import EngineError
from protocol.run import RunSpec

Generate = Callable[[Sequence[Request], float], list[Completion]]
"""`node.inference.engine.generate` on some engine, or what somebody has in its place."""
ATTEMPTS = 3
"""How often a worker asks an environment that cannot tell in time."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What ends a rollout besides its sampled tokens: most answers in it, most tokens of the environment."""

    turns: int = 1
    environment_tokens: int = 0


def bounds_of(run: RunSpec, environment: Environment) -> Bounds:
    most = run.rollout.max_turns
    return Bounds(min(environment.turns, most) if most else environment.turns, run.rollout.max_environment_tokens)


def unbounded(environment: Environment) -> Bounds:
    """The environment's own turns, whatever it says: where no run has a say."""
    return Bounds(environment.turns, 1 << 30)


@dataclass(frozen=True, slots=True)
class Rollout:
    """A whole sample. finished: its last answer ended with an end token; heads: uint16[n, hidden] of the n sampled
    tokens (node.inference.engine)."""

    transcript: Transcript
    finished: bool
    heads: U16

    @property
    def output(self) -> list[int]:
        """All tokens after the prompt."""
        return [token for segment in self.transcript for token in segment.tokens]

    @property
    def segments(self) -> list[int]:
        """As in protocol.segments: none for one turn."""
        return [len(segment.tokens) for segment in self.transcript] if len(self.transcript) > 1 else []

    @property
    def sampled(self) -> int:
        """How many tokens the policy said."""
        return len(self.heads)

    @property
    def rows(self) -> U16:
        return self.heads[1:]


def reply(
    environment: Environment, problem: Problem, transcript: Transcript, bounds: Bounds, room: int
) -> list[int] | None:
    """What the environment says behind the last answer, which is finished; None: the rollout is over.

    room: how many more tokens may be sampled. Raises Undecided.
    """
    if len(transcript) // 2 + 1 >= bounds.turns or room < 1:
        return None
    said = environment.step(problem, transcript)
    before = sum(len(segment.tokens) for segment in transcript if not segment.sampled)
    return list(said) if said and before + len(said) <= bounds.environment_tokens else None


@dataclass(slots=True)
class _Play:
    """A rollout in the making."""

    problem: Problem
    request: Request
    transcript: list[Segment] = field(default_factory=list)
    heads: list[U16] = field(default_factory=list)
    finished: bool = False

    @property
    def sampled(self) -> int:
        return sum(map(len, self.heads))

    def next(self) -> Request:
        said = [token for segment in self.transcript for token in segment.tokens]
        return Request([*self.request.prompt, *said], self.request.uniforms[self.sampled :])

    def answered(self, completion: Completion) -> None:
        self.transcript.append(Segment(completion.output, sampled=True))
        self.heads.append(completion.heads)
        self.finished = completion.finished

    def whole(self) -> Rollout:
        heads = self.heads[0] if len(self.heads) == 1 else np.concatenate(self.heads)
        return Rollout(self.transcript, self.finished, heads)


def play(
    generate: Generate,
    environment: Environment,
    problems: Sequence[Problem],
    requests: Sequence[Request],
    temperature: float,
    bounds: Bounds,
    *,
    strict: bool = False,
) -> list[Rollout]:
    """One rollout per request, to the problem at its place. strict: what others must come to as well, so that an
    environment that cannot tell raises EngineError; else such a rollout is over."""
    plays = [_Play(problem, request) for problem, request in zip(problems, requests, strict=True)]
    going = plays
    while going:
        for one, completion in zip(going, generate([one.next() for one in going], temperature), strict=True):
            one.answered(completion)
        going = [one for one in going if one.finished and _goes_on(environment, one, bounds, strict)]
    return [one.whole() for one in plays]


def _goes_on(environment: Environment, one: _Play, bounds: Bounds, strict: bool) -> bool:
    """Whether the environment says something; adds it."""
    said = _asked(environment, one, bounds, strict)
    if said is None:
        return False
    one.transcript.append(Segment(said, sampled=False))
    return True


def _asked(environment: Environment, one: _Play, bounds: Bounds, strict: bool) -> list[int] | None:
    room = len(one.request.uniforms) - one.sampled
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return reply(environment, one.problem, one.transcript, bounds, room)
        except Undecided as error:
            if strict and attempt == ATTEMPTS:
                raise EngineError("a rollout cannot go on", f"{error.what}: {error.why}", error.remedy) from None
    return None
