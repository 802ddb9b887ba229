"""Make what examples/repair.toml needs: small repositories with a bug and hidden tests, and a tiny start model.

`python -m examples.make_repair` writes, beside this file, repair/train.jsonl and repair/model/ (Hugging Face form,
warm-started so that some answers are right). Each repository has a module with a name that does not exist. It is
found by reading the file, and mended by an edit: <sh>cat k.py</sh>, then <sh>sed -i s/q/x/ k.py</sh>, then a last word.
The start model has seen how that is done, and has seen as often that nothing is done after reading: it gives up on most
problems. That is what a run unlearns first.
"""

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from examples.asked import arguments
from node.environments.base import Defaults, Environment, Problem, Transcript
from node.environments.registry import load_environment
from node.environments.repository import RepositoryEnvironment
from node.environments.tools.form import tell_result
from node.inference.tokenizer import LocalTokenizer
from node.training.warmstart import create_model, warm_start
from protocol.run import EnvironmentSpec

MODULES, WRONG, OPERATORS = "abcdeghk", "pqrstuvw", "+-*"
ALPHABET = "".join(dict.fromkeys("<>/=:.,+-*0123456789abcdefghijklmnopqrstuvwxyz_ABCDEFGHIJKLMNOPQRSTUVWXYZ'\"() \n"))
ROWS = 600
GIVES_UP = 0.6
"""Share of what the start model is shown that ends after reading."""
INPUTS = (2, -3, 7)
ARGUMENTS: dict[str, Any] = {"path": "train.jsonl", "calls": 2, "result_characters": 60, "instructions": ""}


def rows(seed: int) -> Iterator[dict[str, Any]]:
    choose = random.Random(seed)
    for number in range(ROWS):
        module, wrong = choose.choice(MODULES), choose.choice(WRONG)
        terms = [wrong, str(choose.randrange(2, 10)), choose.choice(["x", str(choose.randrange(2, 10))])]
        choose.shuffle(terms)
        broken = terms[0] + choose.choice(OPERATORS) + terms[1] + choose.choice(OPERATORS) + terms[2]
        mended = broken.replace(wrong, "x")
        shown = [eval(mended, {"x": value}) for value in INPUTS]  # noqa: S307 - ours
        yield {
            "problem_id": f"repair-{number}",
            "prompt": f"mend {module}.py\n",
            "files": {f"{module}.py": f"f=lambda x:{broken}\n", "notes.txt": "f is a function of x\n"},
            "tests": [{"code": f"import {module}\nprint([{module}.f(v) for v in {INPUTS}])", "output": f"{shown}"}],
            "gold": {f"{module}.py": f"f=lambda x:{mended}\n"},
        }


class Rehearsed(Defaults):
    """The same problems without a machine: what it says to the right commands is known. Quick enough to teach by."""

    turns = ARGUMENTS["calls"] + 1
    determinism = "exact"

    def __init__(self, environment: Environment, tokenizer: LocalTokenizer, table: Sequence[dict[str, Any]]) -> None:
        self.problem, self.prompt_tokens = environment.problem, environment.prompt_tokens
        self.size = environment.size
        self._tokenizer = tokenizer
        self._rows = {row["problem_id"]: row for row in table}
        self._choose = random.Random(0)

    def solution(self, problem: Problem, so_far: Transcript = ()) -> str:
        """What to say next, or that nothing is to be done."""
        turn = (len(so_far) + 1) // 2
        if turn == 1 and self._choose.random() < GIVES_UP:
            return "."
        return (*self._commands(problem), ".")[turn]

    def step(self, problem: Problem, transcript: Transcript) -> list[int] | None:
        turn, row = len(transcript) // 2, self._rows[problem.problem_id]
        if not self._right(problem, transcript) or turn == ARGUMENTS["calls"]:
            return None
        shown = next(iter(row["files"].values())) if turn == 0 else ""
        return self._tokenizer.encode(tell_result(shown, ARGUMENTS["result_characters"]))

    def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
        pairs = zip(problems, transcripts, strict=True)
        return [float(len(one) > 3 and self._right(problem, one[:3])) for problem, one in pairs]

    def _right(self, problem: Problem, transcript: Transcript) -> bool:
        said = [self._tokenizer.decode(segment.tokens) for segment in transcript if segment.sampled]
        return all(one == right for one, right in zip(said, self._commands(problem), strict=False))

    def _commands(self, problem: Problem) -> tuple[str, str]:
        ((name, text),) = list(self._rows[problem.problem_id]["files"].items())[:1]
        wrong = next(letter for letter in text.partition(":")[2] if letter in WRONG)
        return f"<sh>cat {name}</sh>", f"<sh>sed -i s/{wrong}/x/ {name}</sh>"


def main() -> None:
    asked = arguments(__doc__, "repair")
    out: Path = asked.out
    table = list(rows(0))
    (out / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    model = create_model(out / "model", ALPHABET, asked.seed)
    tokenizer = LocalTokenizer(out / "model")
    environment = load_environment(EnvironmentSpec(name="repository", args=ARGUMENTS), out, tokenizer)
    assert isinstance(environment, RepositoryEnvironment) and not environment.wrong_rows(20)
    print(f"{ROWS} problems, {environment.held_back} held back")
    rehearsed = Rehearsed(environment, tokenizer, table)
    warm_start(
        out / "model",
        model,
        rehearsed,
        seed=asked.seed,
        target=asked.target,
        solution=rehearsed.solution,
        max_output_tokens=56,
        check_every=10,
        report=lambda event: print(json.dumps(event), flush=True),
    )
    environment.close()


if __name__ == "__main__":
    main()
