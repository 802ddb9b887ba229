"""Continuous batching: a row of the cache is refilled as soon as its sequence ends.

How many sequences run at a time follows from what sequences reach, not from what they may: room is taken for the mean
of those that ended, and when the ones in flight become longer than that, the shortest wait. They go on later from all
their tokens, as if those were a prompt; what was recorded of them stays. Sequences that begin with the same prompt
share its pass, and if it is long, what the cache has of it.
"""

import math
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import count, islice

import numpy as np
import torch
from torch import Tensor

from node.inference.attention import Beginnings, KVCache
from node.inference.engine import MOST_IN_FLIGHT, U8, U16, Completion, Request
from node.inference.errors import EngineError, ran_out
from node.inference.language_model import LanguageModel, batches
from node.inference.out_of_memory import smaller
from node.inference.room import CHUNK_TOKENS
from node.inference.transfer import fetched
from node.inference.transformer import Routes

MOST_ROWS = 256
"""Sequences at a time: more make no CPU faster. An H100 draws 2.8 times as fast at 256 as at 64; more is untried."""
_FIRST_GUESS = 256
"""Output tokens that are reckoned with until sequences have ended."""
SHARED_TOKENS = 128
"""A prompt of fewer is copied into the row of each that begins with it: two kernels cost more than a copy."""
_HEAD_ROWS = 64
"""Of a request's buffer at first; it doubles."""


@dataclass(eq=False, slots=True)
class _Beginning:
    """Of several sequences. name: of its tokens; last, experts: as of a sequence; users: rows that have it."""

    name: bytes
    length: int
    last: Tensor
    experts: U8 | None
    users: int = 0


@dataclass(eq=False, slots=True)
class _Sequence:
    """tokens: prompt and output; output: how many of the latter; heads: room for those of the output; begun: names the
    tokens that its row begins or began with; last: [hidden], what the pass over those ended in; experts: of the first
    tokens, in parts, None of a model without; shared: what of it is not in its own row; earlier: tokens that were
    sampled in answers before this one."""

    number: int
    request: Request
    tokens: list[int]
    heads: U16
    begun: bytes
    output: int = 0
    last: Tensor = field(default_factory=lambda: torch.empty(0))
    experts: list[U8] | None = None
    shared: _Beginning | None = None
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
        told, token = self.request.told, self.tokens[-1]
        enough = told is not None and told(token)
        return enough or token in eos or self.output == len(self.request.uniforms)

    def completion(self, finished: bool) -> Completion:
        kept, output = self.request.rows, self.tokens[len(self.tokens) - self.output :]
        self.heads.resize((0 if kept else self.output, self.heads.shape[1]), refcheck=False)
        return Completion(output, finished, self.heads, experts=self.known, kept=kept)


class TorchDecoder:
    """`node.inference.engine.Decoder`. batch_tokens: most tokens in the cache, unless one sequence has more."""

    def __init__(self, model: LanguageModel, eos: frozenset[int], batch_tokens: int, temperature: float) -> None:
        self._model, self._eos, self._temperature = model, eos, temperature
        self._budget, self._most, self._tried = batch_tokens, MOST_ROWS, 0
        self._cache, self._prompts = model.cache(), model.cache()
        self._rows: list[_Sequence] = []
        self._shared: list[_Beginning] = []
        """By row of `_prompts`."""
        self._waiting: deque[_Sequence] = deque()
        self._numbers = count(1)
        self._reach = float(_FIRST_GUESS)

    def submit(self, request: Request) -> int:
        self._check(request)
        number = next(self._numbers)
        # Most answers end long before their limit: room for all of it would be most of the memory.
        room = 0 if request.rows else min(_HEAD_ROWS, len(request.uniforms))
        heads = np.empty((room, self._model.hidden), dtype=np.uint16)
        one = _Sequence(number, request, list(request.prompt), heads, b"")
        one.earlier = request.rows.count if request.rows else 0
        if self._model.routing is not None:
            one.experts = [] if request.experts is None else [request.experts]
        one.begun = one.name
        self._waiting.append(one)
        return number

    def _check(self, request: Request) -> None:
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
        most = min(self._most, self._left // max(self._expected, int(self._reach), 1))
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

    def _leave(self, row: int) -> _Sequence:
        """The last row takes the place of this one."""
        left, last = self._rows[row], len(self._rows) - 1
        if row != last:
            self._cache.copy(last, row, self._rows[last].own)
            self._rows[row] = self._rows[last]
        self._rows.pop()
        if left.shared:
            left.shared.users -= 1
            # The last row that has it goes, and others need the room.
            if not left.shared.users:
                self._forget(left.shared)
        return left

    def _forget(self, beginning: _Beginning) -> None:
        """The last beginning takes the place of this one; without any, their memory is given back."""
        row, last = self._shared.index(beginning), len(self._shared) - 1
        if row != last:
            self._prompts.copy(last, row, self._shared[last].length)
            self._shared[row] = self._shared[last]
        self._shared.pop()
        if not self._shared:
            self._prompts.captured.clear()
            self._prompts = self._model.cache()

    # Rows that go on

    def _go_on(self) -> Tensor | None:
        if not self._rows:
            return None
        self._model.of([one.request.adapter for one in self._rows])
        tokens, places = [one.tokens[-1] for one in self._rows], [len(one.tokens) - 1 for one in self._rows]
        routes = self._model.routes([[token] for token in tokens])
        hidden = self._model.step(self._cache, tokens, places, routes, self._beginnings())
        _note(routes, [(one, 1) for one in self._rows], 1)
        return hidden

    def _beginnings(self) -> Beginnings | None:
        if not self._shared:
            return None
        numbers = {id(one): number for number, one in enumerate(self._shared)}
        of = [numbers[id(one.shared)] if one.shared else -1 for one in self._rows]
        return Beginnings(self._prompts, of, [one.length for one in self._shared])

    @property
    def _left(self) -> int:
        """Tokens of the budget that are not beginnings."""
        return self._budget - self._prompts.rows * self._prompts.span

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
        while len(self._rows) > 1 and len(self._rows) * self._longest > self._left:
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
        self._cache, self._prompts, self._shared = self._model.cache(), self._model.cache(), []

    def _provide(self, rows: int, span: int) -> None:
        """At least so many of each; when the cache must grow, by a quarter more positions and all rows that may be
        wanted, where the budget has them."""
        if rows <= self._cache.rows and span <= self._cache.span:
            return
        span = max(span, self._cache.span)
        span = max(span, min(span + max(64, span // 4), self._left // rows))
        wanted = min(len(self), self._most, self._left // span)
        self._cache.resize(max(rows, wanted), span, len(self._rows), min(self._longest, self._cache.span))
        self._prompts.captured.clear()  # they are over the rows, too

    # Rows that begin

    def _next(self) -> list[_Sequence]:
        """Those that begin now, in order: as many as have room, and no more than one pass over their prompts takes."""
        chosen: list[_Sequence] = []
        prompts: dict[bytes, int] = {}
        shared = self._sharing()
        held = {one.name: one.length for one in self._shared}
        longest = self._expected
        for one in self._waiting:
            before = len(one.tokens) if one.begun in shared else 0
            longest = max(longest, one.expected(self._reach) - before)
            prompts[one.begun] = len(one.tokens)
            if before:
                held[one.begun] = before
            rows = len(self._rows) + len(chosen) + 1
            # Each takes the room of the longest, as rows of one cache do.
            beginnings = math.prod(self._held(held.values()))
            too_wide = rows > self._most or rows * longest > self._budget - beginnings
            if (rows > 1 and too_wide) or (chosen and sum(prompts.values()) > self._model.pass_tokens):
                break
            chosen.append(one)
        return chosen

    def _enter(self, fresh: Sequence[_Sequence]) -> Tensor | None:
        """Run their prompts into the cache, equal ones once: what the last token of each gave."""
        if not fresh:
            return None
        first, sharing = len(self._rows), self._sharing()
        self._tried = first + len(fresh)
        branching = [one for one in fresh if one.begun in sharing]
        beginnings = self._begin(branching)
        whole = [one for one in fresh if one.begun not in sharing]
        self._provide(self._tried, max(self._longest, 1, *(len(one.tokens) for one in whole)))
        # A row keeps the tokens that it began with, however far it is: who begins with the same ones copies them.
        places = {one.begun: row for row, one in enumerate(self._rows)}
        new = {one.begun: one for one in whole if one.begun not in places}
        originals = sorted(new.values(), key=lambda one: len(one.tokens))
        self._run(originals, self._cache, first)
        others = [one for one in whole if new.get(one.begun) is not one]
        entered = [*self._rows, *originals, *others, *branching]
        places |= {one.begun: row for row, one in enumerate(originals, first)}
        for row, one in enumerate(others, first + len(originals)):
            source = places[one.begun]
            self._cache.copy(source, row, len(one.tokens))
            one.last = entered[source].last
            if one.experts is not None:
                one.experts = [_whole(entered[source].known)[: len(one.tokens)]]
        for one in branching:
            self._branch(one, beginnings[one.begun])
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
        return {name for name, count in counts.items() if count > 1} | {one.name for one in self._shared}

    def _held(self, lengths: Collection[int]) -> tuple[int, int]:
        """Rows and positions of a cache of beginnings of these lengths: as it is, or if that is too small, of these."""
        rows, span = len(lengths), max(lengths, default=0)
        fits = rows <= self._prompts.rows and span <= self._prompts.span
        return (self._prompts.rows, self._prompts.span) if fits else (rows, span)

    def _begin(self, branching: Sequence[_Sequence]) -> dict[bytes, _Beginning]:
        """All beginnings by name, those of these among them, which went through the model."""
        known = {one.name: one for one in self._shared}
        new = {one.begun: one for one in branching if one.begun not in known}
        originals = sorted(new.values(), key=lambda one: len(one.tokens))
        if originals:
            row, prompts = len(self._shared), self._prompts
            rows, span = self._held([*(one.length for one in self._shared), *(len(one.tokens) for one in originals)])
            if (rows, span) != (prompts.rows, prompts.span):
                prompts.resize(rows, span, row, min(span, prompts.span))
            self._run(originals, prompts, row)
        made = [_Beginning(one.begun, len(one.tokens), one.last, one.known) for one in originals]
        self._shared += made
        return known | {one.name: one for one in made}

    @staticmethod
    def _branch(one: _Sequence, beginning: _Beginning) -> None:
        one.shared, one.last = beginning, beginning.last
        beginning.users += 1
        if one.experts is not None:
            one.experts = [_whole(beginning.experts)]

    def _run(self, sequences: Sequence[_Sequence], cache: KVCache, row: int) -> None:
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
        self, batch: Sequence[_Sequence], parts: Sequence[Sequence[int]], cache: KVCache, row: int, start: int
    ) -> Tensor:
        self._model.of([one.request.adapter for one in batch])
        known = [None if one.known is None else one.known[start:] for one in batch]
        routes = self._model.routes(parts, known)
        hidden = self._model.chunk(cache, row, start, parts, routes)
        _note(routes, list(zip(batch, map(len, parts), strict=True)), hidden.shape[1], start)
        return hidden


def _whole(known: U8 | None) -> U8:
    assert known is not None  # noqa: S101 - of a row that has been through the model
    return known


def _note(routes: Routes | None, rows: Sequence[tuple[_Sequence, int]], width: int, start: int | None = None) -> None:
    """Write down the experts of a pass over so many tokens of each row, padded to `width`, that begin at `start` or
    behind all that is known; those that were known stay."""
    if routes is None:
        return
    (chosen,) = fetched(routes.chosen)
    for (one, fed), lines in zip(rows, chosen.reshape(len(rows), width, -1), strict=True):
        assert one.experts is not None  # noqa: S101 - of a model with experts
        skipped = 0 if start is None else sum(map(len, one.experts)) - start
        one.experts.append(lines[skipped:fed])
