"""A run's files: what a node has it does not fetch again, and what the run names on the hub may come from there."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from node.blobs.errors import BlobTooLarge, BlobUnavailable, StoreFull
from node.blobs.exchange import BlobExchange
from node.blobs.store import BlobStore
from node.config import HubUse
from node.environments import programs
from node.environments.programs import RUNTIME
from node.run.assets import obtain_run
from node.sandbox import RuntimeMissing
from protocol.blobs import describe
from protocol.identity import Address, address_from_bytes
from protocol.run import Asset, EnvironmentSpec, RunError, RunSpec, encode_run
from tests.hub import Hub, opened, ours
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


async def test_a_file_for_which_this_node_grants_no_room_is_not_asked_for_again_and_one_that_a_peer_calls_too_large_is(
    tmp_path: Path, autojump_clock: object
) -> None:
    store = BlobStore(tmp_path / "blobs", 1 << 20)
    root = (await store.add(encode_run(RunSpec(name="r", environment=EnvironmentSpec(name="sort"))))).root

    class Small(Fetched):
        limits: list[int]

        async def fetch(self, root: bytes, holders: list[Address], *, max_size: int, timeout: float) -> Path:
            if self.limits:
                raise BlobTooLarge(root, 1 << 60, min(self.limits.pop(), max_size))
            return await super().fetch(root, holders, max_size=max_size, timeout=timeout)

    blobs = Small(store)
    blobs.limits = [10]
    with pytest.raises(StoreFull, match="the store may have 10 in all"):
        await obtain_run(root, blobs, lambda: [HOLDER], tmp_path / "runs")  # type: ignore[arg-type]
    blobs.limits = [1 << 60]
    await obtain_run(root, blobs, lambda: [HOLDER], tmp_path / "runs")  # type: ignore[arg-type]
    assert blobs.roots == [root]


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


# --- files whose source the run names ------------------------------------------------------------
class Peers(Fetched):
    """Peers of whom nobody has any file but the run itself."""

    def __init__(self, store: BlobStore, run: bytes) -> None:
        super().__init__(store)
        self._run = run
        self.add, self.arrived = store.add, store.arrived

    async def fetch(self, root: bytes, holders: list[Address], *, max_size: int, timeout: float) -> Path:
        if root == self._run or self._store.has(root):
            return self._store.path(root)
        self.roots.append(root)
        raise BlobUnavailable(root, "nobody has it")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    pytest.importorskip("huggingface_hub")
    with opened() as made:
        ours(made, tmp_path, monkeypatch)
        yield made


async def of_a_hub(tmp_path: Path, source: str, content: bytes) -> tuple[bytes, Peers]:
    asset = Asset(path="model/config.json", root=describe(content).root.hex(), size=len(content))
    spec = RunSpec(name="r", environment=EnvironmentSpec(name="sort"), assets=(asset,), sources={"model": source})
    spec.check()
    store = BlobStore(tmp_path / "blobs", 1 << 20)
    root = (await store.add(encode_run(spec))).root
    return root, Peers(store, root)


@pytest.mark.parametrize("use", ["late", "first"])
async def test_a_file_that_no_peer_has_comes_from_the_hub_and_is_served(site: Hub, tmp_path: Path, use: HubUse) -> None:
    commit = site.add("me/model", {"config.json": b"{}"})
    root, peers = await of_a_hub(tmp_path, f"hf:me/model@{commit}", b"{}")
    with trio.fail_after(20):
        run = await obtain_run(root, peers, lambda: [HOLDER], tmp_path / "runs", use=use, stall=0.1)  # type: ignore[arg-type]
    assert (run.assets / "model/config.json").read_bytes() == b"{}"
    assert peers._store.has(describe(b"{}").root)
    assert bool(peers.roots) == (use == "late")
    site.asked.clear()
    again, others = await of_a_hub(tmp_path / "again", f"hf:me/model@{commit}", b"{}")
    await obtain_run(again, others, lambda: [HOLDER], tmp_path / "others")  # type: ignore[arg-type]
    assert site.asked == [] and others.roots == []  # out of this user's cache, which asks nobody


@pytest.mark.parametrize(
    ("given", "use", "asked"), [(b"[]", "late", True), (b"{ }", "late", True), (b"{}", "never", False)]
)
async def test_a_hub_that_lies_or_must_not_be_asked_gives_nothing(
    site: Hub, tmp_path: Path, given: bytes, use: HubUse, asked: bool
) -> None:
    commit = site.add("me/model", {"config.json": given})
    root, peers = await of_a_hub(tmp_path, f"hf:me/model@{commit}", b"{}")
    with trio.move_on_after(1.5):
        await obtain_run(root, peers, lambda: [HOLDER], tmp_path / "runs", use=use, stall=0.1)  # type: ignore[arg-type]
        pytest.fail("nobody had it")
    assert bool(site.asked) == asked
    assert not list((tmp_path / "runs").rglob("config.json"))
    assert len(site.bodies()) == (given == b"[]")  # of another size not a byte is fetched
    # Then a peer comes, and its file is taken.
    await peers._store.add(b"{}")
    with trio.fail_after(20):
        run = await obtain_run(root, peers, lambda: [HOLDER], tmp_path / "runs", use=use, stall=0.1)  # type: ignore[arg-type]
    assert (run.assets / "model/config.json").read_bytes() == b"{}"


@pytest.mark.parametrize(
    "source",
    [
        "hf:me/model",
        "hf:me/model@main",
        "https://elsewhere/x",
        "hf:me/../x@" + "0" * 40,
        "hf:a/b@" + "0" * 40 + "/../c",
    ],
)
def test_a_run_names_commits_of_repositories_and_nothing_else(source: str) -> None:
    asset = Asset(path="model/config.json", root="0" * 64, size=2)
    spec = RunSpec(name="r", environment=EnvironmentSpec(name="sort"), assets=(asset,), sources={"model": source})
    with pytest.raises(RunError, match="sources"):
        spec.check()


def test_a_run_without_sources_has_the_root_that_it_had() -> None:
    spec = RunSpec(name="r", environment=EnvironmentSpec(name="sort"))
    assert b"sources" not in encode_run(spec)
