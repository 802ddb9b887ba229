"""`python -m cli.demo.screenshot OUT.svg [SNAPSHOT.json]`: the demo's terminal as an SVG picture.

A demo leaves its last picture's data as report/snapshot.json; without one, made-up numbers are drawn.
"""

import re
import sys
from pathlib import Path

import msgspec
from rich.console import Console

from cli.demo.sample import sample_snapshot
from cli.demo.snapshot import Snapshot
from cli.demo.view import render

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
