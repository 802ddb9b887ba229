"""How soon is a trainer told that drops a worker, and is an honest one ever?

    python -m benchmarks.droppers [--honest 150] [--policies 150] [--seeds 0,1] [--quick] [--json FILE]

Simulated without a network, with the product's pool, order of works, and counts of six workers that make two files a
policy each. Lag is by how much longer some workers' files take to reach the trainer than the validators, at the most,
in policies' times. Honest: the most works of one worker that were passed over in a row by a trainer that drops nobody,
and how often one was said to drop somebody all the same. Then it drops one worker, from policy 30 on: policies until
that is told, "-" for not at all.
"""

import random
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
from blake3 import blake3

from benchmarks.command import parser_of, save
from node.recipe.pool import Group, Origin, PoolSample, RolloutPool, Selection
from node.swarm.batch_usage import BatchUsage
from node.swarm.policies import PolicyIndex
from node.swarm.terms import LeaderTerms
from protocol.identity import Address, address_bytes, address_from_bytes
from protocol.manifest import FED, ComposedBatch, PolicyStatement, UsedReport, UsedWork, lot_of, work_order
from protocol.messages import AcceptedList, PolicyAnnounced, Signed
from protocol.recipe import Recipe
from protocol.run import EnvironmentSpec, RunSpec
from protocol.statements import WorkCommitment, work_id

RUN = RunSpec(name="droppers", environment=EnvironmentSpec(name="sort"), recipe=Recipe(max_staleness=3))
TRAINER, *JUDGES = (Address("0x" + f"{number:x}" * 40) for number in (13, 14, 15))
BEFORE, VICTIM = 30, 4
SURPLUS = (0.8, 1.0, 2.0, 4.0)
LAGS: Mapping[str, dict[str, Any]] = {
    "0.25, a third of the workers": {"lags": [0.02, 0.1, 0.25] * 2},
    "0.5, a third": {"lags": [0.02, 0.1, 0.5] * 2},
    "1.0, a third": {"lags": [0.02, 0.1, 1.0] * 2},
    "1.0, all alike": {"lags": [1.0] * 6},
    "0.02, one is always last": {"lags": [0.02] * 6, "held": 0.4},
}


def _announced(step: int) -> Signed[PolicyAnnounced]:
    root = step.to_bytes(32)
    statement = PolicyStatement(1, 0, step, 0, bytes(32), root, bytes(32), bytes(32))
    message = PolicyAnnounced(
        pool=1, statement=statement, signature=bytes(65), manifest_root=bytes(32), manifest_size=1
    )
    return Signed(TRAINER, message, b"announced %d" % step)


class Swarm:
    """Workers that make files as they can, validators, and the product's pool and book. lags: of each worker's files on
    their way to the trainer, at the most, in policies' times; surplus: files that are made for each that a batch takes;
    held: how long after a policy the next batch is composed, by which time all workers but the last have made theirs;
    turns: whether starving workers come first.
    """

    def __init__(
        self,
        seed: int,
        lags: Sequence[float],
        surplus: float,
        keep: bool = True,
        held: float = 0.0,
        turns: bool = True,
    ) -> None:
        self.held, self.turns = held, turns
        self.used: dict[int, set[bytes]] = {}
        self.random = random.Random(seed)
        self.now = 0.0
        self.policies = PolicyIndex(lambda: self.now, LeaderTerms(TRAINER, lambda: self.now), lambda _: 2**62)
        self.nodes = [address_from_bytes(bytes([number]) * 20) for number in range(1, len(lags) + 1)]
        self.lags, self.keep = lags, keep
        rollout = msgspec.structs.replace(
            RUN.rollout, prompts_per_file=1, prompts_per_step=max(1, round(len(lags) * 2 / surplus))
        )
        filters = msgspec.structs.replace(RUN.filters, online=False, keep_surplus=keep)
        recipe = msgspec.structs.replace(RUN.recipe, max_staleness=3)
        self.pool = RolloutPool(msgspec.structs.replace(RUN, rollout=rollout, filters=filters, recipe=recipe))
        is_member, may_validate = set(self.nodes).__contains__, set(JUDGES).__contains__
        members: Any = SimpleNamespace(is_member=is_member, quorum=2, may_validate=may_validate)
        self.book = BatchUsage(self.policies, members, 3, lambda: self.now, lambda id: True, keep_surplus=keep)
        self.works: dict[bytes, WorkCommitment] = {}
        self.steps: dict[bytes, int] = {}
        self._coming: list[tuple[float, bytes]] = []
        self._step = 0

    def policy(self, drops: Sequence[Address] = ()) -> list[Address]:
        """A policy is announced, the batch after the one that is learnt from is composed, and workers make two files
        each. Whom the book says to be dropped by then."""
        step, self._step = self._step, self._step + 1
        self.policies.announce(_announced(step))
        if not self.held:  # the trainer composes the next batch at this very moment, from what it has fetched
            selection = self._compose(step + 1, drops)
        for one in JUDGES:
            heard = self.now
            self.now += 0.01  # gossip
            works = self.book.accepted_list(step) if one is JUDGES[0] else works  # noqa: F821 - the first judge binds it
            self.book.heard(one, AcceptedList(pool=1, step=step, works=works))
            self.now = heard
        accepted = sorted((self._at(number), number, index) for index in (0, 1) for number in range(len(self.nodes)))
        for at, number, index in accepted:
            self._make(at, step, number, index)
        if self.held:
            self.now += self.held
            selection = self._compose(step + 1, drops)
            self.now -= self.held
        if selection is not None:
            ids = {group.key[0] for group in selection.groups}
            in_order = sorted((self._used(id) for id in ids), key=lambda work: work_order(1, work))
            self.used[step + 1] = {one.node for one in in_order}
            self.book.trained(1, ComposedBatch(bytes(32), 1, step + 1, tuple(in_order)))
        self.now += 1.0
        return list(self.book.dropped())

    def _at(self, number: int) -> float:
        """When a file is accepted."""
        if not self.held:
            return self.now + self.random.random()
        begins = self.held if number == len(self.nodes) - 1 else 0.0
        return self.now + begins + self.random.random() * 0.7 * self.held

    def _compose(self, step: int, drops: Sequence[Address]) -> Selection | None:
        self._arrive(drops)
        fed = set[bytes]().union(*(self.used.get(at, set()) for at in range(step - FED, step)))
        return self.pool.take(step, fed if self.turns else None)

    def _make(self, at: float, step: int, number: int, index: int) -> None:
        root = blake3(f"{step} {number} {index}".encode()).digest()
        commitment = WorkCommitment(1, self.nodes[number], _announced(step).message.policy_root, index, root, 1)
        id = work_id(commitment)
        self.works[id], self.steps[id] = commitment, step
        self._coming.append((at + self.random.random() * self.lags[number], id))
        work: Any = SimpleNamespace(id=id, node=commitment.node, step=step, is_sampled=True, commitment=commitment)
        began, self.now = self.now, at
        self.book.accepted(work)
        self.now = began

    def _arrive(self, drops: Sequence[Address]) -> None:
        for _, id in [one for one in self._coming if one[0] <= self.now]:
            if self.works[id].node not in drops:
                commitment, step = self.works[id], self.steps[id]
                samples = (PoolSample(1, 0.0, 0.0, True), PoolSample(1, 1.0, 1.0, True))
                lot = lot_of(1, commitment.policy_root, commitment.node, commitment.index)
                origin = Origin(commitment, 9, b"", bytes(32), 1)
                self.pool.add([Group((id, 0), step, (1, 2), samples, order=(step, lot), origin=origin)])
        self._coming = [one for one in self._coming if one[0] > self.now]

    def _used(self, id: bytes) -> UsedWork:
        of = self.works[id]
        report = UsedReport(address_bytes(of.node), bytes(32), 1, b"\1")
        return UsedWork(
            node=address_bytes(of.node), policy_root=of.policy_root, policy_step=self.steps[id], index=of.index,
            file_root=of.file_root, units=1, epoch=0, size=9, reports=(report,), used=b"\1", flat=b"\0",
        )  # fmt: skip


def honest(seed: int, policies: int, how: Mapping[str, Any]) -> dict[str, int]:
    """The most works of one worker that were passed over in a row, and policies at which somebody was said to be
    dropped."""
    swarm = Swarm(seed, **how)
    told = sum(bool(swarm.policy()) for _ in range(policies))
    return {"in_a_row": swarm.book.longest, "told": told}


def until_told(seed: int, policies: int, how: Mapping[str, Any]) -> int | None:
    """Policies from the first file that is dropped."""
    swarm = Swarm(seed, **how)
    for _ in range(BEFORE):
        swarm.policy()
    victim = swarm.nodes[VICTIM]
    return next((number + 1 for number in range(policies) if victim in swarm.policy([victim])), None)


def main() -> None:
    parser = parser_of(__doc__, "one seed of one lag, 40 policies")
    parser.add_argument("--honest", type=int, default=150, help="policies of an honest trainer")
    parser.add_argument("--policies", type=int, default=150, help="of one that drops")
    parser.add_argument("--seeds", default="0,1")
    given = parser.parse_args()
    seeds = (0,) if given.quick else tuple(map(int, given.seeds.split(",")))
    lags = dict(list(LAGS.items())[:1]) if given.quick else LAGS
    least, most = (40, 40) if given.quick else (given.honest, given.policies)
    rows: list[dict[str, Any]] = []
    print(f"{'lag':30} files made  in a row  told honest  told of the dropped one after")
    for name, how in lags.items():
        for surplus in SURPLUS:
            made = {**how, "surplus": surplus}
            calm = [honest(seed, least, made) for seed in seeds]
            after = [until_told(seed, most, made) for seed in seeds]
            rows.append({"lag": name, "surplus": surplus, "honest": calm, "dropped": after})
            found = ", ".join("-" if one is None else str(one) for one in after)
            row, told = max(one["in_a_row"] for one in calm), sum(one["told"] for one in calm)
            print(f"{name:30} {surplus:10g}  {row:8}  {told:11}  {found:>29}", flush=True)
    save(given.json, rows)


if __name__ == "__main__":
    main()
