"""A last look at a run before it is opened: what every member would stumble over, found at its owner's desk.

Loads the model's description and the problems exactly as an engine does. Blocking: call from a thread.
"""

import json
import math
import os
import shutil
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
from safetensors import SafetensorError, safe_open

from node.environments.base import Determinism, Environment, Problem
from node.environments.package.source import asset_name
from node.environments.registry import check_prompt, check_prompts, load_environment
from node.errors import RunFileError
from node.inference.tokenizer import LocalTokenizer
from node.run.file import CompiledRun
from protocol.budgets import told
from protocol.run import RunSpec
from protocol.sections import EvaluationEnvironment
from protocol.toploc import most_points


class PartFacts(msgspec.Struct, frozen=True):
    """One environment. problems, held_back: how many; left_out: rows that filters kept out; share: of the draws;
    determinism: what verdicts on it depend on; turns: most answers of a rollout; package: its root, if it is one."""

    label: str
    problems: int
    held_back: int
    left_out: int
    share: float
    determinism: Determinism = "exact"
    turns: int = 1
    package: str = ""


class RunFacts(msgspec.Struct, frozen=True):
    """What looking at a run's files shows. parameters: of the model; longest_prompt: tokens, of those looked at;
    evaluated: evaluation environments, of which nothing is drawn."""

    parameters: int
    longest_prompt: int
    parts: tuple[PartFacts, ...]
    evaluated: tuple[PartFacts, ...] = ()


def check_run(run: CompiledRun) -> RunFacts:
    """Raise RunFileError, ModelError or DatasetError (file and line) if the run's files cannot be worked with."""
    parameters = _check_model(run)
    with tempfile.TemporaryDirectory(prefix="intellect-run-") as folder:
        assets = Path(folder)
        place_files(run, assets)
        try:
            facts = _check_problems(run, assets, parameters)
        except Exception as error:
            raise _with_real_paths(error, run, assets) from error
    return facts


def place_files(run: CompiledRun, assets: Path) -> None:
    """Lay the run's files out below `assets` as a member of the run finds them."""
    for name, file in run.files.items():
        _place(file, assets / name)


def _place(file: Path, target: Path) -> None:
    """The file under another name: a data set must really lie among the assets, so no symbolic link."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(file.resolve(), target)
    except OSError:
        shutil.copyfile(file, target)


def _check_problems(run: CompiledRun, assets: Path, parameters: int) -> RunFacts:
    """parameters: of the model."""
    tokenizer = LocalTokenizer(assets / "model")
    _check_vocabulary(run, tokenizer)
    with closing(load_environment(run.spec.environment, assets, tokenizer)) as environment:
        longest = _longest_prompt(run.spec, environment)
        parts = tuple(_facts(run.spec, environment))
    evaluated = tuple(_evaluated(run.spec, one, assets, tokenizer) for one in run.spec.evaluation.environments)
    return RunFacts(parameters, longest, parts, evaluated)


def _longest_prompt(run: RunSpec, environment: Environment) -> int:
    return check_prompts(environment, run.rollout.max_prompt_tokens, lambda one: _asked(run, one))


def _evaluated(run: RunSpec, settings: EvaluationEnvironment, assets: Path, tokenizer: LocalTokenizer) -> PartFacts:
    with closing(load_environment(settings, assets, tokenizer)) as environment:
        for number in range(min(environment.held_back, run.evaluation.problems)):
            problem = _asked(run, environment.held_back_problem(number))
            check_prompt(environment, problem, run.rollout.max_prompt_tokens)
        return _fact(run, settings.title, settings.name, environment, 0.0)


def _asked(run: RunSpec, problem: Problem) -> Problem:
    """The problem with the text of the longest length budget, if there are budgets."""
    targets = run.length_budget.targets
    if not targets:
        return problem
    return replace(problem, prompt=told(run.length_budget, problem.prompt, targets[-1]))


def _facts(run: RunSpec, environment: Environment) -> list[PartFacts]:
    parts: dict[str, Environment] = getattr(environment, "parts", {environment.name: environment})
    named = {part.title: part for part in run.environment.parts}
    total = sum(part.weight for part in named.values())
    return [
        _fact(run, label, named[label].name, one, named[label].weight / total)
        if named
        else _fact(run, label, run.environment.name, one, 1.0)
        for label, one in parts.items()
    ]


def _fact(run: RunSpec, label: str, name: str, environment: Environment, share: float) -> PartFacts:
    return PartFacts(
        label=label,
        problems=environment.size,
        held_back=environment.held_back,
        left_out=getattr(environment, "left_out", 0),
        share=share,
        determinism=environment.determinism,
        turns=environment.turns,
        package=next((asset.root for asset in run.assets if asset.path == asset_name(name)), ""),
    )


def _check_vocabulary(run: CompiledRun, tokenizer: LocalTokenizer) -> None:
    """A tokenizer of another model gives tokens that the model has no weights for."""
    config = run.files["model/config.json"]
    rows = json.loads(config.read_bytes()).get("vocab_size")
    if isinstance(rows, int) and tokenizer.vocabulary > rows:
        raise RunFileError(
            "tokenizer and model do not belong together",
            f"tokenizer.json knows {tokenizer.vocabulary} tokens, {config} says vocab_size = {rows}",
            "export both from the same model",
        )


def _with_real_paths(error: Exception, run: CompiledRun, assets: Path) -> Exception:
    """The same error with the user's own file names in it."""
    for part in ("what", "why", "remedy"):
        text = getattr(error, part, None)
        if isinstance(text, str):
            for name, file in run.files.items():
                text = text.replace(str(assets / name), str(file))
            text = text.replace(str(assets / "model"), str(run.files["model/config.json"].parent))
            setattr(error, part, text)
    return error


def _check_model(run: CompiledRun) -> int:
    """The number of the model's parameters."""
    config = run.files["model/config.json"]
    try:
        hidden = json.loads(config.read_bytes())["hidden_size"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunFileError(
            f"cannot read {config}", f"no hidden_size in it: {error}", "export the model in Hugging Face format"
        ) from error
    k = run.spec.verification.toploc_k
    if not isinstance(hidden, int) or most_points(hidden) < k:
        raise RunFileError(
            "the activation proofs do not fit the model",
            f"a row has {hidden} values and verification.toploc_k = {k}: only the largest quarter of a row is precise "
            "enough to prove something",
            f"set toploc_k to at most {most_points(hidden) if isinstance(hidden, int) else 1} in [verification]",
        )
    _check_shards(run)
    return sum(_check_weights(file) for name, file in run.files.items() if name.endswith(".safetensors"))


def _check_shards(run: CompiledRun) -> None:
    """Every file that the model's index names is there; a model in one file has no index."""
    index = run.files.get("model/model.safetensors.index.json")
    if index is None:
        return
    try:
        shards = {str(shard) for shard in json.loads(index.read_bytes())["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunFileError(
            f"cannot read {index}", f"no weight_map in it: {error}", "export the model in Hugging Face format"
        ) from error
    missing = sorted(shard for shard in shards if f"model/{shard}" not in run.files)
    if missing:
        raise RunFileError(
            f"the model is not complete: {missing[0]} is not there",
            f"{index} names {len(shards)} files with weights, {len(missing)} of them missing",
            f"copy the missing files into {index.parent}, or export the model again",
        )


def _check_weights(file: Path) -> int:
    """How many numbers the file's tensors hold."""
    try:
        with safe_open(file, framework="np") as weights:
            shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118 - not a dict
    except (SafetensorError, OSError) as error:
        raise RunFileError(f"cannot read the weights {file}", str(error), "restore or export the file again") from error
    if not shapes:
        raise RunFileError(f"cannot use the weights {file}", "there are no tensors in it", "export the model again")
    return sum(math.prod(shape) for shape in shapes)
