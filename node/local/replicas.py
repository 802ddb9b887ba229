"""Reinforcement learning at a desk by several trainers: engines sample, and each replica has its share of the files.

A round's files are made by policy max(0, round - async_level), which is an outer state. When the round's own outer
state is there, its root deals them: each file's replica follows from that root and the file's, so the shares are
disjoint. Files are made until each replica has the batches of its inner steps; what is left over waits for the next
round.
"""

from pathlib import Path
from typing import Any

import trio

from node.local.rollouts import LocalRollouts
from node.recipe.pool import Selection
from node.state.files import write_whole
from protocol.replicas import share
from protocol.run import RunSpec


class LocalReplicas(LocalRollouts):
    """One run of several trainers in one directory. Its steps are rounds."""

    def __init__(self, run: RunSpec, encoded: bytes, *places: Path, peers: int, **parts: Any) -> None:
        super().__init__(run, encoded, *places, **parts)
        assert run.diloco is not None
        self._peers, self._inner = peers, run.diloco.inner_steps
        self._barren_rounds = 0

    @property
    def _next_step(self) -> int:
        """The first round that lacks one of its batches."""
        return self._spool.next_batch() // (self._peers * self._inner)

    async def _make_step(self, step: int, policy: int) -> bool:
        need = self._peers * self._inner * self._run.rollout.prompts_per_step * self._run.rollout.group_size
        # Before they are counted: stale rollouts would stand in for those that are needed.
        self._pool.drop_stale(step)
        while self._pool.rollouts < need:  # while the round before is learnt
            await self._sample(step, policy, need)
        await self._watch.until_there(lambda: self._spool.is_complete(step))
        outer = await trio.to_thread.run_sync(self._root, step, "outer_root")
        while (dealt := self._dealt(step, outer)) is None:
            if self._gives_up(step, self._barren_rounds):
                return False
            await self._sample(step, policy, need)
        self._barren = 0
        await trio.to_thread.run_sync(self._hand_out, step, dealt)
        return True

    def _dealt(self, step: int, outer: bytes) -> list[Selection] | None:
        """The batches of all inner steps, replica by replica; None while a share is too small. The pool stays as it
        is."""
        pools = self._pool.dealt(self._peers, lambda work: share(outer, work, self._peers))
        taken = [pool.take(step) for pool in pools for _ in range(self._inner)]
        self._barren_rounds = sum(pool.barren for pool in pools) // len(taken)
        found = [one for one in taken if one is not None]
        return found if len(found) == len(taken) else None

    def _hand_out(self, step: int, dealt: list[Selection]) -> None:
        """The batch log first, then the batches. After a crash between them the round is dealt again, and alike."""
        self._pool.settle(group.key for one in dealt for group in one.settled)
        groups, flat, idle = (
            tuple(group for one in dealt for group in getattr(one, name)) for name in ("groups", "flat", "idle")
        )
        self._log(Selection(step, groups, flat, idle, sum(one.barren for one in dealt)))
        for place, selection in enumerate(dealt, step * len(dealt)):
            self._write_batch(place, selection)
        self._forget(step + 1)

    def _prepare(self) -> None:
        write_whole(self._spool.peers_path, str(self._peers).encode())
        super()._prepare()

    def _forget(self, step: int) -> None:
        """Delete the files that no batch of `step` or later may use, nor a second look at the round before it."""
        self._forget_files(step - 1 - self._run.recipe.max_staleness)
