"""Attestations: validators measure a node and sign what it can do; whoever has a quorum of them carries it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from cli.contract.frame import CommandPlan, Network, PasswordFile, attest_app, profile_of, read, step, transaction
from cli.contract.pool import Pool
from cli.contract.stake import NodeAddress, signature_of
from cli.contract.values import MAX_POOL, MAX_UNITS, Moment, address, read_json, when_option
from cli.errors import USAGE, CommandError
from cli.keyring import open_node_key
from cli.output import date, print_json
from cli.places import state_dir_option

if TYPE_CHECKING:
    from node.chain.client import ChainClient
    from protocol.identity import Address
    from protocol.statements import Attestation


class SignedAttestation(msgspec.Struct, frozen=True):
    """What `attest sign` prints. made_at, until: unix seconds; signature: 65 bytes in hex."""

    pool: int
    node: str
    units: int
    made_at: int
    until: int
    validator: str
    signature: str


@attest_app.command(
    "sign", epilog="Example:  intellect-node contract attest sign 7 0xNode --units 2 --state-dir nodes/judge > a.json"
)
def sign(
    pool: Pool,
    node: NodeAddress,
    units: Annotated[
        int,
        typer.Option(min=0, max=MAX_UNITS, help="Units that you measured; 0 takes back all attestations before it."),
    ],
    state_dir: Annotated[Path, state_dir_option("State directory of the validator's node.")],
    until: Annotated[
        Moment, when_option("Until when it holds, at most 90 days: +30d, a date, or unix seconds.")
    ] = "+30d",  # type: ignore[assignment]
    made_at: Annotated[
        Moment, when_option("Time of the attestation; all who sign give the same. Default: now.")
    ] = "+0s",  # type: ignore[assignment]
    network: Network = "local",
    password_file: PasswordFile = None,
) -> None:
    """As a validator: sign how many units a node has. Prints JSON for `attest send`; sends nothing.

    A quorum must sign the same: whoever signs second gives the made_at and until that the first one was told.
    """
    from protocol.statements import Attestation, Domain
    from protocol.statements import sign as sign_statement

    key, profile = open_node_key(state_dir, password_file), profile_of(network)

    async def look(chain: "ChainClient") -> tuple[Any, int]:
        return await chain.pool(pool), (await chain.block()).timestamp

    info, now = read(network, look)
    if key.address not in info.validators:
        why = f"the validators of pool {pool} are {', '.join(info.validators)}, the key is {key.address}"
        raise CommandError("only a validator can attest", why, "give the state directory of a validator's node")
    attestation = Attestation(pool, node, units, made_at(now), until(now))
    # The contract refuses such times, too, but only after a quorum has signed them.
    _require_order(attestation, now)
    signature = sign_statement(key, Domain(profile.chain_id, profile.contracts.swarm), attestation)
    print_json(msgspec.structs.asdict(attestation) | {"validator": key.address, "signature": "0x" + signature.hex()})


@transaction(attest_app, "send", example="attest send a.json b.json --network base-sepolia --key anybody")
async def send(
    chain: "ChainClient",
    me: "Address",
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="What `attest sign` printed, of a quorum.")],
) -> CommandPlan:
    """Carry the validators' attestation of a node's units to the chain. Anybody may do this."""
    remedy = "make it again: intellect-node contract attest sign"
    signed = [read_json(file, SignedAttestation, "is no attestation", remedy) for file in files]
    attestation = _statement(signed[0], files[0])
    for file, other in zip(files, signed, strict=True):
        if _statement(other, file) != attestation:
            why = f"{file} differs from {files[0]} in node, units or times, so their signatures are of two statements"
            raise CommandError("these attestations do not agree", why, "let all sign the same made_at and until", USAGE)
    # A file that is given twice would be a validator that signs twice, which the contract refuses.
    signatures = list(dict.fromkeys(signature_of(one.signature) for one in signed))
    call = chain.contracts.attest(attestation, signatures)
    node, units, until = attestation.node, attestation.units, date(attestation.until)
    says = f"the node {node} counts with {units} unit(s) in pool {attestation.pool} until {until}; no money moves"
    return CommandPlan(says, f"node {node} attested with {units} unit(s)", [step("attest the node", call)])


def _require_order(attestation: "Attestation", now: int) -> None:
    if attestation.made_at > now or attestation.until <= now:
        why = f"made {date(attestation.made_at)}, until {date(attestation.until)}; it is {date(now)} on the chain"
        raise CommandError("these times make no attestation", why, "give other times", USAGE)


def _statement(signed: SignedAttestation, path: Path) -> "Attestation":
    from protocol.statements import Attestation

    fits = 0 < signed.pool <= MAX_POOL and 0 <= signed.units <= MAX_UNITS
    if not fits or not all(0 < second < 2**63 for second in (signed.made_at, signed.until)):
        raise CommandError(f"{path} is no attestation", "a number in it is out of bounds", "make it again", USAGE)
    return Attestation(signed.pool, address(signed.node), signed.units, signed.made_at, signed.until)
