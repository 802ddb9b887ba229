"""`tools`: the problems of a `dataset`, with tools that may be called before the final answer is given.

Problems, prompts and scores are those of `dataset`; the answer that counts is the last one. What a tool says is text of
bounded length, the same on every machine: replayed by validators, learnt from by nobody.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from heapq import nsmallest
from pathlib import Path
from typing import Self

import msgspec

from node.environments import dataset
from node.environments.base import (
    Determinism,
    Environment,
    Problem,
    Reply,
    Tokenizer,
    Transcript,
    last_answer,
    one_answer,
)
from node.environments.errors import DatasetError, EnvironmentFault, Undecided, nearest
from node.environments.files import read_rows
from node.environments.guests import guest
from node.environments.programs import Opener, opener_for
from node.environments.tools.form import Tool, how_to_call, parse_call, tell_result
from node.sandbox import CallOutcome, CallStatus, Sandbox, SandboxLimits

# The search tool: a corpus that is a file of the run, ranked by BM25 in whole numbers.
# Two machines must find the same passages in the same order, so there is no floating point, no locale and no Unicode
# table: words are runs of ASCII letters and digits and of bytes above them, logarithms are integers, and ties go to
# the earlier row. BM25 as in Robertson and Zaragoza, The Probabilistic Relevance Framework (2009), k1 = 1.2, b =
# 0.75.
SEARCH = "search"
MAX_PASSAGES = 1_000_000
MAX_PASSAGE = 64 * 1024
MAX_QUERY_WORDS = 32
_WORD = re.compile(rb"[a-z0-9\x80-\xff]+")


class Passage(msgspec.Struct, frozen=True):
    """A row of the corpus; other columns of it are not read."""

    text: str
    title: str = ""


def words(text: str) -> list[bytes]:
    return _WORD.findall(text.encode("utf-8", "replace").lower())


def log2(numerator: int, denominator: int) -> int:
    """floor(2^16 log2(numerator / denominator)) for numerator >= denominator > 0, by repeated squaring."""
    whole = (numerator // denominator).bit_length() - 1
    mantissa = (numerator << 64) // (denominator << whole)
    found = whole
    log_bits = 16
    for _ in range(log_bits):
        mantissa = mantissa * mantissa >> 64
        found = found << 1 | (mantissa >> 65)
        mantissa >>= mantissa >> 65
    return found


class Corpus:
    """An inverted index over passages."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        self._passages: list[Passage] = []
        self._lengths: list[int] = []
        self._places: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
        for number, passage in enumerate(passages):
            found = words(f"{passage.title} {passage.text}")
            self._passages.append(passage)
            self._lengths.append(len(found))
            for word, count in Counter(found).items():
                self._places[word].append((number, count))
        self._total = max(1, sum(self._lengths))

    def best(self, query: str, count: int = 3) -> list[Passage]:
        """The passages that fit a query best, at most `count`; none that has none of its words."""
        scores: dict[int, int] = defaultdict(int)
        # A call may have 64 KiB of words, and a common word is in every one of a million passages.
        for word in list(dict.fromkeys(words(query)))[:MAX_QUERY_WORDS]:
            places = self._places.get(word, [])
            rarity = log2(2 * (len(self._passages) + 1), 2 * len(places) + 1)
            for number, times in places:
                scores[number] += rarity * self._saturated(number, times)
        chosen = nsmallest(count, scores.items(), key=lambda item: (-item[1], item[0]))
        return [self._passages[number] for number, _ in chosen]

    def _saturated(self, number: int, times: int) -> int:
        """2^16 (k1 + 1) times / (times + k1 (1 - b + b length / mean length)), multiplied out."""
        mean_shares = 9 * self._lengths[number] * len(self._passages)
        return (22 * times * self._total << 16) // ((10 * times + 3) * self._total + mean_shares)


class SearchTool:
    """most: characters of each passage that are told."""

    about = "finds passages that have these words"

    def __init__(self, corpus: Corpus, most: int) -> None:
        self._corpus = corpus
        self._most = most

    def answer(self, text: str) -> str:
        found = self._corpus.best(text)
        return "\n\n".join(self._shown(passage) for passage in found) or "nothing was found"

    def answers(self, texts: Sequence[str]) -> list[str | Undecided]:
        return [self.answer(text) for text in texts]

    def another(self) -> "SearchTool":
        """Nothing in a corpus changes."""
        return self

    def _shown(self, passage: Passage) -> str:
        title = f"{passage.title}: " if passage.title else ""
        return (title + passage.text)[: self._most]

    def close(self) -> None:
        """Nothing to stop."""


def load_corpus(path: Path) -> Corpus:
    """JSONL or parquet, one passage a row. Raises DatasetError."""
    return Corpus(_passages(path))


def _passages(path: Path) -> Iterable[Passage]:
    count = 0
    for line, row in read_rows(path):
        count += 1
        try:
            passage = msgspec.convert(row, Passage, strict=True)
        except msgspec.ValidationError as error:
            raise _unusable_corpus(path, line, str(error)) from None
        if count > MAX_PASSAGES or len(passage.text) + len(passage.title) > MAX_PASSAGE:
            why = f"more than {MAX_PASSAGES} passages, or one of more than {MAX_PASSAGE} characters"
            raise _unusable_corpus(path, line, why)
        yield passage
    if not count:
        raise _unusable_corpus(path, 1, "it has no passages")


def _unusable_corpus(path: Path, line: int, why: str) -> DatasetError:
    return DatasetError("the corpus cannot be used", f"{path}, line {line}: {why}", "correct or remove the row")


PYTHON = "python"
_ENTRY = "intellect_session"


class PythonTool:
    """Opened when first called. most: characters of a result that are looked at."""

    about = "runs Python and tells what it prints; nothing is kept from one call to the next"

    def __init__(self, opener: Opener, limits: SandboxLimits, most: int) -> None:
        self._opener = opener
        self._limits = limits
        self._most = most
        self._sandbox: Sandbox | None = None

    def answer(self, text: str) -> str:
        """Raises Undecided."""
        return _told(self._opened().call("run", PYTHON, text, self._most))

    def answers(self, texts: Sequence[str]) -> list[str | Undecided]:
        """Equal calls are made once: they have one result."""
        different = list(dict.fromkeys(texts))
        outcomes = self._opened().call_all("run", [(PYTHON, text, self._most) for text in different])
        found = dict(zip(different, outcomes, strict=True))
        return [one if isinstance(one, Undecided) else _told(one) for one in (found[text] for text in texts)]

    def another(self) -> "PythonTool":
        return PythonTool(self._opener, self._limits, self._most)

    def _opened(self) -> Sandbox:
        if self._sandbox is None:
            self._sandbox = self._opener({f"{_ENTRY}.py": guest(_ENTRY)}, _ENTRY, self._limits)
        return self._sandbox

    def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            sandbox.close()


def _told(outcome: CallOutcome) -> str:
    """What the model is told: of a call that did not come to its end, only how that was."""
    if outcome.status is CallStatus.OK and isinstance(outcome.value, str):
        return outcome.value
    return f"the call ended early: {outcome.status.value}"


KNOWN = (PYTHON, SEARCH)


class Arguments(dataset.Arguments, frozen=True, forbid_unknown_fields=True):
    """path and what follows: as in `dataset`; tools: names, with blanks between them; corpus: what `search` looks
    through, below the run's assets; calls: most of one rollout; result_characters: most of one result; call_fuel: most
    instructions of one call of `python`; instructions: put before each prompt, {tools} says how tools are called."""

    tools: str = PYTHON
    corpus: str = ""
    calls: int = 3
    result_characters: int = 2000
    call_fuel: int = 2_000_000_000
    instructions: str = "{tools}\n\n"


class ToolEnvironment:
    """The problems of another environment, with tools."""

    name = "tools"

    def __init__(
        self, problems: Environment, tools: Mapping[str, Tool], tokenizer: Tokenizer, arguments: Arguments
    ) -> None:
        self._problems = problems
        self.rows = getattr(problems, "rows", None)
        self._tools = tools
        self._tokenizer = tokenizer
        self._encode = tokenizer.encode_reply if arguments.template == "chat" else tokenizer.encode
        self._most = arguments.result_characters
        about = how_to_call([(name, tool.about) for name, tool in tools.items()])
        self._instructions = arguments.instructions.replace("{tools}", about)
        self.turns = arguments.calls + 1
        # Calls run into counted limits, so exact problems become bounded ones.
        self.determinism: Determinism = "judged" if problems.determinism == "judged" else "bounded"
        self.size, self.held_back = problems.size, problems.held_back

    @property
    def gave_up(self) -> int:
        return self._problems.gave_up

    def problem(self, number: int) -> Problem:
        return self._problems.problem(number)

    def held_back_problem(self, number: int) -> Problem:
        return self._problems.held_back_problem(number)

    def prompt_tokens(self, problem: Problem) -> list[int]:
        told = self._instructions + problem.prompt
        return self._problems.prompt_tokens(replace(problem, prompt=told))

    def step(self, problem: Problem, transcript: Transcript) -> list[int] | None:
        call = parse_call(self._tokenizer.decode(last_answer(transcript)), self._tools)
        if call is None:
            return None
        return self._told(self._tools[call.tool].answer(call.text))

    def steps(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[Reply]:
        calls = [parse_call(self._tokenizer.decode(last_answer(one)), self._tools) for one in transcripts]
        replies: list[Reply] = [None] * len(calls)
        for name, tool in self._tools.items():
            asked = {place: call.text for place, call in enumerate(calls) if call and call.tool == name}
            # A tool that nobody called is not asked: asking opens its sandbox.
            for place, found in zip(asked, tool.answers(list(asked.values())) if asked else (), strict=True):
                replies[place] = found if isinstance(found, Undecided) else self._told(found)
        return replies

    def is_judged(self, problem: Problem) -> bool:
        return self._problems.is_judged(problem)

    def is_witnessed(self, problem: Problem) -> bool:
        return self._problems.is_witnessed(problem)

    def states(self, problem: Problem, transcript: Transcript) -> bytes:
        return self._problems.states(problem, transcript)

    def _told(self, result: str) -> list[int]:
        return self._encode(tell_result(result, self._most))

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        """A call that nobody answered any more is no answer."""
        return self._problems.score(problems, [one_answer(self._final(transcript)) for transcript in transcripts])

    def _final(self, transcript: Transcript) -> list[int]:
        answer = last_answer(transcript)
        return [] if parse_call(self._tokenizer.decode(answer), self._tools) else answer

    def another(self) -> Self | None:
        problems = self._problems.another()
        if problems is None:
            return None
        view = copy(self)
        view._problems, view._tools = problems, {name: tool.another() for name, tool in self._tools.items()}
        return view

    def close(self) -> None:
        self._problems.close()
        for tool in self._tools.values():
            tool.close()


def load(arguments: Arguments, assets: Path, tokenizer: Tokenizer) -> Environment:
    """Raises EnvironmentFault for arguments that make no sense, DatasetError for bad data."""
    names = _checked(arguments)
    tools = {name: _tool(name, arguments, assets) for name in names}
    problems = dataset.load(arguments, assets, tokenizer)
    return ToolEnvironment(problems, tools, dataset.asking(tokenizer, arguments), arguments)


def calls_python(args: Mapping[str, int | float | str]) -> bool:
    """Whether a run file's arguments ask for the tool that needs the sandbox's interpreter."""
    return PYTHON in str(args.get("tools", PYTHON)).split()


def _checked(arguments: Arguments) -> list[str]:
    """The names of the tools."""
    names = list(dict.fromkeys(arguments.tools.split()))
    for name in names:
        if name not in KNOWN:
            raise _unusable(f"there is no tool {name!r}", nearest(name, KNOWN))
    most_calls = 64
    if not names or not 1 <= arguments.calls <= most_calls or not 16 <= arguments.result_characters <= 1 << 20:
        why = (
            f"tools = {arguments.tools!r}, calls = {arguments.calls}, result_characters = {arguments.result_characters}"
        )
        raise _unusable(why, f"name a tool, allow 1..{most_calls} calls and results of 16..1048576 characters")
    if (SEARCH in names) != bool(arguments.corpus):
        raise _unusable("`search` and a corpus belong together", 'set corpus = "..." and tools = "search"')
    return names


def _tool(name: str, arguments: Arguments, assets: Path) -> Tool:
    if name == SEARCH:
        path = assets / arguments.corpus
        # Resolved: a link inside of the assets may lead out of them.
        if not path.resolve().is_relative_to(assets.resolve()):
            raise _unusable(f"the corpus {arguments.corpus!r} leaves the run's assets", "correct corpus")
        return SearchTool(load_corpus(path), arguments.result_characters)
    try:
        packages = tuple(arguments.packages.split())
        limits = SandboxLimits(fuel=arguments.call_fuel, memory_mib=arguments.memory_mib, packages=packages)
    except ValueError as error:
        raise _unusable(str(error), "change call_fuel or memory_mib") from None
    # One character more than is told, so that a cut is seen and marked.
    return PythonTool(opener_for(assets), limits, arguments.result_characters + 1)


def _unusable(why: str, remedy: str) -> EnvironmentFault:
    return EnvironmentFault("environment 'tools' cannot be loaded", why, remedy)
