"""Make the rows of examples/smollm.toml and smollm_lengths.toml: sums for a small language model, and words.

`python -m examples.make_sums` writes, beside this file, smollm/sums.jsonl, smollm/sums.parquet (the same rows) and
smollm/words.jsonl. The model is on the hub: SmolLM2-135M-Instruct by Hugging Face, under Apache-2.0. Rows are
`verifiable_math`: sums and differences of one-digit numbers, and the same as short stories. The words are for saying
something about; how long that is to be says smollm_lengths.toml.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

HOW = "Calculate."
PLAIN = ("{a} + {b}", "{a} - {b}")
STORIES = (
    ("{who} has {a} {what} and gets {b} more.", "{who} has {a} {what} and loses {b}."),
    ("{a} {what} are here. {b} more come.", "{a} {what} are here. {b} go away."),
)
PEOPLE = ("Tom", "Ann", "Sam", "Eva")
THINGS = ("apples", "coins", "birds", "cats", "books")
SHOWN = 6, 2
"""The numbers of the one problem that every prompt shows solved. Asked plainly at temperature 1, the model is right in
0 to 8 % of one-digit sums; after one example in a third of all problems, which leaves room both ways."""
WORDS = (
    "cat dog horse bird fish apple bread river mountain moon sun star rain snow wind fire tree flower garden house "
    "school teacher doctor farmer king queen ship train car bicycle airplane computer telephone book music painting "
    "dance football chess cooking tea coffee sugar salt gold iron glass paper clock mirror bridge island desert forest "
    "ocean winter summer spring autumn morning night birthday wedding holiday market hospital library museum castle "
    "village city road hat shoe coat ring letter stamp coin map lamp candle piano guitar drum violin mouse elephant "
    "lion tiger bear wolf fox rabbit snake frog bee ant spider butterfly whale shark eagle owl chicken cow sheep goat "
    "pig"
)
STORIES_SHARE = 5
"""One in so many pairs of numbers is told in a story, too."""


class Sum(NamedTuple):
    """text: how it is asked; shown: another of its kind, which the prompt shows with `solution` as its answer; pair:
    its numbers in their order."""

    text: str
    shown: str
    solution: str
    answer: int
    pair: tuple[int, int]


def problems() -> Iterator[Sum]:
    """a + b and a - b >= 0 for a, b below 10, plain; some of them as stories."""
    for number, (a, b) in enumerate((a, b) for a in range(10) for b in range(10)):
        who, what = PEOPLE[number % len(PEOPLE)], THINGS[number % len(THINGS)]
        for form in (PLAIN, *STORIES):
            if form is PLAIN or (number % STORIES_SHARE and a and b):
                yield asked(form[0], "+", a, b, who, what)
                if a >= b:
                    yield asked(form[1], "-", a, b, who, what)


def asked(form: str, sign: str, a: int, b: int, who: str, what: str) -> Sum:
    x, y = SHOWN
    text, shown = (form.format(a=one, b=two, who=who, what=what) for one, two in ((a, b), SHOWN))
    return Sum(text, shown, f"{x} {sign} {y} = {total(sign, x, y)}", total(sign, a, b), (min(a, b), max(a, b)))


def total(sign: str, a: int, b: int) -> int:
    return a + b if sign == "+" else a - b


def row(number: int, problem: Sum) -> dict[str, Any]:
    said = (("system", HOW), ("user", problem.shown), ("assistant", problem.solution), ("user", problem.text))
    return {
        "problem_id": f"smollm-{number}",
        "task_type": "verifiable_math",
        "prompt": [{"role": role, "content": content} for role, content in said],
        "verification_info": json.dumps({"ground_truth": str(problem.answer)}),
        # Whoever has learnt "Ann has 3 apples and gets 4 more" knows 4 + 3: a pair of numbers is held back as a whole.
        "split_key": "{} {}".format(*problem.pair),
    }


def word_row(number: int, word: str) -> dict[str, Any]:
    """Any answer will do; examples/smollm_lengths.toml says how long it is to be."""
    return {
        "problem_id": f"word-{number}",
        "task_type": "verifiable_math",
        "prompt": [{"role": "system", "content": "Say something."}, {"role": "user", "content": word}],
        "verification_info": json.dumps({"ground_truth": "0"}),
    }


def write_rows(out: Path) -> int:
    """Both forms of the sums, and the words; returns how many sums there are."""
    rows = [row(number, problem) for number, problem in enumerate(problems())]
    words = [word_row(number, word) for number, word in enumerate(WORDS.split())]
    for name, those in (("sums.jsonl", rows), ("words.jsonl", words)):
        (out / name).write_text("".join(json.dumps(one) + "\n" for one in those))
    pq.write_table(pa.Table.from_pylist(rows), out / "sums.parquet")
    return len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "smollm")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    print(f"{write_rows(out)} problems: {out}")
    print("then: intellect-node train --run examples/smollm.toml")


if __name__ == "__main__":
    main()
