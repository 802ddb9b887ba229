"""A trainer's part in the rounds of a run with rollouts: accepted groups in, dealt by the round's outer state, its own
share made into batches, and then a peer's part as with text.
"""

import math
from typing import Any

import structlog
import trio

from node.changes import side_by_side
from node.recipe.pool import Selection
from node.services.context import Context
from node.services.rounds.adding import Outer
from node.services.rounds.applying import Rounds
from node.services.rounds.batches import Batches
from node.services.rounds.round_worker import RoundWorker
from node.services.training.groups import Groups
from node.services.training.ingest import Ingest
from node.services.training.stating import make_batch
from node.training.batch import encode_batch
from node.weights.policy_cache import PolicyPins
from protocol.errors import IntellectError
from protocol.manifest import encode_manifest
from protocol.replicas import share

log = structlog.get_logger()


class ReplicaTrainer(RoundWorker):
    """One per trainer.

    Several trainers learn from the same stream of files, and no group may be learnt from twice. A leader that deals
    would be one machine on which all wait, and a first come, first served needs a word that all hear in time. So the
    round's outer state, which everybody has, deals: a file is one trainer's by a hash of both
    (`protocol.replicas.share`). What a slow one leaves over the next round deals anew. Validators deal in the same way,
    so they know whose it was.
    """

    name = "replica-trainer"

    def __init__(self, context: Context, rounds: Rounds, store: PolicyPins, batches: Batches) -> None:
        self._spec = context.run.spec
        self._inner, self._replicas = rounds.rules.inner_steps, self._spec.replicas
        self.blobs_a_round = 1 + self._inner
        super().__init__(context, rounds, store)
        self._batches, self._spool = batches, rounds.spool
        # Learnt from before that, a group would be too old by now.
        kept = 2 * self._spec.recipe.max_staleness
        self._groups = Groups(context, lambda: rounds.newest, self._changed.tell, kept)
        self._pool, self._used = self._groups.ready, self._groups.used
        self._dealing, self._shares = b"", dict[bytes, int]()
        self._ready = 0
        self._ingest = Ingest(
            context,
            fresh=self._groups.fresh,
            taken_in=self._groups.take_in,
            taken_back=self._groups.forget,
            asks=lambda: context.membership.is_trainer(context.key.address),
        )

    async def run(self) -> None:
        await self._used.recall(self._rounds.newest - self._spec.recipe.max_staleness)
        await side_by_side(self._ingest.run, super().run)

    # batches

    async def _find_steps(self, outer: Outer, replica_id: int, until: float) -> int | None:
        """As many as there are batches, once all are there or a part of the round is over. Those of before a restart
        are."""
        await self._forget(outer.round)
        first = (outer.round * self._replicas + replica_id) * self._inner
        # Of a round's seconds, after which a replica makes the steps that it has batches for: steps take time, too.
        self._ready, waits = 0, until - 0.75 * self._rounds.rules.round_seconds
        while self._ready < self._inner:
            changed = self._changed.next
            if self._is_past(outer.round):
                return None
            place = first + self._ready
            # Written before a restart: its groups are used up in the journal, and no other batch can have them.
            if self._spool.batch_path(place).exists():
                await self._serve(self._spool.works_path(place))
                self._ready += 1
            elif (selection := self._dealt(outer, replica_id)) is not None:
                await self._hand_over(place, selection)
            elif (left := waits - self._context.clock.wall()) <= 0 < self._ready:
                break
            else:
                with trio.move_on_after(left if self._ready else math.inf):
                    await changed.wait()
        return self._ready

    async def _forget(self, round_: int) -> None:
        """What is stale, and what any replica has learnt from in the rounds before."""
        self._used.note(await self._batches.used_before(round_), round_)
        self._pool.settle(self._used)
        self._pool.drop_stale(round_)
        before = (round_ - 1) * self._replicas * self._inner
        await trio.to_thread.run_sync(self._spool.forget_batches, before)

    def _dealt(self, outer: Outer, replica_id: int) -> Selection | None:
        """The next batch from the replica's share of what waits, None while that is too small."""
        if self._dealing != outer.root:
            self._dealing, self._shares = outer.root, dict[bytes, int]()

        def of(work: bytes) -> int:
            if work not in self._shares:  # asked again for each group, several times a second
                self._shares[work] = share(outer.root, work, self._replicas)
            return self._shares[work]

        return self._pool.dealt(self._replicas, of)[replica_id].take(outer.round)

    async def _hand_over(self, place: int, selection: Selection) -> None:
        """Journal what is used up, then manifest and batch. What cannot be made from its names is not learnt from."""
        keys = [group.key for group in selection.settled]
        self._pool.settle(keys)
        await self._used.use(keys, selection.step)
        try:
            composed, batch = await make_batch(self._context, selection)
        except IntellectError as error:
            log.error("batch.not_made", place=place, why=error.why)
            return
        await trio.to_thread.run_sync(self._spool.write_works, place, encode_manifest(composed))
        await trio.to_thread.run_sync(lambda: self._spool.write_batch(place, encode_batch(batch)))
        log.info("batch.written", round=selection.step, place=place, groups=len(selection.groups))

    # as a service

    def activity(self) -> str:
        if self._training < 0 <= self.replica_id and self._ready < self._inner and not self._rounds.over:
            found = f"replica {self.replica_id} has {self._ready} of {self._inner} batches of {self._rounds.activity()}"
            return f"{found}; {self._pool.rollouts} accepted rollouts wait"
        return super().activity()

    def status(self) -> dict[str, Any]:
        told = super().status()
        return told | {"pretraining": told["pretraining"] | {"queued_rollouts": self._pool.rollouts}}
