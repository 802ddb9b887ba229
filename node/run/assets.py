"""Obtain the run: its specification by the root that stands on chain, then its files, from any member."""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog
import trio

from node.blobs.interface import Blobs
from node.environments.programs import own_copy
from node.errors import RunFileError
from node.run.file import CompiledRun, describe_file
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.run import MAX_RUN_BYTES, Asset, RunSpec, decode_run, encode_run

log = structlog.get_logger()
# For the blob's description and the first piece.
FIRST_TRY = 2.0
# Bytes a second for which one try is patient; a slower line needs several, each of which goes on where the last ended.
SLOWEST_RATE = 100_000
RETRY_PAUSE = 0.5
Sources = Callable[[], Sequence[Address]]


class Run(msgspec.Struct, frozen=True):
    """The run on this node. root: of the RunSpec; encoded: its canonical bytes; assets: directory of its files."""

    spec: RunSpec
    root: bytes
    encoded: bytes
    assets: Path


async def obtain_run(root: bytes, blobs: Blobs, sources: Sources, directory: Path) -> Run:
    """Fetch run `root` and its assets into `directory`, asking the members again until they have it."""
    spec = await obtain_spec(root, blobs, sources)
    assets = directory / root.hex()[:16]
    for asset in spec.assets:
        await place_asset(asset, blobs, sources, assets)
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


def _own_copy(asset: Asset) -> Path | None:
    """This user's copy of the sandbox's interpreter or a package of its shelf: it need not be fetched again.

    The interpreter alone has 26 MB, which is most of what a small run moves. Its root says that the copy is the same.
    """
    path = own_copy(asset.path)
    return path if path is not None and describe_file(path).root.hex() == asset.root else None


async def _insist(blobs: Blobs, root: bytes, sources: Sources, max_size: int, size: int) -> Path:
    """Fetch, and try again for as long as nobody has it: members come and go.

    Each try is short, so that the members who came in the meantime are asked too; what a try has fetched stays.
    """
    complained = False
    patience = FIRST_TRY + size / SLOWEST_RATE
    while True:
        holders = list(sources())
        if holders:
            try:
                return await blobs.fetch(root, holders, max_size=max_size, timeout=patience)
            except IntellectError as error:
                log.info("run.not_yet", root=root.hex()[:16], why=error.why)
        elif not complained:
            log.info("run.waiting_for_members", root=root.hex()[:16])
            complained = True
        await trio.sleep(RETRY_PAUSE)


def _link(source: Path, target: Path) -> None:
    """Make `target` the same file, by copy, atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    # A copy, not a link: the store may evict its own, and whoever edits a file here must not change a blob.
    shutil.copyfile(source, partial)
    os.replace(partial, target)
