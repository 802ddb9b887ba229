"""Audit lots: what validators pledged, what they then checked, and whether the revealed secrets agree.

Also the meter of the swarm's power: which share of each worker's groups of a window somebody recomputed, and with which
probability a cheat would have been seen. Counts and compares; what follows from a broken promise is for others.
"""

import msgspec

from node.bounded_dict import BoundedDict
from node.swarm.policies import PolicyIndex
from node.swarm.register import RegisteredWork, WorkId
from protocol.audit import as_share, detection_power, joint_share, window_of
from protocol.identity import Address
from protocol.lots import LotPledge, broken_promise, draws_step, secret_hash, unpack_groups
from protocol.messages import Heartbeat, Judgement, LotsRevealed, Signed, VerdictIssued
from protocol.run import RunSpec
from protocol.statements import VerdictOutcome, work_id


class BrokenPromise(msgspec.Struct, frozen=True):
    """A validator whose lot was not kept. evidence: the envelopes that show it, all signed by the validator."""

    validator: Address
    why: str
    evidence: tuple[bytes, ...]


class WorkerPower(msgspec.Struct, frozen=True):
    """One worker in one window. groups: committed; checked: recomputed by somebody; power: chance of detection."""

    node: Address
    window: int
    groups: int
    checked: int
    power: float


class _Pledged(msgspec.Struct):
    """in_time: heard before the first policy of its window; revealed: its secret, told and the pledged one; used:
    there was a verdict by it."""

    pledge: LotPledge
    raw: bytes
    in_time: bool
    revealed: Signed[LotsRevealed] | None = None
    used: bool = False


class AuditLots:
    """Pledges, verdicts and reveals of one pool's validators. policies: the clock of windows.

    A validator recomputes some groups, drawn by lot. Workers must not know which, or they cheat elsewhere; the others
    must be able to tell afterwards that the lot was kept, or a validator saves its work. So it pledges the hash of a
    secret and a rate before a window begins, draws by the secret, and reveals it when the window's verdicts are said.
    A public beacon would need no pledge, and would tell workers in time. Who never reveals cannot be convicted of a
    broken lot, so after some windows it is believed no more."""

    def __init__(self, run: RunSpec, pool: int, policies: PolicyIndex) -> None:
        # Windows of verdicts without the secret that decided their lots, after which their author is believed no more.
        self._overdue_windows = 8
        self._audit = run.audit
        self._groups, self._replicas = run.groups_per_file, run.replicas
        self._staleness = run.recipe.max_staleness
        self._pool = pool
        self._policies = policies
        # A pool has at most 16 validators at a time.
        kept_windows = 64
        self._pledged: BoundedDict[tuple[Address, int], _Pledged] = BoundedDict(16 * kept_windows)
        self._verdicts: BoundedDict[tuple[Address, int], list[tuple[int, Signed[VerdictIssued]]]] = BoundedDict(
            4 * kept_windows
        )
        """With the groups of the work that each is about."""
        self._files: dict[int, dict[Address, dict[WorkId, int]]] = {}
        """Window -> worker -> file -> which groups were checked, a bit each; from the last full window on."""
        self.kept = 0
        self.early = 0
        self.broken = 0

    def committed(self, work: RegisteredWork) -> None:
        """A worker committed to a file: its groups count, checked or not. A task's file belongs to no window: all of
        it is looked at. Nor does a contribution beside rollouts: power is told of one kind of works."""
        if not self._counts(work):
            return
        window = window_of(work.step, self._audit)
        if window < (full := self.last_full_window()):
            return  # nobody asks any more
        if window not in self._files:
            self._files = {of: files for of, files in self._files.items() if of >= full}
        self._files.setdefault(window, {}).setdefault(work.node, {}).setdefault(work.id, 0)

    def _counts(self, work: RegisteredWork) -> bool:
        return work.task is None and (work.is_sampled or not self._replicas)

    @property
    def current_window(self) -> int:
        """The audit window of the newest policy."""
        return window_of(max(self._policies.newest_step, 0), self._audit)

    def window_of(self, work: RegisteredWork) -> int:
        """The audit window that a work belongs to."""
        return window_of(work.step, self._audit)

    def is_of_its_window(self, work: RegisteredWork, message: VerdictIssued) -> bool:
        """Whether an accepting verdict was drawn with the secret of its work's own window. One that was not counts for
        nothing, so choosing among secrets gains nobody anything; and it is no fault, since only the trainer's word
        says which policy belongs to which window. Of a task's file, one that looked at everything."""
        accepts = message.verdict.outcome == VerdictOutcome.ACCEPT
        if work.task is not None:
            looked = unpack_groups(message.checked, work.groups) or ()
            return not accepts or len(looked) == work.groups
        return not accepts or message.window == window_of(work.step, self._audit)

    def beat(self, signed: Signed[Heartbeat]) -> BrokenPromise | None:
        """Note a validator's pledges; two different ones for a window are a broken promise."""
        for pledge in signed.message.lots:
            if abs(pledge.window - self.current_window) > 3:
                continue  # nobody can crowd out others with pledges for ever
            known = self._pledged.get((signed.author, pledge.window))
            if known is None:
                in_time = self._policies.newest_step < pledge.window * self._audit.window
                self._pledged[signed.author, pledge.window] = _Pledged(pledge, signed.raw, in_time)
            elif known.pledge != pledge:
                return self._break(signed.author, f"two pledges for window {pledge.window}", known.raw, signed.raw)
        return None

    def verdict(self, work: RegisteredWork, signed: Signed[VerdictIssued]) -> BrokenPromise | None:
        """Note which groups a verdict that counts covers."""
        if work.task is not None:
            return None
        message = signed.message
        window = window_of(work.step, self._audit)
        self.covered(work, message)
        if message.verdict.outcome != VerdictOutcome.ACCEPT:
            return None
        pledged, groups = self._pledged.get((signed.author, window)), 1 if work.contribution else self._groups
        if pledged is not None:
            pledged.used = True
        # Told before the verdicts that it is to be compared with, a secret would otherwise clear whatever follows.
        if pledged is not None and pledged.revealed is not None:
            return self._compare(pledged, pledged.revealed, groups, signed)
        if (signed.author, window) not in self._verdicts:
            # Those of windows so old that their secret, which was never told, has had consequences.
            oldest = self.current_window - 2 * self._overdue_windows
            for old in [one for one in self._verdicts if one[1] < oldest]:
                del self._verdicts[old]
        said = self._verdicts.setdefault((signed.author, window), [])
        if len(said) < 4096:
            said.append((groups, signed))
        return self._unrevealed(signed)

    def covered(self, work: RegisteredWork, message: Judgement) -> None:
        """Note which groups somebody put through the model."""
        if not self._counts(work):
            return
        self.committed(work)
        files = self._files.get(window_of(work.step, self._audit), {}).get(work.node, {})
        if work.id in files:
            drawn = sum(1 << group for group in unpack_groups(message.checked, self._groups) or ())
            files[work.id] |= drawn

    def _unrevealed(self, signed: Signed[VerdictIssued]) -> BrokenPromise | None:
        """Whether the author keeps its secrets to itself for good."""
        due = (self._policies.newest_step - self._staleness) // self._audit.window - self._overdue_windows
        # A pledge by which no verdict was given hides nothing.
        kept = [
            known
            for (validator, window), known in self._pledged.items()
            if validator == signed.author and window <= due and known.used and not known.revealed
        ]
        if len(kept) < self._overdue_windows:
            return None
        return self._break(signed.author, f"it did not reveal the lots of {len(kept)} windows", kept[0].raw, signed.raw)

    def reveal(self, signed: Signed[LotsRevealed]) -> BrokenPromise | None:
        """Compare a revealed secret with the pledge and with every accepting verdict of its window.

        A secret that comes too early is no proven fault (our own clock may be late), but earns no credit.
        """
        message = signed.message
        known = self._pledged.get((signed.author, message.window))
        if known is None or known.revealed:
            return None
        if secret_hash(message.secret, signed.author, self._pool, message.window) != known.pledge.hash:
            return self._break(signed.author, "it revealed another secret than it pledged", known.raw, signed.raw)
        known.revealed = signed
        for groups, said in self._verdicts.pop((signed.author, message.window), []):
            if (broken := self._compare(known, signed, groups, said)) is not None:
                return broken
        if self._policies.newest_step <= (message.window + 1) * self._audit.window - 1 + self._staleness:
            self.early += 1
        else:
            self.kept += 1
        return None

    def _compare(
        self, known: _Pledged, told: Signed[LotsRevealed], groups: int, said: Signed[VerdictIssued]
    ) -> BrokenPromise | None:
        """Whether a verdict looked at less than its lot demands."""
        id, message = work_id(said.message.verdict), said.message
        lot = (known.pledge, told.message.secret, said.author, self._pool, id, groups)
        why = broken_promise(*lot, message.checked, message.rate)
        return self._break(said.author, why, known.raw, told.raw, said.raw) if why is not None else None

    def draws_step(self, validator: Address, message: LotsRevealed, step: int, statement: bytes) -> bool:
        """Whether a validator drew the trainer's step with the secret that it has told, the pledged one."""
        known = self._pledged.get((validator, message.window))
        if known is None or not known.revealed or window_of(step, self._audit) != message.window:
            return False
        return draws_step(message.secret, statement, known.pledge.steps)

    def steps_rate(self, validator: Address) -> float | None:
        """The share of the trainer's steps that a validator has pledged to audit now; None where nothing was heard."""
        known = self._pledged.get((validator, self.current_window))
        return as_share(known.pledge.steps) if known else None

    def pledged_by(self, validator: Address) -> list[bytes]:
        """The envelopes of the heartbeats in which a validator pledged, newest first."""
        rows = reversed(self._pledged.items())
        return list(dict.fromkeys(known.raw for (author, _), known in rows if author == validator))

    def _break(self, validator: Address, why: str, *evidence: bytes) -> BrokenPromise:
        self.broken += 1
        return BrokenPromise(validator, why, evidence)

    # what the swarm can see

    def pledged_share(self, window: int, validators: set[Address]) -> float:
        """The chance that a group of `window` is recomputed by at least one of `validators`, as pledged in time."""
        return joint_share(
            as_share(known.pledge.rate)
            for (validator, of), known in self._pledged.items()
            if of == window and validator in validators and known.in_time
        )

    def powers(self, window: int) -> list[WorkerPower]:
        """What was really recomputed of every worker's groups in a window."""
        rows: list[WorkerPower] = []
        for node, files in self._files.get(window, {}).items():
            groups = self._groups * len(files)
            checked = sum(drawn.bit_count() for drawn in files.values())
            power = detection_power(checked / groups, groups, self._audit) if groups else 0.0
            rows.append(WorkerPower(node, window, groups, checked, power))
        return rows

    def last_full_window(self) -> int:
        """The newest window of which no new files can come; the newest of all while there is none."""
        done = (self._policies.newest_step - self._staleness + 1) // self._audit.window - 1
        return done if done >= 0 else self.current_window
