"""`intellect-node answers`: what the model answered to some held-back problems, at any step that was evaluated.

Texts are a model's and a data set's: nothing of them reaches a terminal as it stands.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from cli.errors import RUN, CommandError

EXAMPLES = (
    "Examples:  intellect-node answers runs/my-run   |   intellect-node answers demo --step 0   |   "
    "intellect-node answers runs/my-run --step 20 --json"
)
PLACES = ("spool/eval", "nodes/trainer/spool/eval", "eval")
MAX_BYTES = 1 << 20
MOST_LINE = 2000


def command(
    run: Annotated[Path, typer.Argument(help="A directory of `train` or `demo`, or a trainer's --state-dir.")],
    step: Annotated[int | None, typer.Option(min=0, help="The policy's step. Default: the newest evaluated.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Show some answers of an evaluation: prompt, answer, reward, length in tokens, the length that was asked for."""
    from cli.output import clean, console, print_json

    steps = recorded(run)
    if not steps:
        why = "no evaluation's answers were found there"
        raise CommandError(f"{run} has no answers", why, "name a directory of `train` or `demo`", RUN)
    chosen = max(steps) if step is None else step
    if chosen not in steps:
        near = ", ".join(str(one) for one in sorted(sorted(steps, key=lambda one: abs(one - chosen))[:5]))
        raise CommandError(f"step {chosen} was not evaluated", f"the nearest that were: {near}", "choose one", RUN)
    answers = read(steps[chosen])
    if as_json:
        print_json({"step": chosen, "answers": answers, "steps": sorted(steps)})
        return
    out = console()
    out.print(f"step {chosen}, {len(answers)} answers (steps {min(steps)} to {max(steps)} are on record)")
    for one in answers:
        out.print()
        for name in ("prompt", "answer"):
            lines = [clean(line, MOST_LINE) for line in str(one.get(name)).splitlines()]
            out.print("\n  ".join([f"{name}: {lines[0] if lines else ''}", *lines[1:]]), markup=False, soft_wrap=True)
        out.print(numbers(one), markup=False)


def recorded(run: Path) -> dict[int, Path]:
    """The files of a run's answers, by step."""
    found: dict[int, Path] = {}
    for place in PLACES:
        for path in (run / place).glob("answers-*.json"):
            number = path.stem.removeprefix("answers-")
            if number.isdecimal():
                found.setdefault(int(number), path)
    return found


def read(path: Path) -> list[dict[str, Any]]:
    """Raises CommandError for a file that holds no answers."""
    import msgspec

    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=list[dict[str, Any]])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {path}", str(error)[:300], "it was damaged: remove it", RUN) from error


def numbers(answer: dict[str, Any]) -> str:
    """'reward 1, 4 tokens of 8 asked for, cut off'"""
    parts = [f"reward {answer.get('reward', 0):g}", f"{answer.get('length')} tokens"]
    if answer.get("target") is not None:
        parts[-1] += f" of {answer['target']} asked for"
    return ", ".join([*parts, *([] if answer.get("finished") else ["cut off"])])
