"""Judging: carry a quorum's verdicts, or signatures that contradict each other, to the chain. Cases are JSON files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.contract.frame import Plan, transaction
from cli.contract.groups import app, case_app
from cli.contract.pool import Pool
from cli.contract.work import Node, require_epoch
from cli.errors import USAGE, CommandError
from cli.output import ether

if TYPE_CHECKING:
    from node.chain.client import ChainClient
    from protocol.identity import Address

CaseFile = Annotated[Path, typer.Argument(metavar="CASE", help="A case file (JSON); see docs/contracts-cli.md.")]


@transaction(app, "invalidate", example="invalidate case.json --network base-sepolia --key anybody")
async def invalidate(
    chain: "ChainClient",
    me: "Address",
    case: CaseFile,
    hard: Annotated[
        bool, typer.Option("--hard", help="With a quorum's slash verdicts: evict and freeze stake.")
    ] = False,
) -> Plan:
    """Take a rejected file, or a whole epoch, out of what a node will be paid for; an epoch's case says its cost."""
    from node.chain.cases import EpochCase, FileCase, unhex
    from node.chain.simulate import Step
    from protocol.identity import parse_address
    from protocol.statements import Outcome

    given = _case(case, FileCase, EpochCase)
    verdicts = [unhex(one) for one in given.verdicts]
    if isinstance(given, EpochCase):
        node = parse_address(given.node)
        call = chain.contracts.invalidate_epoch(given.pool, node, given.epoch, given.outcome, given.reason, verdicts)
        says = f"the node {node} earns nothing for epoch {given.epoch} of pool {given.pool}; its stake is not touched"
        if given.outcome == Outcome.SLASH:
            says = await _slashed(chain, given.pool, node)
        return Plan(says, f"epoch {given.epoch} of {node} is void", [Step("invalidate an epoch", call)])
    c, epoch = given.commitment.statement(), require_epoch(given.epoch)
    outcome = Outcome.SLASH if hard else Outcome.REJECT
    call = chain.contracts.invalidate(c, epoch, given.path(), int(outcome), given.reason, verdicts)
    info = await chain.pool(c.pool)
    lost = ether(c.units * info.reward_per_unit)
    says = f"the node {c.node} loses {lost} tokens for one file of epoch {epoch}; its stake is not touched"
    if hard:
        says = await _slashed(chain, c.pool, c.node)
    return Plan(says, f"a file of {c.node} is invalid", [Step("invalidate a file", call)])


@transaction(app, "slash", example="slash case.json --network base-sepolia --key anybody")
async def slash(chain: "ChainClient", me: "Address", case: CaseFile) -> Plan:
    """Carry a quorum's slash verdicts over a file that its node signed to the chain."""
    from node.chain.cases import FileCase, unhex
    from node.chain.simulate import Step

    given = _case(case, FileCase)
    if given.signature is None:
        raise CommandError(
            "the node's signature is missing", "a slash needs it", "add signature to the case file", USAGE
        )
    c, verdicts = given.commitment.statement(), [unhex(one) for one in given.verdicts]
    call = chain.contracts.slash(c, unhex(given.signature), given.reason, verdicts)
    says = await _slashed(chain, c.pool, c.node)
    return Plan(says, f"{c.node} is slashed", [Step(f"slash {c.node}", call)])


@transaction(app, "evidence", example="evidence contradiction.json --network base-sepolia --key me")
async def evidence(chain: "ChainClient", me: "Address", case: CaseFile) -> Plan:
    """Slash whoever signed two statements that contradict each other: a node's commitments, a validator's verdicts."""
    from node.chain.cases import CommitmentContradiction, VerdictContradiction, unhex
    from node.chain.simulate import Step

    given = _case(case, CommitmentContradiction, VerdictContradiction)
    signed = [(given.first.statement(), given.first_signature), (given.second.statement(), given.second_signature)]
    if isinstance(given, VerdictContradiction):
        signed.sort(key=lambda pair: pair[0].outcome)  # the contract wants the acceptance first
    (first, first_signature), (second, second_signature) = signed
    make = chain.contracts.verdict_evidence if isinstance(given, VerdictContradiction) else chain.contracts.evidence
    call = make(first, unhex(first_signature), second, unhex(second_signature))
    info = await chain.pool(first.pool)
    whose = (
        f"of the provider of {first.node}"
        if isinstance(given, CommitmentContradiction)
        else "of the validator's provider"
    )
    says = f"{ether(info.slash_amount)} tokens of stake {whose} are lost at once and for ever"
    return Plan(says, "the evidence was accepted", [Step("slash by its own signatures", call)])


@transaction(case_app, "overturn", example="case overturn 7 0xNode --network base-sepolia --key arbiter")
async def overturn(chain: "ChainClient", me: "Address", pool: Pool, node: Node) -> Plan:
    """As the arbiter: undo a quorum's slash while it is frozen."""
    from node.chain.simulate import Step

    says = f"the frozen stake of {node}'s provider goes back to it, and so does pool {pool}'s bond, as compensation"
    return Plan(
        says, f"the slash of {node} is undone", [Step("overturn a slash", chain.contracts.overturn(pool, node))]
    )


def _case(path: Path, *kinds: type) -> Any:
    from node.chain.cases import read_case

    case = read_case(path)
    if not isinstance(case, kinds):
        wanted = " or ".join(str(kind.__struct_config__.tag) for kind in kinds)  # type: ignore[attr-defined]
        kind = type(case).__struct_config__.tag
        raise CommandError("this is another kind of case", f"it is {kind!r}, not {wanted}", "see --help", USAGE)
    return case


async def _slashed(chain: "ChainClient", pool: int, node: "Address") -> str:
    info = await chain.pool(pool)
    hours = await chain.appeal_seconds() / 3600
    tokens = ether(info.slash_amount)
    frozen = f"{tokens} tokens of its provider's stake are frozen: lost after {hours:g} h unless overturned"
    return f"the node {node} is evicted, earns nothing for what is in its window, and {frozen}"
