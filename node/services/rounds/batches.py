"""What contributions are learnt from, in a run with rollouts: the manifests that they name, and whether they may.

A trainer asks which groups were learnt from in the rounds before. A validator asks whether a replica may have learnt
from the batches of its contribution. Which works were accepted, and with which reports, is this node's own jury's to
say.
"""

from collections.abc import Sequence
from pathlib import Path

import structlog
import trio

from node.bounded_dict import BoundedDict
from node.services.context import Context
from node.services.rounds.applying import Rounds
from node.state.files import as_named
from node.swarm.facts import WorkTouched
from node.swarm.vote_set import FileState
from protocol.errors import IntellectError, OwnFailure
from protocol.identity import Address, address_from_bytes
from protocol.manifest import MAX_MANIFEST_BYTES, ComposedBatch, MalformedManifest, UsedWork, decode_composed
from protocol.replicas import Used, broken_rule, groups_of

log = structlog.get_logger()


class Batches:
    """One per node that trains or validates."""

    def __init__(self, context: Context, rounds: Rounds) -> None:
        self._context, self._rounds, self._spec = context, rounds, context.run.spec
        self._used: BoundedDict[int, set[Used]] = BoundedDict(2 * self._spec.recipe.max_staleness + 2)

    async def used_before(self, round_: int) -> set[Used]:
        """The groups that contributions of rounds before were learnt from, as far as they could be used once more. What
        nobody hands over is not among them. Raises OwnFailure where this machine cannot take or read a part: a group
        that it knows nothing of would look unused."""
        found = set[Used]()
        for at in range(max(round_ - self._spec.recipe.max_staleness, 0), round_):
            if at not in self._used:
                try:
                    roots = await self._rounds.batches_of(at)
                    batches = await self.named(roots or (), self._context.membership.addresses())
                except OwnFailure:
                    raise
                except IntellectError as error:
                    log.warning("manifests.unavailable", round=at, why=error.why)
                    continue
                if roots is None:  # its list may be heard yet
                    continue
                self._used[at] = {one for batch in batches for one in groups_of(batch)}
            found |= self._used[at]
        return found

    async def of(
        self, outer: bytes, round_: int, replica_id: int, node: Address, roots: Sequence[bytes]
    ) -> list[ComposedBatch]:
        """The batches that a contribution names. Raises IntellectError where its replica may not have learnt from them,
        as far as this node has heard by now and hears in `audit.delivery_seconds`, or one cannot be had."""
        spec, pool = self._spec, self._context.pool
        batches = await self.named(roots, [node, *self._context.membership.addresses()])
        for one in batches:
            one.check(self._context.run.root, pool, round_, spec.recipe.max_staleness)
        works = [(work.name(pool), work) for one in batches for work in one.works]
        # A replica may have heard verdicts sooner.
        sound, seconds = lambda: not any(self._fault(*one) for one in works), spec.audit.delivery_seconds
        await self._context.until(sound, WorkTouched, seconds=seconds)
        used = await self.used_before(round_)
        why = broken_rule(outer, replica_id, spec.replicas, batches, used, self._is_accepted)
        faults = (f"work {name.hex()[:16]} {fault}" for name, work in works if (fault := self._fault(name, work)))
        if why := why or next(faults, ""):
            raise MalformedManifest("bad batch manifest", why)
        return batches

    def _fault(self, name: bytes, work: UsedWork) -> str:
        """Why a work may be in nobody's batch, in words; empty if it may."""
        state = self._context.state
        known = state.register.get(name)
        if known is None or not known.is_sampled or not self._is_accepted(name):
            return "was not accepted"
        if known.step != work.policy_step or work.judged:
            return "is of another policy, or says that it was judged"
        votes = state.vote_set.accepting(name)
        for report in work.reports:
            vote = votes.get(address_from_bytes(report.author))
            if vote is None or vote.report_root != report.root:
                return "has values that no validator reported who accepts it"
        return ""

    def _is_accepted(self, name: bytes) -> bool:
        return self._context.state.vote_set.state(name) is FileState.ACCEPTED

    async def named(self, roots: Sequence[bytes], holders: Sequence[Address]) -> list[ComposedBatch]:
        """Manifests by their roots. Raises IntellectError."""
        found, left = list[ComposedBatch](), MAX_MANIFEST_BYTES
        seconds = min(30.0, self._spec.audit.delivery_seconds)
        for root in roots:
            with self._context.blobs.holding([root]):
                sources = [one for one in holders if one != self._context.key.address]
                path = await self._context.blobs.fetch(root, sources, max_size=max(left, 1), timeout=seconds)
                one, size = await trio.to_thread.run_sync(_read, path, root)
            left -= size  # together no more than one may have: their number is its node's to choose
            found.append(one)
        return found


def _read(path: Path, root: bytes) -> tuple[ComposedBatch, int]:
    """A manifest and its bytes. Raises MalformedManifest; OwnFailure where it is not what came, or cannot be read."""
    try:
        data = as_named(path.read_bytes(), root, "a batch manifest")
    except OSError as error:
        raise OwnFailure("a batch manifest cannot be read", str(error), "check the disk") from error
    return decode_composed(data), len(data)
