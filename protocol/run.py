"""RunSpec: everything that the members of a run must agree on.

Its canonical JSON bytes are a blob; the blob's root stands in the pool on chain, so whoever knows the
pool can fetch the run from any member and prove that it is the right one. Files that a run needs (model
directory, data set) are assets: paths and blob roots.
"""

import re

import msgspec

from protocol.audit import AuditSpec
from protocol.codec import decode_json
from protocol.cuts import Cuts, strictest
from protocol.decision import MAX_TABLES, DecisionError, DecisionSpec
from protocol.engines import (
    MAX_PATTERNS,
    classes,
    is_engine_class,
    is_engine_pattern,
    is_pair,
    kind,
    missing_pairs,
    overlap,
    permits,
    standing_for,
)
from protocol.errors import ProtocolError
from protocol.recipe import Recipe
from protocol.sections import (
    Alarms,
    Budget,
    EnvironmentPart,
    Filters,
    LengthBudget,
    Requirements,
    parts_rules,
)

MAX_RUN_BYTES = 64 * 1024
MAX_ASSETS = 512
_SAFE_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class RunError(ProtocolError):
    """A run specification that cannot be used."""


class _Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A strict section of the run."""


class Asset(_Spec, frozen=True):
    """A file of the run. path: relative, '/'-separated; root: 64 hex digits of its blob root; size: bytes."""

    path: str
    root: str
    size: int


class EnvironmentSpec(_Spec, frozen=True):
    """name: a module of node.environments; args: its parameters; parts: the environments that "mix" mixes."""

    name: str
    args: dict[str, int | float | str] = {}
    parts: tuple[EnvironmentPart, ...] = ()


class RolloutSpec(_Spec, frozen=True):
    """How rollouts are made. Counts are per optimiser step, per file, per problem."""

    group_size: int = 8
    prompts_per_step: int = 32
    prompts_per_file: int = 8
    max_prompt_tokens: int = 64
    max_output_tokens: int = 16
    temperature: float = 1.0

    @property
    def samples_per_file(self) -> int:
        return self.prompts_per_file * self.group_size

    @property
    def files_per_step(self) -> int:
        return -(-self.prompts_per_step // self.prompts_per_file)


class EvaluationSpec(_Spec, frozen=True):
    """Held-back problems scored after every `every`-th step."""

    problems: int = 128
    every: int = 1


class VerificationSpec(Cuts, frozen=True):
    """What the checks go by. The default cuts fit fp32 compute on both sides; bf16 engines need calibrated ones.

    engines: classes that workers may compute with, any part may be `*` (protocol.engines); pairs: cuts by
    "worker's class>verifier's class", the section's own for other pairs that have tables;
    decision: bounds and calibrated tables of the sequential test over a worker's history.

    A run that has tables (or at least cuts) of pairs is calibrated. Then it admits only classes of which it knows
    something, whatever `engines` permits, and those whose very pair was not measured are judged by the strictest of
    what stands for it.
    """

    toploc_k: int = 128
    toploc_batch: int = 32
    quorum: int = 1
    engines: tuple[str, ...] = ("*/float32/*",)
    pairs: dict[str, Cuts] = {}
    decision: DecisionSpec = DecisionSpec()

    @property
    def known_pairs(self) -> tuple[str, ...]:
        """The pairs of classes that were calibrated; empty if the run is not."""
        return tuple(self.decision.honest or self.pairs)

    @property
    def admitted(self) -> tuple[str, ...]:
        """Patterns of the classes that workers may compute with: those permitted and, in a calibrated run, known."""
        if not self.known_pairs:
            return self.engines
        known = sorted({kind(classes(name)[0]) for name in self.known_pairs})
        both = (overlap(permitted, one) for permitted in self.engines for one in known)
        return tuple(dict.fromkeys(pattern for pattern in both if pattern))

    def admits(self, engine: str) -> bool:
        """Whether workers may compute with this class: files of any other are malformed."""
        return is_engine_class(engine) and permits(self.admitted, engine)

    def objection(self, engine: str) -> str:
        """Why a class is not admitted, in words; empty if it is."""
        if self.admits(engine):
            return ""
        permitted = is_engine_class(engine) and permits(self.engines, engine)
        return "the run was not calibrated for it" if permitted else "the run does not permit it"

    def judges(self, worker: str, verifier: str) -> bool:
        """Whether something is known of work by one class in the eyes of another; of an uncalibrated run: yes."""
        return not self.known_pairs or bool(standing_for(self.known_pairs, worker, verifier))

    def cuts(self, worker: str, verifier: str) -> Cuts:
        """The cuts for a file of one class of engine in the eyes of another: of this pair or, if it was not measured,
        the strictest of those that stand for it. The section's own, a calibrated run's loosest, where nothing does."""
        known = standing_for(self.known_pairs, worker, verifier)
        return strictest([self.pairs.get(name, self) for name in known]) if known else self


class WeightsSpec(_Spec, frozen=True):
    """How policies travel. anchor_every: steps after which, at the latest, a whole image is the new anchor."""

    anchor_every: int = 50


class RunSpec(_Spec, frozen=True):
    """One training run."""

    name: str
    environment: EnvironmentSpec
    assets: tuple[Asset, ...] = ()
    rollout: RolloutSpec = RolloutSpec()
    recipe: Recipe = Recipe()
    evaluation: EvaluationSpec = EvaluationSpec()
    verification: VerificationSpec = VerificationSpec()
    length_budget: LengthBudget = LengthBudget()
    filters: Filters = Filters()
    requirements: Requirements = Requirements()
    budget: Budget = Budget()
    alarms: Alarms = Alarms()
    audit: AuditSpec = AuditSpec()
    weights: WeightsSpec = WeightsSpec()
    version: int = 1

    def check(self) -> None:
        """Raise RunError naming the first field that makes no sense."""
        for field, good, rule in [*self._rules(), *self._section_rules()]:
            if not good:
                raise RunError(f"unusable run: {field}", rule, f"change {field} in the run file")
        for asset in self.assets:
            check_asset_path(asset.path)
        try:
            self.verification.decision.check()
        except DecisionError as error:
            raise RunError(f"unusable run: {error.what}", error.why, error.remedy) from None

    def _section_rules(self) -> list[tuple[str, bool, str]]:
        sections = (self.length_budget, self.filters, self.requirements, self.budget, self.alarms, self.audit)
        rules = [rule for section in sections for rule in section.rules()]
        return rules + parts_rules(self.environment.parts, self.environment.name)

    def _rules(self) -> list[tuple[str, bool, str]]:
        r, c, v, e = self.rollout, self.recipe, self.verification, self.evaluation
        return [
            ("version", self.version == 1, "this program reads version 1"),
            ("name", 0 < len(self.name) <= 128, "must have 1 to 128 characters"),
            ("rollout.group_size", 2 <= r.group_size <= 256, "must be 2 to 256: one sample has no advantage"),
            ("rollout.prompts_per_step", 1 <= r.prompts_per_step <= 65536, "must be 1 to 65536"),
            (
                "rollout.prompts_per_file",
                1 <= r.prompts_per_file <= r.prompts_per_step,
                "must be 1 to prompts_per_step",
            ),
            ("rollout.max_prompt_tokens", 1 <= r.max_prompt_tokens <= 1 << 20, "must be 1 to 1048576"),
            ("rollout.max_output_tokens", 2 <= r.max_output_tokens <= 1 << 20, "must be 2 to 1048576"),
            ("rollout.temperature", 0.01 <= r.temperature <= 10, "must be 0.01 to 10"),
            *c.rules(),
            ("evaluation.problems", 1 <= e.problems <= 65536, "must be 1 to 65536"),
            ("evaluation.every", e.every >= 1, "must be at least 1"),
            ("verification.toploc_k", 1 <= v.toploc_k <= 1024, "must be 1 to 1024"),
            ("verification.toploc_batch", 1 <= v.toploc_batch <= 256, "must be 1 to 256"),
            ("verification.engines", 1 <= len(v.engines) <= MAX_PATTERNS, f"must be 1 to {MAX_PATTERNS} classes"),
            (
                "verification.engines",
                all(map(is_engine_pattern, v.engines)),
                "must be classes like cpu-avx2/float32/sdpa, any part may be *",
            ),
            ("verification.pairs", len(v.pairs) <= MAX_TABLES, f"at most {MAX_TABLES}"),
            *(
                (
                    f"verification.{table}",
                    all(map(is_pair, names)),
                    "must be named worker's class>verifier's class",
                )
                for table, names in (("pairs", v.pairs), ("decision.honest", v.decision.honest))
            ),
            (
                "verification.decision.honest",
                not missing_pairs(v.decision.honest),
                f"must hold every pair of its classes, and lacks {', '.join(missing_pairs(v.decision.honest)[:3])}",
            ),
            (
                "verification.pairs",
                not v.decision.honest or set(v.pairs) <= set(v.decision.honest),
                "must name pairs that decision.honest has tables of",
            ),
            ("verification.engines", bool(v.admitted), "permits no class that the run was calibrated for"),
            ("verification.quorum", 1 <= v.quorum <= 16, "must be 1 to 16"),
            ("weights.anchor_every", 1 <= self.weights.anchor_every <= 256, "must be 1 to 256"),
            ("assets", len(self.assets) <= MAX_ASSETS, f"a run has at most {MAX_ASSETS} files"),
        ]


def check_asset_path(path: str) -> None:
    """Raise RunError unless `path` is a plain relative path that stays inside its directory."""
    parts = path.split("/")
    if not 1 <= len(parts) <= 4 or not all(_SAFE_PART.fullmatch(part) for part in parts):
        raise RunError("unusable run: assets", f"{path[:80]!r} is not a plain relative path", "rename the file")


def encode_run(run: RunSpec) -> bytes:
    """Canonical JSON: keys in sorted order, no spaces. These bytes are the run's blob."""
    return msgspec.json.encode(run, order="sorted")


def decode_run(data: bytes) -> RunSpec:
    """Parse and check; raises RunError."""
    run = decode_json(data, RunSpec, limit=MAX_RUN_BYTES, error=RunError, what="unusable run")
    run.check()
    return run
