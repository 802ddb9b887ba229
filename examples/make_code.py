"""Make what examples/code.toml needs: a dataset of programs with tests, as INTELLECT-2 had, and a tiny start model.

`python -m examples.make_code` writes, beside this file, code/train.jsonl and code/model/ (Hugging Face form,
warm-started so that some answers are right). Rows are `prime_rl_code`: the prompt is an expression in prefix notation,
"*+ab3", and the answer a fenced Python function that computes it, "f=lambda a,b:(a+b)*3", which is run in the sandbox.
"""

import json
import random
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from examples.asked import arguments
from node.environments.base import Environment, OneTurn, Problem, Transcript, last_answer
from node.environments.registry import load_environment
from node.inference.tokenizer import LocalTokenizer
from node.training.warmstart import create_model, warm_start
from protocol.run import EnvironmentSpec

ALPHABET = "0123456789ab+-*()=:,flmd `\n"
OPERATORS = "+-*"
OPERANDS = "ab23456789"
ROWS = 3000
INPUTS = ((2, 7), (-3, 5), (11, -4))


def expressions() -> Iterator[tuple[str, str]]:
    """(prefix, the same in Python): two operators, three operands, at least one of them a variable."""
    for first, second, x, y, z in product(OPERATORS, OPERATORS, OPERANDS, OPERANDS, OPERANDS):
        if {x, y, z} & {"a", "b"}:
            yield f"{first}{second}{x}{y}{z}", f"{_within(f'{x}{second}{y}', second, first)}{first}{z}"
            yield f"{first}{x}{second}{y}{z}", f"{x}{first}{_within(f'{y}{second}{z}', second, first, right=True)}"


def _within(text: str, inner: str, outer: str, right: bool = False) -> str:
    """An operand that is an expression itself, in parentheses where Python would read it otherwise."""
    looser = inner != "*" and (outer == "*" or (right and outer == "-"))
    return f"({text})" if looser else text


def solution(python: str) -> str:
    return f"```\nf=lambda a,b:{python}\n```"


def row(prefix: str, python: str) -> dict[str, Any]:
    tests = [
        {"fn_name": "f", "input": list(pair), "output": eval(python, {"a": pair[0], "b": pair[1]})}  # noqa: S307 - ours
        for pair in INPUTS
    ]
    return {
        "problem_id": prefix,
        "task_type": "prime_rl_code",
        "prompt": f"{prefix}=",
        "verification_info": json.dumps({"language": "python", "test_cases": tests}),
        "gold_standard_solution": solution(python),
    }


def rows(seed: int) -> list[dict[str, Any]]:
    chosen = random.Random(seed).sample(list(expressions()), ROWS)
    return [row(prefix, python) for prefix, python in chosen]


class Spelled(OneTurn):
    """The same problems, answers right if they are spelled like the solution: quick enough to teach by."""

    def __init__(self, environment: Environment, tokenizer: LocalTokenizer, solutions: dict[str, str]) -> None:
        self.problem = environment.problem
        self.prompt_tokens = environment.prompt_tokens
        self.size = environment.size
        self._tokenizer = tokenizer
        self._solutions = solutions

    def solution(self, problem: Problem, so_far: Transcript = ()) -> str:
        return self._solutions[problem.problem_id]

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        answers = [self._tokenizer.decode(last_answer(transcript)) for transcript in transcripts]
        return [float(answer == self.solution(problem)) for problem, answer in zip(problems, answers, strict=True)]


def main() -> None:
    asked = arguments(__doc__, "code")
    out: Path = asked.out
    table = rows(0)
    (out / "train.jsonl").write_text("".join(json.dumps(one) + "\n" for one in table))
    model = create_model(out / "model", ALPHABET, asked.seed)
    tokenizer = LocalTokenizer(out / "model")
    environment = load_environment(EnvironmentSpec(name="dataset", args={"path": "train.jsonl"}), out, tokenizer)
    print(f"{len(table)} problems, {environment.held_back} held back")
    spelled = Spelled(environment, tokenizer, {one["problem_id"]: one["gold_standard_solution"] for one in table})
    warm_start(
        out / "model",
        model,
        spelled,
        seed=asked.seed,
        target=asked.target,
        solution=spelled.solution,
        max_output_tokens=40,
        check_every=2,
        report=lambda event: print(json.dumps(event), flush=True),
    )
    environment.close()


if __name__ == "__main__":
    main()
