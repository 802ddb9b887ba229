"""What other machines need of the run, from machine 0: the run itself and its files, over the process group.

Machines share no disk; a shared one, or a second server, would be one more thing to set up and to protect. Every file
is checked against the run's own root before it has its name, so whatever has its name and size is taken to be it at
the next start.
"""

from collections.abc import Callable, Iterator
from itertools import repeat
from pathlib import Path

from blake3 import blake3

from node.state.files import whole_file, write_whole
from node.training.errors import TrainingError
from node.training.program import tell
from node.training.spool import Spool
from node.training.world import World
from protocol.blobs import choose_piece_size, describe_pieces
from protocol.run import Asset, decode_run

NEEDED = ("model/", "teacher/", "code/")
"""What ranks read; problems are machine 0's affair."""


def hand_over(world: World, spool: Spool, run: bytes, on_progress: Callable[[str], None] | None = None) -> None:
    """Give every machine the run and the files that it lacks. All ranks call it. Raises TrainingError."""
    on_progress = on_progress or _log
    receives = world.leader and not world.first
    if receives:
        write_whole(spool.run_path, run)
    assets = [one for one in decode_run(run, desk=True).assets if one.path.startswith(NEEDED)]  # machine 0 checked it
    # What one machine lacks is sent to all: a broadcast that a rank does not join never ends.
    lacking = world.maxima([float(receives and not _has(spool.assets, one)) for one in assets]) if assets else []
    for asset, needed in zip(assets, lacking, strict=True):
        if needed:
            on_progress(asset.path)
            _give(world, spool.assets, asset, take=receives and not _has(spool.assets, asset))
    world.share(b"\0")  # a machine's other ranks read the files that its first has written


def _has(directory: Path, asset: Asset) -> bool:
    path = directory / asset.path
    return path.is_file() and path.stat().st_size == asset.size


def _give(world: World, directory: Path, asset: Asset, *, take: bool) -> None:
    """One file, piece by piece, from machine 0 to those that take it."""
    size = choose_piece_size(asset.size)
    pieces = _read(directory / asset.path, asset.size, size) if world.first else repeat(b"", -(-asset.size // size))
    if not take:
        # Each piece is a broadcast, in which ranks take part that need nothing of it.
        for piece in pieces:
            world.hand_out(piece)
        return
    target = directory / asset.path
    target.parent.mkdir(parents=True, exist_ok=True)
    digests: list[bytes] = []
    with whole_file(target) as file:
        for piece in pieces:
            found = world.hand_out(piece)
            digests.append(blake3(found).digest())
            file.write(found)
        # Still inside the block: what raises here leaves no file of this name.
        if describe_pieces(asset.size, size, digests).root.hex() != asset.root:
            raise TrainingError(
                f"the run's file {asset.path} did not arrive as it is",
                "its root is another than the run names",
                "start this machine again; if it happens again, check the files of machine 0",
            )


def _read(path: Path, size: int, piece: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        for _ in range(0, size, piece):
            yield file.read(piece)


def _log(path: str) -> None:
    tell({"event": "training.handing_over", "file": path})
