"""Judging: carry a quorum's verdicts, or signatures that contradict each other, to the chain. Cases are JSON files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.contract.earnings import Node
from cli.contract.frame import Plan, transaction
from cli.contract.groups import app, case_app
from cli.contract.pool import Pool
from cli.errors import USAGE, CommandError
from cli.output import ether

if TYPE_CHECKING:
    from node.chain.client import ChainClient
    from protocol.identity import Address

CaseFile = Annotated[Path, typer.Argument(metavar="CASE", help="A case file (JSON); see docs/contracts-cli.md.")]


@transaction(app, "slash", example="slash case.json --network base-sepolia --key anybody")
async def slash(chain: "ChainClient", me: "Address", case: CaseFile) -> Plan:
    """Carry a quorum's slash verdicts over a file that its node signed to the chain."""
    from node.chain.cases import FileCase, unhex
    from node.chain.simulate import Step

    given = _case(case, FileCase)
    c, own = given.commitment.statement(), unhex(given.signature)
    call = chain.contracts.slash(c, own, given.reason, given.signatures, given.values, given.rechecked)
    info, hours = await chain.pool(c.pool), await chain.appeal_seconds() / 3600
    frozen = f"{ether(info.slash_amount)} tokens of its provider's stake are frozen"
    says = (
        f"the node {c.node} is evicted and is paid nothing more, and {frozen}: lost after {hours:g} h unless "
        "overturned; then the judges who signed pay that much to the provider"
    )
    return Plan(says, f"{c.node} is slashed", [Step(f"slash {c.node}", call)])


@transaction(app, "evidence", example="evidence contradiction.json --network base-sepolia --key me")
async def evidence(chain: "ChainClient", me: "Address", case: CaseFile) -> Plan:
    """Slash whoever signed two statements that contradict each other: commitments, verdicts, certificates."""
    from node.chain import cases
    from node.chain.simulate import Step

    kinds = (cases.VerdictContradiction, cases.CertificateContradiction, cases.FalseCertificate)
    given = _case(case, cases.CommitmentContradiction, *kinds)
    first, second = given.first.statement(), given.second.statement()
    signatures = cases.unhex(given.first_signature), cases.unhex(given.second_signature)
    pair, contracts = (first, signatures[0], second, signatures[1]), chain.contracts
    whose = "of the validator's provider"
    if isinstance(given, cases.CommitmentContradiction):
        whose, call = f"of the provider of {first.node}", contracts.evidence(*pair)
    elif isinstance(given, cases.VerdictContradiction):
        call = contracts.verdict_evidence(first.pool, first.work, *pair)
    else:
        call = contracts.accepted_evidence(*pair)
    info = await chain.pool(first.pool)
    says = f"{ether(info.slash_amount)} tokens of stake {whose} are lost at once and for ever"
    return Plan(says, "the evidence was accepted", [Step("slash by its own signatures", call)])


@transaction(case_app, "overturn", example="case overturn 7 0xNode --network base-sepolia --key arbiter")
async def overturn(chain: "ChainClient", me: "Address", pool: Pool, node: Node) -> Plan:
    """As the arbiter: undo a quorum's slash while it is frozen."""
    from node.chain.simulate import Step

    slash = (await chain.pool(pool)).slash_amount
    says = (
        f"the frozen stake of {node}'s provider goes back to it, and the judges who signed the slash pay it "
        f"{ether(slash)} tokens out of their stakes, in equal parts"
    )
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
