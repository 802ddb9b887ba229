"""Logs of the contracts, in ranges of the length that each endpoint stands; and what stands in logs only.

Blocking.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import structlog

from contracts.bindings import (
    Addresses,
    ChainEvent,
    ContractError,
    Contracts,
    Joined,
    MemberRecord,
    MembershipRecord,
    RawLog,
    parse_log,
    pool_topic,
    raw_log,
    topic_of,
)
from node.chain.endpoints import Endpoints
from node.chain.refusals import LOGS, EndpointRefused, RefusalKind
from node.chain.rpc import Eth
from protocol.identity import Address

E = TypeVar("E", bound=ChainEvent)
logger = structlog.get_logger()


class Logs:
    """Of one chain. addresses: of the contracts, by which logs are read."""

    def __init__(self, eth: Eth, endpoints: Endpoints, addresses: Addresses) -> None:
        self._eth, self._endpoints, self._addresses = eth, endpoints, addresses
        self._spans: dict[str, BlockSpan] = {}
        """Of each endpoint, by how it is shown."""

    @property
    def blocks(self) -> int:
        """Blocks whose logs the endpoint gives in one answer, as far as is known."""
        return self._span.blocks

    def within(self, first: int, last: int, topics: Sequence[Any], places: Sequence[Address]) -> list[RawLog]:
        """Ranges of the length that the endpoint stands."""
        found: list[RawLog] = []
        start = first
        while start <= last:
            end = min(start + self.blocks - 1, last)
            try:
                part = self._ask(start, end, topics, places)
            except EndpointRefused as refusal:
                if refusal.kind is not RefusalKind.RANGE or not self._span_of(refusal.endpoint).refused(
                    end - start + 1
                ):
                    raise
                continue
            self._span_of(self._endpoints.answered).answered(end - start + 1, len(part))
            found += part
            start = end + 1
        return found

    @property
    def _span(self) -> "BlockSpan":
        """Of the endpoint that is asked for logs first."""
        return self._span_of(self._endpoints.first_for(LOGS))

    def _span_of(self, endpoint: str) -> "BlockSpan":
        return self._spans.setdefault(endpoint, BlockSpan())

    def _ask(self, first: int, last: int, topics: Sequence[Any], places: Sequence[Address]) -> list[RawLog]:
        return self._between(hex(first), hex(last), topics, places)

    def _between(self, first: str, last: str, topics: Sequence[Any], places: Sequence[Address]) -> list[RawLog]:
        asked: Any = {"address": list(places), "fromBlock": first, "toBlock": last, "topics": list(topics)}
        return [raw_log(entry) for entry in self._eth.ask(LOGS, asked)]

    def up_to_newest(self, first: int, topics: Sequence[Any], places: Sequence[Address]) -> list[RawLog] | None:
        """From a block near the newest one on; None where the endpoint does not say."""
        try:
            return self._between(hex(first), "latest", topics, places)
        except EndpointRefused as refusal:
            logger.debug("chain.logs_not_told_beside", why=str(refusal))
            return None

    def events(self, kind: type[E], pool: int, first: int, last: int, place: Address) -> list[E]:
        """Those of one kind, of the contract at `place`. A log without their form is passed over."""
        found: list[E] = []
        topics = ["0x" + topic_of(kind).hex(), "0x" + pool_topic(pool).hex()]
        for log in self.within(first, last, topics, [place]):
            try:
                event = parse_log(log, self._addresses)
            except ContractError as error:
                logger.warning("chain.bad_log", why=error.why)
                continue
            if isinstance(event, kind):
                found.append(event)
        return found


class PoolMembers:
    """Who is in a pool; contacts are kept, each with the block of its log."""

    def __init__(self, contracts: Contracts, logs: Logs, place: Address) -> None:
        self._contracts, self._logs, self._place = contracts, logs, place
        self._contacts: dict[tuple[int, Address], tuple[int, str]] = {}

    def all(self, pool: int) -> list[MemberRecord]:
        count, states = self._contracts.member_count(pool), list[MembershipRecord]()
        member_batch = 256
        for first in range(0, count, member_batch):
            states += self._contracts.members(pool, first, member_batch)
        self._learn(pool, states)
        return [
            MemberRecord(
                s.node, s.provider, self._contacts.get((pool, s.node), (0, ""))[1], s.evicted, s.left, s.lease_until
            )
            for s in states
            if s.provider is not None
        ]

    def _learn(self, pool: int, states: Sequence[MembershipRecord]) -> None:
        """Contacts are in logs only, at the blocks that the contract remembers: those that we do not know yet."""
        wanted = {s.node: s.joined_block for s in states}
        blocks = sorted(
            block for node, block in wanted.items() if self._contacts.get((pool, node), (None, ""))[0] != block
        )
        while blocks:
            # One question for members that joined near each other, instead of one for each.
            near = [block for block in blocks if block < blocks[0] + self._logs.blocks]
            blocks = blocks[len(near) :]
            for event in self._logs.events(Joined, pool, near[0], near[-1], self._place):
                if wanted.get(event.node) == event.block:
                    self._contacts[pool, event.node] = (event.block, event.contact)


# How many blocks to ask for at once: more while answers are small, fewer where an endpoint refuses. Endpoints limit
# 1,000 to 100,000 blocks or 10,000 logs, and seldom say so.

LEAST, FIRST, MOST = 1, 256, 100_000


class BlockSpan:
    """`blocks`: of the next question."""

    def __init__(self) -> None:
        self.blocks = FIRST
        self._ceiling = MOST
        self._good = 0

    def answered(self, asked: int, logs: int) -> None:
        """asked: blocks of that question; one that was cut short by the end of the chain says nothing."""
        self._good += 1
        if self._good >= 64:  # answers after which a length that was refused is tried again
            self._good, self._ceiling = 0, MOST
        # Logs in one answer up to which the next range is twice as long, and from which on it is half as long. A log is
        # a kilobyte, and a megabyte holds the interpreter's lock for 20 ms while it is decoded.
        if logs >= 2_500:
            self.blocks = max(LEAST, self.blocks // 2)
        elif logs <= 1_000 and asked >= self.blocks:
            self.blocks = min(2 * self.blocks, self._ceiling)

    def refused(self, asked: int) -> bool:
        """Whether a shorter range is left to try."""
        self._good = 0
        if asked <= LEAST:
            return False
        self.blocks = max(LEAST, asked // 2)
        self._ceiling = self.blocks
        return True
