"""The trainer's word about a step: the manifest of its batch as a blob, and the statement that binds what came out."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import structlog
import trio

from node.recipe.manifest import checked, compose, materialise
from node.recipe.pool import Group, Key, Selection
from node.services.context import Context
from node.state.kept import kept
from node.training.batch import Batch
from node.training.computed_by import arithmetic_in
from node.training.spool import Spool
from node.weights.publish import StepWord
from protocol.blobs import describe
from protocol.identity import Address, address_from_bytes
from protocol.manifest import BatchManifest, ComposedBatch, PolicyStatement, decode_composed, encode_manifest
from protocol.statements import sign

log = structlog.get_logger()
FETCH_TIMEOUT = 30.0


async def make_batch(context: Context, selection: Selection) -> tuple[ComposedBatch, Batch]:
    """What a selection is made of, and the batch from that, as everybody makes it who replays the step. Raises
    IntellectError where a part of it cannot be had any more, or breaks a rule."""
    composed = compose(context.run.spec, context.run.root, context.pool, selection)
    return composed, await make(context, composed, joined={group.key: group for group in selection.settled})


async def make(
    context: Context, composed: ComposedBatch, holders: Sequence[Address] = (), joined: Mapping[Key, Group] = {}
) -> Batch:
    """The batch with these parts. holders: of everything that it names, besides who wrote it; joined: as in
    `materialise`. Raises as above."""
    paths = dict[bytes, Path]()

    def made() -> Batch:
        read = checked(lambda root: paths[root].read_bytes())
        return materialise(context.run.spec, composed, read, read, joined)

    with context.blobs.holding(root for work in composed.works for root, _, _ in work.blobs()):
        for work in composed.works:
            wanted = list(work.blobs())
            # All of them for each part: a validator that wrote a report has had the file, and serves it.
            authors = dict.fromkeys(address_from_bytes(author) for _, _, author in wanted if author)
            for root, size, _ in wanted:
                sources = [*authors, *holders]
                paths[root] = await context.blobs.fetch(root, sources, max_size=size, timeout=FETCH_TIMEOUT)
        return await trio.to_thread.run_sync(made)


async def word_on(context: Context, spool: Spool, step: int, term: int = 0) -> StepWord:
    """About the step that led to policy `step`."""
    metrics, parent, encoded, batch = await trio.to_thread.run_sync(_made, spool, step, term)
    policy, state = (bytes.fromhex(str(metrics[name])) for name in ("policy_root", "state_root"))
    statement = PolicyStatement(context.pool, term, step, context.time.epoch(), parent, policy, batch, state)
    signature = sign(context.key, context.domain, statement.commitment(context.key.address))
    return StepWord(statement, signature, encoded)


def _made(spool: Spool, step: int, term: int) -> tuple[dict[str, object], bytes, bytes, bytes]:
    """(what the learner says of the step, policy root of the one before, the encoded manifest, its root)."""
    metrics = metrics_of(spool, step)
    if step == 0:
        return metrics, bytes(32), b"", bytes(32)
    parent, encoded = _manifest(spool, step, metrics, term)
    log.info("manifest.made", step=step - 1, bytes=len(encoded))
    return metrics, parent, encoded, describe(encoded).root


def _manifest(spool: Spool, step: int, metrics: dict[str, object], term: int) -> tuple[bytes, bytes]:
    """(policy root of the step before, the encoded manifest)."""
    parent = bytes.fromhex(str(metrics_of(spool, step - 1)["policy_root"]))
    state, arithmetic = bytes.fromhex(str(metrics["state_before"])), arithmetic_in(metrics)
    works = spool.works_path(step - 1)
    data = works.read_bytes()
    composed = kept(works, lambda: decode_composed(data))
    return parent, encode_manifest(BatchManifest(composed, term, parent, state, arithmetic))


def metrics_of(spool: Spool, step: int) -> dict[str, object]:
    path = spool.metrics_path(step)
    data = path.read_bytes()
    return kept(path, lambda: msgspec.json.decode(data, type=dict[str, object]))
