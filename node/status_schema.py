"""What `GET /status` of a daemon says: the one place where its sections and fields are named.

The daemon checks what its services say against this (`node.status`); commands, page, SDK and `api describe` read it.
Whoever reads ignores unknown fields, and missing ones have defaults, so that a command of one version can read a daemon
of another one; the schema's own version is checked. Fields are added, never changed in meaning.
"""

from typing import Any

import msgspec

SCHEMA_VERSION = 1


class PhasePart(msgspec.Struct, frozen=True):
    """What the node is doing, and what it waits for. progress: 0 to 1, None if nobody can say."""

    name: str = ""
    text: str = ""
    since_seconds: float = 0.0
    progress: float | None = None


class FinishedPart(msgspec.Struct, frozen=True):
    """A phase that is over."""

    name: str
    seconds: float = 0.0


class EventPart(msgspec.Struct, frozen=True):
    """Something that happened to the node. at: unix seconds."""

    name: str
    text: str = ""
    at: float = 0.0


class ReachPart(msgspec.Struct, frozen=True):
    """Members that tried to dial this node, and how many got through; where they see it; how it is reached: direct,
    relayed (through which members), none, or empty while unknown; with how many members it has a direct connection
    that both dialled at once (punched), and with how many that failed, so that a relay carries it (unpunched)."""

    tried: int = 0
    reached: int = 0
    seen: str = ""
    way: str = ""
    relays: list[str] = []
    punched: int = 0
    unpunched: int = 0


class ClockPart(msgspec.Struct, frozen=True):
    """How far this clock is ahead of the median of so many peers; None: too few are heard."""

    ahead_seconds: float | None = None
    peers: int = 0


class PenPart(msgspec.Struct, frozen=True):
    """Whether the node may promise anything (`node/state/pen.py`). state: open, held or shut; why: of the latter two;
    fence: the newest step up to which it signs nothing new, -1 without; adopted: own words that others had kept; holds:
    how often it was held, since the daemon's start."""

    state: str = "shut"
    why: str = ""
    fence: int = -1
    adopted: int = 0
    holds: int = 0


class NodePart(msgspec.Struct, frozen=True):
    """waited_for_files: how often something had to wait until it could open a file, since the daemon's start."""

    address: str = ""
    peer_id: str = ""
    role: str = ""
    state: str = "starting"
    pid: int = 0
    uptime_seconds: float = 0.0
    version: str = ""
    contacts: list[str] = []
    engine: str | None = None
    state_dir: str = ""
    waited_for_files: int = 0
    phase: PhasePart | None = None
    pen: PenPart | None = None
    reach: ReachPart | None = None
    clock: ClockPart | None = None
    lan: int = 0
    peers_kept: int = 0
    gpu_believed: bool = False
    gpu_tried_by: int = 0
    phases: list[FinishedPart] = []


class EndpointPart(msgspec.Struct, frozen=True):
    """An endpoint of the chain, without what its URL may keep secret. lags: others are asked before it; contradicted:
    times that two others told the same, and it something else; disagreed: times that it and another told different
    things, and no third one decided; alone: times that it was believed because no other answered."""

    url: str = ""
    in_use: bool = False
    lags: bool = False
    contradicted: int = 0
    disagreed: int = 0
    alone: int = 0


class NetworkPart(msgspec.Struct, frozen=True):
    """checked: whether the profile has a second endpoint, which must tell the same of what money follows from."""

    name: str = ""
    chain_id: int = 0
    pool: int | None = None
    block: int | None = None
    rpc_ok: bool = False
    checked: bool = False
    endpoints: list[EndpointPart] = []


class RunPart(msgspec.Struct, frozen=True):
    name: str = ""
    run_root: str | None = None
    step: int | None = None
    steps_total: int = 0
    target_reward: float | None = None
    policy_root: str | None = None
    policies_held: int = 0
    over: bool = False
    reward: float | None = None
    final_reward: float | None = None


class RestPart(msgspec.Struct, frozen=True):
    """Whether the node rests. why: empty while it works; until: unix seconds, None if nobody can say; draining: whether
    work is under way yet; dropped: works that a rest has cut short; in_use: what others do with the machine."""

    why: str = ""
    until: float | None = None
    draining: bool = False
    dropped: int = 0
    in_use: str = ""


class DayPart(msgspec.Struct, frozen=True):
    """What a day of a worker comes to, by what was accepted in the last hour. known: whether enough was; share: of the
    week that it works; gas_wei: None if it is not known."""

    known: bool = False
    least_wei: str = "0"
    most_wei: str = "0"
    gas_wei: str | None = None
    share: float = 1.0
    text: str = "unknown"


class StakePart(msgspec.Struct, frozen=True):
    # Text: JSON's readers keep 53 bits of a number, and a stake has more.
    bonded_wei: str = "0"
    slashed_wei: str = "0"


class EpochPart(msgspec.Struct, frozen=True):
    """What a quorum certified of one epoch of this node's work. state: certified, waiting (a table has it that does
    not count yet), filed, redeemed, in the table, claimed, missed, or unclear; missed_units: not in its table;
    unclear_units: of which nobody can say whether it has them; claimable_at: when it can be claimed, by the chain."""

    epoch: int
    state: str = ""
    wei: str = "0"
    units: int = 0
    missed_units: int = 0
    unclear_units: int = 0
    claimable_at: int = 0


class PaidUnitsPart(msgspec.Struct, frozen=True):
    """This node's units: claimed, payable by a posted table, certified and in none yet, missed; owed: in a table, and
    payable once the pool can; made and not decided, accepted and not certified, claimable now of the payable ones, such
    as nobody can tell of, waiting: of the certified ones those that a table has which does not count yet, and filed
    after the pool's end, and not redeemed yet."""

    claimed: int = 0
    in_table: int = 0
    certified: int = 0
    missed: int = 0
    owed: int = 0
    made: int = 0
    accepted: int = 0
    claimable: int = 0
    unclear: int = 0
    waiting: int = 0
    filed: int = 0


class FilingPart(msgspec.Struct, frozen=True):
    """Of a pool that has ended, by the chain's time: when what no table has can be filed, and is redeemed; held_until:
    by the guardian, 0 for not at all."""

    starts: int
    ends: int
    redeems: int
    held_until: int = 0


class PayPart(msgspec.Struct, frozen=True):
    """What this node's work comes to, in wei. due: in the posted table; owed: in it, and payable once the pool can;
    waiting: certified, and in no table yet; missed: accepted, and in no table for ever; unclear: nobody can say whether
    a table has it; provider: to whom it goes; waiting_until: the chain's time, or 0; table_epoch: the last one that is
    tabled; escrow_epochs: for how many epochs like the last ones the escrow lasts; escrow_wei, reward_per_unit_wei: of
    the pool; unit_worth_wei: what a unit came to in the newest table; brought: claims for nodes that are away; last_at:
    when the last of what is made can be claimed; filed: after the pool's end, and not redeemed yet.
    """

    provider: str = ""
    earned_wei: str = "0"
    paid_wei: str = "0"
    due_wei: str = "0"
    waiting_wei: str = "0"
    missed_wei: str = "0"
    unclear_wei: str = "0"
    owed_wei: str = "0"
    units: PaidUnitsPart = PaidUnitsPart()
    waiting_until: int = 0
    table_epoch: int | None = None
    escrow_wei: str | None = None
    reward_per_unit_wei: str | None = None
    unit_worth_wei: str | None = None
    escrow_epochs: float | None = None
    warnings: list[str] = []
    epochs: list[EpochPart] = []
    brought: int = 0
    last_at: int = 0
    filed_wei: str = "0"
    filing: FilingPart | None = None


class PathPart(msgspec.Struct, frozen=True):
    """What a daemon's system says of its direct connections with a member."""

    connections: int = 1
    congestion: str = ""
    rtt_ms: float = 0.0
    least_rtt_ms: float = 0.0
    loss: float = 0.0


class MemberPart(msgspec.Struct, frozen=True):
    """One line of the table that a daemon keeps of the others."""

    address: str
    role: str = ""
    state: str = "joining"
    step: int | None = None
    seen_seconds_ago: float | None = None
    tokens_per_second: float | None = None
    connected: bool = False
    way: str = ""
    path: PathPart | None = None
    contacts: list[str] = []
    clock_ahead_seconds: float | None = None
    activity: str = ""
    contact: str = ""
    hardware: str = ""
    counts_as: str = ""
    version: str = ""


class WorkPart(msgspec.Struct, frozen=True):
    files_committed: int = 0
    files_accepted: int = 0
    files_rejected: int = 0
    rejected_by_reason: dict[str, int] = {}
    tokens_per_second: float = 0.0
    units: int = 0
    generate_seconds: float = 0.0
    last_reward_estimate: float | None = None
    waiting: str | None = None


class AlarmPart(msgspec.Struct, frozen=True):
    """An alarm that rings now, and the step at which it began."""

    name: str
    step: int = 0
    text: str = ""
    value: float = 0.0
    limit: float = 0.0


class ValuesPart(msgspec.Struct, frozen=True):
    """Whence the trainer has the values that it learns from. groups: by origin; not_served: reports that could not be
    had, by validator; distrusted: validators whose values were wrong."""

    groups: dict[str, int] = {}
    not_served: dict[str, int] = {}
    distrusted: dict[str, str] = {}


class TrainingPart(msgspec.Struct, frozen=True):
    """reward_eval, reward_train: [step, mean reward]; staleness: steps behind -> rollouts, and 'dropped'; latest: the
    newest record of metrics.jsonl (docs/records.md names its fields); plan: what learns where, in a line; memory: what
    became of memory that ran out, empty where it did not."""

    step: int = 0
    reward_eval: list[tuple[int, float]] = []
    reward_train: list[tuple[int, float]] = []
    staleness: dict[str, int] = {}
    queued_rollouts: int = 0
    seconds_per_step: float | None = None
    tokens_per_second: float | None = None
    loss: float | None = None
    grad_norm: float | None = None
    entropy: float | None = None
    alarms: list[AlarmPart] = []
    ended_by: str | None = None
    done: bool = False
    seconds: float = 0.0
    latest: dict[str, Any] = {}
    plan: str = ""
    memory: str = ""
    invalidated_files: int = 0
    values: ValuesPart | None = None
    label_queue: dict[str, int] = {}
    teacher_queue: dict[str, int] = {}


class PeerPart(msgspec.Struct, frozen=True):
    """A member of a run that pre-trains. inside: it has contributed to the round; equal: whether its outer state is the
    one that this node knows of that round, None where it knows none."""

    address: str
    replica_id: int = -1
    round: int = -1
    inside: bool = msgspec.field(default=False, name="in")
    equal: bool | None = None


class OuterStatesPart(msgspec.Struct, frozen=True):
    """equal: members whose outer state is this node's, itself among them; of: those that can be compared."""

    equal: int = 0
    of: int = 0


class PretrainingPart(msgspec.Struct, frozen=True):
    """Rounds without a leader. loss: of the last round's peers, nats per token; eval_loss, perplexity: on held-back
    text, at the run's owner only; of_rollouts: learnt from rollouts, of which `tokens_per_second` counts so many;
    queued_rollouts: accepted ones that wait at this trainer; losses: [round, loss]; training: whether this peer makes
    its steps now."""

    round: int = 0
    rounds: int = 0
    outer_root: str = ""
    loss: float | None = None
    eval_loss: float | None = None
    perplexity: float | None = None
    eval_loss_by_data: dict[str, float] | None = None
    tokens_per_second: float | None = None
    bits_per_parameter: float | None = None
    of_rollouts: bool = False
    queued_rollouts: int = 0
    contributions: int | None = None
    outer_states: OuterStatesPart = OuterStatesPart()
    peers: list[PeerPart] = []
    losses: list[tuple[int, float]] = []
    replica_id: int = -1
    training: bool = False
    votes_signed: int = 0


class VerdictPart(msgspec.Struct, frozen=True):
    node: str = ""
    index: int = 0
    step: int | None = None
    outcome: int | str = 0
    reason: int | str = ""
    seconds_ago: float = 0.0
    detail: str = ""


class VerdictsPart(msgspec.Struct, frozen=True):
    accepted: int = 0
    rejected: int = 0
    by_reason: dict[str, int] = {}
    recent: list[VerdictPart] = []
    withheld: int = 0
    skipped: int = 0


class BadStepPart(msgspec.Struct, frozen=True):
    """A step that validators found bad. by: who; held_by: how many found it good."""

    step: int
    by: list[str] = []
    reason: str = ""
    detail: str = ""
    held_by: int = 0


class StepVerdictsPart(msgspec.Struct, frozen=True):
    """The trainer's steps that validators audited. held: of `steps`; owing: draws without a verdict."""

    last_step: int | None = None
    last_by: str | None = None
    last_says: str | None = None
    held: int = 0
    steps: int = 0
    owing: int = 0
    verdicts: int = 0
    bad: list[BadStepPart] = []


class LeaderPart(msgspec.Struct, frozen=True):
    """Whether this node takes its trainer's word, and why not; refused: words that count for nothing, by message and
    why; step_verdicts: on its steps."""

    trusted: bool = True
    why: str = ""
    evidence: int = 0
    refused: dict[str, int] = {}
    step_verdicts: StepVerdictsPart = StepVerdictsPart()


class WorkerUsesPart(msgspec.Struct):
    """What the trainer made of a worker's accepted files, by its own manifests. flat: used up without a group that was
    learnt from; surplus: due, and behind all that was used; stale: too old before they were used; left_out: due and
    fresher than something that was used."""

    accepted: int = 0
    used: int = 0
    flat: int = 0
    surplus: int = 0
    stale: int = 0
    left_out: int = 0


class LeftOutPart(msgspec.Struct, frozen=True):
    """A work that the trainer left out. step: whose manifest used something older; due: the policy at which the last of
    a quorum had named it; by: who signed a list with it until then."""

    work: str
    node: str
    policy_step: int = 0
    step: int = 0
    due: int = 0
    by: list[str] = []


class UsesPart(msgspec.Struct, frozen=True):
    """dropped: workers whose due files the trainer leaves out again and again; passed_over: due works in a row, by
    worker, and longest, the most of them; left_out: the newest works; replicas: what each trainer used of whose, and
    left out, by replica and address."""

    workers: dict[str, WorkerUsesPart] = {}
    unread_manifests: int = 0
    dropped: list[str] = []
    passed_over: dict[str, int] = {}
    longest: int = 0
    left_out: list[LeftOutPart] = []
    replicas: dict[str, dict[str, dict[str, int]]] = {}


class StepAuditsPart(msgspec.Struct, frozen=True):
    """This node's own audits of its trainer's steps. pledged: share of them, None for a node without lots; why_not:
    why it makes none; undecided: why the last one without an outcome has none."""

    pledged: float | None = None
    why_not: str = ""
    by_outcome: dict[str, int] = {}
    undecided: str = ""


class ValidatorPart(msgspec.Struct, frozen=True):
    """A validator that is alive. inactive: files are decided without it."""

    address: str
    inactive: bool = False
    believed: bool = True


class QuarantinedPart(msgspec.Struct, frozen=True):
    """A validator that is not believed. evidence: envelopes that show why."""

    address: str
    why: str = ""
    evidence: int = 0


class EarningsTablePart(msgspec.Struct, frozen=True):
    """What a validator does for earnings. certified: works that its roots name; tabled_before: the first epoch that it
    tables; posted: how many tables; waiting: what one waits for, or nothing."""

    certified: int = 0
    tabled_before: int = 0
    posted: int = 0
    waiting: str = ""


class ValidatorAuditsPart(msgspec.Struct, frozen=True):
    """What the pool's validators look at, and find of each other. peers: others' verdicts that this one looked at, by
    outcome. power: chance that a cheat in `cheated_share` of the groups of the worker checked least was seen in
    `window`."""

    window: int = 0
    trust: str = "verified"
    cheated_share: float = 0.1
    power_wanted: float = 0.95
    power: float | None = None
    checked_share: float | None = None
    pledged_share: float = 0.0
    pledged_power: float = 0.0
    groups_per_worker: int = 0
    validators: list[ValidatorPart] = []
    quarantined: list[QuarantinedPart] = []
    peers: dict[str, int] = {}
    lots: dict[str, int] = {}
    disputes: dict[str, int] = {}


class ChairPart(msgspec.Struct, frozen=True):
    """Who leads, and how far this node's own replay is. until: end of the lease, unix seconds; standbys: in the order
    of their turn; apart: what came out otherwise than its leader stated, empty if nothing did."""

    term: int = 0
    holder: str = ""
    leads: bool = False
    from_step: int = 0
    ended: bool = False
    until: int = 0
    standbys: list[str] = []
    lost: int = 0
    replayed: int = 0
    equal: int = 0
    apart: str = ""
    differences: list[str] = []
    checkpoints: int = 0
    checkpoints_refused: int = 0


class ContributionPart(msgspec.Struct, frozen=True):
    """Of one member. accepted, rejected: files; units: of the accepted ones; reason: of the last rejection."""

    accepted: int = 0
    rejected: int = 0
    units: int = 0
    reason: str = ""


class DecisionPart(msgspec.Struct, frozen=True):
    """What became of one file. number: of the decision; at: unix seconds; reason, detail: of a rejection."""

    number: int
    at: float = 0.0
    node: str = ""
    step: int = 0
    index: int = 0
    accepted: bool = False
    reason: str = ""
    detail: str = ""


class ContributionsPart(msgspec.Struct, frozen=True):
    """What validators decided about everybody's files since unix seconds `since`."""

    since: float = 0.0
    accepted: int = 0
    rejected: int = 0
    by_reason: dict[str, int] = {}
    members: dict[str, ContributionPart] = {}
    recent: list[DecisionPart] = []


class CheckpointsPart(msgspec.Struct, frozen=True):
    """A trainer's checkpoints for auditors, and the steps for which there was no room."""

    bytes_by_step: dict[str, int] = {}
    without_room: list[int] = []


class EnginePart(msgspec.Struct, frozen=True):
    """seconds_by_work: of the engine, by what it was asked for."""

    seconds_by_work: dict[str, float] = {}


class SlashPart(msgspec.Struct, frozen=True):
    node: str
    provider: str = ""
    amount_wei: str = "0"
    reason: int | str = ""
    transaction: str = ""
    block: int | None = None


class ProcessPart(msgspec.Struct, frozen=True):
    """A child of the daemon. restarts: since the daemon started."""

    name: str
    pid: int | None = None
    restarts: int = 0


class ErrorPart(msgspec.Struct, frozen=True):
    what: str
    why: str = ""
    remedy: str = ""


class TaskPart(msgspec.Struct, frozen=True):
    """A task of the swarm. done: shards whose results were accepted; held: shard -> who has it now; gathered, path: at
    its owner only."""

    id: str = ""
    kind: str = ""
    open: bool = False
    step: int = -1
    problems: int = 0
    samples: int = 0
    shards: int = 0
    done: int = 0
    held: dict[str, str] = {}
    taken_over: int = 0
    seconds: float = 0.0
    gathered: int = 0
    path: str = ""


class TaskWorkPart(msgspec.Struct, frozen=True):
    """A worker's part in tasks. lost: shards that somebody else had taken over when they were done."""

    claimed: int = 0
    committed: int = 0
    lost: int = 0
    failed: int = 0
    units: int = 0
    seconds: float = 0.0


class TasksPart(msgspec.Struct, frozen=True):
    """known: every task that the node has heard of; own: those that it offers."""

    known: list[TaskPart] = []
    work: TaskWorkPart | None = None
    own: list[TaskPart] = []


class BlobsPart(msgspec.Struct, frozen=True):
    """The blobs on this disk. bytes_written: since the start; damaged: found with other bytes than their name says, of
    which the pool had the right ones again, or not; oldest_look_seconds: since the longest unseen one was compared,
    None before."""

    bytes_written: int = 0
    damaged: int = 0
    fetched_again: int = 0
    not_fetched_again: int = 0
    bytes_looked_at: int = 0
    oldest_look_seconds: float | None = None


# A part that is None belongs to another role, or the daemon has not got there.
class LeavingPart(msgspec.Struct, frozen=True):
    """Of a node that leaves once it is paid. units: that are not paid yet; until: the chain's time at which the last of
    them can be claimed, 0 for none; activity: in words."""

    units: int = 0
    until: int = 0
    activity: str = ""


class DaemonStatus(msgspec.Struct, frozen=True):
    """The whole answer."""

    schema_version: int = SCHEMA_VERSION
    node: NodePart = NodePart()
    network: NetworkPart = NetworkPart()
    run: RunPart | None = None
    rest: RestPart | None = None
    day: DayPart | None = None
    stake: StakePart | None = None
    pay: PayPart | None = None
    leaving: LeavingPart | None = None
    swarm: list[MemberPart] = []
    work: WorkPart | None = None
    training: TrainingPart | None = None
    contributions: ContributionsPart | None = None
    pretraining: PretrainingPart | None = None
    verdicts: VerdictsPart | None = None
    validator_audits: ValidatorAuditsPart | None = None
    step_audits: StepAuditsPart | None = None
    leader: LeaderPart | None = None
    checkpoints: CheckpointsPart | None = None
    earnings_table: EarningsTablePart | None = None
    uses: UsesPart | None = None
    chair: ChairPart | None = None
    tasks: TasksPart = TasksPart()
    slashed: list[SlashPart] = []
    network_stats: dict[str, int] = {}
    board: dict[str, int] = {}
    engine: EnginePart | None = None
    processes: list[ProcessPart] = []
    restarts: dict[str, int] = {}
    services: list[str] = []
    blobs: BlobsPart | None = None
    last_error: ErrorPart | None = None
    events: list[EventPart] = []
