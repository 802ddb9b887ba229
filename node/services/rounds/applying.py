"""Rounds, as every node of a run with [diloco] follows them: cuts in, outer states out.

A round is over when a quorum of validators has closed one list of contributions. Everybody fetches those and adds them,
which makes the next outer state with the same bits everywhere; so nobody announces it. A node that is behind, or new,
takes the state that the cut names from whoever has it. Where contributions are learnt from rollouts, each node makes
the bf16 image of every state, too: the policy that is sampled with, which nobody announces either.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
import structlog
import trio
from blake3 import blake3

from node.recent import Recent
from node.services.base import Service, wait_until
from node.services.context import Context
from node.state.files import mapped, write_whole
from node.swarm.ballots import FileState
from node.swarm.register import Work
from node.swarm.roundbook import RoundBook
from node.training.client import TrainerProcess
from node.training.errors import TrainingError
from node.training.jobs import Jobs, Start, Train
from node.training.length import without_length
from node.training.outer import StateFile, apply_round, write_policy
from node.training.spool import Spool
from node.weights.images import DescribedImage, describe_image
from node.weights.keeper import HeldPolicy
from protocol.agreement import Bench, Proposal, quorum_of
from protocol.contribution import (
    Contribution,
    ContributionHeader,
    Expected,
    decode_contribution,
    decode_header,
    expected_of,
    most_bytes,
)
from protocol.errors import IntellectError
from protocol.exchange import ContributionError, Form, form_of
from protocol.messages import CutSigned, Signed, openers, signature_of
from protocol.policy import PolicyManifest, policy_root
from protocol.pretraining import Diloco
from protocol.rounds import parts_of

log = structlog.get_logger()
FETCH_TIMEOUT = 60.0
PAUSE = 1.0
POLL = 0.1
CATCH_UP = 10.0
"""Seconds, at most, in which a node that begins hears how far the others are."""
KEPT_STATES = 2
REMEMBERED = 256
"""Rounds whose root and figures are kept."""


class Outer(NamedTuple):
    """An outer state that is here. state, size: of its file as a blob; opened: when it was made here, monotonic
    seconds."""

    round: int
    root: bytes
    path: Path
    state: bytes
    size: int
    opened: float


class Figures(msgspec.Struct, frozen=True):
    """One round that is over, as its contributions say. loss: of their last steps, weighted by tokens; tokens: or
    rollouts, learnt from; bits: of the largest contribution, per parameter; seconds: that it lasted here; batches:
    roots of the manifests that they name."""

    round: int
    loss: float | None
    tokens: int
    contributions: int
    bits: float
    seconds: float = 0.0
    batches: tuple[bytes, ...] = ()


class Rounds(Service):
    """One per node; others ask it for the newest outer state. process: the learner's, which does `jobs`; learns:
    whether it is asked for more than the model's shapes."""

    name = "rounds"

    def __init__(self, context: Context, process: TrainerProcess, spool: Spool, *, learns: bool = True) -> None:
        spec = context.run.spec
        assert spec.diloco is not None  # noqa: S101 - a run of this kind was checked for it
        self._context, self._process, self.spool, self._learns = context, process, spool, learns
        self._seats, self._batch = spec.seats, spec.rollouts_per_batch
        self.rules: Diloco = spec.diloco
        self.late = 0 if spec.seats or self.rules.fragments > 1 else 1
        """Rounds by which a contribution may be late. Of rollouts none: what it learnt from is dealt anew by then. Nor
        with fragments: the next round exchanges other tensors."""
        self.form: Form = form_of(spec.diloco)
        self.last = spec.recipe.steps
        self.jobs = Jobs(spool)
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.arithmetic = ""
        self._parts: list[dict[str, tuple[int, ...]]] = []
        """What a round exchanges, fragment by fragment."""
        self.most_bytes = 0
        """Of a contribution."""
        self.own_bytes = 0
        """Of what a peer keeps for itself from one round to the next, at most."""
        self.outer: Outer | None = None
        self.before: Outer | None = None
        self.figures: Recent[int, Figures] = Recent(REMEMBERED)
        self.included: Recent[bytes, int] = Recent(REMEMBERED * 16)
        """Contribution -> the round in whose cut it stands."""
        self.norms: Recent[bytes, float] = Recent(REMEMBERED * 16)
        """Of contributions that this node looked at."""
        # Without its length: what was contributed before a run is lengthened stays a contribution to it.
        self._root = blake3(without_length(spec)).digest()
        self._book = RoundBook(self._in_office(), context.key.address, self.last)
        self._roots: Recent[int, bytes] = Recent(REMEMBERED)
        self._moved = trio.Event()
        self.caught_up = trio.Event()

    @classmethod
    async def open(cls, place: Any) -> Self:
        return place.rounds

    async def start(self, nursery: trio.Nursery) -> None:
        """Ready once the outer state with which this node begins is here. Raises TrainingError if the spool is another
        run's."""
        run = self._context.run
        await trio.to_thread.run_sync(self.spool.prepare, run.encoded, run.assets)
        await trio.to_thread.run_sync(self.jobs.prepare)
        if self._seats:
            write_whole(self.spool.peers_path, str(self._seats).encode())
        nursery.start_soon(self._process.run)
        self._context.progress.enter("model", "the learner loads the model")
        began = await self.jobs.ask("start", Start())
        self.shapes = {name: tuple(shape) for name, shape in began["shapes"].items()}
        self.arithmetic, self.own_bytes = began["arithmetic"], began["own_bytes"]
        parts = parts_of(self.shapes, self.rules.fragments)
        self._parts = [{name: self.shapes[name] for name in part} for part in parts]
        self.most_bytes = max(most_bytes(part, self.form) for part in self._parts)
        # A worker that samples needs the model's shapes and the first outer state, and no learner from here on.
        if not self._learns:
            self._process.finish()
        for path in await trio.to_thread.run_sync(self._whole):  # what was made from the older ones is judged yet
            await self._open(path)
        nursery.start_soon(self.run)

    async def run(self) -> None:
        self._context.progress.enter("rounds", self.doing)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._hear)
            await self._catch_up()
            while not self.over:
                # Taken before the look, which waits for others: what is decided meanwhile must not be missed.
                moved = self._moved
                if not await self._advance():
                    await moved.wait()

    async def _catch_up(self) -> None:
        """Hear first how far the others are: a newcomer is told the oldest cuts first, and would make states that are
        history."""
        await wait_until(self._has_heard, CATCH_UP, POLL)
        self.caught_up.set()

    def _has_heard(self) -> bool:
        """Whether the newest cut is here, going by the round in which a quorum of validators says to be."""
        membership, own = self._context.membership, self._context.key.address
        members = [membership.table.get(node) for node in membership.validators if node != own]
        said = [self.newest] * (own in membership.validators)
        rounds = sorted(said + [one.beat.policy_step for one in members if one and one.beat], reverse=True)
        if len(rounds) < self.quorum:
            return False
        return rounds[self.quorum - 1] <= max(self.newest + 1, self.furthest)

    @property
    def quorum(self) -> int:
        """Words that decide a round, of those who are in office now."""
        return quorum_of(len(self._context.membership.validators), self._context.quorum)

    @property
    def over(self) -> bool:
        return self.outer is not None and self.outer.round >= self.last

    @property
    def newest(self) -> int:
        """The round that runs here, -1 before the first."""
        return self.outer.round if self.outer else -1

    @property
    def furthest(self) -> int:
        """The newest round that is known to have begun anywhere: contributions to those before it count no more, but
        for `late` of them."""
        return max([self.newest, *(at + 1 for at in self.book.decided())])

    def _expected(self, outer: Outer) -> Expected:
        """What a contribution in a cut may be: of its round, or late by one. Of those that began before this state the
        quorum has seen that they begin at the right one; a node that has just come does not know it."""
        late = {outer.round - 1: None} if self.late else {}
        root = outer.root if self.rules.begins_at(outer.round) == outer.round else None
        return expected_of(self.rules, self._root, late | {outer.round: root}, self._batch)

    @property
    def book(self) -> RoundBook:
        """What validators in office say of rounds."""
        self._book.seat(self._in_office())
        return self._book

    def _in_office(self) -> Bench:
        return Bench(self._context.membership.validators, self.quorum)

    def root_of(self, round_: int) -> bytes | None:
        """The outer state's root with which a round began here."""
        return self._roots.get(round_)

    async def newer_than(self, round_: int) -> Outer:
        """The outer state of the first later round that is here."""
        while True:
            moved = self._moved
            if self.outer is not None and self.outer.round > round_:
                return self.outer
            await moved.wait()

    async def next_round(self, after: int) -> tuple[int, Outer] | None:
        """The first round later than `after` whose steps can begin here, and the outer state that they begin at; None
        when the last one is over. With fragments the next round's begin while this one is decided."""
        while not self.over:
            moved, kept = self._moved, {one.round: one for one in (self.outer, self.before) if one}
            for round_ in range(max(self.newest, after + 1), min(self.newest + 2, self.last)):
                if (begins := kept.get(self.rules.begins_at(round_))) is not None:
                    return round_, begins
            await moved.wait()
        return None

    async def train(
        self, round_: int, seat: int, until: float, *, fresh: bool = False, steps: int = 0
    ) -> dict[str, Any]:
        """Make a seat's steps of a round; what the learner says of them. until: unix seconds; steps: at most, 0: the
        run's. Raises TrainingError."""
        return await self.jobs.ask(f"train-{round_:06d}", Train(round_, seat, until, fresh, steps))

    def has_accepted(self, work: Work) -> bool:
        """Whether the pool accepted a contribution, going by verdicts or by the cut that names it."""
        state = self._context.state.ballots.state(work.id)
        return state is FileState.ACCEPTED or work.commitment.file_root in self.included

    def header_of(self, path: Path, round_: int) -> ContributionHeader:
        """What a contribution to a round says of itself. Blocking. Raises ContributionError, OSError."""
        begins = self._roots.get(self.rules.begins_at(round_))
        expected = expected_of(self.rules, self._root, {round_: begins}, self._batch)
        return decode_header(mapped(path), expected)[0]

    def own_states(self) -> list[Path]:
        """What this node's contributions to the newest rounds left it, oldest first."""
        return sorted(self._folder.glob("[0-9]*/own-*.safetensors"))

    # what validators say

    async def _hear(self) -> None:
        async for vote in self._context.facts.subscribe(CutSigned):
            self.note(vote)

    def note(self, vote: Signed[CutSigned]) -> None:
        """Every word of whoever is in office counts. Who says two things in one place is believed no more in what it
        finds; both envelopes show it."""
        message, author, ballots = vote.message, vote.author, self._context.state.ballots
        book, word = self.book, message.word
        # Each is a recovery on the event loop: of more than there are validators nothing is looked at.
        few = 0 < len(message.shown) <= len(self._context.membership.validators)
        if few and message.round <= self.last and not book.of(message.round).knows(word):
            for opener, proof in openers(self._context.domain, message):
                book.hear(opener, message.round, word._replace(closed=False), proof)
        proof = signature_of(vote)
        if not book.hear(author, message.round, word, proof) and author not in ballots.disputes.quarantined:
            others = [one for one in self._context.facts.standing(CutSigned) if one.author == author]
            same = dict.fromkeys(one.raw for one in (*others, vote) if _place(one.message) == _place(message))
            ballots.disputes.quarantine(author, "it signed two different cuts in one ballot", tuple(same))
        if self.furthest > self.newest:
            self._move()

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    # from one outer state to the next

    async def _advance(self) -> bool:
        """Apply what is decided, or take a later state; False where there is nothing to do."""
        assert self.outer is not None  # noqa: S101 - `start` opened one
        own = self.outer.round
        decided = {at: one for at, one in self.book.decided().items() if at >= own}
        if not decided:
            return False
        proposal, newest = decided.get(own), max(decided)
        try:
            # who is one round behind is only slow; who is further would apply rounds that nobody may hold any more
            if proposal is not None and proposal.outer == self.outer.root and newest - own <= 1:
                await self._apply(proposal)
            else:
                await self._jump(newest, decided[newest])
        except (IntellectError, OSError) as error:
            why = in_words(error)
            log.warning("round.not_applied", round=own, why=why)
            self._context.progress.trouble(f"round {own} is not applied yet: {why}")
            await trio.sleep(PAUSE)
        return True

    async def _apply(self, proposal: Proposal) -> None:
        """Fetch what the cut names, and make the next outer state of it."""
        assert self.outer is not None  # noqa: S101 - as its caller
        outer, paths = self.outer, dict[bytes, Path]()
        async with trio.open_nursery() as nursery:
            for root in proposal.files:
                nursery.start_soon(self._fetch, root, paths)
        if len(paths) < len(proposal.files):
            missing = len(proposal.files) - len(paths)
            raise TrainingError(
                f"{missing} contributions of the round cannot be had", "no member hands them over", "it is tried again"
            )
        # In the order of the cut: added in another one, float32 sums would have other bits.
        figures = await trio.to_thread.run_sync(self._added, outer, [paths[root] for root in proposal.files])
        seconds = round(self._context.clock.monotonic() - outer.opened, 3)
        self.figures[outer.round] = msgspec.structs.replace(figures, seconds=seconds)
        self.included.update(dict.fromkeys(proposal.files, outer.round))
        log.info("round.applied", round=outer.round, contributions=figures.contributions, loss=figures.loss)
        await self._open(self._path(outer.round + 1))

    async def batches_of(self, round_: int) -> tuple[bytes, ...] | None:
        """The manifests that contributions in a round's cut name; None where no cut of it is known. Of a round that was
        not applied here the contributions are fetched. Raises TrainingError where one cannot be had."""
        figures, decided = self.figures.get(round_), self._book.decided().get(round_)
        if figures is not None or decided is None:
            return figures.batches if figures is not None else None
        paths = dict[bytes, Path]()
        with self._context.blobs.holding(decided.files):
            for root in decided.files:
                await self._fetch(root, paths)
            if len(paths) < len(decided.files):
                what, why = f"contributions of round {round_} cannot be had", "no member hands them over"
                raise TrainingError(what, why, "they are not asked for again")
            return await trio.to_thread.run_sync(self._named_in, round_, list(paths.values()))

    def _named_in(self, round_: int, paths: list[Path]) -> tuple[bytes, ...]:
        found = list[bytes]()
        for path in paths:
            try:
                found += self.header_of(path, round_).batches
            except ContributionError as error:  # everybody left it out
                log.info("contribution.not_read", round=round_, why=str(error))
        return tuple(found)

    async def _fetch(self, root: bytes, paths: dict[bytes, Path]) -> None:
        members = self._context.membership.addresses()
        try:
            paths[root] = await self._context.blobs.fetch(
                root, members, max_size=self.most_bytes, timeout=FETCH_TIMEOUT
            )
        except IntellectError as error:
            log.info("contribution.unavailable", root=root.hex()[:16], why=error.why)

    def _added(self, outer: Outer, paths: list[Path]) -> Figures:
        """Apply; what cannot be decoded is left out, by everybody alike. In a thread."""
        expected, found, sizes = self._expected(outer), list[Contribution](), [0]
        shapes = self._parts[outer.round % len(self._parts)]
        for path in paths:
            try:
                one = decode_contribution(mapped(path), shapes, self.form, expected)
                one.check()
            except ContributionError as error:
                log.warning("contribution.left_out", round=outer.round, why=error.why)
                continue
            found.append(one)
            sizes.append(path.stat().st_size)
        apply_round(StateFile(outer.path), found, self.rules, self._path(outer.round + 1))
        tokens = sum(one.header.tokens for one in found)
        loss = sum(one.header.loss_last * one.header.tokens for one in found) / tokens if tokens else None
        named = tuple(root for one in found for root in one.header.batches)
        parameters = sum(math.prod(shape) for shape in self.shapes.values())
        return Figures(outer.round, loss, tokens, len(found), 8 * max(sizes) / parameters, batches=named)

    async def _jump(self, round_: int, proposal: Proposal) -> None:
        """Take a round's outer state from whoever has it: it must be the one that the quorum named."""
        members = self._context.membership.addresses()
        path = await self._context.blobs.fetch(proposal.state, members, max_size=proposal.size, timeout=FETCH_TIMEOUT)
        await trio.to_thread.run_sync(self._adopt, path, round_, proposal.outer)
        log.info("round.fetched", round=round_)
        self._context.progress.tell("outer", f"the outer state of round {round_} came from other members")
        await self._open(self._path(round_))

    def _adopt(self, path: Path, round_: int, root: bytes) -> None:
        found = StateFile(path)
        found.check()
        # Its bytes were those of the blob; whether they are the named state only its own root says.
        if (found.round, found.root) != (round_, root):
            raise TrainingError("an outer state is another one than the quorum named", str(path), "it is tried again")
        # A copy: the store may let go of the blob at any moment.
        write_whole(self._path(round_), path.read_bytes())

    async def _open(self, path: Path) -> None:
        """Begin the round of an outer state that is here: keep it for others, forget old ones."""
        found = await trio.to_thread.run_sync(StateFile, path)
        info = await self._context.blobs.add(path)
        if self._seats:
            await self._hold(path)
        self.before, old = self.outer, self.outer
        self.outer = Outer(found.round, found.root, path, info.root, info.size, self._context.clock.monotonic())
        # After a jump there is no state of the round before to compare late contributions with.
        if old is not None and old.round + 1 != found.round:
            self.before = None
        self._book.begin(found.round)
        self._roots[found.round] = found.root
        log.info("round.opened", round=found.round, root=found.root.hex())
        self._context.jury.learn(found.round, found.root, outer=True)
        await trio.to_thread.run_sync(self._forget, found.round)
        self._move()

    async def _hold(self, outer: Path) -> None:
        """Make an outer state's image, and work with it as with any policy."""
        image = self.spool.root / "image.safetensors"
        round_, described = await trio.to_thread.run_sync(_made_policy, outer, image)
        info = await self._context.blobs.add(image)
        image.unlink(missing_ok=True)  # noqa: ASYNC240 - one local file
        # Of the own store, which nobody else need be asked for: the shelf works with the store's file.
        path = await self._context.blobs.fetch(info.root, (), max_size=info.size, timeout=FETCH_TIMEOUT)
        root, run = policy_root(round_, described.tensors), self._context.run.root
        manifest = PolicyManifest(run, round_, root, described.tensors, info.root, info.size)
        self._context.shelf.put(HeldPolicy(round_, root, path, manifest))
        self._context.jury.learn(round_, root)
        log.info("policy.made", round=round_, root=root.hex())

    def _whole(self) -> list[Path]:
        """The newest outer states that are whole here, oldest first. (The learner made that of round 0 again.)"""
        whole = list[Path]()
        newest = -1
        for path in sorted(self._folder.glob("outer-*.safetensors"), reverse=True):
            try:
                found = StateFile(path)
                found.check()
            except TrainingError as error:
                log.warning("outer_state.damaged", path=str(path), why=error.why)
                path.unlink()
            else:
                newest = max(newest, found.round)
                whole = [path, *whole] if found.round >= newest - KEPT_STATES else whole
        if whole:
            return whole
        raise TrainingError("no outer state is here", str(self._folder), "start the node again")

    def _forget(self, round_: int) -> None:
        for path in self._folder.iterdir():
            number = path.name.removeprefix("outer-").removesuffix(".safetensors")
            if number.isdigit() and int(number) < round_ - KEPT_STATES:
                for inner in path.iterdir() if path.is_dir() else ():
                    inner.unlink()
                path.rmdir() if path.is_dir() else path.unlink()

    @property
    def _folder(self) -> Path:
        return self.spool.root / "rounds"

    def _path(self, round_: int) -> Path:
        return self._folder / f"outer-{round_:06d}.safetensors"

    # what is told

    def beat(self) -> dict[str, Any]:
        if self.outer is None:
            return {}
        return {"policy_step": self.outer.round, "outer": self.outer.root}

    def doing(self) -> str:
        """What the round waits for, in words."""
        if self.outer is None or self.over:
            return "the last round is over"
        return f"round {self.outer.round + 1} of {self.last}"

    def status(self) -> dict[str, Any]:
        if self.outer is None:
            return {}
        newest = next(reversed(self.figures.values()), None)
        peers = self._peers()
        compared = [one["equal"] for one in peers if one["equal"] is not None]
        told = {
            "round": self.outer.round,
            "rounds": self.last,
            "outer_root": self.outer.root.hex(),
            "loss": newest.loss if newest else None,
            "of_rollouts": bool(self._seats),
            "tokens_per_second": round(newest.tokens / newest.seconds, 1) if newest and newest.seconds else None,
            "bits_per_parameter": round(newest.bits, 4) if newest else None,
            "contributions": newest.contributions if newest else None,
            "replicas": {"equal": 1 + sum(compared), "of": 1 + len(compared)},
            "peers": peers,
            "losses": [(one.round, one.loss) for one in self.figures.values() if one.loss is not None],
        }
        run = {"step": self.outer.round, "policy_root": self.outer.root.hex()}
        process = {"name": self._process.name, "pid": self._process.pid, "restarts": self._process.restarts}
        return {"pretraining": told, "run": run, "processes": [process]}

    def _peers(self) -> list[dict[str, Any]]:
        """The other members that live, as their heartbeats say. equal: whether their outer state is this node's of that
        round, None if that is not known here."""
        context, found = self._context, list[dict[str, Any]]()
        assert self.outer is not None  # noqa: S101 - as its caller
        inside = {work.node for work in self.works()}
        for node, beat in context.membership.beats(context.clock.monotonic()).items():
            if node == context.key.address:
                continue
            own = self._roots.get(beat.policy_step)
            found.append(
                {
                    "address": node,
                    "seat": beat.seat,
                    "round": beat.policy_step,
                    "in": node in inside,
                    "equal": None if own is None or not beat.outer else own == beat.outer,
                }
            )
        return found

    def works(self) -> list[Work]:
        """The contributions to this round, and the late ones to the one before."""
        assert self.outer is not None  # noqa: S101 - `start` opened one
        counted = range(max(self.newest - self.late, 0), self.newest + 1)
        register = self._context.state.register
        return [
            work
            # `addresses` are the other members: this node's own works count as well.
            for node in [*self._context.membership.addresses(), self._context.key.address]
            for work in register.of(node)
            if work.round in counted and work.commitment.file_root not in self.included
        ]


def _made_policy(outer: Path, image: Path) -> tuple[int, DescribedImage]:
    state = StateFile(outer)
    write_policy(state, image)
    return state.round, describe_image(image)


def in_words(error: IntellectError | OSError) -> str:
    """What hinders a round for now."""
    if isinstance(error, IntellectError):
        return f"{error.what}: {error.why}"
    return f"{error.filename or 'the disk'}: {error.strerror or error}; free space there, it is tried again"


def _place(message: CutSigned) -> tuple[int, int, bool]:
    return message.round, message.ballot, message.closed
