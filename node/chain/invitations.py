"""Invitations: what a network profile carries of them, and whether one of them lets a node into its pool.

A manager signs for an address, which is a node's or its provider's, or for a key that lies in the profile: whoever has
that file signs with it for a node of its own. The chain counts the places; pool, chain and contracts are signed too.
"""

import time
from collections.abc import Iterator, Sequence

import msgspec

from contracts.bindings import NOBODY, REVOKED, Contracts, PoolInfo, TransactionCall
from protocol.identity import Address, NodeKey, parse_address
from protocol.statements import Domain, Invitation, Ticket, is_signed_by, sign

MAX_INVITATIONS = 150
"""In one profile."""


class Invited(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of a profile's [[invitations]]. signature: the manager's, hex; key: the secret of the invitee, hex, where
    whoever has the file may use it; chain_id, pool, invitee, places, deadline: as `Invitation` signs them."""

    chain_id: int
    pool: int
    invitee: Address
    places: int
    deadline: int
    signature: str
    key: str = ""

    @property
    def said(self) -> Invitation:
        return Invitation(self.pool, self.invitee, self.places, self.deadline)

    def __repr__(self) -> str:
        return f"Invited({self.said})"  # profiles are logged and shown in tracebacks

    def bearer(self) -> NodeKey | None:
        return NodeKey(bytes.fromhex(self.key)) if self.key else None


def checked(one: Invited) -> Invited:
    """Raises ValueError, ProtocolError."""
    if not (0 < one.pool < 2**32 and 0 < one.places < REVOKED and 0 < one.deadline < 2**40 and one.chain_id > 0):
        raise ValueError("a number of an invitation is out of its range")
    if len(bytes.fromhex(one.signature)) != 65:
        raise ValueError("an invitation's signature must have 130 hex digits")
    invitee, bearer = parse_address(one.invitee), one.bearer()
    if bearer is not None and bearer.address != invitee:
        raise ValueError(f"the key of an invitation is not that of {invitee}")
    return msgspec.structs.replace(one, invitee=invitee)


def invite(
    manager: NodeKey, domain: Domain, pool: int, invitee: Address, places: int, deadline: int, *, key: str = ""
) -> Invited:
    """Signed."""
    signature = sign(manager, domain, Invitation(pool, invitee, places, deadline)).hex()
    named = {"chain_id": domain.chain_id, "pool": pool, "invitee": invitee, "places": places, "deadline": deadline}
    return Invited(**named, signature=signature, key=key)


def bearer_key() -> str:
    """A fresh secret, hex."""
    return NodeKey.generate().secret.hex()


class InvitationCheck(msgspec.Struct, frozen=True):
    """Whether a pool lets a node in, as far as invitations go. needed: it must be admitted first; by: what does that;
    why: in words, of the last look where nothing does."""

    needed: bool
    by: Invited | None
    why: str

    @property
    def shut(self) -> bool:
        return self.needed and self.by is None


OPEN_DOOR = InvitationCheck(False, None, "the pool is open: nobody needs an invitation")


def look(
    contracts: Contracts,
    domain: Domain,
    pool: PoolInfo,
    given: Sequence[Invited],
    node: Address,
    provider: Address | None,
    now: int,
) -> InvitationCheck:
    """Of a pool by invitation. node: NOBODY where it has no key yet; provider: whose stake would answer for it, if that
    is known; now: by the chain's clock. Blocks on the network. Raises ChainError."""
    if node in (pool.manager, *pool.validators):
        return InvitationCheck(False, None, "the pool itself names this node")
    if node != NOBODY and contracts.admits(pool.id, node):
        return InvitationCheck(False, None, "this node was let in before")
    provider = (contracts.node_info(node).owner if node != NOBODY else None) or provider
    if not given:
        return InvitationCheck(True, None, "this network profile has no invitation")
    refused = list[str]()
    # Those for an address first: a place of a file that many have is left to others.
    for one in sorted(given, key=lambda one: bool(one.key)):
        why = _against(one, domain, pool, node, provider, now)
        if why is None:
            taken = contracts.places_taken(pool.id, one.invitee)
            if taken < one.places:
                left = f"{one.places - taken} of {one.places} places are left"
                return InvitationCheck(True, one, f"an invitation for {_whom(one)}; {left}, until {_day(one.deadline)}")
            why = "the manager took it back" if taken == REVOKED else f"its {one.places} place(s) are taken"
        refused.append(why)
    return InvitationCheck(True, None, "; ".join(_counted(refused)))


def _against(
    one: Invited, domain: Domain, pool: PoolInfo, node: Address, provider: Address | None, now: int
) -> str | None:
    """Why it does not let this node in; None if only its places can be in the way."""
    if one.chain_id != domain.chain_id:
        return f"it is for chain {one.chain_id}, and this is chain {domain.chain_id}"
    if one.pool != pool.id:
        return f"it is for pool {one.pool}"
    if now > one.deadline:
        return f"it was good until {_day(one.deadline)}"
    if not one.key and one.invitee not in (node, provider):
        who = "a node whose key is not made yet" if node == NOBODY else f"the node {node}"
        whose = f"its provider is {provider}" if provider else "its provider is not known here"
        return f"it is for {one.invitee}, and this is {who}; {whose}"
    if not is_signed_by(pool.manager, domain, one.said, bytes.fromhex(one.signature)):
        return f"the manager of this pool, {pool.manager}, did not sign it"
    return None


def admission(contracts: Contracts, domain: Domain, node: Address, by: Invited) -> TransactionCall:
    """The transaction that lets a node in; anybody may send it."""
    bearer = by.bearer()
    ticket = sign(bearer, domain, Ticket(by.pool, node)) if bearer else b""
    return contracts.admit(node, by.said, bytes.fromhex(by.signature), ticket)


def _whom(one: Invited) -> str:
    return "whoever has this file" if one.key else one.invitee


def _day(timestamp: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(timestamp))


def _counted(reasons: Sequence[str]) -> Iterator[str]:
    """Each once: a file for twenty people says the same of nineteen."""
    kinds: dict[str, list[str]] = {}
    for reason in reasons:
        kinds.setdefault(reason.partition("0x")[0], []).append(reason)
    for alike in kinds.values():
        yield alike[0] if len(alike) == 1 else f"{alike[0]} (and {len(alike) - 1} like it)"
