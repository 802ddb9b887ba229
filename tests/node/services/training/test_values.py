"""Which values the trainer believes: of two that agree, of nobody else unchecked, and what a liar loses by that."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import trio

from node.blobs.errors import StoreFull
from node.inference.wire import Inspect, Inspected, LoadPolicy, Reply, Request
from node.services.judging.judge import Validator
from node.services.training import values as values_module
from node.services.training.ingest import Ingest
from node.services.training.values import LookShares, OwnLook, Values
from node.state.files import write_whole
from node.swarm.register import RegisteredWork
from protocol.blobs import describe
from protocol.checks import Reason
from protocol.identity import Address
from protocol.lots import pack_groups
from protocol.messages import DIGEST, RolloutCommitted, Signed, VerdictIssued
from protocol.rollout import (
    ReportHeader,
    ReportRow,
    RolloutBatch,
    RolloutHeader,
    SampleRow,
    ValidatorReport,
    encode,
    encode_report,
)
from protocol.statements import Verdict, VerdictOutcome, WorkCommitment, work_id
from protocol.values import mean_logprobs, reward_tags
from tests.attacks.validators.court import (
    GROUPS,
    SIZE,
    VALIDATORS,
    WORKER,
    Court,
    Trouble,
    policy_root,
)

ROOT = b"\x02" * 32
ANN, BEN, CLEO = (key.address for key in VALIDATORS)
ALL = tuple(range(GROUPS))
TOKENS = 32
TRUE = -1.0
FLAT = [TRUE] * TOKENS
SPIKED = [TRUE - 31.0] + [0.0] * (TOKENS - 1)
"""Of the same mean, with one token at -32 and the others certain."""


class Blobs:
    """Reports by root. missing: whose roots nobody serves."""

    holding = nullcontext

    def __init__(self) -> None:
        self.had: dict[bytes, Path] = {}
        self.missing: set[bytes] = set()

    async def fetch(self, root: bytes, sources: Sequence[Address], **how: Any) -> Path:
        await trio.lowlevel.checkpoint()
        if root in self.missing:
            await trio.sleep(how["timeout"])
            raise Trouble("no such blob", "nobody has it", "wait")
        return self.had[root]


class Engine:
    """The trainer's own: knows the truth. fault: what it finds instead."""

    def __init__(self, reason: Reason = Reason.NONE) -> None:
        self.reason = reason
        self.asked: list[tuple[int, ...]] = []

    async def run(self, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()

    async def ask(self, request: Request, *, timeout: float, policy: LoadPolicy | None = None) -> Reply:
        assert isinstance(request, Inspect) and policy is not None and request.groups is not None
        await trio.lowlevel.checkpoint()
        self.asked.append(request.groups)
        accepted = self.reason is Reason.NONE
        if request.groups and accepted:
            write_whole(Path(request.report_path), encoded(request.groups, FLAT, 1.0))
        return Inspected(
            outcome=int(VerdictOutcome.ACCEPT if accepted else VerdictOutcome.SLASH),
            reason=int(self.reason),
            detail="",
            report_path=request.report_path if request.groups and accepted else "",
            rewards_mean=1.0,
            tokens=1,
            seconds=0.0,
            statistics={},
            checked=request.groups,
            rewards=reward_tags([1.0] * GROUPS * SIZE, SIZE, ()),
        )


def encoded(groups: Sequence[int], logprobs: list[float], reward: float) -> bytes:
    rows = tuple(ReportRow(g, s, reward, logprobs) for g in groups for s in range(SIZE))
    return encode_report(ValidatorReport(ReportHeader(ROOT.hex(), policy_root(0).hex()), rows))


def work(number: int = 0) -> RegisteredWork:
    commitment = WorkCommitment(1, WORKER.address, policy_root(0), number, ROOT, 6)
    message = RolloutCommitted(pool=1, commitment=commitment, signature=b"", size=9)
    return RegisteredWork(work_id(commitment), Signed(WORKER.address, message, b""), 0, 0.0, 0, False, GROUPS)


class Trainer:
    """Values at a trainer's context. quorum: of the pool; engine: its own, None for none; lots: shares of files that
    it recomputes (agreed, alone, rewards)."""

    def __init__(
        self,
        place: Path,
        quorum: int = 2,
        engine: Engine | None = None,
        lots: tuple[float, float, float] = (0.0, 0.0, 0.0),
    ) -> None:
        court = Court([Validator] * 3, quorum=quorum)
        self.context = court.trainer.context
        for validator in (ANN, BEN, CLEO)[: 3 if quorum > 1 else 1]:
            self.context.membership.joined(validator, "")
        self.blobs = self.context.blobs = Blobs()  # type: ignore[assignment]
        self.place, self.engine = place, engine
        self.taken_back: list[bytes] = []
        self.over: list[str] = []
        self.look = OwnLook(self.context, engine, lambda step: place, place) if engine else None
        self.values = Values(
            self.context,
            self.look,
            taken_back=self.taken_back.append,
            hopeless=self.over.append,
            shares=LookShares(*lots),
        )

    def says(
        self, validator: Address, groups: Sequence[int] = ALL, logprobs: list[float] | None = None, reward: float = 1.0
    ) -> tuple[Address, VerdictIssued]:
        """A verdict that accepts, with a report that fits it."""
        logprobs = FLAT if logprobs is None else logprobs
        data = encoded(groups, logprobs, reward)
        info = describe(data)
        path = self.place / info.root.hex()
        path.write_bytes(data)
        self.blobs.had[info.root] = path
        return validator, VerdictIssued(
            pool=1,
            verdict=Verdict(1, WORKER.address, policy_root(0), 0, ROOT, 6, 0, 0),
            signature=b"",
            report_root=info.root,
            report_size=len(data),
            checked=pack_groups(groups, GROUPS),
            rewards=reward_tags([reward] * GROUPS * SIZE, SIZE, ()),
            logprobs=mean_logprobs({g: [np.asarray(logprobs, np.float32)] for g in groups}),
        )

    async def believes(self, *said: tuple[Address, VerdictIssued], number: int = 0) -> dict[int, float] | None:
        """Group -> its first log-probability, of what may be trained on."""

        async def fetch() -> Path:
            await trio.lowlevel.checkpoint()
            return self.place

        async with trio.open_nursery() as nursery:
            if self.look is not None:
                nursery.start_soon(self.look.run)
            believed = await self.values.of(work(number), dict(said), fetch)
            nursery.cancel_scope.cancel()
        if believed is None or not believed.rows:
            return None
        return {group: rows[0].logprobs[0] for group, rows in sorted(believed.rows.items())}


async def test_what_two_validators_say_alike_is_believed_and_what_one_says_alone_is_not(
    tmp_path: Path, autojump_clock
) -> None:
    trainer = Trainer(tmp_path)
    near = [TRUE + 0.01] * TOKENS
    believed = await trainer.believes(trainer.says(ANN, (0, 1, 2)), trainer.says(BEN, (1, 2, 3), near))
    assert believed is not None and list(believed) == [1, 2]
    assert trainer.values.counts == {"agreed": 2, "unused": 2}


async def test_what_one_says_alone_is_recomputed_where_this_node_can(tmp_path: Path, autojump_clock) -> None:
    engine = Engine()
    trainer = Trainer(tmp_path, engine=engine)
    believed = await trainer.believes(trainer.says(ANN, (0, 1)), trainer.says(BEN, (1, 3)))
    assert believed == {0: TRUE, 1: TRUE, 3: TRUE} and engine.asked == [(0, 3)]
    assert not trainer.values.distrusted


@pytest.mark.parametrize(("lie", "files"), [({"reward": 0.0}, 1), ({"logprobs": SPIKED}, 3)])
async def test_a_lie_among_three_is_recomputed_and_its_author_believed_no_more(
    tmp_path: Path, autojump_clock, lie: dict[str, Any], files: int
) -> None:
    """A group's mean would hide one token at -32; hardware that differs in the last digits is no lie."""
    trainer = Trainer(tmp_path, engine=Engine())
    for number in range(files):
        assert not trainer.values.distrusted
        said = [trainer.says(ANN, **lie), trainer.says(BEN), trainer.says(CLEO)]
        assert await trainer.believes(*said, number=number) == dict.fromkeys(ALL, TRUE)
    assert list(trainer.values.distrusted) == [ANN]
    assert await trainer.believes(trainer.says(ANN), trainer.says(BEN), number=9) == dict.fromkeys(ALL, TRUE)
    assert trainer.values.counts["recomputed"] == (files + 1) * GROUPS  # what is left is one validator's word


async def test_without_an_engine_what_validators_say_differently_is_not_used(tmp_path: Path, autojump_clock) -> None:
    trainer = Trainer(tmp_path)
    assert await trainer.believes(trainer.says(ANN, reward=0.0), trainer.says(BEN)) is None
    assert trainer.values.counts["unused"] == GROUPS and not trainer.values.distrusted


async def test_two_that_lie_alike_are_found_out_by_the_trainers_own_lot(tmp_path: Path, autojump_clock) -> None:
    trainer = Trainer(tmp_path, engine=Engine(), lots=(1.0, 0.0, 0.0))
    believed = await trainer.believes(trainer.says(ANN, reward=0.0), trainer.says(BEN, reward=0.0))
    assert believed is None and set(trainer.values.distrusted) == {ANN, BEN} and not trainer.over


async def test_rewards_by_themselves_are_recomputed_without_the_model(tmp_path: Path, autojump_clock) -> None:
    engine = Engine()
    trainer = Trainer(tmp_path, engine=engine, lots=(0.0, 0.0, 1.0))
    assert await trainer.believes(trainer.says(ANN, reward=0.0), trainer.says(BEN, reward=0.0)) is None
    assert engine.asked == [()] and set(trainer.values.distrusted) == {ANN, BEN}


async def test_a_file_that_this_node_refuses_is_not_trained_on_whoever_accepts_it(
    tmp_path: Path, autojump_clock
) -> None:
    trainer = Trainer(tmp_path, engine=Engine(Reason.WRONG_DRAW), lots=(0.0, 0.0, 1.0))
    assert await trainer.believes(trainer.says(ANN), trainer.says(BEN)) is None
    assert set(trainer.values.distrusted) == {ANN, BEN}


@pytest.mark.parametrize("standbys", [(), (CLEO,)], ids=["alone", "with a trainer that stands by"])
async def test_the_only_validator_is_believed_between_two_lots_and_its_first_lie_that_is_drawn_ends_the_run(
    standbys: tuple[Address, ...], tmp_path: Path, autojump_clock
) -> None:
    """Nothing that rested on its word alone is trained on afterwards."""
    trainer = Trainer(tmp_path, quorum=1, engine=Engine(), lots=(0.0, 0.25, 0.0))
    trainer.context.membership.terms.seat((trainer.context.key.address, *standbys), 60, 10)
    found: int | None = None
    for number in range(64):
        if await trainer.believes(trainer.says(ANN, reward=0.0), number=number) is None:
            found = number
            break
    assert found is not None and found < 64
    assert "no validator is left" in trainer.over[0] and ANN in trainer.over[0]
    assert trainer.taken_back == [work(number).id for number in range(found)]
    assert await trainer.believes(trainer.says(ANN), number=99) is None


def test_a_forger_of_every_file_is_found_within_twenty_with_the_shipped_lot() -> None:
    assert (1 - LookShares().alone) ** 20 < 0.004


async def test_a_report_that_nobody_serves_costs_a_second_and_not_a_time_out(tmp_path: Path, autojump_clock) -> None:
    trainer = Trainer(tmp_path)
    said = [trainer.says(ANN, logprobs=[TRUE + 0.001] * TOKENS), trainer.says(BEN), trainer.says(CLEO)]
    trainer.blobs.missing.add(said[0][1].report_root)
    began = trio.current_time()
    assert await trainer.believes(*said) == dict.fromkeys(ALL, TRUE)
    assert trio.current_time() - began < 2.0
    assert trainer.values.status()["not_served"] == {ANN: 1}


@pytest.mark.parametrize("own", [StoreFull("no room"), OSError(5, "Input/output error")], ids=["full", "broken"])
@pytest.mark.parametrize("when", ["fetched", "read"])
async def test_a_report_that_this_machine_cannot_take_in_is_not_said_to_be_unserved_and_may_come_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock, own: Exception, when: str
) -> None:
    trainer = Trainer(tmp_path)
    ann, vote = trainer.says(ANN, logprobs=[TRUE + 0.001] * TOKENS)
    fetch, read = trainer.blobs.fetch, values_module.read_report

    async def full(root: bytes, sources: Sequence[Address], **how: Any) -> Path:
        if root == vote.report_root:
            raise own
        return await fetch(root, sources, **how)

    def unreadable(*given: Any) -> Any:
        if given[2] is vote:
            raise own
        return read(*given)

    if when == "fetched":
        monkeypatch.setattr(trainer.blobs, "fetch", full)
    else:
        monkeypatch.setattr(values_module, "read_report", unreadable)
    said = dict([(ann, vote), trainer.says(BEN, (0, 1)), trainer.says(CLEO, (0, 1))])
    believed = await trainer.values.of(work(), said, partial(trio.to_thread.run_sync, lambda: tmp_path))
    assert believed is not None and set(believed.rows) == {0, 1} and believed.lacks
    assert trainer.values.status()["not_served"] == {} and not trainer.values.distrusted
    trainer.blobs.missing.add(vote.report_root)
    monkeypatch.undo()
    await trainer.values.of(work(1), said, partial(trio.to_thread.run_sync, lambda: tmp_path))
    assert trainer.values.status()["not_served"] == {ANN: 1}, "the control"


@pytest.mark.parametrize("said", [1 << 40, 9])
async def test_a_report_larger_than_the_run_s_bound_is_not_fetched_whatever_its_author_says_of_its_size(
    tmp_path: Path, monkeypatch, autojump_clock, said: int
) -> None:
    """Ann's bytes are of the root that she signed, and too many."""
    trainer = Trainer(tmp_path)
    most, asked = trainer.context.run.spec.rollout.most_report_bytes, list[int]()
    fetch = trainer.blobs.fetch

    async def bounded(root: bytes, sources: Sequence[Address], *, max_size: int, **rest: Any) -> Path:
        asked.append(max_size)
        path = await fetch(root, sources, **rest)
        if path.stat().st_size > max_size:
            raise Trouble("no such blob", "it is longer than was said", "wait")
        return path

    monkeypatch.setattr(trainer.blobs, "fetch", bounded)
    ann, vote = trainer.says(ANN, logprobs=[TRUE + 0.001] * TOKENS)
    with trainer.blobs.had[vote.report_root].open("ab") as file:
        file.write(bytes(most))
    forged = ann, msgspec.structs.replace(vote, report_size=said)
    assert await trainer.believes(forged, trainer.says(BEN), trainer.says(CLEO)) == dict.fromkeys(ALL, TRUE)
    assert max(asked) <= most and trainer.values.status()["not_served"] == {ANN: 1}
    asked.clear()
    assert await trainer.believes(trainer.says(BEN), trainer.says(CLEO), number=1), "the control"
    assert trainer.values.status()["not_served"] == {ANN: 1}


async def test_a_report_that_says_something_else_than_its_verdict_counts_for_nothing(
    tmp_path: Path, autojump_clock
) -> None:
    trainer = Trainer(tmp_path)
    _, other = trainer.says(ANN, reward=0.5)
    for field, value in (
        ("report_root", other.report_root),
        ("checked", pack_groups([0], GROUPS)),
        ("rewards", bytes(DIGEST * GROUPS)),
    ):
        author, said = trainer.says(ANN)

        forged = msgspec.structs.replace(said, **{field: value})
        assert await trainer.believes((author, forged), trainer.says(BEN)) is None


async def test_who_is_not_believed_is_remembered_over_a_restart(tmp_path: Path, autojump_clock) -> None:
    trainer = Trainer(tmp_path, engine=Engine())
    await trainer.believes(trainer.says(ANN, reward=0.0), trainer.says(BEN), trainer.says(CLEO))
    again = Values(trainer.context, None, taken_back=lambda work: None)
    await again.recall()
    assert list(again.distrusted) == [ANN]


async def test_groups_become_rows_of_a_batch_in_order(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    rows = tuple(SampleRow(g, s, f"p{g}", [1, 2], [3] * TOKENS, False, b"") for g in range(GROUPS) for s in range(SIZE))
    file = tmp_path / "file"
    file.write_bytes(encode(RolloutBatch(RolloutHeader(1, WORKER.address, policy_root(0).hex(), 0), rows)))
    ingest = Ingest(trainer.context, fresh=lambda step: True, taken_in=lambda _: None, taken_back=lambda _: None)
    _, vote = trainer.says(ANN, (3, 0))
    believed = values_module.Believed(
        file, {g: [ReportRow(g, s, 1.0, FLAT) for s in range(SIZE)] for g in (3, 0)}, (vote,)
    )
    made, left = ingest._join(work(), believed)
    assert left is None
    assert [(group.key, len(group.rows)) for group in made] == [((work().id, 0), SIZE), ((work().id, 3), SIZE)]
    assert len({row.group_key for group in made for row in group.rows}) == 2
