"""Compiles src/*.sol into artifacts/<Name>.json: `python -m contracts.build [--check]`.

The build is reproducible: exact compiler from npm's lock file, fixed settings, no metadata in the
bytecode. `--check` compiles again and fails unless the checked-in artifacts are the same bytes.
"""

import argparse
import json
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from contracts.javascript import find_installed, node_command
from protocol.errors import IntellectError

HERE = Path(__file__).resolve().parent
SOURCES = HERE / "artifacts" / "sources.json"
"""The compiler's whole input in an installed wheel (contracts.wheel); a checkout has none."""
CONTRACTS = ("TestToken", "StakeVault", "Swarm", "Court", "Payroll", "Chair")
COMPILER = "0.8.37+commit.f401782d"
"""As explorers name it; `compile.mjs` tells the one that was used."""
SIZE_LIMIT = 22_000
"""Bytes of deployed code that we allow ourselves: room below the 24,576 that Ethereum accepts (EIP-170)."""
COMPILE_SECONDS = 180
IMPORT = re.compile(r'^import [^;"]*"([^"]+)";', re.MULTILINE)

SETTINGS: dict[str, Any] = {
    "optimizer": {"enabled": True, "runs": 100},
    "evmVersion": "cancun",
    "viaIR": False,
    "metadata": {"bytecodeHash": "none", "appendCBOR": False},
    "outputSelection": {"*": {"*": ["abi", "evm.bytecode.object", "evm.deployedBytecode.object"]}},
}


class BuildError(IntellectError):
    """The contracts do not compile, are too big, or differ from the checked-in artifacts."""


def compile_sources() -> dict[str, bytes]:
    """Compile everything; returns the artifact file's bytes per contract name.

    Raises BuildError for compiler errors and warnings alike, and for code above SIZE_LIMIT.
    """
    return artifacts_of(standard_input())


def artifacts_of(request: dict[str, Any]) -> dict[str, bytes]:
    """Of a standard-JSON input; raises as `compile_sources`."""
    output = _run_compiler(request)
    _refuse_complaints(output)
    return {name: _artifact(name, output["contracts"][f"src/{name}.sol"][name]) for name in CONTRACTS}


def standard_input() -> dict[str, Any]:
    """Everything that the compiler needs, as explorers want it for showing the sources of a contract: our own as they
    are checked in, OpenZeppelin's as npm's lock file names them. Installs those where they are missing."""
    if SOURCES.is_file():
        return json.loads(SOURCES.read_bytes())
    find_installed(HERE, HERE, "solc/package.json")
    waiting = [f"src/{path.name}" for path in sorted((HERE / "src").glob("*.sol"))]
    sources: dict[str, Any] = {}
    while waiting:
        name = waiting.pop()
        if name in sources:
            continue
        file = HERE / name if name.startswith("src/") else HERE / "node_modules" / name
        sources[name] = {"content": file.read_text()}
        imports = IMPORT.findall(sources[name]["content"])
        waiting += [
            posixpath.normpath(posixpath.join(posixpath.dirname(name), one)) if one[0] == "." else one
            for one in imports
        ]
    return {"language": "Solidity", "sources": dict(sorted(sources.items())), "settings": SETTINGS}


def _run_compiler(request: dict[str, Any]) -> dict[str, Any]:
    result = subprocess.run(
        # One request is over before better machine code has paid for itself: it is a quarter of the computing.
        [*node_command(), "--liftoff-only", str(HERE / "compile.mjs")],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=COMPILE_SECONDS,
        check=False,
    )
    if result.returncode != 0:
        raise BuildError("the compiler crashed", result.stderr[-800:], "run `npm ci` in contracts/ and try again")
    told = json.loads(result.stdout)
    if not told["version"].startswith(COMPILER):
        raise BuildError("another compiler", f"{told['version']}, not {COMPILER}", "run `npm ci` in contracts/")
    return told["output"]


def _refuse_complaints(output: dict[str, Any]) -> None:
    complaints = [entry["formattedMessage"] for entry in output.get("errors", [])]
    if complaints:
        raise BuildError("the contracts do not compile cleanly", "\n".join(complaints), "mend the sources")


def _artifact(name: str, compiled: dict[str, Any]) -> bytes:
    deployed = compiled["evm"]["deployedBytecode"]["object"]
    size = len(deployed) // 2
    if size >= SIZE_LIMIT:
        raise BuildError(f"{name} is too big", f"{size} bytes, the limit is {SIZE_LIMIT}", "move code to a library")
    artifact = {
        "contract": name,
        "abi": compiled["abi"],
        "bytecode": "0x" + compiled["evm"]["bytecode"]["object"],
        "deployedBytecode": "0x" + deployed,
    }
    return (json.dumps(artifact, indent=1, sort_keys=True) + "\n").encode()


def write(artifacts: dict[str, bytes]) -> None:
    """Write artifacts/<Name>.json."""
    (HERE / "artifacts").mkdir(exist_ok=True)
    for name, content in artifacts.items():
        (HERE / "artifacts" / f"{name}.json").write_bytes(content)


def differing(artifacts: dict[str, bytes]) -> list[str]:
    """Names of contracts whose checked-in artifact is missing or other bytes."""
    paths = {name: HERE / "artifacts" / f"{name}.json" for name in artifacts}
    return [name for name, path in paths.items() if not path.is_file() or path.read_bytes() != artifacts[name]]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m contracts.build", description="Compiles the contracts.")
    parser.add_argument("--check", action="store_true", help="only verify that the artifacts are up to date")
    check = parser.parse_args().check
    try:
        artifacts = compile_sources()
    except IntellectError as error:
        print(f"{error.what}\n  why: {error.why}\n  do:  {error.remedy}", file=sys.stderr)
        return 1
    stale = differing(artifacts) if check else []
    if stale:
        print(f"stale artifacts: {', '.join(stale)}; run: python -m contracts.build", file=sys.stderr)
        return 1
    if not check:
        write(artifacts)
    for name, content in artifacts.items():
        print(f"{name}: {len(json.loads(content)['deployedBytecode']) // 2 - 1} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
