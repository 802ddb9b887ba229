"""One part in a process of its own: `python -m benchmarks.gpu.child PART JOB FOUND` writes a line for each row."""

import importlib
import json
import sys
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

from benchmarks.gpu.job import Job, Skipped, neat

OURS = ("benchmarks", "node", "protocol", "tests", "examples")


def main() -> None:
    name, job, found = sys.argv[1], Job.read(Path(sys.argv[2])), Path(sys.argv[3])
    with found.open("w") as file:
        _write(file, _end(name, job, file))


def _end(name: str, job: Job, file: TextIO) -> dict[str, Any]:
    """Measure; how it ended."""
    started = time.monotonic()
    try:
        part = importlib.import_module(f"benchmarks.gpu.parts.{name}")
        for section, figures in part.measure(job):
            row = neat(figures)
            _write(file, {"section": section, "row": row})
            print(f"  {name} {time.monotonic() - started:5.0f} s  {section}: {json.dumps(row)}", flush=True)
    except Skipped as skipped:
        return {"state": "skipped", "why": str(skipped)}
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if not missing or missing in OURS:
            return _failed(error)
        return {"state": "skipped", "why": f"the module {missing} is not installed"}
    except (Exception, SystemExit) as error:  # whatever it is belongs into the result
        return _failed(error)
    return {"state": "done"}


def _failed(error: BaseException) -> dict[str, Any]:
    traceback.print_exc()
    return {"state": "failed", "why": f"{type(error).__name__}: {error}"[:1000]}


def _write(file: TextIO, line: dict[str, Any]) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()


if __name__ == "__main__":
    main()
