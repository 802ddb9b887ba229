"""Sequences that are drawn, how their prompts go through the model, and beginnings that several of them share.

Sequences that begin with the same prompt share its pass, and if it is long, what the cache has of it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from node.inference.attention import Beginnings, KVCache
from node.inference.engine import U8, U16, Completion, GenerationRequest
from node.inference.experts import Routes, as_recorded
from node.inference.language_model import LanguageModel, batches
from node.inference.room import CHUNK_TOKENS
from node.inference.transfer import fetched


@dataclass(eq=False, slots=True)
class Beginning:
    """Of several sequences. name: of its tokens; last, experts: as of a sequence; users: rows that have it."""

    name: bytes
    length: int
    last: Tensor
    experts: U8 | None
    users: int = 0


@dataclass(eq=False, slots=True)
class Drawn:
    """tokens: prompt and output; output: how many of the latter; heads: room for those of the output; begun: names the
    tokens that its row begins or began with; last: [hidden], what the pass over those ended in; experts: of the first
    tokens, in parts, None of a model without; shared: what of it is not in its own row; earlier: tokens that were
    sampled in answers before this one."""

    number: int
    request: GenerationRequest
    tokens: list[int]
    heads: U16
    begun: bytes
    output: int = 0
    last: Tensor = field(default_factory=lambda: torch.empty(0))
    experts: list[U8] | None = None
    shared: Beginning | None = None
    earlier: int = 0

    @property
    def before(self) -> int:
        """Tokens that are not in its own row."""
        return self.shared.length if self.shared else 0

    @property
    def own(self) -> int:
        """Tokens in its own row."""
        return len(self.tokens) - self.before

    @property
    def known(self) -> U8 | None:
        """The experts so far, in one part."""
        if not self.experts:
            return None
        self.experts = [np.concatenate(self.experts)] if len(self.experts) > 1 else self.experts
        return self.experts[0]

    @property
    def name(self) -> bytes:
        """Equal for equal tokens that equal weights and experts computed; unlike a tuple it remembers its hash."""
        tokens = self.request.adapter + np.asarray(self.tokens, dtype=np.int64).tobytes()
        return tokens if self.known is None else tokens + self.known.tobytes()

    def begin_with(self, beginning: Beginning) -> None:
        """Have it without a copy in its own row."""
        self.shared, self.last = beginning, beginning.last
        beginning.users += 1
        if self.experts is not None:
            self.experts = [recorded(beginning.experts)]

    def add(self, head: U16, token: int) -> None:
        if self.request.rows is not None:
            self.request.rows.put(self.earlier + self.output, head)
        else:
            if self.output == len(self.heads):
                rows = min(2 * self.output, len(self.request.uniforms))
                self.heads.resize((rows, self.heads.shape[1]), refcheck=False)
            self.heads[self.output] = head
        self.tokens.append(token)
        self.output += 1

    def expected(self, reach: float) -> int:
        """Tokens in the end, if it is given `reach` tokens of output or has them already."""
        return len(self.tokens) + max(0, min(len(self.request.uniforms), int(reach)) - self.output)

    def ends(self, eos: frozenset[int]) -> bool:
        """Asked once behind each token, of which whoever waits for it hears here."""
        told, token = self.request.on_progress, self.tokens[-1]
        enough = told is not None and told(token)
        return enough or token in eos or self.output == len(self.request.uniforms)

    def completion(self, finished: bool) -> Completion:
        kept, output = self.request.rows, self.tokens[len(self.tokens) - self.output :]
        self.heads.resize((0 if kept else self.output, self.heads.shape[1]), refcheck=False)
        return Completion(output, finished, self.heads, experts=self.known, kept=kept)


def recorded(known: U8 | None) -> U8:
    assert known is not None  # of a row that has been through the model
    return known


def note(routes: Routes | None, rows: Sequence[tuple[Drawn, int]], width: int, start: int | None = None) -> None:
    """Write down the experts of a pass over so many tokens of each row, padded to `width`, that begin at `start` or
    behind all that is known; those that were known stay."""
    if routes is None:
        return
    chosen = as_recorded(*fetched(routes.chosen))
    for (one, fed), lines in zip(rows, chosen.reshape(len(rows), width, -1), strict=True):
        assert one.experts is not None  # of a model with experts
        skipped = 0 if start is None else sum(map(len, one.experts)) - start
        one.experts.append(lines[skipped:fed])


class Passes:
    """Prompts through the model."""

    def __init__(self, model: LanguageModel) -> None:
        self._model = model

    def run(self, sequences: Sequence[Drawn], cache: KVCache, row: int) -> None:
        """Their tokens, shortest first, in passes of about the same number, into the cache from `row` on."""
        most = self._model.pass_tokens
        for batch in batches(sequences, most, lambda one: len(one.tokens)):
            size = min(CHUNK_TOKENS, most) if len(batch[-1].tokens) > most else most
            for start in range(0, len(batch[-1].tokens), size):
                parts = [one.tokens[start : start + size] for one in batch]
                hidden = self._pass(batch, parts, cache, row, start)
            for one, states in zip(batch, hidden, strict=True):
                # A view would keep the states of the whole pass in memory.
                one.last = states[len(one.tokens) - 1 - start].clone()
            row += len(batch)

    def _pass(
        self, batch: Sequence[Drawn], parts: Sequence[Sequence[int]], cache: KVCache, row: int, start: int
    ) -> Tensor:
        self._model.of([one.request.adapter for one in batch])
        known = [None if one.known is None else one.known[start:] for one in batch]
        routes = self._model.routes(parts, known)
        hidden = self._model.chunk(cache, row, start, parts, routes)
        note(routes, list(zip(batch, map(len, parts), strict=True)), hidden.shape[1], start)
        return hidden


class Prompts:
    """Beginnings that are kept once. shared: by row of the cache."""

    def __init__(self, model: LanguageModel, passes: Passes) -> None:
        self._model, self._passes = model, passes
        self.cache = model.cache()
        self.shared: list[Beginning] = []

    @property
    def room(self) -> int:
        """Tokens that they take."""
        return self.cache.rows * self.cache.span

    def clear(self) -> None:
        """Their memory is given back."""
        self.cache, self.shared = self._model.cache(), []

    def held(self, lengths: Collection[int]) -> tuple[int, int]:
        """Rows and positions of a cache of beginnings of these lengths: as it is, or if that is too small, of these."""
        rows, span = len(lengths), max(lengths, default=0)
        fits = rows <= self.cache.rows and span <= self.cache.span
        return (self.cache.rows, self.cache.span) if fits else (rows, span)

    def begin(self, branching: Sequence[Drawn]) -> dict[bytes, Beginning]:
        """All beginnings by name, those of these among them, which went through the model."""
        known = {one.name: one for one in self.shared}
        new = {one.begun: one for one in branching if one.begun not in known}
        originals = sorted(new.values(), key=lambda one: len(one.tokens))
        if originals:
            row, prompts = len(self.shared), self.cache
            rows, span = self.held([*(one.length for one in self.shared), *(len(one.tokens) for one in originals)])
            if (rows, span) != (prompts.rows, prompts.span):
                prompts.resize(rows, span, row, min(span, prompts.span))
            self._passes.run(originals, prompts, row)
        made = [Beginning(one.begun, len(one.tokens), one.last, one.known) for one in originals]
        self.shared += made
        return known | {one.name: one for one in made}

    def left(self, beginning: Beginning) -> None:
        """A row that began with it is gone."""
        beginning.users -= 1
        # The last row that has it goes, and others need the room.
        if not beginning.users:
            self._forget(beginning)

    def _forget(self, beginning: Beginning) -> None:
        """The last beginning takes the place of this one; without any, their memory is given back."""
        row, last = self.shared.index(beginning), len(self.shared) - 1
        if row != last:
            self.cache.copy(last, row, self.shared[last].length)
            self.shared[row] = self.shared[last]
        self.shared.pop()
        if not self.shared:
            self.cache.captured.clear()
            self.cache = self._model.cache()

    def of(self, rows: Sequence[Drawn]) -> Beginnings | None:
        """What the rows began with, as a step of the model takes it."""
        if not self.shared:
            return None
        numbers = {id(one): number for number, one in enumerate(self.shared)}
        of = [numbers[id(one.shared)] if one.shared else -1 for one in rows]
        return Beginnings(self.cache, of, [one.length for one in self.shared])
