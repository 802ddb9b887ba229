"""A small swarm for policies: real blob stores on disk, real signatures, and a wire that can be cut."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import trio

from node.blobs.errors import BlobTooLarge, BlobUnavailable
from node.blobs.store import BlobStore
from node.inference.errors import EngineError
from node.inference.host_copy import HostCopy
from node.inference.image import PatchedWeights
from node.inference.session import KeptPolicies
from node.inference.wire import Loaded, LoadPolicy
from node.state.journal import Journal
from node.weights.fetch import PolicyFollower
from node.weights.policy_cache import HeldPolicy, PolicyCache
from node.weights.publish import Publisher, StepWord
from node.weights.records import PolicyRecords
from protocol.blobs import describe
from protocol.identity import Address, NodeKey
from protocol.manifest import PolicyStatement
from protocol.messages import Message, open_envelope, seal
from protocol.policy import bf16_bits, describe_tensors, encode_image, policy_root
from protocol.statements import Domain, sign
from tests.words import Ear

DOMAIN = Domain(31337, "0x" + "11" * 20)
POOL = 3
RUN_ROOT = b"\x07" * 32
QUOTA = 64 * 1024**2


class Wire:
    """Blobs by root from every store that is plugged in. log: (asker, source, root) of each fetch."""

    def __init__(self) -> None:
        self.stores: dict[Address, BlobStore] = {}
        self.log: list[tuple[Address, Address, bytes]] = []
        self.ears: list[Ear] = []
        self.held_back: dict[bytes, trio.Event] = {}

    def say(self, raw: bytes) -> None:
        for ear in self.ears:
            ear.hear(open_envelope(DOMAIN, POOL, raw))

    def listen(self, trainer: Address) -> Ear:
        ear = Ear(trainer)
        self.ears.append(ear)
        return ear


class Door:
    """One node's way to the others' blobs."""

    def __init__(self, wire: Wire, own: Address, store: BlobStore) -> None:
        self._wire, self._own, self._store = wire, own, store

    async def fetch(
        self, root: bytes, sources: Sequence[Address], *, max_size: int, timeout: float, priority: int = 0
    ) -> Path:
        if root in self._wire.held_back:
            await self._wire.held_back[root].wait()
        await trio.lowlevel.checkpoint()
        if not self._store.has(root):
            source = next((s for s in sources if s in self._wire.stores and self._wire.stores[s].has(root)), None)
            if source is None:
                raise BlobUnavailable(root, "nobody has it")
            self._wire.log.append((self._own, source, root))
            data = self._wire.stores[source].path(root).read_bytes()
            if len(data) > max_size:
                raise BlobTooLarge(root, len(data), max_size)
            await self._store.add(data, synced=False)
        return self._store.path(root)


def word_of(
    key: NodeKey,
    step: int,
    tensors: dict[str, np.ndarray],
    domain: Domain = DOMAIN,
    pool: int = POOL,
    parent: bytes = bytes(32),
    batch: bytes = b"",
) -> StepWord:
    """What a trainer states of a step. batch: the manifest of its batch, if it has one."""
    root, named = policy_root(step, describe_tensors(tensors)), describe(batch).root if batch else bytes(32)
    statement = PolicyStatement(pool, 0, step, 0, parent, root, named, bytes(32))
    return StepWord(statement, sign(key, domain, statement.commitment(key.address)), batch)


class FakeBoard:
    """Seals and says; knows nothing of gossip."""

    def __init__(self, wire: Wire, key: NodeKey) -> None:
        self._wire, self._key = wire, key
        self.muted = False

    def sealed(self, message: Message) -> bytes:
        return seal(self._key, DOMAIN, message)

    async def post_raw(self, raw: bytes) -> None:
        if not self.muted:
            self._wire.say(raw)


class Origin:
    """The trainer's side."""

    def __init__(self, wire: Wire, directory: Path, key: NodeKey, **options: int) -> None:
        self.key, self.directory = key, directory
        self.store = BlobStore(directory / "blobs", QUOTA)
        self.policy_cache = PolicyCache(4, self.store)
        self.board = FakeBoard(wire, key)
        self.journal = Journal(directory / "journal.sqlite")
        self.records = PolicyRecords(directory / "weights" / "held")
        self.publisher = Publisher(
            self.store,
            self.board,  # type: ignore[arg-type] - the two methods that publishing needs
            self.journal,
            RUN_ROOT,
            POOL,
            workshop=directory / "weights" / "building",
            records=self.records,
            policy_cache=self.policy_cache,
            **options,
        )
        wire.stores[key.address] = self.store

    async def publish(self, step: int, tensors: dict[str, np.ndarray], word: StepWord | None = None):
        word = word or word_of(self.key, step, tensors)
        path = self.directory / f"policy-{step}.safetensors"
        path.write_bytes(encode_image(tensors))
        held = await self.publisher.publish(step, path, word)
        self.policy_cache.put(held)
        return held


class Comparing:
    """What a follower needs of an engine: its own way to keep policies, without a model or a process. refuses: what it
    says to all; asked: steps that it was asked for."""

    def __init__(self, refuses: EngineError | None = None, has_room: bool = True) -> None:
        self.kept = KeptPolicies(PatchedWeights, 8, HostCopy(lambda size: has_room))
        self.refuses = refuses
        self.asked: list[int] = []

    async def ask(self, request: LoadPolicy, *, timeout: float, policy: object = None, on_progress: object = None):
        self.asked.append(request.step)
        if self.refuses is not None:
            raise self.refuses
        what = request.path, request.patches, request.digests, request.image_root
        await trio.to_thread.run_sync(self.kept.keep, request.policy_root, *what)
        return Loaded(seconds=0.0)


class Peer:
    """A follower's side."""

    def __init__(self, wire: Wire, directory: Path, trainer: Address, **options: object) -> None:
        self.key = NodeKey.generate()
        self.directory = directory
        self.store = BlobStore(directory / "blobs", int(options.pop("quota", QUOTA)))  # type: ignore[arg-type]
        self.policy_cache = PolicyCache(int(options.pop("keep", 4)), self.store)  # type: ignore[arg-type]
        self.blamed: list[str] = []
        self.repeated: list[bytes] = []
        self.door = Door(wire, self.key.address, self.store)
        ear = wire.listen(trainer)
        self.follower = PolicyFollower(
            ear.facts,
            ear.policies,
            self.door,
            self.store,
            self.policy_cache,
            RUN_ROOT,
            lambda author: [author, *wire.stores],
            int(options.pop("limit", 1 << 24)),  # type: ignore[arg-type]
            workshop=directory / "weights" / "building",
            records=PolicyRecords(directory / "weights" / "held"),
            repeat=self._repeat,
            blame=lambda who, why: self.blamed.append(why) if who == trainer else None,
            **options,  # type: ignore[arg-type]
        )
        wire.stores[self.key.address] = self.store

    async def _repeat(self, raw: bytes) -> None:
        self.repeated.append(raw)


class Run:
    """Weights that change as training changes them: few of them, and by little."""

    def __init__(self, lr: float = 2e-6) -> None:
        self._random = np.random.default_rng(11)
        shapes = {"model.embed.weight": (400, 64), "model.norm.weight": (64,), "lm_head.weight": (64, 400)}
        self._values = {name: self._random.standard_normal(shape) * 0.02 for name, shape in shapes.items()}
        self._lr = lr

    def step(self) -> dict[str, np.ndarray]:
        for values in self._values.values():
            values += self._random.standard_normal(values.shape) * self._lr / 2
        return {name: bf16_bits(values.astype(np.float32)) for name, values in self._values.items()}


def bytes_of(held: HeldPolicy | None) -> bytes:
    """The whole image of a policy, whatever it rests on."""
    assert held is not None
    return encode_image(dict(held.image()))


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that other tasks bring about."""
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.002)


def disk(directory: Path) -> list[str]:
    """Files that are being written, or were and have been left."""
    building = directory / "weights" / "building"
    return [path.name for path in building.iterdir()] if building.exists() else []
