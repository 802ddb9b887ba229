"""Finished sequences computed anew: what a validator compares. One pass for several short ones, chunk by chunk for a
long one, and the output head only where a token was sampled: memory does not grow with vocabulary times length."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from node.inference.engine import F32, F64, U8, U16, FinishedSequence, Prefill
from node.inference.errors import EngineError, ran_out
from node.inference.experts import Routes, as_recorded
from node.inference.language_model import I64, LanguageModel, batches
from node.inference.out_of_memory import smaller
from node.inference.room import CHUNK_TOKENS
from node.inference.transfer import fetched
from protocol.routing import objection
from protocol.segments import sampled_places


class _Work:
    """One sequence: what goes through the model, where its tokens were sampled, and what was found so far."""

    def __init__(self, sequence: FinishedSequence, model: LanguageModel) -> None:
        self.fed = [*sequence.prompt, *sequence.output[:-1]]
        self.places = len(sequence.prompt) - 1 + sampled_places(sequence.segments, len(sequence.output))
        self.drawn: I64 = np.asarray(sequence.sampled, dtype=np.int64)
        self._check(model.vocabulary)
        count = len(self.places)
        self.lo: F64 = np.empty(count)
        self.hi: F64 = np.empty(count)
        self.logprobs: F32 = np.empty(count, dtype=np.float32)
        self.heads: U16 = np.empty((count, model.hidden), dtype=np.uint16)
        self.given, self.adapter = sequence.experts, sequence.adapter
        # A stranger's record chooses experts by their number: it is checked before anything is computed with it.
        if self.given is not None and (why := objection(self.given.tobytes(), len(self.fed), model.routing)):
            raise EngineError("a sequence cannot be checked", why, "reject it")
        self.wanted = sequence.top
        self.top: list[tuple[I64, F32]] = []
        self.experts: U8 | None = None
        self.routing: F32 | None = None
        if model.routing is not None:
            self.experts = np.empty((len(self.fed), model.routing.width), dtype=model.routing.dtype)
            self.routing = np.empty(len(self.fed), dtype=np.float32)

    def known(self, start: int) -> U8 | None:
        return None if self.given is None else self.given[start:]

    def _check(self, vocabulary: int) -> None:
        # The last token goes through no pass, but it is looked up among the logits.
        tokens = np.asarray([*self.fed, *self.drawn[-1:]], dtype=np.int64)
        if tokens.min() < 0 or tokens.max() >= vocabulary:
            raise EngineError("a sequence cannot be checked", "it has tokens outside the vocabulary", "reject it")

    def within(self, start: int, end: int) -> slice:
        """Which of the places a pass over positions start..end has."""
        first, last = np.searchsorted(self.places, (start, end))
        return slice(int(first), int(last))

    @property
    def result(self) -> Prefill:
        top = None
        if self.wanted:
            tokens, logprobs = zip(*self.top, strict=True)
            top = np.concatenate(tokens), np.concatenate(logprobs)
        return Prefill(self.lo, self.hi, self.logprobs, self.heads, self.experts, self.routing, top)


@dataclass(slots=True)
class Prefiller:
    """pass_tokens: most tokens in one pass; halved when memory runs out."""

    model: LanguageModel
    pass_tokens: int

    @torch.inference_mode()
    def prefill(self, sequences: Sequence[FinishedSequence], temperature: float) -> list[Prefill]:
        """In order. Raises EngineError."""
        all_work = [_Work(sequence, self.model) for sequence in sequences]
        # By length: a pass is padded to its longest, and padding is computed in vain.
        waiting = sorted(all_work, key=lambda one: len(one.fed))
        while waiting:
            batch = next(batches(waiting, self.pass_tokens, lambda one: len(one.fed)))
            try:
                for start, hidden in self._passes(batch):
                    self._look(batch, start, hidden, temperature)
            except (RuntimeError, MemoryError) as error:
                if not ran_out(error):
                    raise
                self.pass_tokens = smaller(self.pass_tokens, "tokens in one pass", error)
            else:
                waiting = waiting[len(batch) :]
        return [one.result for one in all_work]

    def _passes(self, batch: Sequence[_Work]) -> Iterator[tuple[int, Tensor]]:
        """(first position, inputs of the output head) of each pass over a batch."""
        fed = [one.fed for one in batch]
        length = len(fed[-1])
        self.model.of([one.adapter for one in batch])
        if length <= self.pass_tokens:
            routes = self.model.routes(fed, [one.known(0) for one in batch])
            hidden = self.model.sequences(fed, routes)
            _note_routes(batch, routes, 0, length)
            yield 0, hidden
            return
        # A sequence longer than a pass is alone in its batch (`batches`).
        cache, size = self.model.cache(), min(CHUNK_TOKENS, self.pass_tokens)
        cache.resize(1, length, 0, 0)
        for start in range(0, length, size):
            part = [fed[0][start : start + size]]
            routes = self.model.routes(part, [batch[0].known(start)])
            hidden = self.model.chunk(cache, 0, start, part, routes)
            _note_routes(batch, routes, start, len(part[0]))
            yield start, hidden

    def _look(self, batch: Sequence[_Work], start: int, hidden: Tensor, temperature: float) -> None:
        parts = [one.within(start, start + hidden.shape[1]) for one in batch]
        counts = [part.stop - part.start for part in parts]
        if not sum(counts):
            return
        places = np.concatenate([one.places[part] for one, part in zip(batch, parts, strict=True)]) - start
        rows, columns = self.model.numbers(np.stack([np.repeat(np.arange(len(batch)), counts), places]))
        drawn = np.concatenate([one.drawn[part] for one, part in zip(batch, parts, strict=True)])
        found = self.model.intervals(hidden[rows, columns], drawn, temperature)
        at, most = 0, max(one.wanted for one in batch)
        likeliest = self.model.likeliest(hidden[rows, columns], most, temperature) if most else None
        for one, part in zip(batch, parts, strict=True):
            cut = slice(at, at := at + part.stop - part.start)
            if likeliest is not None:
                one.top.append((likeliest[0][cut, : one.wanted], likeliest[1][cut, : one.wanted]))
            one.lo[part], one.hi[part], one.logprobs[part], one.heads[part] = (column[cut] for column in found)


def _note_routes(batch: Sequence[_Work], routes: Routes | None, start: int, width: int) -> None:
    """The experts of a pass over positions from `start` on, padded to `width`."""
    if routes is None:
        return
    chosen, short = fetched(routes.chosen, routes.short)
    chosen = as_recorded(chosen)
    for i, one in enumerate(batch):
        assert one.experts is not None and one.routing is not None  # of a model with experts
        there = slice(start, min(start + width, len(one.fed)))
        lines = slice(i * width, i * width + there.stop - start)
        one.experts[there], one.routing[there] = chosen[lines], short[lines]
