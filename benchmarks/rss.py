"""Memory of a daemon by role, and what of it is imports.

    python -m benchmarks.rss [--seconds 60] [--imports] [--against CHECKOUT] [--json]

Two tables, in KiB. *Imports*: what a process grows by that imports what `intellect-node join` imports, by package;
`anonymous` is what it shares with no process that it was not forked of. *Daemons*: a small swarm (trainer, worker,
validator; each a program of its own, as a user starts it) when the third policy is there, and so many seconds later. A
daemon is a fork of its guardian: it has the guardian's heap, of which it shares what neither writes to (`private` is
the rest), and pages of libraries count for it once it touches them. `--against`: the imports of an older checkout too,
by turns.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil
import structlog
import trio

import cli.pools
from benchmarks.live_attacks import prepare as prepare_run
from benchmarks.silence import LEASE, STEPS, WARM_STEPS, Plain, Story, swarm
from benchmarks.weigh import resident
from cli.demo.cast import DemoOptions
from cli.demo.chain import open_chain
from cli.demo.prepare import prepare
from cli.demo.scene import Scene
from cli.demo.story import demo_environment
from cli.demo.supervise import start_anew

MODULES = ("cli.main", "cli.join", "cli.joinview", "node.daemon")
KINDS = ("rss", "anonymous", "file", "private", "pss")
PACKAGES = 16


def imports_of(checkout: Path) -> dict[str, Any]:
    """What the imports of the code in `checkout` weigh, in a fresh process."""
    command = [sys.executable, "-P", str(Path(__file__).with_name("weigh.py")), *MODULES]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)


async def daemons(work: Path, seconds: float) -> list[dict[str, Any]]:
    """The rows of the second table."""
    cli.pools.LEASE_SECONDS = LEASE  # type: ignore[attr-defined]
    run = (await trio.to_thread.run_sync(prepare_run, work, STEPS))["plain"]
    options = DemoOptions(work / "demo", workers=1, validators=1, cheats=(), run_file=run)
    scene = Scene(options.directory)
    scene.claim()
    environment, view = demo_environment(scene), Plain()
    async with open_chain(scene, environment, view) as chain, trio.open_nursery() as nursery:
        stage = await prepare(options, scene, chain, environment, start_anew, view)
        async with swarm(options, scene, stage, stage.profile, environment, start_anew, nursery) as story:
            if await story.until(lambda: story.step >= WARM_STEPS) is None:
                raise SystemExit("the swarm does not begin to train")
            rows = _rows(story, "first")
            await trio.sleep(seconds)
            rows += _rows(story, f"{seconds:.0f} s later")
        nursery.cancel_scope.cancel()
    return rows


def _rows(story: Story, when: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name, status in sorted(story.seen.items()):
        pid = status.node.pid
        guardian = psutil.Process(pid).ppid()
        rows.append({"daemon": name, "when": when, **resident(pid), "guardian": resident(guardian)["rss"]})
    return rows


def _show(found: dict[str, Any]) -> None:
    for name, weights in found["imports"].items():
        sums = ", ".join(f"{kind} {weights[kind]:,}" for kind in ("rss", "anonymous", "file"))
        print(f"imports of {name}: {sums} KiB in {weights['modules']} modules")
        for package, (added, modules) in list(weights["packages"].items())[:PACKAGES]:
            print(f"    {package:24} {added:8,} KiB {modules:5} modules")
    for row in found.get("daemons", []):
        print(f"{row['daemon']:10} {row['when']:12} " + "  ".join(f"{kind} {row[kind]:8,}" for kind in KINDS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="between the two looks at the daemons")
    parser.add_argument("--imports", action="store_true", help="the first table alone")
    parser.add_argument("--against", type=Path, help="another checkout whose imports are weighed beside these")
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    given = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(40), logger_factory=structlog.PrintLoggerFactory(sys.stderr)
    )
    found: dict[str, Any] = {"imports": {"this checkout": imports_of(Path(__file__).resolve().parents[1])}}
    if given.against:
        found["imports"]["the other"] = imports_of(given.against.resolve())
    if not given.imports:
        with tempfile.TemporaryDirectory() as folder:
            found["daemons"] = trio.run(daemons, Path(folder).resolve(), given.seconds)
    found["load"] = os.getloadavg()[1]
    if given.json:
        print(json.dumps(found))
        return
    _show(found)


if __name__ == "__main__":
    main()
