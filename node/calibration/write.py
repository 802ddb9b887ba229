"""Write calibrated cuts and tables into a run file, and leave everything else in it as its owner wrote it."""

from pathlib import Path
from typing import Any

import msgspec
import tomlkit
from tomlkit.items import Table

from node.errors import RunFileError
from node.state.files import write_whole
from protocol.cuts import Cuts
from protocol.run import VerificationSpec

_NOTE = "Measured by `intellect-node calibrate`: counts of proofs and tokens per bin (protocol/decision.py)."


def write_cuts(source: Path, target: Path, verification: VerificationSpec) -> None:
    """`target` becomes `source` with the cuts and the decision tables of `verification`. Raises RunFileError."""
    try:
        document = tomlkit.parse(source.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFileError(f"cannot read the run file {source}", str(error), "correct it: it must be TOML") from error
    section = document.get("verification")
    if not isinstance(section, Table):
        section = tomlkit.table()
        document["verification"] = section
    for name in Cuts.__struct_fields__:
        section[name] = getattr(verification, name)
    section["engines"] = list(verification.engines)
    section["pairs"] = _pairs(verification)
    section["decision"] = _decision(verification)
    try:
        write_whole(target, tomlkit.dumps(document).encode())
    except OSError as error:
        raise RunFileError(f"cannot write {target}", error.strerror or str(error), "choose another --out") from error


def _pairs(verification: VerificationSpec) -> Table:
    table = tomlkit.table(is_super_table=True)
    for name, cuts in verification.pairs.items():
        table[name] = msgspec.to_builtins(cuts)
    return table


def _decision(verification: VerificationSpec) -> Table:
    plain: dict[str, Any] = msgspec.to_builtins(verification.decision)
    table = tomlkit.table()
    table.comment(_NOTE)
    for name, value in plain.items():
        if not isinstance(value, dict):
            table[name] = list(value) if isinstance(value, tuple) else value
            continue
        kinds = tomlkit.table(is_super_table=True)
        for kind, counts in value.items():
            kinds[kind] = {what: list(n) if isinstance(n, tuple | list) else n for what, n in counts.items()}
        table[name] = kinds
    return table
