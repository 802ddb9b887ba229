"""What an engine process holds between requests: the run, its problems, one engine, recent weights."""

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import Self

from node.environments.base import Environment, Problem
from node.environments.registry import load_environment
from node.inference.engine import Engine, Weights
from node.inference.engines import EngineFactory
from node.inference.errors import EngineError
from node.inference.freshness import PolicyImage
from node.inference.shards import Shard, Shards
from node.inference.tasks import Tasks, deal
from node.inference.turns import Bounds, bounds_of
from node.inference.wire import ShardOrder, kept_policies
from node.recent import Recent
from protocol.draw import draw_problems, sample_seed
from protocol.engines import arithmetic, classes, kind
from protocol.identity import Address, parse_address
from protocol.run import RunSpec


class Session:
    """A run being worked on. Raises EngineError for requests that it cannot serve."""

    def __init__(self, run: RunSpec, assets: Path, factory: EngineFactory) -> None:
        self.run = run
        self.engine, tokenizer = factory(assets / "model")
        self.environment: Environment = load_environment(run.environment, assets, tokenizer)
        self._weights = Recent[bytes, Weights](kept_policies(run), refresh=True)
        self._images: dict[bytes, PolicyImage] = {}
        self._siblings: dict[tuple[str, str], Engine] = {arithmetic(self.engine.name): self.engine}
        self._in_use: dict[str, bytes] = {}
        self._shards = Shards(run, assets, self.environment, tokenizer)
        self._shard: Shard | None = None

    def at(self, order: ShardOrder | None, number: int) -> Self:
        """The same engine and weights at the problems of shard `number` of a task; itself where there is no task.

        Raises EngineError for a task that this program cannot do.
        """
        if order is None:
            return self
        view = copy(self)
        view._shard = self._shards.open(order, number)
        view.run, view.environment = view._shard.run, view._shard.environment
        return view

    def keep(self, policy_root: bytes, path: str) -> None:
        """Read a policy's weights; the oldest ones are forgotten."""
        self._weights[policy_root] = self.engine.read(path)
        self._images.setdefault(policy_root, PolicyImage(path))
        for forgotten in self._images.keys() - self._weights.keys():
            self._images.pop(forgotten).close()

    def like(self, engine_class: str) -> Engine:
        """An engine to look at work of this class with, on this machine's device: one that computes like it, or, where
        the run cannot judge by that, the own one, or the first that it can judge by."""
        return self._looking_at(engine_class, [arithmetic(engine_class), *self._other_ways(engine_class)])

    def unlike(self, engine_class: str) -> Engine:
        """The same of another arithmetic; the own one if there is none."""
        return self._looking_at(engine_class, self._other_ways(engine_class))

    def _other_ways(self, engine_class: str) -> list[tuple[str, str]]:
        """The own arithmetic and those in which such work was seen in calibration, without its own."""
        seen = (classes(name) for name in self.run.verification.known_pairs)
        known = sorted({arithmetic(looking) for made, looking in seen if kind(made) == kind(engine_class)})
        ways = dict.fromkeys([arithmetic(self.engine.name), *known])
        return [way for way in ways if way != arithmetic(engine_class)]

    def _looking_at(self, engine_class: str, ways: Sequence[tuple[str, str]]) -> Engine:
        """An engine for the first of these ways to compute that this machine has and the run can judge by; the own one
        if there is none.

        One per arithmetic is made and kept. What this kind of engine does not know is not remembered: files name it.
        """
        hardware = self.engine.name.partition("/")[0]
        for way in ways:
            if not self.run.verification.judges(engine_class, "/".join((hardware, *way))):
                continue
            sibling = self._siblings.get(way) or self.engine.sibling(*way)
            if sibling is not None:
                return self._siblings.setdefault(way, sibling)
        return self.engine

    def use(self, policy_root: bytes, engine: Engine | None = None) -> None:
        """Put a kept policy's weights into `engine`, by default the own one."""
        engine = engine or self.engine
        policy_root = self._policy(policy_root)
        if policy_root not in self._weights:
            raise EngineError(
                "the policy is not loaded",
                f"{policy_root.hex()[:16]} is not among the last {len(self._weights)}",
                "send LoadPolicy first",
            )
        if self._in_use.get(engine.name) != policy_root:
            engine.load(self.adjust(self._weights[policy_root]))
            self._in_use[engine.name] = policy_root

    def answer(self, policy_root: bytes, key: bytes) -> str:
        """The answer to a freshness challenge over a kept policy's bytes."""
        policy_root = self._policy(policy_root)
        if policy_root not in self._images:
            raise EngineError("the policy is not loaded", policy_root.hex()[:16], "send LoadPolicy first")
        return self._images[policy_root].answer(key)

    def adjust(self, weights: Weights) -> Weights:
        """The weights to sample and check with: those of the policy."""
        return weights

    def problems(self, policy_root: bytes, node: Address, index: int) -> list[Problem]:
        """The problems of one submission, one per group: those that are drawn, or the shard's."""
        if self._shard is not None:
            return self._shard.problems()
        count = self.run.rollout.prompts_per_file
        numbers = draw_problems(policy_root, node, index, count, self.environment.size)
        return [self.environment.problem(number) for number in numbers]

    def seed(self, policy_root: bytes, node: Address, index: int, group: int, sample: int) -> bytes:
        """The 32-byte seed of one answer's random numbers."""
        if self._shard is not None:
            return self._shard.seed(group, sample)
        return sample_seed(policy_root, node, index, group, sample)

    def _policy(self, root: bytes) -> bytes:
        """The policy that a submission is about: a task's names its own."""
        return self._shard.policy_root if self._shard is not None else root

    def tasks(self, policy_root: bytes, node: Address, index: int, capacity: int) -> Tasks:
        """The same with prompts and length budgets. Raises ValueError for a capacity class that is none."""
        problems = self.problems(policy_root, node, index)
        return deal(self.run, self.environment, problems, policy_root, node, index, capacity)

    @property
    def bounds(self) -> Bounds:
        """What ends a rollout of several turns."""
        return bounds_of(self.run, self.environment)

    def close(self) -> None:
        self.environment.close()
        self._shards.close()
        for image in self._images.values():
            image.close()
        self._images.clear()


def checked_address(text: str) -> Address:
    """A node address from the daemon; raises EngineError."""
    try:
        return parse_address(text)
    except ValueError as error:
        raise EngineError("not an address", str(error), "report this: the daemon sent it") from None
