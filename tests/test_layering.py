"""Imports point one way. Every module has a floor: it may import its own room and what stands on floors below.

Rooms on one floor do not know each other. A module that no row names fails, so that nobody adds one without saying
where it belongs; `docs/architecture.md` draws the same house.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("protocol", "contracts", "node", "cli")

FLOORS: tuple[tuple[str, ...], ...] = (
    ("protocol",),
    ("contracts",),
    ("node.changes", "node.later", "node.looked"),
    (
        "node",
        "node.addresses",
        "node.deadline",
        "node.errors",
        "node.limits",
        "node.logs",
        "node.bounded_dict",
        "node.status_schema",
        "node.units",
        "node.state.files",
        "node.processes",
        "node.own_code",
        "node.platforms",
    ),
    ("node.places",),
    ("node.clock", "node.progress", "node.sandbox", "node.guest"),
    ("node.state", "node.config", "node.network", "node.environments", "node.metrics"),
    ("node.hardware", "node.chain", "node.inference", "node.swarm", "node.blobs.scheduling", "node.web"),
    ("node.blobs", "node.training", "node.calibration"),
    ("node.hub",),
    ("node.blobs.http", "node.recipe", "node.run", "node.weights", "node.web.openai"),
    ("node.tasks", "node.audit", "node.local"),
    ("node.member",),
    ("node.light_client", "node.preflight", "node.services.base", "node.services.context"),
    ("node.services.leader_watch",),
    (
        "node.services.certifier",
        "node.services.leader_lease",
        "node.services.pool_accounting",
        "node.services.committing",
        "node.services.judging.lots",
        "node.services.rounds.adding",
        "node.services.rounds.states",
        "node.services.rounds.votes",
    ),
    ("node.services.rounds.applying", "node.services.training.groups", "node.services.filing"),
    ("node.services.claimer",),
    ("node.services.rounds.batches",),
    ("node.services.workplace", "node.services.membership", "node.services.own_words", "node.status"),
    (
        "node.services.answer_server",
        "node.services.hardware_prover",
        "node.services.continuity",
        "node.services.earnings_reporter",
        "node.services.run_progress",
        "node.services.engine",
        "node.services.jury",
        "node.services.gateway",
        "node.services.heartbeat",
        "node.services.rollout_worker",
        "node.services.leaf_reader",
        "node.services.departure",
        "node.services.rest_keeper",
        "node.services.pool_keeper",
        "node.services.checkpoint_server",
        "node.services.blob_repairer",
        "node.services.counter_keeper",
        "node.services.usage_tracker",
        "node.services.court",
        "node.services.training",
    ),
    ("node.services.judging", "node.services.tasking", "node.services.claim_carrier"),
    ("node.services.environment_catalogue", "node.services.auditing"),
    ("node.services.rounds",),
    ("node.daemon", "node.api"),
    ("node.sdk",),
    ("cli",),
)
"""Lowest first. A room is the longest name here that a module's name begins with."""
NAMESPACES = ("node", "node.services")
"""Packages whose rooms are listed one by one: a module in them that is not listed has no floor."""
IMPURE = ("socket", "random", "secrets", "time", "subprocess", "trio", "asyncio", "httpx", "requests")


def modules() -> dict[str, str]:
    """Name -> source of every module of the program."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if not {"node_modules", "cache", ".tools"} & {*path.relative_to(ROOT).parts}:
                parts = path.relative_to(ROOT).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                found[name] = path.read_text(encoding="utf-8")
    return found


parsed = cache(ast.parse)
"""Each module once, whoever asks."""


def statements(node: ast.AST, types: bool = True) -> Iterator[ast.AST]:
    """Everything in a module but its expressions, which hold no import and are most of it. types: also what is there
    for a type checker alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and not types and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield other
                yield from statements(other, types)
        elif not isinstance(child, ast.expr):
            yield child
            yield from statements(child, types)


def imports(name: str, source: str, types: bool = True) -> Iterator[str]:
    """Every module that one imports, at any depth, as an absolute name; `from a import b` gives a.b."""
    for node in statements(parsed(source), types):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*name.split(".")[: -node.level], *filter(None, [base])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def below(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@cache
def room(module: str) -> str | None:
    """The room in which a module stands, None if it has none."""
    rooms = [name for floor in FLOORS for name in floor if below(module, name)]
    found = max(rooms, key=len, default=None)
    return None if found in NAMESPACES and module not in NAMESPACES else found


def floor_of(name: str) -> int:
    return next(number for number, floor in enumerate(FLOORS) if name in floor)


def wrong_imports(sources: Mapping[str, str]) -> list[str]:
    """What the house does not allow, one line each."""
    wrong: list[str] = []
    for name, source in sources.items():
        own = room(name)
        if own is None:
            wrong.append(f"{name} has no floor: name it in FLOORS")
            continue
        for imported in imports(name, source):
            if below(imported, "tests"):
                wrong.append(f"{name} imports {imported}, a test")
            if below(name, "protocol") and any(below(imported, other) for other in IMPURE):
                wrong.append(f"{name} imports {imported}: the protocol has no clock, file or socket")
            if not any(below(imported, package) for package in PACKAGES):
                continue
            target = room(imported) or room(imported.rpartition(".")[0])  # `from package import name`
            if target and target != own and floor_of(target) >= floor_of(own):
                wrong.append(f"{name} imports {imported}, which does not stand below it")
    return wrong


def test_every_module_has_a_floor_and_imports_only_what_stands_below() -> None:
    wrong = wrong_imports(modules())
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("protocol.messages", "from node.errors import NodeError"),
        ("protocol.draw", "import time"),
        ("contracts.bindings", "from cli.main import main"),
        ("node.errors", "from node.swarm.board import Board"),
        ("node.network.host", "from node.blobs.store import BlobStore"),
        ("node.swarm.board", "from node.blobs.store import BlobStore"),
        ("node.swarm.vote_set", "from node.inference.client import EngineProcess"),
        ("node.chain.client", "from node.swarm.membership import Membership"),
        ("node.weights.publish", "from node.services.context import Context"),
        ("node.training.trainer", "from node.recipe.pool import RolloutPool"),
        ("node.services.court.slashing", "from node.services.judging.judge import Validator"),
        ("node.services.training.ingest", "from node.services.court import slashing"),
        ("node.services.rollout_worker", "from node.daemon import Daemon"),
        ("node.services.certifier", "from node.services.court import slashing"),
        ("node.status", "from node.services.rollout_worker import RolloutWorker"),
        ("node.light_client", "import tests.cheats.catalogue"),
        ("node.brand_new", "import os"),
        ("node.services.brand_new", "import os"),
    ],
)
def test_a_planted_import_is_found(module: str, line: str) -> None:
    """The control: without it a typing error in FLOORS could allow everything."""
    assert wrong_imports({module: line})


def test_what_is_allowed_is_not_reported() -> None:
    assert wrong_imports({"node.services.rollout_worker": "from protocol.messages import Heartbeat\nimport time"}) == []


# Who reads what people said

VIEWS = {
    "node/services/membership/peers.py": "where members are, for who comes when nobody answers",
}
"""Outside of `node/swarm`: what is only shown, and moves nothing."""


def readers_of_words() -> list[str]:
    """Places outside of `node/swarm` that read the board."""
    found = []
    for path in sorted((ROOT / "node").rglob("*.py")):
        name, source = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        if name.startswith("node/swarm/") or name in VIEWS or "board" not in source:
            continue
        for at in ast.walk(parsed(source)):
            if isinstance(at, ast.Attribute) and at.attr in ("subscribe", "messages"):
                whose = at.value.attr if isinstance(at.value, ast.Attribute) else getattr(at.value, "id", "")
                if whose.strip("_") == "board":
                    found.append(f"{name}:{at.lineno}")
    return found


def test_services_read_facts_and_nobody_outside_the_swarm_reads_words() -> None:
    assert readers_of_words() == []


def test_who_is_told_of_policies_is_told_what_is_taken_back_or_says_why_not() -> None:
    """A subscription to `PolicyFollowed` names `Undone`, too, or has a comment above it."""
    for path in sorted((ROOT / "node").rglob("*.py")):
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            if "facts.subscribe(" in line and "PolicyFollowed" in line and "Undone" not in line:
                assert lines[number - 1].lstrip().startswith("#"), f"{path.name}:{number + 1}: what if it is undone?"


# Circles, also within a room


def arrows(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Module -> what it imports of the program, at any depth, but for types alone."""
    found: dict[str, set[str]] = {}
    for name, source in sources.items():
        # `from package import name`: of the module of that name where there is one, else of the package's own words.
        named = (one if one in sources else one.rpartition(".")[0] for one in imports(name, source, types=False))
        found[name] = {one for one in named if one in sources and one != name}
    return found


def circles(found: Mapping[str, set[str]]) -> set[str]:
    """Modules that import themselves by way of others: what is left once those are taken away that import nothing."""
    left = {name: set(to) for name, to in found.items()}
    while ends := {name for name, to in left.items() if not to & left.keys()}:
        left = {name: to for name, to in left.items() if name not in ends}
    while begins := left.keys() - set().union(*left.values()):
        left = {name: to for name, to in left.items() if name not in begins}
    return set(left)


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circles(arrows(modules())) == set()


def test_a_planted_circle_is_found_and_a_type_is_none() -> None:
    """The control."""
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from node.a import A\n"
    sources = {"node.a": "def f():\n    from node import b\n", "node.b": typed, "node.c": "from node.a import f"}
    assert circles(arrows(sources)) == set()
    assert circles(arrows(sources | {"node.b": "import node.a"})) == {"node.a", "node.b"}
