"""The outer states on this node's disk: which are whole, which are kept, and the image of one. Blocking."""

from pathlib import Path

import structlog

from node.state.files import write_whole
from node.training.errors import TrainingError
from node.training.outer import OuterStateFile, write_policy
from node.weights.images import DescribedImage, describe_image

log = structlog.get_logger()


class OuterFiles:
    """folder: in the spool."""

    def __init__(self, folder: Path) -> None:
        self._kept_states = 2
        self._folder = folder

    def path(self, round_: int) -> Path:
        return self._folder / f"outer-{round_:06d}.safetensors"

    def whole(self) -> list[Path]:
        """The newest outer states that are whole here, oldest first. (The learner made that of round 0 again.)"""
        whole = list[Path]()
        newest = -1
        for path in sorted(self._folder.glob("outer-*.safetensors"), reverse=True):
            try:
                found = OuterStateFile(path)
                found.check()
            except TrainingError as error:
                log.warning("outer_state.damaged", path=str(path), why=error.why)
                path.unlink()
            else:
                newest = max(newest, found.round)
                whole = [path, *whole] if found.round >= newest - self._kept_states else whole
        if whole:
            return whole
        raise TrainingError("no outer state is here", str(self._folder), "start the node again")

    def adopt(self, path: Path, round_: int, root: bytes) -> None:
        """Keep what others handed over. Raises TrainingError where that is not the named state."""
        found = OuterStateFile(path)
        found.check()
        # Its bytes were those of the blob; whether they are the named state only its own root says.
        if (found.round, found.root) != (round_, root):
            raise TrainingError("an outer state is another one than the quorum named", str(path), "it is tried again")
        # A copy: the store may let go of the blob at any moment.
        write_whole(self.path(round_), path.read_bytes())

    def forget(self, round_: int) -> None:
        """Those of rounds long before, with what was contributed to them here."""
        for path in self._folder.iterdir():
            number = path.name.removeprefix("outer-").removesuffix(".safetensors")
            if number.isdigit() and int(number) < round_ - self._kept_states:
                for inner in path.iterdir() if path.is_dir() else ():
                    inner.unlink()
                path.rmdir() if path.is_dir() else path.unlink()

    def own(self) -> list[Path]:
        """What this node's contributions to the newest rounds left it, oldest first."""
        return sorted(self._folder.glob("[0-9]*/own-*.safetensors"))


def made_policy(outer: Path, image: Path) -> tuple[int, DescribedImage]:
    """Write the bf16 image of an outer state: (its round, what the image is)."""
    state = OuterStateFile(outer)
    write_policy(state, image)
    return state.round, describe_image(image)
