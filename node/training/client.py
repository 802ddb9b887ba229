"""The daemon's end of the processes that train and evaluate: start them, restart them while that helps, stop them.

Progress is read from the spool, not from the processes, so nothing is lost with them.
"""

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog
import trio

from node.changes import Changes
from node.processes.forkserver import Anew, ChildProcess, Starter, close_stdin, end_child, kill_group
from node.state.files import write_whole
from node.training.errors import TrainingError
from node.training.evaluations import Evaluations
from node.training.lowering import in_words
from node.training.planning import only
from node.training.settings import TrainerSettings
from node.training.spool import Spool
from protocol.errors import UNREADABLE
from protocol.run import RunSpec

log = structlog.get_logger()


class _GivenUp(msgspec.Struct, frozen=True):
    what: str
    why: str
    remedy: str


class SpoolProcess:
    """A supervised child that works on a prepared spool and ends when its work is done.

    module: the program; part: the directory of the spool that it alone writes; error_path: where it says that it
    cannot go on; progress: a number that grows with what it gets done; cards: those that it sees, by the names of
    CUDA_VISIBLE_DEVICES, all if none is named.
    """

    def __init__(
        self,
        name: str,
        spool: Spool,
        command: Sequence[str],
        settings: TrainerSettings | None,
        starter: Starter | None,
        *,
        part: str,
        error_path: Path,
        progress: Callable[[], int],
        cards: Sequence[str] = (),
    ) -> None:
        self.name = name
        self._spool, self._part, self._error_path, self._progress = spool, part, error_path, progress
        self._settings = settings or TrainerSettings()
        self._cards = only(cards)
        self._command = list(command)
        self._starter = starter or Anew()
        self._process: ChildProcess | None = None
        self._finishing = trio.Event()
        self._asleep = False
        self._slept = Changes()
        self._was_put_away = False
        """Of the child that runs, or ran last."""
        self.restarts = 0
        """How often it was started again."""
        self.memory = ""
        """What became of memory that ran out, in words; empty where it did not."""

    @property
    def pid(self) -> int | None:
        """Of the child: for a trainer its launcher, with whom the workers die."""
        return self._process.pid if self._process else None

    def finish(self) -> None:
        """Ask the child to stop; `run` then returns."""
        self._finishing.set()

    def sleep(self) -> None:
        """End the child, so that its memory is free, and start none until `wake`."""
        self._asleep = True
        self._slept.tell()

    def wake(self) -> None:
        self._asleep = False
        self._slept.tell()

    async def run(
        self,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
        *,
        first_pause: float = 0.1,
        longest_pause: float = 30.0,
    ) -> None:
        """Keep the child running until its work is done or `finish` is called.

        Raises TrainingError if it says that it cannot go on, or keeps dying without progress.
        """
        task_status.started()
        failures, progress = 0, self._progress()
        while True:
            status = await self._run_once()
            # Not asked whether it still sleeps: it may have been woken while its child was ending, which takes seconds.
            if self._was_put_away and not self._finishing.is_set():
                await self._slept.until(lambda: not self._asleep)
                continue
            if status == 0 or self._finishing.is_set():
                return
            self._raise_if_given_up()
            newest = self._progress()
            # Progress begins the count anew: a run of weeks may lose its process many times.
            failures, progress = (1 if newest > progress else failures + 1), newest
            if failures > 5:
                raise self._hopeless(failures, newest, status)
            self.restarts += 1
            log.warning(f"{self.name}.died", status=status, step=newest, failures=failures)
            with trio.move_on_after(min(first_pause * 2 ** (failures - 1), longest_pause)):
                await self._finishing.wait()
                return

    def _hopeless(self, failures: int, step: int, status: int) -> TrainingError:
        return TrainingError(
            f"the {self.name} keeps dying",
            f"{failures} times after step {step}, last with exit status {status}",
            "see the trainer's log for the cause; where it ends without a word, the system may have killed it "
            f"for want of memory: lower trainer.micro_batch_tokens (now {self._settings.micro_batch_tokens})",
        )

    def _prepare_spool(self) -> None:
        self._spool.forget_halves(self._part)
        # At each start: a restart may have other settings, such as fewer ranks.
        write_whole(self._spool.settings_path, msgspec.json.encode(msgspec.to_builtins(self._settings)))
        self.memory = in_words(self._spool.lowered_path, self._settings)

    async def _run_once(self) -> int:
        """One process's life; its exit status."""
        await trio.to_thread.run_sync(self._prepare_spool)
        command = [*self._command, "--spool", str(self._spool.root)]
        # In the environment, too: OpenMP reads it while torch is imported, which is before a child reads its settings.
        environment = {**os.environ, "OMP_NUM_THREADS": str(self._settings.threads), **self._cards}
        process = await self._starter.start(command, environment, heard=False)
        self._process, self._was_put_away = process, False
        log.info(f"{self.name}.started", pid=process.pid)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stop_when_finishing, process)
                nursery.start_soon(self._stop_when_put_away, process)
                status = await process.wait()
                nursery.cancel_scope.cancel()
            return status
        finally:
            self._process = None
            # A daemon that is cancelled would otherwise leave here at once, and its child would go on.
            with trio.CancelScope(shield=True):
                await end_child(process)

    async def _stop_when_put_away(self, process: ChildProcess) -> None:
        await self._slept.until(lambda: self._asleep)
        self._was_put_away = True
        await self._stop(process)

    async def _stop_when_finishing(self, process: ChildProcess) -> None:
        await self._finishing.wait()
        await self._stop(process)

    async def _stop(self, process: ChildProcess) -> None:
        await close_stdin(process)
        await trio.sleep(15.0)
        kill_group(process.pid)

    def _raise_if_given_up(self) -> None:
        """The child's own reason to stop is not cured by another start."""
        try:
            reason = msgspec.json.decode(self._error_path.read_bytes(), type=_GivenUp)
        # No reason of its own: it was killed, or crashed, and another start may cure that.
        except (OSError, *UNREADABLE):
            return
        raise TrainingError(reason.what, reason.why, reason.remedy)


class TrainerProcess(SpoolProcess):
    """The learner: the trainer, or torchrun with several of them."""

    engine_name = "torch"

    def __init__(
        self,
        spool: Spool,
        settings: TrainerSettings | None = None,
        starter: Starter | None = None,
        cards: Sequence[str] = (),
    ) -> None:
        forkable = (settings or TrainerSettings()).forkable
        super().__init__(
            "learner",
            spool,
            [sys.executable, "-m", "node.training.launch"],
            settings,
            starter if forkable else None,
            part="out",
            error_path=spool.error_path,
            progress=spool.newest_step,
            cards=cards,
        )


class EvaluatorProcess(SpoolProcess):
    """What scores the learner's policies, beside it."""

    def __init__(
        self,
        spool: Spool,
        run: RunSpec,
        settings: TrainerSettings | None = None,
        starter: Starter | None = None,
        cards: Sequence[str] = (),
    ) -> None:
        # Not `forkable`: one process evaluates, however many train.
        forkable = (settings or TrainerSettings()).threads == 1
        left = Evaluations(spool, run)
        super().__init__(
            "evaluator",
            spool,
            [sys.executable, "-m", "node.training.evaluation"],
            settings,
            starter if forkable else None,
            part="eval",
            error_path=spool.evaluator_error_path,
            progress=lambda: run.recipe.steps + 1 if (step := left.next()) is None else step,
            cards=cards,
        )
