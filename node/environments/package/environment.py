"""A package as an environment of a run: its rows as problems, its `step` and `score` over transcripts.

Its code runs in the sandbox only, at workers, validators and trainer alike. It is given what was said as text; the
tokens are this module's business.
"""

import struct
from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Self

import msgspec
from blake3 import blake3

from node.bounded_dict import BoundedDict
from node.environments.base import Defaults, Determinism, Problem, Reply, Tokenizer, Transcript, answer_of
from node.environments.errors import Undecided
from node.environments.package.archive import in_run
from node.environments.package.loaded import Item, LoadedPackage, Row, Turn, unusable
from node.environments.package.scoring import PackageScorer, ScoredRow
from node.environments.programs import Opener, ProgramRunner, opener_for
from node.environments.prompts import ListedProblems, check_template, read_prompt
from protocol.audit import MAX_ANSWER_CHARACTERS

MAX_ID = 256
_Asked = tuple[Problem, Transcript, list[Turn]]
"""What an answer stands in: its problem, all that was said, and the same as text."""


class Arguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """template: 'plain' or 'chat'; held_back_share: of the rows, for evaluation."""

    template: str = "plain"
    held_back_share: float = 0.05


class PackageEnvironment(ListedProblems, Defaults):
    """name, determinism and turns are the package's own."""

    def __init__(
        self,
        package: LoadedPackage,
        scorer: PackageScorer,
        tokenizer: Tokenizer,
        arguments: Arguments,
        *,
        remembered: int = 1 << 14,
    ) -> None:
        """Raises PackageError for rows that cannot be used."""
        self._remembered = remembered
        manifest = package.manifest
        self.name, self.turns = manifest.name, manifest.turns
        self.determinism: Determinism = manifest.determinism
        self._package = package
        self._scorer = scorer
        self._tokenizer = tokenizer
        self._chat = arguments.template == "chat"
        self._said = BoundedDict[bytes, str](remembered)
        # All rows are read here, once, with their prompts: what is wrong with row 7 is known before a run begins.
        problems = [self._problem(item) for item in package.items()]
        self.hold(problems, arguments.held_back_share)
        self._check({problem.problem_id for problem in problems})

    def _check(self, ids: set[str]) -> None:
        if len(ids) != self.size + self.held_back:
            raise unusable(self.name, "two rows have the same id", "give every row an id of its own, or none")
        if not self.size or not self.held_back:
            found = f"it has {self.size} rows to train on and {self.held_back} held back for evaluation"
            raise unusable(self.name, found, "add rows, or change held_back_share in the run file")

    def _problem(self, item: Item) -> Problem:
        try:
            before, prompt = read_prompt(item.prompt)
            given = item.row.get("id", item.number)
            if not isinstance(given, str | int) or not 0 < len(str(given)) <= MAX_ID:
                raise ValueError(f"its id is not a number or a text of up to {MAX_ID} characters")
            row = msgspec.json.encode(item.row, order="sorted").decode()
            check_template(before, chat=self._chat)
        except ValueError as error:
            raise unusable(self.name, f"row {item.number}: {error}", "mend it: intellect-node env check") from None
        return Problem(str(given), prompt, (row,), before=before)

    @property
    def gave_up(self) -> int:
        return self._scorer.gave_up

    @property
    def faults(self) -> dict[str, int]:
        """How often the package's scorer failed so far, by what it did; each of those scored 0."""
        return dict(self._scorer.faults)

    def step(self, problem: Problem, transcript: Transcript) -> list[int] | None:
        """Raises Undecided."""
        return self._encoded(self._reply(problem, transcript, self._turns(problem, transcript)))

    def steps(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[Reply]:
        """In one pass through the sandbox. What was said before is known by then, or is asked for one by one."""
        replies: list[Reply] = [None] * len(problems)
        asked: dict[int, _Asked] = {}
        for place, (problem, transcript) in enumerate(zip(problems, transcripts, strict=True)):
            try:
                asked[place] = problem, transcript, self._turns(problem, transcript)
            except Undecided as undecided:
                replies[place] = undecided
        for place, said in zip(asked, self._replies(list(asked.values())), strict=True):
            replies[place] = said if isinstance(said, Undecided) else self._encoded(said)
        return replies

    def _encoded(self, said: str) -> list[int] | None:
        return self.reply_tokens(said) if said else None

    def states(self, problem: Problem, transcript: Transcript) -> bytes:
        """Raises Undecided."""
        if self._package.sessions is None:
            return b""
        return self._package.sessions.states(_row(problem), self._turns(problem, transcript))

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        """What was cut off at the length limit is no answer and scores 0, and so does what is too long to be read."""
        asked: dict[int, ScoredRow] = {}
        for place, (problem, transcript) in enumerate(zip(problems, transcripts, strict=True)):
            if answer_of(self._tokenizer, transcript) is not None:
                try:
                    turns = self._turns(problem, transcript)
                except Undecided:
                    self._scorer.gave_up += 1
                    continue
                if sum(len(turn["content"]) for turn in turns) <= MAX_ANSWER_CHARACTERS:
                    asked[place] = ScoredRow(_row(problem), turns)
        scores = [0.0] * len(problems)
        for place, reward in zip(asked, self._scorer.score(list(asked.values())), strict=True):
            scores[place] = reward
        return scores

    def another(self) -> Self:
        """Raises Undecided."""
        other = copy(self)
        # Each thread remembers for itself what was said: the table is not made for two.
        other._package, other._said = self._package.another(), BoundedDict(self._remembered)
        other._scorer = self._scorer.another(other._package)
        return other

    def close(self) -> None:
        self._scorer.close()

    def _turns(self, problem: Problem, transcript: Transcript) -> list[Turn]:
        """What was said, as text. Raises Undecided."""
        turns: list[Turn] = []
        for place, segment in enumerate(transcript):
            if segment.sampled:
                turns.append({"role": "assistant", "content": self._tokenizer.decode(segment.tokens)})
            else:
                # Asked for again and not decoded: two texts may have the same tokens.
                turns.append({"role": "user", "content": self._reply(problem, transcript[:place], turns)})
        return turns

    def _reply(self, problem: Problem, before: Transcript, turns: list[Turn]) -> str:
        """What the package says behind `before`, whose text is `turns`; empty: nothing. Raises Undecided."""
        (said,) = self._replies([(problem, before, turns)])
        if isinstance(said, Undecided):
            raise said
        return said

    def _replies(self, asked: Sequence[_Asked]) -> list[str | Undecided]:
        """The same of many rollouts at once.

        Remembered by all that it follows from: two texts may have the same tokens, and the one that the package
        meant here must not depend on what it said elsewhere.
        """
        places = [_place(problem, before) for problem, before, _ in asked]
        known: dict[bytes, str | Undecided] = {place: self._said[place] for place in places if place in self._said}
        new = {place: one for place, one in zip(places, asked, strict=True) if place not in known}
        heard = self._package.steps([(_row(problem), turns) for problem, _, turns in new.values()])
        for place, said in zip(new, heard, strict=True):
            known[place] = said if isinstance(said, Undecided) else said or ""
            if not isinstance(said, Undecided):
                self._said[place] = said or ""
        return [known[place] for place in places]


def load(
    arguments: Arguments, assets: Path, name: str, tokenizer: Tokenizer, opener: Opener | None = None
) -> PackageEnvironment:
    """The package `name` of a run, its files below `assets`. Raises EnvironmentFault."""
    if arguments.template not in ("plain", "chat") or not 0 < arguments.held_back_share < 1:
        why = f"template = {arguments.template!r}, held_back_share = {arguments.held_back_share:g}"
        raise unusable(name, why, "use template 'plain' or 'chat' and a share between 0 and 1")
    opener = opener or opener_for(assets)
    package = LoadedPackage(in_run(assets, name), opener)
    if package.manifest.name != name:
        package.close()
        raise unusable(name, f"the package there calls itself {package.manifest.name!r}", "rename the file after it")
    scorer = PackageScorer(package, ProgramRunner(opener, package.manifest.limits))
    try:
        return PackageEnvironment(package, scorer, tokenizer, arguments)
    except BaseException:
        scorer.close()
        raise


def _place(problem: Problem, transcript: Transcript) -> bytes:
    """32 bytes that name a problem and all that was said so far."""
    hasher = blake3(problem.problem_id.encode())
    for segment in transcript:
        # The length is hashed as well: else tokens could move from one segment to the next unseen.
        hasher.update(struct.pack(f"<?I{len(segment.tokens)}i", segment.sampled, len(segment.tokens), *segment.tokens))
    return hasher.digest()


def _row(problem: Problem) -> Row:
    return msgspec.json.decode(problem.answer[0])
