"""A last look at a run before it is opened: what every member would stumble over, found at its owner's desk.

Loads the model's description and the problems exactly as an engine does. Blocking: call from a thread.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from node.environments import both_ways
from node.environments.base import Determinism, Environment, Problem
from node.environments.dataset import DatasetEnvironment, DatasetRows
from node.environments.errors import EnvironmentFault
from node.environments.mix import MixEnvironment
from node.environments.package.archive import asset_name
from node.environments.registry import check_prompt, check_prompts, load_environment
from node.environments.task_types.table import MARKED_TASKS, MARKS
from node.errors import Mistake, Mistakes, RunFileError
from node.inference.errors import ModelError
from node.inference.model_files import HEAD, POSITIONS, TIED, language_config, read_json
from node.inference.tokenizer import LocalTokenizer
from node.inference.weight_files import weight_files
from node.run.file import CompiledRun
from node.run.text import TextTokenizer, check_stream
from node.sandbox import SandboxError
from protocol.budgets import told
from protocol.errors import IntellectError
from protocol.lora import ADAPTER, ADAPTER_CONFIG
from protocol.pretraining import Pretraining, shares
from protocol.run import MODEL, RunSpec
from protocol.sections import TEACHER, EvaluationEnvironment
from protocol.toploc import most_points


# What only torch can tell of a run. It takes seconds to import: for an owner's desk, not for a daemon.
def check_architecture(run: CompiledRun) -> list[str]:
    """Notes of tensors that the architecture has no place for. Raises ModelError for an architecture that engines
    cannot build, and for a tensor that is missing or has another shape or type than the architecture's; TrainingError
    for an adapter to layers that it does not have."""
    from node.inference.start_weights import StartWeights
    from node.inference.torch_engine import build_model, image_names
    from node.training.lora import given, shapes_of

    notes: list[str] = []
    for name in (MODEL, *([TEACHER] if run.spec.distill else [])):
        directory = run.files[f"{name}/config.json"].parent
        # meta: shapes without memory, however large the model.
        model = build_model(directory, device="meta")
        weights, names = StartWeights(directory), image_names(model)
        weights.check(names)
        # A copy of the embedding is in use, as the embedding.
        if odd := [one for one in weights.left_out(names) if one != HEAD]:
            notes.append(f"{directory}: the architecture has no place for {len(odd)} tensors, such as {odd[0]}")
        if run.spec.recipe.lora and name == MODEL:
            shapes = shapes_of(model, run.spec.recipe.lora)
            if (config := run.files.get(f"{ADAPTER}/{ADAPTER_CONFIG}")) is not None:
                given(config.parent, shapes)
    return notes


def notes_on_model(run: CompiledRun) -> list[str]:
    """What its files say that is legal and probably not meant. Raises ModelError."""
    if (said := run.files.get(f"{MODEL}/config.json")) is None:
        return []  # `look_at` says so
    config, directory, rollout = language_config(read_json(said)), said.parent, run.spec.rollout
    positions = config.get(POSITIONS)
    longest = rollout.max_prompt_tokens + rollout.max_output_tokens
    weights, notes = weight_files(directory), list[str]()
    if run.spec.pretraining is None and isinstance(positions, int) and longest > positions:
        notes.append(
            f"max_prompt_tokens + max_output_tokens = {longest}, and the model was made for {positions} "
            f"({POSITIONS} in config.json): what it says beyond them is of unknown quality"
        )
    if weights.left_out:
        notes.append(f"{directory}: no part of the model, and not used: {', '.join(weights.left_out[:5])}")
    if weights.unnamed:
        notes.append(f"{directory}: the index gives {len(weights.unnamed)} tensors to no file: {weights.unnamed[0]}")
    if config.get(TIED) and weights.has_own_head:
        notes.append(f"config.json says {TIED}, and the files have a head of their own, which is kept")
    types = {one.dtype for one in weights.tensors.values()}
    if len(types) > 1:
        notes.append(f"{directory}: tensors of several types: {', '.join(sorted(types))}")
    return notes


def check_functions(run: CompiledRun) -> None:
    """Loads the loss and the advantage that the run brings along, and tries them. Raises OwnCodeError."""
    from node.training.functions import functions_of

    if not run.spec.recipe.own_code():
        return
    with tempfile.TemporaryDirectory(prefix="intellect-run-") as folder:
        place_files(run, Path(folder))
        functions_of(run.spec.recipe.objective(), Path(folder))


T = TypeVar("T")


class PartFacts(msgspec.Struct, frozen=True):
    """One environment. problems, held_back: how many; left_out: rows that filters kept out; share: of the draws;
    determinism: what verdicts on it depend on; turns: most answers of a rollout; package: its root, if it is one;
    paid: what its scorers pay, where that was looked at; shapes: published form -> rows taken; skipped: fault -> rows
    skipped for it; repeats: further responses to a problem; unmarked: problems whose answer is looked for behind a mark
    that their prompt does not ask for; said: what stands behind each prompt; alike: problems that ask what an earlier
    one asks, in other words, and are on its side of the hold-out."""

    label: str
    problems: int
    held_back: int
    left_out: int
    share: float
    determinism: Determinism = "exact"
    turns: int = 1
    package: str = ""
    paid: both_ways.BothWays | None = None
    shapes: dict[str, int] = {}
    skipped: dict[str, int] = {}
    repeats: int = 0
    unmarked: int = 0
    said: str = ""
    alike: int = 0


class TextFacts(PartFacts, frozen=True, kw_only=True):
    """A data set of a run that pre-trains; problems are its rows. annealing: its share of the rows from where the
    learning rate decays."""

    tokens: int
    annealing: float


class RunFacts(msgspec.Struct, frozen=True):
    """What looking at a run's files shows. parameters: of the model; longest_prompt: tokens, of those looked at;
    evaluated: evaluation environments, of which nothing is drawn; positions: most tokens that the model has places for,
    0 if it does not say."""

    parameters: int
    longest_prompt: int
    parts: tuple[PartFacts, ...]
    evaluated: tuple[PartFacts, ...] = ()
    positions: int = 0


def check_run(run: CompiledRun) -> RunFacts:
    """Raise RunFileError, ModelError or DatasetError (file and line) if the run's files cannot be worked with."""
    facts, errors = look_at(run)
    if facts is None:
        raise errors[0]
    return facts


def look_at(run: CompiledRun, *, scores: bool = False) -> tuple[RunFacts | None, list[IntellectError]]:
    """What is there, and everything that is wrong: no mistake hides another. None: something is wrong. scores: whether
    to look at what scorers pay, too, which takes seconds."""
    look = _Look(scores)
    if run.spec.pretraining is not None:
        learnt = _text_looked_at(run, run.spec.pretraining, look)
        return (None if look.errors else learnt), look.errors
    with tempfile.TemporaryDirectory(prefix="intellect-run-") as folder:
        assets = Path(folder)
        place_files(run, assets)
        facts = _looked_at(run, assets, look)
        errors = [_with_real_paths(error, run, assets) for error in look.errors]
    return (None if errors else facts), errors


class _Look:
    """Collects what fails."""

    def __init__(self, scores: bool) -> None:
        self.scores = scores
        self.errors: list[IntellectError] = []

    def at(self, function: Callable[..., T], *arguments: Any) -> T | None:
        try:
            return function(*arguments)
        except IntellectError as error:
            self.errors.append(error)
            return None


def _text_looked_at(run: CompiledRun, text: Pretraining, look: _Look) -> RunFacts | None:
    """Streams one by one, where they lie: text is too long to be laid out for a look. None also where a rule of
    [pretraining] is broken."""
    parameters, tokenizer = _model_looked_at(run, None, look)
    if tokenizer is None:
        return None
    naming = TextTokenizer(run.files["model/tokenizer.json"], tokenizer)
    paths = [(part, run.files[part.asset]) for part in text.data if part.asset in run.files]
    streams = [one for part, path in paths if (one := look.at(check_stream, part, text, path, naming))]
    if parameters is not None:
        look.at(_check_fragments, run)
    if look.errors or parameters is None or not all(good for _, good, _ in text.rules()):
        return None
    mixes = (shares(text.weights(annealing=annealing)) for annealing in (False, True))
    parts = (
        TextFacts(
            label=one.name,
            problems=one.rows,
            held_back=one.held_back,
            left_out=0,
            share=share,
            tokens=one.tokens,
            annealing=annealing,
        )
        for one, share, annealing in zip(streams, *mixes, strict=True)
    )
    return RunFacts(parameters, text.sequence, tuple(parts))


def place_files(run: CompiledRun, assets: Path) -> None:
    """Lay the run's files out below `assets` as a member of the run finds them."""
    for name, file in run.files.items():
        _place(file, assets / name)


def _place(file: Path, target: Path) -> None:
    """The file under another name: a data set must really lie among the assets, so no symbolic link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        # A link where the disk allows: weights of gigabytes are looked at, not copied.
        # Resolved, since a hard link to a symbolic link is a symbolic link.
        os.link(file.resolve(), target)
    except OSError:
        shutil.copyfile(file, target)


def _looked_at(run: CompiledRun, assets: Path, look: _Look) -> RunFacts | None:
    """Parts of a mix one by one, so that each is looked at."""
    parameters, tokenizer = _model_looked_at(run, assets / "model", look)
    if tokenizer is None:
        return None
    spec = run.spec.environment
    total = sum(part.weight for part in spec.parts)
    shares: list[tuple[str, Any, float]] = [(part.title, part, part.weight / total) for part in spec.parts]
    if spec.name != MixEnvironment.name:
        shares = [(spec.name, spec, 1.0)]
    looked = [look.at(_trained_on, run.spec, *one, assets, tokenizer, look.scores) for one in shares]
    evaluated = [look.at(_evaluated, run.spec, one, assets, tokenizer) for one in run.spec.evaluation.environments]
    if look.errors or parameters is None:
        return None
    parts = [one for one in looked if one]
    longest = max((tokens for tokens, _ in parts), default=0)
    facts = tuple(fact for _, fact in parts)
    return RunFacts(parameters, longest, facts, tuple(one for one in evaluated if one), positions_of(assets / "model"))


def positions_of(model: Path) -> int:
    """Most tokens that a model has places for; 0 if it does not say."""
    told = read_json(model / "config.json")
    text = told.get("text_config")  # of models that read more than text
    found = told.get("max_position_embeddings") or (
        text.get("max_position_embeddings") if isinstance(text, dict) else 0
    )
    return found if isinstance(found, int) and found > 0 else 0


def _model_looked_at(run: CompiledRun, model: Path | None, look: _Look) -> tuple[int | None, LocalTokenizer | None]:
    """(number of parameters, tokenizer). model: where its files were laid out; None: where they lie."""
    if "model/config.json" not in run.files or "model/tokenizer.json" not in run.files:
        return None, None
    parameters = look.at(_check_model, run)
    tokenizer = look.at(LocalTokenizer, model or run.files["model/tokenizer.json"].parent)
    if tokenizer is not None:
        look.at(_check_vocabulary, run, tokenizer)
    return parameters, tokenizer


def _trained_on(
    run: RunSpec, label: str, settings: Any, share: float, assets: Path, tokenizer: LocalTokenizer, scores: bool
) -> tuple[int, PartFacts]:
    """(tokens of the longest prompt, facts)."""
    with closing(load_environment(settings, assets, tokenizer)) as environment:
        longest = check_prompts(environment, run.rollout.max_prompt_tokens, lambda one: asked(run, one))
        fact = _fact(run, label, settings.name, environment, share, settings.args)
        if scores and isinstance(environment, DatasetEnvironment):
            # What this machine cannot score is told where it is scored. The run may be good nevertheless.
            with suppress(EnvironmentFault, SandboxError):
                fact = msgspec.structs.replace(fact, paid=both_ways.look_both_ways(environment))
        return longest, fact


def _evaluated(run: RunSpec, settings: EvaluationEnvironment, assets: Path, tokenizer: LocalTokenizer) -> PartFacts:
    with closing(load_environment(settings, assets, tokenizer)) as environment:
        # Those that evaluations will ask, all of them: one prompt that is too long would stop the run at its first
        # evaluation.
        for number in range(min(environment.held_back, run.evaluation.problems)):
            problem = asked(run, environment.held_back_problem(number))
            check_prompt(environment, problem, run.rollout.max_prompt_tokens)
        return _fact(run, settings.title, settings.name, environment, 0.0, settings.args)


def asked(run: RunSpec, problem: Problem) -> Problem:
    """The problem with the text of the longest length budget, if there are budgets."""
    targets = run.length_budget.targets
    if not targets:
        return problem
    return replace(problem, prompt=told(run.length_budget, problem.prompt, targets[-1]))


def _fact(
    run: RunSpec, label: str, name: str, environment: Environment, share: float, args: Mapping[str, Any]
) -> PartFacts:
    rows: DatasetRows | None = getattr(environment, "rows", None)
    return PartFacts(
        label=label,
        problems=environment.size,
        held_back=environment.held_back,
        left_out=getattr(environment, "left_out", 0),
        share=share,
        determinism=environment.determinism,
        turns=environment.turns,
        package=next((asset.root for asset in run.assets if asset.path == asset_name(name)), ""),
        shapes=dict(rows.shapes) if rows else {},
        skipped=dict(rows.skipped.kinds) if rows else {},
        repeats=rows.repeats if rows else 0,
        unmarked=_unmarked(rows) if rows and args.get("template") == "chat" else 0,
        said=str(args.get("instruction", "")),
        alike=rows.alike if rows else 0,
    )


def _unmarked(rows: DatasetRows) -> int:
    """Of a chat's prompts: whoever is asked without one goes on with the text, and does as it was taught."""
    marked = (one for listed in (rows.training, rows.held_back) for one in listed if one.task in MARKED_TASKS)
    return sum(not any(mark in one.prompt for mark in MARKS) for one in marked)


def _check_vocabulary(run: CompiledRun, tokenizer: LocalTokenizer) -> None:
    """A tokenizer of another model gives tokens that the model has no weights for."""
    config = run.files["model/config.json"]
    try:
        rows = language_config(read_json(config)).get("vocab_size")
    except ModelError:
        return  # `_check_model` says so
    # Fewer tokens than rows are usual: models round their vocabulary up for the hardware.
    if isinstance(rows, int) and tokenizer.vocabulary > rows:
        raise RunFileError(
            "tokenizer and model do not belong together",
            f"tokenizer.json knows {tokenizer.vocabulary} tokens, {config} says vocab_size = {rows}",
            "export both from the same model",
        )


def _with_real_paths(error: IntellectError, run: CompiledRun, assets: Path) -> IntellectError:
    """The same error with the user's own file names in it."""

    def real(text: str) -> str:
        for name, file in run.files.items():
            text = text.replace(str(assets / name), str(file))
        return text.replace(str(assets / "model"), str(run.files["model/config.json"].parent))

    for part in ("what", "why", "remedy"):
        setattr(error, part, real(getattr(error, part)))
    found = getattr(error, "findings", None)
    if isinstance(found, Mistakes):
        found.first = [_renamed(one, real) for one in found.first]
        found.worst = {kind: _renamed(one, real) for kind, one in found.worst.items()}
    return error


def _renamed(one: Mistake, real: Callable[[str], str]) -> Mistake:
    return Mistake(real(one.place), real(one.what), real(one.remedy), one.size)


def _check_model(run: CompiledRun) -> int:
    """The number of the model's parameters."""
    config = run.files["model/config.json"]
    try:
        hidden = read_json(config)["hidden_size"]
    except (ModelError, KeyError) as error:
        raise RunFileError(
            f"cannot read {config}", f"no hidden_size in it: {error}", "export the model in Hugging Face format"
        ) from error
    # A run that pre-trains proves nothing by activations.
    k = 1 if run.spec.pretraining else run.spec.verification.toploc_k
    if not isinstance(hidden, int) or most_points(hidden) < k:
        raise RunFileError(
            "the activation proofs do not fit the model",
            f"a row has {hidden} values and verification.toploc_k = {k}: only the largest quarter of a row is precise "
            "enough to prove something",
            f"set toploc_k to at most {most_points(hidden) if isinstance(hidden, int) else 1} in [verification]",
        )
    return weight_files(config.parent).numbers


def _check_fragments(run: CompiledRun) -> None:
    """A round without a tensor would exchange nothing. A head that is the embedding's is no tensor of its own; experts
    that a file has one by one the learner joins, and counts again."""
    asked = run.spec.diloco.fragments if run.spec.diloco else 1
    if asked == 1:
        return
    config = run.files["model/config.json"]
    weights = weight_files(config.parent)
    names = set(weights.tensors)
    if read_json(config).get(TIED) and not weights.has_own_head:
        names.discard(HEAD)
    if asked > len(names):
        why = f"the model has {len(names)} tensors, and each round exchanges at least one"
        raise RunFileError(
            f"diloco.fragments = {asked} leaves rounds nothing",
            why,
            f"give at most {len(names)}, a divisor of inner_steps",
        )
