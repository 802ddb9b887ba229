"""Recipe: how a run's trainer learns, and the named presets that fill in what a run file leaves out.

A preset fixes the objective (loss, advantage, normalisation, their constants); the optimiser's numbers depend on
model and task and are the run's own. Every value of a preset can be set by itself. The formulas stand in
node/training/losses.py and node/training/advantages.py. A run may bring its own as a formula (protocol/expression.py),
and at a desk as MODULE:FUNCTION (protocol/own_code.py).
"""

import msgspec

from protocol.expression import why_not
from protocol.lora import Lora
from protocol.own_code import is_import_path

ADVANTAGES = ("grpo", "mean", "opo", "max_rl", "batch")
NORMALISATIONS = ("tokens", "samples", "prompts", "constant")
PROXIMALS = ("recompute", "loglinear")
SAMPLE_MASKS = ("none", "mean", "any")
ALIKE = 1e-6
"""Rewards that differ by no more than this are equal: they are float32 numbers on their way, and what differs by
rounding only carries no signal. Dividing by its spread would make an advantage of a last bit."""


def decays(dimensions: int) -> bool:
    """Whether a weight of so many dimensions decays: matrices do, norms and biases do not. Their size is no measure of
    what a layer computes, and pulled to zero they only have to be learnt again."""
    return dimensions > 1


class Objective(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is minimised, with nothing left open. See Recipe for the meaning of the fields."""

    loss: str
    advantage: str = "mean"
    normalisation: str = "tokens"
    clip_low: float = 0.2
    clip_high: float = 0.2
    ratio_floor: float = 0.0
    ratio_cap: float = 4.0
    proximal: str = "recompute"
    sampler_kl: float = 0.0
    reference_kl: float = 0.0
    entropy_bonus: float = 0.0
    sample_mask: str = "none"
    mask_low: float = 0.0
    mask_high: float = 1e6
    mask_truncated: bool = False
    overlong_share: float = 0.0


PRESETS: dict[str, Objective] = {
    # two-sided clip against the sampling policy (arXiv 2505.07291)
    "intellect2": Objective(loss="intellect2", advantage="grpo", clip_low=0.2, clip_high=0.2, ratio_cap=4.0),
    # binary total-variation mask (arXiv 2602.04879) with a quadratic pull towards the sampler
    "dppo": Objective(loss="dppo", advantage="mean", clip_low=0.2, clip_high=0.2, sampler_kl=1e-3),
    # the importance weight is clipped, not the token (arXiv 2506.13585)
    "cispo": Objective(loss="cispo", advantage="grpo", ratio_cap=5.0),
    # CISPO, averaged per prompt, advantages scaled by the batch's deviation (arXiv 2510.13786)
    "scalerl": Objective(loss="cispo", advantage="batch", normalisation="prompts", ratio_cap=5.0),
    # tokens whose ratio leaves an interval are dropped, on either side (arXiv 2510.18855; 2512.16144)
    "icepop": Objective(loss="icepop", advantage="mean", ratio_floor=0.5, ratio_cap=5.0),
    # PPO's clip against the policy of the step, times a truncated weight for what lies before it
    "tis": Objective(loss="tis", advantage="grpo", ratio_cap=2.0),
    # one ratio per sequence (arXiv 2507.18071)
    "gspo": Objective(loss="gspo", advantage="grpo", normalisation="samples", clip_low=3e-4, clip_high=4e-4),
    # behaviour and proximal policy apart (arXiv 2505.24298), the latter interpolated
    "decoupled": Objective(loss="decoupled", advantage="grpo", ratio_cap=5.0, proximal="loglinear"),
    # ratio capped on one side (arXiv 2505.24034)
    "aipo": Objective(loss="aipo", advantage="mean", ratio_cap=8.0),
    # clip-higher, unfinished answers masked, long ones punished (arXiv 2503.14476)
    "dapo": Objective(loss="dapo", advantage="grpo", clip_high=0.28, mask_truncated=True, overlong_share=0.2),
    # no division by length or deviation (arXiv 2503.20783)
    "dr_grpo": Objective(loss="dr_grpo", advantage="mean", normalisation="constant"),
    # advantages relative to the mean (arXiv 2602.02710) under DPPO's mask
    "max_rl": Objective(loss="dppo", advantage="max_rl", sampler_kl=1e-3),
    # a sample whose geometric mean of ratios has moved is dropped whole (GSPO's ratio as a mask)
    "mean_mask": Objective(
        loss="icepop", ratio_floor=0.5, ratio_cap=2.0, sample_mask="mean", mask_low=0.99, mask_high=1.01
    ),
    # one token that the learner hardly expects drops its sample: it was made by another policy, or another engine
    "token_mask": Objective(
        loss="icepop", ratio_floor=0.5, ratio_cap=5.0, sample_mask="any", mask_low=1e-4, mask_high=100.0
    ),
}
DEFAULT_PRESET = "dppo"
LOSSES = tuple(sorted({preset.loss for preset in PRESETS.values()}))


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the trainer learns. A field that is None has the value of the preset `name`.

    steps: policies to publish ("rollout steps"); updates_per_step: optimiser steps that one batch is split into;
    warmup_steps, decay_steps: in rollout steps, linear, interpolated between updates; decay_steps 0: constant rate;
    beta1, beta2, weight_decay, learning_rate: AdamW's; grad_clip: greatest norm of one update's gradient;
    target_reward: the run ends early when the mean of ten evaluations in a row reaches it; None: it has no goal;
    max_staleness: versions between the policy that made a token and the one that learns from it; lora: the policy is an
    adapter to the start model, which stays as it is (protocol.lora); None: the whole model learns.

    loss, advantage: see node/training, a formula after "=", or MODULE:FUNCTION, one's own, at a desk; normalisation:
    what a token's loss is divided by: all tokens of the update ("tokens"), the tokens of its sample and the number of
    samples ("samples"), those of its prompt and the number of prompts ("prompts"), or samples times max_output_tokens
    ("constant");
    clip_low, clip_high, ratio_floor, ratio_cap: the loss's bounds; proximal: how the policy between sampler and
    learner is found (tis, decoupled): "recompute" before the step's first update, or "loglinear" between the two;
    sampler_kl: weight of (log ratio)^2 to the sampler, in dppo; reference_kl: weight of KL(policy || start model),
    with its gradient; entropy_bonus: weight of the entropy; sample_mask: drop a whole sample from the loss where the
    geometric mean of its ratios ("mean"), or any of them ("any"), lies outside mask_low to mask_high; mask_truncated:
    samples cut at the length limit carry no loss; overlong_share: in this last share of max_output_tokens the reward
    falls linearly by up to 1.
    """

    name: str = DEFAULT_PRESET
    steps: int = 150
    learning_rate: float = 2e-4
    warmup_steps: int = 0
    decay_steps: int = 150
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    updates_per_step: int = 1
    grad_clip: float = 1.0
    max_staleness: int = 2
    target_reward: float | None = None
    seed: int = 0
    loss: str | None = None
    advantage: str | None = None
    normalisation: str | None = None
    clip_low: float | None = None
    clip_high: float | None = None
    ratio_floor: float | None = None
    ratio_cap: float | None = None
    proximal: str | None = None
    sampler_kl: float | None = None
    reference_kl: float | None = None
    entropy_bonus: float | None = None
    sample_mask: str | None = None
    mask_low: float | None = None
    mask_high: float | None = None
    mask_truncated: bool | None = None
    overlong_share: float | None = None
    lora: Lora | None = None

    def objective(self) -> Objective:
        """The preset with this recipe's own values in it; an unknown name gives the default's (see `rules`)."""
        preset = PRESETS.get(self.name, PRESETS[DEFAULT_PRESET])
        own = {field: getattr(self, field) for field in Objective.__struct_fields__}
        return msgspec.structs.replace(preset, **{field: value for field, value in own.items() if value is not None})

    def own_code(self) -> dict[str, str]:
        """Setting -> import path of each function that is not ours."""
        named = {"recipe.loss": self.loss or "", "recipe.advantage": self.advantage or ""}
        return {setting: path for setting, path in named.items() if is_import_path(path)}

    def rules(self) -> list[tuple[str, bool, str]]:
        """(field, whether it makes sense, the rule)."""
        o = self.objective()
        return [
            ("recipe.name", self.name in PRESETS, f"must be one of {', '.join(PRESETS)}"),
            _function("recipe.loss", o.loss, LOSSES),
            _function("recipe.advantage", o.advantage, ADVANTAGES),
            (
                "recipe.normalisation",
                o.normalisation in NORMALISATIONS,
                f"must be one of {', '.join(NORMALISATIONS)}",
            ),
            ("recipe.proximal", o.proximal in PROXIMALS, f"must be one of {', '.join(PROXIMALS)}"),
            ("recipe.steps", 1 <= self.steps <= 10_000_000, "must be 1 to 10,000,000"),
            ("recipe.learning_rate", 0 < self.learning_rate < 1, "must lie between 0 and 1"),
            ("recipe.warmup_steps", 0 <= self.warmup_steps <= 10_000_000, "must be 0 (none) to 10,000,000"),
            ("recipe.decay_steps", 0 <= self.decay_steps <= 10_000_000, "must be 0 (constant) to 10,000,000"),
            ("recipe.seed", -(1 << 63) <= self.seed < 1 << 63, "must be a number of 64 bits, with its sign"),
            ("recipe.weight_decay", 0 <= self.weight_decay < 1, "must be 0 to 1"),
            ("recipe.beta1", 0 <= self.beta1 < 1, "must be at least 0 and below 1"),
            ("recipe.beta2", 0 <= self.beta2 < 1, "must be at least 0 and below 1"),
            ("recipe.updates_per_step", 1 <= self.updates_per_step <= 64, "must be 1 to 64"),
            ("recipe.grad_clip", self.grad_clip > 0, "must be above 0"),
            ("recipe.max_staleness", 0 <= self.max_staleness <= 64, "must be 0 to 64"),
            (
                "recipe.target_reward",
                self.target_reward is None or self.target_reward > 0,
                "must be above 0, as 0 is reached by everybody; leave it out to train to the last step",
            ),
            ("recipe.clip_low", 0 < o.clip_low < 1, "must lie between 0 and 1"),
            ("recipe.ratio_cap", 1 < o.ratio_cap < 1e6, "must be above 1"),
            ("recipe.clip_high", 0 < o.clip_high < o.ratio_cap, "must lie between 0 and ratio_cap"),
            ("recipe.ratio_floor", 0 <= o.ratio_floor < 1, "must be at least 0 and below 1"),
            ("recipe.sampler_kl", 0 <= o.sampler_kl <= 10, "must be 0 to 10"),
            ("recipe.reference_kl", 0 <= o.reference_kl <= 10, "must be 0 to 10"),
            ("recipe.entropy_bonus", 0 <= o.entropy_bonus <= 1, "must be 0 to 1"),
            ("recipe.sample_mask", o.sample_mask in SAMPLE_MASKS, f"must be one of {', '.join(SAMPLE_MASKS)}"),
            (
                "recipe.sample_mask",
                o.sample_mask == "none" or not is_import_path(o.loss),
                "must be none with a loss of your own, which masks by itself",
            ),
            ("recipe.mask_low", 0 <= o.mask_low < 1, "must be at least 0 and below 1"),
            ("recipe.mask_high", 1 < o.mask_high <= 1e6, "must be above 1, and 1e6 at most"),
            ("recipe.overlong_share", 0 <= o.overlong_share < 1, "must be at least 0 and below 1"),
            *(self.lora.rules() if self.lora else []),
        ]


def _function(field: str, said: str, known: tuple[str, ...]) -> tuple[str, bool, str]:
    wrong = why_not(said, advantage=field == "recipe.advantage")
    if wrong is not None:
        return field, not wrong, f"must be a formula that can be read: {wrong}"
    rule = f"must be one of {', '.join(known)}, a formula after =, or MODULE:FUNCTION of your own, at a desk"
    return field, said in known or is_import_path(said), rule


def preset(name: str, **changes: object) -> Recipe:
    """The recipe of a preset with some fields set. Raises KeyError for an unknown name."""
    if name not in PRESETS:
        raise KeyError(name)
    return msgspec.structs.replace(Recipe(name=name), **changes)
