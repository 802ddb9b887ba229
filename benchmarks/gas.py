"""Gas of the contracts' everyday transactions on a local anvil, beside the reference's.

    python -m benchmarks.gas [--json FILE] [--quick]

The reference is Prime Intellect's smart-contracts (a1156fe), measured with legacy code generation. Also says what one
training day of 100 workers costs on Base at its minimum fee. Gas does not depend on the machine; --quick leaves the
settlement of a whole day out.
"""

import argparse
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eth_account import Account
from web3 import Web3

from contracts.bindings import Contracts, PoolParams
from contracts.deploy import TOKEN, DeployParams, deploy
from node.chain.anvil import find_anvil
from node.chain.rpc import FallbackProvider
from protocol.identity import NodeKey
from protocol.statements import Domain, NodeRegistration, Outcome, Statement, Verdict, WorkCommitment, sign, work_id
from protocol.work import leaf_hash, merkle_root, proof

CHAIN_ID = 31337
HOUR, WINDOW = 3600, 24 * 3600
WORKERS, EPOCHS_PER_DAY = 100, 24
BASE_MINIMUM_FEE = 5_000_000
"""Wei per gas on Base, February 2026."""
UNITS = 98_765
CONTACT = "/ip4/203.0.113.7/tcp/4001/p2p/16Uiu2HAmPLe7Mzm8TsYUubgCAW1aJoeFScxrLj8ppHFivPo97bUZ"
REFERENCE: dict[str, str] = {
    "register a provider (bond)": "222k",
    "add a node": "287k",
    "join a pool": "321k",
    "commit an epoch, the first": "304k per file",
    "commit an epoch, later": "235k per file",
    "settle one epoch": "158k",
    "settle a day (24 epochs)": "-",
    "soft invalidation, 2 of 3": "232k",
    "hard invalidation, 2 of 3": "316k",
    "evidence": "-",
    "finalize a slash": "-",
    "create a pool": "1.88M",
    "deploy all": "17.9M",
}


class Bench:
    """A deployment with short words to act with; every action returns its gas."""

    def __init__(self, web3: Web3, deployer: NodeKey) -> None:
        self.web3 = web3
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

    def send(self, call: Any, key: NodeKey) -> int:
        sender = Web3.to_checksum_address(key.address)
        fields = {"from": sender, "nonce": self.web3.eth.get_transaction_count(sender), "gas": 5_000_000}
        fields |= {"maxFeePerGas": 10**10, "maxPriorityFeePerGas": 0, "chainId": CHAIN_ID}
        signed = Account.sign_transaction(call.build_transaction(fields), key.secret)
        receipt = self.web3.eth.wait_for_transaction_receipt(
            self.web3.eth.send_raw_transaction(signed.raw_transaction), timeout=20, poll_latency=0.01
        )
        if receipt["status"] != 1:
            raise RuntimeError(f"{call.fn_name} reverted")
        return int(receipt["gasUsed"])

    def person(self, tokens: int = 0) -> NodeKey:
        key = NodeKey.generate()
        self.rpc("anvil_setBalance", key.address, hex(10**20))
        if tokens:
            self.send(self.contracts.mint(key.address, tokens), key)
            for spender in (self.contracts.addresses.vault, self.contracts.addresses.swarm):
                self.send(self.contracts.approve(spender, tokens), key)
        return key

    def register(self, provider: NodeKey, node: NodeKey) -> int:
        deadline = self.now() + 1000
        consent = sign(node, self.domain, NodeRegistration(provider.address, node.address, 1, 0, deadline))
        return self.send(self.contracts.register_node(node.address, 1, deadline, consent), provider)

    def quorum(self, judges: list[NodeKey], statement: Statement) -> list[bytes]:
        return [sign(judge, self.domain, statement) for judge in judges[:2]]


def measure(bench: Bench, quick: bool) -> dict[str, int]:
    """Gas per action."""
    contracts, gas = bench.contracts, {"deploy all": bench.deployment}
    judges = [bench.person() for _ in range(3)]
    house = bench.person(100 * TOKEN)
    bench.send(contracts.bond(house.address, 100 * TOKEN), house)
    for judge in judges:
        bench.register(house, judge)
    provider = bench.person(100 * TOKEN)
    gas["register a provider (bond)"] = bench.send(contracts.bond(provider.address, 60 * TOKEN), provider)
    nodes = [bench.person() for _ in range(3)]
    gas["add a node"] = [bench.register(provider, node) for node in nodes][0]
    manager = bench.person(10**6 * TOKEN)
    gas["create a pool"] = bench.send(contracts.create_pool(_params(manager, judges)), manager)
    bench.send(contracts.fund_pool(1, 10**5 * TOKEN), manager)
    gas["join a pool"] = [bench.send(contracts.join(1, CONTACT), node) for node in nodes][0]
    _work(bench, nodes[0], gas, quick)
    _faults(bench, nodes[1:], judges, gas)
    return {name: gas[name] for name in REFERENCE if name in gas}


def _work(bench: Bench, node: NodeKey, gas: dict[str, int], quick: bool) -> None:
    contracts = bench.contracts
    pool = contracts.pool(1)
    first = pool.epoch_at(bench.now())
    for epoch in range(first, first + 1 + (2 if quick else EPOCHS_PER_DAY)):
        bench.wait_until(pool.epoch_end(epoch))
        name = "commit an epoch, the first" if epoch == first else "commit an epoch, later"
        used = bench.send(contracts.commit_work(1, epoch, b"\xab" * 32, UNITS), node)
        gas[name] = max(used, gas.get(name, 0))
    bench.wait_until(pool.maturity(first + EPOCHS_PER_DAY))
    gas["settle one epoch"] = bench.send(contracts.settle(1, node.address, [first]), node)
    if not quick:
        day = list(range(first + 1, first + 1 + EPOCHS_PER_DAY))
        gas["settle a day (24 epochs)"] = bench.send(contracts.settle(1, node.address, day), node)


def _faults(bench: Bench, nodes: list[NodeKey], judges: list[NodeKey], gas: dict[str, int]) -> None:
    contracts, (worker, cheat) = bench.contracts, nodes
    pool = contracts.pool(1)
    epoch = pool.epoch_at(bench.now())
    bench.send(contracts.join(1, CONTACT), worker)
    files = [WorkCommitment(1, worker.address, b"\x11" * 32, i, bytes([i]) * 32, 1000) for i in range(64)]
    leaves = [leaf_hash(work_id(file)) for file in files]
    bench.send(contracts.commit_work(1, epoch, merkle_root(leaves), 64_000), worker)
    for number, outcome in ((0, Outcome.REJECT), (1, Outcome.SLASH)):
        file = files[number]
        verdict = Verdict(1, file.node, file.policy_root, file.index, file.file_root, file.units, outcome, 8)
        path, signatures = proof(leaves, number), bench.quorum(judges, verdict)
        call = contracts.invalidate(file, epoch, path, outcome, 8, signatures)
        gas["soft invalidation, 2 of 3" if number == 0 else "hard invalidation, 2 of 3"] = bench.send(call, cheat)
    first = WorkCommitment(1, cheat.address, b"\x11" * 32, 0, b"\x01" * 32, 1000)
    second = WorkCommitment(1, cheat.address, b"\x11" * 32, 0, b"\x02" * 32, 1000)
    signatures = [sign(cheat, bench.domain, commitment) for commitment in (first, second)]
    call = contracts.evidence(first, signatures[0], second, signatures[1])
    gas["evidence"] = bench.send(call, bench.person())
    bench.wait_until(contracts.case(1).final_at)
    gas["finalize a slash"] = bench.send(contracts.finalize(1), worker)


def _params(manager: NodeKey, judges: list[NodeKey]) -> PoolParams:
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
        threshold=2,
    )


def day_on_base(gas: dict[str, int]) -> tuple[int, int]:
    """(gas, wei) of a day with WORKERS workers: every epoch committed, one settlement a worker; L2 execution only."""
    settlement = gas.get("settle a day (24 epochs)", EPOCHS_PER_DAY * gas["settle one epoch"])
    total = WORKERS * (EPOCHS_PER_DAY * gas["commit an epoch, later"] + settlement)
    return total, total * BASE_MINIMUM_FEE


@contextmanager
def local_chain() -> Iterator[Web3]:
    """A fresh anvil; needs it in PATH, or npm once."""
    with TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        cache = Path.home() / ".cache" / "intellect-node"
        command = [str(find_anvil(cache)), "--port", str(port), "--accounts", "0", "--silent"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=folder)
        provider = FallbackProvider([f"http://127.0.0.1:{port}"], CHAIN_ID)
        try:
            yield _when_up(Web3(provider), process)
        finally:
            provider.close()
            process.kill()
            process.wait()


def _when_up(web3: Web3, process: subprocess.Popen[bytes]) -> Web3:
    for _ in range(1000):
        if process.poll() is not None:
            raise RuntimeError(f"anvil ended with {process.returncode}")
        if web3.is_connected():
            return web3
        time.sleep(0.02)
    raise RuntimeError("anvil does not answer")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gas", description="Gas of the contracts on anvil.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--quick", action="store_true", help="without the settlement of a whole day")
    options = parser.parse_args()
    with local_chain() as web3:
        deployer = NodeKey.generate()
        web3.provider.make_request("anvil_setBalance", [deployer.address, hex(10**20)])  # type: ignore[arg-type]
        gas = measure(Bench(web3, deployer), options.quick)
    print(f"{'':30} {'ours':>10} {'reference':>14}")
    for name, used in gas.items():
        print(f"{name:30} {used:>10,} {REFERENCE[name]:>14}")
    total, wei = day_on_base(gas)
    print(f"\na day of {WORKERS} workers, {EPOCHS_PER_DAY} epochs: {total / 1e6:.0f} M gas,", end=" ")
    print(f"{wei / 1e18:.6f} ETH at {BASE_MINIMUM_FEE / 1e9} gwei (Base's minimum; without the fee for L1 data)")
    if options.json:
        options.json.write_text(json.dumps({"gas": gas, "day": {"gas": total, "wei": wei}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
