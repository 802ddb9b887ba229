"""What becomes of accepted files, in a pool of real validators: each signs what it held accepted, policy by policy."""

from pathlib import Path
from typing import Any

import pytest
import trio

from node.processes.forkserver import Anew
from node.services.auditing.step_auditor import StepAuditor
from node.services.auditing.step_replay import StepReplay
from node.services.judging.judge import Validator
from node.services.usage_tracker import UsageTracker
from protocol.blobs import describe
from protocol.checks import Reason
from protocol.identity import NodeKey, address_bytes
from protocol.manifest import (
    Arithmetic,
    BatchManifest,
    ComposedBatch,
    PolicyStatement,
    UsedReport,
    UsedWork,
    encode_manifest,
    work_order,
)
from protocol.messages import AcceptedList, StepVerdict
from protocol.statements import VerdictOutcome
from tests.attacks.validators.court import DOMAIN, OTHER, POOL, TRAINER, WORKER, Court, policy_root
from tests.node.services.tasking.town import at_once
from tests.words import stating

IN_A_ROW = 4
BATCHES = 3


async def test_validators_name_each_accepted_work_once_and_all_come_to_the_same_due(autojump_clock: Any) -> None:
    court = Court([Validator, Validator])
    async with trio.open_nursery() as nursery:
        seats = [court.trainer, *court.seats]
        tracers = [UsageTracker(seat.context) for seat in seats]
        for one in tracers:
            nursery.start_soon(one.run)
        await court.open(nursery)
        first = await court.commit()
        await trio.sleep(20)
        said = [one.message for one in court.trainer.board.messages(AcceptedList)]
        assert not said, "the control: it was accepted after policy 0"
        await court.announce(1)
        await trio.sleep(5)
        second = await court.commit(index=1)
        await trio.sleep(20)
        await court.announce(2)
        await trio.sleep(5)
        lists = {
            (one.author, one.message.step, one.message.works) for one in court.trainer.board.messages(AcceptedList)
        }
        judges = [seat.key.address for seat in court.seats]
        assert lists == {(one, step, (work,)) for one in judges for step, work in ((1, first), (2, second))}
        for one in tracers:
            found = [one.book.due(work) for work in (first, second)]
            assert [due[0] for due in found if due] == [1, 2]
        nursery.cancel_scope.cancel()


class Leader:
    """A leader whose batches are of one policy each, two before their own: every worker's first file, or (drops) two of
    one worker's."""

    def __init__(self, court: Court) -> None:
        self.court = court
        self.told: bytes | None = b""
        """What comes along for a batch's manifest; None: that itself, which then nobody can fetch."""
        self.manifests: dict[bytes, bytes] = {}
        self.files: dict[tuple[int, NodeKey, int], bytes] = {}
        court.blobs.fetch = self._fetch  # type: ignore[method-assign]
        self._parent = policy_root(0)

    async def _fetch(self, root: bytes, *_: Any, **__: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return Blob(self.manifests.get(root, b""))

    async def step(self, step: int, *, drops: NodeKey | None) -> None:
        """Policy `step`, and everybody's files of it."""
        court = self.court
        batch = ComposedBatch(court.trainer.context.run.root, POOL, step - 1, self._works(step - 3, drops))
        arithmetic = Arithmetic("x", "float32", 1, False, 1, True, 1, True, False, "fused", "torch", "")
        manifest = encode_manifest(BatchManifest(batch, 0, self._parent, bytes(32), arithmetic))
        root, policy = describe(manifest).root, policy_root(step)
        if self.told is not None:
            self.manifests[root] = manifest
        said = PolicyStatement(POOL, 0, step, 0, self._parent, policy, root, bytes(32))
        await court.trainer.board.post(
            stating(said, TRAINER, DOMAIN, manifest_root=root, batch=self._comes_along(manifest))
        )
        self._parent = policy
        await trio.sleep(2)
        await self.commit(step)
        await trio.sleep(10)

    def _comes_along(self, manifest: bytes) -> bytes:
        return manifest if self.told is None else self.told

    async def commit(self, step: int) -> None:
        for key in (WORKER, OTHER):
            for index in (0, 1):
                self.files[step, key, index] = await self.court.commit(step, index, key=key)

    def _works(self, policy: int, drops: NodeKey | None) -> tuple[UsedWork, ...]:
        chosen = [(WORKER, 0), (OTHER, 0)] if drops is None else [(WORKER, 0), (WORKER, 1)]
        found = list[UsedWork]()
        for key, index in chosen if policy >= 0 else []:
            work = self.court.trainer.jury.state.register.get(self.files[policy, key, index])
            assert work is not None
            of, report = work.commitment, UsedReport(address_bytes(key.address), bytes(32), 1, b"\1")
            place: dict[str, Any] = {"policy_root": of.policy_root, "file_root": of.file_root, "units": of.units}
            found.append(
                UsedWork(
                    node=address_bytes(key.address), policy_step=policy, index=index, epoch=0, size=9,
                    reports=(report,), used=b"\1", flat=b"\0", **place,
                )
            )  # fmt: skip
        return tuple(sorted(found, key=lambda work: work_order(POOL, work)))


class Blob(bytes):
    def read_bytes(self) -> bytes:
        return self


@pytest.mark.parametrize(
    ("told", "asked"), [(None, 0), (b"another", 4), (b"", 4)], ids=["comes along", "another does", "none does"]
)
async def test_a_manifest_that_comes_with_its_policy_is_not_asked_for_and_another_is_as_none(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch, told: bytes | None, asked: int
) -> None:
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    court = Court([Validator])
    leader = Leader(court)
    leader.told = told
    async with trio.open_nursery() as nursery:
        tracing = UsageTracker(court.seats[0].context)
        nursery.start_soon(tracing.run)
        await court.open(nursery)
        await leader.commit(0)
        fetched = list[bytes]()
        monkeypatch.setattr(court.blobs, "fetch", lambda root, *of, **how: fetched.append(root) or leader._fetch(root))
        for step in range(1, 5):
            await leader.step(step, drops=None)
        assert tracing.unread == 2, "the first two are of no files, which is no batch"
        assert tracing.book.newest == 3
        assert len([root for root in fetched if root in leader.manifests]) == asked
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("drops", "standbys", "framed"),
    [(None, True, False), (None, True, True), (OTHER, True, False), (OTHER, True, True), (OTHER, False, False)],
    ids=["honest", "honest, framed", "drops a worker", "drops one and is framed", "drops a worker and is alone"],
)
async def test_a_leader_that_drops_a_worker_loses_its_term_by_a_quorums_words_and_no_honest_one_does(
    autojump_clock: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    drops: NodeKey | None,
    standbys: bool,
    framed: bool,
) -> None:
    """framed: a standby states three policies of its own before every second one, of this term and of a ninth (H1)."""
    monkeypatch.setattr(trio.to_thread, "run_sync", at_once)
    court = Court([Validator, Validator, Validator])
    leader = Leader(court)
    async with trio.open_nursery() as nursery:
        everybody = [court.trainer, *court.workers, *court.seats]
        if standbys:
            for seat in everybody:
                seat.membership.terms.seat((TRAINER.address, WORKER.address), 10**6, 10)
        for seat, judge in zip(court.seats, court.validators, strict=True):
            send, receive = trio.open_memory_channel[Any](16)
            tracing = UsageTracker(seat.context, send)
            audit = StepAuditor(
                seat.context, judge.own_lots, StepReplay(seat.context, tmp_path / "audit", Anew()), receive
            )
            nursery.start_soon(tracing.run)
            nursery.start_soon(audit._say_dropped, receive)
        await court.open(nursery)
        await leader.commit(0)
        await trio.sleep(10)
        first = None
        for step in range(1, 12):
            for number in range(3 if framed and step % 2 else 0):
                own = PolicyStatement(
                    POOL, 9 * (number % 2), step, 0, bytes(32), bytes([number]) * 32, b"m" * 32, bytes(32)
                )
                await court.workers[0].board.post(stating(own, WORKER, DOMAIN))
                await trio.sleep(0.2)
            await leader.step(step, drops=drops if step >= 5 else None)
            if court.trainer.jury.state.policies.equivocations:
                first = step
                break
        said = [one.message for one in court.trainer.board.messages(StepVerdict)]
        if drops is None or not standbys:
            assert not said and first is None
        else:
            assert first is not None and 5 + BATCHES - 1 <= first <= 5 + IN_A_ROW - 1
            assert {(one.outcome, one.reason) for one in said} == {(VerdictOutcome.REJECT, Reason.LEFT_OUT)}
            assert OTHER.address in said[0].detail
            for seat in everybody:
                fork = seat.jury.state.policies.equivocation
                assert fork is not None and not seat.jury.state.distrust, "who stands by goes on"
        nursery.cancel_scope.cancel()
