"""One audit: a batch from its names, then the tests, with one learner in one process.

Knows claims, checkpoints in a spool, and where batches come from; where those were fetched is the caller's business.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from node.audit.direction import EDGE, MEASURED_EDGE, Gradients, check_direction
from node.audit.findings import BFLOAT16_LIMIT, FLOAT32_LIMIT, Audit, AuditFinding, Says, StepClaim
from node.audit.identity import check_identity, distance
from node.training.batch import Batch, BatchRow
from node.training.errors import TrainingError
from node.training.replay import MissingState, Replayed, StepReplayer
from node.training.state import State
from protocol.errors import OwnFailure, ProtocolError
from protocol.run import RunSpec


class StepAudit:
    """claims: of the steps from the checkpoint `base` to `step`, and on to `beyond`; batch: makes that of a step, and
    raises ProtocolError where a rule is broken; beyond: see `checkpoint_beyond`."""

    def __init__(
        self,
        run: RunSpec,
        replayer: StepReplayer,
        base: int,
        step: int,
        claims: Mapping[int, StepClaim],
        batch: Callable[[int], Batch],
        beyond: int = 0,
    ) -> None:
        self._run = run
        self._replayer = replayer
        self._base, self._step = base, step
        self._claims, self._claim = claims, claims[step]
        self._batch = batch
        self._beyond = beyond
        self._findings: list[AuditFinding] = []
        self._seconds: dict[str, float] = {}
        own = replayer.arithmetic()
        self._differences = tuple(own.differences(self._claim.arithmetic))
        self._own = own

    def run(self) -> Audit:
        batches = self._batches()
        if batches is not None:
            before = self._go_to_step(batches)
            if before is not None:
                self._test(before, batches[self._step])
        name = self._claim.arithmetic.name
        found = tuple(self._findings)
        return Audit(self._step, self._own.name, name, self._differences, found, self._seconds)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._seconds[name] = round(time.monotonic() - began, 4)

    def _say(self, test: str, says: Says, text: str, **figures: float) -> None:
        self._findings.append(AuditFinding(test, says, text, figures))

    # what was learnt from

    def _batches(self) -> dict[int, Batch] | None:
        """Those of all steps from the checkpoint on; None where one cannot be had."""
        found: dict[int, Batch] = {}
        with self._timed("manifest"):
            # From the checkpoint on: states between two checkpoints are kept by nobody, and must be made again.
            for step in range(self._base, self._step + 1):
                try:
                    found[step] = self._batch(step)
                except ProtocolError as error:
                    return self._say("manifest", Says.BROKEN, f"step {step}: {error.why}")
                except (OwnFailure, OSError, KeyError) as error:
                    return self._say("manifest", Says.UNDECIDED, f"step {step}: a part of it is not here: {error}")
        rows = len(found[self._step].rows)
        self._say("manifest", Says.HOLDS, f"files and reports make a batch of {rows} rows", rows=float(rows))
        return found

    # how the step began

    def _go_to_step(self, batches: Mapping[int, Batch]) -> State | None:
        """The state that the step began with, by replaying from the checkpoint; None where that does not lead there."""
        try:
            root = self._replayer.place(self._base)
        except MissingState as error:
            return self._say("replay", Says.UNDECIDED, error.why)
        # Without it a trainer could give auditors a state of its choice to start from.
        if root != self._claims[self._base].state_before:
            return self._say(
                "replay", Says.BROKEN, f"the checkpoint of step {self._base} is not the state that was claimed for it"
            )
        for step in range(self._base, self._step):
            found = self._replayed(batches[step])
            if found is None:
                return None
            # Not this step's fault: whoever is told of it must be able to find the step where it began.
            if found.state_root != self._claims[step + 1].state_before:
                why = f"step {step} already came out otherwise here: audit that one"
                return self._say("replay", Says.UNDECIDED, why, first=float(step))
        return self._replayer.state(self._step)

    def _replayed(self, batch: Batch) -> Replayed | None:
        """None where its rows cannot be learnt from, which is a broken rule."""
        try:
            return self._replayer.step(batch)
        except TrainingError as error:
            return self._say("replay", Says.BROKEN, f"{error.what}: {error.why}")

    # the tests

    def _test(self, before: State, batch: Batch) -> None:
        recipe, step = self._run.recipe, self._step
        after = self._claimed_state()
        # The replayer went on to the claimed state; tests begin where the step began.
        self._replayer.take(before)
        if after is not None:
            with self._timed("identity"):
                self._findings.append(check_identity(before, after, recipe, self._replayer.learning_rate(step)))
            with self._timed("direction"):
                self._findings.append(self._direction(before, after, batch))
        with self._timed("replay"):
            found = self._replayed(batch)
        if found is not None:
            self._compare(found, before, after)

    def _direction(self, before: State, after: State, batch: Batch) -> AuditFinding:
        """The groups' gradients in the dtype that the trainer states, whatever is replayed in: every machine can round
        to bfloat16. How far float32 is from that says how far rounding moves this step."""
        bfloat16 = self._claim.arithmetic.dtype == "bfloat16"
        if self._own.dtype == self._claim.arithmetic.dtype:
            return self._fit(before, after, batch, self._replayer, None)
        with self._replayer.computing_in("bfloat16" if bfloat16 else "float32") as look:
            look.take(before)
            measured = self._replayer.gradients(batch) if bfloat16 else None
            return self._fit(before, after, batch, look, measured)

    def _fit(
        self, before: State, after: State, batch: Batch, look: StepReplayer, measured: Gradients | None
    ) -> AuditFinding:
        bfloat16 = self._claim.arithmetic.dtype == "bfloat16"
        edge = EDGE if measured is None else MEASURED_EDGE
        # The same class rounds as the trainer did, so that nothing is off there.
        beside = [look.gradients(_shifted(batch, by)) for by in (edge, -edge) if bfloat16 and self._differences]
        return check_direction(
            before,
            after,
            self._run.recipe,
            look.gradients(batch),
            self._run.rollout.prompts_per_step,
            float32=not bfloat16,
            beside=beside,
            edge=edge,
            measured=measured,
        )

    @property
    def _both_float32(self) -> bool:
        return self._own.dtype == self._claim.arithmetic.dtype == "float32"

    def _claimed_state(self) -> State | None:
        """The claimed state after the step, where it is kept; an image that is not its rounding is a fault."""
        try:
            self._replayer.place(self._step + 1)
        except MissingState as error:
            self._say("identity", Says.UNDECIDED, error.why)
            return self._say("direction", Says.UNDECIDED, error.why)
        roots = self._replayer.roots(self._step + 1)
        if roots.state_root != self._claim.state_root:
            return self._say("identity", Says.BROKEN, "the checkpoint after the step is not the state that was claimed")
        if roots.policy_root != self._claim.policy_root:
            return self._say("identity", Says.BROKEN, "the published policy is not the rounding of the state's weights")
        return self._replayer.state(self._step + 1)

    def _compare(self, found: Replayed, before: State, after: State | None) -> None:
        """Bit for bit in one class. In another one distance decides, where both sides compute in float32."""
        if found.state_root == self._claim.state_root and found.policy_root == self._claim.policy_root:
            return self._say("replay", Says.HOLDS, "the replay has the same state root and the same policy root")
        apart = {"distance": distance(self._replayer.state(self._step + 1), after, before)} if after else {}
        if not apart and not self._differences and self._both_float32 and self._beyond:
            apart = self._distance_beyond()
        # Within one class the arithmetic is bit-exact, so any other root is another computation.
        if not self._differences:
            apart["limit"] = FLOAT32_LIMIT if self._both_float32 else BFLOAT16_LIMIT
            return self._say("replay", Says.BROKEN, "the replay in the same class has other roots", **apart)
        why = "; ".join(self._differences)
        if not apart or not self._both_float32:
            return self._say("replay", Says.UNDECIDED, f"another class computes otherwise ({why})", **apart)
        if apart["distance"] > FLOAT32_LIMIT:
            return self._say("replay", Says.BROKEN, f"further apart than classes are ({why})", **apart)
        return self._say("replay", Says.HOLDS, f"as near as another class comes ({why})", **apart)

    def _distance_beyond(self) -> dict[str, float]:
        """Go on with the claimed batches, from the state that came out here, to the next checkpoint that was claimed:
        how far from it, in lengths of its last update. Rounding stays near it; what was done to the state does not.
        Empty where that cannot be told."""
        try:
            for step in range(self._step + 1, self._beyond - 1):
                self._replayer.step(self._batch(step))
            last = self._replayer.state(self._beyond - 1)
            self._replayer.step(self._batch(self._beyond - 1))
            own = self._replayer.state(self._beyond)
            self._replayer.place(self._beyond)
        except (ProtocolError, TrainingError, OSError, KeyError):
            return {}  # it is not of this step, or not here: nothing is said
        if self._replayer.roots(self._beyond).state_root != self._claims[self._beyond - 1].state_root:
            return {}
        found = distance(own, self._replayer.state(self._beyond), last)
        return {"distance": found, "steps": float(self._beyond - self._step - 1)}


def _shifted(batch: Batch, by: float) -> Batch:
    """As if the sampler's log-probabilities were so many nats higher."""
    rows = list[BatchRow]()
    for row in batch.rows:
        # None is above zero: such a row would be refused.
        moved = [min(one + by, 0.0) for one in row.sampler_logprobs]
        rows.append(msgspec.structs.replace(row, sampler_logprobs=moved))
    return Batch(batch.header, tuple(rows))
