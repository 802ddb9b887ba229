"""Cells that go on from one world: what comes before a liar's first word is played once, in a process of its own.

That process stands still at the moment before the first word (`cells.FIRST`) and forks for each cell. The fork gets the
cell's liar, plays on under the clock that it has, compares and says what it found. A cell costs half as much by that,
and leaves nothing behind. A fault may be planted in the fork: from the liar's first word on, in what is called after
that. What began with the world goes on as it was.
"""

import gc
import importlib
import os
import select
import shutil
import signal
import tempfile
import time
import traceback
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest.mock import patch

import msgspec
import trio
from trio._core._run import GLOBAL_RUN_CONTEXT

from benchmarks.command import run_seeded
from tests.attacks.matrix import cells
from tests.attacks.matrix.cells import DROPS, FIRST, Cell, Finding, Speaker, stopped, without
from tests.attacks.matrix.remembered import remembering
from tests.attacks.matrix.steady import steady
from tests.attacks.matrix.world import Nobody, Stuck, World, inline, limited

Answer = tuple[float, list[Finding]]
"""CPU seconds of a cell, and what it found."""
Ordered = tuple[str, str]
"""The cell, and the fault that is planted, if any."""


class Resting(World):
    """Waits for cells at the moment before the first word, and goes on in a fork for each."""

    cell: Cell | None = None

    def __init__(self, folder: Path, orders: int, answers: int) -> None:
        super().__init__(folder, Nobody())
        self._orders, self.answers = os.fdopen(orders, "rb"), answers
        self._planted = ExitStack()

    async def _step(self, step: int) -> None:
        if step == FIRST:
            self._rest()
        await super()._step(step)

    def _rest(self) -> None:
        """Comes back in a fork. The process itself ends here, once there are no more orders."""
        kept = self.folder.with_name("kept")
        shutil.copytree(self.folder, kept)
        gc.freeze()
        for line in self._orders:
            name, fault = msgspec.json.decode(line, type=Ordered)
            child = os.fork()
            if not child:
                if fault:
                    faults: Any = importlib.import_module("tests.attacks.matrix.defects")
                    self._planted.enter_context(getattr(faults, fault)())
                self.cell = cells.cell_of(name)
                self.liar = Speaker(self.cell)
                self.history.drops = DROPS if self.cell.history == "drops" else 0
                _own_events()
                limited()
                return
            _, status = os.waitpid(child, 0)
            if status:
                said = f"the process of this cell ended with {os.waitstatus_to_exitcode(status)}"
                answer(self.answers, [Finding(name, "stopped", (said,), ())])
            shutil.rmtree(self.folder)
            shutil.copytree(kept, self.folder)
        os._exit(0)


def _own_events() -> None:
    """A fork shares the kernel's list of what its event loop waits for: one of its own, with the same in it."""
    runner: Any = GLOBAL_RUN_CONTEXT.runner
    events = runner.io_manager
    events._epoll = select.epoll()
    events._epoll.register(events._force_wakeup.wakeup_sock, select.EPOLLIN)
    for fd, waiters in list(events._registered.items()):
        waiters.current_flags = 0
        events._update_registrations(fd)


def answer(pipe: int, found: list[Finding]) -> None:
    with os.fdopen(os.dup(pipe), "wb") as out:
        out.write(msgspec.json.encode((time.process_time(), found)) + b"\n")


def prepare(*, drops: bool = True) -> None:
    """Play the runs without a liar, once for all forks."""
    for one in (0, DROPS) if drops else (0,):
        without(one, 0)


class Warmed:
    """Cells with rounds are played whole, as their liars speak from the beginning. drops: whether there are cells in
    which a leader drops a worker, too."""

    def __init__(self, *, drops: bool = True) -> None:
        self._drops = drops

    def __enter__(self) -> "Warmed":
        prepare(drops=self._drops)
        self._folder = tempfile.TemporaryDirectory()
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()
        self._child = os.fork()
        if not self._child:
            os.close(self._orders)
            os.close(self._answers)
            try:
                _live(Path(self._folder.name) / "world", orders, answers)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        os.close(orders)
        os.close(answers)
        self._heard = os.fdopen(self._answers, "rb")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, of: TracebackType | None) -> None:
        os.close(self._orders)
        self._heard.close()
        os.waitpid(self._child, 0)
        self._folder.cleanup()

    def examine(self, cell: Cell, fault: str = "") -> Answer:
        """As `cells.examine`. fault: of `defects.py`, planted in the fork."""
        if cell.history == "rounds":
            began = time.process_time()
            found = cells.examine(cell)
            return time.process_time() - began, found
        os.write(self._orders, msgspec.json.encode((str(cell), fault)) + b"\n")
        line = self._heard.readline()
        if not line:
            raise RuntimeError(f"the process of the world ended at {cell}")
        return msgspec.json.decode(line, type=Answer)


def _live(folder: Path, orders: int, answers: int) -> None:
    """Ends the process."""
    folder.mkdir()
    made: list[Resting] = []

    async def live() -> None:
        with patch.object(trio.to_thread, "run_sync", inline), remembering(), steady():
            made.append(Resting(folder, orders, answers))
            seen = await made[0].play()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        cell = made[0].cell
        assert cell is not None  # only a fork comes to the end
        answer(answers, cells.compared(cell, without(DROPS if cell.history == "drops" else 0, 0), seen))
        os._exit(0)

    gc.disable()
    try:
        run_seeded(0, live)
    except (BaseExceptionGroup, Stuck, trio.TrioInternalError) as error:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        if not made or (cell := made[0].cell) is None:
            raise
        answer(answers, [stopped(cell, error)])
        os._exit(0)
