"""A run file's text as tables: with NAME=VALUE words of the command line in it, or recognised as another program's."""

import json
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from node.errors import RunFileError
from protocol.recipe import Objective, Recipe

# People write it by hand; a data set that was named by mistake is refused before it is parsed.
MAX_RUN_FILE = 256 * 1024
VERSION = 1
"""Of run files: what stands in `version`, if anything does."""
_STEP = re.compile(r"([A-Za-z0-9_-]+)((?:\[\d+\])*)")
_YAML = re.compile(r"^(?:- )?[A-Za-z_][\w.]*:(?:\s|$)", re.MULTILINE)


def read_tables(path: Path, sets: Sequence[str] = ()) -> dict[str, Any]:
    """The file's tables, with `sets` in them. Raises RunFileError."""
    try:
        raw = path.read_bytes()
        if len(raw) > MAX_RUN_FILE:
            raise ValueError(f"{len(raw)} bytes is too long for a run file")
        text = raw.decode()
    except OSError as error:
        why = error.strerror or str(error)
        raise RunFileError(f"cannot read the run file {path}", why, "check the path") from error
    except ValueError as error:
        raise RunFileError(f"cannot read the run file {path}", str(error), "make it TOML in UTF-8") from error
    try:
        data = tomllib.loads(text)
    # tomllib recurses, so brackets without end get here as RecursionError.
    except (ValueError, RecursionError) as error:
        refuse_foreign(path, _flat_yaml(text) if _YAML.search(text) else {})
        raise RunFileError(f"cannot read the run file {path}", str(error), "make it TOML in UTF-8") from error
    refuse_foreign(path, data)
    refuse_version(path, data.pop("version", VERSION))
    return with_words(data, sets)


def refuse_version(path: Path, version: Any) -> None:
    """Before the keys, which another version may name otherwise. Raises RunFileError."""
    if version != VERSION or isinstance(version, bool):
        why = f"it says version {str(version)[:40]}, and this program reads version {VERSION}"
        remedy = "use the program that it was written for, or write it anew: intellect-node run new"
        raise RunFileError(f"the run file {path} is of another version", why, remedy)


def with_words(data: dict[str, Any], sets: Iterable[str]) -> dict[str, Any]:
    """Tables with recipe.steps=20 and environments[0].weight=2 in them. Raises RunFileError for a word that is none;
    whether there is such a setting the file's own checks say."""
    # A preset first: it drops what stands there, which another word may set again.
    for word in sorted(sets, key=lambda word: not word.startswith("recipe.name=")):
        name, equals, text = word.partition("=")
        steps = [_STEP.fullmatch(step.strip()) for step in name.split(".")]
        if not equals or not all(steps):
            why = "it is not NAME=VALUE with a NAME like recipe.steps or environments[0].weight"
            raise RunFileError(f"--set {word[:200]}", why, "for example --set recipe.learning_rate=1e-5")
        keys: list[str | int] = []
        for step in steps:
            assert step is not None  # all of them, just looked
            keys += [step[1], *(int(number) for number in re.findall(r"\d+", step[2]))]
        value = value_of(text)
        if keys == ["recipe", "name"] and isinstance(data.get("recipe"), dict):
            _drop_objective(data["recipe"], value)
        _put(data, keys, value, word)
    return data


def _drop_objective(recipe: dict[str, Any], name: Any) -> None:
    """Another preset brings its own loss: what the file sets for the old one is dropped."""
    if recipe.get("name", Recipe().name) != name:
        for field in Objective.__struct_fields__:
            if field in Recipe.__struct_fields__:
                recipe.pop(field, None)


def value_of(text: str) -> Any:
    """A value as TOML has it; what is none is meant as text: nobody types quotes through a shell gladly."""
    try:
        return tomllib.loads(f"value = {text.strip()}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text.strip()


def _put(data: Any, keys: Sequence[str | int], value: Any, word: str) -> None:
    *above, last = keys
    for key, below in zip(above, keys[1:], strict=True):
        inner = _at(data, key, word)
        if inner is None:
            if isinstance(below, int):
                raise _no_place(word, f"there is no list {key}")
            data[key] = {}
            inner = data[key]  # of a document with comments it is another one than was put there
        data = inner
    _at(data, last, word)
    data[last] = value


def _at(table: Any, key: str | int, word: str) -> Any:
    """What stands there, None for nothing yet. Raises RunFileError where nothing can."""
    if isinstance(key, int):
        if not isinstance(table, list) or key >= len(table):
            raise _no_place(word, f"there is no number {key} in the list")
        return table[key]
    if not isinstance(table, dict):
        raise _no_place(word, f"{key} would stand in {json.dumps(table, default=str)[:40]}, which is no table")
    return table.get(key)


def _no_place(word: str, why: str) -> RunFileError:
    return RunFileError(f"--set {word[:200]} has no place", why, "intellect-node run show FILE lists the settings")


# --- other programs' configurations --------------------------------------------------------------
_MARKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("verl", ("actor_rollout_ref", "data.train_files", "algorithm.adv_estimator")),
    ("prime-rl", ("orchestrator", "trainer.model", "inference.model", "orchestrator.env", "max_async_level")),
    ("TRL", ("model_name_or_path", "dataset_name", "num_generations", "per_device_train_batch_size")),
)
"""Program -> settings of its configurations that no run file has."""
_SAME = {
    "recipe.learning_rate": ("learning_rate", "optim.lr", "actor_rollout_ref.actor.optim.lr", "trainer.optim.lr"),
    "recipe.steps": ("max_steps", "trainer.max_steps", "trainer.total_training_steps"),
    "recipe.seed": ("seed",),
    "rollout.group_size": (
        "num_generations", "orchestrator.rollouts_per_example", "rollouts_per_example", "actor_rollout_ref.rollout.n",
    ),
    "rollout.max_prompt_tokens": ("max_prompt_length", "data.max_prompt_length"),
    "rollout.max_output_tokens": (
        "max_completion_length", "orchestrator.sampling.max_tokens", "sampling.max_tokens", "data.max_response_length",
    ),
    "rollout.temperature": ("temperature", "orchestrator.sampling.temperature", "sampling.temperature"),
    "recipe.lora.rank": ("lora_r", "trainer.model.lora.rank", "model.lora.rank"),
}  # fmt: skip
"""Our setting -> what others call it."""
_MODEL = ("model_name_or_path", "model.name", "trainer.model.name", "actor_rollout_ref.model.path", "model")
_DATA = ("dataset_name", "data.train_files", "dataset")


def refuse_foreign(path: Path, data: dict[str, Any]) -> None:
    """Raise RunFileError where the tables are another program's configuration: it says what to type instead."""
    flat = dict(_flat(data))
    whole = {*flat, *(name.rpartition(".")[0] for name in flat)}
    whole |= {name.partition(".")[0] for name in flat}
    program = next((name for name, marks in _MARKS if whole.intersection(marks)), None)
    if program is None or "environment" in data or "environments" in data:
        return
    first = {ours: next((flat[name] for name in theirs if name in flat), None) for ours, theirs in _SAME.items()}
    words = " ".join(f"--set {name}={value}" for name, value in first.items() if isinstance(value, int | float | str))
    model = next((flat[name] for name in _MODEL if isinstance(flat.get(name), str)), "MODEL")
    data_set = next((flat[name] for name in _DATA if isinstance(flat.get(name), str)), "DATASET")
    raise RunFileError(
        f"{path} is a configuration of {program}",
        "a run file of this program has other settings",
        f"intellect-node train {model} {data_set} {words}".strip(),
    )


def _flat(table: dict[str, Any], path: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in table.items():
        place = f"{path}.{name}" if path else str(name)
        if isinstance(value, dict):
            yield from _flat(value, place)
        else:
            yield place, value


def _flat_yaml(text: str) -> dict[str, Any]:
    """Enough of YAML to know whose it is: mappings in mappings of one line each, nothing else."""
    found: dict[str, Any] = {}
    above: list[tuple[int, dict[str, Any]]] = [(-1, found)]
    for line in text.splitlines():
        taken = re.match(r"( *)([A-Za-z_][\w.]*):(?:\s+(.*))?$", line)
        if taken is None:
            continue
        depth, value = len(taken[1]), (taken[3] or "").partition(" #")[0].strip().strip("'\"")
        while above[-1][0] >= depth:
            above.pop()
        if value:
            above[-1][1][taken[2]] = value_of(value)
        else:
            inner = above[-1][1][taken[2]] = {}
            above.append((depth, inner))
    return found
