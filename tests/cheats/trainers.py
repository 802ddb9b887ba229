"""Trainers that cheat: each in the place of `TrainerService`, with the honest daemon around it.

`python -m tests.cheats.trainers NAME join ...` is a drop-in for `python -m cli join ...`. Once such a trainer leads no
more it stands by as any other.
"""

import sys
import time
from typing import Any

import msgspec
import structlog
import trio

from cli.main import main as run_program
from node import daemon
from node.chain.client import ChainClient
from node.chain.errors import ChainError
from node.chain.simulate import SimulatedStep
from node.recipe.pool import Group
from node.services.context import Context, manifest_of
from node.services.training.groups import Groups
from node.services.training.trainer import TrainerService
from node.swarm.facts import PolicyFollowed
from node.weights.policy_cache import HeldPolicy
from protocol.errors import IntellectError
from protocol.manifest import encode_manifest
from protocol.messages import CheckpointOffered, Message, PolicyAnnounced, StepObjected, TaskOffered
from protocol.statements import sign
from protocol.tasks import TaskSpec, encode_task
from tests.cheats.nodes import made_up

log = structlog.get_logger("node.attack")
FAR = 2**40
INVENTED = 3
"""Statements that a framing standby makes up at a time."""
CARD_BYTES = 99
LOOK_SECONDS, PATIENCE = 0.05, 30.0


class Censor(TrainerService):
    """Uses nothing of one worker, the first whose file it is given."""

    victim = b""

    def __init__(self, context: Context, *given: Any, **named: Any) -> None:
        groups = next(one for one in given if isinstance(one, Groups))
        self._honest, groups.take_in = groups.take_in, self._take_in
        super().__init__(context, *given, **named)

    def _take_in(self, groups: list[Group]) -> None:
        for group in groups:
            if group.origin is not None and not self.victim:
                self.victim = group.origin.node
                log.info("attack.drops", node="0x" + self.victim.hex())
        self._honest([group for group in groups if group.origin is None or group.origin.node != self.victim])


class Stalled(TrainerService):
    """Speaks, and publishes nothing after its first policies while it leads."""

    LAST = 5

    def __init__(self, context: Context, *given: Any, **named: Any) -> None:
        super().__init__(context, *given, **named)
        self._honest, self._publishing._bring_out = self._publishing._bring_out, self._bring_out

    async def _bring_out(self, step: int) -> HeldPolicy | None:
        if step == self.LAST + 1 and self.leading.leads(step):
            log.info("attack.stalls", step=step)
        while step > self.LAST and self.leading.leads(step):
            await trio.sleep(LOOK_SECONDS)
        return await self._honest(step)


class Beside(TrainerService):
    """What those have who say more than they do: words upon each policy that is followed here."""

    async def start(self, nursery: trio.Nursery) -> None:
        await super().start(nursery)
        nursery.start_soon(self._speak)

    async def _speak(self) -> None:
        board = self._context.board
        async for policy in self._context.facts.subscribe(PolicyFollowed):
            words = await self.words(policy)
            for word in words:
                await board._wire.publish(
                    board._topic, board.sealed(word)
                )  # its own state goes on as if it were honest
            if words:
                log.info("attack.said", step=policy.step, messages=len(words))

    async def words(self, policy: PolicyFollowed) -> list[Message]:
        raise NotImplementedError

    def stated(self, policy: PolicyFollowed, **changes: Any) -> PolicyAnnounced:
        """A followed policy's announcement as its own, with other things in it."""
        key, domain = self._context.key, self._context.domain
        said = msgspec.structs.replace(policy.statement, **changes)
        word = sign(key, domain, said.commitment(key.address))
        return msgspec.structs.replace(policy.message, statement=said, signature=word)

    def far(self, policy: PolicyFollowed, term: int) -> PolicyAnnounced:
        """Another step each time: two statements about one would be evidence."""
        step, root = FAR + policy.step, made_up(policy.root + bytes([term & 0xFF]))
        return self.stated(policy, term=term, step=step, parent=policy.root, policy_root=root)


class FarSteps(Beside):
    """Leads honestly, and states a policy of step 2^40 and more after each of its own."""

    async def start(self, nursery: trio.Nursery) -> None:
        self._context.state.policies._own = None  # of its own words, too, it believes what others would
        await super().start(nursery)

    async def words(self, policy: PolicyFollowed) -> list[Message]:
        return [self.far(policy, policy.message.term)] if policy.author == self._context.key.address else []


class Dismissed(Beside):
    """Is dismissed by the pool's owner, and goes on: policies, checkpoints, tasks, the end of the run."""

    async def start(self, nursery: trio.Nursery) -> None:
        await super().start(nursery)
        nursery.start_soon(self._be_dismissed)

    async def _be_dismissed(self) -> None:
        """The demo's first trainer manages the pool, so it is this node that tells the chain."""
        assert self.leading.chair is not None
        context, terms, chain = self._context, self._context.membership.terms, self.leading.chair._chain
        assert isinstance(chain, ChainClient)
        while not (terms.seated and len(terms.trainers) > 1):
            await trio.sleep(LOOK_SECONDS)
        others = [one for one in terms.trainers if one != context.key.address]
        calls = (
            ("propose", chain.contracts.propose_trainers(context.pool, others)),
            ("seat", chain.contracts.apply_trainers(context.pool)),
        )
        for action, call in calls:
            while True:
                try:
                    await chain.execute(SimulatedStep(action, call), context.key)
                    break
                except ChainError:  # the window is not over
                    await trio.sleep(1.0)
        log.info("attack.dismissed", step=self.record.step)

    @property
    def is_dismissed(self) -> bool:
        return not self._context.membership.terms.in_office(self._context.key.address)

    async def words(self, policy: PolicyFollowed) -> list[Message]:
        return self.claims(policy) if self.is_dismissed else []

    def claims(self, policy: PolicyFollowed) -> list[Message]:
        """Of its own term and of the one that is none of its own."""
        pool, now = self._context.pool, self._context.membership.terms.now.number
        root = made_up(policy.root)
        found: list[Message] = [
            self.stated(policy, term=term, step=policy.step + 1, parent=policy.root, policy_root=root)
            for term in (self._term_led, now)
        ]
        spec = TaskSpec(kind="filter", policy=policy.root.hex(), last=8, shard_size=2)
        found.append(TaskOffered(pool=pool, sequence=int(1000 * time.time()), spec=encode_task(spec)))
        if policy.step:
            found.append(CheckpointOffered(pool=pool, term=now, step=policy.step, root=root, size=CARD_BYTES))
        return found

    @property
    def _term_led(self) -> int:
        own = self._context.key.address
        return max(one.number for one in self._context.membership.terms.all() if one.holder == own)

    def beat(self) -> dict[str, Any]:
        return super().beat() | ({"finished": True} if self.is_dismissed else {})


class FormerFarSteps(Dismissed):
    """Is dismissed, and announces policies of step 2^40 and more."""

    def claims(self, policy: PolicyFollowed) -> list[Message]:
        return [self.far(policy, term) for term in (self._term_led, self._context.membership.terms.now.number)]


class Framing(Beside):
    """Stands by, and invents statements of a leader that drops a worker, objections and checkpoints."""

    async def words(self, policy: PolicyFollowed) -> list[Message]:
        if not policy.step or policy.step % 2 or policy.author == self._context.key.address:
            return []
        pool, term, root = self._context.pool, policy.message.term, made_up(policy.root)
        objected = StepObjected(pool=pool, term=term, step=policy.step)
        offered = CheckpointOffered(pool=pool, term=term, step=policy.step, root=root, size=CARD_BYTES)
        return [objected, offered, *await self._invented(policy)]

    async def _invented(self, policy: PolicyFollowed) -> list[Message]:
        """Statements about the next steps, whose batches use nothing of one worker: before the leader makes its own."""
        try:
            manifest = await manifest_of(self._context, policy.author, policy.message, PATIENCE)
        except IntellectError:
            return []
        batch, found, parent = manifest.batch, list[Message](), policy.root
        victim = batch.works[0].node
        kept = tuple(work for work in batch.works if work.node != victim) or batch.works[1:] or batch.works
        for step in range(policy.step + 1, policy.step + 1 + INVENTED):
            forged = msgspec.structs.replace(batch, step=step - 1, works=kept)
            encoded = encode_manifest(msgspec.structs.replace(manifest, batch=forged, parent=parent))
            info, root = await self._context.blobs.add(encoded), made_up(parent)
            found.append(self.stated(policy, step=step, parent=parent, policy_root=root, batch_root=info.root))
            parent = root
        return found


LEADERS: dict[str, type[TrainerService]] = {
    "censor": Censor,
    "stalled": Stalled,
    "far steps": FarSteps,
    "dismissed": Dismissed,
    "former, far steps": FormerFarSteps,
}
STANDBYS: dict[str, type[TrainerService]] = {
    "framing standby": Framing,
}
"""Those that cheat while they stand by."""


def main() -> None:
    """Be the trainer that the first argument names; what follows is the program's own command line."""
    known = LEADERS | STANDBYS
    if len(sys.argv) < 2 or sys.argv[1] not in known:
        sys.exit(f"which trainer? one of: {', '.join(known)}")
    cheat = known[sys.argv.pop(1)]
    services = daemon.ROLES["trainer"]
    daemon.ROLES["trainer"] = tuple(cheat if one is TrainerService else one for one in services)
    sys.exit(run_program(sys.argv[1:]))


if __name__ == "__main__":
    main()
