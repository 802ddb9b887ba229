"""Being in the pool: the chain's events become members, the lease is renewed, the stake is known."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio

from contracts.bindings import (
    Joined,
    Left,
    Slashed,
    SlashOverturned,
    TermEnded,
    TermTaken,
    ValidatorsSet,
    ValidatorStruck,
)
from node.chain.errors import ChainError, RpcUnreachable
from node.chain.follower import GRACE, RolledBack
from node.chain.witnesses import EndpointRecord
from node.config import NodeConfig, RelayOffer
from node.network.errors import PeerUnavailable, RequestRefused
from node.preflight.chain import Powers
from node.progress import ProgressRecord
from node.services.membership.events import Events
from node.services.membership.participant import ensure_participant
from node.services.membership.reach import Reach
from node.swarm.dialback import DialbackAnswer
from node.swarm.membership import Membership
from node.swarm.neighbours import MOST
from protocol.identity import Address, NodeKey
from protocol.liveness import MAX_LEFT
from protocol.messages import Heartbeat
from tests.memory_network import MemoryHub, MemoryNetwork

EXPIRED_AT_ONCE = 200

OWN, OTHER = (NodeKey(bytes([n]) * 32) for n in (1, 2))
POWERS = Powers(OTHER.address, OTHER.address, 0, 2500, 7200, 60)
CONTACT = f"/ip4/127.0.0.1/tcp/1/p2p/{OTHER.peer_id}"


def membership() -> Membership:
    return Membership(OWN.address, MemoryNetwork(OWN, MemoryHub()), OTHER.address, ())


class Follower:
    """Delivers what it is given; its first block is there at once."""

    def __init__(self, *deliveries: object) -> None:
        send, self.events = trio.open_memory_channel[Any](9)
        for one in deliveries:
            send.send_nowait(one)
        self.block, self.healthy = SimpleNamespace(number=12), True
        self.now = self.read_until = 0

    def endpoints(self) -> list[EndpointRecord]:
        return [EndpointRecord("http://one", in_use=True), EndpointRecord("http://two", contradicted=3)]

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        await trio.sleep_forever()


def event(kind: type, **fields: Any) -> Any:
    return kind(**{name: fields.get(name, 0) for name in kind.__struct_fields__})


async def test_members_come_and_go_with_the_chain_and_with_its_second_thoughts(autojump_clock: Any) -> None:
    joined, left = event(Joined, node=OTHER.address, contact=CONTACT), event(Left, node=OTHER.address)
    for deliveries, is_in in (
        ((joined,), True),
        ((joined, left), False),
        ((joined, left, RolledBack(1, (left,))), True),
        ((joined, RolledBack(1, (joined,))), False),
    ):
        members = membership()
        events = await heard_of(members, *deliveries)
        assert members.is_member(OTHER.address) is is_in
        told = events.status()["network"]
        assert (told["block"], told["rpc_ok"], told["checked"]) == (12, True, True)
        assert [one["contradicted"] for one in told["endpoints"]] == [0, 3]


async def heard_of(members: Membership, *deliveries: Any) -> Events:
    follower: Any = Follower(*deliveries)
    events = Events(follower, members)
    async with trio.open_nursery() as nursery:
        await events.start(nursery)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    return events


async def test_a_member_whose_renewal_or_leaving_is_taken_back_is_one_as_it_was_before(autojump_clock: Any) -> None:
    joined = event(Joined, node=OTHER.address, contact=CONTACT, lease_until=2000, block=1)
    renewed = event(Joined, node=OTHER.address, contact="/ip4/10.0.0.9/tcp/1", lease_until=3000, block=2)
    left = event(Left, node=OTHER.address, block=3)
    members = membership()
    await heard_of(members, joined, renewed, RolledBack(1, (renewed,)))
    assert members.registered(OTHER.address) == (CONTACT, 2000)
    members = membership()
    await heard_of(members, joined, left, RolledBack(2, (left,)))
    assert members.registered(OTHER.address) == (CONTACT, 2000)
    members = membership()
    await heard_of(members, joined, left, RolledBack(0, (joined, left)))
    assert not members.is_member(OTHER.address), "it never joined"


async def test_a_bench_is_taken_back_as_it_was_without_whom_it_had_lost(autojump_clock: Any) -> None:
    a, b, c = (Address("0x" + digit * 40) for digit in "abc")
    first = event(ValidatorsSet, validators=(a, b), threshold=1, block=1)
    struck = event(ValidatorStruck, validator=b, block=2)
    second = event(ValidatorsSet, validators=(b, c), threshold=2, block=3)
    for undone, left, quorum in (((second,), (a,), 1), ((struck, second), (a, b), 1)):
        members = membership()
        await heard_of(members, first, struck, second, RolledBack(undone[0].block - 1, undone))
        assert members.validators == left and members.quorum == quorum


async def test_a_pardon_and_one_of_two_slashes_are_taken_back_and_the_node_stays_out(autojump_clock: Any) -> None:
    joined = event(Joined, node=OTHER.address, contact=CONTACT, lease_until=2000)
    slashes = [
        event(Slashed, node=OTHER.address, case_id=case, transaction=f"0x{case}", file_root=b"", block=case)
        for case in (1, 2)
    ]
    pardon = event(SlashOverturned, node=OTHER.address, case_id=1, block=3)
    members = membership()
    await heard_of(members, joined, slashes[0], pardon)
    assert members.is_member(OTHER.address), "the control"
    members = membership()
    await heard_of(members, joined, slashes[0], pardon, RolledBack(2, (pardon,)))
    assert members.is_evicted(OTHER.address) and [one.transaction for one in members.slashed] == ["0x1"]
    members = membership()
    await heard_of(members, joined, *slashes, RolledBack(1, slashes[1:]))
    assert members.is_evicted(OTHER.address) and [one.transaction for one in members.slashed] == ["0x1"]


async def test_a_term_that_ended_in_a_replaced_block_goes_on(autojump_clock: Any) -> None:
    taken = event(TermTaken, holder=OTHER.address, term=1, from_step=5, parent=bytes(32), until=200, block=1)
    ended = event(TermEnded, term=1, ended_at=150, block=2)
    members = membership()
    await heard_of(members, taken, ended, RolledBack(1, (ended,)))
    assert members.trainer == OTHER.address and not members.terms.now.ended and members.terms.now.until == 200


async def test_a_lease_that_runs_out_by_the_chains_time_is_a_departure_and_a_silent_chain_ends_none(
    autojump_clock: Any,
) -> None:
    members, ghost = membership(), NodeKey(b"\x07" * 32).address
    follower: Any = Follower(
        event(Joined, node=OWN.address, lease_until=10),
        event(Joined, node=OTHER.address, contact=CONTACT, lease_until=2000),
        event(Joined, node=ghost, lease_until=900),
    )
    follower.now = 1000
    events = Events(follower, members)
    async with trio.open_nursery() as nursery:
        await events.start(nursery)
        await trio.sleep(10_000)
        assert members.is_member(OTHER.address) and members.table.get(ghost) is None
        follower.read_until = 2000 + GRACE
        await trio.sleep(5)
        assert members.is_member(OTHER.address)
        follower.read_until += 1
        await trio.sleep(5)
        assert not members.is_member(OTHER.address) and members.is_member(OWN.address)
        assert members.places.contacts_of(OTHER.address) == (CONTACT,), "where the trainer was stays known"
        members.joined(OTHER.address, CONTACT, 3000)
        await trio.sleep(5)
        assert members.is_member(OTHER.address)
        nursery.cancel_scope.cancel()


def test_ten_thousand_leases_that_end_at_once_leave_the_event_loop_in_between() -> None:
    contacts = Contacts()
    members = Membership(OWN.address, contacts, OTHER.address, (), clock=lambda: 0.0)
    crowd = [Address(f"0x{number:040x}") for number in range(3 * EXPIRED_AT_ONCE)]
    for node in crowd:
        members.joined(node, f"at {node}", 100)
    members.joined(OTHER.address, CONTACT, 500)
    assert [members.expire(101) for _ in range(4)] == [True, True, True, False]
    assert members.addresses() == [OTHER.address] and contacts.dialled == {OTHER.address}
    assert len(members.table.all()) <= MAX_LEFT + 1


async def test_a_node_without_provider_is_told_the_stake_that_the_contract_asks_for(
    tmp_path: Path,
) -> None:
    asked: list[int] = []

    class Unregistered:
        profile = SimpleNamespace(name="base-sepolia", chain_id=84532, rpc_urls=("https://rpc.example",))

        async def ask(self, action: str, view: object) -> Powers:
            await trio.lowlevel.checkpoint()
            return POWERS

        async def node_info(self, node: str) -> Any:
            await trio.lowlevel.checkpoint()
            return SimpleNamespace(provider=None)

        async def required_stake(self, provider: str, more_units: int, node: str) -> int:
            await trio.lowlevel.checkpoint()
            asked.append(more_units)
            return 30 * 10**18 * more_units

        async def balances(self, address: str) -> Any:
            await trio.lowlevel.checkpoint()
            return SimpleNamespace(coin=0, token=0)

        async def gas_price(self) -> int:
            await trio.lowlevel.checkpoint()
            return 1

    config = NodeConfig(auto_setup=False, units=2, wait=False, network="base-sepolia", home=tmp_path)
    with pytest.raises(ChainError) as caught:
        await apply(Unregistered(), config, ProgressRecord())
    assert "60 tokens of stake are asked" in caught.value.why
    assert caught.value.remedy == "intellect-node keys new provider" and asked == [2]


async def test_a_node_waits_for_its_stake_and_then_goes_on(tmp_path: Path, autojump_clock: Any) -> None:
    class Chain:
        """Registered at the third look; in between it does not answer. The coin for gas comes last."""

        profile = SimpleNamespace(name="base-sepolia", chain_id=84532, rpc_urls=("https://rpc.example",))
        looks = asked = 0

        async def ask(self, action: str, view: object) -> Powers:
            await trio.lowlevel.checkpoint()
            return POWERS

        async def node_info(self, node: str) -> Any:
            await trio.lowlevel.checkpoint()
            self.looks += 1
            if self.looks == 2:
                raise RpcUnreachable({"https://rpc": "down"})
            return SimpleNamespace(provider=OTHER.address if self.looks >= 3 else None)

        async def stake_of(self, provider: str) -> Any:
            return SimpleNamespace(bonded=20 * 10**18)

        async def required_stake(self, provider: str, more_units: int, node: str) -> int:
            return 20 * 10**18

        async def balances(self, address: str) -> Any:
            self.asked += 1  # once a look, before or after the node's standing
            return SimpleNamespace(coin=10**18 if self.asked >= 5 else 0, token=0)

        async def gas_price(self) -> int:
            return 10**9

    progress = ProgressRecord()
    chain = Chain()
    await apply(chain, NodeConfig(network="base-sepolia", home=tmp_path), progress)
    told = [(event.name, event.text) for event in progress.events]
    assert chain.looks == 5 and progress.phase.name == "stake" and "joining may cost" in progress.phase.text
    assert [text for name, text in told if name == "do"].count("intellect-node keys new provider") == 1
    powers = [text for name, text in told if name == "powers"]
    assert powers[0].startswith("2 of 3 validators say what everybody has earned, and can take 100 tokens")
    assert [name for name, _ in told].index("powers") < [name for name, _ in told].index("do")
    assert told[-1][0] == "do" and told[-1][1].startswith("send ") and "trouble" in dict(told)


async def apply(chain: Any, config: NodeConfig, progress: ProgressRecord) -> None:
    validators, others = (
        (OTHER.address,) * 3,
        {"manager": OTHER.address, "opener": OTHER.address, "guardian": OTHER.address},
    )
    terms = {"threshold": 2, "slash_amount": 10**20, "window": 3600, "epoch_seconds": 3600, "delay": 3600}
    pool: Any = SimpleNamespace(validators=validators, **terms, **others)
    await ensure_participant(chain, OWN, config, Path("nodes/a"), pool, progress)


class Contacts:
    """What a network is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.dialled: set[str] = set()

    def set_contact(self, member: str, told: Any) -> None:
        self.told.append((member, told))

    def stay_with(self, members: Any) -> None:
        self.dialled = set(members)

    def connected(self) -> frozenset[Any]:
        return frozenset()

    def failures(self) -> dict[Any, int]:
        return {}


def beat(at: int, contact: str) -> Heartbeat:
    return Heartbeat(
        pool=1, boot=0, count=at, at=at, role="worker", state="working", contact=contact, policy_step=0, interval=2.0
    )


def test_a_renewed_lease_moves_nobody_and_the_newest_own_word_holds() -> None:
    contacts = Contacts()
    members = Membership(OWN.address, contacts, OTHER.address, ())
    members.joined(OTHER.address, "registered")
    members.places.moved(OTHER.address, beat(5, "moved"))
    members.joined(OTHER.address, "registered")
    members.places.moved(OTHER.address, beat(4, "older"))
    assert contacts.told == [(OTHER.address, ("registered",)), (OTHER.address, ("moved",))]
    members.places.moved(OTHER.address, msgspec.structs.replace(beat(6, "moved"), also=("second",)))
    assert contacts.told.pop() == (OTHER.address, ("moved", "second"))
    members.joined(OTHER.address, "registered anew")
    assert members.places.contacts_of(OTHER.address) == ("registered anew",)
    members.places.moved(OWN.address, beat(9, "a stranger"))
    assert len(contacts.told) == 3


def test_a_bootnode_is_dialled_before_the_chain_has_answered_and_is_no_member() -> None:
    contacts = Contacts()
    members = Membership(OWN.address, contacts, OTHER.address, (), bootnodes={OTHER.address: CONTACT})
    assert contacts.told == [(OTHER.address, (CONTACT,))] and contacts.dialled == {OTHER.address}
    assert not members.is_member(OTHER.address)


def test_who_joins_or_leaves_is_told_alone_however_many_there_are() -> None:
    contacts = Contacts()
    members = Membership(OWN.address, contacts, OTHER.address, ())
    nodes = [Address(f"0x{number:040x}") for number in range(200)]
    for node in nodes:
        members.joined(node, f"at {node}")
    members.left(nodes[7])
    assert contacts.told == [*((node, (f"at {node}",)) for node in nodes), (nodes[7], None)]
    assert len(contacts.dialled) == MOST and contacts.dialled < set(nodes) - {nodes[7]}


class Surroundings:
    """A network and its members, as Reach sees them: who answers what, and who carries."""

    def __init__(self, answers: dict[str, bool | None], relays: frozenset[str] = frozenset()) -> None:
        self.answers, self.relays = answers, relays
        self.network = self.dialback = self
        self.offered: bool | None = None
        self.reserved: list[str] = []
        self.asked: list[str] = []
        self.seen: dict[str, str] = {}
        self.own = (CONTACT,)
        self.hosts: dict[str, str] = {}
        self.told = ""

    async def ask(self, member: str, address: str) -> DialbackAnswer:
        await trio.lowlevel.checkpoint()
        self.asked.append(address)
        if member not in self.answers:
            raise PeerUnavailable(member, "it does not know the protocol")
        return DialbackAnswer(self.answers[member], (self.hosts.get(member, "11.0.0.1"), 4001))

    async def reserve(self, relay: str) -> float:
        await trio.lowlevel.checkpoint()
        if relay not in self.relays:
            raise RequestRefused(relay, "it carries nobody")
        self.reserved.append(relay)
        return 60.0

    def connected(self) -> frozenset[str]:
        return frozenset("abc")

    def relayed(self) -> frozenset[str]:
        return frozenset()

    def seen_at(self, peer: str) -> str | None:
        return self.seen.get(peer)

    def contacts(self) -> tuple[str, ...]:
        return (*(f"/p2p/{relay}/p2p-circuit/p2p/own" for relay in self.reserved[-2:]), *self.own)

    def release(self) -> None:
        self.reserved.clear()

    def punched(self) -> frozenset[str]:
        return frozenset()

    def unpunched(self) -> frozenset[str]:
        return frozenset("b")

    def told_host(self, host: str) -> None:
        self.told = host

    def offer_relay(self, offered: bool) -> None:
        self.offered = offered


def reach_in(around: Surroundings, offer: RelayOffer = "auto") -> tuple[Reach, ProgressRecord]:
    progress = ProgressRecord()
    return Reach(around, progress, offer), progress  # type: ignore[arg-type]


async def test_a_node_that_nobody_can_dial_is_carried_by_two_members_who_are_willing() -> None:
    reach, progress = reach_in(Surroundings({"a": False, "b": None}, frozenset("abc")))
    await reach.ask_around()
    assert (reach.tried, reach.reached, reach.way) == (1, 0, "none")
    await reach.settle()
    assert reach.way == "relayed" and len(reach._network.reserved) == 2  # type: ignore[attr-defined]
    assert reach._network.offered is False  # type: ignore[attr-defined]
    assert [event.name for event in progress.events] == ["reach", "reach"]
    await reach.settle()
    assert len(reach._network.reserved) == 2 and len(progress.events) == 2  # type: ignore[attr-defined]


async def test_a_member_is_asked_about_the_address_of_its_own_family() -> None:
    around = Surroundings({"a": True, "b": True})
    around.own = ("/ip4/11.0.0.1/tcp/1/p2p/own", "/ip6/2a00::1/tcp/2/p2p/own")
    around.seen = {"a": "/ip6/2a00::2/tcp/9", "b": "/ip4/11.0.0.2/tcp/9"}
    reach, _ = reach_in(around)
    await reach.ask_around()
    assert sorted(around.asked) == ["/ip4/11.0.0.1/tcp/1"] * 2 + ["/ip6/2a00::1/tcp/2"]


@pytest.mark.parametrize(
    ("hosts", "told"), [({}, "11.0.0.1"), ({"a": "8.8.8.8"}, "11.0.0.1"), ({"a": "8.8.8.8", "b": "8.8.4.4"}, "")]
)
async def test_where_a_node_is_seen_is_what_most_members_say(hosts: dict[str, str], told: str) -> None:
    around = Surroundings(dict.fromkeys("abc", False))
    around.hosts = hosts
    reach, _ = reach_in(around)
    await reach.ask_around()
    assert around.told == told and (reach.seen or ("", 0))[0] == told


async def test_a_reservation_is_renewed_at_half_of_its_time_and_one_that_is_refused_asked_for_later(
    autojump_clock: Any,
) -> None:
    reach, _ = reach_in(Surroundings({"a": False}, frozenset("a")))
    await reach.ask_around()
    for _ in range(4):
        await reach.settle()
        await trio.sleep(10)
    assert reach._network.reserved == ["a", "a"]  # type: ignore[attr-defined]


async def test_a_node_that_nobody_can_dial_or_carries_is_told_what_helps() -> None:
    reach, progress = reach_in(Surroundings({"a": False}))
    await reach.ask_around()
    await reach.settle()
    assert reach.way == "none" and progress.events[-1].name == "trouble" and "--announce" in progress.events[-1].text


@pytest.mark.parametrize(("offer", "offered"), [("auto", True), ("on", True), ("off", False)])
async def test_who_can_be_dialled_carries_others_unless_its_owner_will_not(offer: RelayOffer, offered: bool) -> None:
    around = Surroundings({"a": True, "b": True, "c": False})
    reach, progress = reach_in(around, offer)
    await reach.ask_around()
    await reach.settle()
    assert reach.way == "direct" and around.offered is offered and not progress.events


async def test_who_has_heard_nothing_carries_nobody_and_asks_nobody_to_carry_it() -> None:
    around = Surroundings({}, frozenset("abc"))
    reach, progress = reach_in(around)
    await reach.ask_around()
    await reach.settle()
    assert reach.way == "" and around.offered is False and not around.reserved and not progress.events


async def test_a_chain_that_does_not_answer_is_told_once_and_so_is_its_return(autojump_clock: Any) -> None:
    follower, progress = Follower(), ProgressRecord()
    events = Events(follower, membership(), progress)  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(events.run)
        for healthy in (True, False, False, True):
            follower.healthy = healthy
            await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert [event.name for event in progress.events] == ["trouble", "chain"]
