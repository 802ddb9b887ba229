"""Bells at a spool: whoever has written into it wakes the processes that wait for that, without their asking the disk.

A bell is a named pipe of one process that listens: a byte in it says that something is new, and nothing else. It lies
in a directory of its own outside the spool, since who copies a directory would copy pipes as files; a file in `bells/`
says where. Any process of this machine may ring, torchrun's ranks and a learner of before too. Where nobody listens, or
a bell cannot be rung, nothing is lost: who waits looks by itself now and then (`node.training.watch`). Knows no trio: a
learner imports none.
"""

import os
import select
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FOLDER, _PREFIX, _PIPE = "bells", "intellect-bell-", "pipe"


def ring(root: Path) -> None:
    """Wake all that listen at a spool. Never waits, and never raises."""
    with suppress(OSError):  # nobody has listened here yet
        for note in list((root / _FOLDER).iterdir()):
            with suppress(OSError), _opened(note) as pipe:  # its process was killed, or many bytes wait for it already
                os.write(pipe, b"\0")


@contextmanager
def _opened(note: Path) -> Iterator[int]:
    """The end to ring at. Raises OSError where nobody listens, or where no pipe is."""
    pipe = os.open(_place(note) / _PIPE, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
            raise FileNotFoundError(note)
        yield pipe
    finally:
        os.close(pipe)


def _place(note: Path) -> Path:
    """Where a bell lies. Raises OSError where the note names none: nothing else is ever opened, or taken away."""
    with note.open("rb") as file:
        place = Path(os.fsdecode(file.read(4096)))  # the longest path
    if not place.is_absolute() or not place.name.startswith(_PREFIX):
        raise FileNotFoundError(note)
    return place


@contextmanager
def hung(root: Path) -> Iterator[int | None]:
    """A descriptor that can be read once it rings; None where no pipe can be made. Blocking, for moments."""
    ends, place, note = list[int](), None, None
    try:
        try:
            (root / _FOLDER).mkdir(parents=True, exist_ok=True)
            _clear(root / _FOLDER)
            place = Path(tempfile.mkdtemp(prefix=_PREFIX))  # nobody else's
            os.mkfifo(place / _PIPE, 0o600)
            ends.append(os.open(place / _PIPE, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            # Without a writer of its own the pipe would be at its end, and readable for good, after the first ring.
            ends.append(os.open(place / _PIPE, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            note = root / _FOLDER / place.name
            note.write_bytes(os.fsencode(place))
        except OSError:
            yield None
        else:
            yield ends[0]
    finally:
        for end in ends:
            os.close(end)
        with suppress(OSError):
            if note is not None:
                note.unlink(missing_ok=True)
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)


def _clear(folder: Path) -> None:
    """Take away what killed processes left: nobody reads there any more."""
    for note in list(folder.iterdir()):
        try:
            with _opened(note):
                continue
        except OSError:
            with suppress(OSError):
                place = _place(note)
                if stat.S_ISFIFO((place / _PIPE).lstat().st_mode):
                    (place / _PIPE).unlink()
                    place.rmdir()
            note.unlink(missing_ok=True)


def wait(bell: int | None, seconds: float = 1.0, *, deaf: float = 0.02) -> None:
    """Until it rings, or for so many seconds, which are `deaf` where no bell hangs. Blocking: for a learner."""
    if bell is None:
        return time.sleep(deaf)
    heard = select.poll()  # select knows no descriptors above 1,023
    heard.register(bell, select.POLLIN)
    if heard.poll(1000 * seconds):
        silence(bell)
    return None


def silence(bell: int) -> None:
    """Take out what has rung so far."""
    # Where nothing has rung since, the pipe is empty, and to read it would wait.
    with suppress(BlockingIOError):
        while len(os.read(bell, 4096)) == 4096:
            pass
