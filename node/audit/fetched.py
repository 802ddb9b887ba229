"""An audit in a swarm, from bytes that others handed over: the child of a daemon, which may kill it at any instant.

`python -m node.audit.fetched --spool DIR` does what DIR/order.msgpack says and writes DIR/result.msgpack.
"""

import os
import resource
import sys
import time
from functools import partial
from pathlib import Path

import msgspec

from node.training.orphan import stop_with_stdin

if __name__ == "__main__":
    # Before torch is imported, which takes seconds: a daemon may die meanwhile.
    stop_with_stdin()

from node.audit.findings import Audit
from node.audit.order import ORDER, RESULT, StepOrder
from node.audit.step import StepAudit
from node.recipe.manifest import checked, materialise
from node.state.files import as_named, write_whole
from node.training.batch import Batch
from node.training.program import alone, spool_named_on_the_command_line
from node.training.replay import MissingState, StepReplayer, replaying, settings_for
from node.training.spool import Spool
from node.training.state import UnusableState, read_state
from protocol.errors import ProtocolError
from protocol.manifest import (
    MAX_CARD_BYTES,
    MAX_MANIFEST_BYTES,
    MalformedManifest,
    decode_card,
    decode_manifest,
)
from protocol.run import RunSpec, decode_run

AUTOGROUP = Path("/proc/self/autogroup")


def stand_back() -> None:
    """Give way to all else. A child leads a session of its own; where Linux shares the processors among sessions
    (autogroup), niceness counts within one only, so the session itself stands back, too."""
    os.nice(15)  # an audit waits for whatever else this machine does
    for _ in range(20):
        try:
            # Of its session among the others: a third of a share, so that it ends in time on a machine that is never
            # idle.
            AUTOGROUP.write_text("5", encoding="ascii")
        except BlockingIOError:
            time.sleep(0.1)  # the system lets one session change in a tenth of a second
        except OSError:
            return  # there are no such groups here
        else:
            return


def audit_fetched(spool: Spool, order: StepOrder) -> Audit:
    """Computes as the trainer did, as far as one process can. Blocking. Raises TrainingError."""
    run = decode_run(spool.run_path.read_bytes())
    settings = settings_for(order.claims[order.step].arithmetic)
    with replaying(spool, settings, _Fetched) as replayer:
        replayer.order = order
        batch = partial(_batch, run, order)
        return StepAudit(run, replayer, order.base, order.step, order.claims, batch, order.beyond).run()


class _Fetched(StepReplayer):
    """Takes states from fetched checkpoints, each only if it is the stated one."""

    order: StepOrder

    def _restore(self, step: int) -> None:
        if step not in self.order.checkpoints:
            raise _missing(f"nobody offers the checkpoint of step {step}")
        named, files = self.order.checkpoints[step]
        claims = self.order.claims
        # The signed root and not the card's: whoever serves a checkpoint must not choose the state.
        root = claims[step].state_before if step in claims else claims[step - 1].state_root
        try:
            card = decode_card(_read(Path(named), MAX_CARD_BYTES))
            card.check(step)
            self.take(read_state(card, [Path(file) for file in files], self._learner.shapes, root))
        except (UnusableState, MalformedManifest) as error:
            raise _missing(f"{error.what}: {error.why}") from error


def _missing(why: str) -> MissingState:
    return MissingState("not to be replayed", why, "")


def _batch(run: RunSpec, order: StepOrder, step: int) -> Batch:
    """Raises ProtocolError where the manifest breaks a rule, OwnFailure, KeyError and OSError where a part is not here
    as it came."""
    claim, (path, root) = order.claims[step], order.manifests[step]
    manifest = decode_manifest(as_named(_read(Path(path), MAX_MANIFEST_BYTES), root, "a batch manifest"))
    manifest.check(order.run_root, order.pool, step, run.recipe.max_staleness)
    if (manifest.parent, manifest.state) != (claim.parent, claim.state_before):
        raise MalformedManifest("bad batch manifest", "it begins with another policy or state than was stated")
    for work in manifest.batch.works:
        # As far as this node heard of the policies: of others nothing is known to compare with.
        if order.policies.get(work.policy_step, work.policy_root) != work.policy_root:
            raise MalformedManifest("bad batch manifest", f"a file is not of policy {work.policy_step} of this run")
    blobs = checked(lambda root: Path(order.blobs[root.hex()]).read_bytes())
    return materialise(run, manifest.batch, blobs, blobs)


def _read(path: Path, limit: int) -> bytes:
    with path.open("rb") as file:
        # One byte more, by which the decoder sees that it is too long.
        return file.read(limit + 1)


def _audit(spool: Spool) -> None:
    order = msgspec.msgpack.decode((spool.root / ORDER).read_bytes(), type=StepOrder)
    stand_back()
    if order.memory:
        # Over its bound it fails and says nothing, and the rest of this machine goes on.
        resource.setrlimit(resource.RLIMIT_DATA, (order.memory, order.memory))
    write_whole(spool.root / RESULT, msgspec.msgpack.encode(audit_fetched(spool, order)))


def main() -> int:
    spool = spool_named_on_the_command_line("Audit a step. Started by a node.")
    try:
        return alone("audit", spool, lambda: _audit(spool), spool.error_path, {"event": "audit.failed"})
    except (MemoryError, ProtocolError, OSError) as error:
        print(f'{{"event": "audit.failed", "why": {str(error)[:300]!r}}}', file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
