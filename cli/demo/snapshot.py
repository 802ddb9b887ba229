"""What the demo knows at one moment, put together from what its daemons say.

Pure: statuses come in, a `Snapshot` goes out. The view, the report and the summary read snapshots only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from node.metrics.journal import Ends, ends_of
from node.status_schema import DaemonStatus, PretrainingPart, SlashPart, TrainingPart, VerdictPart, VerdictsPart


@dataclass(frozen=True, slots=True)
class DemoMember:
    """One process of the demo. cheat: how it cheats (a worker, a trainer) or lies (a validator), None for the honest;
    address: empty until it told."""

    name: str
    role: str
    cheat: str | None = None
    address: str = ""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """state: starting | running | restarting | stopped. restarts: how often it was started again."""

    pid: int | None = None
    state: str = "starting"
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class SwarmRow:
    """One line of the swarm table. files_accepted, files_rejected: of a worker, by the pool's quorum; of a validator,
    as it judged; reasons: for which a worker's files were refused; paid_wei: what was claimed for it; owed_wei: what is
    certified or in the table, and not claimed yet; leads: of a trainer, whether the term is its own."""

    participant: DemoMember
    process: ProcessState
    state: str
    step: int | None = None
    tokens_per_second: float | None = None
    files_accepted: int = 0
    files_rejected: int = 0
    error: str | None = None
    reasons: Mapping[str, int] = field(default_factory=dict)
    paid_wei: int = 0
    owed_wei: int = 0
    leads: bool = False


@dataclass(frozen=True, slots=True)
class JudgingTally:
    """How the demo's validators judged one file, as far as they told. node: the worker's address."""

    node: str
    step: int
    index: int
    accepting: int = 0
    rejecting: int = 0


@dataclass(frozen=True, slots=True)
class Disbelief:
    """A validator whom others do not believe any more. by: how many honest nodes; seconds: elapsed when first seen."""

    validator: str
    why: str
    by: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """elapsed, training_seconds: seconds. rewards: held-back mean reward by step; page: HOST:PORT of the trainer's."""

    phase: str = "starting"
    elapsed: float = 0.0
    run_name: str = ""
    chain_id: int = 0
    block: int | None = None
    pool: int | None = None
    step: int = 0
    steps_total: int = 0
    target: float | None = None
    rewards: tuple[tuple[int, float], ...] = ()
    train_rewards: tuple[tuple[int, float], ...] = ()
    staleness: Mapping[str, int] = field(default_factory=dict)
    rows: tuple[SwarmRow, ...] = ()
    verdicts: VerdictsPart = VerdictsPart()
    slashed: tuple[SlashPart, ...] = ()
    quorum: int = 1
    tallies: tuple[JudgingTally, ...] = ()
    quarantined: tuple[Disbelief, ...] = ()
    disputes: Mapping[str, int] = field(default_factory=dict)
    training: TrainingPart | None = None
    training_seconds: float = 0.0
    done: bool = False
    page: str | None = None
    pretraining: PretrainingPart | None = None

    @property
    def progress(self) -> int:
        """The newest step that is evaluated, or round that is over; -1 before any."""
        if self.pretraining is not None:
            return self.pretraining.round
        return self.rewards[-1][0] if self.rewards else -1

    @property
    def tokens_per_second(self) -> float:
        return sum(row.tokens_per_second or 0.0 for row in self.rows if row.participant.role == "worker")

    @property
    def paid_wei(self) -> int:
        """Of all members together."""
        return sum(row.paid_wei for row in self.rows)

    @property
    def all_paid(self) -> bool:
        """Whether every honest member that has earned anything was paid once, and somebody was."""
        return self.paid_wei > 0 and all(
            row.paid_wei or not row.owed_wei for row in self.rows if not row.participant.cheat
        )

    @property
    def ends(self) -> Ends:
        """How the reward began and ended."""
        return ends_of([value for _, value in self.rewards])

    @property
    def names(self) -> dict[str, str]:
        """Node addresses, in lower case -> the participant's name."""
        return {row.participant.address.lower(): row.participant.name for row in self.rows}

    @property
    def cheats(self) -> tuple[SwarmRow, ...]:
        """Workers and trainers that cheat, and validators that lie."""
        return tuple(row for row in self.rows if row.participant.cheat)

    @property
    def validators(self) -> tuple[SwarmRow, ...]:
        return tuple(row for row in self.rows if row.participant.role == "validator")

    def tally_of(self, verdict: VerdictPart) -> JudgingTally | None:
        """How the validators judged the file that a verdict is about."""
        key = (verdict.node.lower(), verdict.step, verdict.index)
        return next((one for one in self.tallies if (one.node, one.step, one.index) == key), None)

    def first_rejection(self, participant: DemoMember) -> JudgingTally | None:
        """The first file of a worker that most of those who judged it rejected."""
        mine = [one for one in self.tallies if one.node == participant.address.lower()]
        return next((one for one in mine if one.rejecting > one.accepting), None)

    def disbelief_in(self, participant: DemoMember) -> Disbelief | None:
        """Whether others stopped believing a validator."""
        address = participant.address.lower()
        return next((one for one in self.quarantined if one.validator.lower() == address), None)

    def slash_of(self, participant: DemoMember) -> SlashPart | None:
        """The slash that hit a participant, or None."""
        address = participant.address.lower()
        return next((slash for slash in self.slashed if slash.node.lower() == address), None)


class Tracker:
    """Remembers what a single answer forgets: the whole curve, every slash, the last known states."""

    def __init__(
        self,
        participants: Iterable[DemoMember],
        *,
        target: float | None,
        run_name: str,
        quorum: int = 1,
        page: str | None = None,
    ) -> None:
        self._participants = tuple(participants)
        self._rewards: dict[int, float] = {}
        self._train_rewards: dict[int, float] = {}
        self._slashed: dict[str, SlashPart] = {}
        self._latest: dict[str, DaemonStatus] = {}
        self._began: float | None = None
        self._ended: float | None = None
        self._judged: dict[tuple[str, int, int], dict[str, bool]] = {}
        self._doubted: dict[str, tuple[str, float]] = {}
        self._base = Snapshot(target=target, run_name=run_name, quorum=quorum, page=page)

    def absorb(self, name: str, status: DaemonStatus) -> None:
        """Take in the newest answer of participant `name`."""
        self._latest[name] = status
        for slash in status.slashed:
            # The first word stays: each node forgets, and not all at the same time.
            self._slashed.setdefault(slash.node.lower(), slash)
        if status.node.role == "validator" and status.verdicts:
            for verdict in status.verdicts.recent:
                key = (verdict.node.lower(), -1 if verdict.step is None else verdict.step, verdict.index)
                self._judged.setdefault(key, {})[name] = is_acceptance(verdict)
        if status.training:
            self._rewards.update(status.training.reward_eval)
            self._train_rewards.update(status.training.reward_train)

    def snapshot(self, phase: str, elapsed: float, processes: Mapping[str, ProcessState]) -> Snapshot:
        """The state of things, `elapsed` seconds after the start."""
        statuses = self._latest.values()
        told = (s.training for s in statuses if s.training and s.node.role == "trainer")
        # Of several trainers the furthest; of equals the one that says it is done.
        training = max(told, key=lambda part: (part.step, part.done), default=None)
        run = next((s.run for s in statuses if s.run and s.run.steps_total), None)
        verdicts = (s.verdicts for s in statuses if s.verdicts)
        disputes = (s.validator_audits.disputes for s in statuses if s.validator_audits)
        return replace(
            self._base,
            phase=phase,
            elapsed=elapsed,
            # A node that has just started says 0.
            chain_id=max((s.network.chain_id for s in statuses), default=0),
            block=max((s.network.block for s in statuses if s.network.block is not None), default=None),
            pool=next((s.network.pool for s in statuses if s.network.pool is not None and s.network.pool >= 0), None),
            step=max(training.step, 0) if training else 0,
            steps_total=run.steps_total if run else 0,
            rewards=tuple(sorted(self._rewards.items())),
            train_rewards=tuple(sorted(self._train_rewards.items())),
            staleness=dict(training.staleness) if training else {},
            rows=tuple(self._row(one, processes.get(one.name, ProcessState())) for one in self._participants),
            # Every member counts the verdicts and disputes that it heard of: the one that heard the most is shown.
            verdicts=max(verdicts, key=lambda part: part.accepted + part.rejected, default=VerdictsPart()),
            slashed=tuple(self._slashed.values()),
            tallies=tuple(_tally(key, votes) for key, votes in self._judged.items()),
            quarantined=self._quarantined(elapsed),
            disputes=dict(max(disputes, key=lambda one: one.get("raised", 0), default={})),
            training=training,
            training_seconds=self._seconds(training, elapsed),
            done=bool(training and training.done),
            pretraining=_furthest(s.pretraining for s in statuses if s.pretraining and s.pretraining.rounds),
        )

    def _quarantined(self, elapsed: float) -> tuple[Disbelief, ...]:
        """What honest nodes say of the validators that they do not believe."""
        honest = [self._latest[one.name] for one in self._participants if not one.cheat and one.name in self._latest]
        said = [(one.address, one.why) for s in honest if (audits := s.validator_audits) for one in audits.quarantined]
        for address, why in said:
            self._doubted.setdefault(address, (why, elapsed))
        return tuple(
            Disbelief(address, why, sum(one == address for one, _ in said), seconds)
            for address, (why, seconds) in self._doubted.items()
        )

    def _seconds(self, training: TrainingPart | None, elapsed: float) -> float:
        """Of training: the trainer's own clock, or ours where a restart set the trainer's back."""
        if training and training.step >= 0 and self._began is None:
            self._began = elapsed
        if training and training.done and self._ended is None:
            self._ended = elapsed
        ours = 0.0 if self._began is None else (self._ended or elapsed) - self._began
        return max(training.seconds, ours - 1.0, 0.0) if training else 0.0

    def _row(self, participant: DemoMember, process: ProcessState) -> SwarmRow:
        status = self._latest.get(participant.name)
        if status is None:
            return SwarmRow(participant, process, process.state)
        work, training, verdicts, pay = status.work, status.training, status.verdicts, status.pay
        files = (work.files_accepted, work.files_rejected) if work else (0, 0)
        if participant.role == "validator" and verdicts:
            files = (verdicts.accepted, verdicts.rejected)
        speed = work.tokens_per_second if work else None
        if participant.role == "trainer" and training:
            speed = training.tokens_per_second
        return SwarmRow(
            participant=replace(participant, address=status.node.address or participant.address),
            process=process,
            state=status.node.state if process.state == "running" else process.state,
            step=status.run.step if status.run and status.run.step is not None and status.run.step >= 0 else None,
            # The last answer of a process that died says nothing of now.
            tokens_per_second=speed if process.state == "running" else None,
            files_accepted=files[0],
            files_rejected=files[1],
            error=status.last_error.what if status.last_error else None,
            reasons=dict(work.rejected_by_reason) if work else {},
            paid_wei=int(pay.paid_wei) if pay else 0,
            owed_wei=int(pay.due_wei) + int(pay.waiting_wei) if pay else 0,
            leads=bool(status.chair and status.chair.leads),
        )


def is_acceptance(verdict: VerdictPart) -> bool:
    """Whether a verdict accepts its file."""
    return verdict.outcome in (0, "accept", "accepted")


def _furthest(parts: Iterable[PretrainingPart]) -> PretrainingPart | None:
    """Whoever has applied most rounds tells the story; of several, who knows the loss on held-back text."""
    return max(parts, key=lambda part: (part.round, part.eval_loss is not None), default=None)


def _tally(key: tuple[str, int, int], votes: Mapping[str, bool]) -> JudgingTally:
    return JudgingTally(*key, accepting=sum(votes.values()), rejecting=len(votes) - sum(votes.values()))
