"""`intellect-node run warm-start`: the model that a run begins with, taught by example first."""

import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import CONFIGURATION, RUN, USAGE, CommandError
from cli.options import Sets, hear
from cli.output import AsJson, clean, console, print_json

if TYPE_CHECKING:
    from node.environments.base import Environment
    from node.inference.tokenizer import LocalTokenizer
    from node.run.file import RunFile, WarmStart

EXAMPLES = (
    "Examples:  intellect-node run warm-start my-run.toml   |   "
    "intellect-node run warm-start my-run.toml --trainer device=cpu --json, with in the run file: "
    '[warm_start] model = "models/base", data = "answers.jsonl", steps = 200'
)


def command(
    file: Annotated[Path, typer.Argument(help="A run file with [warm_start].")],
    trainer: Annotated[
        list[str] | None, typer.Option("--trainer", help="NAME=VALUE: device, micro_batch_tokens. May be repeated.")
    ] = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Make the model that a run file names by imitation: [warm_start] names its base and the examples.

    Prompts are built as the run's environment builds them, and only answers are learnt. One example in 20 is kept
    out, and its loss is printed before and after. The run then begins with the result: its members fetch it like any
    model.
    """
    from cli.run_directory import trainer_settings
    from node.run.file import had, load_run_file
    from node.training.imitation import ImitationSettings, imitate, write_model

    run, _ = had(load_run_file(file, sets or ()), file, "whole", hear)
    how = run.warm_start
    if how is None:
        why = f"{file} has no [warm_start]"
        raise CommandError("no warm start is described", why, "add the table [warm_start]: model, data, steps", USAGE)
    out, base = file.parent / run.model, file.parent / how.model
    if out.exists():
        why = f"`model` of the run file is {run.model}, and it is there"
        raise CommandError(f"will not overwrite {out}", why, "remove it, or name another", CONFIGURATION)
    examples = _examples(run, how, file)
    imitation = ImitationSettings(how.steps, how.batch, how.learning_rate, run.recipe.seed)
    model, figures = _with_a_bar(
        how.steps, lambda told: imitate(base, examples, imitation, trainer_settings(trainer or []), told)
    )
    write_model(base, out, model)
    if as_json:
        print_json({"model": str(out), "examples": len(examples), "steps": how.steps, **figures})
        return
    first, last = figures["loss_first"], figures["loss_last"]
    console().print(
        f"{clean(str(out), 400)}: {len(examples)} examples, {how.steps} steps; on those kept out the loss went from "
        f"{first:.3f} to {last:.3f} nats a token; next: intellect-node run validate {clean(str(file), 400)}",
        soft_wrap=True,
    )


def _examples(run: "RunFile", how: "WarmStart", file: Path) -> list[tuple[list[int], list[int]]]:
    """(prompt, answer) in tokens. Raises CommandError naming the row that is none."""
    import msgspec

    from node.environments.files import read_rows
    from node.environments.registry import load_environment
    from node.inference.tokenizer import LocalTokenizer
    from node.run.file import compile_run, with_fitting_proofs
    from node.run.problems import check_run, place_files

    # With the base in the model's place: the run's own model is what is about to be made.
    begun = with_fitting_proofs(msgspec.structs.replace(run, model=how.model), file)
    compiled = compile_run(file, begun, desk=True)
    check_run(compiled)
    data = file.parent / how.data
    with tempfile.TemporaryDirectory(prefix="intellect-warm-") as folder:
        place_files(compiled, Path(folder))
        tokenizer = LocalTokenizer(Path(folder) / "model")
        with closing(load_environment(compiled.spec.environment, Path(folder), tokenizer)) as environment:
            found = [_example(row, how, environment, tokenizer, f"{data}, row {at}") for at, row in read_rows(data)]
    if not found:
        raise CommandError(f"there are no examples in {data}", "it has no rows", "check [warm_start] data", RUN)
    return found


def _example(
    row: dict[str, Any], how: "WarmStart", environment: "Environment", tokenizer: "LocalTokenizer", where: str
) -> tuple[list[int], list[int]]:
    from node.environments.base import Problem

    prompt, answer = row.get(how.prompt), row.get(how.answer)
    if not (isinstance(prompt, str) and isinstance(answer, str) and prompt and answer):
        why = f"the columns {how.prompt!r} and {how.answer!r} must be texts"
        raise CommandError(f"no example: {where}", why, "correct the row, or name other columns in [warm_start]", RUN)
    most_text = 1 << 20  # characters
    if len(prompt) + len(answer) > most_text:
        why = f"its texts have more than {most_text:,} characters"
        raise CommandError(f"too long an example: {where}", why, "remove the row", RUN)
    problem = Problem(problem_id=where, prompt=prompt, answer=(answer,))
    tokens = environment.prompt_tokens(problem), [*tokenizer.encode(answer), tokenizer.end]
    if sum(map(len, tokens)) > how.max_tokens:
        why = f"it has {sum(map(len, tokens))} tokens, and max_tokens is {how.max_tokens}"
        raise CommandError(f"too long an example: {where}", why, "remove the row, or raise max_tokens", RUN)
    return tokens


def _with_a_bar(steps: int, work: Any) -> Any:
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("imitating", total=steps)
        return work(lambda record: progress.update(task, advance=1, description=f"loss {record['loss']:.3f}"))
