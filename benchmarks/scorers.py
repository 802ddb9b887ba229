"""What an answer that is made to hold up scorers costs them, by its length: every scorer that reads answers itself.

    python -m benchmarks.scorers [--quick] [--json FILE]

CPU seconds of this process, the least of several tries, for texts of n and of 2n characters, up to what the scorer
reads at all (MAX_ANSWER_CHARACTERS, or less). Exits with 1 if twice the length takes more than 2.5 times as long, or if
the control does not: the expression by which programs were found before. What is scored in the sandbox is counted in
instructions there, and has its bound in them; what other packages score (mathematics, reasoning-gym) has a bound of
length of its own, behind what is measured here.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.command import parser_of, save
from node.environments.math_scorer import final_answer
from node.environments.programs import last_block
from node.environments.reasoning.environment import answer_in
from node.environments.task_types import code, formed, instructions
from node.environments.task_types.json_schema import json_in
from node.environments.task_types.math import marked_answer
from node.environments.tools.form import parse_call
from node.inference.opinions import read_score
from protocol.audit import MAX_ANSWER_CHARACTERS
from tests.cheats.hostile import HOSTILE, last_block_before

MOST = 2.5
NOTICED = 1e-2
"""Seconds: what takes less for the longer text costs nothing, and such times say more of caches than of length. What is
quadratic takes a second and more for the shortest text here."""
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "keywords:existence": {"keywords": ["a"]},
    "keywords:frequency": {"keyword": "a", "frequency": 1, "relation": "at least"},
    "keywords:forbidden_words": {"forbidden_words": ["b"]},
    "keywords:letter_frequency": {"letter": "x", "let_frequency": 2, "let_relation": "less than"},
    "length_constraints:number_words": {"num_words": 3, "relation": "at least"},
    "length_constraints:number_sentences": {"num_sentences": 2, "relation": "exactly"},
    "length_constraints:number_paragraphs": {"num_paragraphs": 2},
    "detectable_content:number_placeholders": {"num_placeholders": 1},
    "detectable_content:postscript": {"postscript_marker": "P.S."},
    "detectable_format:number_bullet_lists": {"num_bullets": 2},
    "detectable_format:number_highlighted_sections": {"num_highlights": 1},
    "detectable_format:multiple_sections": {"section_spliter": "Part", "num_sections": 2},
    "change_case:capital_word_frequency": {"capital_frequency": 1, "capital_relation": "at least"},
    "startend:end_checker": {"end_phrase": "the end"},
    "combination:repeat_prompt": {"prompt_to_repeat": "say it"},
}
"""What each constraint is given; those that stand in no line here take nothing."""


CONTROL_SIZE = 1 << 14


def scorers() -> dict[str, Callable[[str], Any]]:
    """Every function that reads an answer, by what it belongs to."""
    predicted = code.read_output({"ground_truth": "3"}, {})
    found: dict[str, Callable[[str], Any]] = {
        "prime_rl_code, verifiable_code": last_block,
        "verifiable_math": final_answer,
        "marked_math": marked_answer,
        "what programs print": lambda text: code.same_output(text, f"{text}1"),
        "json_schema": json_in,
        "reasoning_gym": answer_in,
        "code_output_prediction": lambda text: code.output_reward(text, predicted),
        "unscrambling, unscramble_sentence": lambda text: formed.ordered(text, ("1. One.\n2. Two.",)),
        "ascii_tree_formatting": lambda text: formed.tree(text, ("a\n+-- b",)),
        "formatask": lambda text: formed.formed(text, ("**three**",)),
        "git_diff": lambda text: formed.diff(text, ("--- a\n+++ b\n-one\n+two",)),
        "complex_json_output": lambda text: formed.json_object(text, ('{"three": 3}',)),
        "tools": lambda text: parse_call(text, ("python", "search")),
        "judges' opinions": read_score,
    }
    for name in instructions.CHECKS:
        truth = instructions.read_truth({"instruction_id_list": [name], "kwargs": [CONSTRAINTS.get(name, {})]}, {})
        found[f"ifeval {name}"] = lambda text, truth=truth: instructions.reward(text, truth)
    return found


def least(score: Callable[[str], Any], texts: Sequence[str], tries: int) -> list[float]:
    """The least time for each text, one after the other each time: a machine is not as fast at all times."""
    times = [math.inf] * len(texts)
    for _ in range(tries):
        for place, text in enumerate(texts):
            started = time.process_time()
            score(text)
            times[place] = min(times[place], time.process_time() - started)
    return times


def measured(share: int, tries: int) -> Iterator[dict[str, Any]]:
    """For each scorer the text that takes longest, and the one whose time grows most."""
    for name, score in scorers().items():
        most = instructions.MAX_CHARACTERS if name.startswith("ifeval") else MAX_ANSWER_CHARACTERS
        yield worst(name, score, most // share, tries)
    yield worst("(control)", last_block_before, CONTROL_SIZE, 2)


def worst(name: str, score: Callable[[str], Any], size: int, tries: int) -> dict[str, Any]:
    texts = {what: (text(size // 2), text(size)) for what, text in HOSTILE.items()}
    times = {what: least(score, pair, tries) for what, pair in texts.items()}
    slowest = max(times, key=lambda what: times[what][1])
    steep = [what for what, (short, long) in times.items() if long > max(NOTICED, MOST * short)]
    times |= {what: least(score, texts[what], 5 * tries) for what in steep}  # others were at work, or it is so
    growths = {what: long / short for what, (short, long) in times.items() if long >= NOTICED and short > 0}
    steepest = max(growths, key=lambda what: growths[what], default="")
    row = {"scorer": name, "characters": size, "slowest": slowest, "seconds": times[slowest][1]}
    return row | {"steepest": steepest, "growth": growths.get(steepest)}


def main() -> None:
    parser = parser_of(__doc__, "texts of a quarter of the length, fewer tries")
    arguments = parser.parse_args()
    print(f"{'scorer':50} {'2n':>8} {'slowest text':30} {'ms':>7} {'steepest text':30} {'growth':>6}")
    rows = []
    for row in measured(4, 5) if arguments.quick else measured(1, 7):
        rows.append(row)
        growth = f"{row['growth']:.2f}" if row["growth"] else "-"
        about = f"{row['slowest']:30} {1e3 * row['seconds']:7.1f} {row['steepest']:30} {growth:>6}"
        print(f"{row['scorer']:50} {row['characters']:8} {about}", flush=True)
    save(arguments.json, rows)
    slow = [row["scorer"] for row in rows if row["growth"] and row["growth"] > MOST]
    if slow != ["(control)"]:
        sys.exit(f"more than {MOST} times as long for twice the length: {', '.join(slow) or 'not even the control'}")


if __name__ == "__main__":
    main()
