# /// environment
# name = "NAME"
# class = "exact"     # step and score use nothing but their arguments, so validators can replay them
# turns = 6           # answers of the model, at most
# about = "guess a number from hints"
# ///
"""Guess a number between 0 and 63; after each guess the environment says whether it was too low or too high.

Try it:      intellect-node env check THIS_FILE
Train on it: in a run file, [environment] with package = "THIS_FILE"
"""

TURNS = 6


def rows():
    """The problems: dicts of plain values."""
    return [{"number": number} for number in range(64)]


def prompt(row):
    """What the model is asked first. It must not depend on what is to be guessed."""
    return "Guess my number between 0 and 63. Answer with a number only."


def step(row, turns):
    """What is said after an answer; None when it is over. turns: everything so far, the last one the model's."""
    guess = read(turns[-1]["content"])
    if guess is None:
        return "That is no number. Guess again."
    if guess == row["number"]:
        return None
    return "Higher." if guess < row["number"] else "Lower."


def score(row, turns):
    """1 for the number at the first guess, less for each that was needed, 0 if it was not found."""
    answers = [read(turn["content"]) for turn in turns if turn["role"] == "assistant"]
    if answers[-1] != row["number"]:
        return 0.0
    return 1.0 - 0.5 * (len(answers) - 1) / TURNS


def golden(row):
    """The answers of the best rollout, turn by turn: `env check` wants 1 for it."""
    return [str(row["number"])]


def read(text):
    """The number that an answer is, or None."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else None
