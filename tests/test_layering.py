"""Imports point one way: cli -> node -> contracts -> protocol; inside node, neighbours keep to themselves."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ORDER = ("protocol", "contracts", "node", "cli")
NEIGHBOURS = ("network", "chain", "weights", "gateway", "inference", "training", "environments")
ASSEMBLY = {"node.daemon", "node.status", "node.assets"}
"""The daemon and its two pages that put the parts together: what it tells, and how a run reaches its role."""
ON_TOP = ASSEMBLY | {"node.roles", "node.api"}

# A neighbour's public face, which others may import: interfaces, its double, its errors, its wire types.
# Everything else of a neighbour is its own business.
ALLOWED: dict[str, tuple[str, ...]] = {
    # The trainer and the engine speak about one model and one environment.
    "node.training": ("node.inference", "node.environments"),
    "node.inference": ("node.environments", "node.training.batch"),
    # HTTP is the other way when the swarm fails.
    "node.gateway": ("node.network.errors", "node.network.store"),
    # Weights travel over the network's interface.
    "node.weights": ("node.network.interface", "node.network.blobs", "node.network.errors"),
}


def sources(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    return [path for path in found if not {"node_modules", "cache", ".tools"} & {*path.relative_to(ROOT).parts}]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, at any depth, as an absolute name; `from a import b` gives a.b."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                own = list(path.relative_to(ROOT).parent.parts)
                base = ".".join([*own[: len(own) - node.level + 1], *filter(None, [base])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def below(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_those_beneath_it(package: str) -> None:
    above = ORDER[ORDER.index(package) + 1 :]
    wrong = [
        f"{module_name(path)} imports {name}"
        for path in sources(package)
        for name in imports(path)
        if any(below(name, other) for other in above)
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_of_the_program_imports_its_tests() -> None:
    wrong = [
        f"{module_name(path)} imports {name}"
        for package in ORDER
        for path in sources(package)
        for name in imports(path)
        if below(name, "tests")
    ]
    assert not wrong, "\n".join(wrong)


def test_only_the_daemons_assembly_imports_the_roles() -> None:
    wrong = [
        f"{module_name(path)} imports {name}"
        for path in sources("node")
        for name in imports(path)
        if below(name, "node.roles")
        and not below(module_name(path), "node.roles")
        and module_name(path) not in ASSEMBLY
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("neighbour", NEIGHBOURS)
def test_neighbours_inside_the_node_do_not_import_each_other(neighbour: str) -> None:
    own = f"node.{neighbour}"
    others = [f"node.{other}" for other in NEIGHBOURS if other != neighbour]
    allowed = ALLOWED.get(own, ())
    wrong = [
        f"{module_name(path)} imports {name}"
        for path in sources(f"node/{neighbour}")
        for name in imports(path)
        if any(below(name, other) for other in [*others, *ON_TOP]) and not any(below(name, face) for face in allowed)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_protocol_reads_no_clock_no_file_and_no_socket() -> None:
    impure = ("socket", "random", "secrets", "time", "subprocess", "trio", "asyncio", "httpx", "requests")
    wrong = [
        f"{module_name(path)} imports {name}"
        for path in sources("protocol")
        for name in imports(path)
        if any(below(name, other) for other in impure)
    ]
    assert not wrong, "\n".join(wrong)
