"""An audit at a desk: from the directory of a `train`, without a swarm. The claims stand in the metrics."""

from functools import partial
from pathlib import Path

import msgspec

from node.audit.findings import Audit, StepClaim, checkpoint_beyond
from node.audit.step import StepAudit
from node.recipe.desk import desk_batch, desk_root, read_composed
from node.training.batch import Batch
from node.training.computed_by import arithmetic_in
from node.training.errors import TrainingError
from node.training.replay import StepReplayer, replaying, settings_for
from node.training.settings import TrainerSettings
from node.training.spool import Spool
from protocol.manifest import MalformedManifest
from protocol.run import RunSpec, decode_run


def audit_at_desk(
    directory: Path, step: int, own: TrainerSettings | None = None, *, replica_id: int | None = None
) -> Audit:
    """Of the step that turned policy `step` into the next; with `replica_id` of what that replica contributed to the
    round. Blocking, for as long as the step took and some seconds. own: how to compute, None: as the trainer did.
    Raises TrainingError where the directory does not hold enough."""
    spool = Spool(directory / "spool")
    run = _run(spool)
    if (run.diloco is None) != (replica_id is None):
        why = "its trainers are one" if run.diloco is None else "its steps are rounds of several trainers"
        remedy = "leave --replica out" if run.diloco is None else "say whose contribution to the round: --replica 0"
        raise TrainingError("nothing to audit", why, remedy)
    if replica_id is not None:
        from node.audit.replicas import audit_replica

        return audit_replica(directory, run, step, replica_id, own)
    claims = _Claims(spool)
    kept = spool.checkpoint_steps()
    # Without a checkpoint, from step 0 on: its state follows from the start model.
    base, beyond = max((at for at in kept if at <= step), default=0), checkpoint_beyond(step, kept)
    known = {at: claims.of(at) for at in range(base, beyond or step + 1)}
    settings = own or settings_for(known[step].arithmetic)
    with replaying(spool, settings, StepReplayer) as replayer:
        batch = partial(_batch, run, spool, directory, claims)
        return StepAudit(run, replayer, base, step, known, batch, beyond).run()


def _run(spool: Spool) -> RunSpec:
    try:
        run = decode_run(spool.run_path.read_bytes(), desk=True)
    except FileNotFoundError:
        raise TrainingError(
            "nothing to audit", f"{spool.root} holds no training", "name the directory of a `train`: --dir runs/NAME"
        ) from None
    if run.pretraining is not None:
        raise TrainingError("nothing to audit", "the run pre-trains: its contributions are replayed by its peers", "")
    return run


class _Claims:
    """What the metrics of a spool say of its steps."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool

    def policy_root(self, step: int) -> bytes:
        return bytes.fromhex(str(self._metrics(step)["policy_root"]))

    def of(self, step: int) -> StepClaim:
        """Raises TrainingError for a step that is not complete, or of a program that did not say this yet."""
        after = self._metrics(step + 1)
        arithmetic = arithmetic_in(after)
        state_before, state_root = bytes.fromhex(str(after["state_before"])), bytes.fromhex(str(after["state_root"]))
        return StepClaim(step, self.policy_root(step), state_before, self.policy_root(step + 1), state_root, arithmetic)

    def _metrics(self, step: int) -> dict[str, object]:
        try:
            return msgspec.json.decode(self._spool.metrics_path(step).read_bytes(), type=dict[str, object])
        except FileNotFoundError:
            raise TrainingError(
                f"step {step} is not there",
                f"the directory holds policies up to {self._spool.newest_step()}",
                f"audit a step from 0 to {self._spool.newest_step() - 1}",
            ) from None


def _batch(run: RunSpec, spool: Spool, directory: Path, claims: _Claims, step: int) -> Batch:
    composed = read_composed(spool.works_path(step))
    composed.check(desk_root(run), 0, step, run.recipe.max_staleness)
    for work in composed.works:
        if work.policy_root != claims.policy_root(work.policy_step):
            raise MalformedManifest("bad batch manifest", f"a file is not of policy {work.policy_step} of this run")
    return desk_batch(run, directory / "rollouts", composed)
