"""A peer's part in a round: its replica, its steps, and its contribution, committed like any work."""

from functools import partial
from pathlib import Path
from typing import Any

import structlog
import trio

from node.bounded_dict import BoundedDict
from node.changes import Changes, side_by_side
from node.guest.rest import DOING, GuestRest
from node.services.base import Service
from node.services.committing import OwnWorks, commit, slot_name
from node.services.context import Context, Rate
from node.services.rounds.adding import Outer
from node.services.rounds.applying import Rounds, in_words
from node.swarm.facts import WorkTouched
from node.swarm.register import RegisteredWork
from node.swarm.vote_set import FileState
from node.training.jobs import Train
from node.weights.policy_cache import PolicyPins
from protocol.earnings import contribution_units
from protocol.errors import IntellectError
from protocol.replicas import choose

log = structlog.get_logger()


class RoundWorker(Service):
    """One per worker."""

    name = "round-worker"
    blobs_a_round = 1
    """What a replay of this node's contribution may ask for."""

    def __init__(self, context: Context, rounds: Rounds, store: PolicyPins, rest: GuestRest | None = None) -> None:
        """store: from which others are served."""
        self._rest = rest or GuestRest()
        self._context, self._rounds, self._pins = context, rounds, store
        self.replica_id, self._said = -1, 0
        self.rate = Rate(60.0, context.clock.monotonic)
        self.works = OwnWorks(context)
        self._training = -1
        self._changed = Changes()
        """Of what a round's steps or their contribution wait for."""
        rounds.moved.follow(self._changed.tell)
        self._rest.changed.follow(self._changed.tell)
        # Rounds whose states are kept for replays: contributions to two may still be judged, by what was before and
        # after.
        kept = 4
        self._most_served = kept * self.blobs_a_round
        self._served: BoundedDict[bytes, None] = BoundedDict(self._most_served)

    async def run(self) -> None:
        await self.works.count()
        await self.works.repeat()
        self._context.state.register.follow(self._changed.tell)
        # Not before: the first outer state wants the learner.
        self._rest.changed.follow(self._heed_rest)
        self._heed_rest()
        for path in self._rounds.files.own():
            await self._serve(path)
        hear = partial(self._context.handle, self._changed.tell, WorkTouched)
        await side_by_side(hear, partial(self.works.follow, self._context.state.vote_set.state), self._contribute)

    async def _contribute(self) -> None:
        """A contribution to every round that this node lives to see begin."""
        round_, pause = -1, 1.0
        await self._rounds.caught_up.wait()
        while not self._rounds.over:
            await self._changed.until(self._has_replica)
            if (begun := await self._rounds.next_round(round_)) is None:
                break
            if not self._has_replica():
                continue  # somebody lighter took it while the round was awaited
            at, outer = begun
            journal, slot = self._context.journal, slot_name(outer.root, at - outer.round)
            # A newer state is on its way; or another daemon may have contributed with this key.
            history = self._is_past(at) or journal.fence.covers(at)
            # Made before a restart, a second one would be a fault.
            if history or await journal.do(journal.said, "commitment", slot):
                round_ = at
                continue
            try:
                await self._train(at, outer)
            except (IntellectError, OSError) as error:
                log.warning("contribution.failed", round=at, why=in_words(error))
                self._context.progress.trouble(f"no contribution to round {at} yet: {in_words(error)}")
                # again, in this round if it still runs: one that nobody contributes to would never end
                await trio.sleep(pause)
                # Seconds, at most, between two tries of a round whose contribution could not be made.
                pause = min(2 * pause, 60.0)
            else:
                # What a rest has cut short may be made yet, if the round lasts.
                round_, pause = (round_ if self._rest.why else at), 1.0
            finally:
                self._training = -1

    def _heed_rest(self) -> None:
        """The learner is put away while this peer rests: outer states are added without it."""
        if self._rest.quiet:
            self._rounds.process.sleep()
        elif not self._rest.why:
            self._rounds.process.wake()

    def _has_replica(self) -> bool:
        # Heartbeats with a replica before the first steps: others that start at the same time are heard by then.
        return self.replica_id >= 0 and self._said >= 2 and not self._rest.why

    def _is_past(self, round_: int) -> bool:
        """Whether nobody would count a contribution to a round."""
        return round_ + self._rounds.adding.late < self._rounds.furthest

    async def _find_steps(self, outer: Outer, replica_id: int, until: float) -> int | None:
        """How many steps there are to make at most, 0: the run's; None where the round is over before there is one.
        until: unix seconds."""
        await trio.lowlevel.checkpoint()
        return 0

    async def _train(self, round_: int, outer: Outer) -> None:
        """The steps of a round that begin at `outer`, and what comes of them."""
        clock, replica_id, now = self._context.clock, self.replica_id, self._rounds.outer
        passed = clock.monotonic() - now.opened if now and now.round == round_ else 0.0
        # By the wall clock: the learner is another process, whose monotonic seconds may begin elsewhere.
        until = clock.wall() - passed + self._rounds.rules.round_seconds
        steps = await self._find_steps(outer, replica_id, until)
        if steps is None:
            return
        self._training = round_
        fresh = not self._stands(round_ - 1)
        with self._rest.work() as scope:
            found = await self._rounds.jobs.ask(f"train-{round_:06d}", Train(round_, replica_id, until, fresh, steps))
        if scope.cancelled_caught:
            return
        if found["began"]:
            await self._changed.until(lambda: not self._is_undecided(round_ - 1))
        if self._is_past(round_):  # the node was stopped meanwhile
            self._context.progress.tell("late", f"the contribution to round {round_} came too late")
            return
        if found["began"] and not self._stands(round_ - 1):
            # Sent, it would be refused, and so would every next one that builds on it.
            told = f"round {round_}: its steps began with what a contribution left that does not stand"
            self._context.progress.tell("refused", told)
            return
        if found["own"]:
            await self._serve(Path(found["own"]))
        learnt = found["tokens"]
        units = contribution_units(self._context.run.spec, learnt)
        # 0 for the state's own round. With fragments the next round's steps begin at it, too: 1.
        index = round_ - outer.round
        await commit(self._context, outer.root, index, Path(found["path"]), units, outer.round, round_)
        # With fragments the next steps begin at once, and ask what stands; the jury hears of it as of anybody's.
        with trio.move_on_after(5.0):  # seconds, at most, until this node's own jury knows what it committed to
            await self._changed.until(lambda: bool(self._works(round_)))
        self.rate.add(learnt)
        await self.works.count()
        log.info("contribution.committed", round=round_, replica_id=replica_id, learnt=learnt, loss=found["loss"])

    def _works(self, round_: int) -> list[RegisteredWork]:
        """What this node committed to as its contribution to a round."""
        register = self._context.state.register
        return [one for one in register.of(self._context.key.address) if one.round == round_]

    def _stands(self, round_: int) -> bool:
        """Whether this node committed to a contribution to a round, and the pool did not refuse it, as far as is known:
        only what such a one left may be built upon. With fragments the pool must have accepted it in its round."""
        works, state = self._works(round_), self._context.state.vote_set.state
        if self._rounds.rules.fragments > 1 and round_ < self._rounds.newest:
            return any(map(self._rounds.has_accepted, works))
        return any(state(work.id) is not FileState.REJECTED for work in works)

    def _is_undecided(self, round_: int) -> bool:
        """Whether what the next contribution builds on may still be refused: with fragments its steps did not wait."""
        state = self._context.state.vote_set.state
        runs = self._rounds.rules.fragments > 1 and round_ >= self._rounds.newest
        return runs and any(state(work.id) is FileState.OPEN for work in self._works(round_))

    async def _serve(self, path: Path) -> None:
        """Hand a file that steps begin with to whoever replays these, as long as one may."""
        info = await self._context.blobs.add(path)
        if info.root in self._served:
            return
        if len(self._served) == self._most_served:
            # `BoundedDict` lets the oldest go with the next one, but not its pin.
            self._pins.unpin(next(iter(self._served)))
        self._served[info.root] = None
        self._pins.pin(info.root)

    # as a service

    def beat(self) -> dict[str, Any]:
        """The replica is chosen as often as it is told: what others say of theirs may change it."""
        context = self._context
        beats = context.membership.beats(context.clock.monotonic())
        taken = {node: beat.replica_id for node, beat in beats.items() if beat.replica_id >= 0}
        replica_id = choose(
            context.run.root, context.key.address, self._rounds.rules.max_contributions, self.replica_id, taken
        )
        # What is under way keeps its replica: others shall not make the same steps.
        replica_id = -1 if self._rest.why and self._training < 0 else replica_id
        self._said = self._said + 1 if replica_id == self.replica_id else 0
        self.replica_id = replica_id
        self._changed.tell()
        return {"replica_id": replica_id, "rate": round(self.rate.per_second, 1)}

    def activity(self) -> str:
        if self._training >= 0:
            return f"training round {self._training + 1} of {self._rounds.last} on replica {self.replica_id}"
        if self._rest.why:
            return DOING
        if self.replica_id < 0:
            return "waiting for a free replica: the run has diloco.max_contributions of them"
        return f"its steps are made; {self._rounds.activity()} waits for the others"

    def status(self) -> dict[str, Any]:
        return {
            "work": self.works.done.status(),
            "pretraining": {"replica_id": self.replica_id, "training": self._training >= 0},
        }
