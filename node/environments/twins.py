"""Rows that ask the same in other words: they stand on one side of a hold-out, or the evaluation would be learnt.

Two problems are alike where

- their text is the same but for case, marks and blanks;
- they have the same numbers, two or more in any order, and the same truth: "Ann has 3 apples and gets 4 more" and
  "4 + 3";
- they have the same truth, the same numbers, if any, and nearly the same words (a Jaccard index of 0.75).

Numbers make a problem another one, however alike the words are: what a template writes are problems of their own. What
is in nearly all rows says nothing of any: the numbers of options, or of an example in front. Too large groups make a
hold-out coarse; too small ones make one that is learnt. Time grows with the text: words are compared by MinHash in
bands (Broder, "On the resemblance and containment of documents", 1997). Pure; the same on every machine.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from zlib import crc32

import numpy as np
from blake3 import blake3

from node.environments.base import Problem

BANDS, ROWS = 6, 2
_TOKEN = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+|[^\w\s.,;:!?\"'`´…“”‘’«»$\\]")
"""A number, a word or a sign that is no mark."""
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_SPELT = {word: str(number) for number, word in enumerate(_WORDS, 2)}
_DIGEST = blake3(b"intellect-node twins").digest(16 * BANDS * ROWS)
_FACTORS = np.frombuffer(_DIGEST, "<u8").reshape(BANDS * ROWS, 2) | np.uint64(1)


def groups_of(problems: Sequence[Problem], keys: Sequence[str | None] = ()) -> list[int]:
    """For each problem the place of the first that it is alike to, its own where there is none before it. What is
    alike to something alike is alike. keys: of problems whose maker says what is alike, and then nothing else does."""
    if any(key is not None for key in keys):
        return _by_key(problems, keys)
    found, everywhere = _Groups(len(problems)), _everywhere(problems[:10_000])
    texts, sames, specific = list[bytes](), list[bytes](), list[bytes | None]()
    for problem in problems:
        tokens = _tokens(problem)
        numbers = _numbers(tokens)
        if everywhere:
            numbers = [*(Counter(numbers) - everywhere).elements()]
        numbers.sort()
        texts.append(_digest(tokens))
        sames.append(_digest([*numbers, "", problem.task, *problem.answer]))
        specific.append(sames[-1] if len(numbers) > 1 else None)
    found.join(texts)
    # Numbers and a truth that more than this share of the rows have, or so many if that is more, group none of them.
    found.join(specific, max(64, int(0.2 * len(problems))))
    counts = Counter(sames)
    # Who shares truth and numbers with nobody has nobody to be compared with.
    # Rows whose words are compared: of more, those of the same text or numbers are still found.
    if len(problems) <= 200_000:
        _join_by_words(found, {at: problems[at] for at, same in enumerate(sames) if counts[same] > 1}, sames)
    return [found.first(place) for place in range(len(problems))]


def _by_key(problems: Sequence[Problem], keys: Sequence[str | None]) -> list[int]:
    rest = [place for place, key in enumerate(keys) if key is None]
    alike = groups_of([problems[place] for place in rest])
    found = dict(zip(rest, (rest[first] for first in alike), strict=True))
    firsts: dict[str, int] = {}
    for place, key in enumerate(keys):
        if key is not None:
            found[place] = firsts.setdefault(key, place)
    return [found[place] for place in range(len(problems))]


class _Groups:
    """Sets of places, each known by its first."""

    def __init__(self, count: int) -> None:
        self._parents = list(range(count))

    def first(self, place: int) -> int:
        while (parent := self._parents[place]) != place:
            self._parents[place] = self._parents[parent]
            place = self._parents[place]
        return place

    def unite(self, one: int, other: int) -> None:
        low, high = sorted((self.first(one), self.first(other)))
        self._parents[high] = low

    def join(self, keys: Iterable[Hashable | None], most: float = float("inf")) -> None:
        """Unite places with one key, unless more than `most` have it; None is no key."""
        places: dict[Hashable, list[int]] = {}
        for place, key in enumerate(keys):
            if key is not None:
                places.setdefault(key, []).append(place)
        for members in places.values():
            for place in members[1:] if len(members) <= most else ():
                self.unite(members[0], place)


def _tokens(problem: Problem) -> list[str]:
    """Words, numbers and signs of all that is said, without marks; numbers in words up to twelve as digits."""
    said = " ".join([*(text for _, text in problem.before), problem.prompt])
    plain = said.lower() if said.isascii() else unicodedata.normalize("NFKC", said).casefold()
    found: list[str] = _TOKEN.findall(plain)
    return found if _SPELT.keys().isdisjoint(found) else [_SPELT.get(one) or one for one in found]


def _numbers(tokens: Sequence[str]) -> list[str]:
    return [_number(one) for one in tokens if one[0].isdigit()]


def _everywhere(problems: Sequence[Problem]) -> Counter[str]:
    """Numbers that nearly all have, each as often as nearly all have it."""
    spread: Counter[tuple[str, int]] = Counter()
    fewest = 20  # rows, for that to say anything
    for problem in problems if len(problems) >= fewest else ():
        spread.update(
            (one, place) for one, times in Counter(_numbers(_tokens(problem))).items() for place in range(times)
        )
    # Share of the first rows: numbers that so many have are none of a row's own.
    everywhere = 0.9
    return Counter(one for (one, _), count in spread.items() if count >= everywhere * len(problems))


def _number(text: str) -> str:
    """1,000 and 1000, 2.50 and 2.5 are one number."""
    whole, dot, rest = text.replace(",", "").partition(".")
    rest = rest.rstrip("0")
    return (whole.lstrip("0") or "0") + (dot + rest if rest else "")


def _digest(parts: Iterable[str]) -> bytes:
    return blake3("\0".join(parts).encode("utf-8", "surrogatepass")).digest(16)


def _join_by_words(found: _Groups, problems: dict[int, Problem], sames: Sequence[bytes]) -> None:
    words, known = dict[int, frozenset[int]](), dict[str, int]()
    for place, problem in problems.items():
        own = {known.get(one) or known.setdefault(one, _word(one)) for one in set(_tokens(problem))}
        words[place] = frozenset(own - {-1})
    spread = Counter(one for some in words.values() for one in some)
    # Words that more than this share of the compared rows have, or so many if that is more, are not compared.
    most = max(16, int(0.02 * len(words)))
    common = frozenset(one for one, count in spread.items() if count > most)
    buckets: dict[Hashable, list[int]] = defaultdict(list)
    for place in words:
        words[place] -= common
        for band, key in enumerate(_sketch(words[place]) if words[place] else ()):
            buckets[band, key, sames[place]].append(place)
    alike = 0.75  # share of two texts' words that stand in both
    for members in buckets.values():
        one = words[members[0]]
        for place in members[1:]:
            if len(one & words[place]) >= alike * len(one | words[place]):
                found.unite(members[0], place)


def _word(text: str) -> int:
    """A number for it; -1 for what is a number itself."""
    return -1 if text[0].isdigit() else crc32(text.encode("utf-8", "surrogatepass"))


def _sketch(words: frozenset[int]) -> list[tuple[int, ...]]:
    """MinHash in bands: texts of much the same words are likely to agree in one of them."""
    values = np.fromiter(words, np.uint64, len(words))
    least = (values * _FACTORS[:, :1] + _FACTORS[:, 1:]).min(axis=1)
    return [tuple(band) for band in least.reshape(BANDS, ROWS).tolist()]
