"""A real chain under the test's own clock, the contracts on it, and short words to act with."""

import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from eth_account import Account
from eth_hash.auto import keccak
from web3 import Web3
from web3.middleware import AttributeDictMiddleware

from contracts.bindings import (
    ChainEvent,
    Contracts,
    PoolParams,
    Revert,
    TransactionCall,
    parse_log,
    parse_revert,
    raw_log,
)
from contracts.deploy import TOKEN, DeployParams, deploy
from node.chain.anvil import find_anvil
from node.chain.rpc import FallbackProvider
from protocol.identity import Address, NodeKey
from protocol.statements import (
    Domain,
    Earnings,
    NodeRegistration,
    Rechecked,
    Verdict,
    VerdictOutcome,
    WorkCommitment,
    sign,
)

CHAIN_ID = 31337
UNBONDING = 3600
APPEAL = 500
EPOCH, WINDOW, LEASE = 100, 300, 1000
REWARD, SLASH = 10**15, 50 * TOKEN
POLICY = b"\x11" * 32
BASE, PER_UNIT = 10 * TOKEN, 50 * TOKEN


def line(node: Address, units: int) -> bytes:
    """The leaf of one node's line in a table of earnings."""
    return keccak(b"\0" + bytes.fromhex(node[2:]) + units.to_bytes(8))


def table(lines: dict[Address, int]) -> tuple[bytes, dict[Address, list[bytes]]]:
    """Root and proofs of a table, written down plainly: what the contract must agree with."""
    nodes = sorted(lines, key=str.lower)
    level = [line(node, lines[node]) for node in nodes]
    places, proofs = list(range(len(nodes))), [list[bytes]() for _ in nodes]
    while len(level) > 1:
        for which, place in enumerate(places):
            if place ^ 1 < len(level):
                proofs[which].append(level[place ^ 1])
            places[which] = place // 2
        pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
        level = [keccak(b"\1" + min(pair) + max(pair)) if len(pair) == 2 else pair[0] for pair in pairs]
    return level[0], dict(zip(nodes, proofs, strict=True))


def _hex(address: Address) -> Any:
    return Web3.to_checksum_address(address)


class Refused(Exception):
    """A transaction that a contract reverted."""

    def __init__(self, revert: Revert | None) -> None:
        super().__init__(str(revert))
        self.revert = revert


class World:
    """Everything a contract test needs. Amounts in wei, times in block timestamps."""

    def __init__(self, web3: Web3, contracts: Contracts, deployer: NodeKey) -> None:
        self.web3 = web3
        self.contracts = contracts
        self.deployer = deployer
        self.domain = Domain(CHAIN_ID, contracts.addresses.swarm)
        self.sent = Counter[Address]({deployer.address: web3.eth.get_transaction_count(_hex(deployer.address))})
        """Transactions per account."""

    # chain

    def keep(self) -> None:
        """What `go_back` goes back to."""
        self._kept = self.rpc("evm_snapshot"), self.sent.copy()

    def go_back(self) -> None:
        """Takes back all that was done since `keep`, and the time that went by, whoever used it."""
        snapshot, self.sent = self._kept
        assert self.rpc("evm_revert", snapshot)
        self.keep()

    def rpc(self, method: str, *params: Any) -> Any:
        answer = self.web3.provider.make_request(method, list(params))  # type: ignore[arg-type]
        assert "error" not in answer, answer
        return answer["result"]

    def now(self) -> int:
        return int(self.web3.eth.get_block("latest")["timestamp"])

    def send(self, call: TransactionCall, key: NodeKey, *, at: int | None = None) -> Any:
        """Put `call` into the next block (of timestamp `at`); raises Refused."""
        if at is not None:
            self.rpc("evm_setNextBlockTimestamp", at)
        fields = {**call.fields(), "nonce": self.sent[key.address], "gas": 5_000_000}
        fields |= {"maxFeePerGas": 10**10, "maxPriorityFeePerGas": 0, "chainId": CHAIN_ID}
        signed = Account.sign_transaction(fields, key.secret)
        receipt = self.rpc("eth_sendRawTransactionSync", "0x" + signed.raw_transaction.hex())
        self.sent[key.address] += 1
        if receipt["status"] != "0x1":
            raise Refused(self._revert(call, key.address, receipt))
        return receipt

    def _revert(self, call: TransactionCall, sender: Address, receipt: Any) -> Revert | None:
        try:
            self.web3.eth.call({**call.fields(), "from": _hex(sender)}, int(receipt["blockNumber"], 16))
        except Exception as error:
            data = getattr(error, "data", None)
            return parse_revert(bytes.fromhex(data[2:])) if isinstance(data, str) else None
        return None

    def events(self, receipt: Any) -> list[ChainEvent]:
        parsed = [parse_log(raw_log(entry), self.contracts.addresses) for entry in receipt["logs"]]
        return [event for event in parsed if event is not None]

    # people

    def person(self, tokens: int = 0) -> NodeKey:
        """A new key with gas, `tokens` wei of the token, and an allowance for vault and Payroll."""
        key = NodeKey.generate()
        self.rpc("anvil_setBalance", key.address, hex(10**20))
        if tokens:
            self.send(self.contracts.mint(key.address, tokens), key)
            for spender in (self.contracts.addresses.vault, self.contracts.addresses.payroll):
                self.send(self.contracts.approve(spender, tokens), key)
        return key

    def put_up(self, key: NodeKey, amount: int) -> None:
        """Give a key a bond of a case, which the vault may take."""
        self.send(self.contracts.mint(key.address, amount), key)
        self.send(self.contracts.approve(self.contracts.addresses.vault, amount), key)

    def provider(self, stake: int = 100 * TOKEN) -> NodeKey:
        key = self.person(stake)
        self.send(self.contracts.bond(key.address, stake), key)
        return key

    def consent(self, provider: Address, node: NodeKey, units: int = 1, **changes: Any) -> tuple[int, bytes]:
        """(deadline, signature) of a NodeRegistration."""
        domain = changes.pop("domain", self.domain)
        fields = {"nonce": self.contracts.node_info(node.address).nonce, "deadline": self.now() + 1000, **changes}
        return fields["deadline"], sign(node, domain, NodeRegistration(provider, node.address, units, **fields))

    def validators(self, count: int) -> list[NodeKey]:
        """Keys of registered nodes: only who has a stake may judge."""
        keys = [self.person() for _ in range(count)]
        provider = self.provider(BASE + PER_UNIT * count)
        for key in keys:
            self.register(provider, key)
        return keys

    def register(self, provider: NodeKey, node: NodeKey, units: int = 1) -> Any:
        deadline, signature = self.consent(provider.address, node, units)
        return self.send(self.contracts.register_node(node.address, units, deadline, signature), provider)

    # pools

    def params(self, manager: NodeKey, validators: list[NodeKey], /, **changes: Any) -> PoolParams:
        fields = {
            "run_root": b"\x22" * 32,
            "run_uri": "",
            "manager": manager.address,
            "reward_per_unit": REWARD,
            "window": WINDOW,
            "epoch_seconds": EPOCH,
            "lease_seconds": LEASE,
            "max_units_per_epoch": 100_000,
            "units_per_epoch": 200_000,
            "slash_amount": SLASH,
            "validators": tuple(v.address for v in validators),
            "threshold": 1,
        }
        return PoolParams(**{**fields, **changes})


class Pool:
    """An open, funded pool with two validators (both needed) and one node at work in it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.contracts = world.contracts
        self.manager = world.person(1000 * TOKEN)
        self.validators = world.validators(2)
        params = world.params(self.manager, self.validators, threshold=2)
        receipt = world.send(self.contracts.create_pool(params), self.manager)
        self.id = world.events(receipt)[0].pool
        world.send(self.contracts.fund_pool(self.id, 500 * TOKEN), self.manager)
        self.provider = world.provider()
        self.node = world.person()
        world.register(self.provider, self.node)
        world.send(self.contracts.join(self.id, "/ip4/127.0.0.1/tcp/1"), self.node)

    @property
    def info(self) -> Any:
        return self.contracts.pool(self.id)

    def post(self, epoch: int, root: bytes, total: int, *, at: int | None = None, **changes: Any) -> Any:
        """A table that both validators signed; at the second in which its epoch is mature, if that is still to come.
        Afterwards it counts, unless it `waits`."""
        table = Earnings(self.id, epoch, 1, root, total, bytes(32))
        signed = changes.get("signed", table)
        signatures = [sign(key, self.world.domain, signed) for key in changes.get("by", self.validators)]
        mature = self.info.maturity(epoch)
        when = at or (mature if mature > self.world.now() else None)
        call = self.contracts.post_earnings(table, signatures)
        receipt = self.world.send(call, self.manager, at=when)
        if not changes.get("waits"):
            self.world.rpc("evm_setNextBlockTimestamp", self.world.now() + self.info.delay)
            self.world.rpc("evm_mine")
        return receipt

    def earn(self, epoch: int, lines: dict[Address, int]) -> dict[Address, list[bytes]]:
        """Posts a table of these lines; the proofs."""
        root, proofs = table(lines)
        self.post(epoch, root, sum(lines.values()))
        return proofs

    def claim(self, units: int, proof: list[bytes], *, node: Address | None = None, at: int | None = None) -> Any:
        call = self.contracts.claim(self.id, node or self.node.address, units, proof)
        return self.world.send(call, self.world.deployer, at=at)

    def commitment(self, *, file: bytes = b"\x44" * 32, index: int = 0, units: int = 10) -> WorkCommitment:
        return WorkCommitment(self.id, self.node.address, POLICY, index, file, units, 0)

    def verdict(self, c: WorkCommitment, outcome: int, reason: int, values: bytes = bytes(32)) -> Verdict:
        return Verdict(**msgspec.structs.asdict(c), outcome=outcome, reason=reason, values=values)

    def rechecked(self, c: WorkCommitment, outcome: int, reason: int, values: bytes = bytes(32)) -> Rechecked:
        return Rechecked(**msgspec.structs.asdict(c), outcome=outcome, reason=reason, values=values)

    def verdicts(
        self, c: WorkCommitment, reason: int, *, outcome: int = VerdictOutcome.SLASH, by: list[NodeKey] | None = None
    ) -> list[bytes]:
        verdict = self.verdict(c, int(outcome), reason)
        return [sign(key, self.world.domain, verdict) for key in by or self.validators]

    def slash(self, c: WorkCommitment, by: NodeKey, *, reason: int = 5, at: int | None = None, **changes: Any) -> Any:
        signature = changes.get("signature") or sign(self.node, self.world.domain, c)
        verdicts = changes["verdicts"] if "verdicts" in changes else self.verdicts(c, reason)
        values = changes.get("values", [bytes(32)] * len(verdicts))
        call = self.contracts.slash(c, signature, reason, verdicts, values, changes.get("rechecked", 0))
        if by is not self.manager:  # who has tokens, and let the vault take them
            self.world.put_up(by, self.contracts.case_bond(self.contracts.slash_of(self.id, c.node)))
        return self.world.send(call, by, at=at)


@contextmanager
def _refused(name: str) -> Iterator[None]:
    with pytest.raises(Refused) as caught:
        yield
    assert caught.value.revert is not None and caught.value.revert.name == name, caught.value


@pytest.fixture
def refused() -> Any:
    """`with refused("NodeTaken"):` the transaction inside must revert with that error."""
    return _refused


@pytest.fixture(scope="session")
def chain(request: pytest.FixtureRequest) -> Iterator[World]:
    cache = Path(request.config.cache.mkdir("anvil"))  # type: ignore[union-attr]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(find_anvil(cache)), "--port", str(port), "--accounts", "0", "--silent", "--chain-id", str(CHAIN_ID)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    provider = FallbackProvider([f"http://127.0.0.1:{port}"], CHAIN_ID)
    try:
        web3 = Web3(provider, middleware=[AttributeDictMiddleware])  # others ask for the chain id before each question
        _wait_for(web3, process)
        deployer = NodeKey.generate()
        provider.make_request("anvil_setBalance", [deployer.address, hex(10**20)])  # type: ignore[arg-type]
        params = DeployParams(
            unbonding_seconds=UNBONDING,
            appeal_seconds=APPEAL,
            treasury=Address("0x" + "99" * 20),
            burn_bps=0,
            base_stake=BASE,
            stake_per_unit=PER_UNIT,
            min_window=WINDOW,
        )
        yield World(web3, Contracts(web3, deploy(web3, deployer, params).addresses), deployer)
    finally:
        provider.close()
        process.kill()
        process.wait()


def _wait_for(web3: Web3, process: subprocess.Popen[bytes]) -> None:
    for _ in range(500):
        assert process.poll() is None
        try:
            web3.eth.block_number  # noqa: B018 - it asks the chain
            return
        except Exception:
            time.sleep(0.01)
    raise AssertionError("anvil does not answer")


@pytest.fixture(scope="session")
def opened(chain: World) -> Pool:
    pool = Pool(chain)
    chain.keep()
    return pool


@pytest.fixture
def world(chain: World, opened: Pool) -> World:
    """The chain as it was after deployment, with one pool, whatever earlier tests did."""
    chain.go_back()
    return chain


@pytest.fixture
def pool(world: World, opened: Pool) -> Pool:
    """A copy: what a test changes of it is not the next one's."""
    return copy(opened)
