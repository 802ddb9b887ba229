"""The sandbox's interpreter among a run's files: whoever has it does not fetch it again."""

from pathlib import Path

import pytest
import trio

from node.blobs.exchange import BlobExchange
from node.blobs.store import BlobStore
from node.environments import programs
from node.environments.programs import RUNTIME
from node.run.assets import obtain_run
from node.sandbox import RuntimeMissing
from protocol.blobs import describe
from protocol.identity import Address, address_from_bytes
from protocol.run import Asset, EnvironmentSpec, RunSpec, encode_run
from tests.node.networks import Swarm, real

__all__ = ["real"]

HOLDER = address_from_bytes(b"\x05" * 20)


class Fetched:
    """A store that notes what is fetched, in place of all ways to get a blob."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self.roots: list[bytes] = []

    async def fetch(self, root: bytes, holders: list[Address], *, max_size: int, timeout: float) -> Path:
        self.roots.append(root)
        return self._store.path(root)


@pytest.mark.parametrize("own", ["the interpreter", "another one", None])
async def test_only_the_very_same_interpreter_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    def find_runtime() -> Path:
        if own is None:
            raise RuntimeMissing("none", "it is not here", "install it")
        (tmp_path / "own.wasm").write_text(own)
        return tmp_path / "own.wasm"

    monkeypatch.setattr(programs, "find_runtime", find_runtime)
    content = b"the interpreter"
    asset = Asset(path=RUNTIME, root=describe(content).root.hex(), size=len(content))
    encoded = encode_run(RunSpec(name="r", environment=EnvironmentSpec(name="sort"), assets=(asset,)))
    store = BlobStore(tmp_path / "blobs", 1 << 20)
    run_root = (await store.add(encoded)).root
    blobs = Fetched(store)
    root = (await store.add(content)).root
    run = await obtain_run(run_root, blobs, lambda: [HOLDER], tmp_path / "runs")  # type: ignore[arg-type]
    assert (run.assets / RUNTIME).read_bytes() == content
    assert blobs.roots == ([run_root] if own == "the interpreter" else [run_root, root])


async def test_an_interpreter_that_is_not_here_comes_from_a_peer_over_libp2p(
    real: Swarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_runtime() -> Path:
        raise RuntimeMissing("none", "it is not here", "install it")

    monkeypatch.setattr(programs, "find_runtime", find_runtime)
    content = bytes(range(256)) * 8192  # several pieces
    asset = Asset(path=RUNTIME, root=describe(content).root.hex(), size=len(content))
    run = encode_run(RunSpec(name="r", environment=EnvironmentSpec(name="sort"), assets=(asset,)))
    networks = [real.make(), real.make()]
    stores = [BlobStore(tmp_path / name, 1 << 26) for name in ("owner", "newcomer")]
    exchanges = [BlobExchange(network, store) for network, store in zip(networks, stores, strict=True)]
    await real.start(*networks)
    await real.introduce(*networks)
    root = (await stores[0].add(run)).root
    await stores[0].add(content)
    with trio.fail_after(60):
        obtained = await obtain_run(root, exchanges[1], lambda: [networks[0].address], tmp_path / "runs")
    assert (obtained.assets / RUNTIME).read_bytes() == content
