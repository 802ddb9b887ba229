"""What the hooks of one vLLM process share: the output head, the rows that it was given, what became of them.

vLLM calls `logits` with the rows to draw from (in place of the model's own head) and, right behind it, a logits
processor with the result, in the same order: that one calls `draw`. So a token, its row and its place belong together.

The head is our own (node.inference.head), in fp32: a validator decides by its last digits, and vLLM's own, tied to the
embedding and packed for a CPU, keeps its old weights when others are loaded.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.inference.device_sampling import check_finite, interval, settle
from node.inference.device_sampling import draw as draw_tokens
from node.inference.engine import F32, F64, U16
from node.inference.errors import EngineError
from node.inference.head import OutputHead
from node.inference.language_model import I64, as_bf16, bf16_bits
from node.inference.proofs import ProofRows
from node.inference.room import CPU_CELLS, ROWS
from node.inference.transfer import fetched, sent
from node.inference.vllm.draws import RequestDraw, force

Form = tuple[int, int] | None
NOT_A_NUMBER = 0x7FC0
"""bf16 bits that mark a row whose logits were not finite."""


class RowWatch:
    """places: int64[n], ascending positions in the sequence whose rows are wanted."""

    def __init__(self, places: NDArray[np.int64]) -> None:
        self._places = places
        self._seen = np.zeros(len(places), dtype=bool)
        self._heads: Tensor | None = None

    def saw(self, first: int, rows: Tensor) -> None:
        """rows: [m, hidden] of the positions from `first` on; others than the wanted are not kept."""
        low, high = np.searchsorted(self._places, (first, first + len(rows)))
        if low == high:
            return
        if self._heads is None:
            self._heads = rows.new_full((len(self._places), rows.shape[1]), torch.nan)
        self._seen[low:high] = True
        self._heads[low:high] = rows[torch.from_numpy(self._places[low:high] - first).to(rows.device)]

    def heads(self) -> Tensor:
        """[n, hidden], in the type of the model. Raises EngineError where rows are missing: a whole CUDA graph calls no
        hook, and says nothing."""
        if self._heads is None or not self._seen.all():
            raise EngineError(
                "a sequence was not seen as it was computed",
                f"{int(self._seen.sum())} of {len(self._seen)} rows came by: vLLM passed the hooks over",
                "use --engine torch for validators, or report this with the engine's log",
            )
        return self._heads


@dataclass(slots=True)
class _Taken:
    """kept: instead of rows, what proofs need of them; broken: one of these had no numbers."""

    kept: ProofRows | None = None
    rows: list[U16] = field(default_factory=list)
    count: int = 0
    broken: bool = False

    def put(self, place: int, row: U16) -> None:
        del self.rows[place:]
        self.count = place + 1
        if self.kept is None:
            self.rows.append(row)
        else:
            self.kept.put(place, row)
            self.broken |= bool((row == NOT_A_NUMBER).all())


class ActivationRecorder:
    """uint16[hidden] per drawn token."""

    def __init__(self) -> None:
        self._taken: dict[int, _Taken] = {}

    def add(self, draws: Iterable[tuple[int, int, Form]], rows: U16) -> None:
        """draws: (request, place of the token in its output, form of its proofs) of each of `rows`, uint16[n, hidden].

        A place that comes again replaces what was there and all behind it: the request was cut into chunks, or began
        anew after others took its memory.
        """
        for (number, place, form), row in zip(draws, rows, strict=True):
            if number not in self._taken:
                self._taken[number] = _Taken(ProofRows(*form) if form else None)
            self._taken[number].put(place, row)

    def take(self, number: int, count: int) -> U16 | ProofRows:
        """uint16[count, hidden] or what was kept of these, of a request that ended after `count` tokens; it is
        forgotten."""
        taken = self._taken.pop(number)
        if taken.count < count:
            raise ValueError(f"request {number} has {taken.count} rows for {count} tokens")
        if taken.kept is None or taken.broken:
            # Points cannot mark a row without numbers. Such a request answers with one marked row instead of them.
            return np.stack(taken.rows[:count] or [np.array([NOT_A_NUMBER], dtype=np.uint16)])
        taken.kept.cut(count)
        return taken.kept

    def forget(self, number: int) -> None:
        self._taken.pop(number, None)


class Hooks:
    """records: whether rows are kept in this process, which is one of those that a model is split over."""

    def __init__(self, records: bool = True) -> None:
        self.records = records
        self.recorder = ActivationRecorder()
        self.watches: dict[str, RowWatch] = {}
        self._given: tuple[Tensor, Tensor | None] | None = None
        self._head: OutputHead | None = None
        self._hidden: Tensor | None = None

    def use_head(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: [vocabulary, hidden], bias: [vocabulary], of any type, on the device of the model."""
        self._given, self._head = (weight, bias), None

    def logits(self, hidden: Tensor) -> Tensor:
        """float32[n, vocabulary] of rows [n, hidden]."""
        self._hidden = hidden
        return self._head_for(hidden)(hidden)

    def _head_for(self, hidden: Tensor) -> OutputHead:
        """Made when the first rows say what the layers compute in."""
        if self._head is None:
            assert self._given is not None, "no weights were loaded"  # requests are refused until then
            weight, bias = self._given
            self._head, self._given = OutputHead(weight.to(hidden.dtype), bias), None
        return self._head

    def draw(self, logits: Tensor, rows: Sequence[int], draws: Sequence[RequestDraw], places: Sequence[int]) -> None:
        """Draw the token of some rows of `logits`, leave a greedy sampler no other, and keep what they were drawn from.

        places: of the tokens in the outputs of their requests.
        """
        assert self._hidden is not None and len(self._hidden) == len(logits)  # vLLM calls both in a step
        every = sent(np.array(rows), logits.device)
        if len(rows) == len(logits):  # all of them, as always but where a prompt is cut: no copy of a whole vocabulary
            mine, hidden = logits, self._hidden
        else:
            mine, hidden = logits[every], self._hidden[every]
        drawn = [float(draw.uniforms[place]) for draw, place in zip(draws, places, strict=True)]
        uniforms = sent(np.array(drawn, dtype=np.float64), logits.device)
        temperatures = np.array([draw.temperature for draw in draws])
        there = self._drawn(mine, uniforms, temperatures)
        # Copies: on a CPU these are the memory of the tensors themselves, and both are written to.
        bits, found = (part.copy() for part in fetched(as_bf16(hidden), there))  # the one wait of a step
        bits = bits.view(np.uint16)
        try:
            force(logits, every, self._settled(there, found, mine, np.array(drawn), temperatures))
        except EngineError:  # logits that are not finite; raised here, it would leave vLLM half-way through a step
            bits[:] = NOT_A_NUMBER
        if self.records:
            known = [(draw.number, place, draw.form) for draw, place in zip(draws, places, strict=True)]
            self.recorder.add(known, bits)

    def _drawn(self, logits: Tensor, uniforms: Tensor, temperatures: F64) -> Tensor:
        """int64[n] as of device_sampling.draw. A decoder has one temperature; two of them may be at work."""
        if len(set(temperatures)) == 1:
            return draw_tokens(logits, uniforms, float(temperatures[0]))
        tokens = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
        for temperature in set(temperatures):
            same = sent(np.flatnonzero(temperatures == temperature), logits.device)
            tokens[same] = draw_tokens(logits[same], uniforms[same], float(temperature))
        return tokens

    @staticmethod
    def _settled(there: Tensor, found: I64, logits: Tensor, u: F64, temperatures: F64) -> Tensor:
        """The tokens, on the device. Raises EngineError for logits that are not finite."""
        if (found >= 0).all():
            return there
        for temperature in set(temperatures):
            same = np.flatnonzero(temperatures == temperature)
            some = sent(same, logits.device)
            found[same] = settle(found[same], lambda some=some: logits[some], u[same], float(temperature))
        return sent(found, logits.device)

    def look(self, name: str, drawn: NDArray[np.int64], temperature: float) -> tuple[F64, F64, F32, U16]:
        """(lo, hi, logprob, heads) of the tokens of a watched request, which is watched no longer.

        Raises EngineError for logits that are not finite.
        """
        heads = self.watches.pop(name).heads()
        tokens = torch.from_numpy(drawn).to(heads.device)
        size = ROWS if heads.is_cuda else max(1, CPU_CELLS // self._head_for(heads).vocabulary)
        parts = [
            interval(self.logits(heads[at : at + size]), tokens[at : at + size], temperature)
            for at in range(0, len(drawn), size)
        ]
        lo, hi, logprobs = fetched(*map(torch.cat, zip(*parts, strict=True)))
        check_finite(lo)
        return lo, hi, logprobs, bf16_bits(heads)
