"""A run file's contents as TOML that reads back as the same."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from node.run.file import RunFile


_BARE = re.compile(r"[A-Za-z0-9_-]+")


def render_run(run: "RunFile") -> str:
    """Every setting, defaults included; what is None is left out."""
    return "\n".join(_table(msgspec.to_builtins(run), "")).lstrip("\n") + "\n"


def with_real_paths(run: "RunFile", base: Path) -> "RunFile":
    """The same run with paths that do not depend on where its file lies. base: the file's directory."""
    from node.run import packages
    from node.run.own_code import placed

    def environment(one: Any) -> Any:
        dataset = getattr(one, "dataset", None)
        moved = {"dataset": str(base / dataset)} if dataset else {}
        package = packages.placed(one.package, base)
        return msgspec.structs.replace(one, package=package, reward=placed(one.reward, base), **moved)

    def environments(several: Any) -> Any:
        return tuple(environment(one) for one in several)

    text = run.pretraining
    if text is not None:
        data = tuple(msgspec.structs.replace(part, file=str(base / part.file)) for part in text.data)
        text = msgspec.structs.replace(text, data=data)
    recipe, evaluation = run.recipe, run.evaluation
    own = {name: placed(getattr(recipe, name), base) for name in ("loss", "advantage") if getattr(recipe, name)}
    return msgspec.structs.replace(
        run,
        model=str(base / run.model),
        dataset=str(base / run.dataset) if run.dataset is not None else None,
        environment=environment(run.environment) if run.environment else None,
        environments=environments(run.environments),
        pretraining=text,
        recipe=msgspec.structs.replace(recipe, **own),
        evaluation=msgspec.structs.replace(evaluation, environments=environments(evaluation.environments)),
    )


def settings_of(run: "RunFile") -> dict[str, Any]:
    """Path of each setting ("recipe.steps") -> its value, defaults included; lists and `args` are one value."""
    return dict(leaves(msgspec.to_builtins(run)))


def leaves(table: dict[str, Any], path: str = "") -> list[tuple[str, Any]]:
    """("recipe.steps", 150) ..., in order, of nested tables; lists and `args` are one value."""
    found: list[tuple[str, Any]] = []
    for name, value in table.items():
        place = f"{path}.{name}" if path else name
        if isinstance(value, dict) and name != "args":
            found += leaves(value, place)
        else:
            found.append((place, value))
    return found


def _table(table: dict[str, Any], path: str) -> list[str]:
    """Plain values first, then tables, as TOML wants it. `args` of an environment stays on one line."""
    lines: list[str] = []
    later: list[tuple[str, Any]] = []
    for name, value in table.items():
        if isinstance(value, dict) and name != "args" or _is_tables(value):
            later.append((name, value))
        elif value is not None:
            lines.append(f"{_key(name)} = {toml_value(value)}")
    for name, value in later:
        place = f"{path}.{_key(name)}" if path else _key(name)
        for one in [value] if isinstance(value, dict) else value:
            head = f"[{place}]" if isinstance(value, dict) else f"[[{place}]]"
            lines += ["", head, *_table(one, place)]
    return lines


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], dict)


def toml_value(value: Any) -> str:
    """Strings, numbers, booleans and lists of JSON are TOML's too; a table goes on one line."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {toml_value(one)}" for name, one in value.items()) + " }"
    return json.dumps(value)
