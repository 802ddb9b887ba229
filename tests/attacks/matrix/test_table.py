"""Attacks of two liars, which the matrix has no cells for: each as a test of its own, with a control."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from node.inference.wire import Inspected
from node.services.judging.fetching import Fetching
from node.services.judging.judge import Validator
from node.services.judging.lots import Lot
from node.swarm.register import RegisteredWork
from node.swarm.vote_set import FileState
from node.weights.policy_cache import HeldPolicy
from protocol.checks import Fault, Reason
from protocol.identity import NodeKey
from protocol.messages import VerdictIssued, VerdictRechecked, signed
from protocol.statements import Rechecked, Verdict, VerdictOutcome
from tests.attacks.validators import court as court_of
from tests.attacks.validators.court import DOMAIN, POOL, Court, changed


class ServedAlone(Fetching):
    """The worker serves this one, whoever else asks."""

    async def deliver(self, work: RegisteredWork) -> Path:
        await trio.lowlevel.checkpoint()
        work.delivered = True
        return Path("/dev/null")


class Accomplice(Validator):
    """Accepts what its worker sends it."""

    fetching_kind = ServedAlone

    async def _inspect(self, work: RegisteredWork, path: Any, lot: Lot | None) -> Inspected:
        found = await super()._inspect(work, path, lot)
        return changed(found, outcome=int(VerdictOutcome.ACCEPT), reason=int(Reason.NONE), detail="", group=-1)


@pytest.mark.parametrize("absent", [(2,), ()], ids=["one is away", "all are there"])
async def test_a_file_that_one_validator_alone_was_served_is_not_accepted(autojump_clock: Any, absent: Any) -> None:
    """The fault in it is proven to whoever has it."""
    court = Court([Accomplice, Validator, Validator])
    async with trio.open_nursery() as nursery:
        await court.open(nursery, absent=absent)
        fault = Fault(Reason.TERMINATION, "it ends where nothing ends", 0)
        root = b"\x77" * 32
        court.blobs.missing.add(root)
        id = await court.commit(fault=fault, root=root)
        await trio.sleep(120)
        assert court.trainer.jury.state.vote_set.state(id) is not FileState.ACCEPTED
        nursery.cancel_scope.cancel()


class Mute(Validator):
    """Judges nothing by itself."""

    async def _judge_file(self, candidate: Any) -> None:
        await trio.lowlevel.checkpoint()


class Policies:
    """An honest validator's. gone: whether nobody has the old ones any more."""

    def __init__(self) -> None:
        self.gone = False

    async def get(self, root: bytes, timeout: float) -> HeldPolicy | None:
        await trio.lowlevel.checkpoint()
        return None if self.gone else HeldPolicy(0, root, Path("/dev/null"), None)  # type: ignore[arg-type]


def invented(kind: Any, of: Any, work: RegisteredWork, key: NodeKey) -> Any:
    """That a good file solves other problems than were drawn."""
    said = of(
        **msgspec.structs.asdict(work.commitment), outcome=int(VerdictOutcome.SLASH), reason=int(Reason.WRONG_DRAW)
    )
    return signed(kind(pool=POOL, verdict=said, signature=b"", detail="invented"), key, DOMAIN)


@pytest.mark.parametrize("gone", [True, False], ids=["the policy is gone", "the policy is held"])
async def test_two_liars_of_five_that_dispute_an_old_file_and_wait_convict_nobody(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    keys = tuple(NodeKey(bytes([number]) * 32) for number in range(11, 16))
    monkeypatch.setattr(court_of, "VALIDATORS", keys)
    court = Court([Mute, Mute, Validator, Validator, Validator], quorum=3)
    policies = Policies()
    for one in court.validators[2:]:
        one._policies = policies  # type: ignore[assignment]
    async with trio.open_nursery() as nursery:
        await court.open(nursery)
        id = await court.commit()
        await trio.sleep(60)
        vote_set = court.trainer.jury.state.vote_set
        assert vote_set.state(id) is FileState.ACCEPTED
        for step in range(1, 5):
            await court.announce(step)
        policies.gone = gone
        work = court.trainer.jury.state.register.get(id)
        assert work is not None
        for seat, key in zip(court.seats[:2], keys[:2], strict=True):
            await seat.board.post(invented(VerdictIssued, Verdict, work, key))
            await seat.board.post(invented(VerdictRechecked, Rechecked, work, key))
        await trio.sleep(200)
        assert vote_set.state(id) is FileState.ACCEPTED
        assert not {key.address for key in keys[2:]} & set(vote_set.disputes.quarantined)
        assert gone or {key.address for key in keys[:2]} == set(vote_set.disputes.quarantined)
        nursery.cancel_scope.cancel()
