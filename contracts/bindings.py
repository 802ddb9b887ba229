"""The thin Python face of the contracts, over synchronous web3.

Knows the ABIs, the frozen structs for views and events, and how to read logs and revert data. Sends
nothing and signs nothing: a write is an unsent `TransactionCall`; `node/chain` decides how it goes out.
"""

import json
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
from eth_hash.auto import keccak

from contracts.asking import at_once
from protocol.errors import IntellectError
from protocol.filing import Filing
from protocol.identity import Address, parse_address
from protocol.statements import Attestation, Earnings, EpochRoot, Invitation, TermSilent, Verdict, WorkCommitment
from protocol.upkeep import LEASE_SECONDS

ARTIFACTS = Path(__file__).resolve().parent / "artifacts"
NOBODY = Address("0x" + "00" * 20)
REVOKED = 2**32 - 1
"""Places that are taken of an invitation that its manager took back: all that there can be."""
MAX_LOG_BYTES = 16 * 1024
"""No event of ours has more data; a node of the chain that sends more is lying."""


class ContractError(IntellectError):
    """A contract's answer or log that does not have the form its ABI promises."""


class Addresses(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one deployment lies. chair: NOBODY where there is none: then each pool's manager trains."""

    token: Address
    vault: Address
    swarm: Address
    court: Address
    payroll: Address
    chair: Address = NOBODY


class TransactionCall(msgspec.Struct, frozen=True):
    """Who is called with what, unsent: numbers and fees come later. to: None deploys a contract."""

    to: Address | None
    data: bytes

    @property
    def intent(self) -> str:
        """Equal for equal calls: one is recognised after a restart, however it was numbered and paid."""
        return keccak((self.to or "create").encode() + self.data).hex()

    def fields(self) -> dict[str, Any]:
        """As a transaction's fields."""
        return {**({"to": _hex(self.to)} if self.to else {}), "data": "0x" + self.data.hex(), "value": 0}


# ---- views


class PoolParams(msgspec.Struct, frozen=True, kw_only=True):
    """What `createPool` is told. Amounts in token wei, times in seconds.

    guardian: may hold a table that waits; NOBODY: who opens the pool; delay: how long a table waits, a quarter to all
    of the window, 0: a quarter, six hours of a day;
    max_units_per_epoch: work units that a node can be paid for per epoch and unit of its size; units_per_epoch: that
    all nodes together can be paid for per epoch; slash_amount: what a fault costs for each unit of the
    node, at most what one bonds; invited: a node needs the manager's invitation; attested: only attested units count.
    """

    run_root: bytes = bytes(32)
    run_uri: str = ""
    requirement_root: bytes = bytes(32)
    bootnodes: tuple[str, ...] = ()
    manager: Address
    reward_per_unit: int
    guardian: Address = NOBODY
    window: int
    delay: int = 0
    epoch_seconds: int
    lease_seconds: int = LEASE_SECONDS
    max_units_per_epoch: int = 10**9
    units_per_epoch: int = 10**12
    slash_amount: int
    invited: bool = False
    attested: bool = False
    validators: tuple[Address, ...]
    threshold: int = 1


class Filings(msgspec.Struct, frozen=True):
    """What nodes filed of a pool that has ended. filed: units that were neither redeemed nor dropped; aside: what is
    left of the free units that were set aside for them; held_until: unix seconds, 0 if the guardian does not hold them;
    starts, ends: when filing begins and is over; redeems: from when what was filed is paid."""

    filed: int
    aside: int
    held_until: int
    starts: int
    ends: int
    redeems: int


class PoolInfo(msgspec.Struct, frozen=True):
    """One pool as the chain knows it. Amounts in token wei, times in seconds.

    opener: who opened it, may end it, and gets what is left; stopped_at: since when it is paused or over, 0 while it
    runs; has_members: whether anybody ever joined; escrow: what no table of earnings has promised; owed: what one has
    promised and nobody was paid yet; validators_from: when the proposed ones may take office, 0 without; seated: the
    chair's trainers, if it has any; delay: how long a table waits before it counts; guardian: may hold one; filings:
    None before the pool has ended.
    """

    id: int
    run_root: bytes
    requirement_root: bytes
    manager: Address
    opener: Address
    window: int
    epoch_seconds: int
    lease_seconds: int
    started_at: int
    stopped_at: int
    paused: bool
    ended: bool
    has_members: bool
    invited: bool
    attested: bool
    max_units_per_epoch: int
    units_per_epoch: int
    reward_per_unit: int
    slash_amount: int
    escrow: int
    owed: int
    run_uri: str
    bootnodes: tuple[str, ...]
    threshold: int
    validators_from: int
    validators: tuple[Address, ...]
    proposed: tuple[Address, ...]
    guardian: Address
    delay: int
    seated: tuple[Address, ...] = ()
    filings: Filings | None = None

    @property
    def trainers(self) -> tuple[Address, ...]:
        """Who may train, in the order of their turn: the manager where nobody was seated."""
        return self.seated or (self.manager,)

    def epoch_at(self, timestamp: int) -> int:
        """The epoch that a block timestamp falls into; 0 before the start."""
        return max(0, timestamp - self.started_at) // self.epoch_seconds

    def epoch_end(self, epoch: int) -> int:
        """The first second after the epoch."""
        return self.started_at + (epoch + 1) * self.epoch_seconds

    def maturity(self, epoch: int) -> int:
        """From this second on a table may say what was earned through this epoch."""
        return self.epoch_end(epoch) + self.window

    def countable(self, epoch: int) -> int:
        """From this second on what was earned in this epoch can be claimed, if its table is posted at once."""
        return self.maturity(epoch) + self.delay

    def is_enough(self, first: int, last: int) -> bool:
        """Whether a table of these epochs covers as much as it must: its delay, or the end of a pool that is over."""
        whole = (last + 1 - first) * self.epoch_seconds >= self.delay
        return whole or (self.ended and last >= self.epoch_at(self.stopped_at))

    def next_table(self, first: int) -> int:
        """From this second on a table of the epochs from `first` on may come."""
        last = first + max(-(-self.delay // self.epoch_seconds), 1) - 1
        return self.maturity(max(first, min(last, self.epoch_at(self.stopped_at))) if self.ended else last)

    @property
    def closes_at(self) -> int:
        """Of a pool that has ended: from then on no table may come."""
        return self.maturity(self.epoch_at(self.stopped_at)) + self.window

    @property
    def filing(self) -> Filings:
        """Of a pool that has ended."""
        ends = self.closes_at + self.window
        return self.filings or Filings(0, 0, 0, self.closes_at, ends, ends + self.delay)

    @property
    def left(self) -> int:
        """Token wei of the escrow that nobody has filed: what a sweep brings once its time has come."""
        waits = 0 if self.filing.aside else self.filing.filed
        return max(self.escrow - waits * self.reward_per_unit, 0) if self.ended else 0

    @property
    def swept_from(self) -> int:
        """Of a pool that has ended: from then on what no table has promised and nobody has filed goes back."""
        return self.filing.redeems if self.filing.filed else self.filing.ends


class NodeInfo(msgspec.Struct, frozen=True):
    """A node key. owner: its provider for life, None if it never had one; provider: None while it is not registered;
    units: that it answers for, after its removal until they are released; pool: of which it is a member, 0 for none;
    nonce: for its next registration; free_at: unix seconds, when a removed node may be released.
    """

    node: Address
    owner: Address | None
    units: int
    pool: int
    lease_until: int
    registered: bool
    nonce: int
    free_at: int = 0

    @property
    def provider(self) -> Address | None:
        return self.owner if self.registered else None


class MembershipRecord(msgspec.Struct, frozen=True):
    """A node's standing in a pool, without its contact. provider: None if it never joined; slashed_at: by judges, unix
    seconds, 0 for never; case: the vault's number of that slash, 0 for none; member_until: unix seconds, when its
    membership ends or ended; joined_block: where its last `Joined` can be read, with its contact.
    """

    node: Address
    provider: Address | None
    evicted: bool
    left: bool
    slashed_at: int
    case: int
    member_until: int
    joined_block: int

    @property
    def lease_until(self) -> int:
        """0 for who is no member any more."""
        return 0 if self.left else self.member_until


class MemberRecord(msgspec.Struct, frozen=True):
    """A node's standing in a pool. contact: the multiaddr it last told; lease_until: unix seconds."""

    node: Address
    provider: Address
    contact: str
    evicted: bool
    left: bool
    lease_until: int


class Stake(msgspec.Struct, frozen=True):
    """A provider's stake in token wei. withdrawable_at: unix seconds, 0 if nothing was ever unbonded; frozen: taken
    by slashes that may still be overturned.
    """

    bonded: int
    unbonding: int
    withdrawable_at: int
    frozen: int


class CaseState(IntEnum):
    NONE = 0
    FROZEN = 1
    FINAL = 2
    OVERTURNED = 3


class CaseInfo(msgspec.Struct, frozen=True):
    """A slash that judges of `pool` ordered. amount: token wei that it takes when it is final, if other cases have
    left so much; final_at: unix seconds; bond: token wei that its carrier put up, and an appeal does.
    """

    id: int
    provider: Address
    final_at: int
    state: CaseState
    appealed: bool
    amount: int
    pool: int
    bond: int
    carrier: Address


class PostedEarnings(msgspec.Struct, frozen=True):
    """The newest table of earnings of a pool. epoch: the last one that is in it, None before the first table; root: of
    its Merkle tree; total: units of all nodes since the pool began; last_units, last_epochs: what this table added, and
    for how many epochs.
    """

    epoch: int | None
    root: bytes
    total: int
    last_units: int = 0
    last_epochs: int = 0

    def epochs_left(self, units: int) -> int | None:
        """For how many epochs of the last size these units last; None where nobody has earned anything yet."""
        return units * self.last_epochs // self.last_units if self.last_units else None


class WaitingEarnings(msgspec.Struct, frozen=True):
    """A table that does not count yet. epoch: the last one that is in it; counts_at: unix seconds; held: by the
    guardian; signers: hash of those who signed it."""

    root: bytes
    total: int
    epoch: int
    counts_at: int
    held: bool
    signers: bytes


class PoolBooks(msgspec.Struct, frozen=True):
    """A pool and its tables, as they stood at one moment. posted: the newest one that counts; waiting: the one that
    does not yet."""

    pool: PoolInfo
    posted: PostedEarnings
    waiting: WaitingEarnings | None


# ---- events


class ChairInfo(msgspec.Struct, frozen=True):
    """Who leads a pool. trainers: in the order of their turn; proposed_from: when the proposed ones may take their
    places, 0 without; place: of the holder among the trainers; until: end of its lease, or when its term was ended;
    from_step, parent: the first policy that is the holder's, and the root of the one before; reached: how far the run
    has come, as holders said on holding, or a quorum on ending a term."""

    pool: int
    trainers: tuple[Address, ...]
    lease_seconds: int
    grace_seconds: int
    proposed: tuple[Address, ...]
    proposed_from: int
    term: int
    place: int
    ended: bool
    until: int
    from_step: int
    reached: int
    parent: bytes

    @property
    def holder(self) -> Address:
        return self.trainers[self.place]

    def turn(self, trainer: Address) -> int:
        """From when it may take the next term, unix seconds; who is no trainer here never may."""
        count = len(self.trainers)
        behind = (self.trainers.index(trainer) - self.place - 1) % count
        return self.until + behind * self.grace_seconds


class RawLog(msgspec.Struct, frozen=True):
    """A log entry as the chain gives it, bounded and typed, not yet understood."""

    address: Address
    topics: tuple[bytes, ...]
    data: bytes
    block: int
    block_hash: bytes
    transaction: str
    log_index: int


class ChainEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What every event carries: where it stands on the chain."""

    block: int
    transaction: str
    log_index: int


class NodeRegistered(ChainEvent, frozen=True, kw_only=True):
    provider: Address
    node: Address
    units: int


class NodeRemoved(ChainEvent, frozen=True, kw_only=True):
    provider: Address
    node: Address
    units: int
    free_at: int


class NodeReleased(ChainEvent, frozen=True, kw_only=True):
    provider: Address
    node: Address
    units: int


class PoolEvent(ChainEvent, frozen=True, kw_only=True):
    """An event of one pool."""

    pool: int


class PoolCreated(PoolEvent, frozen=True, kw_only=True):
    """params: all terms, as the opener gave them; the guardian is the opener if they name nobody."""

    manager: Address
    opener: Address
    params: PoolParams


class PoolFunded(PoolEvent, frozen=True, kw_only=True):
    payer: Address
    amount: int
    escrow: int


class PoolRunSet(PoolEvent, frozen=True, kw_only=True):
    run_root: bytes


class BootnodesSet(PoolEvent, frozen=True, kw_only=True):
    """bootnodes: multiaddrs, one a line, as the manager wrote them: hostile input."""

    bootnodes: str


class PoolPaused(PoolEvent, frozen=True, kw_only=True):
    pass


class PoolResumed(PoolEvent, frozen=True, kw_only=True):
    pass


class PoolEnded(PoolEvent, frozen=True, kw_only=True):
    pass


class PoolSwept(PoolEvent, frozen=True, kw_only=True):
    opener: Address
    amount: int


class Joined(PoolEvent, frozen=True, kw_only=True):
    """contact is whatever the node wrote: treat it as hostile input."""

    node: Address
    provider: Address
    contact: str
    lease_until: int


class Left(PoolEvent, frozen=True, kw_only=True):
    node: Address
    provider: Address


class NodeAttested(PoolEvent, frozen=True, kw_only=True):
    """made_at, until: unix seconds; units 0 took earlier ones back."""

    node: Address
    units: int
    made_at: int
    until: int


class EarningsPosted(PoolEvent, frozen=True, kw_only=True):
    """A quorum's table of everything through `epoch`. total: units of all nodes since the pool began; blob: of the file
    that names those of its lines; counts_at: unix seconds, unless it is held or dropped."""

    epoch: int
    number: int
    root: bytes
    total: int
    blob: bytes
    counts_at: int
    signers: tuple[Address, ...]


class EarningsHeld(PoolEvent, frozen=True, kw_only=True):
    """The guardian doubts the table that waits: it counts later, unless the arbiter drops it."""

    epoch: int
    counts_at: int


class EarningsDropped(PoolEvent, frozen=True, kw_only=True):
    """The arbiter found the table that waited false: it never counts."""

    epoch: int
    root: bytes


class Claimed(PoolEvent, frozen=True, kw_only=True):
    """Units that were paid now, for `amount` token wei."""

    node: Address
    provider: Address
    units: int
    amount: int


class GivenBack(PoolEvent, frozen=True, kw_only=True):
    """Units of an evicted node that the pool has again."""

    node: Address
    units: int


class Filed(PoolEvent, frozen=True, kw_only=True):
    """Units of an epoch that a node showed where no table came."""

    node: Address
    epoch: int
    units: int


class FilingsHeld(PoolEvent, frozen=True, kw_only=True):
    """The guardian doubts what was filed. until: unix seconds; the arbiter may drop it till then."""

    until: int


class FilingDropped(PoolEvent, frozen=True, kw_only=True):
    """The arbiter found false what a node filed."""

    node: Address
    units: int


class Redeemed(PoolEvent, frozen=True, kw_only=True):
    """What a node filed was paid: of the `filed` units those that were free, for `amount` token wei; 0 for a node that
    was evicted, whose units the pool has again."""

    node: Address
    provider: Address
    filed: int
    units: int
    amount: int


class Slashed(PoolEvent, frozen=True, kw_only=True):
    """amount: token wei taken; reason: checks.Reason, 200 for contradicting verdicts, 201 for a root that
    contradicts another or a verdict, or 202 for a table that was dropped or contradicts another; file_root: for these
    the work's id, or the root; case_id: of the vault's case while the
    slash may be overturned, 0 if it is final.
    """

    node: Address
    provider: Address
    reason: int
    amount: int
    file_root: bytes
    case_id: int


class SlashOverturned(PoolEvent, frozen=True, kw_only=True):
    """compensation: token wei that the provider has of the carrier's bond."""

    node: Address
    case_id: int
    compensation: int


class Admitted(PoolEvent, frozen=True, kw_only=True):
    """A node may join by an invitation. invitee: whom that named."""

    node: Address
    invitee: Address


class ValidatorsProposed(PoolEvent, frozen=True, kw_only=True):
    """from_: when they may take office."""

    validators: tuple[Address, ...]
    threshold: int
    from_: int


class InvitationsRevoked(PoolEvent, frozen=True, kw_only=True):
    invitees: tuple[Address, ...]


class ValidatorsSet(PoolEvent, frozen=True, kw_only=True):
    """number: of the bench, from 1 on."""

    number: int
    validators: tuple[Address, ...]
    threshold: int


class ValidatorStruck(PoolEvent, frozen=True, kw_only=True):
    validator: Address


class TrainersSeated(PoolEvent, frozen=True, kw_only=True):
    """trainers: in the order of their turn."""

    trainers: tuple[Address, ...]
    lease_seconds: int
    grace_seconds: int


class TrainersProposed(PoolEvent, frozen=True, kw_only=True):
    """from_: when they may take their places."""

    trainers: tuple[Address, ...]
    from_: int


class TermTaken(PoolEvent, frozen=True, kw_only=True):
    """from_step: the first policy that is the holder's; parent: root of the one before it, zeros before the first;
    until: the lease's end, unix seconds."""

    holder: Address
    term: int
    from_step: int
    parent: bytes
    until: int


class TermHeld(PoolEvent, frozen=True, kw_only=True):
    """How far the holder says that it is."""

    holder: Address
    term: int
    step: int
    policy_root: bytes
    until: int


class TermEnded(PoolEvent, frozen=True, kw_only=True):
    """reached: how far the run has come; told again where other words of a quorum correct it."""

    term: int
    ended_at: int
    reached: int


class Bonded(ChainEvent, frozen=True, kw_only=True):
    provider: Address
    payer: Address
    amount: int
    bonded: int


class Unbonding(ChainEvent, frozen=True, kw_only=True):
    provider: Address
    amount: int
    unbonding: int
    withdrawable_at: int


class Rebonded(ChainEvent, frozen=True, kw_only=True):
    provider: Address
    amount: int
    bonded: int


class Withdrawn(ChainEvent, frozen=True, kw_only=True):
    provider: Address
    amount: int


class StakeSlashed(ChainEvent, frozen=True, kw_only=True):
    """Stake that is gone for ever. case_id: the vault's case that is final, 0 where evidence took it; burned: how much
    of the amount; its carrier and the treasury have the rest."""

    provider: Address
    case_id: int
    amount: int
    burned: int


class StakeFrozen(ChainEvent, frozen=True, kw_only=True):
    """pool: whose judges; carrier: who put up the bond, token wei."""

    case_id: int
    provider: Address
    amount: int
    final_at: int
    pool: int
    carrier: Address
    bond: int


class Appealed(ChainEvent, frozen=True, kw_only=True):
    case_id: int
    provider: Address
    final_at: int


class Overturned(ChainEvent, frozen=True, kw_only=True):
    case_id: int
    provider: Address
    amount: int


class Finalized(ChainEvent, frozen=True, kw_only=True):
    """amount: token wei that the case found to take."""

    case_id: int
    provider: Address
    amount: int


class Credited(ChainEvent, frozen=True, kw_only=True):
    """The vault owes somebody more: `collect` pays it."""

    who: Address
    amount: int


class Collected(ChainEvent, frozen=True, kw_only=True):
    who: Address
    amount: int


class ArbiterSet(ChainEvent, frozen=True, kw_only=True):
    arbiter: Address


class SuccessorNamed(ChainEvent, frozen=True, kw_only=True):
    """successor: zeros for nobody; from_: when it may accept the arbiter's office, unix seconds."""

    successor: Address
    from_: int


@cache
def artifact(name: str) -> Mapping[str, Any]:
    """The checked-in build of one contract: {abi, bytecode, deployedBytecode}."""
    return json.loads((ARTIFACTS / f"{name}.json").read_bytes())


def _snake(name: str) -> str:
    plain = re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()
    return plain + "_" if keyword.iskeyword(plain) else plain


class _EventForm(msgspec.Struct, frozen=True):
    kind: type[ChainEvent]
    topic: bytes
    indexed: tuple[tuple[str, str], ...]
    plain: tuple[Mapping[str, Any], ...]


def _event_form(kind: type[ChainEvent], entry: Mapping[str, Any]) -> _EventForm:
    inputs = entry["inputs"]
    signature = f"{entry['name']}({','.join(_abi_type(part) for part in inputs)})"
    return _EventForm(
        kind=kind,
        topic=keccak(signature.encode()),
        indexed=tuple((_snake(part["name"]), part["type"]) for part in inputs if part["indexed"]),
        plain=tuple(part for part in inputs if not part["indexed"]),
    )


@cache
def _event_forms(contract: str) -> dict[bytes, _EventForm]:
    kinds = {kind.__name__: kind for family in (ChainEvent, PoolEvent) for kind in family.__subclasses__()}
    entries = [entry for entry in artifact(contract)["abi"] if entry["type"] == "event"]
    forms = [_event_form(kinds[entry["name"]], entry) for entry in entries if entry["name"] in kinds]
    return {form.topic: form for form in forms}


def topic_of(kind: type[ChainEvent]) -> bytes:
    """topic0 of an event type."""
    forms = (form for contract in Contracts.SLOTS.values() for form in _event_forms(contract).values())
    return next(form.topic for form in forms if form.kind is kind)


def pool_topic(pool: int) -> bytes:
    """topic1 of every event of a pool."""
    return pool.to_bytes(32)


def parse_log(log: RawLog, addresses: Addresses) -> ChainEvent | None:
    """The typed event of a log of our contracts; None for a log that is not ours to know.

    Raises ContractError if a log of ours does not have its event's form.
    """
    slots = {addresses.swarm: "Swarm", addresses.vault: "StakeVault", addresses.court: "Court"}
    slots[addresses.payroll] = "Payroll"
    if addresses.chair != NOBODY:
        slots[addresses.chair] = "Chair"
    contract = slots.get(log.address)
    if contract is None or not log.topics:
        return None
    form = _event_forms(contract).get(log.topics[0])
    if form is None:
        return None
    try:
        values = _log_values(form, log)
    except ValueError as error:
        raise ContractError(
            f"a {form.kind.__name__} event cannot be read",
            f"log {log.log_index} of {log.transaction} does not have its form",
            "use another RPC endpoint",
        ) from error
    return form.kind(block=log.block, transaction=log.transaction, log_index=log.log_index, **values)


def _log_values(form: _EventForm, log: RawLog) -> dict[str, Any]:
    if len(log.topics) != len(form.indexed) + 1 or len(log.data) > MAX_LOG_BYTES:
        raise ValueError("wrong number of topics, or too much data")
    indexed = zip(form.indexed, log.topics[1:], strict=True)
    values = {name: _python_value(abi, _topic_value(abi, topic)) for (name, abi), topic in indexed}
    plain = abi_decode([_abi_type(part, "bytes") for part in form.plain], log.data)
    values |= {_snake(part["name"]): _view_value(part, told) for part, told in zip(form.plain, plain, strict=True)}
    if form.kind is PoolCreated:
        given = dict(zip(PoolParams.__struct_fields__, values["params"], strict=True))
        values["params"] = PoolParams(**{**given, "bootnodes": tuple(given["bootnodes"].split())})
    return values


def _topic_value(abi: str, topic: bytes) -> Any:
    """Of an indexed field. The common forms without the library, which took two thirds of the time that reading a
    pool's history does."""
    if abi == "address" and not any(topic[:12]):
        return "0x" + topic[12:].hex()
    if abi == "uint256":
        return int.from_bytes(topic)
    return topic if abi == "bytes32" else abi_decode([abi], topic)[0]


def _python_value(abi: str, value: Any) -> Any:
    if abi == "address":
        return parse_address(value)
    if abi == "address[]":
        return tuple(parse_address(each) for each in value)
    return value.decode(errors="replace") if abi == "string" else value


def raw_log(entry: Mapping[str, Any]) -> RawLog:
    """From a log as an endpoint sends it, in hex, or as web3 hands it on; raises ContractError for anything out of
    bounds."""
    try:
        log = RawLog(
            address=parse_address(entry["address"]),
            topics=tuple(_plain_bytes(topic) for topic in entry["topics"]),
            data=_plain_bytes(entry["data"]),
            block=_plain_int(entry["blockNumber"]),
            block_hash=_plain_bytes(entry["blockHash"]),
            transaction="0x" + _plain_bytes(entry["transactionHash"]).hex(),
            log_index=_plain_int(entry["logIndex"]),
        )
    except (KeyError, TypeError, ValueError, IntellectError) as error:
        raise ContractError("a log cannot be read", repr(error)[:200], "use another RPC endpoint") from error
    if len(log.topics) > 4 or len(log.data) > MAX_LOG_BYTES or any(len(t) != 32 for t in log.topics):
        raise ContractError("a log cannot be read", "it is out of bounds", "use another RPC endpoint")
    return log


def _plain_bytes(value: str | bytes) -> bytes:
    return bytes.fromhex(value.removeprefix("0x")) if isinstance(value, str) else bytes(value)


def _plain_int(value: str | int) -> int:
    return int(value, 16) if isinstance(value, str) else int(value)


# ---- reverts


class Revert(msgspec.Struct, frozen=True):
    """Why a call failed: a custom error's name and arguments, or "Error"/"Panic" with Solidity's own."""

    name: str
    args: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value}' for name, value in self.args.items())})"


@cache
def _error_forms() -> dict[bytes, tuple[str, tuple[tuple[str, str], ...]]]:
    forms: dict[bytes, tuple[str, tuple[tuple[str, str], ...]]] = {
        b"\x08\xc3\x79\xa0": ("Error", (("message", "string"),)),
        b"\x4e\x48\x7b\x71": ("Panic", (("code", "uint256"),)),
    }
    for contract in Contracts.SLOTS.values():
        for entry in artifact(contract)["abi"]:
            if entry["type"] == "error":
                inputs = tuple((_snake(part["name"]), part["type"]) for part in entry["inputs"])
                signature = f"{entry['name']}({','.join(abi for _, abi in inputs)})"
                forms[keccak(signature.encode())[:4]] = (entry["name"], inputs)
    return forms


def parse_revert(data: bytes) -> Revert | None:
    """The custom error in a call's return data; None if it is none of ours."""
    form = _error_forms().get(data[:4])
    if form is None or len(data) > MAX_LOG_BYTES:
        return None
    name, inputs = form
    try:
        values = abi_decode([abi for _, abi in inputs], data[4:])
    except ValueError:
        return None
    pairs = zip(inputs, values, strict=True)
    return Revert(name, {part: parse_address(value) if abi == "address" else value for (part, abi), value in pairs})


def error_inputs(name: str) -> tuple[tuple[str, str], ...] | None:
    """(name, ABI type) of the arguments of one of our contracts' errors; None if it is none of ours."""
    return next((inputs for known, inputs in _error_forms().values() if known == name), None)


# ---- ABI. Imported when it is first asked for: a network profile needs the addresses only, and refusals come quickly.


def abi_decode(types: Sequence[str], data: bytes) -> tuple[Any, ...]:
    """Raises ValueError."""
    from eth_abi.abi import decode
    from eth_abi.exceptions import DecodingError

    try:
        return decode(types, data)
    except (DecodingError, OverflowError) as error:
        raise ValueError(str(error)) from error


def abi_encode(types: Sequence[str], values: Sequence[Any]) -> bytes:
    """Raises ValueError."""
    from eth_abi.exceptions import EncodingError

    try:
        return _codec().encode(types, values)
    except (EncodingError, TypeError) as error:
        raise ValueError(str(error)) from error


@cache
def _codec() -> Any:
    from eth_abi.codec import ABICodec
    from eth_abi.decoding import BytesDecoder
    from eth_abi.encoding import BytesEncoder
    from eth_abi.exceptions import ValueOutOfBounds
    from eth_abi.registry import BaseEquals, registry

    class WholeBytesEncoder(BytesEncoder):
        """What is short of a byte is no root, where eth-abi would fill it up to another one."""

        def validate_value(self, value: Any) -> None:
            super().validate_value(value)
            if len(value) * 8 != self.value_bit_size:
                self.invalidate_value(value, ValueOutOfBounds, f"it has {len(value)} bytes")

    own = registry.copy()
    own.unregister("bytes<M>")
    own.register(BaseEquals("bytes", with_sub=True), WholeBytesEncoder, BytesDecoder, label="bytes<M>")
    return ABICodec(own)


# ---- forms


class _FunctionForm(msgspec.Struct, frozen=True):
    """outputs: as an ABI has them."""

    selector: bytes
    inputs: tuple[str, ...]
    outputs: tuple[Mapping[str, Any], ...]


@cache
def function_forms(contract: str) -> dict[str, _FunctionForm]:
    """No name of ours is overloaded."""
    forms: dict[str, _FunctionForm] = {}
    for entry in artifact(contract)["abi"]:
        if entry["type"] == "function":
            inputs = tuple(_abi_type(part) for part in entry["inputs"])
            selector = keccak(f"{entry['name']}({','.join(inputs)})".encode())[:4]
            forms[entry["name"]] = _FunctionForm(selector, inputs, tuple(entry["outputs"]))
    return forms


def _called(contract: str, name: str, given: Sequence[Any]) -> bytes:
    form = function_forms(contract)[name]
    try:
        return form.selector + abi_encode(form.inputs, given)
    except ValueError as error:
        raise ValueError(f"{name} of {contract} does not take this: {error}") from error


def write(place: Address, contract: str, name: str, *given: Any) -> TransactionCall:
    """Raises ValueError for what the ABI does not take. Without web3's own forms: they took a fifth of what a command
    that sends a transaction computes."""
    return TransactionCall(place, _called(contract, name, given))


def creation(contract: str, *given: Any) -> TransactionCall:
    """given: what the constructor takes. Raises ValueError."""
    built = artifact(contract)
    born = next((entry["inputs"] for entry in built["abi"] if entry["type"] == "constructor"), [])
    code = bytes.fromhex(built["bytecode"].removeprefix("0x"))
    return TransactionCall(None, code + abi_encode([_abi_type(part) for part in born], given))


def _abi_type(part: Mapping[str, Any], text: str = "string") -> str:
    """As signatures have it. text: "bytes" to decode it: a string is whatever bytes its author chose, and one
    member's bad UTF-8 must not hide the others."""
    if part["type"].startswith("tuple"):
        return f"({','.join(_abi_type(each, text) for each in part['components'])}){part['type'][5:]}"
    return text if part["type"] == "string" else part["type"]


def _view_value(part: Mapping[str, Any], value: Any) -> Any:
    if part["type"] == "tuple[]":
        return [_view_value({**part, "type": "tuple"}, each) for each in value]
    if part["type"] == "tuple":
        return tuple(_view_value(each, found) for each, found in zip(part["components"], value, strict=True))
    return _python_value(part["type"], value)


# ---- the contracts

T = TypeVar("T", bound=msgspec.Struct)


class Contracts:
    """One deployment behind one web3. Views block on the network; writes are returned unsent."""

    SLOTS: ClassVar[dict[str, str]] = {
        "token": "TestToken",
        "vault": "StakeVault",
        "swarm": "Swarm",
        "court": "Court",
        "payroll": "Payroll",
        "chair": "Chair",
    }

    def __init__(self, web3: Any, addresses: Addresses, eth: Any = None) -> None:
        """web3: a Web3; for views, whatever has its `eth.call`. eth: has that, and `get_code`, with less ado."""
        self.web3, self.eth = web3, eth or web3.eth
        self.addresses = addresses

    def places(self) -> dict[str, Address]:
        """Where which contract should be."""
        slots = [slot for slot in self.SLOTS if slot != "chair" or self.addresses.chair != NOBODY]
        return {slot: getattr(self.addresses, slot) for slot in slots}

    def code(self, address: Address) -> bytes:
        return bytes(self.eth.get_code(_hex(address)))

    def write(self, slot: str, name: str, *given: Any) -> TransactionCall:
        return write(getattr(self.addresses, slot), self.SLOTS[slot], name, *given)

    def view(self, slot: str, view: str, *given: Any) -> Any:
        """What a view answers: one value, or a list of them. Without web3's own forms, which take longer than the
        question: daemons ask some each second."""
        form, data = function_forms(self.SLOTS[slot])[view], _called(self.SLOTS[slot], view, given)
        answer = bytes(self.eth.call({"to": _hex(getattr(self.addresses, slot)), "data": "0x" + data.hex()}))
        try:
            found = abi_decode([_abi_type(part, "bytes") for part in form.outputs], answer)
        except ValueError as error:
            from web3.exceptions import BadFunctionCallOutput

            raise BadFunctionCallOutput(f"{len(answer)} bytes are no answer of {view}") from error
        values = [_view_value(part, value) for part, value in zip(form.outputs, found, strict=True)]
        return values[0] if len(values) == 1 else values

    # views

    def pool(self, pool: int) -> PoolInfo:
        return _pool_info(pool, *at_once(*self._about(pool)))

    def books(self, pool: int, known: PoolInfo | None = None) -> PoolBooks:
        """A pool with its tables. known: the pool as it was read before; then what money does to it is asked for, and
        its terms and people are taken to be the same."""
        waits = partial(self.waiting, pool)
        if known is None:
            *about, waiting = at_once(*self._about(pool), waits)
            return PoolBooks(_pool_info(pool, *about), _posted(about[1]), waiting)
        filed = [lambda: _filings(self.view("payroll", "filingsOf", pool))] if known.ended else []
        book, waiting, *filings = at_once(lambda: self.view("payroll", "bookOf", pool), waits, *filed)
        moved = _escrow(book, known.reward_per_unit) | ({"filings": filings[0]} if filings else {})
        return PoolBooks(msgspec.structs.replace(known, **moved), _posted(book), waiting)

    def _about(self, pool: int) -> list[Callable[[], Any]]:
        """What `_pool_info` is made of, in its order."""
        return [
            lambda: self.view("swarm", "poolInfo", pool),
            lambda: self.view("payroll", "bookOf", pool),
            lambda: self.view("court", "benchOf", pool),
            lambda: self.view("payroll", "filingsOf", pool),
            lambda: self.chair_of(pool),
        ]

    def chair_of(self, pool: int) -> ChairInfo | None:
        """Who leads; None where nobody was seated: then the manager does."""
        if self.addresses.chair == NOBODY:
            return None
        lease, grace, start, trainers, proposed = self.view("chair", "seatingOf", pool)
        if not trainers:
            return None
        term = self.view("chair", "termOf", pool)
        if not term[1] < len(trainers):  # nothing but the endpoint says so
            raise ContractError(
                "the chair's answer cannot be read", f"nobody has place {term[1]}", "ask another endpoint"
            )
        seated = (tuple(trainers), lease, grace, tuple(proposed), start)
        return ChairInfo(pool, *seated, *term)

    def pool_count(self) -> int:
        return self.view("swarm", "poolCount")

    def node_info(self, node: Address) -> NodeInfo:
        told = self.view("swarm", "nodeInfo", node)
        owner, registered, nonce, units, pool, lease_until, free_at, *_ = told
        return NodeInfo(node, None if owner == NOBODY else owner, units, pool, lease_until, registered, nonce, free_at)

    def member_count(self, pool: int) -> int:
        """How many nodes ever joined."""
        return self.view("swarm", "memberCount", pool)

    def members(self, pool: int, first: int, most: int) -> list[MembershipRecord]:
        """Up to `most` of those who ever joined, from number `first` on, in the order in which they did."""
        nodes, values = self.view("swarm", "membersOf", pool, first, most)
        return [_member_state(node, v) for node, v in zip(nodes, values, strict=True)]

    def member(self, pool: int, node: Address) -> MembershipRecord:
        return _member_state(node, self.view("swarm", "memberInfo", pool, node))

    def admits(self, pool: int, node: Address) -> bool:
        """Whether a pool by invitation takes this node as it is; its manager it takes in any case."""
        return self.view("court", "admits", pool, node)

    def places_taken(self, pool: int, invitee: Address) -> int:
        """REVOKED of an invitation that was taken back."""
        return self.view("court", "placesTaken", pool, invitee)

    def earnings(self, pool: int) -> PostedEarnings:
        """The newest table that counts."""
        return _posted(self.view("payroll", "bookOf", pool))

    def waiting(self, pool: int) -> WaitingEarnings | None:
        """The table that does not count yet."""
        root, total, epochs, counts_at, held, signers = self.view("payroll", "waitingOf", pool)
        return WaitingEarnings(root, total, epochs - 1, counts_at, held, signers) if counts_at else None

    def claimed(self, pool: int, node: Address) -> int:
        """Units of the node that were paid, or went back to the pool."""
        return self.view("payroll", "paidOf", pool, node)[0]

    def filed_of(self, pool: int, node: Address, epoch: int) -> int:
        """Units of an epoch that the node has filed, redeemed and dropped ones too."""
        return self.view("payroll", "filedOf", pool, node, epoch)

    def filed_by(self, pool: int, node: Address) -> int:
        """Units that the node filed, and that were neither redeemed nor dropped."""
        return self.view("payroll", "paidOf", pool, node)[2]

    def allowance_of(self, pool: int, node: Address) -> int:
        """How many units the node's size allows to be paid now, whatever it has earned."""
        return self.view("payroll", "allowanceOf", pool, node)

    def stake_of(self, provider: Address) -> Stake:
        (bonded, unbonding, withdrawable_at), frozen = self.view("vault", "stakeOf", provider)
        return Stake(bonded, unbonding, withdrawable_at, frozen)

    def case(self, case: int) -> CaseInfo:
        provider, final_at, state, *rest = self.view("vault", "caseInfo", case)
        return CaseInfo(case, provider, final_at, CaseState(state), *rest)

    def slash_of(self, pool: int, node: Address) -> int:
        """Token wei that a fault of the node costs in the pool: its price for each unit that the node answers for."""
        pool_info, node_info = at_once(
            lambda: self.view("swarm", "poolInfo", pool), lambda: self.view("swarm", "nodeInfo", node)
        )
        return pool_info[0][2] * node_info[3]

    def case_bond(self, amount: int) -> int:
        """Token wei that whoever carries a slash of `amount` puts up, at most."""
        share, least = at_once(lambda: self.view("vault", "bondBps"), lambda: self.view("vault", "minBond"))
        return max(amount * share // 10_000, least)

    def credit_of(self, who: Address) -> int:
        """Token wei that the vault owes: bonds of cases that were won, shares, what was slashed."""
        return self.view("vault", "creditOf", who)

    def backing_of(self, provider: Address) -> int:
        """What `expel` compares with `required_stake`: what is bonded, or was before a case that is not final."""
        return self.view("vault", "backingOf", provider)

    def required_stake(self, provider: Address, more_units: int = 0, node: Address | None = None) -> int:
        """Token wei that `provider` must have bonded for the nodes that it has, with `more_units` more or fewer.

        To register more, units of removed nodes that nobody has released yet count besides; not those of `node`, if it
        is the one that comes back.
        """
        (registered, leaving), base, per_unit, *back = at_once(
            lambda: self.view("swarm", "unitsOf", provider),
            lambda: self.view("swarm", "baseStake"),
            lambda: self.view("swarm", "stakePerUnit"),
            *([lambda: self.node_info(node)] if node and more_units > 0 else []),
        )
        leaving -= sum(info.units for info in back if info.owner == provider and not info.registered)
        units = registered + more_units + (leaving if more_units > 0 else 0)
        return base + per_unit * units if units else 0

    def leaving_units(self, provider: Address) -> int:
        """Units of nodes that the provider removed, and that nobody has released yet."""
        return self.view("swarm", "unitsOf", provider)[1]

    def min_window(self) -> int:
        """No pool's window is shorter, in seconds."""
        return self.view("swarm", "minWindow")

    def appeal_seconds(self) -> int:
        """How long after a slash by judgement, and once more after its appeal, it can be overturned."""
        return self.view("vault", "appealSeconds")

    def token_balance(self, holder: Address) -> int:
        return self.view("token", "balanceOf", holder)

    def allowance(self, owner: Address, spender: Address) -> int:
        return self.view("token", "allowance", owner, spender)

    # writes, unsent: money

    def mint(self, to: Address, amount: int) -> TransactionCall:
        return self.write("token", "mint", to, amount)

    def approve(self, spender: Address, amount: int) -> TransactionCall:
        return self.write("token", "approve", spender, amount)

    def transfer(self, to: Address, amount: int) -> TransactionCall:
        return self.write("token", "transfer", to, amount)

    def transfer_from(self, owner: Address, to: Address, amount: int) -> TransactionCall:
        """As somebody whom the owner allows it."""
        return self.write("token", "transferFrom", owner, to, amount)

    def bond(self, provider: Address, amount: int) -> TransactionCall:
        return self.write("vault", "bond", provider, amount)

    def unbond(self, amount: int) -> TransactionCall:
        return self.write("vault", "unbond", amount)

    def rebond(self, amount: int) -> TransactionCall:
        return self.write("vault", "rebond", amount)

    def withdraw(self) -> TransactionCall:
        return self.write("vault", "withdraw")

    def appeal(self, case: int) -> TransactionCall:
        return self.write("vault", "appeal", case)

    def finalize(self, case: int) -> TransactionCall:
        return self.write("vault", "finalize", case)

    def collect(self, who: Address) -> TransactionCall:
        return self.write("vault", "collect", who)

    def name_successor(self, successor: Address) -> TransactionCall:
        """As the arbiter; NOBODY undoes it."""
        return self.write("vault", "nameSuccessor", successor)

    def accept_arbiter(self) -> TransactionCall:
        return self.write("vault", "acceptArbiter")

    # writes, unsent: nodes

    def register_node(self, node: Address, units: int, deadline: int, node_signature: bytes) -> TransactionCall:
        return self.write("swarm", "registerNode", node, units, deadline, node_signature)

    def remove_node(self, node: Address) -> TransactionCall:
        return self.write("swarm", "removeNode", node)

    def remove_provider(self, nodes: Sequence[Address]) -> TransactionCall:
        """nodes: all that the sender still has."""
        return self.write("swarm", "removeProvider", list(nodes))

    def release(self, nodes: Sequence[Address]) -> TransactionCall:
        """Frees the stake that removed nodes bind; each of them must have answered long enough."""
        return self.write("swarm", "release", list(nodes))

    def expel(self, node: Address) -> TransactionCall:
        return self.write("swarm", "expel", node)

    # writes, unsent: pools

    def create_pool(self, params: PoolParams) -> TransactionCall:
        # The contract's struct has the same fields in the same order.
        delay = params.delay or -(-params.window // 4)
        values = msgspec.structs.asdict(params) | {"bootnodes": "\n".join(params.bootnodes), "delay": delay}
        return self.write("swarm", "createPool", tuple(values.values()))

    def fund_pool(self, pool: int, amount: int) -> TransactionCall:
        return self.write("payroll", "fund", pool, amount)

    def set_pool_run(self, pool: int, run_root: bytes) -> TransactionCall:
        return self.write("swarm", "setPoolRun", pool, run_root)

    def set_bootnodes(self, pool: int, bootnodes: Sequence[str]) -> TransactionCall:
        return self.write("swarm", "setBootnodes", pool, "\n".join(bootnodes))

    def pause_pool(self, pool: int) -> TransactionCall:
        return self.write("swarm", "pausePool", pool)

    def resume_pool(self, pool: int) -> TransactionCall:
        return self.write("swarm", "resumePool", pool)

    def end_pool(self, pool: int) -> TransactionCall:
        return self.write("swarm", "endPool", pool)

    def sweep(self, pool: int) -> TransactionCall:
        return self.write("payroll", "sweep", pool)

    def propose_validators(self, pool: int, validators: Sequence[Address], threshold: int) -> TransactionCall:
        return self.write("court", "proposeValidators", pool, list(validators), threshold)

    def apply_validators(self, pool: int) -> TransactionCall:
        return self.write("court", "applyValidators", pool)

    # writes, unsent: the chair

    def seat_trainers(self, pool: int, trainers: Sequence[Address], lease: int, grace: int) -> TransactionCall:
        """lease, grace: seconds."""
        return self.write("chair", "seat", pool, list(trainers), lease, grace)

    def propose_trainers(self, pool: int, trainers: Sequence[Address]) -> TransactionCall:
        return self.write("chair", "propose", pool, list(trainers))

    def apply_trainers(self, pool: int) -> TransactionCall:
        return self.write("chair", "applyTrainers", pool)

    def hold_chair(self, pool: int, step: int, policy_root: bytes) -> TransactionCall:
        return self.write("chair", "hold", pool, step, policy_root)

    def take_chair(self, pool: int, term: int, from_step: int, parent: bytes) -> TransactionCall:
        return self.write("chair", "take", pool, term, from_step, parent)

    def end_term(self, silent: Sequence[TermSilent], signatures: Sequence[bytes]) -> TransactionCall:
        """A quorum's words about one lease, and their signatures: the greatest step first."""
        first, steps = silent[0], [one.step for one in silent]
        return self.write("chair", "endTerm", first.pool, first.term, first.until, steps, list(signatures))

    def end_term_by_verdicts(
        self, term: int, commitment: WorkCommitment, verdicts: Sequence[Verdict], signatures: Sequence[bytes]
    ) -> TransactionCall:
        """commitment: of the holder, to a step; verdicts, signatures: a quorum's against it, in one order."""
        words = (term, _words(commitment), [_said(one) for one in verdicts], list(signatures))
        return self.write("chair", "endTermByVerdicts", *words)

    # writes, unsent: members and work

    def join(self, pool: int, contact: str) -> TransactionCall:
        return self.write("swarm", "join", pool, contact)

    def admit(self, node: Address, said: Invitation, signature: bytes, ticket: bytes = b"") -> TransactionCall:
        """signature: the manager's; ticket: the invitee's signature of a Ticket for the node, which only a node needs
        that neither is the invitee nor works for it."""
        shown = (said.invitee, said.places, said.deadline, signature, ticket)
        return self.write("court", "admit", said.pool, node, shown)

    def revoke_invitations(self, pool: int, invitees: Sequence[Address]) -> TransactionCall:
        return self.write("court", "revokeInvitations", pool, list(invitees))

    def leave(self, pool: int) -> TransactionCall:
        return self.write("swarm", "leavePool", pool)

    def attest(self, attestation: Attestation, signatures: Sequence[bytes]) -> TransactionCall:
        """signatures: a quorum's."""
        a = attestation
        return self.write("court", "attest", a.pool, a.node, a.units, a.made_at, a.until, list(signatures))

    def post_earnings(self, earnings: Earnings, signatures: Sequence[bytes]) -> TransactionCall:
        """signatures: a quorum's."""
        return self.write("payroll", "post", _words(earnings), list(signatures))

    def hold(self, pool: int) -> TransactionCall:
        """As the pool's guardian: the table that waits, or all that was filed."""
        return self.write("payroll", "hold", pool)

    def drop(self, pool: int, who: Sequence[Address]) -> TransactionCall:
        """As the arbiter: the table that is held, by its signers as its event told them; or what these nodes filed."""
        return self.write("payroll", "drop", pool, list(who))

    def file(self, pool: int, node: Address, filings: Sequence[Filing]) -> TransactionCall:
        """As the node or its provider: what validators named of it in epochs that no table has."""
        words = [
            (
                filing.epoch,
                filing.bench,
                filing.threshold,
                list(filing.validators),
                [(line.seat, _words(line.root), line.signature, line.units, list(line.proof)) for line in filing.lines],
            )
            for filing in filings
        ]
        return self.write("payroll", "file", pool, node, words)

    def redeem(self, pool: int, node: Address) -> TransactionCall:
        """What the node filed, or its share of what is free, is its provider's."""
        return self.write("payroll", "redeem", pool, node)

    def claim(self, pool: int, node: Address, units: int, proof: Sequence[bytes]) -> TransactionCall:
        """units: the node's line of the newest table; proof: from it to the table's root."""
        return self.write("payroll", "claim", pool, node, units, list(proof))

    # writes, unsent: faults

    def slash(
        self,
        commitment: WorkCommitment,
        node_signature: bytes,
        reason: int,
        signatures: Sequence[bytes],
        values: Sequence[bytes],
        rechecked: int,
    ) -> TransactionCall:
        """signatures: a quorum's, each of a Verdict (bit i of rechecked: of a Rechecked) with outcome 2, this reason
        and its own of the values."""
        words = (_words(commitment), node_signature, reason, list(signatures), list(values), rechecked)
        return self.write("court", "slash", *words)

    def evidence(
        self, first: WorkCommitment, first_signature: bytes, second: WorkCommitment, second_signature: bytes
    ) -> TransactionCall:
        return self.write("court", "evidence", [_words(first), _words(second)], [first_signature, second_signature])

    def verdict_evidence(
        self, pool: int, work: bytes, first: Verdict, first_signature: bytes, second: Verdict, second_signature: bytes
    ) -> TransactionCall:
        """Two verdicts of one validator on one work that differ in anything."""
        said = [_said(first), _said(second)]
        return self.write("court", "verdictEvidence", pool, work, said, [first_signature, second_signature])

    def tally_evidence(
        self,
        first: EpochRoot | Earnings,
        first_signature: bytes,
        second: EpochRoot | Earnings,
        second_signature: bytes,
    ) -> TransactionCall:
        """Two roots, or two tables, of one validator and epoch with one number."""
        said, signatures = [_words(first), _words(second)], [first_signature, second_signature]
        return self.write("court", "tallyEvidence", isinstance(first, Earnings), said, signatures)

    def leaf_evidence(
        self,
        root: EpochRoot,
        root_signature: bytes,
        leaf: tuple[Address, bytes, int, list[bytes]],
        verdict: Verdict,
        verdict_signature: bytes,
    ) -> TransactionCall:
        """A validator's root with a leaf (node, work, units, proof), and its verdict against that work."""
        signatures = [root_signature, verdict_signature]
        return self.write("court", "leafEvidence", _words(root), leaf, _said(verdict), signatures)

    def overturn(self, pool: int, node: Address) -> TransactionCall:
        return self.write("swarm", "overturn", pool, node)


def _pool_info(pool: int, about: Any, book: Any, bench: Any, filings: Any, chair: ChairInfo | None) -> PoolInfo:
    """From what the contracts answered."""
    terms, counters = about
    manager, reward, slash, units, stopped_at, delay, opener, guardian, *places = terms
    run_root, requirement_root, uri, bootnodes = places
    _, threshold, _, start, _, validators, proposed = bench

    def part(first: int, bits: int) -> int:
        """As Counters.sol lays them out."""
        return counters >> first & (1 << bits) - 1

    paused, ended, has_members, invited, attested = (bool(part(248 + flag, 1)) for flag in range(5))
    return PoolInfo(
        id=pool,
        run_root=run_root,
        requirement_root=requirement_root,
        manager=manager,
        opener=opener,
        window=part(168, 24),
        epoch_seconds=part(144, 24),
        lease_seconds=part(192, 24),
        started_at=part(112, 32),
        stopped_at=stopped_at,
        paused=paused,
        ended=ended,
        has_members=has_members,
        invited=invited,
        attested=attested,
        max_units_per_epoch=part(216, 32),
        units_per_epoch=units,
        reward_per_unit=reward,
        slash_amount=slash,
        **_escrow(book, reward),
        run_uri=uri,
        bootnodes=tuple(bootnodes.split()),
        threshold=threshold,
        validators_from=start,
        validators=tuple(validators),
        proposed=tuple(proposed),
        guardian=guardian,
        delay=delay,
        seated=chair.trainers if chair else (),
        filings=_filings(filings) if ended else None,
    )


def _escrow(book: Any, reward: int) -> dict[str, int]:
    """What the contract counts in units, in wei."""
    return {"escrow": book[0] * reward, "owed": book[1] * reward}


def _posted(book: Any) -> PostedEarnings:
    _, _, total, epochs, root, *last = book
    return PostedEarnings(epochs - 1 if epochs else None, root, total, *last)


def _filings(told: Any) -> Filings:
    filings, *times = told
    return Filings(*filings, *times)


def _member_state(node: Address, v: Sequence[Any]) -> MembershipRecord:
    return MembershipRecord(node, None if v[0] == NOBODY else v[0], *v[1:])


def _words(statement: WorkCommitment | EpochRoot | Earnings) -> tuple[Any, ...]:
    return msgspec.structs.astuple(statement)


def _said(verdict: Verdict) -> tuple[int, int, bytes]:
    return (verdict.outcome, verdict.reason, verdict.values)


def _hex(address: Address) -> Any:
    return parse_address(address)
