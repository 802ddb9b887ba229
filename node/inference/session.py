"""What an engine process holds between requests: the run, its problems, one engine, recent weights."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Protocol, Self

from node.environments.base import Environment, EnvironmentSettings, Problem, Tokenizer
from node.environments.registry import load_environment
from node.inference.engine import (
    Apart,
    Completion,
    Engine,
    FinishedSequence,
    GenerationRequest,
    Prefill,
    Weights,
    generate,
)
from node.inference.engines import EngineFactory, load_start, teacher_beside
from node.inference.errors import EngineError
from node.inference.guarded import Guarded
from node.inference.host_copy import HostCopy, Stop
from node.inference.image import ImageFile, PatchedWeights, open_layers, unusable
from node.inference.layers import LayeredImage, PatchFile
from node.inference.room import has_room_for_copy
from node.inference.scheduler import EnginePolicy
from node.inference.settings import free_memory
from node.inference.tasks import DrawnTasks, Shard, Shards, deal
from node.inference.turns import Bounds, Generate, bounds_of
from node.inference.wire import AnswerRequest, Inspect, Produce, ShardOrder, Teach, kept_policies
from protocol import freshness
from protocol.budgets import draw_targets
from protocol.delta import PatchError
from protocol.draw import draw_problems, sample_seed
from protocol.engines import LORA, arithmetic, classes, with_arithmetic
from protocol.identity import Address, parse_address
from protocol.lora import is_adapter
from protocol.rollout import SampleRow
from protocol.run import MODEL, RunSpec
from protocol.sections import TEACHER


class Computing(Protocol):
    """Who puts work through the engine (node.inference.scheduler.EngineHandle)."""

    def draw(
        self, policy: EnginePolicy, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Completion]: ...
    def look(
        self, policy: EnginePolicy, sequences: Sequence[FinishedSequence], temperature: float
    ) -> list[Prefill]: ...


class EngineSet:
    """A model's engine, those that compute otherwise with the same weights, and which policy each of them has."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self.siblings: dict[tuple[str, str], Engine] = {arithmetic(engine.name): engine}
        self.in_use: dict[str, KeptPolicy] = {}
        # Two jobs may want a sibling at once, and a second one would take a model's memory again.
        self.making = threading.Lock()

    def sibling(self, way: tuple[str, str]) -> Engine | None:
        """One per arithmetic is made and kept. What this kind of engine does not know is not remembered: files name
        it."""
        with self.making:
            sibling = self.siblings.get(way) or self.engine.sibling(*way)
            return sibling if sibling is None else self.siblings.setdefault(way, sibling)

    def hold(self, engine: Apart, name: str, root: bytes, weights: Callable[[], Weights], kept: list[bytes]) -> None:
        """A policy beside the others; of these all stay that are kept."""
        # It has the start model's weights from now on, also where the adapter cannot be held.
        self.in_use.pop(name, None)
        engine.hold(root, weights(), kept)

    def load(self, engine: Engine, kept: "KeptPolicy", adjust: Callable[[Weights], Weights]) -> None:
        """A policy in the place of the one before."""
        if self.in_use.get(engine.name) is not kept:
            self.in_use.pop(engine.name, None)  # a load that fails leaves nobody knows what
            with kept.at_hand() as weights:
                engine.load(adjust(weights))
            self.in_use[engine.name] = kept

    def close(self) -> None:
        for engine in self.siblings.values():
            engine.close()


@dataclass(frozen=True, slots=True)
class Submission:
    """Which file is meant: the `index`-th of a node under a policy; where it is the result of a task's shard, the task
    stands in the policy's place."""

    policy_root: bytes
    node: Address
    index: int

    @classmethod
    def of(cls, order: Produce | Inspect) -> Self:
        """Raises EngineError for a node that is none."""
        try:
            return cls(order.policy_root, parse_address(order.node), order.index)
        except ValueError as error:
            raise EngineError("not an address", str(error), "report this: the daemon sent it") from None


class EngineSession:
    """A run being worked on. Raises EngineError for requests that it cannot serve.

    By itself it uses its engine at once, in the thread that asks. Where several threads ask, each has a view (`at`) by
    which somebody else does it for them.
    """

    def __init__(self, run: RunSpec, assets: Path, factory: EngineFactory) -> None:
        self.run = run
        self._assets = assets
        self._bench = EngineSet(*factory(assets / MODEL))
        self.engine, self._tokenizer = self._bench.engine, self._bench.tokenizer
        self.environment: Environment = self._load(run.environment)
        self.copy = HostCopy(self._has_room_for_copy)
        self.policies = KeptPolicies(self.engine.read, kept_policies(run), self.copy)
        self._teacher: list[EnginePolicy] = []  # one, once it was asked; views share it
        self._shards = Shards(run, assets, self.environment, self._tokenizer)
        self.policy = b""
        """Root of the one that a view is about."""
        self._about: Submission | None = None
        self._found: KeptPolicy | None = None
        self._shard: Shard | None = None
        self._making = threading.Lock()
        self._computing: Computing = _AtOnce()

    def _load(self, environment: EnvironmentSettings) -> Environment:
        return Guarded(load_environment(environment, self._assets, self._tokenizer))

    def _has_room_for_copy(self, image: int) -> bool:
        engine = self.engine
        return has_room_for_copy(image, free_memory("cpu"), engine.dtype, gpu=engine.device != "cpu")

    def at(self, order: Produce | Inspect | Teach | AnswerRequest, computing: Computing | None = None) -> Self:
        """The same engine and weights at what an order is about, and by way of somebody who computes.

        Raises EngineError for a node or a task that is none.
        """
        # Shallow: policies, teacher and locks are the session's own.
        view = copy(self)
        view._computing = computing or self._computing
        if isinstance(order, Teach):
            return view
        view.policy = order.policy_root
        if not isinstance(order, AnswerRequest):
            view._about = Submission.of(order)
            if order.task is not None:
                with self._making:
                    view._shard = self._shards.open(order.task, order.index)
                view.run, view.environment = view._shard.run, view._shard.environment
                view.policy = view._shard.policy_root  # a task names its own
        # Found once; one that is loaded later is looked for when it is wanted.
        view._found = self.policies.find(view.policy)
        return view

    @property
    def submission(self) -> Submission:
        """What a view is at."""
        assert self._about is not None  # whoever makes a file or looks at one has a view
        return self._about

    def keep(
        self,
        policy_root: bytes,
        path: str,
        patches: Sequence[PatchFile] = (),
        digests: bytes = b"",
        image_root: bytes = b"",
        stop: Stop = lambda: None,
    ) -> None:
        """Read a policy's weights, and compare what patches make of a base, where it is said what that is; the oldest
        ones are forgotten. Raises EngineError, and what `stop` raises, which is asked meanwhile."""
        self.policies.keep(policy_root, path, patches, digests, image_root, stop)

    def working_with(self, policy_root: bytes, order: ShardOrder | None) -> AbstractContextManager[None]:
        """While somebody is at work on a submission or a shard, its policy is kept."""
        return self.policies.in_use(order.policy_root if order else policy_root)

    def generator(self) -> Generate:
        """How answers are drawn under the policy."""
        return partial(self._computing.draw, self._in(self.engine))

    def prefill(
        self, engine: Engine, sequences: Sequence[FinishedSequence], temperature: float | None = None
    ) -> list[Prefill]:
        """What an engine, the own one or a sibling, recomputes of finished sequences under the policy; at the run's
        temperature if no other is given."""
        at = self.run.rollout.temperature if temperature is None else temperature
        return self._computing.look(self._in(engine), sequences, at)

    def ask_teacher(self, sequences: Sequence[FinishedSequence]) -> list[Prefill]:
        """What the run's teacher finds of finished sequences. Raises EngineError."""
        if self.run.distill is None:
            raise EngineError("nobody can be taught", "the run has no teacher", "report this: the daemon asked for it")
        # Two jobs may ask first: without the lock each would make a teacher, and one would stay in memory unused.
        with self._making:
            if not self._teacher:
                directory = self._assets / TEACHER
                engine = teacher_beside(self.engine, directory, self._assets / MODEL)
                put = cache(partial(load_start, engine, directory))  # its weights stay
                self._teacher.append(EnginePolicy(engine, b"", put))
        (teacher,) = self._teacher
        return self._computing.look(teacher, sequences, self.run.rollout.temperature)

    @property
    def kept(self) -> "KeptPolicy":
        """The policy that a view is about. Raises EngineError if it is not loaded."""
        return self._found or self.policies.get(self.policy)

    def _in(self, engine: Engine) -> EnginePolicy:
        kept = self.kept
        if isinstance(engine, Apart) and arithmetic(engine.name)[1] == LORA and is_adapter(kept.weights):

            def hold() -> None:
                # Asked when it is held: others are kept by then.
                weights = lambda: self.adjust(kept.weights)
                self._bench.hold(engine, engine.name, self.policy, weights, self.policies.roots())

            return EnginePolicy(engine, self.policy, hold, beside=True)
        return EnginePolicy(engine, self.policy, partial(self._bench.load, engine, kept, self.adjust))

    def like(self, engine_class: str) -> Engine:
        """An engine to look at work of this class with, on this machine's device: one that computes like it, or, where
        the run cannot judge by that, the own one, or the first that it can judge by."""
        return self._looking_at(engine_class, [arithmetic(engine_class), *self._other_ways(engine_class)])

    def unlike(self, engine_class: str) -> Engine:
        """The same of another arithmetic, first of another dtype: only that is another kind of look (protocol.engines).
        The own one if there is none."""
        dtype, _ = arithmetic(engine_class)
        ways = sorted(self._other_ways(engine_class), key=lambda way: way[0] == dtype)
        return self._looking_at(engine_class, ways)

    def _other_ways(self, engine_class: str) -> list[tuple[str, str]]:
        """The own arithmetic and those in which such work was seen in calibration, without its own."""
        seen = (classes(name) for name in self.run.verification.known_pairs)
        known = sorted({arithmetic(looking) for made, looking in seen if made == engine_class})
        ways = dict.fromkeys([arithmetic(self.engine.name), *known])
        return [way for way in ways if way != arithmetic(engine_class)]

    def _looking_at(self, engine_class: str, ways: Sequence[tuple[str, str]]) -> Engine:
        """An engine for the first of these ways to compute that this machine has and the run can judge by; the own one
        if there is none."""
        for way in ways:
            # Asked before one is made: an engine takes the memory of a whole model.
            if not self.run.verification.judges(engine_class, with_arithmetic(self.engine.name, way)):
                continue
            if sibling := self._bench.sibling(way):
                return sibling
        return self.engine

    def answer(self, key: bytes) -> str:
        """The answer to a freshness challenge over the policy's bytes."""
        return self.kept.answer(key)

    def put(self) -> None:
        """Have the own engine compute with the policy."""
        self._in(self.engine).put()

    def adjust(self, weights: Weights) -> Weights:
        """The weights to sample and check with: those of the policy."""
        return weights

    def problems(self) -> list[Problem]:
        """Those of the submission, one per group: those that are drawn, or the shard's."""
        if self._shard is not None:
            return self._shard.problems()
        about, count = self.submission, self.run.rollout.prompts_per_file
        numbers = draw_problems(about.policy_root, about.node, about.index, count, self.environment.size)
        return [self.environment.problem(number) for number in numbers]

    def seed(self, group: int, sample: int) -> bytes:
        """The 32-byte seed of one answer's random numbers."""
        if self._shard is not None:
            return self._shard.seed(group, sample)
        about = self.submission
        return sample_seed(about.policy_root, about.node, about.index, group, sample)

    def tasks(self, capacity: int) -> DrawnTasks:
        """The problems with prompts and length budgets. Raises ValueError for a capacity class that is none."""
        about = self.submission
        targets = draw_targets(self.run, about.policy_root, about.node, about.index, capacity)
        return deal(self.run, self.environment, self.problems(), targets)

    def challenge(self, rows: Sequence[SampleRow]) -> bytes:
        """The freshness challenge of the submission with these rows."""
        about = self.submission
        return freshness.challenge(about.policy_root, about.node, about.index, freshness.content_digest(rows))

    @property
    def bounds(self) -> Bounds:
        """What ends a rollout of several turns."""
        return bounds_of(self.run, self.environment)

    def close(self) -> None:
        self._bench.close()
        for teacher in self._teacher:
            teacher.engine.close()
        self.environment.close()
        self._shards.close()
        self.policies.close()
        self.copy.close()


class _AtOnce:
    """Computes in the thread that asks."""

    def draw(self, policy: EnginePolicy, requests: Sequence[GenerationRequest], temperature: float) -> list[Completion]:
        policy.put()
        return generate(policy.engine, [policy.request(one) for one in requests], temperature)

    def look(self, policy: EnginePolicy, sequences: Sequence[FinishedSequence], temperature: float) -> list[Prefill]:
        policy.put()
        return policy.engine.prefill(policy.sequences(sequences), temperature)


# The policies that an engine's process keeps: the last ones that were loaded, and those that a job is at work with.
# Jobs and loads come from several threads.
@dataclass(frozen=True, slots=True)
class KeptPolicy:
    """weights: as the engine read them; image: the policy's bytes; copy: that this process has in memory."""

    weights: Weights
    image: LayeredImage
    copy: HostCopy | None = None

    @contextmanager
    def at_hand(self) -> Iterator[Weights]:
        """Its weights to load, from the copy where there is one. Raises EngineError."""
        with ExitStack() as held:
            try:
                there = held.enter_context(self.copy.at(self.image)) if self.copy else None
            except PatchError as error:
                raise unusable(str(self.image.base), error.why) from None
            yield ImageFile(there.path, self.image.weights_root) if there else self.weights

    def check(self, image_root: bytes, stop: Stop) -> None:
        """Is it what was signed for? Raises EngineError, and what `stop` raises."""
        try:
            with self.copy.at(self.image, stop) if self.copy else nullcontext() as there:
                found = there.root if there else self.image.root(stop)
        except PatchError as error:
            raise unusable(str(self.image.base), error.why) from None
        if found != image_root:
            raise unusable(str(self.image.base), "the image that its patches lead to has another root")

    def answer(self, key: bytes) -> str:
        """To a freshness challenge over its bytes."""
        if self.copy is not None:
            with self.copy.glance(self.image) as body:
                if body is not None:
                    return freshness.answer(key, len(body), lambda start, size: bytes(body[start : start + size]))
        return self.image.answer(key)


class KeptPolicies:
    """read: a policy's weights for the engine; limit: how many are kept, and more only while more are in use; copy: in
    memory, of one of them."""

    def __init__(
        self, read: Callable[[str, Sequence[PatchFile], bytes], Weights], limit: int, copy: HostCopy | None = None
    ) -> None:
        self._read, self._copy = read, copy
        self._limit = limit
        self._kept: dict[bytes, KeptPolicy] = {}
        # Counted, not marked: two jobs may be at work with one policy, and the first to end must not free it.
        self._users: Counter[bytes] = Counter()
        self._lock = threading.Lock()

    def roots(self) -> list[bytes]:
        """Those that are kept, the one that was loaded last at the end."""
        with self._lock:
            return list(self._kept)

    def find(self, root: bytes) -> KeptPolicy | None:
        """None for a policy that is not kept."""
        with self._lock:  # one that comes again is out for a moment
            return self._kept.get(root)

    def get(self, root: bytes) -> KeptPolicy:
        """Raises EngineError for a policy that is not kept."""
        kept = self.find(root)
        if kept is None:
            why = f"{root.hex()[:16]} is not among the last {len(self._kept)}"
            raise EngineError("the policy is not loaded", why, "send LoadPolicy first")
        return kept

    def keep(
        self,
        root: bytes,
        path: str,
        patches: Sequence[PatchFile] = (),
        digests: bytes = b"",
        image_root: bytes = b"",
        stop: Stop = lambda: None,
    ) -> None:
        """Read a policy, and compare it; the oldest ones that nobody uses are forgotten. Raises EngineError, and what
        `stop` raises."""
        # Read outside of the lock: a load may wait for a disk, and jobs begin and end meanwhile.
        policy = self._kept.get(root)
        # Other patches to the same policy may lead elsewhere.
        if policy is None or (patches and policy.image.patches != tuple(patches)):
            weights = self._read(path, patches, digests)
            image = weights.image if isinstance(weights, PatchedWeights) else open_layers(path)
            policy = KeptPolicy(weights, image, self._copy)
            if patches and digests and image_root:
                policy.check(image_root, stop)
        with self._lock:
            # Taken out and put in again it is the newest, and the oldest are forgotten first.
            self._kept.pop(root, None)
            self._kept[root] = policy
            self._forget()

    @contextmanager
    def in_use(self, root: bytes) -> Iterator[None]:
        """A policy is not forgotten meanwhile, whether it is there already or comes later."""
        with self._lock:
            self._users[root] += 1
        try:
            yield
        finally:
            with self._lock:
                self._users[root] -= 1
                self._forget()

    def close(self) -> None:
        self._kept.clear()

    def _forget(self) -> None:
        self._users += Counter()  # drops those that nobody uses
        idle = [root for root in self._kept if not self._users[root]]
        for root in idle[: max(0, len(self._kept) - self._limit)]:
            del self._kept[root]
