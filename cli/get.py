"""`intellect-node get`: models and data sets of the hub, fetched, compared with its listing, pinned in a run file."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import RUN, USAGE, CommandError
from cli.options import hear
from cli.output import AsJson, clean, console, print_json
from node.units import size_of

if TYPE_CHECKING:
    from node.hub import Had, Name

EXAMPLES = (
    "Examples:  intellect-node get Qwen/Qwen3-0.6B openai/gsm8k#main/train   |   "
    "intellect-node get my-run.toml   |   intellect-node get my-run.toml --write"
)
PLACES = ("model", "adapter", "dataset", "file", "teacher", "data")
"""Settings of a run file that name a source."""


def command(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...|FILE", help="Names on the hub, or a run file that has some.")
    ],
    write: Annotated[
        bool, typer.Option("--write", help="Write the commits into the run file; its comments stay.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch models and data sets by name, and compare each file with the hub's listing.

    A name is OWNER/NAME, hf:OWNER/NAME@COMMIT, or of a data set OWNER/NAME#CONFIG/SPLIT. Tokens, cache and mirrors are
    those of the hub's client: hf auth login, HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE=1.
    """
    file = Path(sources[0])
    if len(sources) == 1 and (file.suffix == ".toml" or file.is_file()):
        had = _of_file(file, write=write)
    elif write:
        raise CommandError(
            "--write into which file?", "no run file was named", "intellect-node get FILE --write", USAGE
        )
    else:
        had = [_fetched(text) for text in sources]
    if as_json:
        print_json({"sources": [_as_dict(one) for one in had]})
        return
    for one in had:
        licence = one.licence or "its card names no licence"
        kept = f"{size_of(one.bytes)}, compared with the hub's listing" + ("" if one.checked else " before")
        console().print(clean(str(one.name), 400), soft_wrap=True, markup=False)
        rows = (("path", one.directory), ("licence", licence), ("size", kept), ("disk left", size_of(one.free)))
        for name, value in rows:
            console().print(f"  {name:<10}{clean(str(value), 400)}", soft_wrap=True, markup=False)


def _of_file(file: Path, *, write: bool) -> "list[Had]":
    from node import hub
    from node.run.file import load_run_file
    from node.run.sources import names_in, pinned

    run = load_run_file(file)
    names = names_in(run, file.parent)
    if not names:
        raise CommandError(f"{file} names nothing on the hub", "its sources are paths", "nothing is to be done", RUN)
    fixed = {str(name): hub.pin(name) for name in names}
    had = [hub.have(name, "whole", hear) for name in fixed.values()]
    if write:
        _write(file, run, pinned(run, file.parent))
    return had


def _write(file: Path, before: Any, after: Any) -> None:
    """Each source's text as it is pinned, in the file's own layout."""
    import msgspec
    import tomlkit

    from node.state.files import write_whole

    changed = dict(_pairs(msgspec.to_builtins(before), msgspec.to_builtins(after)))
    document = tomlkit.parse(file.read_text(encoding="utf-8"))
    _replace(document, changed)
    write_whole(file, tomlkit.dumps(document).encode())
    for old, new in changed.items():
        hear(f"{file}: {old} is now {new}")


def _pairs(before: Any, after: Any) -> list[tuple[str, str]]:
    """(old, new) of every text that differs."""
    if isinstance(before, dict):
        return [pair for key in before for pair in _pairs(before[key], after[key])]
    if isinstance(before, list | tuple):
        return [pair for two in zip(before, after, strict=True) for pair in _pairs(*two)]
    return [(before, after)] if before != after else []


def _replace(table: Any, changed: dict[str, str]) -> None:
    for key, value in table.items():
        if isinstance(value, dict):
            _replace(value, changed)
        elif isinstance(value, list):
            for one in value:
                if isinstance(one, dict):
                    _replace(one, changed)
        elif key in PLACES and str(value) in changed:
            table[key] = changed[str(value)]


def _fetched(text: str) -> "Had":
    """A model, or else a data set. Raises CommandError, HubError."""
    from node import hub

    found = [hub.read_name(text, kind) for kind in _kinds(text)]
    names: Sequence[Name] = [name for name in found if name is not None]
    if not names:
        raise CommandError(f"{text!r} is no name", "it is OWNER/NAME, @COMMIT and #CONFIG/SPLIT", "correct it", USAGE)
    for name in names[:-1]:
        try:
            return hub.have(name, "whole", hear)
        except hub.AbsentError:
            continue
    return hub.have(names[-1], "whole", hear)


def _kinds(text: str) -> "tuple[Any, ...]":
    return ("dataset",) if "#" in text else ("model", "dataset")


def _as_dict(one: "Had") -> dict[str, Any]:
    return {
        "name": str(one.name),
        "commit": one.name.revision,
        "path": str(one.directory),
        "licence": one.licence,
        "bytes": one.bytes,
        "compared": one.checked,
        "disk_left": one.free,
    }
