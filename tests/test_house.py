"""Rules of the house that imports do not show: who sets whose attributes, who looks again and again, how large a class
may be. Each exception is named here with its reason, and one that is none any more fails, so that the lists shrink.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from scripts import bounds

ROOT = Path(__file__).resolve().parent.parent
MOST_METHODS = 25
WIRED = ("node/services", "node/daemon.py", "node/member.py")

TOO_LARGE: dict[str, str] = {}
"""Classes that still are several concerns. Whoever splits one takes it out here."""

SET_FROM_OUTSIDE: dict[str, str] = {}
"""Attributes that somebody else sets after construction."""


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def modules(*below: str) -> Iterator[tuple[str, ast.Module]]:
    for name in below:
        place = ROOT / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            yield path.relative_to(ROOT).as_posix(), tree(path)


def classes(module: ast.AST) -> Iterator[ast.ClassDef]:
    return (at for at in ast.walk(module) if isinstance(at, ast.ClassDef))


# whose fault an error is

OWN = re.compile(
    r"IntellectError|NetworkError|NodeError|OSError|MemoryError|RuntimeError|ValueError|KeyError|\bException"
)
"""Errors that can be this machine's own: `OwnFailure` is under the first two, and the others are what a disk, a device
or a damaged file of this machine raises."""
BLAMES = re.compile(
    r"Fault\(|Reason\.|Says\.BROKEN|VerdictOutcome\.(REJECT|SLASH)|'(fault|unusable|state)':|AuditRuling\("
)


BLAMELESS = {
    "node/environments/repository.py _limits": "of what the run file says, which stands in the same `try`",
    "node/environments/server/environment.py _check": "of what the run file says, which stands in the same `try`",
}
"""Functions whose handlers look like that, and blame nobody for this machine. Each has one."""


def blaming(module: ast.Module) -> list[str]:
    """The function of each handler that makes a word about somebody's work of an error that may be this machine's
    own."""
    found = list[str]()

    def walk(at: ast.AST, function: str) -> None:
        if isinstance(at, ast.FunctionDef | ast.AsyncFunctionDef):
            function = at.name
        asked = False
        for handler in at.handlers if isinstance(at, ast.Try | ast.TryStar) else ():
            kinds = ast.unparse(handler.type) if handler.type else "Exception"
            asked |= "OwnFailure" in kinds
            if not asked and OWN.search(kinds):
                body = "\n".join(map(ast.unparse, handler.body))
                if BLAMES.search(body) and "OwnFailure" not in body:
                    found.append(function)
        for part in ast.iter_child_nodes(at):
            walk(part, function)

    walk(module, "")
    return found


def test_nobody_is_blamed_for_what_may_be_this_machines_own_failure() -> None:
    found = [f"{name} {one}" for name, module in modules("node", "protocol") for one in blaming(module)]
    assert sorted(found) == sorted(BLAMELESS), "ask for OwnFailure first; of a file that is not here nothing is known"


@pytest.mark.parametrize(
    "kinds", ["IntellectError", "(ProtocolError, OSError)", "ValueError", "KeyError", "Exception", ""]
)
def test_a_planted_blame_is_found_and_one_that_asks_first_is_none(kinds: str) -> None:
    blame = f"except {kinds}:\n    found = Fault(Reason.BATCHES, 'it cannot be read')"
    assert blaming(ast.parse(f"try:\n    read()\n{blame}")) == [""]
    assert not blaming(ast.parse(f"try:\n    read()\nexcept OwnFailure:\n    raise\n{blame}"))


# how large a class may be


def test_no_class_has_more_than_so_many_methods_but_those_that_are_named() -> None:
    large: dict[str, list[str]] = {}
    for name, module in modules("node"):
        for one in classes(module):
            if sum(isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) for part in one.body) > MOST_METHODS:
                large.setdefault(name, []).append(one.name)
    assert {name: " ".join(sorted(found)) for name, found in large.items()} == TOO_LARGE


# what it is called

SEVERAL = {"Arguments"}
"""An interface: `node/environments/builtin.py` asks every module of an environment for it by this name."""


def test_a_class_name_stands_once() -> None:
    places: dict[str, list[str]] = {}
    for name, module in modules("protocol", "contracts", "node", "cli"):
        for one in classes(module):
            if not one.name.startswith("_"):
                places.setdefault(one.name, []).append(name)
    assert {name: found for name, found in places.items() if len(found) > 1}.keys() == SEVERAL


# who sets whose attributes

ALLOWED = ("deadline",)
"""What trio asks callers to set: of a cancel scope."""
GROWING = ("append", "appendleft", "extend", "insert")


def own_fields(module: ast.Module) -> set[str]:
    """Attributes of classes that a module defines itself: its records are its own to change."""
    found = set[str]()
    for one in classes(module):
        for at in ast.walk(one):
            match at:
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(name)
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    found.add(name)
    return found


def rewired(module: ast.Module) -> list[str]:
    """What a module sets, or grows, that belongs to an object of another module."""
    own, found = own_fields(module), list[str]()
    for at in ast.walk(module):
        match at:
            case ast.Attribute(value=holder, attr=name, ctx=ast.Store()):
                target = holder
            case ast.Call(func=ast.Attribute(value=ast.Attribute(value=target, attr=name), attr=how)) if how in GROWING:
                pass
            case ast.Call(func=ast.Name(id="setattr"), args=[target, ast.Constant(value=str(name)), *_]):
                pass
            case _:
                continue
        mine = isinstance(target, ast.Name) and (target.id in ("self", "cls") or name in own)
        if not mine and name not in ALLOWED:
            found.append(f"{ast.unparse(target).removeprefix('self.')}.{name}")
    return found


@cache
def services() -> frozenset[str]:
    """The names of all services."""
    every = [one for _, module in modules("node/services") for one in classes(module)]
    bases = {one.name: [ast.unparse(base) for base in one.bases] for one in every}
    found = {"Service"}
    while more := {name for name, of in bases.items() if found & {*of}} - found:
        found |= more
    return frozenset(found)


def searched(module: ast.Module) -> list[str]:
    """Where it is asked whether something is a certain service."""
    calls = (at for at in ast.walk(module) if isinstance(at, ast.Call) and ast.unparse(at.func) == "isinstance")
    return [ast.unparse(at) for at in calls if services() & {*ast.unparse(at.args[1]).replace("|", " ").split()}]


def test_nobody_sets_or_grows_what_belongs_to_another_object() -> None:
    found = {name: " ".join(sorted(rewired(module))) for name, module in modules(*WIRED)}
    assert {name: what for name, what in found.items() if what} == SET_FROM_OUTSIDE


def test_nobody_searches_the_services_for_one() -> None:
    assert [one for _, module in modules(*WIRED) for one in searched(module)] == []


@pytest.mark.parametrize(
    "line",
    [
        "self._docket.fresh = self._fresh",
        "chair.ready = self._ready",
        "self._member.claims.prover = self._multiplier",
        "own_lots.waiting += 1",
        "self._tally.parts.append(self)",
        "auditing.accusers.extend([self])",
        "setattr(work, 'delivered', True)",
        "a, (other.b, c) = 1, (2, 3)",
    ],
)
def test_a_planted_wire_is_found(line: str) -> None:
    """The control."""
    assert rewired(ast.parse(f"class Planted:\n    def open(self, chair, own_lots, work):\n        {line}\n"))


def test_a_planted_search_is_found() -> None:
    assert searched(ast.parse("[one for one in place.crew.services if isinstance(one, RolloutWorker | Validator)]"))


def test_a_modules_own_records_are_its_own_to_change() -> None:
    source = (
        "class _Mine:\n    due: float\n\nclass Planted:\n    def look(self, mine):\n        mine.due = self.at = 1.0\n"
    )
    assert rewired(ast.parse(source)) == []


# who looks again and again

MOST_LOOKS = 8
LOOKS = {
    "node/services/membership/lan.py _listen": "no look: claims of anybody in the local network are taken slowly",
}
"""Where a loop waits for less than a second, and why."""
WAITS = ("sleep", "move_on_after", "fail_after", "wait", "every", "seen", "on_news")


def numbers(module: ast.Module) -> dict[str, float]:
    """What a module names its numbers."""
    found: dict[str, float] = {}
    for at in module.body:
        match at:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=int() | float() as number)):
                found[name] = float(number)
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                pairs = zip(names, values, strict=True)
                for name, one in pairs:
                    if isinstance(one, ast.Constant) and isinstance(one.value, int | float):
                        found[ast.unparse(name)] = float(one.value)
    return found


def short(expression: ast.expr, known: dict[str, float]) -> bool:
    """Whether it is a time below a second, whatever happens: what is computed is a deadline."""
    match expression:
        case ast.Constant(value=bool()):
            return False
        case ast.Constant(value=int() | float() as number):
            return number < 1
        case ast.Name(id=name):
            return known.get(name, 1.0) < 1
        case ast.BinOp(left=ast.Name(id=name), op=ast.Div(), right=ast.Constant(value=int() | float() as part)):
            return known.get(name, 1.0) / part < 1
    return False


def looks(module: ast.Module) -> list[str]:
    """Functions of a module that look at something again within a second."""
    known, found = numbers(module), list[str]()

    def walk(at: ast.AST, function: str, looping: bool) -> None:
        for part in ast.iter_child_nodes(at):
            inner, loops = function, looping or isinstance(part, ast.While | ast.AsyncFor | ast.For)
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                inner, loops = part.name, False
            if isinstance(part, ast.Call):
                name = part.func.attr if isinstance(part.func, ast.Attribute) else getattr(part.func, "id", "")
                given = [*part.args, *(one.value for one in part.keywords)]
                repeats = loops or name in ("every", "seen", "on_news")
                if name in WAITS and repeats and any(short(one, known) for one in given):
                    found.append(inner)
            walk(part, inner, loops)

    walk(module, "", False)
    return found


def test_nobody_looks_again_within_a_second_but_where_a_reason_says_so() -> None:
    found = {f"{name} {one}" for name, module in modules("node/services", "node/local") for one in looks(module)}
    assert found == LOOKS.keys() and len(found) <= MOST_LOOKS


@pytest.mark.parametrize(
    "line",
    [
        "await trio.sleep(POLL)",
        "await trio.sleep(POLL / 5)",
        "await trio.sleep(0.25)",
        "with trio.move_on_after(QUICK):\n            await self._news.wait()",
        "await self._bell.wait(0.5)",
    ],
)
def test_a_planted_look_is_found(line: str) -> None:
    """The control."""
    source = "POLL = 0.9\nSLOW, QUICK = 5.0, 0.2\nasync def run(self):\n    while True:\n        "
    assert looks(ast.parse(source + line)) == ["run"]


def test_what_waits_for_an_event_a_deadline_or_seconds_is_no_look() -> None:
    lines = ("await self._bell.wait(due - now)", "await trio.sleep(1.0)", "await trio.sleep(SLOW)", "await bell.wait()")
    for line in lines:
        assert looks(ast.parse(f"SLOW = 5.0\nasync def run(self):\n    while True:\n        {line}")) == []
    assert looks(ast.parse("async def run(self):\n    await every(0.5, self.look)")) == ["run"]


# what a test may change of a module

CLOCKS = re.compile(
    r"(^|_)(SECONDS?|MINUTES?|HOURS?|DAYS?|TIMEOUT|PAUSE|PATIENCE|EVERY|AFTER|WITHIN|LAG|POLL|AGE)(_|$)"
)


def clocks(module: ast.Module) -> Iterator[str]:
    """Constants of a module that are times or rates: numbers, or several of them, of which one is no whole number, or
    that are called like a time. What is left are counts and bounds, and a test may make a table smaller than it is, so
    that to fill it takes no ten thousand words."""
    for at in module.body:
        if isinstance(at, ast.Assign | ast.AnnAssign) and at.value is not None:
            targets, value = at.targets if isinstance(at, ast.Assign) else [at.target], at.value
            if isinstance(targets[0], ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(targets[0].elts, value.elts, strict=False))
            else:
                pairs = [(targets[0], value)]
            for target, one in pairs:
                parts = [part for part in ast.walk(one) if isinstance(part, ast.Constant)]
                numeric = parts and all(isinstance(part.value, int | float) for part in parts)
                plain = not any(isinstance(part, ast.Call | ast.Dict | ast.Lambda) for part in ast.walk(one))
                if isinstance(target, ast.Name) and target.id.isupper() and numeric and plain:
                    if any(isinstance(part.value, float) for part in parts) or CLOCKS.search(target.id):
                        yield target.id


def rewound(test: ast.Module, known: frozenset[str]) -> list[str]:
    """Where a test names a clock constant as something to set: in a text, however it is handed on, or as an attribute.
    Also where it changes a function's defaults."""
    found = list[str]()
    for at in ast.walk(test):
        match at:
            case ast.Constant(value=str(text)) if re.fullmatch(r"[A-Za-z_.0-9]+", text):
                name = text.rpartition(".")[2]
            case ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case _:
                continue
        if name in known or name in ("__defaults__", "__kwdefaults__"):
            found.append(name)
    return found


def test_no_test_sets_a_time_of_a_module_for_it_is_an_argument() -> None:
    known = frozenset(name for _, module in modules("node", "cli", "protocol") for name in clocks(module))
    said = re.compile(r"\b(" + "|".join([*known, "__defaults__", "__kwdefaults__"]) + r")\b")
    named = [path for path in sorted((ROOT / "tests").rglob("*.py")) if said.search(path.read_text(encoding="utf-8"))]
    found = {path.name: rewound(tree(path), known) for path in named if path != Path(__file__).resolve()}
    assert len(known) > 50 and len(named) > 10 and {name: what for name, what in found.items() if what} == {}


@pytest.mark.parametrize(
    "line",
    [
        "monkeypatch.setattr(page, 'SEEN', 0.1)",
        "patch.object(page, 'PAUSE', (0.1, 0.2))",
        "monkeypatch.setattr('node.web.page.UNSEEN', 1)",
        "for name in ('SEEN',): setattr(page, name, 2)",
        "SMALL = {(page, 'PULSE_SECONDS'): 3}",
        "page.SEEN = 4.0",
        "monkeypatch.setattr(page.look.__func__, '__defaults__', (0.1,))",
    ],
)
def test_a_planted_change_of_a_time_is_found(line: str) -> None:
    """The control."""
    source = (
        "SEEN, UNSEEN = 1.0, 5.0\nPAUSE: Any = (0.5, 15.0)\nPULSE_SECONDS = 5\nMAX_ROWS = 1 << 20\nNAMES = ('a',)\n"
    )
    known = frozenset(clocks(ast.parse(source)))
    assert known == {"SEEN", "UNSEEN", "PAUSE", "PULSE_SECONDS"} and len(rewound(ast.parse(line), known)) == 1
    assert not rewound(ast.parse("monkeypatch.setattr(page, 'MAX_ROWS', 2)\nlook(page, seen=0.1)"), known)


MOST_EXCEPTIONS = 120
EXCEPTION = re.compile(r"#\s*(?:ruff:\s*)?noqa\b(?P<rest>.*)")


def exceptions(*rooms: str) -> Iterator[tuple[str, str]]:
    """(file and line, what stands behind it) of each rule of ruff's that a line does without. What runs in the sandbox
    is left out: its bytes stay as they are; and what a check of the contracts has installed."""
    for room in rooms:
        for path in sorted((ROOT / room).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if "/guests/" in name or "/.tools/" in name or "noqa" not in (text := path.read_text(encoding="utf-8")):
                continue
            for number, line in enumerate(text.splitlines(), 1):
                if found := EXCEPTION.search(line):
                    yield f"{name}:{number}", found["rest"]


def test_exceptions_from_the_linters_rules_are_few_and_each_has_a_reason() -> None:
    rooms = ("protocol", "contracts/", "node", "cli", "benchmarks", "examples", "scripts", "tests")
    found = [one for one in exceptions(*rooms) if one[0].partition(":")[0] != "tests/test_house.py"]
    assert [place for place, rest in found if not re.match(r":(?: ?[A-Z]+\d+,?)+ - \S", rest)] == []
    assert 0 < len(found) < MOST_EXCEPTIONS


# who waits by sleeping in a loop

MOST_SLEEPS = 39
"""Calls of `sleep` in a `while` of the same function, in `node`. It only falls: who waits for something is told, and
what is done again and again until cancelled is `every` of node/changes.py."""


def sleeps(module: ast.Module) -> list[str]:
    """Functions that sleep in a `while` of their own, each as often as it does."""
    found = list[str]()

    def walk(at: ast.AST, function: str, looping: bool) -> None:
        for part in ast.iter_child_nodes(at):
            inner, loops = function, looping or isinstance(part, ast.While)
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                inner, loops = getattr(part, "name", "lambda"), False
            if isinstance(part, ast.Call) and loops and ast.unparse(part.func).rpartition(".")[2] == "sleep":
                found.append(inner)
            walk(part, inner, loops)

    walk(module, "", False)
    return found


def test_sleeps_in_loops_are_few_and_become_fewer() -> None:
    found = sum(len(sleeps(module)) for _, module in modules("node"))
    assert MOST_SLEEPS - 5 < found <= MOST_SLEEPS, f"{found}: write the ceiling anew if it fell"


@pytest.mark.parametrize("loop", ["while True", "while not so()", "while True:\n        if so()"])
def test_a_planted_sleep_is_found_and_one_that_is_no_loops_is_none(loop: str) -> None:
    deep = " " * (12 if "if" in loop else 8)
    assert sleeps(ast.parse(f"async def run():\n    {loop}:\n{deep}await trio.sleep(1)")) == ["run"]
    assert sleeps(ast.parse("async def run():\n    await trio.sleep(1)\n    for one in many:\n        sleep(2)")) == []


# numbers that have a name in a module

MOST_NUMBERS = 691
"""In `node`, `cli` and `protocol`. It only falls: a number that one function uses stands there with its reason, and a
time is an argument with a default, which a test can give. Who takes numbers out lowers it."""


def is_number(value: ast.expr, known: set[str]) -> bool:
    """A constant, or what is computed of constants and of numbers with a name."""
    match value:
        case ast.Constant(value=int() | float() as number):
            return not isinstance(number, bool)
        case ast.UnaryOp(operand=one):
            return is_number(one, known)
        case ast.BinOp(left=left, right=right):
            return is_number(left, known) and is_number(right, known)
        case ast.Name(id=name):
            return name in known
    return False


def named_numbers(module: ast.Module) -> list[str]:
    known = dict[str, None]()
    for at in module.body:
        pairs = list[tuple[ast.expr, ast.expr | None]]()
        match at:
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)):
                pairs = list(zip(names, values, strict=False))
            case ast.Assign(targets=[one], value=value) | ast.AnnAssign(target=one, value=value):
                pairs = [(one, value)]
        for one, value in pairs:
            if isinstance(one, ast.Name) and value is not None and is_number(value, {*known}):
                known[one.id] = None
    return [*known]


def test_numbers_with_a_name_are_few_and_become_fewer() -> None:
    found = sum(len(named_numbers(module)) for _, module in modules("node", "cli", "protocol"))
    assert MOST_NUMBERS - 25 < found <= MOST_NUMBERS, f"{found}: write the ceiling anew if it fell"


def test_a_planted_number_is_counted() -> None:
    """The control."""
    source = "A = 1\nB: float = 2.0\nC, D = 8 << 20, -A\nE = (1, 2)\nF = 'text'\nG = True\n\ndef f():\n    H = 3\n"
    assert named_numbers(ast.parse(source)) == ["A", "B", "C", "D"]


def test_the_page_of_bounds_says_what_the_code_says() -> None:
    assert bounds.PAGE.read_text(encoding="utf-8") == bounds.page(), "python scripts/bounds.py"


def test_a_bound_is_listed_however_it_is_written() -> None:
    """The control."""
    module = ast.parse("MAX_A = 1 << 4\n_MAX_B: int = 2\nMAX_C, MOST = 3, 4\nMAXIMAL = 5\nMAX_D = MAX_A * 2\n")
    assert [*bounds.bounds_of(module)] == [
        ("MAX_A", "1 << 4"),
        ("_MAX_B", "2"),
        ("MAX_C", "3"),
        ("MAX_D", "MAX_A * 2"),
    ]
