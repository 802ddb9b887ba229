"""`contract source`: the contracts' sources for whoever wants to read them, and what hands them to explorers."""

import json
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from cli.contract.frame import Network, app, read
from cli.errors import USAGE, CommandError
from cli.output import AsJson, console, print_json
from node.state.files import write_whole

if TYPE_CHECKING:
    from collections.abc import Sequence

    from contracts.bindings import Contracts
    from node.chain.client import ChainClient
    from protocol.identity import Address


class Deployed(msgspec.Struct, frozen=True):
    """A contract as it stands on chain. same: whether its code is that of these sources, None of a token whose making
    was not found, as it may be any; arguments: of its constructor, hex, where that was found."""

    name: str
    address: str
    same: bool | None
    arguments: str


@app.command(
    "source",
    epilog="Examples:  intellect-node contract source --out source.json   |   "
    "intellect-node contract source --out source.json --verify --network base-sepolia",
)
def source(
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="File to write. Default: standard output.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="And print the commands that hand it to Sourcify and Etherscan.")
    ] = False,
    network: Network = "local",
    as_json: AsJson = False,
) -> None:
    """The contracts' sources and the compiler's settings as standard JSON, for explorers that verify contracts.

    Compiled by solc 0.8.37 it gives the bytecode that `contract deploy` sends. Contract names: src/Swarm.sol:Swarm and
    so on. With --verify the chain is asked whether its contracts are those.
    """
    from contracts.build import standard_input

    if verify and out is None:
        raise CommandError("which file?", "the commands need the sources in one", "give --out source.json", USAGE)
    text = json.dumps(standard_input(), indent=1)
    if out is None:
        # Not by rich, which would wrap the JSON at the terminal's width.
        print(text)
        return
    try:
        write_whole(out, text.encode())
    except OSError as error:
        raise CommandError(f"cannot write {out}", error.strerror or str(error), "check the path") from None
    if not verify:
        console().print(f"{out}: give it to the explorer as Solidity standard JSON input", soft_wrap=True, markup=False)
        return
    chain_id, found = read(network, _look)
    told = [(one, handing_in(chain_id, one, out)) for one in found]
    if as_json:
        contracts = [msgspec.to_builtins(one) | {"commands": commands} for one, commands in told]
        print_json({"file": str(out), "chain_id": chain_id, "contracts": contracts})
        return
    for one, commands in told:
        state = {True: "has the code of these sources", False: "has OTHER code", None: "not looked at"}[one.same]
        console().print(f"\n# {one.name} {one.address}: {state}", soft_wrap=True, markup=False)
        for command in commands:
            # Not by rich: a command is copied as it is.
            print(command)
    if any(one.same is False for one in found):
        what = "Another version of this program deployed those with other code: use that one, or a newer deployment"
        console().print(f"\n{what}", soft_wrap=True, markup=False)
    print("\nThe first of each pair needs no account (jq, curl); the second a key: export ETHERSCAN_API_KEY=...")


def handing_in(chain_id: int, one: Deployed, file: Path) -> list[str]:
    """For Sourcify (its API v2), and for Etherscan (its API v2). Pure."""
    from contracts.build import COMPILER

    name, path = f"src/{one.name}.sol:{one.name}", shlex.quote(str(file))
    form = f'{{stdJsonInput: ., compilerVersion: "{COMPILER}", contractIdentifier: "{name}"}}'
    sourcify = f"https://sourcify.dev/server/v2/verify/{chain_id}/{one.address}"
    query = f"chainid={chain_id}&module=contract&action=verifysourcecode&apikey="
    fields = [f"contractaddress={one.address}", f"contractname={name}", f"compilerversion=v{COMPILER}"]
    fields += ["codeformat=solidity-standard-json-input", f"constructorArguments={one.arguments}"]
    words = " ".join(f"--data-urlencode {shlex.quote(field)}" for field in fields)
    return [
        f"jq {shlex.quote(form)} {path} | curl -sS -H 'content-type: application/json' --data-binary @- {sourcify}",
        f'curl -sS "https://api.etherscan.io/v2/api?{query}$ETHERSCAN_API_KEY" {words} '
        f"--data-urlencode sourceCode@{path}",
    ]


async def _look(chain: "ChainClient") -> tuple[int, list[Deployed]]:
    first, newest = chain.profile.deployed_block, (await chain.block()).number
    wanted = {address: slot for slot, address in chain.contracts.places().items()}
    made: dict[Address, bytes] = {}
    # Blocks from the profile's deployed_block on in which the contracts' own transactions are looked for.
    for number in range(first, min(first + 1000, newest + 1)):
        if wanted.keys() <= made.keys():
            break
        made |= await chain.ask("read a block", partial(_creations, number=number))
    found = [_judged(slot, address, made.get(address), chain.other_code) for address, slot in wanted.items()]
    return chain.profile.chain_id, found


def _creations(contracts: "Contracts", number: int) -> "dict[Address, bytes]":
    """Contract -> the data of the transaction that made it, of those in one block."""
    from eth_hash.auto import keccak
    from eth_utils.address import to_checksum_address
    from rlp import encode  # of web3's own dependencies

    from protocol.identity import parse_address

    found: dict[Address, bytes] = {}
    for sent in contracts.web3.eth.get_block(number, True)["transactions"]:
        if sent.get("to") is None:
            sender = bytes.fromhex(str(sent["from"])[2:])
            place = to_checksum_address(keccak(encode([sender, sent["nonce"]]))[12:])
            found[parse_address(place)] = bytes(sent["input"])
    return found


def _judged(slot: str, address: str, made: bytes | None, other: "Sequence[str]") -> Deployed:
    """made: what made it; other: contracts that have other code, whatever made them."""
    from contracts.bindings import Contracts, artifact

    name = Contracts.SLOTS[slot]
    code = bytes.fromhex(artifact(name)["bytecode"].removeprefix("0x"))
    arguments = made[len(code) :].hex() if made is not None and made.startswith(code) else ""
    if slot == "token":
        return Deployed(name, address, None if made is None else made.startswith(code), arguments)
    return Deployed(name, address, slot not in other, arguments)
