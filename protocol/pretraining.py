"""Sections of runs with many trainers: [diloco], how they meet, and [pretraining], what an inner step learns of text.

A run that has [pretraining] is of kind "pretrain": its policies are the outer states of its rounds, `recipe.steps`
counts rounds, and what belongs to rollouts must stay as it is by default (`UNREAD`). A run with [diloco] alone learns
from rollouts: its policies are outer states, too, and an inner step learns from one batch of [rollout].
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

from protocol.recipe import Recipe
from protocol.sections import MAX_PARTS, Rule, Section

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
MAX_WEIGHT = 10_000
MAX_BATCHES = 1024
"""Inner steps of a round whose batches a contribution names one by one."""
UNREAD = ("rollout", "verification", "length_budget", "filters", "audit", "pay", "distill")
"""Sections that a pre-training run does not read."""
READ_OF_RECIPE = ("steps", "seed", "weight_decay", "beta1", "beta2", "grad_clip")


class TextPart(Section, frozen=True):
    """One data set of the mix. file: text in a run file (.txt, .jsonl, .parquet) or a ready token stream (.tokens); in
    a run the stream's asset. weight: its share of the rows, relative to the others'; annealing: the same from where the
    learning rate decays, None for `weight`."""

    name: str
    file: str
    weight: int = 1
    annealing: int | None = None

    @property
    def asset(self) -> str:
        return f"text/{self.name}.tokens"


class Pretraining(Section, frozen=True):
    """What the inner steps learn.

    data: the mix; sequence: tokens of a row; held_back: rows at the end of each data set that are evaluated after every
    round and never trained on. optimizer: "adamw" for everything, or "muon" for the matrices of the layers and AdamW
    for the rest; learning_rate: its peak. The schedule is warm-up, stable, decay (WSD): linear over warmup_steps inner
    steps, constant, and from the share decay_from of all inner steps on times 1 - sqrt(progress) (arXiv 2412.01152).
    z_loss: weight of log(Z)^2, which keeps the logits' size in check (arXiv 2204.02311).
    """

    data: tuple[TextPart, ...] = ()
    sequence: int = 1024
    held_back: int = 64
    optimizer: Literal["adamw", "muon"] = "adamw"
    learning_rate: float = 3e-4
    warmup_steps: int = 100
    decay_from: float = 0.8
    z_loss: float = 1e-4

    def weights(self, *, annealing: bool) -> tuple[int, ...]:
        """Of the data sets, in their order."""
        if not annealing:
            return tuple(part.weight for part in self.data)
        return tuple(part.weight if part.annealing is None else part.annealing for part in self.data)

    def decays_from(self, total: int) -> int:
        """The inner step, of `total`, at which the learning rate begins to fall and the annealing mix to be drawn."""
        return int(Fraction(self.decay_from) * total)

    def rate(self, step: int, total: int) -> float:
        """The learning rate of inner step `step` of `total`, both counted over all rounds."""
        rate = self.learning_rate * min(1.0, (step + 1) / max(self.warmup_steps, 1))
        first = self.decays_from(total)
        if step < first:
            return rate
        return rate * (1 - ((step - first) / max(total - first, 1)) ** 0.5)

    def rules(self) -> list[Rule]:
        names = [part.name for part in self.data]
        mixes = [self.weights(annealing=annealing) for annealing in (False, True)]
        return [
            ("pretraining.data", 1 <= len(names) <= MAX_PARTS, f"must be 1 to {MAX_PARTS} data sets"),
            ("pretraining.data.name", len(set(names)) == len(names), "must differ: give each a name of its own"),
            (
                "pretraining.data.name",
                all(map(_NAME.fullmatch, names)),
                "must be 1 to 64 letters, digits, '_' and '-'",
            ),
            (
                "pretraining.data.weight",
                all(0 <= weight <= MAX_WEIGHT for mix in mixes for weight in mix) and all(map(any, mixes)),
                f"must be whole numbers from 0 to {MAX_WEIGHT}, at least one of them above 0, and so must `annealing`",
            ),
            ("pretraining.sequence", 2 <= self.sequence <= 1 << 20, "must be 2 to 1048576 tokens"),
            ("pretraining.held_back", 1 <= self.held_back <= 65536, "must be 1 to 65536 rows of each data set"),
            ("pretraining.learning_rate", 0 < self.learning_rate < 1, "must lie between 0 and 1"),
            ("pretraining.warmup_steps", 0 <= self.warmup_steps <= 10_000_000, "must be 0 (none) or more inner steps"),
            ("pretraining.decay_from", 0 <= self.decay_from <= 1, "must be 0 to 1: a share of all inner steps"),
            ("pretraining.z_loss", 0 <= self.z_loss <= 1, "must be 0 (none) to 1"),
        ]


class Diloco(Section, frozen=True):
    """Rounds of many trainers without a leader (DiLoCo, arXiv 2311.08105).

    inner_steps: of a peer between two exchanges of one tensor (H); batch_tokens: of one peer and inner step.
    fragments: of 1 a round is inner_steps and exchanges every tensor; of more each round is so much shorter and
    exchanges its part of the tensors, while the next round's steps are made (Streaming DiLoCo, arXiv 2501.18512).
    exchange: how a contribution is written (protocol.exchange); chunk, top, feedback: of "sparse", which keeps the
    `top` largest of each `chunk` numbers and carries the rest over, times `feedback`. outer_rate, outer_momentum:
    of the outer step; 1 and 0 average, 0.7 and Nesterov's 0.9 are for runs of hundreds of rounds. inner_state:
    whether the optimiser's moments outlive a round; with "reset" a contribution follows from public data alone.
    stretch: inner steps between two digests of a peer's state, 0: none. A round is over when it has lasted
    round_seconds and min_contributions are accepted, and grace_seconds have passed since; of more than
    max_contributions a lot chooses. Replicas are below max_contributions."""

    inner_steps: int = 30
    batch_tokens: int = 1 << 19
    exchange: Literal["sparse", "int8", "int4", "float32"] = "int4"
    chunk: int = 4096
    top: int = 64
    feedback: float = 0.95
    outer_rate: float = 1.0
    outer_momentum: float = 0.0
    inner_state: Literal["kept", "reset"] = "kept"
    stretch: int = 5
    round_seconds: float = 600.0
    grace_seconds: float = 60.0
    min_contributions: int = 1
    max_contributions: int = 24
    fragments: int = 1

    @property
    def round_steps(self) -> int:
        """Inner steps of a round."""
        return self.inner_steps // self.fragments

    def begins_at(self, round_: int) -> int:
        """The round whose outer state is the newest that a round's steps see: its own, or the one before where the last
        fragment is still under way while they are made."""
        return round_ if self.fragments == 1 else max(round_ - 1, 0)

    @property
    def carries_over(self) -> bool:
        """Whether a peer keeps what it has not sent."""
        return self.exchange == "sparse"

    def rules(self) -> list[Rule]:
        most = self.max_contributions
        return [
            ("diloco.inner_steps", 1 <= self.inner_steps <= 10_000, "must be 1 to 10000"),
            ("diloco.batch_tokens", 1 <= self.batch_tokens <= 1 << 30, "must be 1 to 1073741824"),
            ("diloco.chunk", 16 <= self.chunk <= 1 << 16 and not self.chunk & (self.chunk - 1), "must be a power of "
             "two from 16 to 65536"),
            ("diloco.top", 1 <= self.top <= self.chunk, "must be 1 to chunk"),
            ("diloco.feedback", 0 <= self.feedback <= 1, "must be 0 to 1"),
            ("diloco.outer_rate", 0 < self.outer_rate <= 2, "must be above 0, at most 2"),
            ("diloco.outer_momentum", 0 <= self.outer_momentum < 1, "must be at least 0 and below 1"),
            ("diloco.fragments", 1 <= self.fragments <= 256, "must be 1 to 256"),
            ("diloco.fragments", not self.inner_steps % max(self.fragments, 1), "must divide inner_steps"),
            (
                "diloco.stretch",
                0 <= self.stretch <= self.inner_steps // max(self.fragments, 1),
                "must be 0 (no digests) to a round's inner steps",
            ),
            ("diloco.stretch", not self.stretch or self.inner_steps <= 4096 * self.stretch, "makes too many digests"),
            ("diloco.round_seconds", 1 <= self.round_seconds <= 1e6, "must be 1 to 1000000"),
            ("diloco.grace_seconds", 0 <= self.grace_seconds <= self.round_seconds, "must be 0 to round_seconds"),
            ("diloco.max_contributions", 1 <= most <= 256, "must be 1 to 256"),
            ("diloco.min_contributions", 1 <= self.min_contributions <= most, "must be 1 to max_contributions"),
        ]  # fmt: skip


def kind_rules(run: Any, defaults: Any) -> list[Rule]:
    """What a run with [pretraining], [diloco] or neither must keep to. defaults: the sections of a run that says
    nothing."""
    text, rounds = run.pretraining, run.diloco
    if text is None:
        return _rules_of_replicas(run, rounds) if rounds else []
    recipe, plain = run.recipe, defaults.recipe
    unread = [name for name in UNREAD if getattr(run, name) != getattr(defaults, name)]
    names = [name for name in Recipe.__struct_fields__ if name not in READ_OF_RECIPE]
    unread += [f"recipe.{name}" for name in names if getattr(recipe, name) != getattr(plain, name)]
    unread += ["evaluation"] * (run.evaluation.problems != defaults.evaluation.problems)
    unread += ["evaluation.environments"] * bool(run.evaluation.environments)
    why = "is not read by a run with [pretraining]: leave it out"
    return [
        *((name, False, why) for name in unread),
        ("diloco", rounds is not None, "must be there with [pretraining]"),
        (
            "diloco.batch_tokens",
            rounds is None or rounds.batch_tokens % max(text.sequence, 1) == 0,
            "must be a multiple of pretraining.sequence",
        ),
    ]


def _rules_of_replicas(run: Any, rounds: Diloco) -> list[Rule]:
    """What a run with [diloco] that learns from rollouts must keep to."""
    plain = Diloco()
    return [
        (
            "diloco.batch_tokens",
            rounds.batch_tokens == plain.batch_tokens,
            "is not read without [pretraining]: a batch has rollout.prompts_per_step problems. Leave it out",
        ),
        ("diloco.inner_steps", rounds.inner_steps <= MAX_BATCHES, f"must be 1 to {MAX_BATCHES} with rollouts"),
        ("diloco.fragments", rounds.fragments == 1, "does not go with rollouts yet"),
        ("recipe.updates_per_step", run.recipe.updates_per_step == 1, "must be 1 with [diloco]: set inner_steps"),
        ("recipe.lora", run.recipe.lora is None, "does not go with [diloco] yet: replicas exchange whole models"),
        (
            "audit.trust",
            not run.audit.optimistic,
            "must be 'verified' with [diloco]: a replica's batches are a quorum's",
        ),
        ("audit.judges", not run.audit.judges, "does not go with [diloco] yet: a replica's batches wait for no judges"),
        ("filters.keep_surplus", run.filters.keep_surplus, "must be true with [diloco]: a share is never exactly full"),
    ]


def peers_rule(peers: int, rounds: Diloco) -> str:
    """Why so many peers cannot train at a desk, in words; empty if they can."""
    if not rounds.min_contributions <= peers <= rounds.max_contributions:
        return f"diloco.min_contributions = {rounds.min_contributions}, max_contributions = {rounds.max_contributions}"
    return ""


def shares(weights: Sequence[int]) -> list[float]:
    """Of the rows, by weight."""
    return [weight / sum(weights) for weight in weights]
