"""Optional sections of a run: several environments, length budgets, filters, requirements, limits of cost, alarms.

Knows what each setting means and its bounds; knows nothing of how it is carried out. Every default leaves a run
as it would be without the section.
"""

from collections.abc import Collection
from typing import Any, Literal

import msgspec

Rule = tuple[str, bool, str]
"""(field, whether its value is good, what it must be)."""

MAX_PARTS = 32
MAX_TARGETS = 32
MAX_TEXT = 500


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A strict section of the run."""


class EnvironmentPart(Section, frozen=True):
    """One of several environments. weight: its share of the problems, relative to the others'; label: its name in
    metrics and problem ids, the environment's own name if empty; reward: as in protocol.run.EnvironmentSpec."""

    name: str
    weight: float = 1.0
    label: str = ""
    args: dict[str, int | float | str] = {}
    reward: str = ""

    @property
    def title(self) -> str:
        return self.label or self.name


class EvaluationEnvironment(Section, frozen=True):
    """Problems that are only evaluated on, never trained on. label: its name in metrics, the environment's own name if
    empty; reward: as in protocol.run.EnvironmentSpec."""

    name: str
    label: str = ""
    args: dict[str, int | float | str] = {}
    reward: str = ""

    @property
    def title(self) -> str:
        return self.label or self.name


class LengthBudget(Section, frozen=True):
    """Rewards for answers of a wanted length (INTELLECT-2, arXiv 2505.07291, section 3.1). No targets: off.

    targets: ascending token counts; which of them a worker may be dealt is bounded by the capacity class that its
    file states (class c: the first c + 1), so slow or small nodes get the short ones. alpha: reward lost per token
    beside the target (mode "exact"), or slope of the factor (mode "max"). mode: see protocol.budgets. text: told to
    the model, {target} is the number; place: after or before the problem. cut: an answer ends at cut * target
    tokens at the latest (0: at rollout.max_output_tokens only). seconds: how long a worker's file may take; from it
    and the measured speed follows the class.
    """

    targets: tuple[int, ...] = ()
    alpha: float = 0.0003
    mode: Literal["exact", "max", "clip"] = "exact"
    text: str = "Think for {target} tokens before giving a response."
    place: Literal["after", "before"] = "after"
    cut: float = 0.0
    seconds: float = 120.0

    def rules(self) -> list[Rule]:
        ascending = all(a < b for a, b in zip(self.targets, self.targets[1:], strict=False))
        return [
            (
                "length_budget.targets",
                len(self.targets) <= MAX_TARGETS and ascending and all(t >= 1 for t in self.targets),
                f"must be at most {MAX_TARGETS} ascending token counts",
            ),
            ("length_budget.alpha", 0 <= self.alpha <= 1, "must be 0 to 1: reward per token"),
            ("length_budget.text", len(self.text) <= MAX_TEXT and "{target}" in self.text, "must hold {target}"),
            ("length_budget.cut", self.cut == 0 or 1 <= self.cut <= 64, "must be 0 (no cut) or 1 to 64"),
            ("length_budget.seconds", 1 <= self.seconds <= 86400, "must be 1 to 86400"),
        ]


class Filters(Section, frozen=True):
    """Which groups a batch is made of.

    online: groups whose rewards are all equal teach nothing; leave them out and wait for others until the batch is
    full. refill: a batch looks at no more than refill * prompts_per_step groups, then takes what there is.
    keep_surplus: verified groups that a batch did not need wait for the next one while they are fresh enough.
    """

    online: bool = False
    refill: float = 4.0
    keep_surplus: bool = True

    def rules(self) -> list[Rule]:
        return [("filters.refill", 1 <= self.refill <= 64, "must be 1 to 64: looked-at groups per wanted group")]


class Requirement(Section, frozen=True):
    """What a machine must have. memory_gib, gpu_memory_gib: GiB, the latter of its largest GPU; 0: anything will do."""

    cores: int = 0
    memory_gib: float = 0.0
    gpu_memory_gib: float = 0.0


class Requirements(Section, frozen=True):
    """Of each role."""

    trainer: Requirement = Requirement()
    worker: Requirement = Requirement()
    validator: Requirement = Requirement()

    def rules(self) -> list[Rule]:
        return [
            (
                f"requirements.{role}",
                0 <= need.cores <= 4096 and 0 <= need.memory_gib <= 1 << 20 and 0 <= need.gpu_memory_gib <= 1 << 20,
                "must hold cores up to 4096 and memory up to 1048576 GiB, none negative",
            )
            for role, need in (("trainer", self.trainer), ("worker", self.worker), ("validator", self.validator))
        ]


class Budget(Section, frozen=True):
    """When the trainer ends the run before its last step. hours: of training; tokens: generated and accepted; 0: no
    limit."""

    hours: float = 0.0
    tokens: int = 0

    def rules(self) -> list[Rule]:
        return [
            ("budget.hours", 0 <= self.hours <= 1_000_000, "must be 0 (no limit) or more hours"),
            ("budget.tokens", 0 <= self.tokens <= 1 << 60, "must be 0 (no limit) or more tokens"),
        ]


class PaySection(Section, frozen=True):
    """What judging and training are paid, in the pool's units: one is a worker's pay for an output token.

    judging: units per output token of a group that a validator recomputed; judged_share: of one file at most this
    share of the groups is paid for, however many a validator looks at; training: units of a published policy, per
    output token that its step can have at most, or of a trainer's contribution to a round, likewise. 0 pays
    nothing.
    """

    judging: float = 0.25
    judged_share: float = 0.5
    training: float = 0.1

    def rules(self) -> list[Rule]:
        return [
            ("pay.judging", 0 <= self.judging <= 1, "must be 0 to 1: judging costs less than generating"),
            ("pay.judged_share", 0 <= self.judged_share <= 1, "must be 0 to 1"),
            ("pay.training", 0 <= self.training <= 64, "must be 0 to 64 units per token of a step"),
        ]


TEACHER = "teacher"
"""The directory of a teacher among a run's files."""


class Distill(Section, frozen=True):
    """On-policy distillation: a teacher's log-probabilities of the tokens that a policy sampled.

    teacher: a model directory in a run file; in a run its files are assets below `teacher/`, so their roots name it.
    coefficient: a token's advantage has so much of log teacher - log sampler, the sampled part of the reverse KL;
    rewards: and so much of what the rewards say, 0 for a run that learns from the teacher alone; tasks: in a swarm,
    workers compute them as tasks and validators do so again, and the trainer needs no teacher; pay: units of work for
    each token of such a task.
    """

    teacher: str
    coefficient: float = 1.0
    rewards: float = 0.0
    tasks: bool = False
    pay: float = 0.25

    def rules(self) -> list[Rule]:
        return [
            ("distill.teacher", 1 <= len(self.teacher) <= MAX_TEXT, "must name a model directory"),
            ("distill.coefficient", 0 < self.coefficient <= 10, "must be above 0, at most 10"),
            ("distill.rewards", 0 <= self.rewards <= 10, "must be 0 (the teacher alone) to 10"),
            ("distill.pay", 0 < self.pay <= 64, "must be above 0, at most 64 units per token"),
        ]


def distill_rules(run: Any) -> list[Rule]:
    """What a run with a teacher must keep to."""
    if run.distill is None:
        return []
    names = {asset.path for asset in run.assets}
    return [
        ("distill.teacher", f"{TEACHER}/config.json" in names, f"has no files in {TEACHER}/"),
        ("distill", run.diloco is None, "does not go with [diloco] yet"),
        ("filters.online", not run.filters.online, "must be false with [distill]: equal rewards are no reason to skip"),
    ]


class Alarms(Section, frozen=True):
    """When a run's numbers look like trouble; 0 switches one off. All compare means over `window` steps.

    entropy_rise: entropy has grown by this factor over its lowest mean; mismatch: KL between sampler and trainer,
    nats per token, four times as much in a single step; grad_norm: times the run's median; reward_drop: share of the
    best mean reward that is lost; no_signal: steps in a row in which no group had unequal rewards. stop: end the run
    when one rings.
    """

    window: int = 10
    entropy_rise: float = 2.0
    mismatch: float = 0.25
    grad_norm: float = 10.0
    reward_drop: float = 0.5
    no_signal: int = 10
    stop: bool = False

    def rules(self) -> list[Rule]:
        return [
            ("alarms.window", 1 <= self.window <= 1000, "must be 1 to 1000 steps"),
            ("alarms.entropy_rise", self.entropy_rise == 0 or self.entropy_rise > 1, "must be 0 (off) or above 1"),
            ("alarms.mismatch", self.mismatch >= 0, "must be 0 (off) or more nats"),
            ("alarms.grad_norm", self.grad_norm == 0 or self.grad_norm > 1, "must be 0 (off) or above 1"),
            ("alarms.reward_drop", 0 <= self.reward_drop <= 1, "must be 0 (off) to 1"),
            ("alarms.no_signal", 0 <= self.no_signal <= 1_000_000, "must be 0 (off) or more steps"),
        ]


class ChairRules(Section, frozen=True):
    """Of a pool with several trainers. silence_seconds: after so long without a heartbeat of who leads validators say
    that it is silent; longer than its restart takes, or every restart costs it the chair. stall_seconds: likewise after
    so long without a policy of one that speaks, where more than enough is accepted; longer than a step takes.
    bytes_per_second: at which who leads hands over, to each validator whose lot drew a step, what that was made of;
    less than its line has left beside all else."""

    silence_seconds: float = 20.0
    stall_seconds: float = 3600.0
    bytes_per_second: int = 1_000_000

    def handover_seconds(self, size: int) -> float:
        """Within which so many bytes are handed over, with a minute for what is no matter of the line."""
        return 60.0 + size / self.bytes_per_second

    def rules(self) -> list[Rule]:
        return [
            ("chair.silence_seconds", 5 <= self.silence_seconds <= 3600, "must be 5 to 3600"),
            ("chair.stall_seconds", 60 <= self.stall_seconds <= 7 * 86400, "must be 60 to 604800"),
            ("chair.bytes_per_second", 1000 <= self.bytes_per_second <= 10**12, "must be 1000 to 1000000000000"),
        ]


def evaluation_rules(environments: tuple[EvaluationEnvironment, ...], training: Collection[str]) -> list[Rule]:
    """Evaluation environments: each under a label of its own. training: the labels of what is trained on."""
    titles = [one.title for one in environments]
    taken = set(training)
    return [
        ("evaluation.environments", len(titles) <= MAX_PARTS, f"must be at most {MAX_PARTS}"),
        ("evaluation.environments", all(one.name != "mix" for one in environments), "cannot be mixed: name each one"),
        (
            "evaluation.environments.label",
            len(taken.union(titles)) == len(titles) + len(taken),
            f"must differ from each other and from what is trained on ({', '.join(sorted(taken))}): give each a label",
        ),
        ("evaluation.environments.label", all(map(_is_label, titles)), "must have 1 to 64 characters and no '/'"),
    ]


def _is_label(title: str) -> bool:
    return 0 < len(title) <= 64 and "/" not in title


def parts_rules(parts: tuple[EnvironmentPart, ...], name: str) -> list[Rule]:
    """Several environments: each weighted, no two of one label."""
    titles = [part.title for part in parts]
    return [
        ("environments", len(parts) <= MAX_PARTS, f"must be at most {MAX_PARTS}"),
        ("environments", bool(parts) == (name == "mix"), "only the environment 'mix' has parts, and it needs them"),
        ("environments.label", len(set(titles)) == len(titles), "must differ: give each a label of its own"),
        (
            "environments.label",
            all(map(_is_label, titles)),
            "must have 1 to 64 characters and no '/'",
        ),
        ("environments.weight", all(0 < part.weight <= 1e6 for part in parts), "must be above 0, at most 1000000"),
    ]
