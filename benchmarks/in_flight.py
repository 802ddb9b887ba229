"""What would in-flight updates bring at a desk: how much of an engine do the longest answers of a batch hold?

    python -m benchmarks.in_flight [--batches 4] [--answers 32] [--quick] [--json FILE]

A policy comes in when nothing of the one before is in flight, so a batch's last answers are drawn with few rows beside
them. With in-flight updates the next batch's would take their places at once. Both are driven here through the torch
engine on a CPU, with the same work: *to the end* a batch at a time, *in flight* always full, as if a policy took no
time to load and the learner were never waited for: an upper bound. Lengths are even, those of a task with short answers
(half to twice the median), or lognormal with sigma 1, up to eight times the median, as reasoning has them. A rollout of
two policies is then scored by each, from its beginning: *scoring* is the prefill of all answers. `card`: the same
reckoned for batches of 256 where a step of the engine and a token of the prefill take what they took an H100
(benchmarks/results).
"""

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from benchmarks.command import parser_of, save
from benchmarks.engine import configuration, model_of, prompts
from node.inference.decoding import TorchDecoder
from node.inference.engine import FinishedSequence, GenerationRequest
from node.inference.language_model import LanguageModel
from node.inference.prefilling import Prefiller

SHAPE = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4}
VOCABULARY, MEDIAN = 1024, 48
LONGEST = 8
"""Medians."""
CARD, CARD_PREFILL, CARD_ANSWERS = (4.45, 0.0145), 0.0509, 256
"""Milliseconds of a step of the torch engine on an H100, 1.5B in bfloat16, with no row and for each; of a token that is
read."""


def lengths(kind: str, batches: int, answers: int, median: int) -> list[list[int]]:
    drawn = np.random.default_rng(5)
    size = (batches, answers)
    found = {
        "even": np.full(size, median),
        "half to twice": drawn.uniform(median / 2, 2 * median, size),
        "lognormal": np.clip(median * drawn.lognormal(0, 1, size), 1, LONGEST * median),
    }[kind]
    return found.astype(int).tolist()


def on_card(batches: list[list[int]], *, in_flight: bool) -> float:
    """Milliseconds in which all is drawn."""
    work, full, going, spent = [one for batch in batches for one in batch], len(batches[0]), list[int](), 0.0
    while work or going:
        if in_flight or not going:
            going += [work.pop(0) for _ in range(min(full - len(going), len(work)))]
        spent += CARD[0] + CARD[1] * len(going)
        going = [one - 1 for one in going if one > 1]
    return spent


def drawn(model: LanguageModel, batches: list[list[int]], *, in_flight: bool) -> tuple[float, int]:
    """Seconds of the processor, and tokens."""
    work = [one for batch in batches for one in batch]
    full, decoder = len(batches[0]), TorchDecoder(model, frozenset(), 1 << 15, 1.0)
    asked, uniforms = prompts(len(work), VOCABULARY), np.random.default_rng(3)
    given = tokens = 0
    started = time.process_time()
    while given < len(work) or len(decoder):
        if in_flight or not len(decoder):
            for place in range(given, min(given + full - len(decoder), len(work))):
                decoder.submit(GenerationRequest(asked[place], uniforms.random(work[place])))
                given += 1
        tokens += sum(len(done.output) for _, done in decoder.step())
    return time.process_time() - started, tokens


def scored(model: LanguageModel, batches: list[list[int]]) -> float:
    """Seconds in which every answer is computed again by one policy."""
    reader, generator = Prefiller(model, 1 << 12), np.random.default_rng(4)
    work = [one for batch in batches for one in batch]
    texts = [generator.integers(2, VOCABULARY, one).tolist() for one in work]
    asked = [FinishedSequence(prompt, text) for prompt, text in zip(prompts(len(work), VOCABULARY), texts, strict=True)]
    started = time.process_time()
    reader.prefill(asked, 1.0)
    return time.process_time() - started


def measure(a: argparse.Namespace) -> list[dict[str, object]]:
    torch.set_num_threads(1)
    model = model_of(configuration(SHAPE, VOCABULARY))
    rows = list[dict[str, object]]()
    for kind in ("even", "half to twice", "lognormal"):
        batches = lengths(kind, a.batches, a.answers, MEDIAN)
        best = {way: min(drawn(model, batches, in_flight=way) for _ in range(2)) for way in (False, True)}
        (to_the_end, tokens), (in_flight, _) = best[False], best[True]
        large = lengths(kind, a.batches, CARD_ANSWERS, MEDIAN)
        card, full = (on_card(large, in_flight=way) for way in (False, True))
        read = CARD_PREFILL * sum(map(sum, large))
        scoring = min(scored(model, batches) for _ in range(2))
        rows.append(
            {
                "lengths": kind,
                "tokens": tokens,
                "to the end, tokens/s": round(tokens / to_the_end),
                "in flight, tokens/s": round(tokens / in_flight),
                "gain": round(to_the_end / in_flight, 2),
                "scoring, of drawing": round(scoring / to_the_end, 3),
                "gain with scoring twice": round((to_the_end + scoring) / (in_flight + 2 * scoring), 2),
                "card, gain": round(card / full, 2),
                "card, gain with scoring twice": round((card + read) / (full + 2 * read), 2),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = parser_of(__doc__, "two batches of eight")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--answers", type=int, default=32)
    given = parser.parse_args()
    if given.quick:
        given.batches, given.answers = 2, 8
    save(given.json, measure(given))


if __name__ == "__main__":
    main()
