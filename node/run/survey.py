"""Every mistake of a run file and of what it names, at once: for `run validate`. Blocking."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from node import hub
from node.errors import Mistake, Mistakes
from node.run.file import (
    CompiledRun,
    RunFile,
    check_kind,
    draft,
    had,
    load_run_file,
    model_files,
    remedy_of,
    sealed,
    unknown_keys,
    with_fitting_proofs,
)
from node.run.problems import RunFacts, look_at
from node.run.settings import read_tables
from node.run.sources import OnLine, is_hollow
from protocol.errors import IntellectError
from protocol.run import Asset

T = TypeVar("T")
# msgspec says the place in words only.
_UNKNOWN, _PLACE = re.compile(r"unknown field `([^`]+)`"), re.compile(r"at `\$\.([^`]+)`")
_MISSING = re.compile(r"missing required field `([^`]+)`")
_OF_TEACHER = ("distill.teacher",)
_FOLLOWING = ("environment", "recipe.loss", "recipe.advantage", *_OF_TEACHER)
"""Fields of which something is wrong in the run where what the file names for them cannot be had."""


@dataclass(slots=True)
class RunSurvey:
    """compiled and facts: None where something is wrong. had: what it names on the hub; of weights that are not here
    only headers were looked at, and the run has no root yet."""

    findings: Mistakes
    compiled: CompiledRun | None = None
    facts: RunFacts | None = None
    had: list[hub.Had] = field(default_factory=list)

    def at(self, place: str, function: Callable[..., T], *arguments: Any) -> T | None:
        """What `function` returns; None where it fails, which becomes a finding."""
        try:
            return function(*arguments)
        except IntellectError as error:
            self.findings.take(error, place)
            return None


def survey(
    path: Path, sets: Sequence[str] = (), reach: hub.Reach = "here", on_progress: OnLine = lambda line: None
) -> RunSurvey:
    """Look at a run as its members will. A mistake in one place hides none in another. sets, reach, told: as in
    `compile_run`."""
    found = RunSurvey(Mistakes())
    try:
        run_file = load_run_file(path, sets)
    except IntellectError as error:
        run_file = _readable(path, sets, found, error)
    if run_file is None:
        return found
    here = found.at(str(path), had, run_file, path, reach, on_progress)
    if here is None:
        return found
    run_file, found.had = here
    compiled = _compiled(path, run_file, found)
    facts, errors = look_at(compiled, scores=True)
    for error in errors:
        # A tokenizer that cannot be loaded is met twice.
        if Mistake(str(path), f"{error.what}: {error.why}", error.remedy) not in found.findings.first:
            found.findings.take(error, str(path))
    if not found.findings.total:
        found.compiled, found.facts = compiled, facts
    return found


def _readable(path: Path, sets: Sequence[str], found: RunSurvey, error: IntellectError) -> RunFile | None:
    """What of a run file can be read although something in it cannot; each mistake is a finding."""
    try:
        data = read_tables(path, sets)
    except IntellectError:
        found.findings.take(error, str(path))
        return None
    before = found.findings.total
    for sentence in unknown_keys(data, RunFile):
        found.findings.add(Mistake(str(path), "it has a key that is not known", sentence))
    run_file = _mended(data, path, found)
    if run_file is None:
        return None
    # After a mistake an [environment] may be missing because it was taken out, which is told already.
    if run_file.pretraining is not None or not found.findings.total:
        found.at(str(path), check_kind, run_file, path)
    if found.findings.total == before:  # nothing that stands in it: its size, for example
        found.findings.take(error, str(path))
    if run_file.pretraining is None and "toploc_k" not in data.get("verification", {}):
        run_file = with_fitting_proofs(run_file, path)
    return run_file


def _mended(data: dict[str, Any], path: Path, found: RunSurvey) -> RunFile | None:
    """The run file without the values that are wrong, each of which is a finding; unknown keys are found already."""
    # Values that were taken out: that they are missing afterwards is no second mistake.
    taken = set[str]()
    # Each round of mending finds one wrong value; a file that is wrong everywhere is told this much of it.
    for _ in range(64):
        try:
            return msgspec.convert(data, RunFile)
        except msgspec.ValidationError as wrong:
            text = str(wrong)
        unknown, place = _UNKNOWN.search(text), _PLACE.search(text)
        keys = [*(place[1].split(".") if place else []), *([unknown[1]] if unknown else [])]
        missing = _MISSING.search(text)
        if missing and ".".join((*keys, missing[1])) in taken:
            return None  # its value was wrong, which is told
        taken.add(".".join(keys))
        if not unknown:
            found.findings.add(Mistake(f"{path}, {'.'.join(keys) or 'the file'}", text, remedy_of(text)))
        if not keys or not _removed(data, keys):
            return None
    return None


def _removed(table: Any, keys: list[str]) -> bool:
    """Whether something was there to be taken out."""
    *above, last = keys
    for key in above:
        name, _, number = key.rstrip("]").partition("[")
        table = table.get(name) if isinstance(table, dict) else None
        if number:
            table = table[int(number)] if number.isdecimal() and isinstance(table, list) else None
    # Nothing taken out means that the next round would say the same again, for ever.
    return isinstance(table, dict) and table.pop(last.partition("[")[0], None) is not None


def _compiled(path: Path, run_file: RunFile, found: RunSurvey) -> CompiledRun:
    """The run; where parts of it cannot be made, what there is of it, without its bytes."""
    before, has_data = found.findings.total, run_file.pretraining is None or bool(run_file.pretraining.data)
    files: dict[str, Path] = found.at(str(path), model_files, path.parent / Path(run_file.model).expanduser()) or {}
    made = found.findings.total
    spec = draft(path, run_file, files, partial(found.at, str(path)))
    lacking = _FOLLOWING if found.findings.total > made else _OF_TEACHER if not files else ()
    # By their paths alone: what can be wrong with a run does not follow from the bytes of its files.
    named = tuple(Asset(path=name, root="0" * 64, size=0) for name in files)
    for fault in msgspec.structs.replace(spec, assets=named).faults():
        # What was not had is told already, and so is a table of data that has a mistake of its own.
        told = any(field in fault.what for field in lacking)
        if not told and not (before and not has_data and "pretraining.data" in fault.what):
            found.findings.take(fault, str(path))
    unsealed = CompiledRun(spec, b"", b"", files)
    # Holes are no weights: a root of them would be nobody's run.
    if found.findings.total or is_hollow(found.had):
        return unsealed
    return found.at(str(path), partial(sealed, desk=True), spec, path, files) or unsealed
