"""The search tool: a corpus that is a file of the run, ranked by BM25 in whole numbers.

Two machines must find the same passages in the same order, so there is no floating point, no locale and no Unicode
table: words are runs of ASCII letters and digits and of bytes above them, logarithms are integers, and ties go to the
earlier row. BM25 as in Robertson and Zaragoza, The Probabilistic Relevance Framework (2009), k1 = 1.2, b = 0.75.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from heapq import nsmallest
from pathlib import Path

import msgspec

from node.environments.dataset import read_rows
from node.environments.errors import DatasetError, Undecided

NAME = "search"
MAX_PASSAGES = 1_000_000
MAX_PASSAGE = 64 * 1024
MAX_QUERY_WORDS = 32
FOUND = 3
_WORD = re.compile(rb"[a-z0-9\x80-\xff]+")
_LOG_BITS = 16


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
    for _ in range(_LOG_BITS):
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

    def best(self, query: str, count: int = FOUND) -> list[Passage]:
        """The passages that fit a query best, at most `count`; none that has none of its words."""
        scores: dict[int, int] = defaultdict(int)
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
        passage = _passage(row, path, line)
        if count > MAX_PASSAGES or len(passage.text) + len(passage.title) > MAX_PASSAGE:
            why = f"more than {MAX_PASSAGES} passages, or one of more than {MAX_PASSAGE} characters"
            raise _unusable(path, line, why)
        yield passage
    if not count:
        raise _unusable(path, 1, "it has no passages")


def _passage(row: dict[str, object], path: Path, line: int) -> Passage:
    try:
        return msgspec.convert(row, Passage, strict=True)
    except msgspec.ValidationError as error:
        raise _unusable(path, line, str(error)) from None


def _unusable(path: Path, line: int, why: str) -> DatasetError:
    return DatasetError("the corpus cannot be used", f"{path}, line {line}: {why}", "correct or remove the row")
