"""Writes docs/bounds.md: every bound on what others may bring, by room.

    python scripts/bounds.py            writes the page anew
    python scripts/bounds.py --check    ends with 1 where it is not what the code says now

A bound on strangers is a number with a name that begins with MAX; nothing else in a module's numbers does.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "bounds.md"
BOUND = re.compile(r"_?MAX(_|$)")
HEAD = """# Every bound on what others may bring

Written by `python scripts/bounds.py` from the code, and held by `tests/test_house.py`. A bound is a number whose name
begins with `MAX`: bytes, entries or characters that a node takes from somebody else, at most. Reasons stand beside it.
Which table of others is kept how long: [limits](limits.md).
"""


def bounds_of(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Name and value, as they are written."""
    for at in module.body:
        match at:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                pairs = list(zip(names, values, strict=True))
            case ast.Assign(targets=[one], value=value) | ast.AnnAssign(target=one, value=ast.expr() as value):
                pairs = [(one, value)]
            case _:
                continue
        for one, value in pairs:
            if isinstance(one, ast.Name) and BOUND.match(one.id):
                yield one.id, ast.unparse(value)


def room_of(name: str) -> str:
    parts = name.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def page() -> str:
    rooms: dict[str, list[str]] = {}
    for top in ("protocol", "node", "cli"):
        for path in sorted((ROOT / top).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if found := [f"`{one}` {value}" for one, value in bounds_of(ast.parse(path.read_text(encoding="utf-8")))]:
                within = name.removeprefix(room_of(name) + "/")
                rooms.setdefault(room_of(name), []).append(f"| {within} | {', '.join(found)} |")
    tables = (f"\n## {room}\n\n| module | bounds |\n|---|---|\n" + "\n".join(rows) for room, rows in rooms.items())
    return HEAD + "\n".join(tables) + "\n"


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        return int(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
