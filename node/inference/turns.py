"""Rollouts of several turns, out of an engine's answers and an environment's replies.

An answer is drawn; the environment says something behind it or is done; the next answer is drawn from a prompt that
holds every token so far. Nothing that was sampled is ever encoded anew or left out, so the prompt of each turn extends
the one before it exactly. One sequence of random numbers and one budget of tokens reach over all turns.

The same rule says when a rollout is over for who makes it and for who replays it: `replies`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from node.environments.base import Environment, Problem, Reply, Segment, Transcript
from node.environments.errors import Undecided
from node.inference.engine import U8, U16, Completion, GenerationRequest
from node.inference.errors import EngineError
from node.inference.proofs import ProofRows
from protocol.run import RunSpec

Generate = Callable[[Sequence[GenerationRequest], float], list[Completion]]
"""`node.inference.engine.generate` on some engine, or what somebody has in its place."""


def sampled_tokens(transcript: Transcript) -> int:
    """How many tokens the policy said."""
    return sum(len(segment.tokens) for segment in transcript if segment.sampled)


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
class PlayedRollout:
    """A whole sample. finished: its last answer ended with an end token; heads: uint16[n, hidden] of the n sampled
    tokens, or none where something was kept of them; experts: of all tokens but the last (node.inference.engine)."""

    transcript: Transcript
    finished: bool
    heads: U16
    experts: U8 | None = None
    kept: ProofRows | None = None

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
        return sampled_tokens(self.transcript)

    @property
    def rows(self) -> U16 | ProofRows:
        """To be proven."""
        return self.heads[1:] if self.kept is None else self.kept


def reply(
    environment: Environment, problem: Problem, transcript: Transcript, bounds: Bounds, room: int
) -> list[int] | None:
    """What the environment says behind the last answer, which is finished; None: the rollout is over.

    room: how many more tokens may be sampled. Raises Undecided.
    """
    (said,) = replies(environment, [Due(problem, transcript, room)], bounds)
    if isinstance(said, Undecided):
        raise said
    return said


@dataclass(frozen=True, slots=True)
class Due:
    """A rollout whose last answer is finished. room: how many more tokens may be sampled."""

    problem: Problem
    transcript: Transcript
    room: int


def replies(environment: Environment, due: Sequence[Due], bounds: Bounds) -> list[Reply]:
    """What `reply` says of each, in one pass; one that the environment cannot tell hinders no other."""
    found: list[Reply] = [None] * len(due)
    # What was sampled and what was said take turns, so half of a transcript's segments are answers behind the first.
    asked = [i for i, one in enumerate(due) if len(one.transcript) // 2 + 1 < bounds.turns and one.room >= 1]
    if not asked:
        return found
    said = environment.steps([due[i].problem for i in asked], [due[i].transcript for i in asked])
    for place, one in zip(asked, said, strict=True):
        found[place] = one if isinstance(one, Undecided) else _fitting(one, due[place].transcript, bounds)
    return found


def _fitting(said: list[int] | None, transcript: Transcript, bounds: Bounds) -> list[int] | None:
    # A reply that does not fit ends the rollout. Cut, it would be no message of the chat template, and where it is cut
    # would be one more thing that all nodes have to agree on.
    before = sum(len(segment.tokens) for segment in transcript if not segment.sampled)
    return list(said) if said and before + len(said) <= bounds.environment_tokens else None


@dataclass(slots=True)
class _Play:
    """A rollout in the making."""

    problem: Problem
    request: GenerationRequest
    kept: ProofRows | None = None
    transcript: list[Segment] = field(default_factory=list)
    heads: list[U16] = field(default_factory=list)
    finished: bool = False
    experts: U8 | None = None

    @property
    def sampled(self) -> int:
        return sampled_tokens(self.transcript)

    def next(self) -> GenerationRequest:
        said = [token for segment in self.transcript for token in segment.tokens]
        left = self.request.uniforms[self.sampled :]
        prompt, adapter = [*self.request.prompt, *said], self.request.adapter
        return GenerationRequest(prompt, left, self.experts, adapter, self.kept)

    def due(self) -> Due:
        return Due(self.problem, self.transcript, len(self.request.uniforms) - self.sampled)

    def answered(self, completion: Completion) -> None:
        self.transcript.append(Segment(completion.output, sampled=True))
        if self.kept is None:
            self.heads.append(completion.heads)
        elif completion.kept is not None:
            self.kept = completion.kept
        else:
            # vLLM keeps rows so in the first answer only; those of later ones come whole.
            self.kept.extend(completion.heads)
        self.finished = completion.finished
        self.experts = completion.experts

    def whole(self) -> PlayedRollout:
        if self.kept is not None:
            heads = np.empty((0, 0), dtype=np.uint16)
        else:
            heads = self.heads[0] if len(self.heads) == 1 else np.concatenate(self.heads)
        return PlayedRollout(self.transcript, self.finished, heads, self.experts, self.kept)


def play(
    generate: Generate,
    environment: Environment,
    problems: Sequence[Problem],
    requests: Sequence[GenerationRequest],
    temperature: float,
    bounds: Bounds,
    *,
    strict: bool = False,
    keep: Callable[[], ProofRows] | None = None,
) -> list[PlayedRollout]:
    """One rollout per request, to the problem at its place. strict: what others must come to as well, so that an
    environment that cannot tell raises EngineError; else such a rollout is over. keep: what is kept of the rows, by
    default all of them."""
    plays = [
        _Play(problem, request, keep() if keep else None) for problem, request in zip(problems, requests, strict=True)
    ]
    going = plays
    while going:
        for one, completion in zip(going, generate([one.next() for one in going], temperature), strict=True):
            one.answered(completion)
        # An answer that was cut off ends its rollout: nobody is asked about it, here and in the replay.
        going = _going_on(environment, [one for one in going if one.finished], bounds, strict)
    return [one.whole() for one in plays]


def _going_on(environment: Environment, plays: Sequence[_Play], bounds: Bounds, strict: bool) -> list[_Play]:
    """Those to whom the environment says something; adds it."""
    said = _asked(environment, [one.due() for one in plays], bounds, strict)
    for one, tokens in zip(plays, said, strict=True):
        if tokens is not None:
            one.transcript.append(Segment(tokens, sampled=False))
    return [one for one, tokens in zip(plays, said, strict=True) if tokens is not None]


def _asked(environment: Environment, due: Sequence[Due], bounds: Bounds, strict: bool) -> list[list[int] | None]:
    found = replies(environment, due, bounds)
    for _ in range(2):  # a worker asks an environment that cannot tell in time three times
        unsure = [place for place, one in enumerate(found) if isinstance(one, Undecided)]
        again = replies(environment, [due[place] for place in unsure], bounds)
        for place, one in zip(unsure, again, strict=True):
            found[place] = one
    left = next((one for one in found if isinstance(one, Undecided)), None)
    if left is not None and strict:
        raise EngineError("a rollout cannot go on", f"{left.what}: {left.why}", left.remedy)
    return [None if isinstance(one, Undecided) else one for one in found]
