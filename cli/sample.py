"""`run validate --sample`: what the start model answers to a few of the run's problems, and what follows from it."""

import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from cli.output import clean, console, duration

if TYPE_CHECKING:
    from node.inference.evaluation import EvaluatedAnswer
    from node.run.file import CompiledRun
    from protocol.run import RunSpec


def sampled(compiled: "CompiledRun", count: int) -> dict[str, Any]:
    """Asks as evaluations do, on held-back problems. Raises ModelError, DatasetError."""
    from msgspec.structs import replace

    from cli.run_directory import trainer_settings
    from node.inference.tokenizer import LocalTokenizer
    from node.run.problems import place_files
    from node.training.evaluator import Evaluator, evaluation_engine

    asked = replace(compiled.spec.evaluation, problems=count, environments=())
    run = replace(compiled.spec, evaluation=asked)
    with tempfile.TemporaryDirectory(prefix="intellect-sample-") as folder:
        place_files(compiled, Path(folder))
        with closing(Evaluator(run, Path(folder), evaluation_engine(trainer_settings([])))) as evaluator:
            weights = evaluator.start()
            begun = time.monotonic()
            (answered,) = evaluator.answered(weights, 1)
            seconds = time.monotonic() - begun
        return told(run, answered, LocalTokenizer(Path(folder) / "model").decode, seconds)


def told(run: "RunSpec", answered: "Sequence[EvaluatedAnswer]", decode: Any, seconds: float) -> dict[str, Any]:
    """Figures and texts. Pure. marked: answers of those that need a mark and have one, None where none does; undecided:
    answers that this machine could not judge, which are neither paid nor unpaid; reward: None where these are many."""
    from node.environments.base import mean_of
    from node.environments.task_types.table import MARKED_TASKS, MARKS

    texts = [decode(one.rollout.output) for one in answered]
    # A model that is asked without a chat goes on with the text, and does as it was taught.
    chat = run.environment.args.get("template") == "chat"
    need = [text for one, text in zip(answered, texts, strict=True) if chat and one.problem.task in MARKED_TASKS]
    tokens = sum(one.rollout.sampled for one in answered)
    found: dict[str, Any] = {
        "answers": len(answered),
        "ended": sum(one.rollout.finished for one in answered),
        "cut": sum(not one.rollout.finished for one in answered),
        "marked": sum(any(mark in text for mark in MARKS) for text in need) if need else None,
        "paid": sum(one.reward is not None and one.reward > 0 for one in answered),
        "undecided": sum(one.reward is None for one in answered),
        "reward": mean_of([one.reward for one in answered]),
        "tokens": tokens / len(answered),
        "tokens_per_second": tokens / max(seconds, 1e-6),
    }
    rollouts = run.rollout.prompts_per_step * run.rollout.group_size
    found["step_seconds"] = rollouts * found["tokens"] / found["tokens_per_second"]
    found["texts"] = [
        {"prompt": one.problem.prompt, "answer": text, "reward": one.reward}
        for one, text in list(zip(answered, texts, strict=True))[:3]
    ]
    return found | {"follows": _follows(run, found)}


def _follows(run: "RunSpec", found: dict[str, Any]) -> list[str]:
    count, most = found["answers"], run.rollout.max_output_tokens
    said: list[str] = []
    if found["cut"] * 4 > count:
        said.append(
            f"{found['cut']} of {count} answers were cut at {most} tokens, and what is cut is paid nothing: raise "
            "rollout.max_output_tokens, or ask for shorter answers"
        )
    if found["marked"] is not None and found["marked"] * 2 < found["ended"]:
        said.append("most answers have no mark: set `instruction` below [environment.args], or warm the model up")
    if found["undecided"]:
        said.append(f"{found['undecided']} of {count} answers got no verdict in time, and say nothing of the model")
    if found["reward"] is None:
        return said
    judged = count - found["undecided"]
    share = found["paid"] / judged
    signal = 1 - share**run.rollout.group_size - (1 - share) ** run.rollout.group_size
    if found["paid"] == 0:
        said.append("no answer was paid, so that nothing can be learnt from them: choose easier rows, or a warm start")
    elif found["paid"] == judged:
        said.append("every answer was paid, so that nothing is left to learn: choose harder rows")
    else:
        said.append(
            f"{share:.0%} are paid: about {signal:.0%} of groups of {run.rollout.group_size} have answers of both "
            "kinds, which is what is learnt from"
        )
    return said


def show(found: dict[str, Any]) -> None:
    out = console()
    marked = "" if found["marked"] is None else f", {found['marked']} marked"
    mean = "" if found["reward"] is None else f" (mean {found['reward']:.3f})"
    out.print(
        f"the start model on {found['answers']} held-back problems: {found['ended']} ended, {found['cut']} cut"
        f"{marked}, {found['paid']} paid{mean}; {found['tokens']:.0f} tokens each, "
        f"{found['tokens_per_second']:,.0f} a second here, so a step samples for {duration(found['step_seconds'])}",
        soft_wrap=True,
    )
    most_text = 1200  # characters of an answer that is shown
    for one in found["texts"]:
        out.print(f"  [dim]asked[/]    {escape(clean(one['prompt'], most_text))}", soft_wrap=True)
        out.print(f"  [dim]answered[/] {escape(clean(one['answer'], most_text))}", soft_wrap=True)
        paid = "not judged in time" if one["reward"] is None else f"{one['reward']:g}"
        out.print(f"  [dim]paid[/]     {paid}", soft_wrap=True)
    for line in found["follows"]:
        out.print(f"[yellow]note:[/] {escape(line)}", soft_wrap=True)
