"""The pen: whether this daemon may promise now, and the mark by which a start knows that its journal is the newest.

A copy of a state directory, and a backup of one, have every promise up to a moment and none after it: a daemon that
goes on with it signs what was signed before. From the inside it cannot be told. So a mark lies outside of the
directory, in memory: which file the journal is, and how many promises it has. It is written after the disk and before
the saying. Where it is missing, or names another file or more promises, the daemon is in doubt, and the pen stays shut
until the pool was asked (`node.services.continuity`). A restart has its mark; a rebooted machine has none.
"""

import hashlib
import os
import secrets
import tempfile
from pathlib import Path

import msgspec
import structlog
import trio

from node.errors import NodeError, StateError
from node.state.files import own_directory
from protocol.errors import UNREADABLE

log = structlog.get_logger()
MAX_MARK = 4096
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class TwinError(NodeError):
    """Another daemon speaks with this node's key."""


class PenShut(Exception):
    """A promise came between the look at the pen and the journal's turn. It waits again."""


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """boot_id: of the kernel; device, inode: of the journal's file; generation: of the start that wrote this; words:
    promises that the journal had."""

    boot_id: str
    device: int
    inode: int
    generation: int
    words: int


class Fence(msgspec.Struct, frozen=True):
    """What may have been signed by a daemon whose journal this one has not: of steps up to `step` (in a run with
    rounds, of rounds) and of `tasks` (32 bytes each) nothing new is signed. Kept in the journal."""

    step: int = -1
    tasks: tuple[bytes, ...] = ()

    def covers(self, step: int, task: bytes | None = None) -> bool:
        """task: whose shard it is, where it is no step's."""
        return task in self.tasks if task is not None else step <= self.step

    def with_more(self, step: int, tasks: tuple[bytes, ...]) -> "Fence":
        # Tasks under a fence, as many as are known at a time.
        return Fence(max(self.step, step), tuple(dict.fromkeys((*self.tasks, *tasks)))[-64:])


def mark_place(directory: Path, pool: str) -> Path:
    """Where the mark of a state directory's journal for a pool lies. Raises OSError."""
    name = hashlib.sha256(os.fsencode(directory.resolve()) + b"\0" + pool.encode()).hexdigest()[:32]
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    # Of a service manager's daemons there is no such directory.
    base = Path(runtime) if os.access(runtime, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    return base / f"intellect-node-{os.getuid()}" / "marks" / name


def boot_id() -> str:
    """Another one after each boot of the machine; empty where the system does not tell."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def read_mark(place: Path) -> Mark | None:
    """None where there is none that this user wrote for itself alone."""
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    shared_with_others = 0o077
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        # The place may be everybody's: a stranger's mark would tell this daemon that all is well.
        if status.st_uid != os.getuid() or status.st_mode & shared_with_others:
            return None
        try:
            raw = file.read(MAX_MARK + 1)
            return msgspec.json.decode(raw, type=Mark) if len(raw) <= MAX_MARK else None
        except (OSError, *UNREADABLE):
            return None


class Pen:
    """One of each daemon. Open from the start where nobody examines it, as at a desk and in tests.

    generation: of this start, higher than of all before, and the first half of its heartbeats' numbers.
    """

    def __init__(self, *, shut: bool = False, generation: int = 0) -> None:
        self.generation = generation
        self.doubt = ""
        """Why it is shut, in words."""
        self.held = ""
        """Why it is held: another daemon was heard with this key."""
        self.given_up = False
        """This daemon is the second one with its key: it ends, and takes nothing from the first."""
        self._shut = shut
        self._silent = shut
        self._changed = trio.Event()
        self._place: Path | None = None
        self._file = (0, 0)

    @property
    def may_write(self) -> bool:
        return not (self._shut or self.held)

    @property
    def is_inactive(self) -> bool:
        """Whether not even heartbeats are said."""
        return self._silent

    async def ready(self) -> None:
        """Returns while it is open and not held."""
        while not self.may_write:
            await self._changed.wait()

    async def may_speak(self) -> None:
        """Returns once heartbeats may be said."""
        while self._silent:
            await self._changed.wait()

    # the mark. Blocking.

    def examine(self, place: Path, journal: Path, generations: tuple[int, int], words: int, *, first: bool) -> str:
        """Why this start is in doubt, in words; empty where it is not. generations: of the start that opened the pen
        last, and of the last start, as the journal has them; words: its promises; first: the node never was in this
        pool. What is in doubt has no mark from now on, so that a second start doubts, too."""
        status = journal.stat()
        self._place, self._file = place, (status.st_dev, status.st_ino)
        self.doubt = "" if first else self._doubted(read_mark(place), generations, words)
        if self.doubt:
            place.unlink(missing_ok=True)
        return self.doubt

    def _doubted(self, mark: Mark | None, generations: tuple[int, int], words: int) -> str:
        if mark is None or not mark.boot_id or mark.boot_id != boot_id():
            return "the machine was started anew, or the state directory was moved, copied or restored"
        if (mark.device, mark.inode) != self._file:
            return "the journal is another file than the one that this node wrote last"
        if words < mark.words:
            return f"the journal has {words} promises, and there were {mark.words}: it is an older copy"
        if mark.generation not in generations:
            return "the journal is not the one that this node's last daemon wrote"
        return ""

    def wrote(self, words: int) -> None:
        """The journal has so many promises on the disk: before any of them is said. Raises StateError."""
        if self._place is None:
            return
        mark = Mark(boot_id(), *self._file, self.generation, words)
        try:
            for directory in (self._place.parent.parent, self._place.parent):
                own_directory(directory)
            partial = self._place.with_suffix(".new")
            partial.unlink(missing_ok=True)
            # Not synced: a mark that a power cut takes is one that a reboot would have taken.
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(mark))
            os.replace(partial, self._place)
        except OSError as error:
            self._without_mark(self._place, error)

    def _without_mark(self, place: Path, error: OSError) -> None:
        """A mark that names too few promises would let an older journal pass: rather none, and the next start asks."""
        log.warning("mark.not_written", place=str(place), why=str(error))
        try:
            place.unlink(missing_ok=True)
        except OSError as stays:
            raise StateError(
                "cannot promise anything",
                f"the mark {place} can be neither written nor removed: {stays}",
                "give this user its runtime directory (XDG_RUNTIME_DIR) for writing, then start again",
            ) from error

    # its states

    def renew(self, heard: int) -> None:
        """Take a generation above the own one and all that were heard; drawn, so that of copies of one moment all but
        the highest end. heard: the highest of them."""
        drawn = 1000
        self.generation = max(self.generation, heard) + 1 + secrets.randbelow(drawn)

    def speak(self) -> None:
        """Heartbeats only: so copies of one moment hear each other before either promises anything."""
        self._silent = False
        self._tell()

    def open(self) -> None:
        self._shut = self._silent = False
        self.doubt = self.held = ""
        self._tell()

    def hold(self, why: str) -> None:
        """No promise until `open`."""
        self.held = why

    def give_up(self) -> None:
        self.given_up, self._shut, self._silent = True, True, True

    def _tell(self) -> None:
        event, self._changed = self._changed, trio.Event()
        event.set()
