"""Mutation testing of the contracts: every small change to them must make a Solidity test fail.

Knows how to change a line, how to compile the changed contract and which survivors are explained. The tests deploy
artifacts, so only the changed contract is compiled anew, not the tests. The sources themselves are never written to.
"""

import hashlib
import json
import math
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import copyfile, rmtree
from types import TracebackType
from typing import Any, NamedTuple, Self

from contracts import build
from contracts.javascript import node_command

HERE = build.HERE
SOURCES = {
    "StakeVault.sol": ("StakeVault",),
    "Counters.sol": ("Swarm", "Payroll"),
    "Nodes.sol": ("Swarm",),
    "Pools.sol": ("Swarm",),
    "Members.sol": ("Swarm",),
    "Swarm.sol": ("Swarm",),
    "Court.sol": ("Court",),
    "Payroll.sol": ("Payroll",),
    "Chair.sol": ("Chair",),
    "Statements.sol": ("Court", "Swarm", "Payroll", "Chair"),
}
"""Which file's lines are changed -> which contracts that changes."""
NEAR = {
    "StakeVault.sol": "test/{vault,court}/*",
    "Nodes.sol": "test/nodes/*",
    "Pools.sol": "test/pools/*",
    "Members.sol": "test/{pools,payroll}/*",
    "Payroll.sol": "test/payroll/*",
    "Court.sol": "test/court/*",
    "Chair.sol": "test/chair/*",
}
"""Where the tests of a file stand: most mutants die there, and need no others."""
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
MODIFIERS = r" (nonReentrant|onlySwarm)(?= |$)"
HASHED = (r"(?<=abi\.encode\()[\w.]+, ", r", [\w.]+(?=[,)]|$)")
"""A field that is left out of what is hashed; on lines that hash."""
BY_HAND = (
    ("Court.sol", "nodeInfo(validator).provider != address(0)", "nodeInfo(validator).registered"),
    ("Court.sol", "bytes32 work = Statements.hashCommitment(c);", "bytes32 work = c.fileRoot;"),
    ("Court.sol", "rechecked >> i & 1 == 0", "rechecked & 1 == 0"),
    ("Court.sol", "REASON_EQUIVOCATION = 4", "REASON_EQUIVOCATION = 5"),
    ("Court.sol", "REASON_DOUBLE_VERDICT = 200", "REASON_DOUBLE_VERDICT = 201"),
    ("Court.sol", "REASON_FALSE_ROOT = 201", "REASON_FALSE_ROOT = 200"),
    ("Members.sol", "uint32(block.timestamp + pool.leaseSeconds())", "uint32(node.leaseUntil + pool.leaseSeconds())"),
    ("Members.sol", "block.timestamp < leaseUntil ? uint40(block.timestamp) : leaseUntil", "uint40(block.timestamp)"),
    ("Members.sol", "entry.pool == id ? entry.units", "entry.pool != id ? entry.units"),
    ("Payroll.sol", "(units + capacity - 1) / capacity", "units / capacity"),
    ("Payroll.sol", "(units + capacity - 1) / capacity", "epochs"),
    ("Court.sol", "REASON_FALSE_TABLE = 202", "REASON_FALSE_TABLE = 201"),
    ("StakeVault.sol", "share + (case_.appealed ? put + _lose(put) : put)", "share + put + _lose(put)"),
    ("StakeVault.sol", "case_.appealed ? won + case_.bond : won", "won + case_.bond"),
    # defects that were mended, put back: rows of docs/attacks/money.md that one line tells
    (
        "StakeVault.sol",
        "uint256 amount = there > claimed ? there - claimed : 0;",
        "uint256 amount = case_.amount;",
    ),  # A1
    ("Nodes.sol", "_units[provider] - units + (uint256(units) << 128)", "_units[provider] - units"),  # A4
    ("Court.sol", "if (msg.sender != opener)", "if (msg.sender != opener && msg.sender != swarm.managerOf(id))"),  # A6
    ("Payroll.sol", "uint64(block.timestamp + delay)", "uint64(block.timestamp)"),  # A7
    ("Swarm.sol", "uint256(_terms[id].slashAmount) * _nodes[node].units", "_terms[id].slashAmount"),  # A9
    ("StakeVault.sol", "least = 2 * params.appealSeconds", "least = params.appealSeconds"),  # A11
    ("Chair.sol", "reached = steps[quorum - 1];", "reached = steps[0];"),  # A12
    (
        "Chair.sol",
        "return block.timestamp < swarm.memberInfo(id, trainer).memberUntil && court.fit(id, trainer);",
        "return true;",
    ),  # A13
    ("Nodes.sol", "vault.backingOf(provider) >= requiredStake", "vault.bondedOf(provider) >= requiredStake"),  # A15
    ("StakeVault.sol", "if (put < minBond) put = minBond;", "put = 0;"),  # A17
    ("StakeVault.sol", "uint256 share = taken * CARRIER_BPS / BPS;", "uint256 share = 0;"),  # A18
)
"""(file, text, what becomes of it): what a review tried, and the patterns above do not."""
QUICK = {"FOUNDRY_FUZZ_RUNS": "32", "FOUNDRY_INVARIANT_RUNS": "2", "FOUNDRY_INVARIANT_DEPTH": "120"}
SECONDS = 900

_SAME = "where two numbers are equal, either of them will do"
_NOTHING_MOVES = "differs only where the amount is nothing, and then nothing is moved"
_CALLS_NOBODY = "what it calls moves no token, and calls nobody"
EXPLAINED: dict[str, str] = {
    "Statements.sol: node = node < sibling => node = node <= sibling": "two equal hashes are one pair in either order",
    "Court.sol: break; => (nothing)": "an address stands there once, so nothing else is found",
    "Members.sol: member.leftAt = block.timestamp < leaseUntil ? uint40(block.timestamp) : leaseUntil; => "
    "member.leftAt = block.timestamp <= leaseUntil ? uint40(block.timestamp) : leaseUntil;": _SAME,
    "StakeVault.sol: claimed = amount < there ? amount : there; => claimed = amount <= there ? amount : there;": _SAME,
    "StakeVault.sol: uint256 amount = there > claimed ? there - claimed : 0; => "
    "uint256 amount = there >= claimed ? there - claimed : 0;": _NOTHING_MOVES,
    "StakeVault.sol: taken.unbonding = uint96(amount < from.unbonding ? amount : from.unbonding); => "
    "taken.unbonding = uint96(amount <= from.unbonding ? amount : from.unbonding);": _SAME,
    "StakeVault.sol: taken.bonded = uint96(amount < from.bonded ? amount : from.bonded); => "
    "taken.bonded = uint96(amount <= from.bonded ? amount : from.bonded);": _SAME,
    "StakeVault.sol: if (put < minBond) put = minBond; => if (put <= minBond) put = minBond;": _SAME,
    "Members.sol: uint256 count = most < left ? most : left; => uint256 count = most <= left ? most : left;": _SAME,
    "Members.sol: uint256 left = first < joined.length ? joined.length - first : 0; => "
    "uint256 left = first <= joined.length ? joined.length - first : 0;": _NOTHING_MOVES,
    "Payroll.sol: uint256 due = units > claimed ? units - claimed : 0; => "
    "uint256 due = units >= claimed ? units - claimed : 0;": _NOTHING_MOVES,
    "Payroll.sol: epochs = next > from ? next - from : 0; => epochs = next >= from ? next - from : 0;": _NOTHING_MOVES,
    "Court.sol: if (place >> 64 != last >> 64) (least, seats, sum) = (sum < least ? sum : least, seats + 1, 0); => "
    "if (place >> 64 != last >> 64) (least, seats, sum) = (sum <= least ? sum : least, seats + 1, 0);": _SAME,
    "Court.sol: if (sum < least) least = sum; => if (sum <= least) least = sum;": _SAME,
    "Payroll.sol: until = (until < ends ? ends : until) + vault.appealSeconds(); => "
    "until = (until <= ends ? ends : until) + vault.appealSeconds();": _SAME,
    "Payroll.sol: function drop(uint256 id, address[] calldata who) external nonReentrant { => "
    "function drop(uint256 id, address[] calldata who) external {": _CALLS_NOBODY,
    "Payroll.sol: if (book.free < most) most = book.free; => if (book.free <= most) most = book.free;": _SAME,
    "Swarm.sol: nonReentrant => (nothing)": "until the case has its number nothing is paid or overturned by it, and "
    "the vault opens no other one meanwhile",
    "Swarm.sol: function punishByEvidence(uint256 id, address node, uint8 reason, bytes32 fileRoot) external "
    "nonReentrant { => function punishByEvidence(uint256 id, address node, uint8 reason, bytes32 fileRoot) "
    "external {": _CALLS_NOBODY,
    "Swarm.sol: function overturn(uint256 id, address node) external nonReentrant { => "
    "function overturn(uint256 id, address node) external {": _CALLS_NOBODY,
    "Payroll.sol: if (units > most) units = most; => if (units >= most) units = most; (2)": _SAME,
    "Payroll.sol: if (until > from) from = until; => if (until >= from) from = until;": _SAME,
    "Payroll.sol: if (filings.heldUntil > redeemable) redeemable = filings.heldUntil; => "
    "if (filings.heldUntil >= redeemable) redeemable = filings.heldUntil;": _SAME,
    "Payroll.sol: if (due > book.owed) due = book.owed; => if (due >= book.owed) due = book.owed;": _SAME,
    "Payroll.sol: if (units > most) units = most; => if (units >= most) units = most;": _SAME,
    "Payroll.sol: if (paid.unusedFrom > from) from = paid.unusedFrom; => "
    "if (paid.unusedFrom >= from) from = paid.unusedFrom;": _SAME,
    "Pools.sol: if (answerable > needed) needed = answerable; => if (answerable >= needed) needed = answerable;": _SAME,
    "Chair.sol: if (step > term.reached) term.reached = step; => if (step >= term.reached) term.reached = step;": _SAME,
    "Chair.sol: if (c.index < term.reached) term.reached = c.index; => "
    "if (c.index <= term.reached) term.reached = c.index;": _SAME,
    "Chair.sol: if (reached < steps[quorum - 1]) reached = steps[quorum - 1]; => "
    "if (reached <= steps[quorum - 1]) reached = steps[quorum - 1];": _SAME,
    "Chair.sol: if (reached > steps[0]) reached = steps[0]; => if (reached >= steps[0]) reached = steps[0];": _SAME,
    "Chair.sol: uint64 least = last.reached > MAX_TAKEN_BACK ? last.reached - MAX_TAKEN_BACK : 0; => "
    "uint64 least = last.reached >= MAX_TAKEN_BACK ? last.reached - MAX_TAKEN_BACK : 0;": _SAME,
}
"""The only mutants that may live: name -> why no test can tell them from the original."""


class Mutant(NamedTuple):
    file: str
    line: int
    old: str
    new: str
    number: int = 1
    """Of those with the same text and change in this file."""

    @property
    def name(self) -> str:
        """Stable when lines move: the file, the line's text and what became of it."""
        again = f" ({self.number})" if self.number > 1 else ""
        return f"{self.file}: {self.old.strip()} => {self.new.strip() or '(nothing)'}{again}"


def everyone() -> list[Mutant]:
    """All mutants of all SOURCES, each with a name of its own."""
    seen: Counter[str] = Counter()
    mutants: list[Mutant] = []
    for file in SOURCES:
        for mutant in _mutants_of(file):
            seen[mutant.name] += 1
            mutants.append(mutant._replace(number=seen[mutant.name]))
    return mutants


def _mutants_of(file: str) -> Iterator[Mutant]:
    for number, line in enumerate((HERE / "src" / file).read_text().splitlines()):
        code = line.split("//")[0].rstrip()
        for new in _changes(file, code):
            yield Mutant(file, number, line, new)


def _changes(file: str, code: str) -> Iterator[str]:
    """One operator changed, or one comparison, guard, field of a hash, statement or event left out."""
    for where, text, other in BY_HAND:
        if where == file and text in code:
            yield code.replace(text, other)
    if not code.startswith("import"):
        yield from _without(MODIFIERS, code)
    if not _is_code(code):
        return
    for pattern, other in SWAPS:
        for match in re.finditer(pattern, code):
            yield code[: match.start()] + other + code[match.end() :]
    if "abi.encode(" in code or "TYPEHASH," in code:
        for pattern in HASHED:
            yield from _without(pattern, code)
    if _is_statement(code):
        yield ""


def _without(pattern: str, code: str) -> Iterator[str]:
    for match in re.finditer(pattern, code):
        yield code[: match.start()] + code[match.end() :]


def _is_code(code: str) -> bool:
    """Inside a function: deep enough, and neither a comment nor a declaration."""
    words = ("import", "///", "*", "event ", "error ", "mapping(", "function ", "using ", "pragma", "struct ")
    plain = code.strip()
    return bool(plain) and not plain.startswith(words) and (code.startswith("    ") or "|" in code)


def _is_statement(code: str) -> bool:
    """A line that is a whole statement whose absence still compiles: a guard, a write, a call, an event."""
    plain = code.strip()
    if not plain.endswith(";") or plain.startswith(("return", "uint", "address", "bytes", "bool", "Terms", "Stake ")):
        return False
    if plain.startswith(
        ("Case ", "Counters ", "Commitment ", "Member ", "Node ", "(uint", "error", "delete", "mapping")
    ):
        return plain.startswith("delete")
    return plain.count("(") == plain.count(")") and not plain.startswith((")", "}"))


class Unended(Exception):
    """Tests took longer than SECONDS: on a busy machine that says nothing."""


class Memory:
    """What became of which mutants, in a file: an interrupted run goes on, as long as all sources, artifacts and tests
    are the same."""

    def __init__(self, path: Path, state: str) -> None:
        lines = path.read_text().splitlines() if path.is_file() else []
        if lines[:1] != [state]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(state + "\n")
            lines = []
        self._path = path
        # the last line may be half of one
        self.known: dict[str, str] = dict(json.loads(line) for line in lines[1:] if line.endswith("]"))

    def note(self, mutant: Mutant, fate: str) -> None:
        self.known[mutant.name] = fate
        with self._path.open("a") as file:
            file.write(json.dumps([mutant.name, fate]) + "\n")


def state_of_the_tree() -> str:
    """A hash of all that decides what becomes of a mutant."""
    hashed = hashlib.sha256()
    for place in ("src", "test", "artifacts"):
        for path in sorted((HERE / place).rglob("*.*")):
            hashed.update(path.relative_to(HERE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return hashed.hexdigest()


def run(
    forge: Path, environment: Mapping[str, str], folder: Path, only: str = "", minutes: float = math.inf
) -> list[str]:
    """The names of mutants that live and are not explained. Prints one line for each of them as it is found.

    `only` chooses those with this text in their name. After `minutes` none begins; the next run goes on with the rest.
    """
    state, ends = state_of_the_tree(), time.monotonic() + 60 * minutes
    memory = Memory(folder.with_suffix(".jsonl"), state)
    rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    chosen = [mutant for mutant in everyone() if only in mutant.name]
    if not chosen:
        return [f"no mutant has {only!r} in its name"]
    unchanged = folder / "unchanged"
    _lay_out(unchanged)
    if _fails(forge, environment, unchanged):
        return ["the tests fail without any change"]
    width = os.cpu_count() or 1
    waiting = [mutant for mutant in chosen if memory.known.get(mutant.name, "unknown") == "unknown"]
    # Where there is no time for all, those of one file must not be all that is tried.
    waiting.sort(key=lambda one: hashlib.sha256((state + one.name).encode()).digest())
    shares = [waiting[i::width] for i in range(width)]
    with ThreadPoolExecutor(width) as pool:
        jobs = [(forge, environment, folder / str(i), share, memory, ends) for i, share in enumerate(shares)]
        for found in [pool.submit(_try, *job) for job in jobs]:
            found.result()
    fates = [(mutant, memory.known[mutant.name]) for mutant in chosen if mutant.name in memory.known]
    for file in dict.fromkeys(mutant.file for mutant, _ in fates):
        _report(file, [(mutant, fate) for mutant, fate in fates if mutant.file == file])
    if left := len(chosen) - len(fates):
        print(f"{left} of {len(chosen)} mutants were not tried yet: python -m contracts.verify mutants tries them all")
    living = {mutant.name for mutant, fate in fates if fate in ("lives", "unknown")}
    return sorted(living - EXPLAINED.keys())


def _report(file: str, fates: list[tuple[Mutant, str]]) -> None:
    count = Counter("explained" if mutant.name in EXPLAINED else fate for mutant, fate in fates)
    words = {
        "killed": "killed",
        "explained": "explained",
        "invalid": "no program",
        "lives": "alive",
        "unknown": "unknown",
    }
    said = ", ".join(f"{count[fate]} {word}" for fate, word in (words | {"unknown": "unknown"}).items())
    print(f"{file}: {len(fates)} mutants: {said}")


def _try(
    forge: Path, environment: Mapping[str, str], folder: Path, mutants: list[Mutant], memory: Memory, ends: float
) -> None:
    """Notes what becomes of each: `invalid` (no program, or the same one), `killed`, `lives`, `unknown` (`Unended`)."""
    with _Compiler() as compiler:
        for mutant in mutants:
            if time.monotonic() > ends:
                return
            fate = _fate(forge, environment, folder, mutant, compiler)
            if fate in ("lives", "unknown"):
                print(f"{fate}, explained:" if mutant.name in EXPLAINED else f"{fate}:", mutant.name, flush=True)
            memory.note(mutant, fate)


def _fate(forge: Path, environment: Mapping[str, str], folder: Path, mutant: Mutant, compiler: "_Compiler") -> str:
    changed = compiler.compile(mutant)
    try:
        _lay_out(folder)
        if not changed or not _put(changed, folder):
            return "invalid"
        near = (("--match-path", NEAR[mutant.file]),) if mutant.file in NEAR else ()
        return "killed" if _fails(forge, environment, folder, near) else "lives"
    except Unended:
        return "unknown"
    finally:
        rmtree(folder, ignore_errors=True)


def _lay_out(folder: Path) -> None:
    folder.mkdir()
    for name in build.CONTRACTS:
        copyfile(HERE / "artifacts" / f"{name}.json", folder / f"{name}.json")


def _put(changed: Mapping[str, str], folder: Path) -> bool:
    """Whether any of the contracts is another program than before."""
    differs = False
    for name, code in changed.items():
        path = folder / f"{name}.json"
        artifact = json.loads(path.read_text())
        differs |= artifact["bytecode"] != "0x" + code
        path.write_text(json.dumps(artifact | {"bytecode": "0x" + code}))
    return differs


class _Compiler:
    """One process of the compiler for many mutants: its start takes longer than what most of them need."""

    def __init__(self) -> None:
        self._sources: dict[str, Any] = build.standard_input()["sources"]
        command = [*node_command(), str(HERE / "compile.mjs")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def compile(self, mutant: Mutant) -> dict[str, str]:
        """Creation code of the changed contracts in hex, by name; nothing if they do not compile."""
        path = f"src/{mutant.file}"
        lines = self._sources[path]["content"].splitlines()
        lines[mutant.line] = mutant.new
        sources = self._sources | {path: {"content": "\n".join(lines) + "\n"}}
        wanted = {f"src/{name}.sol": {name: ["evm.bytecode.object"]} for name in SOURCES[mutant.file]}
        settings = build.SETTINGS | {"outputSelection": wanted}
        output = self._ask({"language": "Solidity", "sources": sources, "settings": settings})
        if any(entry["severity"] == "error" for entry in output.get("errors", [])):
            return {}
        contracts = output["contracts"]
        return {name: contracts[f"src/{name}.sol"][name]["evm"]["bytecode"]["object"] for name in SOURCES[mutant.file]}

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise RuntimeError("the compiler was started without pipes")
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        return json.loads(stdout.readline())["output"]


def _fails(forge: Path, environment: Mapping[str, str], folder: Path, near: tuple[tuple[str, str], ...] = ()) -> bool:
    """Whether any Solidity test notices: first those near, then all that take no time, then the invariants."""
    everywhere = (("--no-match-test", "^invariant"), ("--match-test", "^invariant"))
    return any(_fail(forge, environment, folder, which) for which in near + everywhere)


def _fail(forge: Path, environment: Mapping[str, str], folder: Path, which: tuple[str, str]) -> bool:
    try:
        result = subprocess.run(
            [str(forge), "test", "--fail-fast", *which],
            cwd=HERE,
            env={**environment, **QUICK, "ARTIFACTS": str(folder.relative_to(HERE))},
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unended from None
    return result.returncode != 0
