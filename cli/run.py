"""`intellect-node run`: write a run file, look at what it means, and find its mistakes before anybody else does."""

import sys
from collections.abc import Sequence
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from cli.errors import RUN, USAGE, CommandError
from cli.options import Sets, hear
from cli.output import AsJson, clean, console, count_of, print_json
from cli.run_template import leaves, toml_value

if TYPE_CHECKING:
    from node.environments.both_ways import BothWays
    from node.errors import Mistake, Mistakes
    from node.hardware import Hardware
    from node.run.file import CompiledRun
    from node.run.problems import PartFacts, RunFacts
    from protocol.run import RunSpec

_MEASURED = ("verification.decision.honest.", "verification.decision.cheating.", "verification.decision.crossed.")
app = typer.Typer(help="Run files: write one, check it, see what it means.", no_args_is_help=True)


class RunKind(StrEnum):
    """What a new run file starts from."""

    small = "small"
    large = "large"
    intellect2 = "intellect2"


class LearnsFrom(StrEnum):
    """What a run learns from."""

    rl = "rl"
    pretrain = "pretrain"
    witnessed = "witnessed"


@app.command(
    "validate",
    epilog="Examples:  intellect-node run validate my-run.toml   |   intellect-node run validate my-run.toml --json   "
    "|   intellect-node run validate my-run.toml --sample 16",
)
def validate(
    file: Annotated[Path, typer.Argument(help="The run file.")],
    sample: Annotated[
        int | None,
        typer.Option(min=1, max=4096, help="Ask the start model so many problems, and say what its answers are like."),
    ] = None,
    sets: Sets = None,
    as_json: AsJson = False,
) -> None:
    """Check a run file and everything that it names, exactly as its members will; warn of what is legal but odd.

    Exit code 6 tells all mistakes: unknown keys with the nearest right ones, values out of bounds with their bounds,
    rows of the data set with their lines. Mistakes of one kind are one line, with the worst of them. Rows are counted
    by published form. Of a model on the hub only small files and headers are fetched, unless --sample asks it.
    """
    from node.hardware import inspect_hardware
    from node.run.problems import check_architecture, check_functions
    from node.run.rendering import check_rendering
    from node.run.sources import about
    from node.run.survey import survey

    found = survey(file, sets or (), "whole" if sample else "headers", on_progress=hear)
    compiled, facts = found.compiled, found.facts
    if compiled is None or facts is None:
        raise tell_findings(file, found.findings, as_json=as_json)
    warnings = [*notes_of(compiled, facts), *about(found.had)]
    check_rendering(compiled)
    # Validators' machines may do without torch; what it alone can tell is then said to be unchecked.
    if can_train():
        warnings += check_architecture(compiled)
        check_functions(compiled)
    else:
        warnings.append("torch is not installed here: whether the weights fit the architecture was not looked at")
    fits = fitting(compiled.spec, inspect_hardware())
    answers = _sampled(compiled, sample) if sample else None
    if as_json:
        print_json(_as_json(compiled, facts, warnings, fits) | ({"sample": answers} if answers else {}))
        return
    _print_facts(compiled, facts, fits)
    for warning in warnings:
        console().print(f"[yellow]note:[/] {escape(warning)}", soft_wrap=True)
    if answers:
        from cli.sample import show as show_answers

        show_answers(answers)
    console().print(f"[green]{escape(str(file))} can be run[/]", soft_wrap=True)


def _sampled(compiled: "CompiledRun", count: int) -> dict[str, Any]:
    from cli.sample import sampled

    require_training("a model is asked by torch, which is not installed", "install")
    if compiled.spec.pretraining is not None:
        raise CommandError("nothing is answered in this run", "it learns from text", "leave --sample out", RUN)
    return sampled(compiled, count)


def tell_findings(
    file: Path, found: "Mistakes", *, as_json: bool, cannot: str = "be run", code: int = RUN
) -> CommandError:
    """Shows every finding; returns what to end with."""
    import msgspec

    if as_json:
        worst = [{"mistakes": found.kinds[kind], **msgspec.to_builtins(one)} for kind, one in found.worst.items()]
        told = {"findings": msgspec.to_builtins(found.first), "more": found.rest(), "worst": worst}
        print_json({"mistakes": found.total, **told})
    elif found.total > 1:
        for kind, one in found.worst.items():
            also = _places([other for other in found.first if other.kind == kind and other != one], found.kinds[kind])
            place, what = escape(clean(one.place, 300)), escape(clean(one.what, 600))
            console().print(f"[red]{place}[/]: {what}{escape(also)}", soft_wrap=True)
            console().print(f"    do: {escape(clean(one.remedy, 300))}", soft_wrap=True)
    first, several = found.first[0], f" ({found.total} mistakes, all above)" if found.total > 1 else ""
    first = found.worst.get(first.kind, first)
    return CommandError(f"{file} cannot {cannot}{several}", f"{first.place}: {first.what}", first.remedy, code)


def _places(others: "Sequence[Mistake]", count: int) -> str:
    """'; and 138 more like it, the worst here: line 2, line 3, line 4'."""
    if count < 2:
        return ""
    most_places = 3  # of mistakes of one kind, beside the worst
    named = ", ".join(clean(one.place.rpartition(", ")[2], 60) for one in others[:most_places])
    return (
        f"; and {count - 1} more like it"
        + (f": {named}" if named else "")
        + (" ..." if count - 1 > most_places else "")
    )


@app.command("show", epilog="Example:  intellect-node run show my-run.toml")
def show(
    file: Annotated[Path, typer.Argument(help="The run file.")], sets: Sets = None, as_json: AsJson = False
) -> None:
    """Every setting of a run in effect, and where its value comes from: the file, the recipe's preset, a default."""
    rows = effective(file, sets or ())
    if as_json:
        print_json({"settings": {name: {"value": value, "from": origin} for name, value, origin in rows}})
        return
    table = Table("setting", "value", "from", title=str(file), title_justify="left")
    for name, value, origin in without_tables(rows):
        style = "bold" if origin == "file" else "dim" if origin == "default" else ""
        table.add_row(name, escape(value if isinstance(value, str) else toml_value(value)), origin, style=style)
    console().print(table)


@app.command(
    "new",
    epilog="Examples:  intellect-node run new my-run.toml --model models/qwen --dataset train.jsonl   |   "
    "intellect-node run new gsm8k.toml --model Qwen/Qwen3-0.6B --dataset openai/gsm8k#main/train   |   "
    "intellect-node run new mine.toml --model models/qwen --package my_env.py   |   "
    "intellect-node run new big.toml --like intellect2 --model models/qwq --dataset math.parquet   |   "
    "intellect-node run new game.toml --kind witnessed --dataset rows.jsonl --server wss://example.org/ws   |   "
    "intellect-node run new text.toml --kind pretrain --model models/byte --dataset books.jsonl",
)
def new(
    file: Annotated[Path, typer.Argument(help="The run file to write.")],
    model: Annotated[str, typer.Option(help="The start model: a directory, or a name like Qwen/Qwen3-0.6B.")] = "model",
    dataset: Annotated[
        str | None,
        typer.Option(
            help="Rows: a file, directory, pattern, or a name like openai/gsm8k#main/train; not for packages."
        ),
    ] = None,
    environment: Annotated[
        str, typer.Option(help="What to train on where there is no data file: see `env list`.")
    ] = "sort",
    package: Annotated[
        str | None, typer.Option(help="An environment package instead: its path, relative to the file, or its root.")
    ] = None,
    kind: Annotated[
        LearnsFrom,
        typer.Option(
            help="Learns from rollouts (rl), from a server (witnessed), or from text in rounds of peers (pretrain)."
        ),
    ] = LearnsFrom.rl,
    server: Annotated[
        str | None, typer.Option(help="With --kind witnessed: ws(s):// of OpenEnv, http(s):// or stdio:NAME of MCP.")
    ] = None,
    like: Annotated[RunKind, typer.Option(help="Sizes and recipe to start from.")] = RunKind.small,
    recipe: Annotated[str | None, typer.Option(help="The recipe's preset, instead of what --like brings.")] = None,
    name: Annotated[str | None, typer.Option(help="The run's name. Default: the file's.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    sets: Sets = None,
) -> None:
    """Write a complete run file with a comment at every setting.

    Model and data are read, of names on the hub the small files and the rows: limits, learning rate and instruction
    follow from them, each with its reason beside it, and the commit is written down. `run validate` accepts the file.
    """
    from cli.fit import fitted
    from cli.run_template import pretraining_template, template, with_sets
    from node.environments.builtin import BUILTIN
    from protocol.recipe import PRESETS

    if recipe is not None and recipe not in PRESETS:
        raise CommandError(f"there is no preset {recipe!r}", _nearest(recipe, PRESETS), "choose one of them", USAGE)
    if file.exists() and not force:
        raise CommandError(f"{file} is there already", "it may hold work of yours", "name another, or add --force")
    if kind is LearnsFrom.pretrain:
        if package or recipe:
            why = "--package and --recipe are about rollouts"
            raise CommandError("text or rollouts?", why, "leave them out, or --kind pretrain", USAGE)
        _write(file, pretraining_template(file=file.name, name=name or file.stem, model=model, text=dataset))
        return
    served = kind is LearnsFrom.witnessed
    if served != bool(server):
        why = "an environment behind a server has both a --kind and an address"
        raise CommandError("which server?", why, "give --kind witnessed and --server URL", USAGE)
    source = "server" if served else "dataset" if dataset else environment
    if source not in BUILTIN:
        raise CommandError(
            f"there is no environment {source!r}", _nearest(source, BUILTIN), "choose one of them", USAGE
        )
    if dataset and package:
        raise CommandError("data or a package?", "a package has its own problems", "give one of the two", USAGE)
    if BUILTIN[source].data and not dataset:
        raise CommandError("which data?", f"the environment {source!r} reads a file", "give --dataset FILE", USAGE)
    said = arguments_in(sets or ())
    fit = fitted(model, dataset, file.parent, hear, rows=source == "dataset", said=said, later=True)
    text = template(
        like.value,
        file=file.name,
        name=name or file.stem,
        model=fit.model,
        environment=source,
        dataset=fit.dataset,
        recipe=recipe,
        package=package,
        server=server or "",
        fit=fit,
    )
    _write(file, with_sets(text, sets or ()))


def arguments_in(sets: Sequence[str]) -> dict[str, Any]:
    """Those of [environment.args] that the command line says."""
    from node.run.settings import with_words

    return with_words({}, [word for word in sets if word.startswith("environment.args.")]).get(
        "environment", {"args": {}}
    )["args"]


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    console().print(f"wrote {file}; next: intellect-node run validate {file}", soft_wrap=True)


def can_train() -> bool:
    """Whether the extra [train] is installed."""
    return all(find_spec(name) for name in ("torch", "transformers"))


def require_training(what: str, make: str) -> None:
    """Raises CommandError where the extra is not installed. what: who misses it; make: what brings it in a clone."""
    if not can_train():
        raise CommandError(
            what,
            "intellect-node was installed without its extra [train]",
            f"pip install 'intellect-node[train]', or in a clone: make {make}",
            RUN,
        )


def without_tables(rows: list[tuple[str, Any, str]]) -> list[tuple[str, Any, str]]:
    """The rows with a calibration's tables of counts as one: nobody reads hundreds of numbers on a terminal."""
    measured = [name for name, _, _ in rows if name.startswith(_MEASURED)]
    if not measured:
        return rows
    pairs = sum(name.endswith(".proofs") for name in measured if name.startswith(_MEASURED[0]))
    ways = sum(name.endswith(".proofs") for name in measured if name.startswith(_MEASURED[1]))
    told = ("verification.decision", f"calibrated: {pairs} pairs of engines, {ways} ways of cheating (--json)", "file")
    first = next(i for i, row in enumerate(rows) if row[0] in measured)
    kept = [row for row in rows[first:] if row[0] not in measured]
    return [*rows[:first], told, *kept]


def effective(file: Path, sets: Sequence[str] = ()) -> list[tuple[str, Any, str]]:
    """(setting, value, where from) of a run file, in order. Raises RunFileError."""
    import msgspec

    from node.run.file import load_run_file
    from node.run.settings import read_tables
    from protocol.recipe import Objective

    run = load_run_file(file, sets)
    # Of the file's own text: the parsed run has every default, and does not say which were written.
    said, alone = (dict(leaves(read_tables(file, words))) for words in (sets, ()))
    objective = msgspec.to_builtins(run.recipe.objective())
    rows: list[tuple[str, Any, str]] = []
    for path, value in leaves(msgspec.to_builtins(run)):
        section, _, field = path.rpartition(".")
        if run.pretraining is not None and not _read_by_pretraining(section, field):
            continue
        if path in said:
            rows.append((path, value, "file" if said[path] == alone.get(path) else "--set"))
        elif section == "recipe" and field in Objective.__struct_fields__:
            rows.append((path, objective[field], f"preset {run.recipe.name}"))
        elif value is not None and value not in ([], ()):
            rows.append((path, value, "default"))
    return rows


def _read_by_pretraining(section: str, field: str) -> bool:
    from protocol.pretraining import READ_OF_RECIPE, UNREAD

    if section == "recipe":
        return field in READ_OF_RECIPE
    if section == "evaluation":
        return field == "every"
    return section.partition(".")[0] not in UNREAD


def notes_of(compiled: "CompiledRun", facts: "RunFacts") -> list[str]:
    """What is legal and probably not meant, of either kind of run."""
    import json

    from cli import pretraining
    from node.run.problems import notes_on_model

    if compiled.spec.pretraining is None:
        return [*notes_on_model(compiled), *warnings_about(compiled.spec, facts)]
    context = json.loads(compiled.files["model/config.json"].read_bytes()).get("max_position_embeddings")
    return pretraining.warnings_about(compiled.spec, facts, context if isinstance(context, int) else None)


def warnings_about(run: "RunSpec", facts: "RunFacts") -> list[str]:
    """What is legal and probably not meant."""
    from cli.pretraining import exchange_warnings
    from cli.run_template import rate_for

    rollout, recipe, found = run.rollout, run.recipe, exchange_warnings(run)
    if rollout.prompts_per_step % rollout.prompts_per_file:
        found.append(
            f"prompts_per_step = {rollout.prompts_per_step} is no multiple of prompts_per_file = "
            f"{rollout.prompts_per_file}: part of every last file waits for the next step"
        )
    if recipe.max_staleness == 0:
        found.append("max_staleness = 0 is synchronous: workers wait while the trainer learns, and it for them")
    if recipe.max_staleness > 8:
        found.append(f"max_staleness = {recipe.max_staleness}: beyond 8 no published recipe was shown to be stable")
    if recipe.decay_steps and recipe.decay_steps < recipe.steps:
        found.append(f"decay_steps = {recipe.decay_steps}: the learning rate is 0 for the rest of {recipe.steps} steps")
    if recipe.updates_per_step > rollout.prompts_per_step:
        found.append("updates_per_step is larger than prompts_per_step: some updates would have no group")
    # Adapters want about ten times the rate of full weights (docs/models.md).
    usual = rate_for(facts.parameters) * (10 if recipe.lora else 1)
    if facts.parameters > 50_000_000 and recipe.learning_rate > 2 * usual:
        found.append(
            f"learning_rate = {recipe.learning_rate:g} is high for {count_of(facts.parameters)} parameters: begin with "
            f"{usual:g}"
        )
    if run.length_budget.targets and run.length_budget.targets[-1] >= rollout.max_output_tokens:
        found.append("the longest length budget leaves no room below rollout.max_output_tokens")
    if own := run.own_code():
        brought = ", ".join(f"{setting} = {path}" for setting, path in own.items())
        found.append(f"{brought}: code of its own, so it can be trained at a desk, but no swarm takes it")
    if desk := run.desk_environments():
        found.append(f"environment {', '.join(desk)}: it can be trained at a desk, but no swarm takes it")
    rules = run.verification
    # Counts of proofs tell one pair of engines from another only where both were measured.
    if narrowed := [pattern for pattern in rules.engines if pattern not in rules.admitted]:
        found.append(
            f"verification.engines permits {', '.join(narrowed)}, but the run was calibrated for "
            f"{', '.join(rules.admitted)} only: workers that compute otherwise are turned away"
        )
    longest = rollout.max_prompt_tokens + rollout.max_output_tokens
    if facts.positions and longest > facts.positions:
        found.append(
            f"prompts of {rollout.max_prompt_tokens} and answers of {rollout.max_output_tokens} tokens are longer than "
            f"the model's {facts.positions} positions (max_position_embeddings): behind them it was not trained to read"
        )
    for part in facts.parts:
        if part.unmarked:
            found.append(
                f"{part.label}: {part.unmarked:,} prompts do not say where the answer goes, which is looked for behind "
                "#### or in a box: set `instruction` below [environment.args], as `run new` does"
            )
        # The error of a mean of 32 rewards of 0 or 1 is 0.09.
        if part.held_back < 32:
            found.append(f"{part.label}: only {part.held_back} held-back problems; evaluations will be noisy")
        if part.determinism == "judged":
            found.append(f"{part.label}: rewards are opinions of judges, so no verdict of a validator checks them")
            if not run.audit.judges:
                found.append(f"{part.label}: nobody is asked for rewards in a swarm: set judges = true in [audit]")
        found += _pay(part.label, part.paid) if part.paid is not None else []
        if part.problems < rollout.prompts_per_step:
            found.append(f"{part.label}: a step asks more problems than there are ({part.problems})")
    if rollout.temperature != 1.0 and run.recipe.name not in ("intellect2",):
        found.append(f"temperature = {rollout.temperature:g}: the policy is trained as it is sampled, not at 1")
    return found


def _pay(label: str, paid: "BothWays") -> list[str]:
    """Where scorers do not pay what they should."""
    found = []
    if paid.unpaid:
        rows = ", ".join(paid.unpaid[:3])
        found.append(
            f"{label}: of {paid.looked_at} rows looked at, {len(paid.unpaid)} would not pay their right answer (their "
            f"truth, or the published solution): {rows}"
        )
    if paid.overpaid:
        row, answer = paid.overpaid[0]
        found.append(
            f"{label}: of {paid.looked_at} rows looked at, {len(paid.overpaid)} would pay a wrong answer: {row} pays "
            f"{' '.join(answer.split())[:60]!r}"
        )
    if paid.words:
        found.append(f"{label}: of {paid.looked_at} rows looked at, {paid.words} are paid for the very words only")
    return found


def note_what_is_odd(compiled: "CompiledRun", facts: "RunFacts") -> None:
    """The notes of `run validate`, on standard error: who trains without it must see them, too."""
    for note in notes_of(compiled, facts):
        print(f"note: {note}", file=sys.stderr)


def fitting(run: "RunSpec", hardware: "Hardware") -> dict[str, list[str]]:
    """What this machine lacks for each role."""
    from node.config import ROLES
    from node.recipe.requirements import shortfalls

    return {role: shortfalls(run, role, hardware) for role in ROLES}


def _as_json(
    compiled: "CompiledRun", facts: "RunFacts", warnings: list[str], fits: dict[str, list[str]]
) -> dict[str, Any]:
    import msgspec

    run = compiled.spec
    how: dict[str, Any] = {"objective": msgspec.to_builtins(run.recipe.objective())}
    engines: dict[str, Any] = {"engines": run.verification.admitted}
    if run.pretraining is not None:
        how, engines = {name: msgspec.to_builtins(getattr(run, name)) for name in ("pretraining", "diloco")}, {}
    return {
        "name": compiled.spec.name,
        "run_root": compiled.root.hex(),
        "facts": msgspec.to_builtins(facts),
        **how,
        "warnings": warnings,
        **engines,
        "this_machine_lacks": fits,
    }


def _print_facts(compiled: "CompiledRun", facts: "RunFacts", fits: dict[str, list[str]]) -> None:
    from cli import pretraining

    lacking = [("this machine", f"{role}: {'; '.join(lacks) or 'enough'}") for role, lacks in fits.items()]
    told = _rows_of_rollouts if compiled.spec.pretraining is None else pretraining.fact_rows
    table = Table.grid(padding=(0, 2))
    for name, text in (*told(compiled, facts), *lacking):
        table.add_row(f"[dim]{name}[/]", escape(text))
    console().print(table)


def _rows_of_rollouts(compiled: "CompiledRun", facts: "RunFacts") -> list[tuple[str, str]]:
    run, rollout = compiled.spec, compiled.spec.rollout
    return [
        ("run", f"{run.name}  ({compiled.root.hex() or 'no root yet: its weights are not here'})"),
        ("model", f"{count_of(facts.parameters)} parameters, {len(compiled.files)} files"),
        *(
            (
                "environment",
                f"{part.label}: {part.share:.0%} of the draws, {part.problems:,} problems, {part.held_back:,} held back"
                + (f", {part.left_out:,} filtered out" if part.left_out else ""),
            )
            for part in facts.parts
        ),
        *(("instruction", f"{part.label}: {part.said}") for part in facts.parts if part.said),
        *(
            ("rows", f"{part.label}: {count:,} {name}")
            for part in (*facts.parts, *facts.evaluated)
            for name, count in _rows(part)
        ),
        *(("verdicts", f"{part.label}: {_dependence(part)}") for part in facts.parts),
        *(
            ("evaluation", f"{one.label}: {min(one.held_back, run.evaluation.problems):,} held-back problems")
            for one in facts.evaluated
        ),
        (
            "step",
            f"{rollout.prompts_per_step} problems x {rollout.group_size} answers of up to "
            f"{rollout.max_output_tokens} tokens, in {rollout.files_per_step} files; prompts up to "
            f"{facts.longest_prompt} of {rollout.max_prompt_tokens} tokens",
        ),
        (
            "recipe",
            f"{run.recipe.name}: {run.recipe.objective().loss} loss, {run.recipe.objective().advantage} advantage, "
            f"{run.recipe.steps} steps of {run.recipe.updates_per_step} updates, staleness up to "
            f"{run.recipe.max_staleness}",
        ),
        *_rows_of_replicas(run, facts.parameters),
        ("filters", _filters(run)),
        ("lengths", f"targets {list(run.length_budget.targets)}" if run.length_budget.targets else "no budgets"),
        ("engines", ", ".join(run.verification.admitted)),
    ]


def _rows_of_replicas(run: "RunSpec", parameters: int) -> list[tuple[str, str]]:
    from cli.pretraining import exchange_row

    if run.diloco is None:
        return []
    inner, state = run.diloco.inner_steps, run.diloco.inner_state
    each = f"{inner} inner steps of each trainer, with {inner * run.rollout.prompts_per_step} problems"
    return [("rounds", f"{run.recipe.steps} of {each}, moments {state}"), exchange_row(run.diloco, parameters)]


def _rows(part: "PartFacts") -> list[tuple[str, int]]:
    """(form or fault, rows) of a data set's rows."""
    taken = [(f"taken: {shape}", count) for shape, count in part.shapes.items()]
    skipped = [(f"skipped: {kind}", count) for kind, count in part.skipped.items()]
    more = {"further responses to a problem": part.repeats, "alike to an earlier one, on its side": part.alike}
    return [*taken, *skipped, *((name, count) for name, count in more.items() if count)]


_DEPENDENCE = {
    "exact": "exact, from the answer alone",
    "bounded": "bounded, from the answer and from limits that are counted alike everywhere",
    "witnessed": "witnessed: what a server says counts where a quorum of validators hears the same",
    "judged": "judged, so validators leave them open until judges have scored them",
}


def _dependence(part: "PartFacts") -> str:
    """What verdicts on an environment depend on, in words."""
    turns = f", {part.turns} turns" if part.turns > 1 else ""
    return _DEPENDENCE[part.determinism] + turns + (f"; package {part.package}" if part.package else "")


def _filters(run: "RunSpec") -> str:
    if not run.filters.online:
        return "none online: groups without signal stay in the batch"
    return f"groups without signal are replaced, up to {run.filters.refill:g} times the batch"


def _nearest(name: str, known: Any) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
