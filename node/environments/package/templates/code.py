# /// environment
# name = "NAME"
# class = "bounded"   # exact, up to limits that are counted: a program may run out of fuel
# about = "programs that print a sum"
#
# [limits]            # of every run of a program, too
# fuel = 5_000_000_000
# ///
"""Write a Python program that reads numbers and prints what is asked for.

The program runs in a sandbox of its own, once for each input. What it should have printed is known in `score` only,
which runs elsewhere, so that no program can read or change it.

Try it:      intellect-node env check THIS_FILE
Train on it: in a run file, [environment] with package = "THIS_FILE"
"""

import random
import re

TASKS = {
    "the sum": "sum(x)",
    "the product": "__import__('math').prod(x)",
    "the largest": "max(x)",
    "the smallest": "min(x)",
    "the largest minus the smallest": "max(x) - min(x)",
    "how many are even": "sum(n % 2 == 0 for n in x)",
    "the sum of the squares": "sum(n * n for n in x)",
    "how many there are": "len(x)",
}


def rows():
    """The problems, each with inputs and what is expected for them. The seed makes them the same everywhere."""
    numbers = random.Random(0)
    found = []
    for task, solution in TASKS.items():
        for variant in range(5):
            inputs = [[numbers.randint(-9, 99) for _ in range(numbers.randint(3, 8))] for _ in range(3)]
            expected = [str(eval(solution, {"x": given})) for given in inputs]
            found.append({"id": f"{task} {variant}", "task": task, "inputs": inputs, "expected": expected})
    return found


def prompt(row):
    return (
        f"Write a Python program that reads one line of whole numbers and prints {row['task']}. "
        "Answer with a fenced code block."
    )


def program(row, turns):
    """What is to be run: its source, and the standard input of each run. None: there is nothing to run."""
    blocks = re.findall(r"```(?:python)?\n(.*?)```", turns[-1]["content"], re.DOTALL)
    if not blocks:
        return None
    return {"source": blocks[-1], "stdin": [" ".join(map(str, given)) for given in row["inputs"]]}


def score(row, turns, runs):
    """runs: what each run did, {"ok": it came to its end, "output": what it printed, "value": what it returned}."""
    right = [run["ok"] and run["output"].strip() == want for run, want in zip(runs, row["expected"])]
    return float(all(right))


def golden(row):
    return f"```python\nx = list(map(int, input().split()))\nprint({TASKS[row['task']]})\n```"
