"""Judging contributions: form, effect and likeness of all, replay by lot. Judge, lots and court are those of rollouts.

A contribution is one group. Its look is a job of the learner's process: in the file's own arithmetic its steps come to
the same bits or its node did not make them, which costs the stake. In another arithmetic the two results may be so far
apart as honest ones are, and what is further costs the pay.

In a run with rollouts the same judge looks at files of them, with its engine. Of a contribution it then looks first at
the manifests that it names, and makes its batches for the replay.
"""

import struct
import tempfile
from pathlib import Path
from typing import Any, Self

import msgspec
import structlog
import trio

from node.bounded_dict import BoundedDict
from node.changes import Changes, side_by_side
from node.inference.client import EngineChild
from node.inference.link import OnProgress
from node.inference.wire import AnsweredMessage, Inspect, Inspected, LoadPolicy, R, ShardOrder, answer_to
from node.services.certifier import Certifier
from node.services.context import Context, owed
from node.services.judging.judge import OwnTrouble, Validator
from node.services.rounds.applying import Rounds
from node.services.rounds.batches import Batches
from node.services.training.stating import make
from node.services.workplace import Workplace
from node.state.files import as_named, mapped
from node.swarm.facts import PeerTold, WorkTouched
from node.swarm.register import RegisteredWork
from node.swarm.vote_set import FileState
from node.training.batch import encode_batch
from node.training.jobs import Check
from protocol.checks import Reason
from protocol.disputes import UNDECIDED
from protocol.earnings import contribution_units
from protocol.errors import IntellectError, OwnFailure
from protocol.exchange import ContributionError
from protocol.identity import Address, parse_address
from protocol.replicas import weight
from protocol.rounds import state_root
from protocol.statements import VerdictOutcome

log = structlog.get_logger()


Place = tuple[bytes, int]
"""Of a commitment: the outer state that it names, and its index there. Both together say which round."""


class ContributionJudge:
    """Looks at contributions, in an engine's place: one job of the learner's process each. batches: in a run with
    rollouts."""

    engine_name = "learner"

    def __init__(
        self, context: Context, rounds: Rounds, batches: Batches | None = None, *, claim_seconds: float = 6.0
    ) -> None:
        # So long the heartbeat that claims a replica may come after the contribution: the two travel by themselves.
        self._claim_seconds = claim_seconds
        self._context, self._rounds, self._batches = context, rounds, batches
        self._seen: BoundedDict[bytes, tuple[Place, str, int, Address]] = BoundedDict(512)
        """Contribution -> (round, path, replica, node)."""
        self._claims: dict[Address, BoundedDict[int, None]] = {}
        self._changed = Changes()
        rounds.moved.follow(self._changed.tell)

    async def hear(self) -> None:
        """Who claims which replica, and what the pool decides."""
        async for told in self._context.facts.subscribe(PeerTold, WorkTouched):
            if isinstance(told, PeerTold) and told.replica_id >= 0:
                # Replicas of one member that are remembered: who hops crowds out its own.
                self._claims.setdefault(told.author, BoundedDict(32))[told.replica_id] = None
            self._changed.tell()

    async def ask(
        self,
        request: AnsweredMessage[R],
        *,
        timeout: float,
        policy: LoadPolicy | None = None,
        on_progress: OnProgress | None = None,
    ) -> R:
        """request: Inspect, whose groups are (0,) or None for a replay. Raises TrainingError."""
        order: Any = request
        assert isinstance(order, Inspect) and policy is not None  # as the judge asks
        others = tuple(
            path
            for root, (place, path, _, _) in self._seen.items()
            if place == (order.policy_root, order.index) and root != order.file_root
        )
        replay = order.groups is None or bool(order.groups)
        job = Check(policy.step, order.path, others, replay)
        found = await self._look(order, job)
        if "replica_id" in found:
            await self._hear_claim(parse_address(order.node), found["replica_id"])
        return answer_to(request, self._inspected(order, found))

    async def _look(self, order: Inspect, job: Check) -> dict[str, Any]:
        """What the learner finds. Where the steps begin with a state of the peer's own, `state` says what is wrong with
        that: it must be what its node's last contribution left, and be handed over where the steps are made again."""
        name = f"check-{order.file_root.hex()[:32]}-{int(job.replay)}"
        found = await self._rounds.jobs.ask(name, job)
        if "fault" in found:  # a stake hangs on it, and this machine's disk may have turned a byte over
            same = lambda: as_named(mapped(Path(order.path)), order.file_root, "a contribution")
            await trio.to_thread.run_sync(same)
        if "inner" not in found:
            return found
        node, inner = parse_address(order.node), dict(zip(("before", "after"), found["inner"], strict=True))
        if self._rounds.own_bytes and (
            why := await self._broken_chain(node, job.round, bytes.fromhex(inner["before"]))
        ):
            return found | {"state": why}
        lacks, paths = found.get("lacks", ()), dict[str, str]()
        with tempfile.TemporaryDirectory(prefix="batches-", dir=self._rounds.spool.root) as folder:
            batches = tuple[str, ...]()
            if self._batches is not None:
                try:
                    batches = await self._made(self._batches, order, found, Path(folder), make_all="batches" in lacks)
                except OwnFailure:  # the peer has no part in it
                    raise
                except IntellectError as error:
                    return found | {"unusable": error.why}
            for which in lacks:
                if which in inner:
                    path = await self._had(bytes.fromhex(inner[which]), node, self._rounds.own_bytes)
                    paths[which] = str(path) if path else ""
            if missing := [which for which, path in paths.items() if not path]:
                seconds = self._context.run.spec.audit.delivery_seconds
                told = f"its state {missing[0]} its steps was not delivered within {seconds:g} seconds"
                return found | {"state": told}
            if not lacks:
                return found
            job = msgspec.structs.replace(job, replay=True, batches=batches, **paths)
            return await self._rounds.jobs.ask(name, job)

    async def _made(
        self, of: Batches, order: Inspect, found: dict[str, Any], folder: Path, *, make_all: bool
    ) -> tuple[str, ...]:
        """Files of a contribution's batches, none where no replay lacks them. Raises IntellectError where it may not
        have learnt from them, or a part cannot be had."""
        node, roots = parse_address(order.node), [bytes.fromhex(root) for root in found["batches"]]
        known = self._context.state.policies.find(order.policy_root)
        round_ = known.step if known else -1
        paths = list[str]()
        holders = [node, *self._context.state.validators()]
        for number, composed in enumerate(await of.of(order.policy_root, round_, found["replica_id"], node, roots)):
            if make_all:
                batch, path = await make(self._context, composed, holders), folder / f"{number}.batch"
                await trio.to_thread.run_sync(lambda batch=batch, path=path: path.write_bytes(encode_batch(batch)))
                paths.append(str(path))
        return tuple(paths)

    async def _broken_chain(self, node: Address, round_: int, begins: bytes) -> str:
        """Why a contribution may not begin with the state that it names; empty if it may."""
        was_here = self._rounds.rules.begins_at(round_ - 1) in self._rounds.adding.roots
        # Nothing is what a new replica begins with, and who starts again. Who was not here the round before cannot
        # tell.
        if begins == state_root(round_, ()) or (round_ > 0 and not was_here):
            return ""
        state = self._context.state
        works = [work for work in state.register.of(node) if work.round == round_ - 1]
        if self._rounds.rules.fragments > 1:
            # It holds weights, not moments alone: what nobody accepted must not come back in what is built on it.
            await self._decided(works)
            standing = [work for work in works if self._rounds.has_accepted(work)]
        else:
            standing = [work for work in works if state.vote_set.state(work.id) is not FileState.REJECTED]
        for work in standing:
            path = await self._had(work.commitment.file_root, node, self._rounds.adding.most_bytes)
            try:
                read = self._rounds.adding.header_of
                header = await trio.to_thread.run_sync(read, path, round_ - 1) if path else None
                if header is not None and header.inner[1] == begins:
                    return ""
            except OSError as error:  # what it left is here, and this machine cannot read it
                raise OwnFailure("a contribution cannot be read", str(error), "check the disk") from error
            except ContributionError as error:
                log.info("contribution.not_read", node=node, why=str(error))
        what = "left another one" if standing else "was not accepted" if works else "is not known"
        return f"its steps begin with a state of their own, and its node's contribution to the round before {what}"

    async def _decided(self, works: list[RegisteredWork]) -> None:
        """Wait until the pool has decided on works, at most `audit.delivery_seconds`; of a round that is over little
        is still to be heard."""
        vote_set, began = self._context.state.vote_set, trio.current_time()

        def is_open() -> bool:
            return any(vote_set.state(work.id) is FileState.OPEN for work in works)

        with trio.move_on_after(self._context.run.spec.audit.delivery_seconds) as patience:
            await self._changed.until(lambda: not is_open() or all(w.round < self._rounds.newest for w in works))
            patience.deadline = min(patience.deadline, began + self._claim_seconds)
            await self._changed.until(lambda: not is_open())

    async def _had(self, root: bytes, node: Address, most: int) -> Path | None:
        """A file that a peer owes, from it or another validator. As `owed`."""
        sources = lambda: [node, *self._context.state.validators()]
        seconds = self._context.run.spec.audit.delivery_seconds
        return await owed(self._context, root, sources, most, seconds, "state.unavailable")

    async def _hear_claim(self, node: Address, replica_id: int) -> None:
        with trio.move_on_after(self._claim_seconds):
            await self._changed.until(lambda: replica_id in self._claims.get(node, ()))

    def _inspected(self, order: Inspect, found: dict[str, Any]) -> Inspected:
        reason, detail, outcome = self._fault(order, found)
        # What breaks a rule takes no replica from anybody, and nothing is called its copy.
        if reason is Reason.NONE or reason is Reason.NO_GAIN:
            place = order.policy_root, order.index
            self._seen[order.file_root] = (place, order.path, found["replica_id"], parse_address(order.node))
        if "norm" in found:
            self._rounds.measured(order.file_root, found["norm"])
        replayed = "equal" in found
        return Inspected(
            outcome=int(outcome),
            reason=int(reason),
            detail=detail,
            tokens=found.get("tokens", 0),
            seconds=found.get("seconds", 0.0),
            group=0 if reason in (Reason.NOT_REPRODUCED, Reason.NO_GAIN) else -1,
            checked=(0,) if replayed else (),
            rewards=UNDECIDED,
            logprobs=struct.pack("<f", -max(found["after"], 0.0)) if replayed else b"",
            verifier=self.engine_name,
        )

    def _fault(self, order: Inspect, found: dict[str, Any]) -> tuple[Reason, str, VerdictOutcome]:
        if "fault" in found:
            return Reason.MALFORMED, found["fault"], VerdictOutcome.SLASH
        units = contribution_units(self._context.run.spec, found["tokens"])
        if units != order.units:
            return Reason.UNITS, f"it says {order.units} units outside and {units} inside", VerdictOutcome.SLASH
        if "unusable" in found:
            return Reason.BATCHES, found["unusable"], VerdictOutcome.REJECT
        if "state" in found:
            return Reason.INNER_STATE, found["state"], VerdictOutcome.REJECT
        copy = f"; it is {found['alike']:.3f} like another one of the round" if found["alike"] > 0.9 else ""
        # In the same arithmetic honest steps have the same bits, so this alone needs no measure.
        if found.get("same") and not found["equal"]:
            at = f" from stretch {found['wrong'][0]} on" if found["wrong"] else ""
            detail = f"its steps come to other bits here{at}, distance {found['distance']:.2g}{copy}"
            return Reason.NOT_REPRODUCED, detail, VerdictOutcome.SLASH
        if self._is_anothers(parse_address(order.node), (order.policy_root, order.index), found["replica_id"]):
            return Reason.NOT_LEASED, f"replica {found['replica_id']} is not its node's", VerdictOutcome.REJECT
        if found.get("equal"):
            return Reason.NONE, "", VerdictOutcome.ACCEPT
        # Of a contribution in another arithmetic from its replay here, as a share of it. Measured over ten inner steps:
        # 0.002 with other instructions, 0.07 in bfloat16, 0.58 for half of the steps (elsewhere 0.46). Longer rounds
        # were not.
        if "distance" in found and found["distance"] > 0.25:
            detail = f"its steps come {found['distance']:.2g} away from it here{copy}"
            return Reason.NO_GAIN, detail, VerdictOutcome.REJECT
        if "distance" not in found and found.get("own", 1.0) <= 0:
            return Reason.NO_GAIN, f"the loss on its own rows rises by {-found['own']:.3g}", VerdictOutcome.REJECT
        return Reason.NONE, "", VerdictOutcome.ACCEPT

    def _is_anothers(self, node: Address, place: Place, replica_id: int) -> bool:
        """Whether its node never claimed the replica, or somebody lighter claimed it and contributed from it. Of
        rollouts the pool's trainers learn."""
        stranger = self._batches is not None and not self._context.membership.is_trainer(node)
        if stranger or replica_id not in self._claims.get(node, ()):
            return True
        run = self._context.run.root
        return any(
            other != node and weight(run, replica_id, other) < weight(run, replica_id, node)
            for seen, _, at, other in self._seen.values()
            if seen == place and at == replica_id
        )


class ContributionValidator(Validator):
    """A validator of a run with rounds. engine: for the rollouts that it learns from, None where that is text."""

    def __init__(
        self,
        context: Context,
        rounds: Rounds,
        looks: ContributionJudge,
        *given: Any,
        certifier: Certifier,
        engine: EngineChild | None = None,
    ) -> None:
        super().__init__(context, engine or looks, None, *given, certifier=certifier)
        self._rounds, self._looks, self._samples = rounds, looks, engine is not None

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        learns = bool(place.context.run.spec.replicas)
        looks = ContributionJudge(place.context, place.rounds, place.batches if learns else None)
        given = place.context, place.rounds, looks, place.chain, place.scratch, place.tally
        return cls(*given, certifier=place.certifier, engine=place.engine if learns else None)

    async def _follow_policies(self) -> None:
        """Rounds are this run's policies."""
        round_ = -1
        while True:
            round_ = (await self._rounds.newer_than(round_)).round
            self.own_lots.policy(round_)

    async def _heed_others(self) -> None:
        others = [super()._heed_others] if self._samples else []
        await side_by_side(self._looks.hear, *others)

    def _engine_for(self, work: RegisteredWork) -> EngineChild:
        """Contributions to the learner, files of rollouts to the engine."""
        return self._looks if work.contribution else self._engine

    async def _basis(self, work: RegisteredWork) -> tuple[ShardOrder | None, LoadPolicy]:
        """The outer state that a contribution begins at, with its round, or the policy that a file was sampled with."""
        root = work.commitment.policy_root
        if not work.contribution:
            held = self._context.policy_cache.by_root(root)
            if held is None:
                raise OwnTrouble("its policy is not kept here", for_good=True)
            return None, held.load()
        oldest = self._rounds.newest - self._rounds.adding.late
        for outer in (self._rounds.outer, self._rounds.before):
            if outer is not None and outer.root == root and work.round >= oldest:
                return None, LoadPolicy(policy_root=outer.root, step=work.round, path=str(outer.path))
        raise OwnTrouble("the round that it was made for is over", for_good=True)
