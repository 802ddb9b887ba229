"""Several trainers that learn from rollouts, in a swarm in memory: what workers sample is dealt among them each round.

The rounds are test_rounds'. Engine, learner, files, reports, manifests and batches are real, and so are all services.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from node.blobs.errors import StoreFull
from node.inference.wire import Inspected, Produced
from node.recipe.capacity import CapacityGauge, MachineCapacity
from node.recipe.pool import Selection
from node.run.file import CompiledRun
from node.services.certifier import Certifier
from node.services.rollout_worker import RolloutWorker
from node.services.rounds.batches import Batches
from node.services.rounds.judging import ContributionJudge, ContributionValidator
from node.services.rounds.replica_trainer import ReplicaTrainer
from node.services.rounds.round_closer import RoundCloser
from node.services.usage_tracker import ReplicaUsageTracker
from node.training.outer import OuterStateFile
from node.training.peer import ReplicaPeer
from node.training.settings import TrainerSettings
from node.training.spool import Spool
from node.training.world import World
from protocol.audit import AuditSpec
from protocol.blobs import describe
from protocol.checks import Reason
from protocol.earnings import contribution_units
from protocol.errors import IntellectError, OwnFailure
from protocol.identity import NodeKey
from protocol.manifest import ComposedBatch, decode_composed, encode_manifest
from protocol.messages import VerdictIssued
from protocol.policy import bf16_bits, decode_image
from protocol.pretraining import Diloco
from protocol.replicas import share
from protocol.run import RunSpec, encode_run
from tests.attacks.validators.court import POOL, announcement
from tests.node.local.test_rollouts import BUDGET, EngineInProcess
from tests.node.services.rounds.test_rounds import Lab, Node, Town, nothing, until, without_threads  # noqa: F401 - one is a fixture

ROUNDS, REPLICAS, INNER, PROMPTS, SIZE = 3, 2, 2, 2, 4


TRAINERS = tuple(NodeKey(bytes([number]) * 32).address for number in (1, 2))


class ReplicaNode(Node):
    town: "ReplicaTown"

    def __init__(self, *given: Any, **how: Any) -> None:
        super().__init__(*given, **how)
        self.membership.terms.seat(TRAINERS, 600, 20)
        self.batches = Batches(self.context, self.rounds)

    def services(self) -> list[Any]:
        context, rounds, scratch = self.context, self.rounds, self.town.folder / f"scratch-{self.key.address[:8]}"
        scratch.mkdir(exist_ok=True)
        if self.role == "worker":
            return [
                RolloutWorker(
                    context, self.town.engine, scratch, CapacityGauge(self.town.run.spec, MachineCapacity(1, 0))
                )
            ]
        if self.role == "trainer":
            return [self.town.seating(context, rounds, self.pins, self.batches)]
        certifying = Certifier(context)
        given = context, rounds, ContributionJudge(context, rounds, self.batches), self.court, scratch
        judge = ContributionValidator(*given, certifier=certifying, engine=self.town.engine)
        return [judge, RoundCloser(context, rounds), certifying, ReplicaUsageTracker(context, rounds, self.batches)]

    @property
    def done(self) -> dict[str, int]:
        """What became of its files or contributions."""
        kinds = RolloutWorker, ReplicaTrainer
        return next(one.works.done.counts for one in self.manager.services if isinstance(one, kinds))


class SlowEngine(EngineInProcess):
    """Takes time, of the town's, and says so: how much is recomputed follows from it."""

    async def ask(self, request: Any, **how: Any) -> Any:
        await trio.sleep(0.25)
        reply = await super().ask(request, **how)
        return msgspec.structs.replace(reply, seconds=0.25) if isinstance(reply, Produced | Inspected) else reply


class ReplicaTown(Town):
    kind = ReplicaNode

    def __init__(
        self, folder: Path, run: RunSpec, assets: Path, seating: type[ReplicaTrainer] = ReplicaTrainer
    ) -> None:
        encoded = encode_run(run)
        self.open(folder, CompiledRun(run, encoded, describe(encoded).root, {}), assets, 2)
        self.seating, self.engine = seating, SlowEngine(encoded, assets)
        self.learnt: dict[Path, dict[str, int]] = {}
        spool = Spool(folder / "spool")
        spool.prepare(encoded, assets)
        spool.peers_path.write_text(str(REPLICAS))
        self.peer = ReplicaPeer(spool, run, TrainerSettings(), World())

    def hand_over(self, lab: Lab) -> None:
        super().hand_over(lab)
        self.peer._learnt = self.learnt.setdefault(lab.spool.root, {})

    async def perform(self, story: Callable[[trio.Nursery], Any]) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self.engine.run)
            await self.play(story)
            nursery.cancel_scope.cancel()


@pytest.fixture
def run(tiny_run: RunSpec) -> RunSpec:
    rules = Diloco(
        inner_steps=INNER, exchange="int8", stretch=1, max_contributions=REPLICAS, round_seconds=40.0, grace_seconds=4.0
    )
    recipe = msgspec.structs.replace(tiny_run.recipe, steps=ROUNDS, max_staleness=2)
    sampled = {"group_size": SIZE, "prompts_per_step": PROMPTS, "prompts_per_file": 2, "max_output_tokens": 6}
    sampled |= {"max_prompt_tokens": 12}
    rollout = msgspec.structs.replace(tiny_run.rollout, **sampled)
    audit = AuditSpec(window=4, verdict_seconds=30.0, delivery_seconds=10.0)
    parts = {"recipe": recipe, "rollout": rollout, "diloco": rules, "audit": audit, "length_budget": BUDGET}
    return msgspec.structs.replace(tiny_run, **parts)


async def test_trainers_learn_from_their_shares_of_what_workers_sample_and_one_that_dies_costs_its_contribution(
    run: RunSpec, tiny_assets: Path, tmp_path: Path, autojump_clock: Any
) -> None:
    town = ReplicaTown(tmp_path, run, tiny_assets)
    owner, victim, worker = town.add(1, "trainer"), town.add(2, "trainer"), town.add(3)

    async def story(nursery: trio.Nursery) -> None:
        await until(lambda: owner.rounds.newest >= 0)
        far = announcement(999, bytes(32), domain=owner.context.domain)
        await owner.context.board.post(far)  # of the owner's own making: nobody follows it
        await until(lambda: victim.rounds.newest >= 1)
        victim.alive.cancel()

    await town.perform(story)
    roots, judges = town.roots(), [one for one in town.nodes if one.role == "validator"]
    assert set(roots) == set(range(ROUNDS + 1)) and all(len(each) == 1 for each in roots.values()), roots
    figures = judges[0].rounds.figures
    batch = run.rollouts_per_batch
    assert figures[0].contributions == 2
    assert all(one.tokens == len(one.batches) * batch > 0 for one in figures.values())
    assert all(figures[at].contributions >= 1 for at in range(ROUNDS)) and figures[ROUNDS - 1].contributions == 1
    # every node has made the same policies by itself, and the worker's files are of these
    policies = {one.root for one in worker.context.policy_cache.held}
    assert policies == {one.root for one in owner.context.policy_cache.held} and len(policies) == ROUNDS + 1
    assert judges[0].context.state.policies.newest_step == ROUNDS
    state = OuterStateFile(owner.rounds.files.path(ROUNDS))
    image = decode_image(owner.context.policy_cache.newest.path.read_bytes())
    for name in state.shapes:
        assert (image[name] == bf16_bits(state.tensor(name))).all()
    assert worker.done.get("accepted", 0) >= 3 * INNER and not worker.done.get("rejected"), worker.done
    assert owner.done == {"accepted": ROUNDS}, owner.done
    for judge in judges:
        said = [one.message for one in judge.context.board.messages(VerdictIssued)]
        of = [one for one in said if one.verdict.node in TRAINERS]
        assert of and all(one.checked == b"\x01" and one.verifier == "learner" for one in of)  # replayed, and equal
        prices = {contribution_units(run, count * batch) for count in range(1, INNER + 1)}
        assert prices >= {one.verdict.units for one in of} and min(prices) == int(0.1 * batch * 6)
        assert not judge.court.slashed
    counted = next(one for one in judges[0].manager.services if isinstance(one, ReplicaUsageTracker)).status()["uses"]
    of = counted.workers[worker.key.address]
    assert set(counted.workers) == {worker.key.address} and counted.unread_manifests == 0
    assert of.accepted >= of.used + of.flat > 0 and of.accepted <= worker.done["accepted"] + 1, counted
    replicas = [each[worker.key.address] for each in counted.replicas.values()]
    assert len(replicas) == REPLICAS and sum(one["used"] for one in replicas) == of.used, counted
    journal = judges[0].context.journal
    paid = [work.id for work in judges[0].context.state.register.of(owner.key.address)]
    assert len(paid) == ROUNDS and all(journal.pay.leaf(judges[0].key.address, POOL, one) for one in paid)


class Greedy(ReplicaTrainer):
    """Learns from the other replica's share, and says so."""

    def _dealt(self, outer: Any, replica_id: int) -> Selection | None:
        return super()._dealt(outer, 1 - replica_id if self._context.key.address == TRAINERS[1] else replica_id)


async def test_who_learns_from_anothers_share_is_in_no_round_and_keeps_its_stake(
    run: RunSpec, tiny_assets: Path, tmp_path: Path, autojump_clock: Any
) -> None:
    run = msgspec.structs.replace(run, recipe=msgspec.structs.replace(run.recipe, steps=2))
    town = ReplicaTown(tmp_path, run, tiny_assets, Greedy)
    honest, cheat, _ = town.add(1, "trainer"), town.add(2, "trainer"), town.add(3)
    await town.perform(nothing)
    judges = [one for one in town.nodes if one.role == "validator"]
    assert all(len(each) == 1 for each in town.roots().values())
    assert honest.done == {"accepted": 2} and "accepted" not in cheat.done, (honest.done, cheat.done)
    verdicts = [one.message for one in judges[0].context.board.messages(VerdictIssued)]
    refused = [one for one in verdicts if one.verdict.node == cheat.key.address]
    assert refused and {one.verdict.reason for one in refused} == {Reason.BATCHES}
    assert all("of replica" in one.detail for one in refused), refused
    assert not [one for node in town.nodes for one in node.court.slashed]
    await what_no_replica_may_learn_from(town, judges[0], honest)


async def what_no_replica_may_learn_from(town: ReplicaTown, judge: ReplicaNode, honest: ReplicaNode) -> None:
    """Manifests by hand, as a validator that has lived through the rounds reads them."""
    outers = {round_: next(iter(roots)) for round_, roots in town.roots().items()}
    named = [judge.rounds.figures[at].batches for at in (0, 1)]
    read = [[decode_composed((town.folder / "blobs" / root.hex()).read_bytes()) for root in each] for each in named]
    replica_id = share(outers[1], read[1][0].works[0].name(POOL), REPLICAS)

    async def refused(replica_id: int, *batches: ComposedBatch) -> str:
        roots = [(await town.blobs.add(encode_manifest(one))).root for one in batches]
        try:
            await judge.batches.of(outers[1], 1, replica_id, honest.key.address, roots)
        except IntellectError as error:
            return error.why
        return ""

    fine = read[1][0]
    assert await refused(replica_id, *read[1]) == ""  # the control
    assert "which was learnt from before" in await refused(replica_id, fine, fine)
    assert "is for step 0" in await refused(replica_id, read[0][0])
    again = [msgspec.structs.replace(one, step=1) for one in read[0]]
    work = next(one for one in again[0].works if any(one.used))
    of = share(outers[1], work.name(POOL), REPLICAS)
    assert "which was learnt from before" in await refused(of, msgspec.structs.replace(again[0], works=(work,)))
    judge.rounds.figures.clear()  # as after a restart: lists are heard again, and contributions read
    judge.batches._used.clear()
    assert "which was learnt from before" in await refused(of, msgspec.structs.replace(again[0], works=(work,)))
    # What this validator cannot take in itself would look unused; what nobody hands over is as before.
    fetch = town.blobs.fetch

    async def full(root: bytes, *given: Any, **how: Any) -> Path:
        if root in named[0]:
            raise StoreFull("it has no room")
        return await fetch(root, *given, **how)

    used = msgspec.structs.replace(again[0], works=(work,))
    judge.batches._used.clear()
    town.blobs.fetch = full  # type: ignore[method-assign]
    with pytest.raises(OwnFailure, match="no room"):
        await judge.batches.of(
            outers[1], 1, of, honest.key.address, [(await town.blobs.add(encode_manifest(used))).root]
        )
    town.blobs.fetch = fetch  # type: ignore[method-assign]
    assert "which was learnt from before" in await refused(of, used), "and it is asked for again"
    assert "of replica" in await refused(1 - of, msgspec.structs.replace(again[0], works=(work,)))

    def with_work(**changes: Any) -> ComposedBatch:
        return msgspec.structs.replace(fine, works=(msgspec.structs.replace(fine.works[0], **changes),))

    made_up = with_work(file_root=bytes(32))
    assert "was not accepted" in await refused(share(outers[1], made_up.works[0].name(POOL), REPLICAS), made_up)
    report = msgspec.structs.replace(fine.works[0].reports[0], root=bytes([9]) * 32)
    assert "values that no validator reported" in await refused(replica_id, with_work(reports=(report,)))
    fresher = with_work(policy_step=1 - fine.works[0].policy_step)
    assert "another policy" in await refused(replica_id, fresher)
    town.blobs.missing.add(describe(encode_manifest(fine)).root)
    assert "nobody has it" in await refused(replica_id, fine)
