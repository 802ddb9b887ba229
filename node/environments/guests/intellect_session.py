"""A small machine: files below `work`, a shell that knows the usual commands, a Python that remembers.

Loaded once; `begin` starts a session, `run` is one turn of it. `test` runs a program over files, in a machine of its
own.
"""

import ast
import difflib
import fnmatch
import io
import os
import posixpath
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

WORK = f"{os.path.dirname(__file__)}/work"
MOST_LISTED = 4096
_SPACE: dict[str, Any] = {"__name__": "__main__"}


class Failed(Exception):
    """A command that says why it did nothing."""


def begin(files: dict[str, str]) -> None:
    for path, text in files.items():
        _write(f"{WORK}/{path}", text)
    os.chdir(WORK)
    sys.path.insert(0, WORK)


def run(tool: str, text: str, most: int) -> str:
    """What a turn says, in up to `most` characters."""
    _forget_modules()
    shown = _Shown(most)
    sys.stdout = sys.stderr = shown
    _python(text, _SPACE) if tool == "python" else _shell(text)
    return shown.whole()


def files() -> dict[str, str]:
    """All files that are text, by path."""
    found = {}
    for path in _walk(WORK):
        try:
            with open(path, encoding="utf-8", newline="") as file:
                found[posixpath.relpath(path, WORK)] = file.read()
        except (OSError, ValueError):
            continue
    return found


def test(repository: dict[str, str], source: str) -> None:
    """What a program prints that can import the files."""
    begin(repository)
    _execute(source, "test.py", {"__name__": "__main__"})


class _Shown(io.TextIOBase):
    """Keeps the first `most` characters."""

    def __init__(self, most: int) -> None:
        self._left, self._parts = most, []

    def write(self, text: str) -> int:
        self._parts.append(text[: self._left])
        self._left -= len(self._parts[-1])
        return len(text)

    def whole(self) -> str:
        return "".join(self._parts)


def _forget_modules() -> None:
    """Files may have changed: what was imported from them is imported again."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{WORK}/"):
            del sys.modules[name]
    for path in [path for path in sys.path_importer_cache if path.startswith(WORK)]:
        del sys.path_importer_cache[path]  # it goes by the times of directories, which stand still here


def _python(source: str, space: dict[str, Any], name: str = "cell.py") -> None:
    """As a notebook does: the value of a last expression is shown."""
    try:
        _execute(source, name, space, show=name == "cell.py")
    except SystemExit:
        return
    except BaseException as error:  # noqa: BLE001 - whatever it is, the model is told
        print("".join(traceback.format_exception_only(error)).rstrip())


def _execute(source: str, name: str, space: dict[str, Any], *, show: bool = False) -> None:
    tree = ast.parse(source, name)
    last = tree.body[-1] if show and tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    exec(compile(tree, name, "exec"), space)  # noqa: S102 - this is what the sandbox is for
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), name, "eval"), space)  # noqa: S307
        if value is not None:
            print(repr(value))


def _shell(text: str) -> None:
    for line in text.splitlines():
        for command in _split(line, (";", "&&")):
            try:
                sys.stdout.write(_pipeline(command))
            except (Failed, OSError, ValueError, re.error) as error:
                print(f"{command[0]}: {getattr(error, 'strerror', None) or error}")
                break


def _split(line: str, at: tuple[str, ...]) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError as error:
        print(f"sh: {error}")
        return
    yield from _cut(words, at)


def _cut(words: list[str], at: tuple[str, ...]) -> Iterator[list[str]]:
    part: list[str] = []
    for word in [*words, at[0]]:
        if word in at:
            if part:
                yield part
            part = []
        else:
            part.append(word)


def _pipeline(words: list[str]) -> str:
    said = ""
    for command in _cut(words, ("|",)):
        said = _redirected(command, said)
    return said


def _redirected(words: list[str], given: str) -> str:
    plain, target, mode = [], "", ""
    at = iter(words)
    for word in at:
        if word in (">", ">>"):
            target, mode = next(at, ""), "w" if word == ">" else "a"
        elif word == "<":
            given = _read(next(at, ""))
        else:
            plain.append(word)
    if not plain or plain[0] not in COMMANDS:
        raise Failed(f"there is no such command; there are: {' '.join(COMMANDS)}")
    said = COMMANDS[plain[0]](_expanded(plain[1:]) if plain[0] not in _PATTERNS else plain[1:], given)
    if not target:
        return said
    with open(target, mode, encoding="utf-8", newline="") as file:
        file.write(said)
    return ""


def _expanded(words: list[str]) -> list[str]:
    found: list[str] = []
    for word in words:
        matches = [word]
        if any(sign in word for sign in "*?["):
            folder, name = posixpath.split(word)
            below = sorted(os.listdir(folder or "."))
            matches = [posixpath.join(folder, one) for one in below if fnmatch.fnmatchcase(one, name)] or [word]
        found += matches
    return found


def _flags(words: list[str], known: str) -> tuple[set[str], list[str]]:
    flags: set[str] = set()
    while words and len(words[0]) > 1 and words[0][0] == "-" and set(words[0][1:]) <= set(known):
        flags |= set(words[0][1:])
        words = words[1:]
    return flags, words


def _read(path: str) -> str:
    with open(posixpath.normpath(path), encoding="utf-8", newline="") as file:
        return file.read()


def _write(path: str, text: str) -> None:
    os.makedirs(posixpath.dirname(path) or ".", exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write(text)


def _walk(top: str) -> Iterator[str]:
    for folder, folders, names in os.walk(top):
        folders.sort()
        yield from (posixpath.join(folder, name) for name in sorted(names)[:MOST_LISTED])


def _inputs(paths: list[str], given: str) -> str:
    return "".join(map(_read, paths)) if paths else given


def _cat(words: list[str], given: str) -> str:
    flags, paths = _flags(words, "n")
    text = _inputs(paths, given)
    return "".join(f"{n:6}\t{line}" for n, line in enumerate(text.splitlines(True), 1)) if flags else text


def _ls(words: list[str], _: str) -> str:
    flags, paths = _flags(words, "alR1")
    if "R" in flags:
        return "".join(f"{one}\n" for path in paths or ["."] for one in _walk(path))
    lines: list[str] = []
    for path in paths or ["."]:
        lines += (
            sorted(os.listdir(path)) if os.path.isdir(path) else [path] if os.path.exists(path) else [_missing(path)]
        )
    return "".join(f"{line}\n" for line in lines)


def _missing(path: str) -> str:
    raise Failed(f"{path}: no such file or directory")


def _lines(first: bool) -> Callable[[list[str], str], str]:
    def part(words: list[str], given: str) -> str:
        count = 10
        if words and re.fullmatch(r"-\d+", words[0]):
            count, words = int(words[0][1:]), words[1:]
        elif words[:1] == ["-n"]:
            count, words = int(words[1]) if len(words) > 1 else 10, words[2:]
        lines = _inputs(words, given).splitlines(True)
        return "".join(lines[:count] if first else lines[-count:] if count else [])

    return part


def _grep(words: list[str], given: str) -> str:
    flags, words = _flags(words, "nirlvcE")
    if not words:
        raise Failed("name a pattern")
    text = words[0] if "E" in flags else _basic(words[0])
    pattern, paths = re.compile(text, re.IGNORECASE if "i" in flags else 0), _expanded(words[1:])
    if "r" in flags:
        paths = [one for path in paths or ["."] for one in (_walk(path) if os.path.isdir(path) else [path])]
    found = []
    for path, text in [(path, _read(path)) for path in paths] or [("", given)]:
        lines = [
            (n, line) for n, line in enumerate(text.splitlines(), 1) if bool(pattern.search(line)) != ("v" in flags)
        ]
        name = f"{path}:" if len(paths) > 1 or "r" in flags else ""
        if "l" in flags:
            found += [path] if lines else []
        elif "c" in flags:
            found.append(f"{name}{len(lines)}")
        else:
            found += [name + (f"{n}:" if "n" in flags else "") + line for n, line in lines]
    return "".join(f"{line}\n" for line in found)


def _sed(words: list[str], given: str) -> str:
    """s/a/b/[g] on all lines or one, Nd, and -n 'A,Bp'. Files are changed in place with -i."""
    flags, words = _flags(words, "inE")
    if not words:
        raise Failed("name a script")
    edit, paths = _edit(words[0], quiet="n" in flags, basic="E" not in flags), _expanded(words[1:])
    if "i" not in flags:
        return edit(_inputs(paths, given))
    for path in paths:
        _write(path, edit(_read(path)))
    return ""


def _basic(pattern: str) -> str:
    """A basic regular expression as Python has it: + ? | ( ) { } mean themselves unless escaped."""
    return re.sub(r"\\?[+?|(){}]", lambda sign: sign[0][1:] or "\\" + sign[0], pattern)


def _edit(script: str, *, quiet: bool, basic: bool) -> Callable[[str], str]:
    match = re.fullmatch(r"(?:(\d+)(?:,(\d+))?)?(?:([pd])|s(.)((?:\\.|(?!\4).)*)\4((?:\\.|(?!\4).)*)\4(g?))", script)
    if match is None:
        raise Failed("only s/old/new/[g], d and p are known, for all lines, N or A,B")
    first, last, action, sign, old, new, every = match.groups()
    old = (old or "").replace(f"\\{sign}", sign or "")
    old = _basic(old) if basic else old
    low, high = int(first or 1), int(last or first or sys.maxsize)
    new = re.sub(
        r"\\?&", lambda found: r"\g<0>" if found[0] == "&" else "&", (new or "").replace(f"\\{sign}", sign or "")
    )

    def line(number: int, text: str) -> str:
        within = low <= number <= high
        if action == "p":
            return text * (within + (not quiet))
        if action == "d":
            return "" if within else text
        return re.sub(old, new, text, count=0 if every else 1) if within else text

    return lambda text: "".join(line(n, one) for n, one in enumerate(text.splitlines(True), 1))


def _wc(words: list[str], given: str) -> str:
    flags, paths = _flags(words, "lwc")
    text = _inputs(paths, given)
    counts = {"l": text.count("\n"), "w": len(text.split()), "c": len(text)}
    return " ".join(str(counts[one]) for one in "lwc" if not flags or one in flags) + "\n"


def _copy(words: list[str], _: str) -> str:
    *sources, target = _flags(words, "rf")[1] if len(words) > 1 else _missing("target")
    for source in sources:
        place = posixpath.join(target, posixpath.basename(source)) if os.path.isdir(target) else target
        if os.path.isdir(source):
            for path in list(_walk(source)):
                _write(posixpath.join(place, posixpath.relpath(path, source)), _read(path))
        else:
            _write(place, _read(source))
    return ""


def _move(words: list[str], _: str) -> str:
    *sources, target = words if len(words) > 1 else _missing("target")
    for source in sources:
        os.rename(source, posixpath.join(target, posixpath.basename(source)) if os.path.isdir(target) else target)
    return ""


def _remove(words: list[str], _: str) -> str:
    flags, paths = _flags(words, "rf")
    for path in paths:
        if os.path.isdir(path):
            if "r" not in flags:
                raise Failed(f"{path}: is a directory")
            for folder, folders, names in os.walk(path, topdown=False):
                for name in names:
                    os.remove(f"{folder}/{name}")
                for name in folders:
                    os.rmdir(f"{folder}/{name}")
            os.rmdir(path)
        elif os.path.exists(path) or "f" not in flags:
            os.remove(path)
    return ""


def _each(change: Callable[[str], Any]) -> Callable[[list[str], str], str]:
    def command(words: list[str], _: str) -> str:
        for path in _flags(words, "p")[1]:
            change(path)
        return ""

    return command


def _find(words: list[str], _: str) -> str:
    tops = words[: words.index("-name")] if "-name" in words else words
    name = words[words.index("-name") + 1] if "-name" in words[:-1] else "*"
    found = [path for top in tops or ["."] for path in _walk(top)]
    return "".join(f"{path}\n" for path in found if fnmatch.fnmatchcase(posixpath.basename(path), name))


def _diff(words: list[str], _: str) -> str:
    one, other = _flags(words, "u")[1][:2] if len(words) > 1 else _missing("two files")
    return "".join(difflib.unified_diff(_read(one).splitlines(True), _read(other).splitlines(True), one, other))


def _program(words: list[str], given: str) -> str:
    """python FILE ..., python -c SOURCE, or the program on standard input."""
    shown, before, streams = _Shown(1 << 20), sys.argv, (sys.stdout, sys.stderr)
    sys.stdout = sys.stderr = shown
    module = ModuleType("__main__")
    try:
        if words[:1] == ["-c"]:
            sys.argv, source, name = ["-c", *words[2:]], "".join(words[1:2]), "<string>"
        else:
            sys.argv, source, name = words or ["-"], _inputs(words[:1], given), (words or ["stdin.py"])[0]
        _python(source, module.__dict__, name)
    finally:
        sys.argv, (sys.stdout, sys.stderr) = before, streams
    return shown.whole()


_PATTERNS = ("grep", "sed", "find", "echo")
COMMANDS: dict[str, Callable[[list[str], str], str]] = {
    "cat": _cat,
    "cd": _each(os.chdir),
    "cp": _copy,
    "diff": _diff,
    "echo": lambda words, _: " ".join(words) + "\n",
    "find": _find,
    "grep": _grep,
    "head": _lines(first=True),
    "ls": _ls,
    "mkdir": _each(lambda path: os.makedirs(path, exist_ok=True)),
    "mv": _move,
    "pwd": lambda _, __: f"{os.getcwd()}\n",
    "python": _program,
    "rm": _remove,
    "sed": _sed,
    "sort": lambda words, given: "".join(sorted(_inputs(words, given).splitlines(True))),
    "tail": _lines(first=False),
    "touch": _each(lambda path: open(path, "a").close()),  # noqa: SIM115
    "wc": _wc,
}
