"""A checkpoint that another trainer offers: which one, fetched, and handed to the learner.

For who comes late, who cannot have what a step was made of, and who computes in another class, whose own bits nobody
could compare. The learner takes nothing over but the stated state, so it does not matter who offers it.
"""

import math
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import structlog
import trio

from node.bounded_dict import BoundedDict
from node.run.assets import image_limit
from node.services.context import Context
from node.state.files import as_named
from node.training import adoption
from node.training.spool import Spool
from node.training.watch import SpoolWatch
from protocol.errors import IntellectError, ProtocolError
from protocol.manifest import MAX_CARD_BYTES, CheckpointCard, MalformedManifest, decode_card
from protocol.messages import CheckpointOffered, Signed
from protocol.run import RunSpec
from protocol.statements import VerdictOutcome

log = structlog.get_logger()


Fetch = Callable[[bytes, int], Awaitable[Path]]
"""By root, and size at most."""


async def fetch_checkpoint(
    fetch: Fetch, offer: CheckpointOffered, run: RunSpec
) -> tuple[Path, CheckpointCard, tuple[Path, ...]]:
    """(card, the same decoded, files). Raises IntellectError for what cannot be had, or cannot be of this run."""
    path = await fetch(offer.root, min(offer.size, MAX_CARD_BYTES))
    card = await trio.to_thread.run_sync(lambda: decode_card(as_named(path.read_bytes(), offer.root, "a checkpoint")))
    card.check(offer.step)
    if len(card.files) != 1:
        raise MalformedManifest("bad checkpoint", f"{len(card.files)} ranks wrote it, which one process cannot be")
    most = 6 * image_limit(run)  # 12 bytes a parameter, of which an image has two
    if any(one.size > most for one in card.files):
        raise MalformedManifest("bad checkpoint", "it is larger than a state of the run's model can be")
    return path, card, tuple([await fetch(one.root, one.size) for one in card.files])


class StateSync:
    """One trainer's."""

    def __init__(self, context: Context, spool: Spool, watch: SpoolWatch, on_progress: Callable[[str], object]) -> None:
        self._context = context
        self._spool, self._watch = spool, watch
        self._told = on_progress
        # Checkpoints that are remembered, so that none is fetched twice in vain.
        self._refused: BoundedDict[bytes, float] = BoundedDict(64)
        """Root of the card -> from when on it may be asked for again."""
        self.counts = {"taken": 0, "refused": 0}

    def best(self, beyond: int) -> Signed[CheckpointOffered] | None:
        """The newest offer of a step later than `beyond` that may be gone on from: the leader's first."""
        leader, now = self._context.membership.trainer, self._context.clock.monotonic()
        offers = self._context.state.checkpoints.of(leader)
        for step in sorted((step for step in offers if step > beyond and self._is_sound(step)), reverse=True):
            for one in offers[step]:
                if self._refused.get(one.message.root, 0.0) <= now:
                    return one
        return None

    @property
    def next_try(self) -> float:
        """Seconds until one that could not be had is asked for again."""
        now = self._context.clock.monotonic()
        return min((at - now for at in self._refused.values() if at > now), default=math.inf)

    def _is_sound(self, step: int) -> bool:
        """Whether its state was stated, and not more validators found the step bad than saw it hold: one liar among
        them keeps nobody from standing by."""
        stated = self._context.state.policies.of_step(step)
        if stated is None:
            return False
        said = self._context.state.steps.judged_by(stated.statement.struct_hash).values()
        against = sum(one.message.outcome != VerdictOutcome.ACCEPT for one in said)
        return against <= len(said) - against

    async def adopt(self, offer: Signed[CheckpointOffered]) -> bool:
        """Whether the learner holds this state now."""
        step, stated = offer.message.step, self._context.state.policies.of_step(offer.message.step)
        if stated is None:
            return False
        roots, run = (stated.message.state_root, stated.message.policy_root), self._context.run.spec
        sources = list(dict.fromkeys([offer.author, *self._context.membership.addresses()]))
        with ExitStack() as held:

            def fetch(root: bytes, size: int) -> Awaitable[Path]:
                held.enter_context(self._context.blobs.holding([root]))
                return self._context.blobs.fetch(root, sources, max_size=size, timeout=600.0)

            try:
                card, _, files = await fetch_checkpoint(fetch, offer.message, run)
            # For good: the bytes of this root will never be others. What cannot be had now may be had later.
            except ProtocolError as error:
                return self._refuse(offer, error.why)
            except IntellectError as error:
                # Seconds before one that could not be had is asked for again.
                return self._refuse(offer, error.why, self._context.clock.monotonic() + 10.0)
            await trio.to_thread.run_sync(lambda: adoption.order(self._spool, step, card.read_bytes(), files, roots))
        await self._watch.until_there(lambda: adoption.answered(self._spool))
        refusal = await trio.to_thread.run_sync(adoption.end, self._spool)
        if self._spool.newest_step() >= step:
            self.counts["taken"] += 1
            log.info("checkpoint.taken", step=step, by=offer.author)
            return True
        return self._refuse(offer, refusal.why if refusal else "the learner ended meanwhile")

    def _refuse(self, offer: Signed[CheckpointOffered], why: str, until: float = math.inf) -> bool:
        self._refused[offer.message.root] = until
        self.counts["refused"] += 1
        log.warning("checkpoint.refused", step=offer.message.step, by=offer.author, why=why)
        self._told(f"checkpoint {offer.message.step} of {offer.author} is refused: {why}")
        return False
