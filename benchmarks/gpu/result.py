"""The result of a device: one file that grows part by part and from command to command, and the same as tables."""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
Result = dict[str, Any]


def new(device: Mapping[str, Any], *, rehearsal: bool) -> Result:
    """rehearsal: on a CPU or with tiny models; its figures say nothing of a GPU."""
    return {"schema_version": SCHEMA_VERSION, "rehearsal": rehearsal, "device": dict(device), "parts": {}}


def read(file: Path) -> Result | None:
    """What is there, if there is anything. Raises SystemExit for what this program cannot add to."""
    if not file.exists():
        return None
    found = json.loads(file.read_text())
    if found.get("schema_version") != SCHEMA_VERSION:
        raise SystemExit(f"{file} is of another version of this benchmark: move it away")
    return found


def merged(earlier: Result | None, later: Result) -> Result:
    """The later one's parts in the place of the earlier one's; what did not run this time stays as it was, unless
    nothing of it is there. Raises SystemExit for results of two devices."""
    if earlier is None:
        return later
    for key, value in (("rehearsal", earlier["rehearsal"]), ("name", earlier["device"]["name"])):
        if value != {**later, **later["device"]}[key]:
            raise SystemExit(f"these are results of two devices, or one is a rehearsal: {key} differs")
    return {**later, "parts": {**earlier["parts"], **_worth_keeping(earlier["parts"], later["parts"])}}


def _worth_keeping(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """A part that now has no figures does not take the place of one that has some."""
    return {
        name: entry
        for name, entry in later.items()
        if entry["figures"] or not earlier.get(name, {"figures": {}})["figures"]
    }


def supersede(result: Result, part: str, why: str) -> None:
    """Mark a part as one whose figures no longer hold, until it is measured again. Raises SystemExit where there is
    none."""
    if part not in result["parts"]:
        raise SystemExit(f"the result has no part {part}: there are {', '.join(result['parts'])}")
    result["parts"][part]["superseded"] = why


def write(folder: Path, name: str, result: Result) -> Path:
    """NAME.json and NAME.md; returns the first."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.json"
    file.write_text(json.dumps(result, indent=1) + "\n")
    file.with_suffix(".md").write_text(tables(result))
    return file


def tables(result: Result) -> str:
    """Markdown for people."""
    device = result["device"]
    versions = ", ".join(f"{name} {number}" for name, number in device["versions"].items())
    facts = [f"driver {device['driver']}"] if device.get("driver") else []
    facts += [f"CUDA {device['cuda']}"] if device.get("cuda") else []
    lines = [f"# {device['name']}", "", "; ".join([*facts, versions, f"python {device['python']}"]), ""]
    if result["rehearsal"]:
        lines += ["**A rehearsal: the figures say nothing of a GPU.**", ""]
    for name, entry in result["parts"].items():
        why = f": {entry['why']}" if entry.get("why") else ""
        when = f"{entry['date']} UTC, revision {entry['revision'] or 'unknown'}, {entry['seconds']} s"
        lines += [f"## {name}", "", f"{entry['what']}. {entry['state']}{why} ({when}; `{entry['command']}`)", ""]
        if entry.get("superseded"):
            lines += [f"**Superseded:** {entry['superseded']}", ""]
        for section, rows in entry["figures"].items():
            lines += [f"**{section}**", "", *_table(rows), ""]
    return "\n".join(lines)


def _table(rows: list[dict[str, Any]]) -> list[str]:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, ["---"] * len(columns)]
    lines += [[_text(row.get(name)) for name in columns] for row in rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return str(value).replace("|", "/").replace("\n", " ")


# What the device and the programs are that a result belongs to.
# `python -m benchmarks.gpu.result cuda` prints it: a process of its own, so that nothing of it stays on the device.
PROGRAMS = ("torch", "transformers", "vllm", "safetensors", "tokenizers", "numpy", "triton")
REPOSITORY = Path(__file__).resolve().parents[2]


def look(device: str) -> dict[str, Any]:
    """By a process of its own. Raises SystemExit where there is no such device."""
    command = [sys.executable, "-m", "benchmarks.gpu.result", device]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=REPOSITORY)
    if done.returncode:
        raise SystemExit(done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


def describe(device: str) -> dict[str, Any]:
    import torch

    common = {
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "versions": {name: found for name in PROGRAMS if (found := _version(name))},
    }
    if device != "cuda":
        return {"name": f"CPU {platform.machine()} {torch.backends.cpu.get_cpu_capability()}", **common}
    if not torch.cuda.is_available():
        raise SystemExit(
            f"torch {torch.__version__} finds no CUDA device here. `--device cpu` rehearses everything on a CPU, with"
            " tiny models."
        )
    found = torch.cuda.get_device_properties(0)
    return {
        "name": found.name,
        "memory_gib": round(found.total_memory / 2**30, 1),
        "capability": f"{found.major}.{found.minor}",
        "driver": _driver(),
        **common,
    }


def slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def revision() -> str | None:
    """The commit that is measured, with a + where files differ from it; None outside of a repository."""
    try:
        run = ["git", "-C", str(REPOSITORY), "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
        return subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _driver() -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout else None


if __name__ == "__main__":
    print(json.dumps(describe(sys.argv[1])))
