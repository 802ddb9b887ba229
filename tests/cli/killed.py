"""A command in a process of its own, which can be killed at each step that its transactions take.

The steps are those between a disk and the chain: a row of the outbox is written, the bytes are sent, the receipt is
written down, the result is printed, what was told is written down. A process is killed before or after each of them.
"""

import contextlib
import io
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cli.contract.frame as frame
from cli.main import main
from node.chain.client import ChainClient
from node.chain.outbox import Outbox
from node.chain.sender import Sender

STEPS: tuple[tuple[Any, str], ...] = (
    (Outbox, "record"),
    (Sender, "_broadcast"),
    (Outbox, "settle"),
    (frame, "_show_receipts"),
    (ChainClient, "told"),
)
SECONDS = 60
PRELOADED = ("node.chain.client", "node.chain.cases", "cli.contract", "cli.contract.cases", "cli.contract.pool")


def _watch(kill_at: int | None, trace: Path) -> None:
    """Count the steps of this process, each before and after, and end it at one of them."""
    lock, passed = threading.Lock(), [0]

    def passes(name: str) -> None:
        with lock, trace.open("a") as file:
            file.write(f"{name}\n")
            file.flush()
            if passed[0] == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            passed[0] += 1

    for owner, name in STEPS:
        setattr(owner, name, _watched(getattr(owner, name), name.strip("_"), passes))


def _watched(work: Callable[..., Any], name: str, passes: Callable[[str], None]) -> Callable[..., Any]:
    def watched(*given: Any, **named: Any) -> Any:
        passes(f"before {name}")
        answer = work(*given, **named)
        passes(f"after {name}")
        return answer

    return watched


def _run(words: list[str], environment: Mapping[str, str], kill_at: int | None, trace: Path, out: Path) -> None:
    """In the child."""
    os.environ.clear()
    os.environ.update(environment)
    _watch(kill_at, trace)
    shown, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(errors):
        code = main(words)
    out.write_text(shown.getvalue() if code == 0 else errors.getvalue())
    raise SystemExit(code)


def in_a_process(words: list[str], folder: Path, kill_at: int | None = None) -> tuple[int | None, str, list[str]]:
    """Exit code (-9: killed), what it printed, and the steps that it came to. It is forked from one that has imported
    everything: to start one anew takes seconds, and there are a hundred."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.cli.killed", *PRELOADED])
    trace, out = folder / "trace", folder / "out"
    trace.write_text("")
    out.write_text("")
    child = context.Process(target=_run, args=(words, dict(os.environ), kill_at, trace, out))
    child.start()
    child.join(SECONDS)
    assert child.exitcode is not None, "it hangs"
    return child.exitcode, out.read_text(), trace.read_text().splitlines()
