"""Which invitation of a profile lets a node in, and why the others do not; asked of a chain that is a table."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from contracts.bindings import NOBODY, REVOKED, Addresses
from node.chain.errors import ProfileError
from node.chain.invitations import Invited, admission, bearer_key, invite, look
from node.chain.profile import NetworkProfile, read_profile, write_profile
from protocol.identity import NodeKey
from protocol.statements import Domain, Ticket, signer_of
from tests.node.services.test_returning import POOL as OPEN

MANAGER, NODE, PROVIDER, JUDGE, STRANGER = (NodeKey(bytes([n]) * 32) for n in range(1, 6))
DOMAIN = Domain(84532, STRANGER.address)
POOL = msgspec.structs.replace(OPEN, id=7, invited=True, manager=MANAGER.address, validators=(JUDGE.address,))
NOW = 1_800_000_000


@dataclass
class Table:
    """What the contracts would say."""

    admitted: set[str] = field(default_factory=set)
    taken: dict[str, int] = field(default_factory=dict)
    provider: str | None = None

    def admits(self, pool: int, node: str) -> bool:
        return node in self.admitted

    def places_taken(self, pool: int, invitee: str) -> int:
        return self.taken.get(invitee, 0)

    def node_info(self, node: str) -> Any:
        return type("Info", (), {"owner": self.provider})

    def admit(self, node: str, said: Any, signature: bytes, ticket: bytes) -> tuple[Any, ...]:
        return node, said, signature, ticket


def bearer(places: int = 20, **changed: Any) -> Invited:
    key = bearer_key()
    made = invite(MANAGER, DOMAIN, 7, NodeKey(bytes.fromhex(key)).address, places, NOW + 60, key=key)
    return msgspec.structs.replace(made, **changed)


def named(who: NodeKey, manager: NodeKey = MANAGER, domain: Domain = DOMAIN, pool: int = 7) -> Invited:
    return invite(manager, domain, pool, who.address, 1, NOW + 60)


def door(*given: Invited, table: Table | None = None, node: Any = NODE.address, provider: Any = None, now: int = NOW):
    return look(table or Table(), DOMAIN, POOL, given, node, provider, now)  # type: ignore[arg-type]


def test_who_is_named_or_was_let_in_before_needs_none() -> None:
    for node in (MANAGER.address, JUDGE.address):
        assert not door(node=node).needed
    assert not door(table=Table(admitted={NODE.address})).needed
    assert door().shut and "has no invitation" in door().why


def test_an_address_lets_in_itself_and_the_nodes_of_its_provider() -> None:
    assert door(named(NODE)).by == named(NODE)
    mine = named(PROVIDER)
    assert door(mine, provider=PROVIDER.address).by == mine
    assert door(mine, node=NOBODY, provider=PROVIDER.address).by == mine, "before there is a node's key"
    # What the chain says of the provider counts before what lies in the home directory.
    assert door(mine, provider=STRANGER.address, table=Table(provider=PROVIDER.address)).by == mine
    assert door(mine, provider=PROVIDER.address, table=Table(provider=STRANGER.address)).shut


def test_a_bearer_takes_a_place_only_where_no_other_invitation_is_good() -> None:
    anybody = bearer()
    assert door(anybody, node=NOBODY).by == anybody
    assert door(anybody, named(NODE)).by == named(NODE)
    node, said, signature, ticket = admission(Table(), DOMAIN, NODE.address, anybody)  # type: ignore[arg-type,misc]
    assert (node, signer_of(DOMAIN, said, signature)) == (NODE.address, MANAGER.address)
    assert signer_of(DOMAIN, Ticket(7, NODE.address), ticket) == anybody.invitee


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (named(NODE, domain=Domain(1, DOMAIN.contract)), "it is for chain 1, and this is chain 84532"),
        (named(NODE, domain=Domain(84532, NODE.address)), "did not sign it"),
        (named(NODE, pool=8), "it is for pool 8"),
        (named(NODE, manager=STRANGER), "did not sign it"),
        (named(STRANGER), f"it is for {STRANGER.address}, and this is the node {NODE.address}"),
        (bearer(places=2), "its 2 place(s) are taken"),
        (bearer(), "the manager took it back"),
        (msgspec.structs.replace(named(NODE), deadline=NOW - 1), "it was good until 2027-01-15"),
        (msgspec.structs.replace(named(NODE), places=5), "did not sign it"),
    ],
)
def test_what_lets_nobody_in_says_why(given: Invited, says: str) -> None:
    taken = REVOKED if given.places == 20 else 2 if given.places == 2 else 0
    found = door(given, table=Table(taken={given.invitee: taken}))
    assert found.shut and says in found.why


def test_twenty_reasons_of_one_kind_are_one(tmp_path: Path) -> None:
    many = [named(NodeKey(bytes([n]) * 32)) for n in range(20, 40)]
    assert "(and 19 like it)" in door(*many).why


def profile(*given: Invited) -> NetworkProfile:
    places = Addresses(*[NODE.address] * 6)
    return NetworkProfile(name="x", chain_id=84532, rpc_urls=("http://x",), contracts=places, invitations=given)


def test_a_profile_carries_them_privately_and_tells_no_secret(tmp_path: Path) -> None:
    path, made = tmp_path / "theirs.toml", profile(bearer(), named(NODE))
    write_profile(path, made)
    assert read_profile(path) == made and path.stat().st_mode & 0o077 == 0
    assert made.invitations[0].key not in repr(made)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"key": NODE.secret.hex()}, "is not that of"),
        ({"key": "zz"}, "hexadecimal"),
        ({"signature": "00"}, "130 hex digits"),
        ({"places": 2**32 - 1}, "out of its range"),
        ({"pool": 0}, "out of its range"),
        ({"deadline": 2**40}, "out of its range"),
        ({"invitee": "0x12"}, "address"),
    ],
)
def test_a_profile_with_a_bad_invitation_is_refused_whole(tmp_path: Path, change: Any, says: str) -> None:
    path = tmp_path / "theirs.toml"
    write_profile(path, profile(msgspec.structs.replace(bearer(), **change)))
    with pytest.raises(ProfileError) as caught:
        read_profile(path)
    assert says in caught.value.why
    path.write_text(path.read_text().replace("places", "plases"))
    with pytest.raises(ProfileError) as caught:
        read_profile(path)
    assert "did you mean invitations.places?" in caught.value.why
