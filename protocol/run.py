"""RunSpec: everything that the members of a run must agree on.

Its canonical JSON bytes are a blob; the blob's root stands in the pool on chain, so whoever knows the
pool can fetch the run from any member and prove that it is the right one. Files that a run needs (model
directory, data set) are assets: paths and blob roots.
"""

import re
from typing import Any, Self, cast

import msgspec

from protocol.audit import AuditSpec
from protocol.codec import decode_json
from protocol.decision import MAX_TABLES, SAMPLE_BOUND, DecisionError, DecisionSpec
from protocol.engines import (
    MAX_PATTERNS,
    arithmetic,
    classes,
    is_engine_class,
    is_engine_pattern,
    is_exact,
    is_pair,
    missing_pairs,
    pair,
    permits,
    with_arithmetic,
)
from protocol.errors import UNREADABLE, ProtocolError
from protocol.lora import ADAPTER, ADAPTER_CONFIG, ADAPTER_WEIGHTS
from protocol.own_code import DESK_ENVIRONMENTS, SERVED_ENVIRONMENTS, is_import_path
from protocol.pretraining import Diloco, Pretraining, kind_rules
from protocol.recipe import Recipe
from protocol.sections import (
    Alarms,
    Budget,
    ChairRules,
    Distill,
    EnvironmentPart,
    EvaluationEnvironment,
    Filters,
    LengthBudget,
    PaySection,
    Requirements,
    Rule,
    Section,
    distill_rules,
    evaluation_rules,
    parts_rules,
)
from protocol.thresholds import EXACT, Thresholds

# Most of it is for calibrated tables, a number for each bin of each pair of engines; all else takes some KiB.
MAX_RUN_BYTES = 64 * 1024
MAX_ASSETS = 512
VERSION = 1
OTHER = "the run is of another version"
MODEL = "model"
"""The directory of the start model among a run's files."""
# No leading dot: neither `..` nor hidden files. Nothing that a shell, a URL or Windows reads in another way.
_SAFE_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
MAX_SOURCES = 16
_NAMED = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
# No part of a folder begins with a dot: it becomes part of an address and of a path in a cache.
_SOURCE = re.compile(
    rf"hf:(?:datasets/)?{_NAMED}(?:/{_NAMED})?@[0-9a-f]{{40}}(?:/[A-Za-z0-9_][A-Za-z0-9._-]{{0,127}}){{0,8}}"
)


class RunError(ProtocolError):
    """A run specification that cannot be used."""


class Asset(Section, frozen=True):
    """A file of the run. path: relative, '/'-separated; root: 64 hex digits of its blob root; size: bytes."""

    path: str
    root: str
    size: int


class EnvironmentSpec(Section, frozen=True):
    """name: a module of node.environments; args: its parameters; parts: the environments that "mix" mixes;
    reward: MODULE:FUNCTION that scores instead of the environment's own scorer, at a desk (protocol.own_code)."""

    name: str
    args: dict[str, int | float | str] = {}
    parts: tuple[EnvironmentPart, ...] = ()
    reward: str = ""

    def own_rewards(self) -> dict[str, str]:
        """Setting -> import path of each reward function that is its owner's own, in the parts of a mix, too."""
        own = {"environment.reward": self.reward}
        own |= {f"environments.reward of {part.title}": part.reward for part in self.parts}
        return {setting: path for setting, path in own.items() if path}

    @property
    def for_desks_only(self) -> bool:
        """Whether it would run code on members' machines that is neither the program's nor a sandboxed package."""
        names = {self.name, *(part.name for part in self.parts)}
        return bool(self.own_rewards()) or not DESK_ENVIRONMENTS.isdisjoint(names)

    @property
    def titles(self) -> list[str]:
        """The labels under which its problems appear in metrics."""
        return [part.title for part in self.parts] or [self.name]


class RolloutSpec(Section, frozen=True):
    """How rollouts are made. Counts are per optimiser step, per file, per problem.

    max_output_tokens: sampled ones, over all turns of a rollout. max_turns: answers in one rollout, 0 for as many as
    the environment takes; max_environment_tokens: what that may say in one, which is over before it says more.
    prompts_per_file: few large files cost less than many small ones, since every node hears messages about each.
    """

    group_size: int = 8
    prompts_per_step: int = 32
    prompts_per_file: int = 8
    max_prompt_tokens: int = 64
    max_output_tokens: int = 16
    temperature: float = 1.0
    max_turns: int = 0
    max_environment_tokens: int = 1024

    @property
    def samples_per_file(self) -> int:
        return self.prompts_per_file * self.group_size

    @property
    def files_per_step(self) -> int:
        return -(-self.prompts_per_step // self.prompts_per_file)

    @property
    def most_report_bytes(self) -> int:
        """More than any validator can have to say of one file: 4 bytes a sampled token, and room for the table."""
        return self.samples_per_file * (4 * self.max_output_tokens + 256) + (1 << 16)

    def rules(self) -> list[Rule]:
        most = self.prompts_per_step
        return [
            ("rollout.group_size", 2 <= self.group_size <= 256, "must be 2 to 256: one sample has no advantage"),
            ("rollout.prompts_per_step", 1 <= most <= 65536, "must be 1 to 65536"),
            ("rollout.prompts_per_file", 1 <= self.prompts_per_file <= most, "must be 1 to prompts_per_step"),
            ("rollout.max_prompt_tokens", 1 <= self.max_prompt_tokens <= 1 << 20, "must be 1 to 1048576"),
            ("rollout.max_output_tokens", 2 <= self.max_output_tokens <= 1 << 20, "must be 2 to 1048576"),
            ("rollout.temperature", 0.01 <= self.temperature <= 10, "must be 0.01 to 10"),
            ("rollout.max_turns", 0 <= self.max_turns <= 1024, "must be 0 (the environment's own) to 1024"),
            ("rollout.max_environment_tokens", 1 <= self.max_environment_tokens <= 1 << 20, "must be 1 to 1048576"),
        ]


class EvaluationSpec(Section, frozen=True):
    """Held-back problems scored after every `every`-th step. environments: others to be scored on besides, as many
    problems of each."""

    problems: int = 128
    every: int = 1
    environments: tuple[EvaluationEnvironment, ...] = ()

    def rules(self) -> list[Rule]:
        return [
            ("evaluation.problems", 1 <= self.problems <= 65536, "must be 1 to 65536"),
            ("evaluation.every", 1 <= self.every <= 10_000_000, "must be 1 to 10,000,000"),
        ]


class VerificationSpec(Thresholds, frozen=True):
    """What the checks go by. The default thresholds fit fp32 compute on both sides; bf16 engines need calibrated ones.

    engines: classes that workers may compute with, any part may be `*` (protocol.engines); pairs: thresholds by
    "worker's class>verifier's class", the section's own for other pairs that have tables;
    decision: bounds and calibrated tables of the sequential test over a worker's history.

    A run that has tables (or at least thresholds) of pairs is calibrated. Then it admits only classes that were
    measured, whatever `engines` permits: no class vouches for another.
    """

    toploc_k: int = 128
    toploc_batch: int = 32
    quorum: int = 1
    engines: tuple[str, ...] = ("*/float32/*",)
    pairs: dict[str, Thresholds] = {}
    decision: DecisionSpec = DecisionSpec()

    @property
    def known_pairs(self) -> tuple[str, ...]:
        """The pairs of classes that were calibrated; empty if the run is not."""
        return tuple(self.decision.honest or self.pairs)

    @property
    def admitted(self) -> tuple[str, ...]:
        """What workers may compute with: the patterns permitted or, in a calibrated run, the known classes of them."""
        if not self.known_pairs:
            return self.engines
        return tuple(name for name in sorted({classes(name)[0] for name in self.known_pairs}) if self._permits(name))

    def _permits(self, engine: str) -> bool:
        return is_engine_class(engine) and permits(self.engines, engine)

    def admits(self, engine: str) -> bool:
        """Whether workers may compute with this class: files of any other are malformed."""
        return self._permits(engine) and (not self.known_pairs or engine in self.admitted)

    def objection(self, engine: str) -> str:
        """Why a class is not admitted, in words; empty if it is."""
        if self.admits(engine):
            return ""
        return "the run was not calibrated for it" if self._permits(engine) else "the run does not permit it"

    def at_a_desk(self) -> Self:
        """Where one machine makes and looks at everything, and nothing is at stake: any engine of a permitted type, by
        the loosest thresholds."""
        # Only the type stays: at a desk nobody else looks, but float32 and bfloat16 still train differently.
        types = dict.fromkeys(f"*/{pattern.split('/')[1]}/*" for pattern in self.engines)
        bounds = msgspec.structs.replace(self.decision, honest={}, cheating={}, crossed={})
        return msgspec.structs.replace(self, engines=tuple(types), pairs={}, decision=bounds)

    def blind(self, engine: str) -> str:
        """Why no validator's engine of this class, nor a sibling of it that computes in another way, can judge any
        work; empty if one can."""
        seeing = {classes(name)[1] for name in self.known_pairs}
        if not seeing or (is_engine_class(engine) and any(_sees(engine, other) for other in seeing)):
            return ""
        return "no work was calibrated in its eyes"

    def judges(self, worker: str, verifier: str) -> bool:
        """Whether something is known of work by one class in the eyes of another; of an uncalibrated run: yes."""
        return not self.known_pairs or pair(worker, verifier) in self.known_pairs

    def thresholds(self, worker: str, verifier: str) -> Thresholds:
        """The thresholds for a file of one class of engine in the eyes of another. The section's own, a calibrated
        run's loosest, where the pair has none; equality where that is what the class stands for."""
        # Batch-invariant kernels of one class: honest work is equal to the bit, so any difference is a fault.
        if is_exact(worker, verifier):
            return EXACT
        return self.pairs.get(pair(worker, verifier), self)

    def rules(self) -> list[Rule]:
        tables = (("pairs", self.pairs), ("decision.honest", self.decision.honest))
        named = "must be named worker's class>verifier's class"
        # With a pair missing, evidence would be silent for some workers and not for others, by their class.
        lacking = missing_pairs(self.decision.honest)
        return [
            ("verification.toploc_k", 1 <= self.toploc_k <= 1024, "must be 1 to 1024"),
            ("verification.toploc_batch", 1 <= self.toploc_batch <= 256, "must be 1 to 256"),
            ("verification.engines", 1 <= len(self.engines) <= MAX_PATTERNS, f"must be 1 to {MAX_PATTERNS} classes"),
            (
                "verification.engines",
                all(map(is_engine_pattern, self.engines)),
                "must be classes like cpu-avx2/float32/sdpa, any part may be *, and those behind these three are free",
            ),
            ("verification.pairs", len(self.pairs) <= MAX_TABLES, f"at most {MAX_TABLES}"),
            *((f"verification.{table}", all(map(is_pair, names)), named) for table, names in tables),
            (
                "verification.decision.honest",
                not lacking,
                f"must hold every pair of its classes, and lacks {', '.join(lacking[:3])}",
            ),
            (
                "verification.pairs",
                not self.decision.honest or set(self.pairs) <= set(self.decision.honest),
                "must name pairs that decision.honest has tables of",
            ),
            ("verification.engines", bool(self.admitted), "permits no class that the run was calibrated for"),
            ("verification.quorum", 1 <= self.quorum <= 16, "must be 1 to 16"),
        ]


def _sees(engine: str, other: str) -> bool:
    """Whether an engine can compute as another of the same device and build does."""
    return with_arithmetic(engine, arithmetic(other)) == other


class WeightsSpec(Section, frozen=True):
    """How policies travel. snapshot_every: steps after which, at the latest, a whole image is the new snapshot."""

    snapshot_every: int = 50

    def rules(self) -> list[Rule]:
        return [("weights.snapshot_every", 1 <= self.snapshot_every <= 256, "must be 1 to 256")]


class RunSections(Section, frozen=True, kw_only=True):
    """The sections that a run file and its RunSpec have in common. A new one needs its struct and a line here.

    Each is a frozen struct with defaults that change nothing and `rules()`.
    """

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
    pay: PaySection = PaySection()
    chair: ChairRules = ChairRules()
    distill: Distill | None = None
    pretraining: Pretraining | None = None
    diloco: Diloco | None = None

    def sections(self) -> dict[str, Any]:
        """By name; without those that are not there."""
        named = {name: getattr(self, name) for name in RunSections.__struct_fields__}
        return {name: section for name, section in named.items() if section is not None}


YOUNGER: dict[str, Any] = {
    "recipe.sample_mask": None,
    "recipe.mask_low": None,
    "recipe.mask_high": None,
    "pay": msgspec.to_builtins(PaySection()),
    "chair": msgspec.to_builtins(ChairRules()),
    "chair.stall_seconds": ChairRules().stall_seconds,
    "chair.bytes_per_second": ChairRules().bytes_per_second,
    "environment.reward": "",
    "environment.parts.reward": "",
    "evaluation.environments": (),
    "rollout.max_turns": RolloutSpec().max_turns,
    "rollout.max_environment_tokens": RolloutSpec().max_environment_tokens,
    "recipe.lora": None,
    "audit.judges": False,
    "audit.witnessed": "no",
    "verification.routing": Thresholds().routing,
    "verification.pairs.*.routing": Thresholds().routing,
    **{f"verification.decision.{kind}.*.bound": SAMPLE_BOUND for kind in ("honest", "cheating", "crossed")},
    "distill": None,
    "pretraining": None,
    "diloco": None,
    "diloco.fragments": 1,
    "sources": {},
}
"""What the first pools did not have: path -> the value that says nothing. A path goes through lists; * is any name."""


class RunSpec(RunSections, frozen=True):
    """One training run: of kind "rl", or of kind "pretrain" if it has [pretraining] (protocol.pretraining)."""

    name: str
    environment: EnvironmentSpec
    assets: tuple[Asset, ...] = ()
    version: int = VERSION
    sources: dict[str, str] = {}
    """directory of assets -> hf:[datasets/]OWNER/NAME@COMMIT[/FOLDER]: where their files may be fetched, too; what they
    must be their roots say"""

    def check(self, *, desk: bool = False) -> None:
        """Raise RunError naming the first field that makes no sense. desk: whether code of its own may be in it.

        A swarm's run has none: whoever trains from the pool's bytes would run a stranger's code without a sandbox, and
        a worker's reward and a validator's could differ.
        """
        for fault in self.faults():
            raise fault
        for asset in self.assets:
            check_asset_path(asset.path)
        if not desk:
            self._check_for_a_swarm()
        try:
            self.verification.decision.check()
        except DecisionError as error:
            raise RunError(f"unusable run: {error.what}", error.why, error.remedy) from None

    def faults(self) -> "list[RunError]":
        """Every field that makes no sense by itself or beside another."""
        return [
            RunError(f"unusable run: {field}", rule, f"change {field} in the run file")
            for field, good, rule in self._rules()
            if not good
        ]

    def desk_environments(self) -> list[str]:
        """The environments in it that only a desk has."""
        environment = self.environment
        named = [environment.name, *(one.name for one in (*environment.parts, *self.evaluation.environments))]
        return sorted(DESK_ENVIRONMENTS.intersection(named))

    def own_code(self) -> dict[str, str]:
        """Setting -> import path of each function that the run brings along."""
        evaluated = self.evaluation.environments
        rewards = {f"evaluation.environments.reward of {one.title}": one.reward for one in evaluated if one.reward}
        return self.recipe.own_code() | self.environment.own_rewards() | rewards

    def _check_for_a_swarm(self) -> None:
        self._check_witnessed()
        for name in self.desk_environments():
            raise RunError(
                "this run can be trained at a desk only",
                f"the environment {name!r} runs packages that members have from wherever they like, and that need not "
                "do the same twice",
                "make an environment package of it, which members have by its hash (intellect-node env new)",
            )
        for setting, path in self.own_code().items():
            raise RunError(
                "this run can be trained at a desk only",
                f"{setting} = {path!r} is code that the run brings along, and members of a swarm run nobody's",
                "name one of ours for a loss or an advantage; make an environment package of a reward "
                "(intellect-node env new)",
            )

    def _check_witnessed(self) -> None:
        """Raise RunError where rewards that a server gives would be trained on without the run saying so."""
        trained = [part.name for part in self.environment.parts] or [self.environment.name]
        served = [name in SERVED_ENVIRONMENTS for name in trained]
        allowed = {"no": not any(served), "alone": all(served), "mixed": any(served) and not all(served)}
        if not allowed[self.audit.witnessed]:
            right = "mixed" if any(served) and not all(served) else "alone" if any(served) else "no"
            raise RunError(
                "unusable run: audit.witnessed",
                f"it is {self.audit.witnessed!r}, and {sum(served)} of {len(served)} environments are behind a server",
                f'set witnessed = "{right}" in [audit]: nobody can recompute what a server says',
            )

    def weight_bytes(self, directory: str = MODEL) -> int:
        """Of the start model's files, or a teacher's."""
        own = (asset for asset in self.assets if asset.path.startswith(f"{directory}/"))
        return sum(asset.size for asset in own if asset.path.endswith(".safetensors"))

    @property
    def replicas(self) -> int:
        """Trainers that share out the rollouts of a round; 0 in a run without rounds, or with text."""
        return self.diloco.max_contributions if self.diloco is not None and self.pretraining is None else 0

    @property
    def files_per_policy(self) -> int:
        """Files of rollouts that are learnt from for each policy: in a step, or by all replicas in a round."""
        if self.diloco is None or not self.replicas:
            return self.rollout.files_per_step
        problems = self.replicas * self.diloco.inner_steps * self.rollout.prompts_per_step
        # an eighth more where there are shares, which are never exactly full
        return -(-problems * (9 if self.replicas > 1 else 8) // (8 * self.rollout.prompts_per_file))

    @property
    def rollouts_per_batch(self) -> int:
        """Of an inner step; 0 where it learns from text."""
        return self.rollout.prompts_per_step * self.rollout.group_size if self.replicas else 0

    @property
    def waits_for_tasks(self) -> bool:
        """Whether accepted groups wait for judges or a teacher before they are trained on."""
        return self.audit.judges or (self.distill is not None and self.distill.tasks)

    @property
    def groups_per_file(self) -> int:
        """Parts of a work that are looked at one by one: problems of a file of rollouts; a contribution is one."""
        return 1 if self.pretraining is not None else self.rollout.prompts_per_file

    def _rules(self) -> list[Rule]:
        return [
            ("version", self.version == VERSION, _other_version(self.version)),
            ("name", 0 < len(self.name) <= 128, "must have 1 to 128 characters"),
            *(rule for section in self.sections().values() for rule in section.rules()),
            *parts_rules(self.environment.parts, self.environment.name),
            *evaluation_rules(self.evaluation.environments, self.environment.titles),
            *kind_rules(self, RunSections()),
            *distill_rules(self),
            *((setting, is_import_path(path), "must be MODULE:FUNCTION") for setting, path in self.own_code().items()),
            ("assets", len(self.assets) <= MAX_ASSETS, f"a run has at most {MAX_ASSETS} files"),
            # A run's owner is a stranger: who fetches a file takes its root for hex, and has patience by its size.
            (
                "assets",
                all(is_root(asset.root) and 0 <= asset.size < 2**63 for asset in self.assets),
                "must be named by 64 hex digits and a size",
            ),
            (
                "recipe.lora",
                ADAPTER not in self._folders() or (self.recipe.lora is not None and self._names_adapter()),
                f"must be there where a run begins with an adapter, whose files are {ADAPTER_CONFIG} and "
                f"{ADAPTER_WEIGHTS}",
            ),
            ("sources", len(self.sources) <= MAX_SOURCES, f"a run has at most {MAX_SOURCES}"),
            (
                "sources",
                all(map(_SOURCE.fullmatch, self.sources.values())) and {*self.sources} <= self._folders(),
                "must be directories of its files, with hf:[datasets/]OWNER/NAME@COMMIT and the commit's 40 digits",
            ),
        ]

    def _folders(self) -> set[str]:
        return {asset.path.rpartition("/")[0] for asset in self.assets} - {""}

    def _names_adapter(self) -> bool:
        names = {
            asset.path.removeprefix(f"{ADAPTER}/") for asset in self.assets if asset.path.startswith(f"{ADAPTER}/")
        }
        return names == {ADAPTER_CONFIG, ADAPTER_WEIGHTS}


def is_root(text: str) -> bool:
    """Whether these are 64 lower-case hex digits."""
    return len(text) == 64 and not set(text) - set("0123456789abcdef")


def check_asset_path(path: str) -> None:
    """Raise RunError unless `path` is a plain relative path that stays inside its directory."""
    parts = path.split("/")
    # A run's owner is a stranger to its members: a path with `..` would write anywhere on their disks.
    if not 1 <= len(parts) <= 4 or not all(_SAFE_PART.fullmatch(part) for part in parts):
        raise RunError("unusable run: assets", f"{path[:80]!r} is not a plain relative path", "rename the file")


def encode_run(run: RunSpec) -> bytes:
    """Canonical JSON: keys in sorted order, no spaces. These bytes are the run's blob.

    What is younger than the first pools stands in it only where it says something: those pools name their runs by the
    bytes of then.
    """
    fields: dict[str, Any] = msgspec.to_builtins(run)
    for path, plain in YOUNGER.items():
        _leave_out(fields, path.split("."), plain)
    return msgspec.json.encode(fields, order="sorted")


def _leave_out(table: dict[str, Any], path: list[str], plain: Any) -> None:
    name, *deeper = path
    if not deeper:
        if table.get(name) == plain:
            del table[name]
        return
    inner: Any = tuple(table.values()) if name == "*" else table.get(name) or ()
    for one in cast("tuple[Any, ...]", inner) if isinstance(inner, tuple) else (inner,):
        _leave_out(one, deeper, plain)


def decode_run(data: bytes, *, desk: bool = False) -> RunSpec:
    """Parse and check; raises RunError. desk: see RunSpec.check."""
    _refuse_version(data)
    run = decode_json(data, RunSpec, limit=MAX_RUN_BYTES, error=RunError, what="unusable run")
    run.check(desk=desk)
    return run


class _Versioned(msgspec.Struct, frozen=True):
    version: int = VERSION


def _refuse_version(data: bytes) -> None:
    """Before the fields, which another version may name otherwise. Raises RunError."""
    try:
        # A stranger's bytes, whose length is looked at by the decoder that comes after this.
        version = msgspec.json.decode(data[:MAX_RUN_BYTES], type=_Versioned).version
    except UNREADABLE:
        return  # no run of any version, which is told by the decoder of this one
    if version != VERSION:
        raise RunError(OTHER, _other_version(version), "use a program of the version that this run was made with")


def _other_version(version: int) -> str:
    return f"it has version {version}, and this program reads version {VERSION}"
