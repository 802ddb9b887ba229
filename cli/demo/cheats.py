"""Which cheats a demo knows: the catalogue of the tests, by names that can be typed.

Cheats are test code and need torch, so the catalogue is read, not imported: names are all that is wanted here.
"""

import ast
import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from cli.demo.scene import slug
from cli.errors import RUN, USAGE, CommandError

ROOT = Path(__file__).resolve().parents[2]
WORKERS = ROOT / "tests" / "cheats" / "catalogue.py"
VALIDATORS = ROOT / "tests" / "cheats" / "liars.py"
DAEMONS = ROOT / "tests" / "cheats" / "nodes.py"
_MODULES = {"own-problems": "tests.cheats.own_problems", "other-weights": "tests.cheats.other_weights"}


def cheats() -> dict[str, str]:
    """Cheating workers: what is typed -> the name in the catalogue. Empty where there are no tests."""
    return _names(WORKERS, "CHEATS")


def liars() -> dict[str, str]:
    """Lying validators, likewise."""
    return _names(VALIDATORS, "LIARS")


def nodes() -> dict[str, str]:
    """Members that are dishonest beside what their engines do, likewise."""
    return _names(DAEMONS, "NODES")


def chosen(words: Iterable[str], known: Mapping[str, str], what: str) -> tuple[str, ...]:
    """The typed names of what was asked for; raises CommandError that names the nearest one."""
    return tuple(_chosen(word, known, what) for word in words)


def program_module(cheat: str | None) -> list[str]:
    """What `python -m` runs as the whole node: everybody's daemon, or a dishonest one."""
    return ["tests.cheats.nodes", nodes()[cheat]] if cheat in nodes() else ["cli"]


def engine_module(cheat: str) -> list[str]:
    """What `python -m` runs as the engine of a cheating worker or lying validator."""
    if cheat in _MODULES:
        return [_MODULES[cheat]]
    if cheat in liars():
        return ["tests.cheats.liars", liars()[cheat]]
    return ["tests.cheats.catalogue", cheats()[cheat]]


def _chosen(word: str, known: Mapping[str, str], what: str) -> str:
    if _word(word) in known:
        return _word(word)
    if not known:
        raise CommandError(
            f"there is no {what} here",
            f"a {what} is test code, which only a clone of the project has",
            "add --no-cheat" if what == "cheat" else f"leave --{what} out",
            RUN,
        )
    near = difflib.get_close_matches(_word(word), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    raise CommandError(
        f"there is no {what} {word!r}", f"known are: {', '.join(known)}", f"{hint}take one of them", USAGE
    )


def _names(path: Path, table: str) -> dict[str, str]:
    """The keys of a dictionary that a file of ours writes down."""
    if not path.exists():
        return {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == table:
            assert isinstance(node.value, ast.Dict)  # noqa: S101 - as it is written there
            keys = [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
            return {_word(str(key)): str(key) for key in keys}
    return {}


def _word(name: str) -> str:
    """'int8, says bf16' -> 'int8-says-bf16'"""
    return re.sub("-+", "-", slug(name))
