"""Obtain the run: its specification by the root that stands on chain, then its files, from any member.

A file whose source the run names may come from the hub as well: out of this user's cache, or, a minute after the peers
gave nothing more, from the hub itself. Its root decides, whoever gave it, and what came is served to peers.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog
import trio

from node import hub
from node.blobs.errors import BlobTooLarge, StoreFull
from node.blobs.interface import Blobs
from node.config import HubUse
from node.environments.programs import own_copy
from node.errors import RunFileError
from node.run.file import CompiledRun, describe_file
from node.run.sources import origin_of
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.run import MAX_RUN_BYTES, Asset, RunSpec, decode_run, encode_run

log = structlog.get_logger()
Sources = Callable[[], Sequence[Address]]


class Run(msgspec.Struct, frozen=True):
    """The run on this node. root: of the RunSpec; encoded: its canonical bytes; assets: directory of its files."""

    spec: RunSpec
    root: bytes
    encoded: bytes
    assets: Path


async def obtain_run(
    root: bytes,
    blobs: Blobs,
    sources: Sources,
    directory: Path,
    *,
    use: HubUse = "never",
    stall: float = 60.0,  # without a byte of peers, after which the hub is asked, too
) -> Run:
    """Fetch run `root` and its assets into `directory`, asking the members again until they have it. use, stall: when
    the hub is asked for what the run names there."""
    spec = await obtain_spec(root, blobs, sources)
    assets = directory / root.hex()[:16]
    if spec.sources and use != "never" and not hub.installed():
        log.info("run.no_hub_client", why="the extra [train] is not installed, so files come from peers alone")
    for asset in spec.assets:
        origin = origin_of(asset.path, spec.sources) if hub.installed() else None
        if origin is None or not await _have_of_hub(asset, origin, blobs, assets):
            await _place(asset, blobs, sources, assets, origin, use, stall)
    log.info("run.obtained", name=spec.name, root=root.hex()[:16], files=len(spec.assets))
    return Run(spec, root, encode_run(spec), assets)


async def obtain_spec(root: bytes, blobs: Blobs, sources: Sources) -> RunSpec:
    """What the run says, without its files."""
    path = await _insist(blobs, root, sources, MAX_RUN_BYTES, 0)
    return decode_run(await trio.to_thread.run_sync(path.read_bytes))


async def offer_run(compiled: CompiledRun, pool_root: bytes, blobs: Blobs, directory: Path) -> Run:
    """The owner's side: check that the run is the pool's, and put it and its assets into the store."""
    if compiled.root != pool_root:
        raise RunFileError(
            "the run file is not this pool's run",
            f"its root is {compiled.root.hex()[:16]}…, the pool's is {pool_root.hex()[:16]}…: "
            "the file, the model or the data set changed since the pool was opened",
            "restore them, or open a new pool: intellect-node contract pool create --run FILE",
        )
    # The spec first: a member that asks for the run can read what it needs while the weights are still being hashed.
    await blobs.add(compiled.encoded)
    assets = directory / compiled.root.hex()[:16]
    for asset in compiled.spec.assets:
        await blobs.add(compiled.files[asset.path])
        await trio.to_thread.run_sync(_link, compiled.files[asset.path], assets / asset.path)
    return Run(compiled.spec, compiled.root, compiled.encoded, assets)


def image_limit(spec: RunSpec) -> int:
    """The largest policy image that a member accepts, bytes: twice the run's own model files."""
    # Without a bound a trainer could fill everybody's disk.
    return 2 * spec.weight_bytes() + (1 << 20)


async def place_asset(asset: Asset, blobs: Blobs, sources: Sources, directory: Path) -> None:
    """Put a file of a run or task into `directory`, asking for it until somebody has it."""
    own = await trio.to_thread.run_sync(_own_copy, asset)
    if own is not None:
        await trio.to_thread.run_sync(_link, own, directory / asset.path)
        return
    path = await _insist(blobs, bytes.fromhex(asset.root), sources, asset.size, asset.size)
    await trio.to_thread.run_sync(_link, path, directory / asset.path)


Origin = tuple[str, str]
"""(hf:[datasets/]OWNER/NAME@COMMIT[/FOLDER], file)."""


async def _have_of_hub(asset: Asset, origin: Origin, blobs: Blobs, directory: Path) -> bool:
    """Whether this user's cache of the hub has the file: then it is placed."""
    path = await trio.to_thread.run_sync(hub.from_origin, *origin)
    return path is not None and await _keep(asset, path, blobs, directory)


async def _place(
    asset: Asset, blobs: Blobs, sources: Sources, directory: Path, origin: Origin | None, use: HubUse, stall: float
) -> None:
    """From peers, and where the run names its source and it is wanted, from the hub: whoever has it first."""
    if origin is None or use == "never":
        return await place_asset(asset, blobs, sources, directory)
    if use == "first" and await _by_hub(asset, origin, blobs, directory):
        return None
    async with trio.open_nursery() as nursery:

        async def by_peers() -> None:
            await place_asset(asset, blobs, sources, directory)
            nursery.cancel_scope.cancel()

        nursery.start_soon(by_peers)
        while True:
            await _stalled(bytes.fromhex(asset.root), blobs, stall)
            if await _by_hub(asset, origin, blobs, directory):
                nursery.cancel_scope.cancel()
            # Seconds between two questions to a hub that does not help.
            stall = min(2 * stall, 3600.0)  # it refused, or lied: peers may still come
    return None


async def _stalled(root: bytes, blobs: Blobs, seconds: float) -> None:
    """Returns when nothing of a blob came for so long."""
    before = -1
    while (now := await trio.to_thread.run_sync(blobs.arrived, root)) > before:
        before = now
        await trio.sleep(seconds)


async def _by_hub(asset: Asset, origin: Origin, blobs: Blobs, directory: Path) -> bool:
    """Whether the hub gave it."""
    log.info("run.asking_the_hub", file=asset.path, source=origin[0])
    try:
        # abandoned where peers are faster: what has come stays in the client's cache
        path = await trio.to_thread.run_sync(hub.fetch_from_origin, *origin, asset.size, abandon_on_cancel=True)
    except hub.HubError as error:
        log.info("run.not_by_hub", file=asset.path, why=f"{error.what}: {error.why}")
        return False
    return await _keep(asset, path, blobs, directory)


async def _keep(asset: Asset, path: Path, blobs: Blobs, directory: Path) -> bool:
    """Place a file that the hub has given, and serve it, if it is the run's own."""
    if (await trio.to_thread.run_sync(describe_file, path)).root.hex() != asset.root:
        log.warning("run.hub_has_another_file", file=asset.path, why="its root is not the one that the run names")
        return False  # it stays in the cache: there it may be somebody's model, and runs are strangers'
    await blobs.add(path)
    await trio.to_thread.run_sync(_link, path, directory / asset.path)
    return True


def _own_copy(asset: Asset) -> Path | None:
    """This user's copy of the sandbox's interpreter or a package of its shelf: it need not be fetched again.

    The interpreter alone has 26 MB, which is most of what a small run moves. Its root says that the copy is the same.
    """
    path = own_copy(asset.path)
    return path if path is not None and describe_file(path).root.hex() == asset.root else None


async def _insist(
    blobs: Blobs, root: bytes, sources: Sources, max_size: int, size: int, *, retry_pause: float = 0.5
) -> Path:
    """Fetch, and try again for as long as nobody has it: members come and go.

    Each try is short, so that the members who came in the meantime are asked too; what a try has fetched stays.
    """
    complained = False
    # Bytes a second for which one try is patient; a slower line needs several, each of which goes on where the last
    # ended.
    patience = 2.0 + size / 100_000  # for the blob's description and the first piece
    while True:
        holders = list(sources())
        try:
            # Without members, too: what lies here already needs none.
            return await blobs.fetch(root, holders, max_size=max_size, timeout=patience if holders else retry_pause)
        except IntellectError as error:
            if isinstance(error, BlobTooLarge) and error.limit < max_size:  # this node's own bound: no member can help
                why = f"a file of the run has {size:,} bytes, and the store may have {error.limit:,} in all"
                raise StoreFull(why) from error
            if holders:
                log.info("run.not_yet", root=root.hex()[:16], why=error.why)
            elif not complained:
                log.info("run.waiting_for_members", root=root.hex()[:16])
                complained = True
        await trio.sleep(retry_pause)


def _link(source: Path, target: Path) -> None:
    """Make `target` the same file, by copy, atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    # A copy, not a link: the store may evict its own, and whoever edits a file here must not change a blob.
    shutil.copyfile(source, partial)
    os.replace(partial, target)
