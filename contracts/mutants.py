"""Mutation testing of the contracts: every small change to them must make a Solidity test fail.

Knows how to change a line, how to compile the changed contract and which survivors are explained. The tests deploy
artifacts, so only the changed contract is compiled anew, not the tests.
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copyfile, rmtree
from typing import Any, NamedTuple

from contracts import build
from contracts.javascript import node_command

HERE = build.HERE
SOURCES = {
    "StakeVault.sol": "StakeVault",
    "Counters.sol": "Swarm",
    "Nodes.sol": "Swarm",
    "Pools.sol": "Swarm",
    "Members.sol": "Swarm",
    "Work.sol": "Swarm",
    "Swarm.sol": "Swarm",
    "Court.sol": "Court",
    "Statements.sol": "Court",
}
"""Which file's lines are changed -> which contract that changes."""
SWAPS = (
    (">=", ">"),
    ("<=", "<"),
    ("(?<![-=<>])>(?![=>])", ">="),
    ("(?<![=<])<(?![=<])", "<="),
    ("==", "!="),
    ("!=", "=="),
    (r" \+ ", " - "),
    (" - ", " + "),
    (r"\+=", "-="),
    ("-=", "+="),
    (r" \* ", " / "),
    ("&&", "||"),
    (r"\|\|", "&&"),
    (r" (&&|\|\|) [\w.]+ [!=]= [\w.]+", ""),
)
QUICK = {"FOUNDRY_FUZZ_RUNS": "32", "FOUNDRY_INVARIANT_RUNS": "2", "FOUNDRY_INVARIANT_DEPTH": "120"}
SECONDS = 240

_SAME = "the smaller of two equal numbers is either of them"
_NOTHING_MOVES = "differs only where the amount is nothing, and then nothing is moved"
_SECOND_LINE = "cannot fail while the sums agree, which the invariants check; there for the day when they do not"
EXPLAINED: dict[str, str] = {
    "StakeVault.sol: if (amount > maxSlash) amount = maxSlash; => if (amount >= maxSlash) amount = maxSlash;": _SAME,
    "StakeVault.sol: claimed = amount < there ? amount : there; => claimed = amount <= there ? amount : there;": _SAME,
    "StakeVault.sol: uint256 amount = there > claimed ? there - claimed : 0; => "
    "uint256 amount = there >= claimed ? there - claimed : 0;": _NOTHING_MOVES,
    "StakeVault.sol: taken.unbonding = uint96(amount < from.unbonding ? amount : from.unbonding); => "
    "taken.unbonding = uint96(amount <= from.unbonding ? amount : from.unbonding);": _SAME,
    "StakeVault.sol: taken.bonded = uint96(amount < from.bonded ? amount : from.bonded); => "
    "taken.bonded = uint96(amount <= from.bonded ? amount : from.bonded);": _SAME,
    "Work.sol: uint32 reserved = units < pool.free() ? units : uint32(pool.free()); => "
    "uint32 reserved = units <= pool.free() ? units : uint32(pool.free());": _SAME,
    "Work.sol: uint32 left = units < had ? had - units : 0; => uint32 left = units <= had ? had - units : 0;": _SAME,
    "Work.sol: if (more > pool.free()) more = pool.free(); => if (more >= pool.free()) more = pool.free();": _SAME,
    "Work.sol: if (reserved > left) { => if (reserved >= left) {": _NOTHING_MOVES,
    "StakeVault.sol: if (burned > 0) token.safeTransfer(BURNED, burned); => "
    "if (burned >= 0) token.safeTransfer(BURNED, burned);": _NOTHING_MOVES,
    "StakeVault.sol: if (rest > 0) token.safeTransfer(treasury, rest); => "
    "if (rest >= 0) token.safeTransfer(treasury, rest);": _NOTHING_MOVES,
    "Swarm.sol: if (poolBond > 0) token.safeTransfer(provider, poolBond); => "
    "if (poolBond >= 0) token.safeTransfer(provider, poolBond);": _NOTHING_MOVES,
    "Counters.sol: assert(units <= c.reserved()); => (nothing)": _SECOND_LINE,
}
"""The only mutants that may live: name -> why no test can tell them from the original."""


class Mutant(NamedTuple):
    file: str
    line: int
    old: str
    new: str

    @property
    def name(self) -> str:
        """Stable when lines move: the file, the line's text and what became of it."""
        return f"{self.file}: {self.old.strip()} => {self.new.strip() or '(nothing)'}"


def mutants_of(file: str) -> Iterator[Mutant]:
    """Every change of one operator, every comparison left out of a condition, and every statement left out."""
    text = (HERE / "src" / file).read_text()
    lines = text.splitlines()
    for number, line in enumerate(lines):
        code = line.split("//")[0].rstrip()
        if not _is_code(code):
            continue
        for pattern, other in SWAPS:
            for match in re.finditer(pattern, code):
                yield Mutant(file, number, line, code[: match.start()] + other + code[match.end() :])
        if _is_statement(code):
            yield Mutant(file, number, line, "")


def _is_code(code: str) -> bool:
    """Inside a function: deep enough, and neither a comment nor a declaration."""
    words = ("import", "///", "*", "event ", "error ", "emit ", "mapping(", "function ", "using ", "pragma", "struct ")
    plain = code.strip()
    return bool(plain) and not plain.startswith(words) and (code.startswith("    ") or "|" in code)


def _is_statement(code: str) -> bool:
    """A line that is a whole statement whose absence still compiles: a guard, a write, a call."""
    plain = code.strip()
    if not plain.endswith(";") or plain.startswith(("return", "uint", "address", "bytes", "bool", "Terms", "Stake ")):
        return False
    if plain.startswith(
        ("Case ", "Counters ", "Commitment ", "Member ", "Node ", "(uint", "error", "delete", "mapping")
    ):
        return plain.startswith("delete")
    return plain.count("(") == plain.count(")") and not plain.startswith((")", "}"))


def run(forge: Path, environment: Mapping[str, str], folder: Path, only: str = "") -> list[str]:
    """The names of mutants that live and are not explained. Prints one line for each of them as it is found.

    `only` chooses those with this text in their name.
    """
    rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    everyone = [mutant for file in SOURCES for mutant in mutants_of(file)]
    chosen = [mutant for mutant in everyone if only in mutant.name]
    if not chosen:
        return [f"no mutant has {only!r} in its name"]
    unchanged = folder / "unchanged"
    _lay_out(unchanged)
    if _fails(forge, environment, unchanged):
        return ["the tests fail without any change"]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        jobs = [(forge, environment, folder / str(i), mutant) for i, mutant in enumerate(chosen)]
        fates = list(pool.map(lambda job: _fate(*job), jobs))
    living = [mutant.name for mutant, fate in zip(chosen, fates, strict=True) if fate == "lives"]
    print(
        f"mutants: {len(chosen)}, killed {fates.count('killed')}, no program at all {fates.count('invalid')},", end=" "
    )
    print(f"alive and explained {sum(name in EXPLAINED for name in living)}")
    return [name for name in living if name not in EXPLAINED]


def _fate(forge: Path, environment: Mapping[str, str], folder: Path, mutant: Mutant) -> str:
    try:
        code = _compile(mutant)
        if code is None:
            return "invalid"
        _lay_out(folder)
        name = SOURCES[mutant.file]
        artifact = json.loads((folder / f"{name}.json").read_text())
        (folder / f"{name}.json").write_text(json.dumps(artifact | {"bytecode": "0x" + code}))
        if _fails(forge, environment, folder):
            return "killed"
        print("lives:" if mutant.name not in EXPLAINED else "lives, explained:", mutant.name, flush=True)
        return "lives"
    finally:
        rmtree(folder, ignore_errors=True)


def _lay_out(folder: Path) -> None:
    folder.mkdir()
    for name in build.CONTRACTS:
        copyfile(HERE / "artifacts" / f"{name}.json", folder / f"{name}.json")


def _compile(mutant: Mutant) -> str | None:
    """Creation code of the changed contract in hex; None if it does not compile."""
    sources: dict[str, Any] = {
        f"src/{path.name}": {"content": path.read_text()} for path in sorted((HERE / "src").glob("*.sol"))
    }
    lines = sources[f"src/{mutant.file}"]["content"].splitlines()
    lines[mutant.line] = mutant.new
    sources[f"src/{mutant.file}"]["content"] = "\n".join(lines) + "\n"
    name = SOURCES[mutant.file]
    wanted = {f"src/{name}.sol": {name: ["evm.bytecode.object"]}}
    request = {"language": "Solidity", "sources": sources, "settings": build.SETTINGS | {"outputSelection": wanted}}
    result = subprocess.run(
        [*node_command(), str(HERE / "compile.mjs")],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    output = json.loads(result.stdout)["output"]
    if any(entry["severity"] == "error" for entry in output.get("errors", [])):
        return None
    return output["contracts"][f"src/{name}.sol"][name]["evm"]["bytecode"]["object"]


def _fails(forge: Path, environment: Mapping[str, str], folder: Path) -> bool:
    """Whether any Solidity test notices. A test that does not end has noticed too."""
    try:
        result = subprocess.run(
            [str(forge), "test", "--fail-fast"],
            cwd=HERE,
            env={**environment, **QUICK, "ARTIFACTS": str(folder.relative_to(HERE))},
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return True
    return result.returncode != 0
