"""The child that imports reasoning-gym: one JSON line in, one out. Standard library and reasoning-gym only.

`python -P child.py SECONDS`, with PYTHONHASHSEED=0: some data sets walk over sets of strings. And some draw from
random numbers that are the process's, not the problem's: those begin anew with each problem. In: ["problems",
dataset, settings, [number, ...]], ["scores", dataset, settings, [[number, answer], ...]] or ["published", dataset,
[[row, answer], ...]]. Out: a list, or {"wrong": why}. A scorer that raises scores 0: it does so on every machine. One
that takes more than SECONDS of a processor ends the process, as the end of input does.
"""

# pyright: reportMissingImports=false
# (what it imports may be in another environment)

import io
import json
import math
import random
import resource
import signal
import sys
import warnings
import zlib
from collections.abc import Callable
from importlib.metadata import version
from typing import Any


def main() -> None:
    replies, sys.stdout = sys.stdout, io.StringIO()  # scorers print
    warnings.simplefilter("ignore")
    import reasoning_gym

    memory_bytes = 4 * 1024**3
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print(json.dumps(["ready", version("reasoning-gym")]), file=replies, flush=True)
    made: dict[str, Any] = {}

    def dataset(name: str, settings: dict[str, Any]) -> Any:
        key = json.dumps([name, settings], sort_keys=True)
        if key not in made:
            if len(made) >= 16:  # data sets that are kept
                made.clear()
            begin(key)
            made[key] = reasoning_gym.create_dataset(name, **settings)
        return made[key]

    def problem(name: str, settings: dict[str, Any], number: int) -> dict[str, Any]:
        problems = dataset(name, settings)
        # Without this one task in seventeen of list_functions differed from process to process.
        # An honest worker's prompt was then a fault that costs the stake.
        begin(json.dumps([name, settings, number], sort_keys=True))
        return problems[number]

    def answer(what: str, name: str, *rest: Any) -> list[Any]:
        if what == "published":
            score = reasoning_gym.get_score_answer_fn(name)
            return [scored(lambda given, row=row: score(given, row), given) for row, given in rest[0]]
        settings, asked = rest
        if what == "problems":
            made_now = (problem(name, settings, number) for number in asked)
            return [[each["question"], str(each["answer"])] for each in made_now]
        score = dataset(name, settings).score_answer
        return [scored(lambda text, n=number: score(text, problem(name, settings, n)), text) for number, text in asked]

    for line in sys.stdin:
        asked = json.loads(line)
        # The signal ends the process, whatever it computes.
        signal.setitimer(signal.ITIMER_PROF, float(sys.argv[1]) * max(len(asked[-1]), 1))
        try:
            reply = answer(*asked)
        except Exception as error:
            reply = {"wrong": f"{type(error).__name__}: {error}"[:300]}
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        print(json.dumps(reply), file=replies, flush=True)
        # From the start: what is written behind the end of an empty text fills the gap, with all that was ever printed.
        sys.stdout.seek(0)
        sys.stdout.truncate()


def begin(place: str) -> None:
    """The process's own random numbers, from the start that this place has on every machine."""
    # Text is hashed with SHA-512 here, so the process's hash seed has no part in it.
    random.seed(place)
    if "numpy" in sys.modules:
        # numpy takes a number of 32 bits and no text.
        sys.modules["numpy"].random.seed(zlib.crc32(place.encode()))


def scored(score: Callable[[str], Any], text: str) -> float:
    """0..1; 0 where the scorer raises or returns no number. Out of memory ends the process: that decides nothing."""
    try:
        value = float(score(text))
    except MemoryError:
        sys.exit(1)
    # The library's scorers raise whatever they like at answers that they did not expect, and on every machine alike.
    except Exception:
        return 0.0
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0


if __name__ == "__main__":
    main()
