"""Where a run's model and data come from: paths beside its file, or names on the hub, which become paths here."""

import glob
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec

from node import hub
from node.errors import RunFileError
from node.units import size_of
from protocol.run import MAX_SOURCES

if TYPE_CHECKING:
    from node.run.file import RunFile

Change = Callable[[str, hub.Kind], str]
"""(a source as written, what it is of) -> what stands there instead."""
OnLine = Callable[[str], object]
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")


def with_sources(run: "RunFile", change: Change) -> "RunFile":
    """The run with each of its sources changed. A model that [warm_start] makes is a path, whatever it is called."""

    def data(one: Any) -> Any:
        return msgspec.structs.replace(one, dataset=change(one.dataset, "dataset")) if one.dataset else one

    replace = msgspec.structs.replace
    text, warm, distill = run.pretraining, run.warm_start, run.distill
    if text is not None:
        text = replace(text, data=tuple(replace(part, file=change(part.file, "dataset")) for part in text.data))
    evaluated = tuple(data(one) for one in run.evaluation.environments)
    return replace(
        run,
        model=run.model if warm else change(run.model, "model"),
        adapter=change(run.adapter, "model") if run.adapter is not None else None,
        dataset=change(run.dataset, "dataset") if run.dataset is not None else None,
        environments=tuple(data(one) for one in run.environments),
        evaluation=replace(run.evaluation, environments=evaluated),
        pretraining=text,
        warm_start=warm and replace(warm, model=change(warm.model, "model"), data=change(warm.data, "dataset")),
        distill=distill and replace(distill, teacher=change(distill.teacher, "model")),
    )


def names_in(run: "RunFile", base: Path) -> list[hub.Name]:
    """Its sources that are names."""
    found: list[hub.Name] = []

    def note(text: str, kind: hub.Kind) -> str:
        source = hub.name_or_path(text, base, kind)
        if isinstance(source, hub.Name) and source not in found:
            found.append(source)
        return text

    with_sources(run, note)
    return found


def whole(text: str, kind: hub.Kind, base: Path) -> str:
    """A source that means the same wherever it is written: a path from the root on, or the name."""
    source = hub.name_or_path(text, base, kind)
    return str(source) if isinstance(source, hub.Name) else str(base / Path(text).expanduser())


def pinned(run: "RunFile", base: Path) -> "RunFile":
    """The run with a commit at every name. Asks the hub for those that have none. Raises HubError."""

    def pin(text: str, kind: hub.Kind) -> str:
        source = hub.name_or_path(text, base, kind)
        return str(hub.pin(source)) if isinstance(source, hub.Name) else text

    return with_sources(run, pin)


def at_hand(
    run: "RunFile", base: Path, reach: hub.Reach, on_progress: OnLine = lambda line: None
) -> "tuple[RunFile, list[hub.Had]]":
    """(the run with a path at every name, what was had). Raises HubError."""
    had: dict[hub.Name, hub.Had] = {}

    def place(text: str, kind: hub.Kind) -> str:
        source = hub.name_or_path(text, base, kind)
        if not isinstance(source, hub.Name):
            return text
        if source not in had:
            had[source] = hub.have(source, reach, on_progress)
        # Everything in it: which files are the part is decided already.
        return str(had[source].directory / "*" if kind == "dataset" else had[source].directory)

    changed = with_sources(run, place)
    warm, text = changed.warm_start, changed.pretraining
    if warm is not None:
        changed = msgspec.structs.replace(
            changed, warm_start=msgspec.structs.replace(warm, data=warm.data.removesuffix("/*"))
        )
    if text is not None and had:
        parts = tuple(msgspec.structs.replace(part, file=_only_file(part.file)) for part in text.data)
        changed = msgspec.structs.replace(changed, pretraining=msgspec.structs.replace(text, data=parts))
    return changed, list(had.values())


def _only_file(pattern: str) -> str:
    if not pattern.endswith("/*"):
        return pattern
    found = sorted(glob.glob(pattern))
    if len(found) != 1:
        why = f"{pattern} are {len(found)} files, and a data set of [pretraining] is one"
        raise RunFileError("the text is in several files", why, "name each file as a data set of its own, by its path")
    return found[0]


def data_files(text: str, base: Path, setting: str) -> dict[str, Path]:
    """Asset name below data/ -> file: of one file, of a directory's split, or of a pattern. DIR#SPLIT names a split.
    Raises RunFileError."""
    path, split = base / Path(text).expanduser(), ""
    if path.is_file():
        return {path.name: path}
    place, _, tail = text.rpartition("#")
    # Only behind a directory: a path may have the sign in one of its own names.
    if place and tail[:1] != "/" and not path.is_dir() and (named := base / Path(place).expanduser()).is_dir():
        path, split = named, tail
    if path.is_dir():
        folder, top, found = path, path, _of_split(path, split, setting)
    else:
        # Below `base`, whose own name is no pattern whatever brackets it has.
        pattern = Path(text).expanduser()
        matched = glob.glob(str(pattern), root_dir=base, recursive=True)
        plain = takewhile(lambda part: not set(part) & {*"*?["}, pattern.parts[:-1])
        folder, top = path.parent, base.joinpath(*plain)
        found = sorted(base / one for one in matched if (base / one).is_file() and not Path(one).name.startswith("."))
    if not found:
        raise RunFileError(
            f"no data set at {path}",
            f"`{setting}` names it",
            "correct the path, or write hf:OWNER/NAME for a data set of the hub",
        )
    stem = _UNSAFE.sub("-", folder.resolve().name).lstrip(".-") or "data"
    flat = len({one.name for one in found}) < len(found)
    files: dict[str, Path] = {}
    for one in found:
        name = _UNSAFE.sub("-", one.relative_to(top).as_posix()) if flat else one.name
        if (other := files.setdefault(name, one)) != one:
            why = f"`{setting}` names both, and a run would call both {name}"
            raise RunFileError(f"{other} and {one} cannot be told apart", why, "rename one of them, or its directory")
    return {f"{stem}/{name}": one for name, one in sorted(files.items())}


def _of_split(folder: Path, split: str, setting: str) -> list[Path]:
    """The files of a directory that are for training, or of the split that is named."""
    names = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and PurePosixPath(path.name).suffix in hub.DATA_SUFFIXES and not path.name.startswith(".")
    )
    parts = hub.usual_parts(names)
    chosen = hub.choose(split, parts)
    if chosen is None:
        shown = ", ".join(parts) or f"no files of {', '.join(hub.DATA_SUFFIXES)}"
        raise RunFileError(
            f"{folder} has no split {split}" if split else f"which data of {folder}?",
            f"`{setting}` names it, and it holds {shown}",
            f"name a split, {folder.name}#{next(iter(parts), 'train').rpartition('/')[2]}, or the files by a pattern",
        )
    return [folder / name for name in parts[chosen]]


def origins(files: Mapping[str, Path]) -> dict[str, str]:
    """Directory of assets -> where members may fetch its files; of those that came from the hub."""
    folders: dict[str, dict[str, Path]] = {}
    for asset, path in files.items():
        folders.setdefault(asset.rpartition("/")[0], {})[asset.rpartition("/")[2]] = path
    found: dict[str, str] = {}
    for folder, of in folders.items():
        places = {path.parent for path in of.values()}
        if folder and len(places) == 1 and all(name == path.name for name, path in of.items()):
            if where := hub.origin(places.pop(), of):
                found[folder] = where
    return dict(list(found.items())[:MAX_SOURCES])


def origin_of(asset: str, sources: Mapping[str, str]) -> tuple[str, str] | None:
    """(origin, file) of an asset that a run says where to fetch."""
    folder, _, file = asset.rpartition("/")
    return (sources[folder], file) if folder in sources else None


def about(had: Iterable[hub.Had]) -> list[str]:
    """Notes on what is not here whole."""
    return [
        f"{size_of(one.missing)} of weights of {one.name.repository} are not here: `get FILE` fetches them"
        for one in had
        if one.missing
    ]


def is_hollow(had: Iterable[hub.Had]) -> bool:
    return any(one.missing for one in had)
