from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from protocol.identity import Address, NodeKey
from tests.node.weights.little_swarm import Origin, Peer, Run, Wire


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture
def origin(wire: Wire, tmp_path: Path) -> Iterator[Callable[..., Origin]]:
    made: list[Origin] = []

    def make(name: str = "origin", key: NodeKey | None = None, **options: int) -> Origin:
        one = Origin(wire, tmp_path / name, key or NodeKey.generate(), **options)
        made.append(one)
        return one

    (tmp_path / "origin").mkdir()
    yield make
    for one in made:
        one.journal.close()


@pytest.fixture
def peer(wire: Wire, tmp_path: Path) -> Callable[..., Peer]:
    def make(name: str, trainer: Address, **options: object) -> Peer:
        return Peer(wire, tmp_path / name, trainer, **options)

    return make
