"""The interface of an environment: numbered problems, what it says between turns, and a score for a transcript.

Knows nothing of models, sampling or the network. A tokenizer is passed in, because scoring must see
exactly the tokens that were sampled. Training problems are numbered 0..size-1 (the numbers that
`protocol.draw` names); held-back problems have a numbering of their own and are never trained on.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self, TypeVar

import msgspec
from blake3 import blake3

from node.environments.errors import Undecided
from protocol.audit import MAX_ANSWER_CHARACTERS

Determinism = Literal["exact", "bounded", "judged", "witnessed"]
"""What `step` and `score` depend on. exact: on their arguments alone; bounded: on limits that are counted, too, such
as fuel, so that what runs into one ends the same way everywhere; judged: on somebody's opinion; witnessed: on what a
server says to whoever asks it. What depends on a clock or a machine is *undecided*: `step` raises Undecided, `score`
counts it in `gave_up`."""


# Far below what any Python stands: what `json` and `ast` call too deep depends on its version, and in 3.11 on how deep
# the caller itself is. There 900 levels were read at one place and not at another.
MAX_NESTED = 64
"""Brackets in brackets that are read in an answer."""


JSON_BRACKETS, ALL_BRACKETS = "[{]}", "([{)]}"


def nested_deeply(text: str, brackets: str = ALL_BRACKETS, most: int = MAX_NESTED) -> bool:
    """Whether brackets may stand in one another more than `most` deep. Those in strings count, too, so a few texts that
    do not are said to: alike on every machine. brackets: those that open, then those that close."""
    opening = brackets[: len(brackets) // 2]
    # Few brackets cannot be deep. Most answers end here, and nothing walks over them.
    if sum(map(text.count, opening)) <= most:
        return False
    depth = lowest = 0
    for bracket in re.findall(f"[{re.escape(brackets)}]", text):
        if bracket not in opening:
            depth -= 1
            lowest = min(lowest, depth)
            continue
        depth += 1
        # A closing bracket that closes nothing must not buy depth: a row of them before the opening ones would.
        if depth - lowest > most:
            return True
    return False


class EnvironmentSettings(Protocol):
    """The part of a run's file that names an environment (`protocol.run.EnvironmentSpec`)."""

    @property
    def name(self) -> str: ...

    @property
    def args(self) -> dict[str, int | float | str]: ...

    @property
    def reward(self) -> str:
        """MODULE:FUNCTION that scores instead of the environment, at a desk; empty: the environment does."""
        ...


class Tokenizer(Protocol):
    """What environments need of a tokenizer."""

    @property
    def eos(self) -> frozenset[int]:
        """Token ids that end an answer."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text, without special tokens."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        ...

    def encode_chat(self, text: str) -> list[int]:
        """Token ids of one user message in the model's chat template, ready for the assistant's turn."""
        ...

    def encode_messages(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Token ids of (role, text) messages in the chat template, ready for the assistant's turn."""
        ...

    def asked_with(self, settings: Mapping[str, Any]) -> Self:
        """The same tokenizer, whose chat template is given these settings beside the messages."""
        ...

    def encode_reply(self, text: str) -> list[int]:
        """Token ids of one further user message: what stands between the end token of the assistant's turn, which was
        sampled, and what the assistant says next."""
        ...


Said = tuple[str, str]
"""(role, text) of a message of a chat."""


@dataclass(frozen=True, slots=True)
class Problem:
    """problem_id: unique in its environment; prompt: text, of a chat the user's last message; answer: whatever the
    environment's scorer needs; task: which of its scorers, if it has several; before: messages before the prompt."""

    problem_id: str
    prompt: str
    answer: tuple[str, ...]
    task: str = ""
    before: tuple[Said, ...] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a rollout after its prompt. sampled: by the policy, end token included; else the environment's."""

    tokens: list[int]
    sampled: bool


Transcript = Sequence[Segment]
"""Alternates; begins and ends with a sampled segment. Only the last one may lack its end token: it was cut off."""


def one_answer(output: Sequence[int]) -> Transcript:
    """The transcript of a rollout of one turn."""
    return (Segment(list(output), sampled=True),)


def last_answer(transcript: Transcript) -> list[int]:
    """What the policy said last, end token included; of one turn, all of it."""
    return transcript[-1].tokens


def answer_of(tokenizer: Tokenizer, transcript: Transcript) -> str | None:
    """The text of the last answer; None, which scores the floor, if it was cut off at the length limit or is longer
    than any scorer looks at. Both are seen alike by everybody."""
    tokens = last_answer(transcript)
    if not tokens or tokens[-1] not in tokenizer.eos:
        return None
    # Characters are counted and not tokens: a scorer's time goes by the text.
    text = tokenizer.decode(tokens)
    return text if len(text) <= MAX_ANSWER_CHARACTERS else None


Reply = list[int] | None | Undecided
"""What an environment says behind an answer: tokens, None where the rollout is over, or that this machine cannot
tell."""


class PlainEnvironment(Protocol):
    """The part of an environment that says one thing."""

    @property
    def determinism(self) -> Determinism: ...

    def step(self, problem: Problem, transcript: Transcript) -> list[int] | None: ...


class Defaults:
    """What environments have in common that gain nothing by being asked about many rollouts at once, and whose problems
    are all of one class."""

    def steps(self: PlainEnvironment, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[Reply]:
        return [reply_of(self, problem, one) for problem, one in zip(problems, transcripts, strict=True)]

    def is_judged(self: PlainEnvironment, problem: Problem) -> bool:
        return self.determinism == "judged"

    def is_witnessed(self: PlainEnvironment, problem: Problem) -> bool:
        return self.determinism == "witnessed"

    def states(self, problem: Problem, transcript: Transcript) -> bytes:
        return b""

    def another(self) -> Self | None:
        return None


def reply_of(environment: PlainEnvironment, problem: Problem, transcript: Transcript) -> Reply:
    try:
        return environment.step(problem, transcript)
    # One rollout that this machine cannot tell leaves the replies to the others as they are.
    except Undecided as undecided:
        return undecided


class OneTurn(Defaults):
    """What environments that take one answer have in common."""

    turns = 1

    def step(self, problem: Problem, transcript: Transcript) -> list[int] | None:
        """Over after the answer."""
        return None


class Environment(Protocol):
    """Numbered problems, turns and scores. Two machines that both decide come to the same."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int:
        """How many training problems there are."""
        ...

    @property
    def held_back(self) -> int:
        """How many evaluation problems there are, disjoint from the training problems."""
        ...

    @property
    def gave_up(self) -> int:
        """How many answers so far could not be scored in time: they scored 0, and elsewhere might have scored 1."""
        ...

    @property
    def determinism(self) -> Determinism: ...

    def is_judged(self, problem: Problem) -> bool:
        """Whether the reward for this problem is a matter of opinion: nothing here decides it."""
        ...

    def is_witnessed(self, problem: Problem) -> bool:
        """Whether a server says what follows an answer and what it is worth: that counts where a quorum hears it."""
        ...

    @property
    def turns(self) -> int:
        """Most sampled segments of a rollout; 1: one answer."""
        ...

    def problem(self, number: int) -> Problem:
        """Training problem `number`, 0 <= number < size."""
        ...

    def held_back_problem(self, number: int) -> Problem:
        """Evaluation problem `number`, 0 <= number < held_back."""
        ...

    def prompt_tokens(self, problem: Problem) -> list[int]:
        """The exact prompt that the model is given."""
        ...

    def step(self, problem: Problem, transcript: Transcript) -> list[int] | None:
        """What the environment says after the last sampled segment, which ended with an end token: tokens, chat
        template included; None: the rollout is over. Only called where `turns` is more than 1, in bounded time. Raises
        Undecided if this machine cannot tell."""
        ...

    def steps(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[Reply]:
        """The same of many rollouts at once, each by itself: what `step` would say of it, whatever becomes of the
        others."""
        ...

    def states(self, problem: Problem, transcript: Transcript) -> bytes:
        """Of a session: STATE_BYTES of its machine's hash for each time that the environment spoke. Empty where there
        is no machine. Raises Undecided."""
        ...

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        """Reward of each transcript for the problem at its place, in bounded time."""
        ...

    def another(self) -> Self | None:
        """The same problems with helper processes of its own, for another thread: what is the same for both is shared.
        None: all threads share one."""
        ...

    def close(self) -> None:
        """Stop helper processes, if there are any."""
        ...


def decided(
    environment: Environment, problems: Sequence[Problem], transcripts: Sequence[Transcript], most: int | None = None
) -> list[float | None]:
    """The score of each; None where this machine could not tell, asked a second time. most: undecided answers after
    which no more are asked, and the rest is None."""
    before = environment.gave_up
    scores: list[float | None] = [*environment.score(problems, transcripts)]
    gave_up = environment.gave_up - before
    if gave_up in (0, len(scores)):
        return scores if not gave_up else [None] * len(scores)
    # A scorer says how many it gave up, not which: what scored 0 among many is asked alone.
    unknown = 0
    for place in (place for place, score in enumerate(scores) if not score):
        before = environment.gave_up
        if most is None or unknown <= most:
            (scores[place],) = environment.score([problems[place]], [transcripts[place]])
        if environment.gave_up != before or (most is not None and unknown > most):
            scores[place] = None
            unknown += 1
    return scores


def mean_of(scores: Sequence[float | None]) -> float | None:
    """Mean of what was decided; None where that is less than nine in ten: what a machine cannot tell in time is no fair
    sample of all answers."""
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if known and 10 * len(known) >= 9 * len(scores) else None


def key_of(question: Any) -> bytes:
    """32 bytes to remember a question by, of plain values: answers and truths may be long."""
    return blake3(msgspec.json.encode(question)).digest()


T = TypeVar("T")
_CONTEXT = "intellect-node held-back problems v1"


def is_held_back(problem_id: str, share: float) -> bool:
    """Whether the hash of the id falls into the lowest `share` of all hashes."""
    # All members split alike, today and in older runs. Another hash would train on problems that were held back.
    digest = blake3(problem_id.encode(), derive_key_context=_CONTEXT).digest(8)
    return int.from_bytes(digest, "little") < share * 2**64


def numbered(items: Sequence[T], number: int) -> T:
    """Item `number`; raises IndexError for a number that there is not, negative ones too."""
    if not 0 <= number < len(items):
        raise IndexError(f"problem {number} of {len(items)}")
    return items[number]
