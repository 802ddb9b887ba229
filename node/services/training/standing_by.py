"""Standing by: each step of the trainer that leads is made again from its manifest, and what came out is compared.

What cannot be had, lies too far back, or would give other bits here is not replayed. The leader's checkpoint is gone on
from instead, where it offers one.
"""

from typing import Any

import msgspec
import structlog
import trio

from node.recipe.batch_log import BatchEntry
from node.recipe.pool import Key, key_of
from node.services.context import Context, manifest_of
from node.services.training.groups import Groups
from node.services.training.record import Record
from node.services.training.state_sync import StateSync
from node.services.training.stating import FETCH_TIMEOUT, make, metrics_of
from node.swarm.facts import PolicyFollowed
from node.training.batch import Batch
from node.training.computed_by import arithmetic_in
from node.training.spool import Spool
from node.training.watch import SpoolWatch
from protocol.errors import IntellectError, ProtocolError
from protocol.manifest import BatchManifest, ComposedBatch
from protocol.messages import PolicyAnnounced, StepObjected

log = structlog.get_logger()


class Compared(msgspec.Struct, frozen=True):
    """A step that was replayed here beside what its leader stated. differs: in words, empty where it is equal."""

    step: int
    differs: str = ""


class StandingBy:
    """compared, equal: replayed steps; apart: the first that came out otherwise here, after which nothing is followed;
    differences: in what the leader computes otherwise, in words: then its bits cannot be replayed here."""

    def __init__(
        self,
        context: Context,
        spool: Spool,
        watch: SpoolWatch,
        groups: Groups,
        record: Record,
    ) -> None:
        self._follow_again = 1.0  # seconds before what could not be had of another's step is asked for again
        self._patience = 5  # times in a row after which it goes on from a checkpoint instead, if one is offered
        self._context, self._spool, self._groups, self._record = context, spool, groups, record
        self._policies = context.state.policies
        self._adopting = StateSync(context, spool, watch, context.progress.trouble)
        self.compared = self.equal = 0
        self.apart: Compared | None = None
        self.differences: tuple[str, ...] = ()
        self._class_of: tuple[bytes, BatchManifest] | None = None
        self._in_vain = self._broken = 0

    @property
    def is_stuck(self) -> bool:
        """Whether nothing leads on from here but a checkpoint."""
        return bool(self.differences) or self._in_vain >= self._patience

    def gets_beyond(self, newest: int) -> bool:
        """Whether there is a way on from the newest state that is here, with nobody leading."""
        return not self.is_stuck or self.is_offered(newest)

    def is_offered(self, newest: int) -> bool:
        """Whether there is a checkpoint of a later step."""
        return self._adopting.best(newest) is not None

    @property
    def next_try(self) -> float:
        """Seconds until a checkpoint that could not be had is asked for again."""
        return self._adopting.next_try

    def cut_back(self, first: int) -> None:
        """A term decides policies from `first` on anew."""
        if self.apart is not None and first <= self.apart.step:
            self.apart = None  # it is equal to the leader's up to there

    async def follow(self, step: int) -> bool:
        """Replay another trainer's step, or go on from a checkpoint where that is too far behind, cannot be had, or
        would give other bits; False where there is nothing to do now."""
        newest = await trio.to_thread.run_sync(self._spool.newest_step)
        if newest < 0 or self.apart is not None:
            return False
        offer = self._adopting.best(newest)
        lost = self._policies.of_step(step + 1) is None and self._policies.newest_step > step
        # Steps that a standby would rather replay than skip.
        if not offer or not (self.is_stuck or lost or offer.message.step - newest > 8):
            return await self._replay(step)
        if await self._adopting.adopt(offer):
            self._in_vain = self._broken = 0
            await self.settle_adopted()
        else:
            await trio.sleep(self._follow_again)
        return True

    async def settle_adopted(self) -> None:
        """The groups that the state which was taken over has learnt from are used up here, too."""
        consumed = await trio.to_thread.run_sync(lambda: self._spool.consumed_by(self._spool.adopted()))
        by_step: dict[int, list[Key]] = {}
        for name, step in sorted(consumed.items(), key=lambda one: one[1]):
            if (key := key_of(name)) is not None and key not in self._groups.used:
                by_step.setdefault(step, []).append(key)
        for step, keys in by_step.items():
            await self._groups.settle(keys, step)

    async def _replay(self, step: int) -> bool:
        """Hand the learner what another trainer composed; False where that is not announced, or gives other bits
        here."""
        signed = self._policies.of_step(step + 1)
        if signed is None:
            return False
        try:
            manifest = await self._manifest(signed)
            if self.differences:
                return False
            composed, batch = manifest.batch, await make(self._context, manifest.batch, (signed.author,))
        except IntellectError as error:
            self._in_vain += 1
            self._broken += isinstance(error, ProtocolError)
            log.warning("step.not_followed", step=step, why=error.why)
            self._context.progress.trouble(f"step {step} cannot be replayed yet: {error.why}")
            # By what was signed, not for want of it, nor by this machine's disk.
            if self._broken == self._patience and isinstance(error, ProtocolError):
                await self._object_to(signed.message)
            await trio.sleep(self._follow_again)
            return True
        self._in_vain = self._broken = 0
        await self._groups.settle_batch(composed)
        await self._record.batch(entry_of(composed, batch), composed, batch)
        return True

    async def _manifest(self, signed: PolicyFollowed) -> BatchManifest:
        """Of the step that led to an announced policy. Notes in what its author computes otherwise. Raises
        IntellectError where it cannot be had, is not what was signed, or breaks a rule of the run."""
        message = signed.message
        if self._class_of is None or self._class_of[0] != message.batch_root:
            manifest = await manifest_of(self._context, signed.author, message, FETCH_TIMEOUT)
            if (manifest.parent, manifest.term) != (message.parent, message.term):
                why = "its parent or term is not that of the statement which names it"
                raise ProtocolError("unusable manifest", why)
            own = await trio.to_thread.run_sync(lambda: metrics_of(self._spool, self._spool.newest_step()))
            differences = tuple(arithmetic_in(own).differences(manifest.arithmetic))
            if differences and not self.differences:
                text = (
                    f"the leader computes otherwise ({'; '.join(differences)}): its checkpoints are taken over instead"
                )
                self._context.progress.tell("chair", text)
            self.differences = differences
            self._class_of = message.batch_root, manifest
        return self._class_of[1]

    # what came out

    async def compare(self, step: int, signed: PolicyFollowed, *, taken: bool) -> bool:
        """Whether the policy that this node's learner made is the stated one. A policy 0 without a statement has its
        root alone. taken: over from a checkpoint, which counts for no replay."""
        message = signed.message
        own = await trio.to_thread.run_sync(metrics_of, self._spool, step)
        said = {"policy_root": message.policy_root, "state_root": message.state_root}
        differs = " and ".join(name for name, root in said.items() if root and own.get(name) != root.hex())
        level = log.warning if differs else log.info
        level("step.replayed", step=step, leader=signed.author, equal=not differs, differs=differs)
        self.compared += not taken
        if not differs:
            self.equal += not taken
            return True
        # For good: a state that differs by one bit differs in every later step, too.
        self.apart = Compared(step, differs)
        text = f"replaying step {step} gave another {differs} than {signed.author} stated"
        self._context.progress.trouble(f"{text}: it follows no further")
        if not taken and step > 0:
            await self._object_to(message)
        return False

    async def _object_to(self, message: PolicyAnnounced) -> None:
        """Another state came out here: validators are asked to look, wherever their lots fell."""
        said = StepObjected(pool=self._context.pool, term=message.term, step=message.step)
        await self._context.board.post(said)

    def activity(self) -> str:
        if self.differences:
            return f"stands by with the leader's checkpoint of step {self._record.step}: it computes otherwise"
        return f"stands by: {self.equal} of {self.compared} replayed steps are equal to the leader's"

    def status(self) -> dict[str, Any]:
        """Of the chair."""
        apart = f"step {self.apart.step}: {self.apart.differs}" if self.apart else ""
        taken, refused = (self._adopting.counts[name] for name in ("taken", "refused"))
        other = {"differences": list(self.differences), "checkpoints": taken, "checkpoints_refused": refused}
        return {"replayed": self.compared, "equal": self.equal, "apart": apart, **other}


def entry_of(composed: ComposedBatch, batch: Batch) -> BatchEntry:
    """What is put on record of a step that somebody else composed."""
    ages: dict[str, int] = {}
    for row in batch.rows:
        age = str(composed.step - row.policy_step)
        ages[age] = ages.get(age, 0) + 1
    tokens = sum(len(row.output) for row in batch.rows)
    return BatchEntry(composed.step, {"output_tokens": tokens, "staleness": ages}, list(batch.header.files))
