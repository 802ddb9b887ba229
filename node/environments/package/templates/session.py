# /// environment
# name = "NAME"
# class = "bounded"   # what depends on counted limits, too: a call of the machine ends where its instructions do
# turns = 4           # answers of the model, at most: three calls and a last word
# about = "mend a function in a small folder, with a shell and a Python that remembers"
# [session]           # each rollout has a machine of its own; whoever replays it comes to the same state
# fuel = 4_000_000_000
# call_fuel = 1_000_000_000
# disk_kib = 256
# ///
"""A function that multiplies by the wrong number: the model reads, edits and tries it, then hidden tests run.

Try it:      intellect-node env check THIS_FILE
Train on it: in a run file, [environment] with package = "THIS_FILE"
"""

HOW = (
    "End an answer with <sh>COMMAND</sh> or <python>CODE</python>, and you are told what came of it. "
    "An answer without one ends your work."
)


def rows():
    """The problems: dicts of plain values."""
    return [{"factor": factor, "wrong": (factor + 3) % 10} for factor in range(2, 10)]


def prompt(row):
    return f"m.py has a function times(x). It must multiply by {row['factor']}. {HOW}"


def files(row):
    """What lies in the machine when a rollout begins, by path."""
    return {"m.py": f"def times(x):\n    return x * {row['wrong']}\n"}


def tests(row):
    """Programs that can import what is left. Each runs in a machine of its own, and nobody in the session sees them."""
    return ["from m import times\nprint([times(x) for x in (1, 2, -7, 100)])"]


def score(row, turns, left):
    """left: {"files": what the session leaves by path, "runs": [{"ok", "output"}] of the tests}. What is right is known
    here only; this never runs where the model's code does."""
    want = str([row["factor"] * x for x in (1, 2, -7, 100)])
    return float(all(run["ok"] and run["output"].strip() == want for run in left["runs"]))


def golden(row):
    """The answers of a right rollout, turn by turn: `env check` wants 1 for it."""
    return [f"<sh>sed -i 's/x . [0-9]/x * {row['factor']}/' m.py; cat m.py</sh>", "done"]


# step(row, turns) may say what the machine is to do, in place of the form above: {"sh": "..."} or {"python": "..."} for
# a call whose result the model is told, words that it is told, None where the rollout is over.
