"""The child process that computes for a worker or a validator, and the policies that it follows, as services."""

from typing import Any

import trio

from node.blobs.headway import describe, fraction
from node.changes import side_by_side
from node.config import Role
from node.guest.rest import DOING, GuestRest
from node.inference.client import EngineProcess
from node.member import Participant
from node.services.base import Service
from node.services.context import Context
from node.status_schema import EnginePart, ProcessPart
from node.swarm.facts import PolicyFollowed, Undone
from node.weights.fetch import PolicyFollower


class EngineService(Service):
    name = "engine"

    def __init__(self, context: Context, engine: EngineProcess, role: Role, rest: GuestRest) -> None:
        self._child, self._role, self._rest = engine, role, rest
        self._rules, self._progress = context.run.spec.verification, context.progress

    async def start(self, nursery: trio.Nursery) -> None:
        """Raises EngineError if no child becomes ready, or the run does not admit how it computes."""
        if self._rest.why:
            self._child.sleep()
        self._progress.enter("engine", "the engine loads its libraries and the model")
        # Awaited: services after this one ask the engine at once.
        await nursery.start(self._child.run)
        # Now, not at the first file: work in a way that the run does not admit is refused by everybody.
        self._child.check_permitted(self._rules, self._role)
        ready = f"the engine is ready: {self._child.engine_name}"
        self._progress.tell("engine", f"no engine is loaded: {self._rest.why}" if self._rest.why else ready)
        # Told at once, before anybody who waits for the end of a rest asks the child.
        self._rest.changed.follow(self._heed_rest)
        self._heed_rest()

    def _heed_rest(self) -> None:
        if self._rest.quiet:
            self._child.sleep()
        elif not self._rest.why:
            self._child.wake()

    def status(self) -> dict[str, Any]:
        seconds = {kind: round(used, 1) for kind, used in self._child.used.items()}
        process = ProcessPart(self._child.name, self._child.pid, self._child.restarts)
        return {"processes": [process], "engine": EnginePart(seconds)}

    def beat(self) -> dict[str, Any]:
        # Of one that is put away nothing is said: nobody shall count on its hardware, or try it.
        return {"engine": "" if self._rest.quiet else self._child.engine_name}


class PolicySync(Service):
    """Fetches each policy as it is followed, so that work on it begins at once.

    Whoever needs a policy could fetch it when it does. A worker would then stand still for each step's transfer, and
    thousands would ask at the same moment. Here fetching begins with the announcement, and who has a part hands it on.
    What is fetched is decided elsewhere: `PolicyIndex` says which policy is followed, `PolicyFollower` how it comes."""

    name = "policies"

    def __init__(self, policies: PolicyFollower, context: Context, member: Participant, rest: GuestRest) -> None:
        self._follower, self._rest = policies, rest
        self._context = context
        self._exchange = member.blob_service.exchange

    async def run(self) -> None:
        """Until cancelled. Of a trainer that is not believed nothing new is announced (`PolicyIndex`)."""
        await side_by_side(self._follower.run, self._hear_of_undone, self._tell_of_the_first)

    async def _hear_of_undone(self) -> None:
        """Policies that a term takes back are none to work with."""
        async for undone in self._context.facts.subscribe(Undone):
            if isinstance(undone.fact, PolicyFollowed):
                self._context.policy_cache.orphan(undone.fact.root)

    async def _tell_of_the_first(self) -> None:
        progress = self._context.progress
        progress.enter("policy", self._waits_for, lambda: fraction(self._exchange.under_way()))
        policy = await self._context.policy_cache.newer_than(-1)
        progress.tell("policy", f"policy {policy.step} is here and verified")
        progress.enter("first-contribution", progress.activity)

    def _waits_for(self) -> str:
        step = self._follower.newest_step
        if self._rest.why:
            return DOING
        if step < 0:
            return "waiting for the trainer's first policy: none has been announced yet"
        members = len(self._context.membership.addresses())
        return f"fetching policy {step}: {describe(self._exchange.under_way(), members)}"
