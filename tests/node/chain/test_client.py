import gzip
import json
import time
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import zstandard

from contracts.bindings import Claimed, EarningsPosted, Joined, PostedEarnings, Slashed
from contracts.deploy import TOKEN
from node.chain import rpc
from node.chain.cases import (
    CaseError,
    CommitmentContradiction,
    FalseLeaf,
    FileCase,
    RootContradiction,
    VerdictContradiction,
    Vote,
    read_case,
    write_case,
)
from node.chain.client import ChainClient
from node.chain.endpoints import Endpoints, encoded
from node.chain.errors import (
    ChainError,
    DevnetError,
    InsufficientFunds,
    InsufficientStake,
    NotDeployed,
    Reverted,
    RpcRefused,
    RpcUnreachable,
    TransactionUnconfirmed,
    WrongChain,
)
from node.chain.faucet import DevnetFaucet
from node.chain.outbox import Outbox
from node.chain.profile import NetworkProfile
from node.chain.sender import SendLimits
from node.chain.setup import prepare_participant
from node.chain.simulate import SimulatedStep
from protocol.earnings import Accepted, Leaf, leaves_of, proof_of
from protocol.identity import NodeKey, address_bytes
from protocol.statements import Earnings, EpochRoot, Verdict, VerdictOutcome, WorkCommitment, sign, work_id
from tests.contracts.conftest import table

Connect = Callable[..., ChainClient]


def with_urls(profile: NetworkProfile, *urls: str) -> NetworkProfile:
    return msgspec.structs.replace(profile, rpc_urls=urls)


# ---- endpoints


async def test_a_dead_endpoint_is_an_error_with_a_remedy(
    profile: NetworkProfile, connect: Connect, dead_url: str
) -> None:
    client = connect(with_urls(profile, dead_url))
    with pytest.raises(RpcUnreachable) as caught:
        await client.block()
    assert dead_url in caught.value.why and "devnet up" in caught.value.remedy
    assert not client.healthy


async def test_the_next_endpoint_is_used_and_kept(profile: NetworkProfile, connect: Connect, dead_url: str) -> None:
    client = connect(with_urls(profile, dead_url, profile.rpc_urls[0]))
    await client.connect()
    assert client.url == profile.rpc_urls[0]
    assert (await client.block()).number > 0
    assert client.healthy


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"<html>not json</html>"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b'{"jsonrpc":"2.0","id":1,"result":"x"}'),
        (200, b'{"jsonrpc":"2.0","id":1,"result":"0x\xff"}'),
        (200, b'{"jsonrpc":"2.0","id":1,"result":{"number":"0x1","hash":"\xfe"}}'),
        (429, b'{"jsonrpc":"2.0","id":1,"error":{"code":-32005,"message":"slow down"}}'),
        (502, b"bad gateway"),
    ],
)
async def test_an_endpoint_that_talks_nonsense_is_passed_over(
    profile: NetworkProfile, connect: Connect, bad_endpoint: Any, status: int, body: bytes
) -> None:
    client = connect(with_urls(profile, bad_endpoint(status, body), profile.rpc_urls[0]))
    assert (await client.block()).number > 0


async def test_an_endpoint_that_becomes_another_chain_is_found_out(
    profile: NetworkProfile, connect: Connect, meddler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = [0.0]
    monkeypatch.setattr(rpc, "Endpoints", partial(Endpoints, clock=lambda: time.monotonic() + later[0]))
    client = connect(with_urls(profile, meddler.url))
    assert (await client.block()).number > 0
    meddler.before["eth_chainId"] = {"result": "0x1"}
    assert (await client.block()).number > 0, "the control: it is not asked each time"
    later[0] = 300.0
    with pytest.raises(WrongChain):
        await client.block()


async def test_an_endpoint_that_floods_is_passed_over(
    profile: NetworkProfile, connect: Connect, bad_endpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.chain.endpoints.MAX_RESPONSE", 100_000)
    client = connect(with_urls(profile, bad_endpoint(200, b" " * 200_000), profile.rpc_urls[0]))
    assert (await client.block()).number > 0


async def say_nothing(_: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def test_an_endpoint_that_never_answers_is_passed_over(profile: NetworkProfile, connect: Connect) -> None:
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, say_nothing, 0)
        port = listeners[0].socket.getsockname()[1]
        client = connect(with_urls(profile, f"http://127.0.0.1:{port}", profile.rpc_urls[0]), timeout=0.2)
        assert (await client.block()).number > 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 100 Continue\r\n\r\n"])
async def test_an_endpoint_that_drips_before_its_answer_is_left_for_the_next(
    profile: NetworkProfile, connect: Connect, begun: bytes
) -> None:
    async def drip(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(begun)
            while True:
                await stream.send_all(begun if begun.endswith(b"\r\n\r\n") else b"H")
                await trio.sleep(0.05)

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, drip, 0)
        port = listeners[0].socket.getsockname()[1]
        client = connect(with_urls(profile, f"http://127.0.0.1:{port}", profile.rpc_urls[0]), timeout=0.3)
        with trio.fail_after(20):
            assert (await client.block()).number > 0
        assert client.url == profile.rpc_urls[0]
        nursery.cancel_scope.cancel()


def test_an_answer_that_is_packed_otherwise_than_asked_for_is_not_unpacked(bad_endpoint: Any) -> None:
    packed = zstandard.compress(bytes(10**8))  # a part of 64 KiB would be gigabytes before anybody counts them
    endpoints = Endpoints([bad_endpoint(200, packed, **{"content-encoding": "zstd"})], 1)
    with closing(endpoints), pytest.raises(RpcUnreachable, match="packs its answer"):
        endpoints.request("eth_chainId", encoded("eth_chainId", []))


def test_an_answer_that_is_packed_as_asked_for_is_read(bad_endpoint: Any) -> None:
    packed = gzip.compress(b'{"jsonrpc":"2.0","id":1,"result":"0x1"}')
    endpoints = Endpoints([bad_endpoint(200, packed, **{"content-encoding": "gzip"})], 1)
    with closing(endpoints):
        assert endpoints.request("eth_chainId", encoded("eth_chainId", []))["result"] == "0x1"


@pytest.mark.parametrize("status", [401, 402, 403, 429])
async def test_an_endpoint_that_serves_us_no_longer_is_left_for_the_next(
    profile: NetworkProfile, connect: Connect, bad_endpoint: Any, status: int
) -> None:
    refusing = bad_endpoint(status, b'{"jsonrpc":"2.0","id":1,"error":{"code":-32600,"message":"invalid api key"}}')
    client = connect(with_urls(profile, refusing, profile.rpc_urls[0]))
    client._provider.endpoints._verified[refusing] = time.monotonic()  # it told its chain id when the key was good
    assert (await client.block()).number > 0
    assert client.url == profile.rpc_urls[0]


async def test_an_endpoint_that_answers_byte_by_byte_is_left_for_the_next(
    profile: NetworkProfile, connect: Connect, trickling_url: str
) -> None:
    client = connect(with_urls(profile, trickling_url, profile.rpc_urls[0]), timeout=0.3)
    with trio.fail_after(20):
        assert (await client.block()).number > 0
    assert client.url == profile.rpc_urls[0]


async def test_another_chain_is_refused(profile: NetworkProfile, connect: Connect) -> None:
    client = connect(msgspec.structs.replace(profile, chain_id=8453))
    with pytest.raises(WrongChain) as caught:
        await client.connect()
    assert "31337" in caught.value.why and "8453" in caught.value.why


async def test_a_wrong_chain_among_the_endpoints_is_passed_over(
    profile: NetworkProfile, connect: Connect, bad_endpoint: Any
) -> None:
    elsewhere = bad_endpoint(200, b'{"jsonrpc":"2.0","id":1,"result":"0x1"}')
    client = connect(with_urls(profile, elsewhere, profile.rpc_urls[0]))
    await client.connect()
    assert client.url == profile.rpc_urls[0]


async def test_missing_contracts_are_named(profile: NetworkProfile, connect: Connect) -> None:
    c = profile.contracts
    moved = msgspec.structs.replace(c, vault=NodeKey.generate().address)
    with pytest.raises(NotDeployed, match="vault"):
        await connect(msgspec.structs.replace(profile, contracts=moved)).connect()


# ---- reading and writing


async def test_a_participant_is_funded_bonded_and_registered_and_doing_it_again_changes_nothing(people: Any) -> None:
    client = people.client
    for _ in range(2):
        await prepare_participant(client, DevnetFaucet(client), people.provider, people.node, stake=100 * TOKEN)
        assert (await client.stake_of(people.provider.address)).bonded == 100 * TOKEN
        info = await client.node_info(people.node.address)
        assert (info.provider, info.units, info.nonce) == (people.provider.address, 1, 1)


async def test_a_node_of_another_provider_is_not_taken(people: Any) -> None:
    other = NodeKey.generate()
    with pytest.raises(ChainError, match="another provider"):
        await prepare_participant(people.client, None, other, people.node, stake=100 * TOKEN)


async def test_too_small_a_stake_is_told_before_anything_is_sent(people: Any) -> None:
    with pytest.raises(InsufficientStake) as caught:
        await prepare_participant(people.client, None, NodeKey.generate(), NodeKey.generate(), stake=99 * TOKEN)
    assert (caught.value.bonded, caught.value.required) == (99 * TOKEN, 100 * TOKEN)


async def test_members_are_listed_with_their_last_contact(people: Any) -> None:
    client, pool = people.client, people.pool
    assert await client.members(pool) == []
    receipt = await client.join(pool, "/ip4/10.0.0.1/tcp/1")
    assert isinstance(receipt.events[0], Joined)
    await client.join(pool, "/ip4/10.0.0.1/tcp/2")
    (member,) = await client.members(pool)
    assert (member.node, member.provider) == (people.node.address, people.provider.address)
    assert (member.contact, member.left, member.evicted) == ("/ip4/10.0.0.1/tcp/2", False, False)
    await client.leave(pool)
    assert (await client.members(pool))[0].left


async def test_contacts_are_read_at_the_blocks_that_the_contract_remembers(
    people: Any, connect: Connect, monkeypatch: pytest.MonkeyPatch, chain_rpc: Any
) -> None:
    """Of a pool that is long old, a few blocks are asked for, and none of those that are known already."""
    client, pool, asked = people.client, people.pool, list[tuple[int, int]]()
    await client.join(pool, "/ip4/10.0.0.1/tcp/1")
    joined = (await client.block()).number
    chain_rpc("anvil_mine", hex(300))
    reader = connect(client.profile)
    real = reader._logs.within

    def watched(first: int, last: int, *rest: Any) -> Any:
        asked.append((first, last))
        return real(first, last, *rest)

    monkeypatch.setattr(reader._logs, "within", watched)
    assert [member.contact for member in await reader.members(pool)] == ["/ip4/10.0.0.1/tcp/1"]
    assert asked == [(joined, joined)]
    await reader.members(pool)
    assert len(asked) == 1
    await client.join(pool, "/ip4/10.0.0.1/tcp/2")
    assert [member.contact for member in await reader.members(pool)] == ["/ip4/10.0.0.1/tcp/2"]
    assert asked[1:] == [(joined + 301, joined + 301)]


async def test_earnings_are_posted_claimed_and_paid(people: Any, chain_rpc: Any) -> None:
    client, pool, node = people.client, people.pool, people.node.address
    await client.join(pool, "x")
    root, _ = table({node: 1000})
    earnings = Earnings(pool, 1, 1, root, 1000, bytes(32))
    signatures = [sign(people.validator, client.domain, earnings)]
    assert await client.earnings(pool) == PostedEarnings(None, bytes(32), 0)
    with pytest.raises(Reverted) as caught:
        await client.post_earnings(earnings, signatures)
    assert caught.value.name == "NotMature" and "post it later" in caught.value.remedy
    chain_rpc("evm_setNextBlockTimestamp", (await client.pool(pool)).maturity(1))
    chain_rpc("evm_mine")
    receipt = await client.post_earnings(earnings, signatures)
    assert isinstance(receipt.events[0], EarningsPosted)
    waiting, before = await client.waiting(pool), await client.books(pool)
    assert waiting is not None and waiting.counts_at == receipt.events[0].counts_at and not waiting.held
    assert (before.posted.epoch, before.waiting) == (None, waiting)
    chain_rpc("evm_setNextBlockTimestamp", waiting.counts_at)
    chain_rpc("evm_mine")
    assert await client.waiting(pool) is None
    assert await client.earnings(pool) == PostedEarnings(1, root, 1000, 1000, 2)
    whole, moved = await client.books(pool), await client.books(pool, before.pool)
    assert moved == whole and whole.pool == await client.pool(pool) != before.pool
    assert (whole.posted, whole.waiting) == (await client.earnings(pool), None)
    with pytest.raises(Reverted, match="newest table"):
        await client.claim(pool, node, 1001, [])
    receipt = await client.claim(pool, node, 1000, [], key=people.manager)
    assert [event.amount for event in receipt.events if isinstance(event, Claimed)] == [TOKEN]
    assert await client.claimed(pool, node) == 1000
    assert (await client.balances(people.provider.address)).token == TOKEN
    with pytest.raises(Reverted, match="all of it was paid"):
        await client.claim(pool, node, 1000, [])


async def test_a_quorum_slashes_over_the_client(people: Any) -> None:
    client, pool = people.client, people.pool
    await client.join(pool, "x")
    c = WorkCommitment(pool, people.node.address, b"\x01" * 32, 0, b"\x02" * 32, 10, 0)
    verdict = Verdict(**msgspec.structs.asdict(c), outcome=int(VerdictOutcome.SLASH), reason=5)
    mine = sign(people.node, client.domain, c)
    theirs = sign(people.validator, client.domain, verdict)
    receipt = await client.carry(FileCase(c, mine, 5, (Vote(theirs, bytes(32)),)), key=people.manager)
    slashed = next(event for event in receipt.events if isinstance(event, Slashed))
    assert (slashed.amount, slashed.reason) == (50 * TOKEN, 5)
    assert (await client.members(pool))[0].evicted
    with pytest.raises(Reverted) as caught:
        await client.join(pool, "x")
    assert caught.value.name == "NodeEvicted" and "another pool" in caught.value.remedy


async def test_a_slash_needs_a_bond_and_who_has_too_little_is_told_how_much(
    people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, pool = people.client, people.pool
    await client.join(pool, "x")
    c = WorkCommitment(pool, people.node.address, b"\x01" * 32, 0, b"\x02" * 32, 10, 0)
    verdict = Verdict(**msgspec.structs.asdict(c), outcome=int(VerdictOutcome.SLASH), reason=5)
    mine, theirs = sign(people.node, client.domain, c), sign(people.validator, client.domain, verdict)
    case = FileCase(c, mine, 5, (Vote(theirs, bytes(32)),))
    with (
        monkeypatch.context() as elsewhere,
        pytest.raises(InsufficientFunds, match="has 0 tokens, and may take 0 of its .* needs 12.5"),
    ):
        elsewhere.setattr("node.chain.client.is_devnet", lambda profile: False)
        await client.carry(case, key=people.validator)
    await client.carry(case, key=people.validator)  # a devnet gives them
    info = await client.case(1)
    assert (info.bond, info.carrier) == (50 * TOKEN // 4, people.validator.address)
    assert (await client.balances(people.validator.address)).token == 0


async def test_a_bond_is_taken_out_of_what_the_provider_lends_and_of_nothing_else(
    people: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vault takes it from the node's account, which has none; a provider's key lies elsewhere."""
    client, pool, node, house = people.client, people.pool, people.validator, people.house
    await client.join(pool, "x")
    c = WorkCommitment(pool, people.node.address, b"\x01" * 32, 0, b"\x02" * 32, 10, 0)
    verdict = Verdict(**msgspec.structs.asdict(c), outcome=int(VerdictOutcome.SLASH), reason=5)
    mine, theirs = sign(people.node, client.domain, c), sign(node, client.domain, verdict)
    case = FileCase(c, mine, 5, (Vote(theirs, bytes(32)),))
    await client.faucet(house.address, 20 * TOKEN)
    monkeypatch.setattr("node.chain.client.is_devnet", lambda profile: False)
    for allowed in (0, 12 * TOKEN):
        await client.execute(SimulatedStep("lend", client.contracts.approve(node.address, allowed)), house)
        with pytest.raises(InsufficientFunds) as caught:
            await client.carry(case, key=node)
        assert caught.value.remedy == f"intellect-node contract node lend {node.address} 12.5"
    assert (await client.balances(house.address)).token == 20 * TOKEN, "nothing moves for a case that does not come"
    await client.execute(SimulatedStep("lend", client.contracts.approve(node.address, 13 * TOKEN)), house)
    await client.carry(case, key=node)
    info = await client.case(1)
    assert (info.bond, info.carrier) == (50 * TOKEN // 4, node.address)
    assert (await client.balances(house.address)).token == 20 * TOKEN - info.bond


async def test_a_revert_is_told_before_anything_is_sent(people: Any) -> None:
    client = people.client
    before = await client.block()
    with pytest.raises(Reverted) as caught:
        await client.leave(people.pool)
    assert caught.value.name == "NotMember"
    assert caught.value.args_ == {"pool": people.pool, "node": people.node.address}
    assert await client.block() == before


async def test_too_little_money_is_told_before_anything_is_sent(people: Any) -> None:
    client, poor = people.client, NodeKey.generate()
    with pytest.raises(InsufficientFunds, match="coin"):
        await client.faucet(poor.address, 1, key=poor)
    with pytest.raises(InsufficientFunds, match="tokens"):
        await client.bond(people.manager.address, 10**27, key=people.manager)


async def test_a_write_without_a_key_is_refused(profile: NetworkProfile, connect: Connect) -> None:
    with pytest.raises(ChainError, match="no key"):
        await connect(profile).leave(1)


async def test_many_writes_of_one_key_at_once_all_arrive(people: Any) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(12):
            nursery.start_soon(people.client.faucet, people.provider.address, 5)
    assert (await people.client.balances(people.provider.address)).token == 60


# ---- the way into a block


async def test_two_programs_with_one_key_do_not_lose_each_others_transactions(
    people: Any, profile: NetworkProfile, connect: Connect
) -> None:
    clients = [connect(profile, people.node) for _ in range(2)]

    async def send_some(client: ChainClient, amount: int) -> None:
        for _ in range(4):
            await client.faucet(people.provider.address, amount)

    async with trio.open_nursery() as nursery:
        for amount, client in enumerate(clients, start=3):  # equal calls at one number would be one transaction
            nursery.start_soon(send_some, client, amount)
    assert (await people.client.balances(people.provider.address)).token == 4 * 3 + 4 * 4


async def test_the_fee_is_raised_when_no_block_takes_the_transaction(people: Any, chain_rpc: Any) -> None:
    chain_rpc("evm_setAutomine", False)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(people.client.faucet, people.provider.address, 7)
            offers: set[str] = set()
            with trio.fail_after(60):
                while len(offers) < 2:
                    await trio.sleep(0.05)
                    pending = (await trio.to_thread.run_sync(chain_rpc, "txpool_content"))["pending"]
                    offers |= {tx["maxFeePerGas"] for by_nonce in pending.values() for tx in by_nonce.values()}
            await trio.to_thread.run_sync(chain_rpc, "evm_mine")
    finally:
        chain_rpc("evm_setAutomine", True)
    assert (await people.client.balances(people.provider.address)).token == 7


async def test_a_transaction_that_nobody_takes_is_kept_and_sent_again_at_the_next_start(
    people: Any, profile: NetworkProfile, connect: Connect, chain_rpc: Any, tmp_path: Path
) -> None:
    file = tmp_path / "outbox.sqlite"
    limits = SendLimits(poll=0.02, bump_after=60, give_up=0.2)
    client = connect(profile, people.node, outbox=file, limits=limits)
    chain_rpc("evm_setAutomine", False)
    try:
        with pytest.raises(TransactionUnconfirmed) as caught:
            await client.faucet(people.provider.address, 7)
        chain_rpc("anvil_dropAllTransactions")
    finally:
        chain_rpc("evm_setAutomine", True)
    outbox = Outbox(file, f"{profile.chain_id}:{profile.contracts.swarm}")
    assert [entry.hash for entry in outbox.pending(people.node.address)] == [caught.value.transaction]
    again = connect(profile, people.node, outbox=file, limits=limits)
    await again.connect()
    with trio.fail_after(60):
        while (await again.balances(people.provider.address)).token != 7:
            await trio.sleep(0.02)
    await again.connect()
    assert outbox.pending(people.node.address) == []
    outbox.close()


async def test_only_a_local_chain_gives_coins_away(
    people: Any, bad_endpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing = bad_endpoint(200, b'{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"no such method"}}')
    monkeypatch.setattr(ChainClient, "url", refusing)
    with pytest.raises(DevnetError, match="cannot fund"):
        await DevnetFaucet(people.client).fund(people.node.address, coin=1)


async def test_an_endpoints_own_error_is_told_as_such(profile: NetworkProfile, connect: Connect) -> None:
    with pytest.raises(RpcRefused):
        await connect(profile).block(10**9)


async def test_a_case_is_kept_as_a_file_that_says_what_was_carried(people: Any, tmp_path: Path) -> None:
    client, pool = people.client, people.pool
    client._cases = tmp_path / "cases"
    await client.join(pool, "x")
    c = WorkCommitment(pool, people.node.address, b"\x01" * 32, 0, b"\x02" * 32, 10, 0)
    verdict = Verdict(**msgspec.structs.asdict(c), outcome=int(VerdictOutcome.SLASH), reason=5)
    mine, theirs = sign(people.node, client.domain, c), sign(people.validator, client.domain, verdict)
    case = FileCase(c, mine, 5, (Vote(theirs, bytes(32)),))
    await client.carry(case)
    (path,) = (tmp_path / "cases").iterdir()
    assert read_case(path) == case
    second = msgspec.structs.replace(c, file_root=b"\x03" * 32)
    evidence = CommitmentContradiction(c, mine, second, sign(people.node, client.domain, second))
    await client.carry(evidence)
    kept = [read_case(each) for each in (tmp_path / "cases").iterdir()]
    assert len(kept) == 2 and case in kept and evidence in kept, "each that it carried"
    told = json.loads(path.read_text())
    assert told["kind"] == "file" and told["commitment"]["file_root"] == "0x" + "02" * 32


KINDS = {
    "commitments": CommitmentContradiction,
    "verdicts": VerdictContradiction,
    "roots": RootContradiction,
    "leaf and verdict": FalseLeaf,
}


@pytest.mark.parametrize("kind", KINDS)
async def test_evidence_is_kept_as_a_file_and_carried(people: Any, tmp_path: Path, kind: str) -> None:
    client, pool = people.client, people.pool
    client._cases = tmp_path / "cases"
    await client.join(pool, "x")
    c = WorkCommitment(pool, people.node.address, b"\x01" * 32, 0, b"\x02" * 32, 10, 0)
    verdicts = [
        Verdict(**msgspec.structs.asdict(c), outcome=outcome, reason=0, values=bytes([7]) * 32) for outcome in (0, 1)
    ]
    leaves = [Leaf(address_bytes(c.node), work, 10) for work in sorted((work_id(c), bytes(32), b"\xff" * 32))]
    root = leaves_of([Accepted(pool, c.node, 0, one.work, one.units) for one in leaves])[0].root()
    roots = [EpochRoot(pool, 0, 1, root, total, bytes(32)) for total in (30, 31)]
    pairs: dict[str, Any] = {
        "commitments": (people.node, [c, msgspec.structs.replace(c, epoch=1)]),
        "verdicts": (people.validator, verdicts),
        "roots": (people.validator, roots),
        "leaf and verdict": (people.validator, [roots[0], verdicts[1]]),
    }
    place = (c.node, work_id(c), 10, proof_of(leaves, leaves[1]))
    more = place if kind == "leaf and verdict" else ()
    key, (first, second) = pairs[kind]
    one, two = (sign(key, client.domain, each) for each in (first, second))
    contradiction = KINDS[kind](first, one, second, two, *more)
    receipt = await client.carry(contradiction)
    slashed = next(event for event in receipt.events if isinstance(event, Slashed))
    assert (slashed.node, slashed.case_id) == (key.address, 0)
    (path,) = (tmp_path / "cases").iterdir()
    assert read_case(path) == contradiction and json.loads(path.read_text())["kind"] == kind


@pytest.mark.parametrize(
    "change",
    [
        {"reason": 256},
        {"votes": [{"signature": "0x" + "11" * 64, "values": "0x" + "00" * 32}]},
        {"votes": [{"signature": "0x" + "11" * 65, "values": "0x" + "00" * 32}] * 17},
        {"commitment": {"units": 2**32}},
        {"commitment": {"epoch": -1}},
        {"commitment": {"file_root": "0x" + "00" * 65}},
        {"commitment": {"file_root": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="}},
        {"commitment": {"node": "0x" + "zz" * 20}},
        {"commitment": {"node": "0xAbCdef" + "11" * 17}},
        {"commitment": {"more": 1}},
        {"more": {"deep": {"deeper": 1}}},
    ],
    ids=str,
)
def test_a_case_whose_fields_are_none_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    """The control is the same case unchanged."""
    path = tmp_path / "case.json"
    node = NodeKey.generate().address
    c = WorkCommitment(7, node, b"\x01" * 32, 0, b"\x02" * 32, 10, 0)
    write_case(path, FileCase(c, bytes(65), 5, (Vote(bytes(65), bytes(32)),)))
    told = json.loads(path.read_text())
    told["commitment"]["node"] = node.lower()
    path.write_text(json.dumps(told))
    assert isinstance(case := read_case(path), FileCase) and case.commitment == c
    path.write_text(json.dumps(told | change | {"commitment": told["commitment"] | change.get("commitment", {})}))
    with pytest.raises(CaseError, match="cannot be used"):
        read_case(path)
