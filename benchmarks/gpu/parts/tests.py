"""The tests of what every engine must do alike, with the engines on this device."""

import importlib.util
import os
import re
import subprocess
import sys

from benchmarks.gpu.job import Job, Rows, Skipped
from benchmarks.gpu.result import REPOSITORY

TESTS = "tests/node/inference/test_every_engine.py"


def measure(job: Job) -> Rows:
    for module in ("pytest", "trio"):
        if importlib.util.find_spec(module) is None:
            raise Skipped(f"the module {module} is not installed")
    # The repository's settings ask for plugins that this part does without.
    command = [sys.executable, "-m", "pytest", "-q", "-rfEs", "-p", "no:cacheprovider", "-c", os.devnull]
    command += ["--import-mode=importlib", f"--rootdir={REPOSITORY}", TESTS]
    environment = {**os.environ, "INTELLECT_NODE_TEST_DEVICE": job.device, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=REPOSITORY)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", done.stdout)}
    if not counts:
        raise RuntimeError(f"pytest ended with {done.returncode}: {(done.stdout + done.stderr)[-800:]}")
    yield "tests", {"file": TESTS, "device": job.device, **counts}
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR", "SKIPPED"))]
    for line in dict.fromkeys(re.sub(r"^SKIPPED .*?:\d+: ", "SKIPPED ", line) for line in lines):
        yield "not passed", {"test": line[:400]}
