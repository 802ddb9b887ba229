"""What stands on the chain, in the words of the protocol.

Knows the contracts through `contracts.bindings`. What to do with what it reads is for the roles; following events is
`follower.py`.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from contracts.asking import at_once
from contracts.bindings import (
    NOBODY,
    Addresses,
    CaseInfo,
    ChairInfo,
    MemberRecord,
    MembershipRecord,
    NodeInfo,
    PoolBooks,
    PoolInfo,
    PostedEarnings,
    RawLog,
    Stake,
    TermTaken,
    WaitingEarnings,
)
from node.chain.blocks import Block, Blocks
from node.chain.errors import ChainError, RpcRefused
from node.chain.logs import Logs, PoolMembers
from node.chain.refusals import CALL, LOGS
from node.chain.witnesses import Key, itself
from protocol.identity import Address

T = TypeVar("T")


class Balances(msgspec.Struct, frozen=True):
    """Wei of the chain's coin and of the token."""

    coin: int
    token: int


class Views(Blocks):
    """Reads of one network."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._logs = Logs(self._eth, self._provider.endpoints, self.profile.contracts)
        self._members = PoolMembers(self._contracts, self._logs, self.profile.contracts.swarm)

    @property
    def log_blocks(self) -> int:
        """Blocks whose logs the endpoint gives in one answer, as far as is known."""
        return self._logs.blocks

    async def _decides(self, action: str, view: Callable[[], T], *about: Hashable, key: Key = itself) -> T:
        """What money or an office follows from: two endpoints agree on it (`witnesses`). Raises EndpointsDisagree."""
        return await self._read(action, partial(self._witnesses.decides, (action, *about), action, CALL, view, key))

    async def pool(self, pool: int, *, agreed: bool = False) -> PoolInfo:
        """agreed: two endpoints name the same run, terms and people now, where there are two: else it is enough that
        they did a while ago. Raises EndpointsDisagree."""
        action = f"read pool {pool}"
        view = partial(self._contracts.pool, pool)
        if agreed:
            return await self._read(action, partial(self._witnesses.agreed, action, CALL, view, _terms))
        return await self._decides(action, view, key=_terms)

    async def books(self, pool: int, known: PoolInfo | None = None) -> PoolBooks:
        """A pool with its tables. known: the pool as it was read before; then only what money does to it is asked for.
        Two endpoints agree on who and what decides, as on `pool`, and on the tables. Raises EndpointsDisagree."""
        what = f"read the {'books' if known is None else 'tables'} of pool {pool}"
        return await self._decides(what, partial(self._contracts.books, pool, known), key=_books)

    async def chair(self, pool: int) -> ChairInfo | None:
        """Who leads the pool; None where its manager does, for good."""
        action, view = f"read the chair of pool {pool}", partial(self._contracts.chair_of, pool)
        return await self._decides(action, view, key=_office)

    async def terms(self, pool: int) -> list[TermTaken]:
        """Who has led, in the order of their terms. Looks through all blocks since the contracts were deployed, which
        takes a public chain's endpoint some questions a day of its age."""
        found, first, last = list[TermTaken](), self.profile.deployed_block, (await self.block()).number
        while first <= last:  # a question for each part, which has the time of one
            end = min(first + self.log_blocks - 1, last)
            action, chair = f"read the terms of pool {pool}", self.profile.contracts.chair
            events = partial(self._logs.events, TermTaken, pool, first, end, chair)
            found += await self._read(action, partial(self._witnesses.agreed, action, LOGS, events))
            first = end + 1
        return found

    async def pool_count(self) -> int:
        """Pools have the numbers 1 to this."""
        return await self._read("count pools", self._contracts.pool_count)

    async def members(self, pool: int) -> list[MemberRecord]:
        """Everybody who ever joined, with the last contact; flags tell who left or was evicted."""
        return await self._read(f"read the members of pool {pool}", lambda: self._members.all(pool))

    async def is_evicted(self, pool: int, node: Address) -> bool:
        """Whether judges had a node slashed in a pool, and nobody overturned it."""
        return (await self.standing(pool, node)).evicted

    async def standing(self, pool: int, node: Address) -> MembershipRecord:
        return await self._decides(f"read member {node}", partial(self._contracts.member, pool, node), pool)

    async def node_info(self, node: Address) -> NodeInfo:
        return await self._read(f"read node {node}", lambda: self._contracts.node_info(node))

    async def stake_of(self, provider: Address) -> Stake:
        return await self._read("read a stake", lambda: self._contracts.stake_of(provider))

    async def backing_of(self, provider: Address) -> int:
        """Token wei that stand behind nodes that work already: bonded, or bonded before a case that is not final."""
        return await self._read("read a stake", lambda: self._contracts.backing_of(provider))

    async def required_stake(self, provider: Address, more_units: int = 0, node: Address | None = None) -> int:
        """Token wei that the provider must have bonded, with `more_units` on top of its present nodes: of `node`, if
        that is known."""
        view = partial(self._contracts.required_stake, provider, more_units, node)
        return await self._decides("read the stake that is needed", view, provider, more_units, node)

    async def earnings(self, pool: int) -> PostedEarnings:
        """The newest table of earnings that counts."""
        return await self._decides(f"read the earnings of pool {pool}", partial(self._contracts.earnings, pool))

    async def waiting(self, pool: int) -> WaitingEarnings | None:
        """The table of earnings that a quorum had posted, and that does not count yet."""
        action = f"read the table that waits of pool {pool}"
        return await self._decides(action, partial(self._contracts.waiting, pool))

    async def claimed(self, pool: int, node: Address) -> int:
        """Units of the node that were paid, or went back to the pool, since the pool began."""
        return await self._decides(f"read what {node} was paid", partial(self._contracts.claimed, pool, node), pool)

    async def case(self, case: int) -> CaseInfo:
        """A slash that judges ordered, by the vault's number."""
        return await self._read(f"read case {case}", lambda: self._contracts.case(case))

    async def credit_of(self, who: Address) -> int:
        """Token wei that the vault owes somebody."""
        return await self._read("read a credit", lambda: self._contracts.credit_of(who))

    async def balances(self, address: Address) -> Balances:
        def read() -> Balances:
            return Balances(
                *at_once(
                    lambda: self._eth.get_balance(address),
                    lambda: self._contracts.token_balance(address),
                )
            )

        return await self._read("read balances", read)

    async def gas_price(self) -> int:
        """Wei per gas that a transaction pays now, without the layer below."""
        return await self._read("read the price of gas", self._eth.gas_price)

    async def logs(
        self, first: int, last: int, topics: Sequence[Any], *, everything: bool = False, agreed: bool = False
    ) -> list[RawLog]:
        """Logs of all contracts but the vault's in blocks first..last; everything: the vault's too; agreed: two
        endpoints tell the same, where there are two. Raises EndpointsDisagree."""
        view = partial(self._logs.within, first, last, topics, _places(self.profile.contracts, everything))
        if agreed:
            view = partial(self._witnesses.agreed, "read logs", LOGS, view, _as_told, patient=False)
        return await self._read("read logs", view)

    async def newest_with_logs(
        self, first: int, topics: Sequence[Any], *, everything: bool = False
    ) -> tuple[Block, list[RawLog] | None]:
        """The newest block, and as `logs` those from block `first` to it, by one request; None where they are to be
        asked for by themselves. first: near the newest block."""
        places = _places(self.profile.contracts, everything)

        def read() -> tuple[Block, list[RawLog] | None]:
            newest, found = at_once(
                lambda: self._block("latest"), lambda: self._logs.up_to_newest(first, topics, places)
            )
            # One machine may answer, and another, which is a block ahead.
            return newest, None if found is None else [one for one in found if one.block <= newest.number]

        return await self._read("read a block", read)

    def distrust_logs(self, why: str) -> ChainError:
        """The endpoint that tells logs does not tell them all: others are asked first. Returns the error to raise."""
        place = self._provider.endpoints.pass_over(LOGS)
        remedy = "name an endpoint with all logs in rpc_urls of the network profile; an archive of states is not needed"
        return RpcRefused("tell all logs", f"{place}: {why}", remedy)


def _places(contracts: Addresses, everything: bool) -> list[Address]:
    """Of the contracts whose logs are read; the vault's too if everything is."""
    places = [contracts.swarm, contracts.court, contracts.payroll, *([contracts.vault] if everything else [])]
    return places + ([] if contracts.chair == NOBODY else [contracts.chair])


def _as_told(logs: Sequence[RawLog]) -> list[RawLog]:
    return sorted(logs, key=lambda one: (one.block, one.log_index))


def _office(chair: ChairInfo | None) -> tuple[object, ...] | None:
    """Whose it is; its lease and how far the run is move on by themselves."""
    if chair is None:
        return None
    return (chair.trainers, chair.proposed, chair.term, chair.place, chair.ended, chair.from_step, chair.parent)


def _books(books: PoolBooks) -> tuple[object, ...]:
    return _terms(books.pool), books.posted, books.waiting


def _terms(pool: PoolInfo) -> tuple[object, ...]:
    """What does not change from one block to the next: endpoints are not at the same one."""
    moves = {"escrow", "owed", "has_members"}
    return tuple(getattr(pool, name) for name in PoolInfo.__struct_fields__ if name not in moves)
