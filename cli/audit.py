"""`intellect-node audit`: every check that a validator would make, on one's own file; and of a step of the trainer."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from cli.errors import RUN, USAGE, CommandError
from cli.options import Sets, hear
from cli.output import AsJson, clean, console, print_json
from cli.places import state_dir_option

if TYPE_CHECKING:
    from node.audit.findings import Audit
    from node.services.judging.self_audit import SelfAudit

EXAMPLES = (
    "Examples:  intellect-node audit rollout.arrow --run run.toml --policy policy-12.safetensors   |   "
    "intellect-node audit 9f86d0.. --state-dir nodes/worker-1 --json   |   "
    "intellect-node audit step 12 --dir runs/my-run   |   intellect-node audit step 12 --replica 0 --dir runs/several"
    "   |   intellect-node audit step 12 --state-dir nodes/worker-1   |   "
    "intellect-node audit answer answer.json --model Qwen/Qwen3-0.6B"
)


def command(
    file: Annotated[
        str,
        typer.Argument(
            help="A rollout file, or with --state-dir the root of one in its store; or the word: step, answer."
        ),
    ],
    which: Annotated[
        str | None,
        typer.Argument(
            metavar="[K|ANSWER]", help="After `step`: which one, K for policy K -> K + 1. After `answer`: its file."
        ),
    ] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="With `step`: the directory of a `train`.")] = None,
    replica_id: Annotated[
        int | None,
        typer.Option(
            "--replica", min=0, help="With `step K --dir`, of several trainers: whose contribution to round K."
        ),
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", help="The run file (TOML).")] = None,
    sets: Sets = None,
    state_dir: Annotated[
        Path | None,
        state_dir_option(
            "A node's state directory: its run, and the policies it holds; with `step`, of a node that runs."
        ),
    ] = None,
    policy: Annotated[
        Path | None,
        typer.Option(help="The policy's bf16 image; default: found in the state directory, or the run's start model."),
    ] = None,
    trainer: Annotated[
        list[str] | None,
        typer.Option("--trainer", help="With `step`: NAME=VALUE, to compute otherwise than the trainer did."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="With `answer`: the model that is said to have given it, a path or a name.")
    ] = None,
    adapter: Annotated[
        str | None, typer.Option(help="With `answer`: an adapter to it, PEFT's directory or RUN@STEP of `train`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a rollout file as a validator would, before committing to it; or a step of a trainer, as anybody may.

    Exit code 0 if it would be accepted, 6 if it would be refused. Reasons are those of the validators' verdicts.
    `audit step K` makes the batch of a step again from its files and applies three tests: see docs/trainer-audit.md.
    `audit answer FILE --model SOURCE` looks at an answer of `serve` that came with proofs: see docs/serving.md.
    """
    if file == "answer" and which is not None:
        _audit_answer(Path(which), model, adapter, as_json)
        return
    if file == "step" and which is not None:
        number = _number(which)
        if state_dir is not None and directory is None:
            _audit_in_swarm(number, state_dir, as_json)
        else:
            _audit_step(number, directory, trainer or [], as_json, replica_id)
        return
    if (run is None) == (state_dir is None):
        raise CommandError("which run?", "give either --run or --state-dir", "see intellect-node audit --help", USAGE)
    with _telling(as_json):
        result = _from_state(file, state_dir, policy) if state_dir else _from_run(Path(file), run, sets or (), policy)
    if as_json:
        print_json(as_dict(result))
    else:
        _show(result)
    if not result.passed:
        raise typer.Exit(RUN)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise CommandError(f"step {text[:40]!r}", "it is no number of a step", "give a whole number", USAGE)
    return int(text)


def _audit_answer(file: Path, model: str | None, adapter: str | None, as_json: bool) -> None:
    """Raises CommandError, BadAnswerProof, ModelError."""
    import json

    import msgspec

    from cli.evaluate import beside_of, place_of
    from cli.run import require_training
    from cli.run_directory import trainer_settings
    from node.inference.answer_proofs import look_again, model_root, read_proofs
    from node.inference.engines import load_start
    from node.inference.torch_engine import TorchEngine
    from node.training.evaluator import beside, evaluation_engine, read_adapters

    if model is None:
        raise CommandError("which model?", "whoever looks again needs its weights", "give --model SOURCE", USAGE)
    require_training("a model is looked at by torch, which is not installed", "install")
    try:
        data = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CommandError(f"cannot read {file}", str(error), "name the answer's JSON", RUN) from None
    proofs, (place, _) = read_proofs(data), place_of(model)
    weights = read_adapters(place, beside_of([adapter], place)) if adapter else {}
    settings = evaluation_engine(trainer_settings([]))
    engine = TorchEngine(place, beside(settings, weights.values()) if weights else settings)
    for name, one in weights.items():
        engine.hold(name.encode(), one)
    if not weights:
        load_start(engine, place)
    name, held = next(iter(weights.items()), ("", None))
    root = model_root(place, held)
    found = [look_again(proof, engine, root, name.encode()) for proof in proofs]
    if as_json:
        print_json({"model": root, "answers": [msgspec.to_builtins(one) for one in found]})
    else:
        for proof, one in zip(proofs, found, strict=True):
            asked, said = (engine.tokenizer.spell(tokens) for tokens in (proof.prompt, proof.output))
            console().print(f"asked with seed {proof.seed}: {clean(asked, 400)}", soft_wrap=True, markup=False)
            console().print(f"answered: {clean(said, 400)}", soft_wrap=True, markup=False)
            verdict = "[green]this model's[/]" if one.accepted else f"[red]refused[/]: {clean(one.why, 300)}"
            console().print(
                f"{verdict}  {one.tokens} tokens, {one.proofs} proofs; {one.exponent_mismatches} exponents differ, "
                f"{one.sampling_outside:.1%} of tokens outside what seed and distribution give; ended by "
                + (f"its {one.ended}" if one.ended != "early" else "a stop text, or it was cut")
                + (
                    ""
                    if one.same_class
                    else "; computed by another class of engine, for which the thresholds are no measure"
                ),
                soft_wrap=True,
            )
    if not all(one.accepted for one in found):
        raise typer.Exit(RUN)


def _audit_step(step: int, directory: Path | None, words: list[str], as_json: bool, replica_id: int | None) -> None:
    """words: NAME=VALUE of [trainer], where others than the trainer's are wanted. Raises TrainingError."""
    from cli.run_directory import trainer_settings
    from node.audit.desk import audit_at_desk

    if directory is None:
        raise CommandError(
            "which training?", f"step {step} of what?", "give --dir of a `train`, or --state-dir of a node", USAGE
        )
    with _telling(as_json):
        audit = audit_at_desk(directory, step, trainer_settings(words) if words else None, replica_id=replica_id)
    if as_json:
        print_json(_step_as_dict(audit))
    else:
        _show_step(audit)
    if audit.broken:
        raise typer.Exit(RUN)


def _audit_in_swarm(step: int, state_dir: Path, as_json: bool) -> None:
    """By a running node, from what others hand over."""
    import msgspec

    from cli.api import ask, socket_of
    from node.audit.findings import Audit

    with _telling(as_json):
        told = ask(socket_of(state_dir), "POST", f"/audit/step/{step}", timeout=1200.0)
    if as_json:
        print_json(told)
    elif told["audit"] is not None:
        _show_step(msgspec.convert(told["audit"], Audit))
    verdict = told["verdict"]
    if not as_json:
        console().print(
            f"verdict  {verdict['outcome']}: {clean(verdict['detail'])}" if verdict else "verdict  undecided"
        )
    if verdict and verdict["outcome"] != "accept":
        raise typer.Exit(RUN)


def _from_run(file: Path, run: Path | None, sets: Sequence[str], policy: Path | None) -> "SelfAudit":
    from node.run.file import compile_run
    from node.run.problems import place_files
    from node.services.judging.self_audit import audit_file

    assert run is not None  # the command has asked
    compiled = compile_run(run, reach="whole", on_progress=hear, sets=sets)
    start = next(path for name, path in sorted(compiled.files.items()) if name.endswith(".safetensors"))
    with tempfile.TemporaryDirectory(prefix="intellect-audit-") as folder:
        place_files(compiled, Path(folder))
        return audit_file(file, compiled.spec, Path(folder), policy or start)


def _from_state(file: str, state_dir: Path, policy: Path | None) -> "SelfAudit":
    from node.services.judging.self_audit import audit_file, named_policy
    from node.state.reader import StateFiles

    state = StateFiles(state_dir)
    spec, assets = state.run()
    # A file here may have 64 characters in its name, too: then the file is meant.
    path = state.blob(file) if len(file) == 64 and not Path(file).exists() else Path(file)
    named = named_policy(path, spec)
    with tempfile.TemporaryDirectory(prefix="intellect-audit-") as folder:
        if policy is None and named:
            policy = _recorded(state_dir, named, Path(folder)) or state.policy(named, spec.recipe.steps)
        return audit_file(path, spec, assets, policy or assets / "model")


def _recorded(state_dir: Path, root: str, folder: Path) -> Path | None:
    """The image of a policy of which the node kept the record, if it is still there; one that rests on another is put
    together in the folder."""
    from node.weights.images import build_image
    from node.weights.records import PolicyRecords, find_held

    records = PolicyRecords(state_dir / "weights" / "held").read()
    record = next((one for one in records if one.manifest.policy_root.hex() == root), None)
    held = find_held(state_dir, record) if record else None
    if held is None or not held.patches:
        return held.path if held else None
    build_image(held.image(), held.manifest.tensors, folder / "image")
    return folder / "image"


@contextmanager
def _telling(quiet: bool) -> Iterator[None]:
    if quiet:
        yield
        return
    with console().status("recomputing every group"):
        yield


def as_dict(result: "SelfAudit") -> dict[str, Any]:
    """The result with names beside the numbers that stand in verdicts."""
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(result)
    plain["outcome_name"] = result.outcome.name.lower()
    plain["reason_name"] = result.reason.name.lower()
    plain["passed"] = result.passed
    return plain


def _show(result: "SelfAudit") -> None:
    out = console()
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    verdict = "would be accepted" if result.passed else f"would be refused ({result.outcome.name.lower()})"
    grid.add_row("verdict", Text(verdict, style="green" if result.passed else "bold red"))
    if not result.passed:
        grid.add_row("reason", f"{result.reason.value} {result.reason.name.lower()}")
        grid.add_row("seen", Text(clean(result.detail)))
    grid.add_row("file", f"{result.root}  submission {result.index}  {result.units:,} units")
    if result.groups:
        reward = "no reward could be told" if result.reward is None else f"mean reward {result.reward:.3f}"
        grid.add_row("recomputed", f"{result.groups} groups in {result.seconds:.1f} s  {reward}")
    for name, value in sorted(result.statistics.items()):
        grid.add_row(name.replace("_", " "), f"{value:.4g}")
    grid.add_row("not checked here", ", ".join(result.not_checked))
    out.print(grid)


# one step of a training, computed again and compared with what was published


STYLES = {"holds": "green", "broken": "bold red", "undecided": "yellow"}


def _step_as_dict(audit: "Audit") -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(audit)
    return plain | {"says": str(audit.says), "passed": not audit.broken}


def _show_step(audit: "Audit") -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column()
    grid.add_row("step", f"{audit.step}: policy {audit.step} -> policy {audit.step + 1}")
    same = "the same as here" if not audit.differences else f"here {audit.own}: {'; '.join(audit.differences)}"
    grid.add_row("class", Text(f"{audit.claimed}, {same}"))
    for one in audit.findings:
        numbers = "  ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in one.figures.items())
        line = Text(f"{one.says.value:<10}", style=STYLES[one.says.value]) + Text(clean(one.text), style="default")
        grid.add_row(one.test, line + Text(f"\n{'':10}{numbers}" if numbers else "", style="dim"))
    took = "  ".join(f"{name} {seconds:.2f} s" for name, seconds in audit.seconds.items())
    grid.add_row("took", took)
    console().print(grid)
