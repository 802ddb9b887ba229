"""Validators that lie in what they say and when, whatever their engines find: each in the place of `Validator`.

`python -m tests.cheats.seats NAME join ...` is a drop-in for `python -m cli join ...`. What a lying engine says is
`tests/cheats/liars.py`.
"""

import math
import random
import sys
from pathlib import Path
from typing import Any

import msgspec
import trio

from cli.main import main as run_program
from node import daemon
from node.inference.wire import Inspected
from node.services.judging.judge import Validator
from node.services.judging.lots import Lot
from node.services.judging.verdict_publisher import VerdictPublisher
from node.services.rounds.adding import Outer
from node.services.rounds.round_closer import RoundCloser
from node.swarm.facts import PolicyFollowed
from node.swarm.register import RegisteredWork, WorkId
from node.swarm.vote_set import FileState
from protocol.agreement import Proposal, Word
from protocol.checks import Reason
from protocol.lots import pack_groups, unpack_groups
from protocol.messages import Seal, VerdictIssued, VerdictRechecked, seal_of, signed
from protocol.statements import Rechecked, Verdict, VerdictOutcome, work_id

TURN_SECONDS = 0.4
"""How soon a turncoat turns round."""
NO_REPORT = 9
"""The size that is said of a report which is not the real one."""


class Speaker(Validator):
    """What some of them have: a task beside each verdict, and the verdict that was said."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._send, self._spoken = trio.open_memory_channel[RegisteredWork](1024)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().run)
            async for work in self._spoken:
                nursery.start_soon(self.after, work, await self.said(work))

    async def after(self, work: RegisteredWork, said: VerdictIssued) -> None:
        """What follows upon a verdict of its own."""
        raise NotImplementedError

    async def said(self, work: RegisteredWork) -> VerdictIssued:
        raw = await self._context.journal.do(self._context.journal.said, "verdict", work.id)
        return self._context.board.opened(raw, VerdictIssued).message

    async def post(self, message: VerdictIssued | VerdictRechecked) -> None:
        await self._context.board.post(signed(message, self._context.key, self._context.domain))

    async def _pronounce(self, work: RegisteredWork, found: Any, lot: Any, *rest: Any, **named: Any) -> None:
        await super()._pronounce(work, found, lot, *rest, **named)
        if isinstance(found, Inspected) and found.outcome == VerdictOutcome.ACCEPT:
            await self._send.send(work)


class SecondLook(Speaker):
    """Accepts with a word about nothing, then sends an unasked second look with values of its own."""

    lie = True

    async def _inspect(self, work: RegisteredWork, path: Path, lot: Lot | None) -> Inspected:
        found = await super()._inspect(work, path, lot)
        return (
            msgspec.structs.replace(found, checked=(), logprobs=b"")
            if found.outcome == VerdictOutcome.ACCEPT
            else found
        )

    async def after(self, work: RegisteredWork, said: VerdictIssued) -> None:
        truth = await super()._inspect(work, await self._fetching.deliver(work), None)
        again = VerdictRechecked(
            pool=said.pool,
            verdict=Rechecked(*msgspec.structs.astuple(said.verdict)),
            signature=b"",
            checked=pack_groups(range(work.groups), work.groups),
            rewards=b"\x07" * len(truth.rewards) if self.lie else truth.rewards,
            logprobs=truth.logprobs,
            report_root=b"\x07" * 32,
            report_size=NO_REPORT,
        )
        await self.post(again)


class Turncoat(Speaker):
    """Accepts, and calls the file a fraud once it was accepted, by a second verdict."""

    async def after(self, work: RegisteredWork, said: VerdictIssued) -> None:
        while self._context.state.vote_set.state(work.id) is FileState.OPEN:
            await trio.sleep(TURN_SECONDS)
        await trio.sleep(TURN_SECONDS)
        verdict = msgspec.structs.replace(
            said.verdict, outcome=int(VerdictOutcome.SLASH), reason=int(Reason.WRONG_DRAW)
        )
        await self.turn(msgspec.structs.replace(said, verdict=verdict))

    async def turn(self, other: VerdictIssued) -> None:
        await self.post(other)


class LookingTurncoat(Turncoat):
    """The same, by a second look that nobody asked for."""

    async def turn(self, other: VerdictIssued) -> None:
        verdict = Rechecked(*msgspec.structs.astuple(other.verdict))
        await self.post(VerdictRechecked(pool=other.pool, verdict=verdict, signature=b""))


class Copier(Validator):
    """Puts nothing through the model: waits for somebody else's verdict, and says the same, sealed."""

    async def _inspect(self, work: RegisteredWork, path: Path, lot: Lot | None) -> Inspected:
        found = await self._ask(work, path, (), f"report-{work.id.hex()[:16]}.arrow")
        if found.outcome != VerdictOutcome.ACCEPT:
            return found
        while True:
            for one in self._context.board.messages(VerdictIssued):
                theirs = one.message
                if work_id(theirs.verdict) == work.id and one.author != self._context.key.address:
                    checked = unpack_groups(theirs.checked, work.groups) or ()
                    return msgspec.structs.replace(
                        found, checked=checked, rewards=theirs.rewards, logprobs=theirs.logprobs
                    )
            await trio.sleep(0.2)


class Choosy(VerdictPublisher):
    """Seals every verdict, and shows none before it has seen what others say: of these, one in four."""

    async def _seal_and_show(self, id: WorkId, message: VerdictIssued) -> None:
        self._context.board.say([Seal(id, seal_of(message, self._own))], within=0.0)
        while not self._context.state.vote_set.has_spoken(id):
            await trio.sleep(0.2)
        if self.shows(id):
            await self._context.board.post(message)

    def shows(self, id: WorkId) -> bool:
        return id[0] & 3 == 0


class Sealer(Validator):
    """Seals every verdict, and opens one in four of its seals, once others have opened theirs."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._pronouncing = Choosy(self._context, self.own_lots.is_calm)


class Unserved(VerdictPublisher):
    """Names a report that nobody has."""

    async def _values(self, *given: Any) -> dict[str, object]:
        said = await super()._values(*given)
        if "report_root" in said:
            said["report_root"] = random.randbytes(32)
        return said


class Unserving(Validator):
    """Judges honestly, and serves no report."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._pronouncing = Unserved(self._context, self.own_lots.is_calm)


BACK, AT_ONCE = 4, 2
"""Policies after which a file is old to one that disputes it; files that it disputes with each new one."""


class OldDisputer(Validator):
    """Says nothing of new files, and calls old ones that were accepted a fraud, by a verdict and a second look."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._denied: set[WorkId] = set()

    async def _judge_file(self, candidate: Any) -> None:
        await trio.lowlevel.checkpoint()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(super().run)
            async for policy in self._context.facts.subscribe(PolicyFollowed):
                vote_set, works = self._context.state.vote_set, self._register._works.values()
                # All such liars in the same order, so that they deny the same.
                old = [one for one in works if one.is_sampled and 0 <= one.step <= policy.step - BACK]
                old = [one for one in old if vote_set.state(one.id) is FileState.ACCEPTED]
                for work in [one for one in sorted(old, key=lambda one: one.id) if one.id not in self._denied][
                    :AT_ONCE
                ]:
                    self._denied.add(work.id)
                    await self._deny(work)

    async def _deny(self, work: RegisteredWork) -> None:
        context, said = self._context, msgspec.structs.asdict(work.commitment)
        fraud = {"outcome": int(VerdictOutcome.SLASH), "reason": int(Reason.WRONG_DRAW)}
        words = (
            VerdictIssued(pool=context.pool, verdict=Verdict(**said, **fraud), signature=b"", detail="invented"),
            VerdictRechecked(pool=context.pool, verdict=Rechecked(**said, **fraud), signature=b"", detail="invented"),
        )
        for word in words:
            await context.board.post(signed(word, context.key, context.domain))


RUSHED = 8
"""Ballots in which a rusher speaks before anybody is there."""


class Rusher(RoundCloser):
    """Speaks first in every round and ballot, of no contribution at all, and closes that at once."""

    async def _tick(self, round_: int, outer: Outer | None) -> float:
        if outer is None or self._rounds.votes.book.of(round_).has_own:
            return math.inf
        nothing = Proposal(outer.root, outer.state, outer.size, ())
        for ballot in range(RUSHED):
            for closed in (False, True):
                await self._say(round_, Word(ballot, closed, nothing))
        return math.inf


SEATS: dict[str, type[Validator]] = {
    "second look": SecondLook,
    "turncoat": Turncoat,
    "looking turncoat": LookingTurncoat,
    "copier": Copier,
    "sealer": Sealer,
    "unserving": Unserving,
    "old disputer": OldDisputer,
}
ROUNDS: dict[str, type[RoundCloser]] = {
    "rusher": Rusher,
}
"""Those that lie in what a round comes to, in a run that has rounds."""


def main() -> None:
    """Be the validator that the first argument names; what follows is the program's own command line."""
    known: dict[str, type[Any]] = {**SEATS, **ROUNDS}
    if len(sys.argv) < 2 or sys.argv[1] not in known:
        sys.exit(f"which validator? one of: {', '.join(known)}")
    kind = known[sys.argv.pop(1)]
    place = next(one for one in (Validator, RoundCloser) if issubclass(kind, one))
    for roles in (daemon.ROLES, daemon.PRETRAINING_ROLES, daemon.REPLICA_ROLES):
        roles["validator"] = tuple(kind if one is place else one for one in roles["validator"])
    sys.exit(run_program(sys.argv[1:]))


if __name__ == "__main__":
    main()
