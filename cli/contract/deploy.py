"""`contract deploy`: put the contracts on a network, and write their addresses into its profile.

Each transaction is written down before it is sent, and each contract as soon as it stands: a deployment that was
interrupted goes on where it stopped.
"""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from cli.contract.frame import (
    DryRun,
    KeyName,
    Network,
    PasswordFile,
    Yes,
    alone,
    app,
    confirm,
    costs,
    dry_step,
    outbox_of,
    profile_of,
    require_somebody,
    signer_of,
)
from cli.contract.values import address_option, eth, time_option, tokens_option
from cli.errors import USAGE, CommandError
from cli.output import AsJson, console, duration, ether, print_facts, print_json, quiet_logs
from node.state.files import write_whole

if TYPE_CHECKING:
    from contracts.bindings import TransactionCall
    from contracts.deploy import Deployment, DeployParams
    from node.chain.client import ChainClient
    from node.chain.profile import NetworkProfile
    from node.chain.simulate import SimulatedStep, Simulation
    from protocol.identity import Address, NodeKey


class DeployedStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One finished transaction of a deployment. intent: which; contract: what it created, if anything."""

    intent: str
    contract: str | None
    block: int
    gas: int
    cost: int


class DeployProgress:
    """The finished transactions of one deployer on one chain, in a file until all are done."""

    def __init__(self, chain_id: int, deployer: "Address") -> None:
        from node.config import default_home

        self._path = default_home() / "deployments" / f"{chain_id}-{deployer}.json"
        self.done: dict[str, DeployedStep] = {}
        if self._path.exists():
            entries = msgspec.json.decode(self._path.read_bytes(), type=list[DeployedStep])
            self.done = {entry.intent: entry for entry in entries}

    def add(self, standing: DeployedStep) -> None:
        self.done[standing.intent] = standing
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(self._path, msgspec.json.encode(list(self.done.values())))

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)


@app.command(
    "deploy", epilog="Example:  intellect-node contract deploy --network base-sepolia --key deployer --dry-run"
)
def deploy(
    network: Network = "local",
    key: KeyName = None,
    password_file: PasswordFile = None,
    token: Annotated[Any, address_option("An existing ERC-20. Default: a new test token.")] = None,
    treasury: Annotated[Any, address_option("Who gets what slashes do not burn. Default: nobody.")] = None,
    arbiter: Annotated[Any, address_option("Who may undo a quorum's slash. Default: the deployer.")] = None,
    unbonding: Annotated[int, time_option("How long stake stays slashable after unstake.")] = "7d",  # type: ignore[assignment]
    appeal: Annotated[int, time_option("How long a quorum's slash stays frozen.")] = "24h",  # type: ignore[assignment]
    base_stake: Annotated[int, tokens_option("What every provider with nodes must bond besides.")] = "0",  # type: ignore[assignment]
    stake_per_unit: Annotated[
        int, tokens_option("What each unit of a node must bond; no slash takes more of it.")
    ] = "100",  # type: ignore[assignment]
    min_window: Annotated[int, time_option("Least time between an epoch's end and its pay.")] = "1h",  # type: ignore[assignment]
    burn_bps: Annotated[
        int, typer.Option(min=0, max=10_000, help="Share of a slash that is burned, in 1/10000.")
    ] = 5000,
    bond_bps: Annotated[
        int, typer.Option(min=0, max=10_000, help="Share of a slash that each side of a case puts up, in 1/10000.")
    ] = 2500,
    min_bond: Annotated[int, tokens_option("The least that each side of a case puts up.")] = "1",  # type: ignore[assignment]
    replace: Annotated[
        bool, typer.Option("--replace", help="Deploy although the profile names contracts already.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Deploy token, vault and swarm contracts, and write their addresses into the network's profile."""
    import trio

    from contracts.deploy import DeployParams

    profile = profile_of(network, deployed=False)
    if profile.deployed and not replace:
        raise CommandError(
            f"the contracts are on {profile.name} already",
            f"swarm contract {profile.contracts.swarm}",
            "use them; or give --replace to deploy new ones, which know nothing of the old ones",
            USAGE,
        )
    require_somebody(yes or dry_run)
    deployer = signer_of(network, profile, key, None, password_file)
    # The vault refuses the same when it is made, but by then a new token is deployed and paid for.
    if (arbiter or deployer.address) == treasury:
        raise CommandError(
            "the arbiter and the treasury must be two",
            f"{treasury} would get what is slashed, and decide whether it is",
            "name another --arbiter or --treasury",
            USAGE,
        )
    if unbonding < 2 * appeal:
        raise CommandError(
            "the unbonding is shorter than two appeals",
            f"{duration(unbonding)}, and an appealed case may take {duration(2 * appeal)}: its stake would be gone",
            "give a longer --unbonding, or a shorter --appeal",
            USAGE,
        )
    params = DeployParams(
        token=token,
        treasury=treasury,
        arbiter=arbiter,
        unbonding_seconds=unbonding,
        appeal_seconds=appeal,
        burn_bps=burn_bps,
        bond_bps=bond_bps,
        min_bond=min_bond,
        base_stake=base_stake,
        stake_per_unit=stake_per_unit,
        min_window=min_window,
    )
    with alone(deployer.address), quiet_logs():
        trio.run(_story, network, profile, deployer, params, dry_run, yes, as_json)


async def _story(
    network: str,
    profile: "NetworkProfile",
    key: "NodeKey",
    params: "DeployParams",
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    import trio

    from node.chain.client import ChainClient
    from node.chain.profile import NOWHERE

    # With --replace the profile names contracts, which are not asked for anything here.
    blank = msgspec.structs.replace(profile, contracts=NOWHERE)
    with closing(ChainClient(blank, key, outbox=outbox_of(profile), tells=True)) as chain:
        progress = await _resume(chain, profile.chain_id, key)
        steps = await trio.to_thread.run_sync(_record, chain, key, params, progress)
        simulation = await chain.simulate(steps, key.address) if steps else None
        says = _says(profile, key, params, progress)
        if dry_run:
            _show_dry_run(says, simulation, as_json)
            return
        if simulation is not None:
            confirm(yes, profile, key.address, says, simulation)
        # `contracts.deploy` blocks, and it comes back to this loop for each transaction.
        done = await trio.to_thread.run_sync(_deploy, chain, key, params, progress)
        path = _write(network, profile, done)
        _show(path, done, progress, as_json)
        # Last: whoever is interrupted before this goes on from what stands.
        progress.forget()


async def _resume(chain: "ChainClient", chain_id: int, key: "NodeKey") -> DeployProgress:
    """What stands already: from the progress file, and from the outbox if the last one died before it could say."""
    from node.chain.outbox import Fate

    progress = DeployProgress(chain_id, key.address)
    for left in await chain.resume(key):
        if left.fate is Fate.MINED and left.receipt is not None:
            receipt = left.receipt
            progress.add(
                DeployedStep(left.pending.intent, receipt.contract, receipt.block, receipt.gas_used, receipt.cost)
            )
            await chain.told([receipt.transaction])  # the file knows it
    return progress


def _record(
    chain: "ChainClient", key: "NodeKey", params: "DeployParams", progress: DeployProgress
) -> "list[SimulatedStep]":
    """The transactions that are still to be sent, with the addresses that the contracts will get."""
    from eth_hash.auto import keccak
    from eth_utils.address import to_checksum_address
    from rlp import encode  # of web3's own dependencies

    from contracts.deploy import deploy as put_on_chain
    from node.chain.simulate import SimulatedStep

    web3 = chain.contracts.web3
    nonce = web3.eth.get_transaction_count(to_checksum_address(key.address))
    steps: list[SimulatedStep] = []

    def send(call: "TransactionCall", action: str) -> dict[str, Any]:
        known = progress.done.get(call.intent)
        if known is not None:
            return _receipt(known)
        # CREATE: a contract's address follows from its sender and the sender's nonce.
        made = keccak(encode([bytes.fromhex(key.address[2:]), nonce + len(steps)]))[12:]
        steps.append(SimulatedStep(action, call))
        return {"contractAddress": to_checksum_address(made), "status": 1, "blockNumber": 0}

    put_on_chain(web3, key, params, send=send)
    return steps


def _deploy(chain: "ChainClient", key: "NodeKey", params: "DeployParams", progress: DeployProgress) -> "Deployment":
    """In a thread. Sends what does not stand yet."""
    import trio
    from rich.console import Console

    from contracts.deploy import deploy as put_on_chain
    from node.chain.simulate import SimulatedStep

    errors = Console(stderr=True, highlight=False)

    def send(call: "TransactionCall", action: str) -> dict[str, Any]:
        intent = call.intent
        if intent not in progress.done:
            errors.print(f"{action}: waiting for a block", style="dim", markup=False, soft_wrap=True)
            receipt = trio.from_thread.run(chain.execute, SimulatedStep(action, call), key)
            progress.add(DeployedStep(intent, receipt.contract, receipt.block, receipt.gas_used, receipt.cost))
            trio.from_thread.run(chain.told, [receipt.transaction])
        return _receipt(progress.done[intent])

    return put_on_chain(chain.contracts.web3, key, params, send=send)


def _receipt(standing: DeployedStep) -> dict[str, Any]:
    return {"contractAddress": standing.contract, "status": 1, "blockNumber": standing.block}


def _write(network: str, profile: "NetworkProfile", done: "Deployment") -> Path:
    """Into the profile's own file, or for a shipped network into the user's copy of it."""
    from node.chain.profile import profile_path, user_profile_path, write_profile
    from node.config import default_home

    named = "/" in network or network.endswith(".toml")
    path = profile_path(network, home=default_home()) if named else user_profile_path(network, default_home())
    assert path is not None
    # A pool's number means nothing to new contracts.
    changed = msgspec.structs.replace(profile, contracts=done.addresses, deployed_block=done.block, pool=None)
    write_profile(path, changed)
    return path


def _says(profile: "NetworkProfile", key: "NodeKey", params: "DeployParams", progress: DeployProgress) -> str:
    token = f"stakes are held in the token {params.token}" if params.token else "a new test token is made, free for all"
    rest = f"{params.treasury} gets what slashes do not burn" if params.treasury else "slashes are burned whole"
    arbiter = params.arbiter or key.address
    words = (
        f"the contracts are put on {profile.name} for ever; {token}. {rest}; "
        f"{arbiter} may undo a quorum's slash within {params.appeal_seconds / 3600:g} h; a slash takes at most "
        f"{ether(params.stake_per_unit)} tokens for each unit of a node. You pay the gas."
    )
    return words + (f" {len(progress.done)} step(s) are done already." if progress.done else "")


def _show_dry_run(says: str, simulation: "Simulation | None", as_json: bool) -> None:
    if as_json:
        steps = [dry_step(step) for step in simulation.steps] if simulation else []
        gas, cost = (simulation.gas, simulation.cost) if simulation else (0, 0)
        print_json({"dry_run": True, "says": says, "steps": steps, "gas": gas, "cost_wei": str(cost)})
        return
    console().print(f"would do this:\n  {says}", markup=False, soft_wrap=True)
    for step in simulation.steps if simulation else ():
        console().print(f"  {step.action}: gas {'' if step.exact else 'about '}{step.gas:,}", soft_wrap=True)
    if simulation:
        console().print(f"  {costs(simulation)}", soft_wrap=True)
    console().print("nothing was sent")


def _show(path: Path, done: "Deployment", progress: DeployProgress, as_json: bool) -> None:
    gas, cost = (sum(getattr(one, name) for one in progress.done.values()) for name in ("gas", "cost"))
    contracts = {name: getattr(done.addresses, name) for name in done.addresses.__struct_fields__}
    if as_json:
        print_json({"profile": str(path), "block": done.block, "gas_used": gas, "cost_wei": str(cost), **contracts})
        return
    print_facts([*contracts.items(), ("gas", f"{gas:,}"), ("cost", f"{eth(cost)} ETH"), ("profile", path)])
