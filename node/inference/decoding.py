"""Continuous batching: a row of the cache is refilled as soon as its sequence ends.

How many sequences run at a time follows from what sequences reach, not from what they may: room is taken for the mean
of those that ended, and when the ones in flight become longer than that, the shortest wait. They go on later from all
their tokens, as if those were a prompt; what was recorded of them stays. What several begin with is kept by `prompts`.
"""

import math
from collections import Counter, deque
from collections.abc import Sequence
from itertools import count, islice

import numpy as np
import torch
from torch import Tensor

from node.inference.engine import MOST_IN_FLIGHT, U16, Completion, GenerationRequest
from node.inference.errors import EngineError, ran_out
from node.inference.language_model import LanguageModel
from node.inference.out_of_memory import smaller
from node.inference.prompts import Drawn, Passes, Prompts, note, recorded

MOST_ROWS = 256
"""Sequences at a time: more make no CPU faster. An H100 draws 2.8 times as fast at 256 as at 64; more is untried."""
_FIRST_GUESS = 256
"""Output tokens that are reckoned with until sequences have ended."""
SHARED_TOKENS = 128
"""A prompt of fewer is copied into the row of each that begins with it: two kernels cost more than a copy."""
_HEAD_ROWS = 64
"""Of a request's buffer at first; it doubles."""


class TorchDecoder:
    """`node.inference.engine.Decoder`. batch_tokens: most tokens in the cache, unless one sequence has more."""

    def __init__(self, model: LanguageModel, eos: frozenset[int], batch_tokens: int, temperature: float) -> None:
        self._model, self._eos, self._temperature = model, eos, temperature
        self._budget, self._most, self._tried = batch_tokens, MOST_ROWS, 0
        self._cache, self._passes = model.cache(), Passes(model)
        self._prompts = Prompts(model, self._passes)
        self._rows: list[Drawn] = []
        self._waiting: deque[Drawn] = deque()
        self._numbers = count(1)
        self._extra = model.row_tokens
        """That each row takes besides its own."""
        self._reach = float(_FIRST_GUESS)

    def submit(self, request: GenerationRequest) -> int:
        self._check(request)
        number = next(self._numbers)
        # Most answers end long before their limit: room for all of it would be most of the memory.
        room = 0 if request.rows else min(_HEAD_ROWS, len(request.uniforms))
        heads = np.empty((room, self._model.hidden), dtype=np.uint16)
        one = Drawn(number, request, list(request.prompt), heads, b"")
        one.earlier = request.rows.count if request.rows else 0
        if self._model.routing is not None:
            one.experts = [] if request.experts is None else [request.experts]
        one.begun = one.name
        self._waiting.append(one)
        return number

    def _check(self, request: GenerationRequest) -> None:
        if len(self) >= MOST_IN_FLIGHT:
            raise EngineError("too many requests", f"{len(self)} are in flight", "submit more when some have finished")
        if not len(request.prompt) or not len(request.uniforms):
            raise EngineError("a request cannot be served", "it has no prompt or no tokens to draw", "report this")
        # On a GPU such a token is an error of the device, after which the whole process is lost.
        if min(request.prompt) < 0 or max(request.prompt) >= self._model.vocabulary:
            raise EngineError("a request cannot be served", "it has tokens outside the vocabulary", "report this")
        if request.experts is not None and len(request.experts) > len(request.prompt):
            raise EngineError("a request cannot be served", "it has experts of more tokens than it has", "report this")

    # The last row takes the place of this one, which writes the cache: torch allows that in this mode only.
    @torch.inference_mode()
    def cancel(self, number: int) -> None:
        self._waiting = deque(one for one in self._waiting if one.number != number)
        for row, one in enumerate(self._rows):
            if one.number == number:
                self._leave(row)
                break

    def __len__(self) -> int:
        return len(self._waiting) + len(self._rows)

    @property
    def adapters(self) -> set[bytes]:
        """Of all that is in flight."""
        return {one.request.adapter for one in (*self._waiting, *self._rows)}

    @property
    def room(self) -> int:
        # One is let in whatever it needs: alone it may have more than the budget.
        most = min(self._most, self._left // max(self._expected + self._extra, int(self._reach), 1))
        return max(most - len(self), 0 if len(self) else 1)

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Completion]]:
        while len(self):
            try:
                # Nothing is recorded before a step's end, so one that ran out of memory is made again, by fewer.
                return self._step()
            except (RuntimeError, MemoryError) as error:
                if not ran_out(error):
                    raise
                self._shrink(error)
        return []

    def _step(self) -> list[tuple[int, Completion]]:
        self._make_room()
        # Rows that go on come before those that enter, as in `_rows`: tokens are dealt out by place.
        parts = [self._go_on(), self._enter(self._next())]
        hidden = torch.cat([part for part in parts if part is not None])
        due = np.array([float(one.request.uniforms[one.output]) for one in self._rows])
        return self._record(*self._model.choose(hidden, due, self._temperature))

    def _record(self, tokens: np.ndarray, heads: U16) -> list[tuple[int, Completion]]:
        for one, head, token in zip(self._rows, heads, tokens.tolist(), strict=True):
            one.add(head, token)
        over = [row for row, one in enumerate(self._rows) if one.ends(self._eos)]
        # From the last row down: whoever leaves is replaced by the last row, which must not be due itself.
        return [self._end(row) for row in reversed(over)]

    def _end(self, row: int) -> tuple[int, Completion]:
        one = self._leave(row)
        # A moving mean: a run's answers become longer or shorter while it trains.
        self._reach += (one.output - self._reach) / 32
        return one.number, one.completion(one.tokens[-1] in self._eos)

    def _leave(self, row: int) -> Drawn:
        """The last row takes the place of this one."""
        left, last = self._rows[row], len(self._rows) - 1
        if row != last:
            self._cache.copy(last, row, self._rows[last].own)
            self._rows[row] = self._rows[last]
        self._rows.pop()
        if left.shared:
            self._prompts.left(left.shared)
        return left

    # Rows that go on

    def _go_on(self) -> Tensor | None:
        if not self._rows:
            return None
        self._model.of([one.request.adapter for one in self._rows])
        tokens, places = [one.tokens[-1] for one in self._rows], [len(one.tokens) - 1 for one in self._rows]
        routes = self._model.routes([[token] for token in tokens])
        hidden = self._model.step(self._cache, tokens, places, routes, self._prompts.of(self._rows))
        note(routes, [(one, 1) for one in self._rows], 1)
        return hidden

    @property
    def _left(self) -> int:
        """Tokens of the budget that are not beginnings."""
        return self._budget - self._prompts.room

    @property
    def _longest(self) -> int:
        """Of the rows' own parts."""
        return max((one.own for one in self._rows), default=0)

    @property
    def _expected(self) -> int:
        return max((one.expected(self._reach) - one.before for one in self._rows), default=0)

    def _make_room(self) -> None:
        """For the next token of every row; the shortest wait if not all have it."""
        self._tried = len(self._rows)
        while len(self._rows) > 1 and len(self._rows) * (self._longest + self._extra) > self._left:
            # The shortest has the fewest tokens to compute again.
            self._put_back(min(range(len(self._rows)), key=lambda row: self._rows[row].own))
        self._provide(len(self._rows), self._longest)

    def _put_back(self, row: int) -> None:
        one = self._leave(row)
        one.shared, one.begun = None, one.name
        self._waiting.appendleft(one)

    def _shrink(self, error: BaseException) -> None:
        """Begin all rows anew, half as many at a time; a single one in a cache that has no rows for others. Raises
        EngineError if it had none."""
        self._most = smaller(self._tried if self._tried > 1 else self._cache.rows, "sequences", error)
        # From the last on, so that they wait in the order that they had.
        while self._rows:
            self._put_back(len(self._rows) - 1)
        # All memory is given back first: what ran out may have been taken by the caches themselves.
        self._cache = self._model.cache()
        self._prompts.clear()

    def _provide(self, rows: int, span: int) -> None:
        """At least so many of each; when the cache must grow, by a quarter more positions and all rows that may be
        wanted, where the budget has them."""
        if rows <= self._cache.rows and span <= self._cache.span:
            return
        span = max(span, self._cache.span)
        span = max(span, min(span + max(64, span // 4), self._left // rows - self._extra))
        wanted = min(len(self), self._most, self._left // (span + self._extra))
        self._cache.resize(max(rows, wanted), span, len(self._rows), min(self._longest, self._cache.span))
        self._prompts.cache.captured.clear()  # they are over the rows, too

    # Rows that begin

    def _next(self) -> list[Drawn]:
        """Those that begin now, in order: as many as have room, and no more than one pass over their prompts takes."""
        chosen: list[Drawn] = []
        prompts: dict[bytes, int] = {}
        shared = self._sharing()
        held = {one.name: one.length for one in self._prompts.shared}
        longest = self._expected
        for one in self._waiting:
            before = len(one.tokens) if one.begun in shared else 0
            longest = max(longest, one.expected(self._reach) - before)
            prompts[one.begun] = len(one.tokens)
            if before:
                held[one.begun] = before
            rows = len(self._rows) + len(chosen) + 1
            # Each takes the room of the longest, as rows of one cache do.
            beginnings = math.prod(self._prompts.held(held.values()))
            too_wide = rows > self._most or rows * (longest + self._extra) > self._budget - beginnings
            if (rows > 1 and too_wide) or (chosen and sum(prompts.values()) > self._model.pass_tokens):
                break
            chosen.append(one)
        return chosen

    def _enter(self, fresh: Sequence[Drawn]) -> Tensor | None:
        """Run their prompts into the cache, equal ones once: what the last token of each gave."""
        if not fresh:
            return None
        first, sharing = len(self._rows), self._sharing()
        self._tried = first + len(fresh)
        branching = [one for one in fresh if one.begun in sharing]
        beginnings = self._prompts.begin(branching)
        whole = [one for one in fresh if one.begun not in sharing]
        self._provide(self._tried, max(self._longest, 1, *(len(one.tokens) for one in whole)))
        # A row keeps the tokens that it began with, however far it is: who begins with the same ones copies them. What
        # its layers remember is of all of its tokens, and of no use to others.
        places = {} if self._model.remembers else {one.begun: row for row, one in enumerate(self._rows)}
        new = {one.begun: one for one in whole if one.begun not in places}
        originals = sorted(new.values(), key=lambda one: len(one.tokens))
        self._passes.run(originals, self._cache, first)
        others = [one for one in whole if new.get(one.begun) is not one]
        entered = [*self._rows, *originals, *others, *branching]
        places |= {one.begun: row for row, one in enumerate(originals, first)}
        for row, one in enumerate(others, first + len(originals)):
            source = places[one.begun]
            self._cache.copy(source, row, len(one.tokens))
            one.last = entered[source].last
            if one.experts is not None:
                one.experts = [recorded(entered[source].known)[: len(one.tokens)]]
        for one in branching:
            one.begin_with(beginnings[one.begun])
        self._rows = entered
        # Only now: had memory run out in a pass, they would still wait.
        for _ in fresh:
            self._waiting.popleft()
        return torch.stack([one.last for one in entered[first:]])

    def _sharing(self) -> set[bytes]:
        """Names of the beginnings that are kept once: those that are, and long ones that several wait with."""
        if not self._model.shares:
            return set()
        near = islice(self._waiting, MOST_ROWS)
        counts = Counter(one.begun for one in near if len(one.tokens) >= SHARED_TOKENS)
        return {name for name, count in counts.items() if count > 1} | {one.name for one in self._prompts.shared}
