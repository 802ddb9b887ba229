"""A seeded walk of many actions by many people; the books must balance after each."""

import random
from typing import Any

from contracts.bindings import CaseState
from contracts.deploy import TOKEN
from tests.contracts.conftest import table

STEPS = 45


class Walk:
    """Random actions on one pool. Refusals are fine: they must change nothing either."""

    def __init__(self, world: Any, pool: Any, seed: int) -> None:
        self.world, self.pool, self.random = world, pool, random.Random(seed)
        self.providers = [pool.provider, world.provider()]
        second = world.person()
        world.register(self.providers[1], second)
        world.send(world.contracts.join(pool.id, "x"), second)
        self.nodes = [pool.node, second]
        judge = world.contracts.node_info(pool.validators[0].address)
        self.judges = type("Judges", (), {"address": judge.owner})
        self.lines = {node.address: 0 for node in self.nodes}
        self.done: list[str] = []
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        name = self.random.choice(["post"] * 4 + ["claim"] * 3 + ["unbond", "rebond", "withdraw", "slash", "wait"])
        try:
            getattr(self, name)()
            self.done.append(name)
        except Exception as error:
            if type(error).__name__ != "Refused":
                raise

    def post(self) -> None:
        lines = {node: units + self.random.randint(0, 60_000) for node, units in self.lines.items()}
        epoch = max(0, self.pool.info.epoch_at(self.world.now()) - self.random.randint(3, 5))
        self.pool.post(epoch, table(lines)[0], sum(lines.values()), at=self.world.now() + 1)
        self.lines = lines

    def claim(self) -> None:
        node = self.random.choice(self.nodes).address
        self.pool.claim(self.lines[node], table(self.lines)[1][node], node=node)

    def unbond(self) -> None:
        amount = self.random.randint(1, 30 * TOKEN)
        self.world.send(self.world.contracts.unbond(amount), self.random.choice(self.providers))

    def rebond(self) -> None:
        self.world.send(
            self.world.contracts.rebond(self.random.randint(1, 20 * TOKEN)), self.random.choice(self.providers)
        )

    def withdraw(self) -> None:
        self.world.send(self.world.contracts.withdraw(), self.random.choice(self.providers))

    def slash(self) -> None:
        if self.steps > STEPS // 3:
            self.pool.slash(self.pool.commitment(), self.pool.manager)
            self.done.append("slashed")

    def wait(self) -> None:
        self.world.rpc("evm_increaseTime", self.random.choice([50, 150, 400]))
        self.world.rpc("evm_mine")

    def check(self) -> None:
        contracts, info = self.world.contracts, self.pool.info
        stakes = [contracts.stake_of(provider.address) for provider in [*self.providers, self.judges]]
        vault = contracts.token_balance(contracts.addresses.vault)
        count = contracts.view("vault", "caseCount")
        bonds = sum(case.bond for n in range(1, count + 1) if (case := contracts.case(n)).state == CaseState.FROZEN)
        assert vault == bonds + sum(stake.bonded + stake.unbonding + stake.frozen for stake in stakes)
        assert contracts.token_balance(contracts.addresses.payroll) == info.escrow + info.owed
        paid = sum(contracts.claimed(self.pool.id, node.address) for node in self.nodes)
        assert info.owed == (contracts.earnings(self.pool.id).total - paid) * info.reward_per_unit


def test_whatever_people_do_every_token_is_accounted_for(world: Any, pool: Any) -> None:
    walk = Walk(world, pool, seed=1)
    for _ in range(STEPS):
        walk.step()
        walk.check()
    assert len(set(walk.done)) >= 5 and "slashed" in walk.done
