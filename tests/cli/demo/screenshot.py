"""`python -m tests.cli.demo.screenshot OUT.svg [SNAPSHOT.json]`: the demo's terminal as an SVG picture.

A demo leaves its last picture's data as report/snapshot.json; without one, made-up numbers are drawn.
"""

import math
import re
import sys
from pathlib import Path

import msgspec
from rich.console import Console

from cli.demo.snapshot import DemoMember, ProcessState, Snapshot, SwarmRow
from cli.demo.view import render
from node.status_schema import SlashPart, TrainingPart, VerdictPart, VerdictsPart


def _address(n: int) -> str:
    return "0x" + f"{n:x}" * 40


def sample_snapshot(step: int = 96, steps: int = 150) -> Snapshot:
    """A demo at `step`, its cheat caught."""
    people = [
        DemoMember("trainer", "trainer", address=_address(1)),
        DemoMember("worker 1", "worker", address=_address(2)),
        DemoMember("worker 2", "worker", address=_address(3)),
        DemoMember("validator", "validator", address=_address(4)),
        DemoMember("cheat", "worker", cheat="own-problems", address=_address(5)),
    ]
    states = ("working", "working", "working", "working", "evicted")
    speeds = (9400.0, 2210.0, 2150.0, None, None)
    paid = (19, 97, 95, 24, 0)
    rows = tuple(
        SwarmRow(
            person,
            ProcessState(4000 + i, "running"),
            states[i],
            step - i % 2,
            speeds[i],
            190 if i in (1, 2) else 0,
            1 if person.cheat else 0,
            paid_wei=paid[i] * 10**17,
        )
        for i, person in enumerate(people)
    )
    rewards = tuple((k, 0.78 - 0.5 * math.exp(-k / 45) + 0.03 * math.sin(k * 1.7)) for k in range(step + 1))
    slash = SlashPart(_address(5), _address(10), str(100 * 10**18), 5, "0x" + "5a" * 32, 61)
    recent = [
        VerdictPart(_address(2), 3, step, 0, 0, 0.2),
        VerdictPart(_address(3), 3, step, 0, 0, 0.6),
        VerdictPart(_address(2), 2, step, 0, 0, 1.1),
        VerdictPart(_address(5), 0, 1, 2, 5, 49.0),
    ]
    return Snapshot(
        phase="training",
        elapsed=71.0,
        run_name="sort",
        chain_id=31337,
        block=184,
        pool=1,
        step=step,
        steps_total=steps,
        target=0.7,
        rewards=rewards,
        train_rewards=rewards,
        rows=rows,
        staleness={"0": 5100, "1": 14200, "2": 4800, "dropped": 640},
        verdicts=VerdictsPart(379, 1, {"WRONG_DRAW": 1}, recent),
        slashed=(slash,),
        training=TrainingPart(step=step, done=False, seconds=58.0),
        training_seconds=58.0,
    )


WIDTH = 110
_FONT_FACE = re.compile(r"@font-face\s*\{[^}]*\}\s*")  # fonts from elsewhere; any monospaced one will do


def draw(snapshot: Snapshot, target: Path, title: str = "make demo") -> None:
    """Write the picture to `target`."""
    with open("/dev/null", "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="truecolor")
        console.print(render(snapshot, WIDTH))
        picture = console.export_svg(title=title)
    target.write_text(_FONT_FACE.sub("", picture), encoding="utf-8")


def main() -> None:
    target = Path(sys.argv[1])
    snapshot = sample_snapshot()
    if len(sys.argv) > 2:
        snapshot = msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=Snapshot)
    draw(snapshot, target)


if __name__ == "__main__":
    main()
