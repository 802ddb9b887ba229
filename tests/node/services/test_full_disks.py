"""A disk that is full ends no audit and no look at a contribution: what was to be found stays open."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from node.changes import Changes
from node.processes.forkserver import Anew
from node.services.auditing.step_auditor import StepAuditor
from node.services.auditing.step_replay import StepReplay
from node.services.judging.judge import OwnTrouble, Validator, _here
from node.services.rounds.judging import ContributionJudge
from protocol.identity import NodeKey
from protocol.manifest import PolicyStatement
from protocol.messages import PolicyAnnounced, Signed
from tests.attacks.validators.court import DOMAIN, POOL, TRAINER, Court, policy_root
from tests.words import policies as policies_of
from tests.words import stating

OWN = NodeKey(b"\1" * 32).address


async def full(*_: Any, **__: Any) -> Any:
    await trio.lowlevel.checkpoint()
    raise OSError(errno.ENOSPC, "No space left on device")


def announced(step: int) -> PolicyAnnounced:
    said = PolicyStatement(POOL, 0, step, 0, policy_root(step - 1), policy_root(step), b"m" * 32, bytes(32))
    return stating(said, TRAINER, DOMAIN)


async def test_batches_that_cannot_be_made_here_are_no_fault_of_their_contributions(tmp_path: Path) -> None:
    async def checked(name: str, job: Any) -> dict[str, Any]:
        await trio.lowlevel.checkpoint()
        return {"inner": ("", ""), "batches": (), "replica_id": 0}

    jobs, spool = SimpleNamespace(ask=checked), SimpleNamespace(root=tmp_path)
    rounds: Any = SimpleNamespace(jobs=jobs, own_bytes=0, spool=spool, moved=Changes())
    context: Any = SimpleNamespace(
        state=SimpleNamespace(policies=policies_of(TRAINER.address), validators=list), key=SimpleNamespace(address=OWN)
    )
    batches: Any = SimpleNamespace(of=full)
    order: Any = SimpleNamespace(node=OWN, file_root=bytes(32), policy_root=bytes(32))
    job: Any = SimpleNamespace(replay=False, round=1)
    with pytest.raises(OwnTrouble, match="No space left"):
        await _here(ContributionJudge(context, rounds, batches)._look(order, job))


async def test_a_disk_that_is_full_at_an_audit_leaves_its_step_undecided(tmp_path: Path) -> None:
    court = Court([Validator])
    seat = court.seats[0]
    seat.jury.state.policies.announce(Signed(TRAINER.address, announced(1), b""), anchored=True)
    audit = StepAuditor(seat.context, None, StepReplay(seat.context, tmp_path, Anew()))
    statement = announced(1).statement
    audit._replaying.audited = full
    assert await audit._tried(statement) is None
    assert audit.counts["undecided"] == 1 and "No space left" in audit.undecided
