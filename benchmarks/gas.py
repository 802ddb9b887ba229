"""Gas of the contracts' everyday transactions on a local anvil, beside the reference's.

    python -m benchmarks.gas [--json FILE]

The reference is Prime Intellect's smart-contracts (a1156fe), measured with legacy code generation. What a pool's day
comes to, as its daemons send it, `benchmarks.upkeep` measures. Gas does not depend on the machine.
"""

import math
from typing import Any

from eth_account import Account
from eth_hash.auto import keccak
from web3 import Web3

from benchmarks.command import parser_of, save
from cli.devnet import cache_directory
from contracts.bindings import Contracts, PoolParams, TransactionCall
from contracts.deploy import TOKEN, DeployParams, deploy
from protocol.filing import Filing, RootLine
from protocol.identity import Address, NodeKey
from protocol.manifest import PolicyStatement
from protocol.statements import (
    Domain,
    Earnings,
    EpochRoot,
    NodeRegistration,
    Statement,
    TermSilent,
    Verdict,
    VerdictOutcome,
    WorkCommitment,
    sign,
)
from tests.node.chain.chains import CHAIN_ID, local_chain

HOUR, WINDOW = 3600, 24 * 3600
WORKERS, DELAYED = 100, 6
"""DELAYED: epochs in a table, as many as it waits."""
UNITS = 98_765
CONTACT = "/ip4/203.0.113.7/tcp/4001/p2p/16Uiu2HAmPLe7Mzm8TsYUubgCAW1aJoeFScxrLj8ppHFivPo97bUZ"
REFERENCE: dict[str, str] = {
    "register a provider (bond)": "222k",
    "add a node": "287k",
    "join a pool": "321k",
    "post a table, the first": "235k per file",
    "post a table, later": "235k per file",
    "claim": "158k",
    "slash, 2 of 3": "316k",
    "create a pool": "1.88M",
    "deploy all": "17.9M",
}


class Bench:
    """A deployment with short words to act with; every action returns its gas."""

    def __init__(self, web3: Web3, deployer: NodeKey) -> None:
        self.web3, self.deployer = web3, deployer
        self.contracts = Contracts(web3, deploy(web3, deployer, DeployParams()).addresses)
        blocks: list[Any] = [web3.eth.get_block(number) for number in range(int(web3.eth.block_number) + 1)]
        self.deployment = sum(int(block["gasUsed"]) for block in blocks)
        self.domain = Domain(CHAIN_ID, self.contracts.addresses.swarm)

    def rpc(self, method: str, *params: Any) -> Any:
        answer: Any = self.web3.provider.make_request(method, list(params))  # type: ignore[arg-type]
        return answer["result"]

    def now(self) -> int:
        latest: Any = self.web3.eth.get_block("latest")
        return int(latest["timestamp"])

    def wait_until(self, timestamp: int) -> None:
        self.rpc("evm_setNextBlockTimestamp", timestamp)
        self.rpc("evm_mine")

    def send(self, call: TransactionCall, key: NodeKey) -> int:
        sender = Web3.to_checksum_address(key.address)
        fields = {"from": sender, "nonce": self.web3.eth.get_transaction_count(sender), "gas": 5_000_000}
        fields |= {"maxFeePerGas": 10**10, "maxPriorityFeePerGas": 0, "chainId": CHAIN_ID}
        signed = Account.sign_transaction({**call.fields(), **fields}, key.secret)
        receipt = self.web3.eth.wait_for_transaction_receipt(
            self.web3.eth.send_raw_transaction(signed.raw_transaction), timeout=20, poll_latency=0.01
        )
        if receipt["status"] != 1:
            raise RuntimeError(f"0x{call.data[:4].hex()} reverted")
        return int(receipt["gasUsed"])

    def person(self, tokens: int = 0) -> NodeKey:
        key = NodeKey.generate()
        self.rpc("anvil_setBalance", key.address, hex(10**20))
        if tokens:
            self.send(self.contracts.mint(key.address, tokens), key)
            for spender in (self.contracts.addresses.vault, self.contracts.addresses.payroll):
                self.send(self.contracts.approve(spender, tokens), key)
        return key

    def register(self, provider: NodeKey, node: NodeKey) -> int:
        deadline = self.now() + 1000
        consent = sign(node, self.domain, NodeRegistration(provider.address, node.address, 1, 0, deadline))
        return self.send(self.contracts.register_node(node.address, 1, deadline, consent), provider)

    def quorum(self, judges: list[NodeKey], statement: Statement) -> list[bytes]:
        return [sign(judge, self.domain, statement) for judge in judges[:2]]


def measure(bench: Bench) -> dict[str, int]:
    """Gas per action."""
    contracts, gas = bench.contracts, {"deploy all": bench.deployment}
    judges = _judges(bench, 3)
    provider = bench.person(10**4 * TOKEN)
    gas["register a provider (bond)"] = bench.send(contracts.bond(provider.address, 10**4 * TOKEN), provider)
    nodes = [bench.person() for _ in range(4)]
    gas["add a node"] = [bench.register(provider, node) for node in nodes][0]
    manager = bench.person(10**6 * TOKEN)
    gas["create a pool"] = bench.send(contracts.create_pool(_params(manager, judges, 2)), manager)
    bench.send(contracts.fund_pool(1, 10**5 * TOKEN), manager)
    gas["join a pool"] = [bench.send(contracts.join(1, CONTACT), node) for node in nodes][0]
    gas["renew a lease"] = bench.send(contracts.join(1, CONTACT), nodes[0])
    _earnings(bench, nodes[0], judges, gas)
    _full_bench(bench, manager, gas)
    _chair(bench, nodes, judges, manager, gas)
    _ending(bench, nodes[0], judges, manager, gas)
    _faults(bench, nodes[1:], judges, gas)
    gas["remove a node"] = bench.send(contracts.remove_node(nodes[0].address), provider)
    bench.wait_until(contracts.node_info(nodes[0].address).free_at)
    gas["release a node"] = bench.send(contracts.release([nodes[0].address]), manager)
    return gas


def _chair(bench: Bench, trainers: list[NodeKey], judges: list[NodeKey], manager: NodeKey, gas: dict[str, int]) -> None:
    contracts, root = bench.contracts, b"\x55" * 32
    seat = contracts.seat_trainers(1, [one.address for one in trainers[:3]], HOUR, HOUR)
    gas["seat three trainers"] = bench.send(seat, manager)
    for one in trainers:  # who leads is a member whose lease runs
        bench.send(contracts.join(1, CONTACT), one)
    gas["hold the chair"] = bench.send(contracts.hold_chair(1, 7, root), trainers[0])
    bad = PolicyStatement(1, 0, 8, 0, root, root, root, root).commitment(trainers[0].address)
    words = {name: getattr(bad, name) for name in bad.__struct_fields__}
    said = Verdict(**words, outcome=VerdictOutcome.SLASH, reason=30)
    convict = contracts.end_term_by_verdicts(0, bad, [said] * 2, bench.quorum(judges, said))
    gas["end a term by verdicts, 2 of 3"] = bench.send(convict, trainers[1])
    gas["take the chair"] = bench.send(contracts.take_chair(1, 1, 8, root), trainers[1])
    chair = contracts.chair_of(1)
    if chair is None:
        raise RuntimeError("nobody is seated")
    silent = TermSilent(1, 1, chair.until, 8)
    end = contracts.end_term([silent] * 2, bench.quorum(judges, silent))
    gas["end a term by silence, 2 of 3"] = bench.send(end, trainers[2])


def _judges(bench: Bench, count: int) -> list[NodeKey]:
    judges, house = [bench.person() for _ in range(count)], bench.person(10**4 * TOKEN)
    bench.send(bench.contracts.bond(house.address, 10**4 * TOKEN), house)
    for judge in judges:
        bench.register(house, judge)
    return judges


def _earnings(bench: Bench, node: NodeKey, judges: list[NodeKey], gas: dict[str, int]) -> None:
    """Tables of WORKERS lines, so proofs of seven siblings."""
    contracts, pool = bench.contracts, bench.contracts.pool(1)
    for number, which in enumerate(("the first", "later")):
        root, path = _table(node.address, (number + 1) * UNITS)
        epoch, total = (number + 1) * DELAYED - 1, (number + 1) * UNITS * WORKERS
        bench.wait_until(max(bench.now() + 1, pool.maturity(epoch)))
        gas[f"post a table, {which}"] = bench.send(_posted(bench, judges, 1, epoch, root, total), node)
        bench.wait_until(bench.now() + pool.delay)
        claim = contracts.claim(1, node.address, (number + 1) * UNITS, path)
        gas[f"claim that makes a table count, {which}"] = bench.send(claim, judges[0])
    root, path = _table(node.address, 3 * UNITS)
    bench.wait_until(max(bench.now() + 1, pool.maturity(3 * DELAYED - 1)))
    bench.send(_posted(bench, judges, 1, 3 * DELAYED - 1, root, 3 * UNITS * WORKERS), node)
    bench.wait_until(bench.now() + pool.delay)
    bench.wait_until(max(bench.now() + 1, pool.maturity(4 * DELAYED - 1)))
    bench.send(_posted(bench, judges, 1, 4 * DELAYED - 1, root, 3 * UNITS * WORKERS), node)
    gas["claim"] = bench.send(contracts.claim(1, node.address, 3 * UNITS, path), judges[0])


def _posted(
    bench: Bench, judges: list[NodeKey], pool: int, epoch: int, root: bytes, total: int, signers: int = 2
) -> Any:
    table = Earnings(pool, epoch, 1, root, total, bytes(32))
    signatures = [sign(judge, bench.domain, table) for judge in judges[:signers]]
    return bench.contracts.post_earnings(table, signatures)


def _table(node: Address, units: int) -> tuple[bytes, list[bytes]]:
    """A root that this line leads to, past as many siblings as WORKERS lines have."""
    root = keccak(b"\0" + bytes.fromhex(node[2:]) + units.to_bytes(8))
    path = [bytes([255 - i]) * 32 for i in range(math.ceil(math.log2(WORKERS)))]
    for sibling in path:
        root = keccak(b"\1" + min(root, sibling) + max(root, sibling))
    return root, path


def _full_bench(bench: Bench, manager: NodeKey, gas: dict[str, int]) -> None:
    contracts, judges = bench.contracts, _judges(bench, 16)
    bench.send(contracts.create_pool(_params(manager, judges, 11)), manager)
    bench.send(contracts.fund_pool(2, TOKEN), manager)
    bench.wait_until(contracts.pool(2).maturity(DELAYED - 1))
    post = _posted(bench, judges, 2, DELAYED - 1, b"\x33" * 32, 10, 11)
    gas["post a table, 11 of 16"] = bench.send(post, manager)
    gas["hold a table"] = bench.send(contracts.hold(2), manager)
    signers = [judge.address for judge in judges[:11]]
    gas["drop a table, 11 of 16"] = bench.send(contracts.drop(2, signers), bench.deployer)


def _ending(bench: Bench, node: NodeKey, judges: list[NodeKey], manager: NodeKey, gas: dict[str, int]) -> None:
    """A pool whose quorum falls silent; roots over the works of WORKERS nodes."""
    contracts = bench.contracts
    bench.send(contracts.create_pool(_params(manager, judges, 2)), manager)
    bench.send(contracts.fund_pool(3, 10**3 * TOKEN), manager)
    bench.send(contracts.join(3, CONTACT), node)
    bench.wait_until(contracts.pool(3).epoch_end(5))
    bench.send(contracts.end_pool(3), manager)
    times = contracts.pool(3).filing
    bench.wait_until(times.starts)
    filings = [_filing(bench, node, judges, epoch) for epoch in range(5)]
    gas["file an epoch, 2 of 3"] = bench.send(contracts.file(3, node.address, filings[:1]), node)
    gas["file four epochs, 2 of 3"] = bench.send(contracts.file(3, node.address, filings[1:]), node)
    gas["hold what was filed"] = bench.send(contracts.hold(3), manager)
    bench.wait_until(contracts.pool(3).filing.redeems)
    gas["redeem"] = bench.send(contracts.redeem(3, node.address), node)
    gas["sweep"] = bench.send(contracts.sweep(3), node)


def _filing(bench: Bench, node: NodeKey, judges: list[NodeKey], epoch: int) -> Filing:
    root, path = _table(node.address, UNITS)
    said = EpochRoot(3, epoch, 1, root, UNITS * WORKERS, bytes(32))
    lines = [
        RootLine(seat, said, sign(judge, bench.domain, said), UNITS, tuple(path))
        for seat, judge in enumerate(judges[:2])
    ]
    return Filing(epoch, 1, 2, tuple(judge.address for judge in judges), tuple(lines))


def _faults(bench: Bench, nodes: list[NodeKey], judges: list[NodeKey], gas: dict[str, int]) -> None:
    contracts, (worker, wronged, cheat) = bench.contracts, nodes
    for node in nodes:
        bench.send(contracts.join(1, CONTACT), node)
    root, path = _table(worker.address, 3 * UNITS)
    pool = contracts.pool(1)
    bench.wait_until(max(bench.now() + 1, pool.maturity(5 * DELAYED - 1)))
    bench.send(_posted(bench, judges, 1, 5 * DELAYED - 1, root, 3 * UNITS * WORKERS), cheat)
    bench.wait_until(bench.now() + pool.delay)
    carrier = bench.person(100 * TOKEN)  # who puts up the bonds
    for node in (worker, wronged):
        file = WorkCommitment(1, node.address, b"\x11" * 32, 0, b"\x02" * 32, 1000, 0)
        said = Verdict(1, file.node, file.policy_root, 0, file.file_root, 1000, VerdictOutcome.SLASH, 8)
        own, signatures = sign(node, bench.domain, file), bench.quorum(judges, said)
        call = contracts.slash(file, own, 8, signatures, [bytes(32)] * 2, 0)
        gas["slash, 2 of 3"] = bench.send(call, carrier)
    gas["overturn a slash"] = bench.send(contracts.overturn(1, wronged.address), bench.deployer)
    bench.wait_until(contracts.case(1).final_at)
    gas["finalize a slash"] = bench.send(contracts.finalize(1), worker)
    gas["collect what the vault owes"] = bench.send(contracts.collect(carrier.address), worker)
    gas["give back"] = bench.send(contracts.claim(1, worker.address, 3 * UNITS, path), cheat)
    first = WorkCommitment(1, cheat.address, b"\x11" * 32, 0, b"\x01" * 32, 1000, 0)
    second = WorkCommitment(1, cheat.address, b"\x11" * 32, 0, b"\x02" * 32, 1000, 0)
    signatures = [sign(cheat, bench.domain, commitment) for commitment in (first, second)]
    call = contracts.evidence(first, signatures[0], second, signatures[1])
    gas["evidence, commitments"] = bench.send(call, worker)
    words = [Verdict(1, cheat.address, b"\x11" * 32, 0, b"\x01" * 32, 1000, outcome, 0) for outcome in (0, 1)]
    signatures = [sign(judges[2], bench.domain, word) for word in words]
    call = contracts.verdict_evidence(1, words[0].work, words[0], signatures[0], words[1], signatures[1])
    gas["evidence, verdicts"] = bench.send(call, worker)


def _params(manager: NodeKey, judges: list[NodeKey], threshold: int) -> PoolParams:
    return PoolParams(
        run_root=b"\x22" * 32,
        run_uri="https://example.org/run.toml",
        bootnodes=(CONTACT,),
        manager=manager.address,
        reward_per_unit=10**12,
        window=WINDOW,
        epoch_seconds=HOUR,
        slash_amount=20 * TOKEN,
        validators=tuple(judge.address for judge in judges),
        threshold=threshold,
    )


def main() -> None:
    options = parser_of(__doc__, "the same: all of it takes seconds").parse_args()
    with local_chain(cache_directory()) as (provider, _):
        deployer = NodeKey.generate()
        provider.make_request("anvil_setBalance", [deployer.address, hex(10**20)])  # type: ignore[arg-type]
        gas = measure(Bench(Web3(provider), deployer))
    print(f"{'':30} {'ours':>10} {'reference':>14}")
    for name, used in gas.items():
        print(f"{name:30} {used:>10,} {REFERENCE.get(name, '-'):>14}")
    save(options.json, {"gas": gas})


if __name__ == "__main__":
    main()
