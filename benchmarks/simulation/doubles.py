"""What stands in for machines, disks and the chain: engines that take time, blobs that travel, a chain that slashes."""

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import trio
from blake3 import blake3

from node.chain.cases import Case, CommitmentContradiction, FileCase
from node.inference.wire import Inspect, Inspected, LoadPolicy, Produce, Produced, Reply, Request
from node.weights.policy_cache import HeldPolicy
from protocol.blobs import BlobInfo, describe
from protocol.checks import Fault, Reason
from protocol.identity import Address
from protocol.policy import PolicyManifest
from protocol.run import RunSpec
from protocol.statements import VerdictOutcome
from protocol.values import mean_logprobs, reward_tags

FILE_TOKENS = 64_000
JITTER = 0.15
"""Of the seconds that a file takes."""
FETCH_SECONDS = 1.5
"""A rollout file: a few MB from its worker."""
CHEATED_SHARE = 0.5
"""Of a cheat's groups."""


class Truth:
    """What is in each file: the groups that were cheated in, whether anybody sees that without a model, and since when
    each cheat cheats."""

    def __init__(self) -> None:
        self.cheated: dict[bytes, frozenset[int]] = {}
        self.blatant: set[bytes] = set()
        self.began: dict[Address, float] = {}


class Blobs:
    """One node's door to everybody's files. cheat: None, 'blatant' or 'subtle'."""

    holding = nullcontext

    def __init__(self, truth: Truth, run: RunSpec, name: Address, cheat: str | None, seed: int) -> None:
        self._truth = truth
        self._groups = run.rollout.prompts_per_file
        self._name = name
        self._cheat = cheat
        self._random = random.Random(seed)
        self._added = 0

    async def add(self, source: Path | bytes) -> BlobInfo:
        await trio.lowlevel.checkpoint()
        self._added += 1
        info = describe(b"%s %d" % (self._name.encode(), self._added))
        if self._cheat and isinstance(source, Path):
            groups = [group for group in range(self._groups) if self._random.random() < CHEATED_SHARE]
            self._truth.cheated[info.root] = frozenset(groups)
            if groups:
                self._truth.began.setdefault(self._name, trio.current_time())
            if self._cheat == "blatant" and groups:
                self._truth.blatant.add(info.root)
        return info

    async def fetch(
        self, root: bytes, sources: Sequence[Address], *, max_size: int, timeout: float, priority: int = 0
    ) -> Path:
        await trio.sleep(FETCH_SECONDS)
        return Path("/dev/null")


class Generator:
    """A worker's engine. seconds: per file."""

    def __init__(self, seconds: float, seed: int) -> None:
        self._seconds = seconds
        self._random = random.Random(seed)

    async def ask(
        self, request: Request, *, timeout: float, policy: LoadPolicy | None = None, on_progress: object = None
    ) -> Reply:
        assert isinstance(request, Produce)
        seconds = self._seconds * self._random.lognormvariate(0.0, JITTER)
        await trio.sleep(seconds)
        return Produced(
            path="/nonexistent/file",
            units=FILE_TOKENS,
            samples=64,
            tokens=FILE_TOKENS,
            seconds=seconds,
            reward_estimate=0.5,
        )


class Checker:
    """A validator's engine: it sees what was cheated in the groups that it is given. seconds: per group."""

    engine_name = "cpu-avx2/float32/simulated"

    def __init__(self, truth: Truth, run: RunSpec, seconds: float) -> None:
        self._truth = truth
        self._rollout = run.rollout
        self._seconds = seconds

    async def ask(
        self, request: Request, *, timeout: float, policy: LoadPolicy | None = None, on_progress: object = None
    ) -> Reply:
        assert isinstance(request, Inspect)
        groups = tuple(range(self._rollout.prompts_per_file)) if request.groups is None else request.groups
        seconds = 0.05 + self._seconds * len(groups)
        await trio.sleep(seconds)
        return self._found(bytes(request.file_root), groups, seconds)

    def _found(self, root: bytes, groups: tuple[int, ...], seconds: float) -> Inspected:
        fault = self._fault(root, groups)
        rewards, logprobs = self._values(root)
        return Inspected(
            outcome=int(fault.outcome if fault else VerdictOutcome.ACCEPT),
            reason=int(fault.reason if fault else Reason.NONE),
            detail=fault.detail if fault else "",
            report_path="" if fault else "/nonexistent/report",
            rewards_mean=0.5,
            tokens=len(groups) * FILE_TOKENS // self._rollout.prompts_per_file,
            seconds=seconds,
            statistics={},
            group=fault.group if fault else -1,
            checked=groups,
            rewards=reward_tags(rewards, self._rollout.group_size, ()),
            logprobs=mean_logprobs({group: [logprobs[group : group + 1]] for group in groups}),
            verifier=self.engine_name,
        )

    def _fault(self, root: bytes, groups: tuple[int, ...]) -> Fault | None:
        cheated = self._truth.cheated.get(root, frozenset())
        if root in self._truth.blatant:
            return Fault(Reason.TERMINATION, "it ends where nothing ends", min(cheated))
        seen = sorted(cheated & set(groups))
        return Fault(Reason.ACTIVATIONS, "another model", seen[0]) if seen else None

    def _values(self, root: bytes) -> tuple[list[float], np.ndarray]:
        """(reward of every sample, float32[groups] log-probabilities) of a file."""
        rollout, digest = self._rollout, blake3(root)
        bits = digest.digest(rollout.samples_per_file)
        words = np.frombuffer(digest.digest(4 * rollout.prompts_per_file), np.uint32)
        return [float(byte & 1) for byte in bits], -(words / 2**32).astype(np.float32)


class Policies:
    """A validator has fetched every policy in time."""

    async def announced(self, root: bytes) -> None:
        await trio.lowlevel.checkpoint()

    async def get(self, root: bytes, timeout: float) -> HeldPolicy:
        await trio.lowlevel.checkpoint()
        return held_policy(0, root)


class Chain:
    """Where slashes are carried to. on_slash: told of each node once."""

    def __init__(self, on_slash: Callable[[Address, int], None]) -> None:
        self._on_slash = on_slash
        self._slashed: set[Address] = set()

    async def carry(self, case: Case) -> None:
        """No validator of the simulation says two things of one work, and nobody signs roots."""
        await trio.lowlevel.checkpoint()
        match case:
            case FileCase():
                self._take(case.commitment.node, case.reason)
            case CommitmentContradiction():
                self._take(case.first.node, int(Reason.DUPLICATE))
            case _:
                raise AssertionError(f"the simulation has no case like {case}")

    def _take(self, node: Address, reason: int) -> None:
        if node not in self._slashed:
            self._slashed.add(node)
            self._on_slash(node, reason)


class Pins:
    """Nothing is evicted here."""

    def pin(self, root: bytes) -> None: ...
    def unpin(self, root: bytes) -> None: ...


def policy_root(step: int) -> bytes:
    return blake3(b"policy %d" % step).digest()


def held_policy(step: int, root: bytes) -> HeldPolicy:
    return HeldPolicy(step, root, Path("/dev/null"), PolicyManifest(bytes(32), step, root, (), bytes(32), 0))
