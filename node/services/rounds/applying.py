"""Rounds, as every node of a run with [diloco] follows them: lists in, outer states out.

A round is over when a quorum of validators has closed one list of contributions. Everybody fetches those and adds them,
which makes the next outer state with the same bits everywhere; so nobody announces it. A node that is behind, or new,
takes the state that the list names from whoever has it. Where contributions are learnt from rollouts, each node makes
the bf16 image of every state, too: the policy that is sampled with, which nobody announces either.
"""

from pathlib import Path
from typing import Any, Self

import msgspec
import structlog
import trio

from node.bounded_dict import BoundedDict
from node.changes import Changes
from node.services.base import Service
from node.services.context import Context
from node.services.rounds.adding import Adding, Figures, Outer
from node.services.rounds.states import OuterFiles, made_policy
from node.services.rounds.votes import Votes
from node.state.files import write_whole
from node.status_schema import ProcessPart
from node.swarm.register import RegisteredWork
from node.swarm.vote_set import FileState
from node.training.client import TrainerProcess
from node.training.jobs import JobDirectory, StartRound
from node.training.outer import OuterStateFile
from node.training.spool import Spool
from node.weights.policy_cache import HeldPolicy
from protocol.agreement import Proposal
from protocol.errors import IntellectError
from protocol.policy import PolicyManifest, policy_root
from protocol.pretraining import Diloco

log = structlog.get_logger()


class Rounds(Service):
    """One per node; others ask it for the newest outer state. process: the learner's, which does `jobs`; learns:
    whether it is asked for more than the model's shapes; fetch_seconds: for one file."""

    name = "rounds"

    def __init__(
        self,
        context: Context,
        process: TrainerProcess,
        spool: Spool,
        jobs: JobDirectory,
        *,
        learns: bool = True,
        fetch_seconds: float = 60.0,
    ) -> None:
        self._fetch_seconds = fetch_seconds
        spec = context.run.spec
        assert spec.diloco is not None  # a run of this kind was checked for it
        self._context, self.process, self.spool, self._learns = context, process, spool, learns
        self._replicas = spec.replicas
        self.rules: Diloco = spec.diloco
        self.last = spec.recipe.steps
        self.jobs = jobs
        self.own_bytes = 0
        """Of what a peer keeps for itself from one round to the next, at most."""
        self.moved = Changes()
        self.adding = Adding(context, spec.diloco, fetch_seconds)
        self.votes = Votes(context)
        self.votes.heard.follow(self._heard)
        self.files = OuterFiles(spool.root / "rounds")
        self.outer: Outer | None = None
        self.before: Outer | None = None
        remembered = 256  # rounds whose figures are kept
        self.figures: BoundedDict[int, Figures] = BoundedDict(remembered)
        self.included: BoundedDict[bytes, int] = BoundedDict(remembered * 16)
        """Contribution -> the round in whose list it stands."""
        self.norms: BoundedDict[bytes, float] = BoundedDict(remembered * 16)
        """Of contributions that this node looked at."""
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
        if self._replicas:
            write_whole(self.spool.peers_path, str(self._replicas).encode())
        nursery.start_soon(self.jobs.run)
        nursery.start_soon(self.process.run)
        self._context.progress.enter("model", "the learner loads the model")
        began = await self.jobs.ask("start", StartRound())
        self.own_bytes = began["own_bytes"]
        self.adding.heed_model(began["shapes"])
        # A worker that samples needs the model's shapes and the first outer state, and no learner from here on.
        if not self._learns:
            self.process.finish()
        for path in await trio.to_thread.run_sync(self.files.whole):  # what was made from the older ones is judged yet
            await self._open(path)
        nursery.start_soon(self.run)

    async def run(self) -> None:
        self._context.progress.enter("rounds", self.activity)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.votes.run)
            await self._catch_up()
            while not self.over:
                # Taken before the look, which waits for others: what is decided meanwhile must not be missed.
                moved = self.moved.next
                if not await self._advance():
                    await moved.wait()

    async def _catch_up(self) -> None:
        """Hear first how far the others are: a newcomer is told the oldest lists first, and would make states that are
        history."""
        catch_up = 10.0  # seconds, at most, in which a node that begins hears how far the others are
        heard_within = 1.0  # seconds until a heartbeat that was heard stands in the table of members
        with trio.move_on_after(catch_up):
            while not self._has_heard():
                heard = self.votes.heard.next
                with trio.move_on_after(heard_within):
                    await heard.wait()
        self.caught_up.set()

    def _has_heard(self) -> bool:
        """Whether the newest list is here, going by the round in which a quorum of validators says to be."""
        membership, own = self._context.membership, self._context.key.address
        # By the table, which knows only what was said since: a word that is handed on later says an older round.
        members = [membership.table.get(node) for node in membership.validators if node != own]
        said = [self.newest] * (own in membership.validators)
        rounds = sorted(said + [one.beat.policy_step for one in members if one and one.beat], reverse=True)
        quorum = self.votes.quorum
        return len(rounds) >= quorum and rounds[quorum - 1] <= max(self.newest + 1, self.furthest)

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
        return max([self.newest, *(at + 1 for at in self.votes.book.decided())])

    async def newer_than(self, round_: int) -> Outer:
        """The outer state of the first later round that is here."""
        await self.moved.until(lambda: self.newest > round_)
        assert self.outer is not None  # it is newer
        return self.outer

    async def next_round(self, after: int) -> tuple[int, Outer] | None:
        """The first round later than `after` whose steps can begin here, and the outer state that they begin at; None
        when the last one is over. With fragments the next round's begin while this one is decided."""
        while not self.over:
            moved, kept = self.moved.next, {one.round: one for one in (self.outer, self.before) if one}
            for round_ in range(max(self.newest, after + 1), min(self.newest + 2, self.last)):
                if (begins := kept.get(self.rules.begins_at(round_))) is not None:
                    return round_, begins
            await moved.wait()
        return None

    def has_accepted(self, work: RegisteredWork) -> bool:
        """Whether the pool accepted a contribution, going by verdicts or by the list that names it."""
        state = self._context.state.vote_set.state(work.id)
        return state is FileState.ACCEPTED or work.commitment.file_root in self.included

    def _heard(self) -> None:
        if self.furthest > self.newest:
            self.moved.tell()

    # from one outer state to the next

    async def _advance(self) -> bool:
        """Apply what is decided, or take a later state; False where there is nothing to do."""
        assert self.outer is not None  # `start` opened one
        own = self.outer.round
        decided = {at: one for at, one in self.votes.book.decided().items() if at >= own}
        if not decided:
            return False
        proposal, newest = decided.get(own), max(decided)
        pause = 1.0
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
            await trio.sleep(pause)
        return True

    async def _apply(self, proposal: Proposal) -> None:
        """Fetch what the list names, and make the next outer state of it."""
        assert self.outer is not None  # as its caller
        outer, files = self.outer, proposal.files
        paths = await self.adding.fetch(files)
        figures = await trio.to_thread.run_sync(self.adding.add, outer, paths, self.files.path(outer.round + 1))
        seconds = round(self._context.clock.monotonic() - outer.opened, 3)
        self.figures[outer.round] = msgspec.structs.replace(figures, seconds=seconds)
        self.included.update(dict.fromkeys(files, outer.round))
        log.info("round.applied", round=outer.round, contributions=figures.contributions, loss=figures.loss)
        await self._open(self.files.path(outer.round + 1))

    async def batches_of(self, round_: int) -> tuple[bytes, ...] | None:
        """The manifests that contributions in a round's list name; None where no list of it is known. Of a round that
        was not applied here the contributions are fetched. Raises TrainingError where one cannot be had, and OwnFailure
        where this machine cannot take it."""
        figures, decided = self.figures.get(round_), self.votes.book.decided().get(round_)
        if figures is not None or decided is None:
            return figures.batches if figures is not None else None
        with self._context.blobs.holding(decided.files):
            paths = await self.adding.fetch(decided.files)
            return await trio.to_thread.run_sync(self.adding.named_in, round_, paths)

    async def _jump(self, round_: int, proposal: Proposal) -> None:
        """Take a round's outer state from whoever has it: it must be the one that the quorum named."""
        members = self._context.membership.addresses()
        path = await self._context.blobs.fetch(
            proposal.state, members, max_size=proposal.size, timeout=self._fetch_seconds
        )
        await trio.to_thread.run_sync(self.files.adopt, path, round_, proposal.outer)
        log.info("round.fetched", round=round_)
        self._context.progress.tell("outer", f"the outer state of round {round_} came from other members")
        await self._open(self.files.path(round_))

    async def _open(self, path: Path) -> None:
        """Begin the round of an outer state that is here: keep it for others, forget old ones."""
        found = await trio.to_thread.run_sync(OuterStateFile, path)
        info = await self._context.blobs.add(path)
        if self._replicas:
            await self._hold(path)
        self.before, old = self.outer, self.outer
        self.outer = Outer(found.round, found.root, path, info.root, info.size, self._context.clock.monotonic())
        # After a jump there is no state of the round before to compare late contributions with.
        if old is not None and old.round + 1 != found.round:
            self.before = None
        self.votes.book.begin(found.round)
        self.adding.roots[found.round] = found.root
        log.info("round.opened", round=found.round, root=found.root.hex())
        self._context.jury.learn(found.round, found.root, outer=True)
        await trio.to_thread.run_sync(self.files.forget, found.round)
        self.moved.tell()

    async def _hold(self, outer: Path) -> None:
        """Make an outer state's image, and work with it as with any policy."""
        image = self.spool.root / "image.safetensors"
        round_, described = await trio.to_thread.run_sync(made_policy, outer, image)
        info = await self._context.blobs.add(image)
        image.unlink(missing_ok=True)
        # Of the own store, which nobody else need be asked for: the shelf works with the store's file.
        path = await self._context.blobs.fetch(info.root, (), max_size=info.size, timeout=self._fetch_seconds)
        root, run = policy_root(round_, described.tensors), self._context.run.root
        manifest = PolicyManifest(run, round_, root, described.tensors, info.root, info.size)
        self._context.policy_cache.put(HeldPolicy(round_, root, path, manifest))
        self._context.jury.learn(round_, root)
        log.info("policy.made", round=round_, root=root.hex())

    # what is told

    def beat(self) -> dict[str, Any]:
        if self.outer is None:
            return {}
        return {"policy_step": self.outer.round, "outer": self.outer.root}

    def activity(self) -> str:
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
            "of_rollouts": bool(self._replicas),
            "tokens_per_second": round(newest.tokens / newest.seconds, 1) if newest and newest.seconds else None,
            "bits_per_parameter": round(newest.bits, 4) if newest else None,
            "contributions": newest.contributions if newest else None,
            "outer_states": {"equal": 1 + sum(compared), "of": 1 + len(compared)},
            "peers": peers,
            "losses": [(one.round, one.loss) for one in self.figures.values() if one.loss is not None],
        }
        run = {"step": self.outer.round, "policy_root": self.outer.root.hex()}
        process = ProcessPart(self.process.name, self.process.pid, self.process.restarts)
        return {"pretraining": told, "run": run, "processes": [process]}

    def _peers(self) -> list[dict[str, Any]]:
        """The other members that live, as their heartbeats say. equal: whether their outer state is this node's of that
        round, None if that is not known here."""
        context, found = self._context, list[dict[str, Any]]()
        assert self.outer is not None  # as its caller
        inside = {work.node for work in self.works()}
        for node, beat in context.membership.beats(context.clock.monotonic()).items():
            if node == context.key.address:
                continue
            own = self.adding.roots.get(beat.policy_step)
            found.append(
                {
                    "address": node,
                    "replica_id": beat.replica_id,
                    "round": beat.policy_step,
                    "in": node in inside,
                    "equal": None if own is None or not beat.outer else own == beat.outer,
                }
            )
        return found

    def measured(self, contribution: bytes, norm: float) -> None:
        """A look at a contribution found this norm."""
        self.norms[contribution] = norm

    def works(self) -> list[RegisteredWork]:
        """The contributions to this round, and the late ones to the one before."""
        assert self.outer is not None  # `start` opened one
        counted = range(max(self.newest - self.adding.late, 0), self.newest + 1)
        register = self._context.state.register
        return [
            work
            # `addresses` are the other members: this node's own works count as well.
            for node in [*self._context.membership.addresses(), self._context.key.address]
            for work in register.of(node)
            if work.round in counted and work.commitment.file_root not in self.included
        ]


def in_words(error: IntellectError | OSError) -> str:
    """What hinders a round for now."""
    if isinstance(error, IntellectError):
        return f"{error.what}: {error.why}"
    return f"{error.filename or 'the disk'}: {error.strerror or error}; free space there, it is tried again"
