"""Every mistake of a run file and of what it names, at once: for `run validate`. Blocking."""

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from node.errors import Finding, Findings
from node.run.environments import EnvironmentTable, EvaluationTable, compile_environment, compile_evaluation
from node.run.file import (
    TEXT,
    CompiledRun,
    RunFile,
    check_kind,
    compile_run,
    load_run_file,
    model_files,
    remedy_of,
    unknown_keys,
    with_fitting_proofs,
)
from node.run.problems import RunFacts, look_at
from node.run.text import TextTokenizer, compile_part
from protocol.errors import IntellectError
from protocol.pretraining import Diloco, Pretraining
from protocol.run import EnvironmentSpec, EvaluationSpec, RunSpec

T = TypeVar("T")
# Each round of mending finds one wrong value; a file that is wrong everywhere is told this much of it.
MOST_VALUES = 64
# msgspec says the place in words only.
_UNKNOWN, _PLACE = re.compile(r"unknown field `([^`]+)`"), re.compile(r"at `\$\.([^`]+)`")
_MISSING = re.compile(r"missing required field `([^`]+)`")


@dataclass(slots=True)
class Survey:
    """compiled and facts: None where something is wrong."""

    findings: Findings
    compiled: CompiledRun | None = None
    facts: RunFacts | None = None

    def at(self, place: str, function: Callable[..., T], *arguments: Any) -> T | None:
        """What `function` returns; None where it fails, which becomes a finding."""
        try:
            return function(*arguments)
        except IntellectError as error:
            self.findings.take(error, place)
            return None


def survey(path: Path) -> Survey:
    """Look at a run as its members will. A mistake in one place hides none in another."""
    found = Survey(Findings())
    try:
        run_file = load_run_file(path)
    except IntellectError as error:
        run_file = _readable(path, found, error)
    if run_file is None:
        return found
    compiled = _compiled(path, run_file, found)
    facts, errors = look_at(compiled)
    for error in errors:
        found.findings.take(error, str(path))
    if not found.findings.total:
        found.compiled, found.facts = compiled, facts
    return found


def _readable(path: Path, found: Survey, error: IntellectError) -> RunFile | None:
    """What of a run file can be read although something in it cannot; each mistake is a finding."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        found.findings.take(error, str(path))
        return None
    before = found.findings.total
    for sentence in unknown_keys(data, RunFile):
        found.findings.add(Finding(str(path), "it has a key that is not known", sentence))
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


def _mended(data: dict[str, Any], path: Path, found: Survey) -> RunFile | None:
    """The run file without the values that are wrong, each of which is a finding; unknown keys are found already."""
    # Values that were taken out: that they are missing afterwards is no second mistake.
    taken = set[str]()
    for _ in range(MOST_VALUES):
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
            found.findings.add(Finding(f"{path}, {'.'.join(keys) or 'the file'}", text, remedy_of(text)))
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


def _compiled(path: Path, run_file: RunFile, found: Survey) -> CompiledRun:
    """The run; where parts of it cannot be made, what there is of it, without its bytes."""
    if not found.findings.total:
        try:
            return compile_run(path, run_file, desk=True)
        except IntellectError:
            pass  # found again below, with everything else
    files: dict[str, Path] = found.at(str(path), model_files, path.parent / run_file.model) or {}
    if run_file.pretraining is not None:
        spec = _of_text(path, run_file, run_file.pretraining, files, found)
    else:
        spec = _of_problems(path, run_file, files, found)
    # It did not compile, and nothing above says why: then its own error is told.
    if not found.findings.total:
        found.at(str(path), lambda: compile_run(path, run_file, desk=True))
    return CompiledRun(spec, b"", b"", files)


def _of_text(path: Path, run_file: RunFile, text: Pretraining, files: dict[str, Path], found: Survey) -> RunSpec:
    """Every data set by itself; those that can be used are among `files`."""
    tokenizer = _tokenizer(files)
    for part in text.data if tokenizer else ():
        found.at(str(path), compile_part, part, path, files, tokenizer)
    unread = not text.data and found.findings.total  # the tables had a mistake that is told already
    sections: dict[str, Any] = run_file.sections() | {"diloco": run_file.diloco or Diloco()}
    spec = RunSpec(name=run_file.name, environment=EnvironmentSpec(name=TEXT), assets=(), **sections)
    for fault in spec.faults():
        if not (unread and "pretraining.data" in fault.what):
            found.findings.take(fault, str(path))
    return spec


def _tokenizer(files: dict[str, Path]) -> TextTokenizer | None:
    """One that cannot be loaded is found with the model's other mistakes (node.run.problems)."""
    try:
        return TextTokenizer(files["model/tokenizer.json"])
    except (KeyError, IntellectError):
        return None


def _of_problems(path: Path, run_file: RunFile, files: dict[str, Path], found: Survey) -> RunSpec:
    tables = [run_file.environment] if run_file.environment else [*run_file.environments]
    environments = [found.at(str(path), _one, run_file, table, path, files) for table in tables]
    evaluated = [
        found.at(str(path), _one_evaluated, run_file, table, path, files) for table in run_file.evaluation.environments
    ]
    parts = tuple(part for one in environments if one for part in one.parts)
    whole = next((one for one in environments if one and not one.parts), None) or EnvironmentSpec(
        name="mix", parts=parts
    )
    evaluation = EvaluationSpec(
        problems=run_file.evaluation.problems,
        every=run_file.evaluation.every,
        environments=tuple(part for one in evaluated if one for part in one.environments),
    )
    sections: dict[str, Any] = run_file.sections() | {"evaluation": evaluation}
    spec = RunSpec(name=run_file.name, environment=whole, assets=(), **sections)
    complete = None not in environments and None not in evaluated
    for fault in spec.faults():
        # An environment that could not be read is told already; that it is missing follows from it.
        if complete or "environment" not in fault.what:
            found.findings.take(fault, str(path))
    return spec


def _one(run_file: RunFile, table: EnvironmentTable, path: Path, files: dict[str, Path]) -> EnvironmentSpec:
    alone = {"environment": table} if run_file.environment else {"environments": (table,)}
    return compile_environment(msgspec.structs.replace(run_file, **alone), path, files)


def _one_evaluated(run_file: RunFile, table: Any, path: Path, files: dict[str, Path]) -> EvaluationSpec:
    alone = EvaluationTable(environments=(table,))
    return compile_evaluation(msgspec.structs.replace(run_file, evaluation=alone), path, files)
