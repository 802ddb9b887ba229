"""A hundred peers of a run with rounds under a virtual clock: do replicas stay equal while a fifth of them leaves in
each round, and as many come?

**The product's own:** rounds, lists and their agreement (`Rounds`, `RoundCloser`), replicas and contributions
(`RoundWorker`), judging and its lots (`ContributionValidator`), contribution files, the outer step and its roots,
heartbeats; boards, juries and tables of members of those that have everything of their own.

**Modelled:** the model is a vector of SHAPES, and steps move it to its replica's own middle; they take seconds by the
peer's class. A blob comes from a member that lives, is not cut off, and has it. HOSTS peers and the validators have
boards of their own, on a hub that loses messages. The others speak for themselves and read a host's board; words on
lists reach each of them by itself, late, or as late as what a board has to ask for. Who leaves does so in mid-round,
half of them without a word: their lease runs out.
"""

import os
import random
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

import msgspec
import numpy as np
import trio
from blake3 import blake3

from benchmarks.command import tell
from benchmarks.simulation.__main__ import deterministic
from benchmarks.simulation.seats import POOL, Voice, key_of, wall
from node.clock import Clock
from node.member import BlobService, Participant
from node.progress import ProgressRecord
from node.run.assets import Run
from node.run.file import TEXT
from node.services.base import ServiceManager
from node.services.certifier import Certifier
from node.services.context import make_context
from node.services.heartbeat import HeartbeatSender
from node.services.rounds.applying import Rounds
from node.services.rounds.judging import ContributionJudge, ContributionValidator
from node.services.rounds.round_closer import RoundCloser
from node.services.rounds.round_worker import RoundWorker
from node.state.files import mapped
from node.state.pen import Pen
from node.swarm.facts import Facts, News
from node.swarm.membership import Membership
from node.training.jobs import Job, StartRound, Train
from node.training.length import without_length
from node.training.outer import OuterStateFile, outer_shapes, write_state
from node.training.spool import Spool
from protocol.agreement import Proposal
from protocol.blobs import BlobInfo, describe
from protocol.contribution import ContributionHeader, decode_contribution, encode_contribution, expected_of
from protocol.exchange import form_of
from protocol.identity import Address
from protocol.liveness import MemberState
from protocol.messages import M, Signed
from protocol.pretraining import Diloco, Pretraining, TextPart
from protocol.recipe import Recipe
from protocol.rounds import state_root
from protocol.run import EnvironmentSpec, RunSpec
from protocol.statements import Domain
from tests.attacks.validators.court import InlineJournal, RecordingJudge, Trouble, inline
from tests.memory_network import MemoryHub, MemoryNetwork

T = TypeVar("T")
SHAPES = {"a": (64,), "b": (8, 24)}
HOSTS = 2
BEAT = 4.0
"""Seconds between two heartbeats, at least."""
HOP = 0.08
"""Seconds that a word takes, the median; log-normal with SPREAD."""
SPREAD = 0.8
ASKED_FOR = (2.0, 30.0)
"""Seconds until a board has got by asking what gossip had lost."""
LAST = 120.0
"""Seconds, at most, from the last state's being at one node until it is at all."""
LEASE = 45.0
"""Seconds until the chain has forgotten who left without a word."""
PACE = (1.5, 7.0)
"""Seconds of an inner step, from the fastest to the slowest peer: the slowest make a part of a round's steps."""
LATE = 0.06
"""Of the contributions: their last steps take up to two rounds longer."""
FETCH = 0.6


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """peers: at any time; replicas: of a round, which fewer may have than there are peers; churn: share of the peers
    that leave in a round, and come; lost: share of the words that only a board's question brings; away: share of the
    peers, and chance of each validator, to be cut off for up to two rounds; cheats: share of the peers that send what
    they did not compute."""

    peers: int = 100
    replicas: int = 48
    validators: int = 3
    rounds: int = 100
    churn: float = 0.2
    lost: float = 0.05
    away: float = 0.05
    cheats: float = 0.02
    seed: int = 7

    @property
    def rules(self) -> Diloco:
        return Diloco(inner_steps=8, batch_tokens=64, exchange="float32", outer_rate=0.7, outer_momentum=0.9,
                      inner_state="reset", stretch=0, round_seconds=30.0, grace_seconds=8.0,
                      max_contributions=self.replicas)  # fmt: skip

    @property
    def longest(self) -> float:
        """Seconds within which all rounds are over, several times as long as they take."""
        return 4 * self.rounds * (self.rules.round_seconds + self.rules.grace_seconds) + LAST

    def run(self) -> RunSpec:
        text = Pretraining(data=(TextPart(name="none", file="none.tokens"),), sequence=64)
        run = RunSpec(
            name="rounds",
            environment=EnvironmentSpec(name=TEXT),
            pretraining=text,
            diloco=self.rules,
            recipe=Recipe(steps=self.rounds),
        )
        run.check()
        return run


class Replica(Rounds):
    """Rounds whose states are counted."""

    swarm: "Swarm"

    async def _open(self, path: Path) -> None:
        await super()._open(path)
        assert self.outer is not None
        self.swarm.roots.setdefault(self.outer.round, Counter())[self.outer.root] += 1

    async def _apply(self, proposal: Proposal) -> None:
        await super()._apply(proposal)
        self.swarm.counts["states made"] += 1

    async def _jump(self, round_: int, proposal: Proposal) -> None:
        await super()._jump(round_, proposal)
        self.swarm.counts["states fetched"] += 1


class Hearing(Replica):
    """The first control: it adds what it has heard to be accepted by now, in place of what the list names."""

    async def _apply(self, proposal: Proposal) -> None:
        heard = sorted(work.commitment.file_root for work in self.works() if self.has_accepted(work))
        await super()._apply(proposal._replace(files=tuple(heard)))


class Arriving(Replica):
    """The second control: it adds what the list names in the order in which it came."""

    async def _apply(self, proposal: Proposal) -> None:
        files = list(proposal.files)
        self.swarm.random.shuffle(files)
        await super()._apply(proposal._replace(files=tuple(files)))


RULES: dict[str, type[Replica]] = {"the list": Replica, "what it heard": Hearing, "order of arrival": Arriving}
"""What a node adds."""


class Learner:
    """One node's learner: it does a job in the seconds that its machine takes. cheats: whether what it sends is not
    what it computed."""

    def __init__(self, swarm: "Swarm", spool: Spool, pace: float, *, cheats: bool) -> None:
        assert swarm.run.diloco is not None
        self._swarm, self._spool, self._rules = swarm, spool, swarm.run.diloco
        self._pace, self._cheats = pace, cheats

    async def run(self) -> None:
        await trio.sleep_forever()

    def prepare(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    @property
    def _folder(self) -> Path:
        return self._spool.root / "rounds"

    async def ask(self, name: str, job: Job) -> dict[str, Any]:
        match job:
            case StartRound():
                await trio.lowlevel.checkpoint()
                path = self._folder / "outer-000000.safetensors"
                held = outer_shapes(SHAPES, self._rules)
                write_state(path, 0, held, ((key, np.zeros(held[key], np.float32)) for key in sorted(held)))
                shapes = {key: list(shape) for key, shape in SHAPES.items()}
                return {"shapes": shapes, "arithmetic": "simulated", "own_bytes": 0}
            case Train():
                return await self._train(job)
        return await self._check(Path(job.path), job.round)  # type: ignore[union-attr] - nobody publishes

    def _outer(self, round_: int) -> OuterStateFile:
        return OuterStateFile(self._folder / f"outer-{round_:06d}.safetensors")

    async def _train(self, job: Train) -> dict[str, Any]:
        rules, own = self._rules, self._swarm.random
        steps = min(max(int((job.until - wall()) / self._pace), 1), rules.inner_steps)
        late = own.random() < LATE
        await trio.sleep(steps * self._pace + late * own.uniform(0, 2 * rules.round_seconds))
        made = contribution(self._outer(job.round), job.round, job.replica_id, steps, rules, self._swarm.root)
        if self._cheats:
            made = made[:-1] + bytes([made[-1] ^ 1])
        path = self._folder / f"{job.round:06d}.inc"
        path.write_bytes(made)
        return {"path": str(path), "tokens": steps * rules.batch_tokens, "loss": 1.0, "own": "", "began": False}

    async def _check(self, path: Path, round_: int) -> dict[str, Any]:
        """As a validator finds it that makes the steps again."""
        await trio.sleep(0.05)
        rules, outer = self._rules, self._outer(round_)
        data = mapped(path)
        expected = expected_of(rules, self._swarm.root, {round_: outer.root})
        one = decode_contribution(data, SHAPES, form_of(rules), expected)
        said, steps = one.header, one.header.tokens // rules.batch_tokens
        equal = contribution(outer, round_, said.replica_id, steps, rules, self._swarm.root) == bytes(data)
        told = {"norm": one.check(), "replica_id": said.replica_id, "tokens": said.tokens, "batches": [], "alike": 0.0}
        told |= {"inner": [root.hex() for root in said.inner], "seconds": 0.05, "same": True, "equal": equal}
        return told | {"distance": 0.0 if equal else 1.0, "wrong": [], "after": 1.0}


def contribution(outer: OuterStateFile, round_: int, replica_id: int, steps: int, rules: Diloco, run: bytes) -> bytes:
    """The file of a replica's steps, the same for whoever makes them."""
    values = {name: outer.tensor(name).tobytes() for name in SHAPES}
    return _made(outer.root, tuple(values.items()), round_, replica_id, steps, rules, run)


@lru_cache(4096)
def _made(
    root: bytes,
    outer: tuple[tuple[str, bytes], ...],
    round_: int,
    replica_id: int,
    steps: int,
    rules: Diloco,
    run: bytes,
) -> bytes:
    tensors = dict[str, np.ndarray]()
    for number, (name, data) in enumerate(outer):
        before = np.frombuffer(data, np.float32)
        middle = np.random.default_rng([replica_id, number]).normal(size=before.size).astype(np.float32)
        noise = np.random.default_rng([round_, replica_id, number]).normal(size=(steps, before.size)).astype(np.float32)
        now = before
        for each in noise:
            now = now - np.float32(0.02) * (now - middle - each)
        tensors[name] = before - now
    nothing = (state_root(round_, ()), state_root(round_ + 1, ()))
    header = ContributionHeader(
        run, round_, root, replica_id, steps * rules.batch_tokens, 1.0, 1.0, nothing, (), "simulated"
    )  # fmt: skip
    return b"".join(encode_contribution(header, tensors, form_of(rules)))


class Door:
    """One node's door to everybody's blobs: they come from who has them, lives and is not cut off."""

    holding = nullcontext

    def __init__(self, swarm: "Swarm", own: Address) -> None:
        self._swarm, self._own = swarm, own

    async def add(self, source: Path | bytes) -> BlobInfo:
        await trio.lowlevel.checkpoint()
        data = source if isinstance(source, bytes) else source.read_bytes()
        info = describe(data)
        path = self._swarm.folder / "blobs" / info.root.hex()
        if info.root not in self._swarm.holders:
            path.write_bytes(data)
        self._swarm.holders.setdefault(info.root, set()).add(self._own)
        return info

    async def fetch(
        self, root: bytes, sources: Sequence[Address], *, max_size: int, timeout: float, priority: int = 0
    ) -> Path:
        path, swarm = self._swarm.folder / "blobs" / root.hex(), self._swarm
        with trio.move_on_after(timeout):
            while self._own not in swarm.holders.get(root, ()):
                holders = swarm.holders.get(root, set())
                able = [one for one in sources if one in holders and swarm.reaches(self._own, one)]
                if not able:
                    await trio.sleep(1.0)
                    continue
                source = swarm.random.choice(able)
                await trio.sleep(FETCH * swarm.random.lognormvariate(0.0, SPREAD))
                if swarm.reaches(self._own, source):
                    holders.add(self._own)
        if self._own not in swarm.holders.get(root, ()) or path.stat().st_size > max_size:
            raise Trouble("no such blob", "nobody hands it over", "it is tried again")
        return path


class Ears(Voice):
    """The board of a node that reads its host's. What its own ears miss of words on lists comes late."""

    _node: Any
    _host: Any

    def subscribe(self, kind: type[M]) -> trio.MemoryReceiveChannel[Signed[M]]:
        return self.late(super().subscribe(kind))

    def late(self, news: trio.MemoryReceiveChannel[T]) -> trio.MemoryReceiveChannel[T]:
        send, receive = trio.open_memory_channel[T](4096)
        self._node.nursery.start_soon(self._hand_on, news, send)
        return receive

    def facts(self) -> Facts:
        """The host's."""
        return self._host.context.facts

    async def _hand_on(self, host: Any, own: Any) -> None:
        async for signed in host:
            self._node.nursery.start_soon(self._deliver, signed, own)

    async def _deliver(self, signed: Any, own: Any) -> None:
        swarm = self._node.swarm
        await trio.sleep(swarm.hop())
        await swarm.back(self._node.key.address)
        own.send_nowait(signed)

    def messages(self, kind: type[M]) -> list[Signed[M]]:
        return self._host.context.board.messages(kind)

    async def post_raw(self, raw: bytes) -> None:
        await trio.lowlevel.checkpoint()
        self._node.nursery.start_soon(self._say, raw)

    async def _say(self, raw: bytes) -> None:
        swarm, own = self._node.swarm, self._node.key.address
        await trio.sleep(swarm.hop())
        await swarm.back(own)
        network = self._host.network
        network.hand(self._host.context.board._topic, own, raw, {own})


class HeardFacts:
    """What a node makes of its host's board, as late as it hears the words."""

    def __init__(self, ears: Ears) -> None:
        self._ears = ears

    def subscribe(self, *kinds: type[News]) -> trio.MemoryReceiveChannel[Any]:
        return self._ears.late(self._ears.facts().subscribe(*kinds))

    def standing(self, *kinds: type[News]) -> list[Any]:
        return self._ears.facts().standing(*kinds)


class Node:
    """One member. host: whose board it reads, None: it has one of its own."""

    def __init__(self, swarm: "Swarm", number: int, role: str, rule: str, host: "Node | None" = None) -> None:
        self.swarm, self.role, self.host = swarm, role, host
        self.key, self.manager, self.alive = key_of(number), ServiceManager(), trio.CancelScope()
        self.manager.state = "working"
        self.folder = swarm.folder / str(number)
        self.cheats = role == "worker" and host is not None and swarm.random.random() < swarm.scenario.cheats
        self.court = RecordingJudge()
        door: Any = Door(swarm, self.key.address)
        pins: Any = SimpleNamespace(pin=lambda root: None, unpin=lambda root: None)
        if host is None:
            self.network = MemoryNetwork(self.key, swarm.hub)
            validators, quorum = swarm.validators, len(swarm.validators) // 2 + 1
            own: Any = Membership(self.key.address, self.network, key_of(0).address, validators, quorum=quorum)
            blob_service: Any = BlobService(door, pins, pins)
            self.member = Participant(self.key, swarm.domain, POOL, self.network, own, blob_service, wall=wall)
            run = Run(swarm.run, blake3(b"run").digest(), b"run", swarm.folder)
            self.context = make_context(self.member, run, InlineJournal(), clock=Clock(wall=wall))
        else:
            jury, ears = host.context.jury, Ears(self, host, swarm.domain)  # type: ignore[arg-type] - as a seat
            told: Any = SimpleNamespace(state=jury.state, facts=HeardFacts(ears), learn=lambda *_, **__: None)
            parts: dict[str, Any] = {"board": ears, "blobs": door, "journal": InlineJournal(), "jury": told}
            self.context = msgspec.structs.replace(host.context, key=self.key, progress=ProgressRecord(), **parts)
        process: Any = SimpleNamespace(name="learner", pid=0, restarts=0, run=trio.sleep_forever, wake=lambda: None)
        kind = RULES[rule if role == "worker" else "the list"]
        spool = Spool(self.folder / "spool")
        learner: Any = Learner(swarm, spool, swarm.random.uniform(*PACE), cheats=self.cheats)
        self.rounds = kind(self.context, process, spool, learner)
        self.rounds.swarm = swarm
        self._pins = pins

    @property
    def services(self) -> list[Any]:
        if self.role == "worker":
            return [RoundWorker(self.context, self.rounds, self._pins)]
        looks: Any = ContributionJudge(self.context, self.rounds)
        given: tuple[Any, ...] = self.context, self.rounds, looks, self.court, self.swarm.folder
        judging = ContributionValidator(*given, certifier=Certifier(self.context))
        return [judging, RoundCloser(self.context, self.rounds)]

    async def live(self) -> None:
        with self.alive:
            async with trio.open_nursery() as self.nursery:
                if self.host is None:
                    await self.nursery.start(self.network.run)
                    self.swarm.introduce(self)
                    self.nursery.start_soon(self.member.listen)
                    self.nursery.start_soon(self.context.jury.run)
                self.nursery.start_soon(
                    HeartbeatSender(self.context, self.manager, self.role, tuple, BEAT, Pen(generation=1)).run
                )
                await self.manager.start(self.rounds, self.nursery)
                for service in self.services:
                    await self.manager.start(service, self.nursery)
                await trio.sleep_forever()
        self.context.journal.close()
        shutil.rmtree(self.folder, ignore_errors=True)


COUNTED = ("left", "cut off", "validators cut off", "words that came late", "states made", "states fetched")


class Swarm:
    """One simulation. rule: of RULES, what peers add."""

    def __init__(self, scenario: Scenario, rule: str, folder: Path) -> None:
        self.scenario, self.rule, self.folder = scenario, rule, folder
        self.random = random.Random(scenario.seed)
        self.hub = MemoryHub(delay=HOP, drop=scenario.lost, seed=scenario.seed)
        self.run = scenario.run()
        self.root, self.domain = blake3(without_length(self.run)).digest(), Domain(31337, key_of(0).address)
        self.validators = tuple(key_of(1 + number).address for number in range(scenario.validators))
        self.holders: dict[bytes, set[Address]] = {}
        self.nodes: dict[Address, Node] = {}
        self.roots: dict[int, Counter[bytes]] = {}
        """Outer state -> how many nodes had it, by round."""
        self.counts: Counter[str] = Counter(dict.fromkeys(COUNTED, 0))
        self._away: dict[Address, float] = {}
        self._numbers = iter(range(1, 1 << 30))
        (folder / "blobs").mkdir()

    def unfinished(self) -> int:
        """Nodes that do not have the last state yet."""
        return sum(not node.rounds.over for node in self.nodes.values())

    def hop(self) -> float:
        """Seconds that a word takes to somebody."""
        lost = self.random.random() < self.scenario.lost
        self.counts["words that came late"] += lost
        return HOP * self.random.lognormvariate(0.0, SPREAD) + lost * self.random.uniform(*ASKED_FOR)

    def reaches(self, one: Address, other: Address) -> bool:
        now = trio.current_time()
        return other in self.nodes and max(self._away.get(one, 0.0), self._away.get(other, 0.0)) <= now

    async def back(self, node: Address) -> None:
        """Return once it is not cut off."""
        await trio.sleep_until(max(self._away.get(node, 0.0), trio.current_time()))

    def introduce(self, newcomer: Node) -> None:
        """Those with boards of their own know where each other is; of the others the chain says that they are."""
        full = [node for node in self.nodes.values() if node.host is None]
        for one in full:
            for other in full:
                if newcomer in (one, other):
                    one.context.membership.joined(other.key.address, next(iter(other.network.contacts()), ""))

    async def play(self) -> None:
        """Until the last round is over everywhere."""
        async with trio.open_nursery() as self._nursery:
            self.hosts = []
            for _ in range(self.scenario.validators):
                self._come("validator")
            self.hosts = [self._come("worker") for _ in range(min(HOSTS, self.scenario.peers))]
            await trio.sleep(1.0)
            for _ in range(self.scenario.peers - len(self.hosts)):
                self._come("worker")
            with trio.move_on_after(self.scenario.longest):  # where states differ, nobody may ever make the next one
                await self._rounds()
            with trio.move_on_after(LAST):
                while self.unfinished():
                    await trio.sleep(1.0)
            self.seconds = trio.current_time()
            self._nursery.cancel_scope.cancel()

    async def _rounds(self) -> None:
        round_ = -1
        while round_ + 1 < self.scenario.rounds:
            outer = await self.hosts[0].rounds.newer_than(round_)
            round_ = outer.round
            self._disturb(outer.round)
            if outer.round % 10 == 0:
                tell(f"round {outer.round}, {sum(len(one) > 1 for one in self.roots.values())} of them split")

    def _come(self, role: str) -> Node:
        number = next(self._numbers)
        host = self.random.choice(self.hosts) if self.hosts else None
        node = Node(self, number, role, self.rule, host)
        self.nodes[node.key.address] = node
        for one in self.nodes.values():
            if one.host is None:
                one.context.membership.table.admit(node.key.address)
                if node.host is None:
                    node.context.membership.table.admit(one.key.address)
        self._nursery.start_soon(node.live)
        return node

    def _disturb(self, round_: int) -> None:
        """What happens in a round: a fifth goes and as many come, some are cut off, a validator is."""
        rules, scenario = self.scenario.rules, self.scenario
        guests = [node for node in self.nodes.values() if node.host is not None]
        span = rules.round_seconds + rules.grace_seconds
        if round_ + 1 < scenario.rounds:
            for node in self.random.sample(guests, min(round(scenario.churn * scenario.peers), len(guests))):
                self._nursery.start_soon(self._replace, node, self.random.uniform(0, span))
        now = trio.current_time()
        for node in guests:
            if self.random.random() < scenario.away:
                self.counts["cut off"] += 1
                self._away[node.key.address] = now + self.random.uniform(0, 2 * span)
        for validator in self.validators:
            if self.random.random() < scenario.away and not any(at > now for at in map(self._gone, self.validators)):
                self.counts["validators cut off"] += 1
                self._nursery.start_soon(self._isolate, validator, self.random.uniform(0, 2 * span))

    def _gone(self, node: Address) -> float:
        return self._away.get(node, 0.0)

    async def _isolate(self, node: Address, seconds: float) -> None:
        self._away[node] = trio.current_time() + seconds
        self.hub.isolate(node)
        await trio.sleep(seconds)
        self.hub.heal()

    async def _replace(self, node: Node, after: float) -> None:
        """In mid-round somebody goes, and another comes."""
        await trio.sleep(after)
        if node.key.address not in self.nodes:
            return
        del self.nodes[node.key.address]
        node.alive.cancel()
        self.counts["left"] += 1
        self._come("worker")
        if self.random.random() < 0.5:
            await trio.sleep(LEASE)
        for one in self.nodes.values():
            if one.host is None:
                one.context.membership.table.remove(node.key.address, MemberState.LEFT)


def played(scenario: Scenario, rule: str, folder: Path) -> dict[str, Any]:
    """What comes of it. split: rounds in which two nodes had different states."""
    began, swarms = time.process_time(), list[Swarm]()

    async def live() -> None:
        swarms.append(Swarm(scenario, rule, folder))
        threads = patch.object(trio.to_thread, "run_sync", inline)
        with threads, patch.object(os, "fsync", lambda _: None):
            await swarms[0].play()

    deterministic(scenario.seed, live)
    swarm = swarms[0]
    host = swarm.hosts[0].rounds
    accepted = [one.contributions for one in host.figures.values()]
    vote_set = swarm.hosts[0].context.state.vote_set
    return {
        "adds": rule,
        "rounds": len(swarm.roots) - 1,
        "split": [round_ for round_, roots in sorted(swarm.roots.items()) if len(roots) > 1],
        "roots": sum(roots.total() for roots in swarm.roots.values()),
        "contributions": [min(accepted), statistics.median(accepted), max(accepted)],
        "round_seconds": statistics.median(one.seconds for one in host.figures.values()),
        "unfinished": swarm.unfinished(),
        "quarantined": len(vote_set.disputes.quarantined),
        "swarm_seconds": round(swarm.seconds),
        "cpu_seconds": round(time.process_time() - began),
        **swarm.counts,
    }


def churn(scenario: Scenario, control: Scenario) -> list[dict[str, Any]]:
    """The product's rules in one swarm, and in a smaller one each rule of a control."""
    rows = []
    for rule in RULES:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(played(scenario if rule == next(iter(RULES)) else control, rule, Path(folder)))
        row = rows[-1]
        print(
            f"{rule:17} {row['rounds']} rounds, different states in {len(row['split'])} of them; {row['roots']:,} "
            f"states at nodes, {row['states fetched']} of them fetched, {row['left']} nodes left and as many came; "
            f"{row['unfinished']} nodes did not come to the last state",
            flush=True,
        )
    return rows
