"""Cases: what quorums and signatures took from whom; and a provider's answer to them while a stake is only frozen."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.contract.earnings import Node
from cli.contract.frame import CommandPlan, OnlyPool, Rows, app, case_app, question, step, transaction, when
from cli.contract.pool import Pool
from cli.contract.stake import approve_steps
from cli.contract.values import MAX_CASE, address
from cli.errors import USAGE, CommandError
from cli.events import events_of, fault_name, pool_topics
from cli.output import date, ether

if TYPE_CHECKING:
    from contracts.bindings import CaseInfo, Slashed
    from node.chain.client import ChainClient
    from protocol.identity import Address

BOND_WON = "nine tenths"
"""Of the loser's bond that the winner of a case gets: StakeVault's LOST_BPS are burned."""
CaseNumber = Annotated[int, typer.Argument(min=1, max=MAX_CASE, help="Number of the case; see `case list`.")]


@question(case_app, "list", example="case list 0xProvider --network base-sepolia --json")
async def list_(
    chain: "ChainClient",
    who: Annotated[
        Any, typer.Argument(parser=address, metavar="[ADDRESS]", help="Only those of a node, or a provider's nodes.")
    ] = None,
    pool: OnlyPool = None,
) -> tuple[dict[str, Any], Rows]:
    """Whose stake was taken, oldest first: by judges (a case), or by evidence."""
    rows, now = await _rows(chain, who, pool), (await chain.block()).timestamp
    lines = [line for row in rows for line in lines_of(row, now)]
    return {"cases": rows, "now": now}, lines or ["nothing was taken from anybody"]


@question(case_app, "show", example="case show 3 --network base-sepolia --json")
async def show(chain: "ChainClient", case: CaseNumber) -> tuple[dict[str, Any], Rows]:
    """A frozen stake: whose it is, why, how much, until when, and who put up a bond for it."""
    info, now = await _case(chain, case), (await chain.block()).timestamp
    events = [event for event in await _events(chain, info.pool) if getattr(event, "case_id", None) == case]
    told = [await _row(chain, event, info.provider, info) for event in events]
    facts = _frozen(info) | {"pool": info.pool} | (told[0] if told else {})
    names = ("case", "provider", "pool", "node", "reason", "state", "transaction")
    rows = [(name, facts[name]) for name in names if facts.get(name) is not None]
    rows += [("carried by", info.carrier), ("bond of each side", f"{ether(info.bond)} tokens")]
    rows += [("tokens", ether(int(facts["frozen_wei"]))), ("appealed", "yes" if facts["appealed"] else "no")]
    return facts, [*rows, ("final", when(facts["final_at"], now))]


@transaction(case_app, "appeal", example="case appeal 3 --network base-sepolia --key provider")
async def appeal(chain: "ChainClient", me: "Address", case: CaseNumber) -> CommandPlan:
    """As the provider whose stake was frozen: ask for more time, once, so that the arbiter can look at the case."""
    info = await _case(chain, case)
    says = (
        f"the {ether(info.amount)} tokens frozen in case {case} stay frozen longer, so that the arbiter can decide. "
        f"You put up {ether(info.bond)} tokens: they are lost unless it overturns the case; then they come back, and "
        f"{BOND_WON} of what {info.carrier} put up"
    )
    steps = await approve_steps(chain, me, chain.profile.contracts.vault, info.bond)
    steps.append(step(f"appeal case {case}", chain.contracts.appeal(case)))
    return CommandPlan(says, f"case {case} is appealed", steps)


@transaction(case_app, "collect", example="case collect 0xProvider --network base-sepolia --key anybody")
async def collect(
    chain: "ChainClient",
    me: "Address",
    who: Annotated[Any, typer.Argument(parser=address, metavar="[ADDRESS]", help="Default: the signer.")] = None,
) -> CommandPlan:
    """Have the vault pay what it owes somebody: bonds of cases that were won, shares, what was slashed."""
    whose = who or me
    owed = await chain.credit_of(whose)
    says = f"the vault pays {ether(owed)} tokens to {whose}, to which it owes them"
    return CommandPlan(
        says, f"{ether(owed)} tokens were paid to {whose}", [step("collect a credit", chain.contracts.collect(whose))]
    )


@transaction(case_app, "finalize", example="case finalize 3 --network base-sepolia --key anybody")
async def finalize(chain: "ChainClient", me: "Address", case: CaseNumber) -> CommandPlan:
    """Burn and pay out what was frozen, for ever, once its time is over. Anybody may do this."""
    info = await _case(chain, case)
    says = (
        f"{ether(info.amount)} tokens of {info.provider}, frozen in case {case}, are lost to it for ever; "
        f"{info.carrier}, who carried the case, has its bond back and a fiftieth of them"
    )
    return CommandPlan(says, f"case {case} is final", [step(f"finish case {case}", chain.contracts.finalize(case))])


@transaction(case_app, "arbiter", example="case arbiter 0xNew --network base-sepolia --key arbiter")
async def arbiter(
    chain: "ChainClient",
    me: "Address",
    to: Annotated[
        Any, typer.Argument(parser=address, metavar="[ADDRESS]", help="The next arbiter: a key or contract.")
    ] = None,
    accept: Annotated[bool, typer.Option("--accept", help="As who was named: take the office.")] = False,
    nobody: Annotated[bool, typer.Option("--nobody", help="Undo what was named.")] = False,
) -> CommandPlan:
    """As the arbiter: name a successor, who accepts two appeals later; naming anew undoes it."""
    from contracts.bindings import NOBODY

    if (to is not None) + accept + nobody != 1:
        why = "give an ADDRESS, --accept or --nobody, one of them"
        raise CommandError("what about the arbiter's office?", why, "see --help", USAGE)
    if accept:
        says = f"{me} decides about frozen stakes from now on, and the former arbiter no more; no money moves"
        return CommandPlan(says, f"{me} is the arbiter", [step("accept the office", chain.contracts.accept_arbiter())])
    hours = 2 * await chain.ask("read a parameter", lambda c: c.appeal_seconds()) / 3600
    says = f"{to} may accept the arbiter's office in {hours:g} h; until then {me} decides, and may name anew"
    if nobody:
        says = f"{me} stays the arbiter; whoever was named as its successor is not any more"
    call = chain.contracts.name_successor(NOBODY if nobody else to)
    return CommandPlan(f"{says}; no money moves", f"{to or 'nobody'} is named", [step("name a successor", call)])


# ---- inside


async def _case(chain: "ChainClient", case: int) -> "CaseInfo":
    info = await chain.case(case)
    if info.state == 0:
        raise CommandError(f"there is no case {case}", "no stake was frozen under that number", "see: contract events")
    return info


async def _rows(chain: "ChainClient", who: "Address | None", pool: int | None) -> list[dict[str, Any]]:
    """Every case of `who` in `pool`; JSON-ready."""
    rows: list[dict[str, Any]] = []
    owners: dict[Address, Address | None] = {}
    for event in await _events(chain, pool):
        if event.node not in owners:
            owners[event.node] = (await chain.node_info(event.node)).owner
        if who in (None, event.node, owners[event.node]):
            info = await chain.case(event.case_id) if event.case_id else None
            rows.append(await _row(chain, event, owners[event.node], info))
    return rows


async def _events(chain: "ChainClient", pool: int | None) -> "list[Slashed]":
    from contracts.bindings import Slashed

    return await events_of(chain, Slashed, *pool_topics(pool))


async def _row(
    chain: "ChainClient", event: "Slashed", provider: "Address | None", info: "CaseInfo | None"
) -> dict[str, Any]:
    """One slash. info: of one by judges."""
    kind = "slash" if event.case_id else "evidence"
    facts = {"kind": kind, "pool": event.pool, "node": event.node, "provider": provider}
    facts |= {"reason": fault_name(event.reason), "transaction": event.transaction, "block": event.block}
    facts |= {"amount_wei": str(event.amount)} | (_frozen(info) if info else {})
    return facts | {"time": (await chain.block(event.block)).timestamp}


def _frozen(info: "CaseInfo") -> dict[str, Any]:
    facts = {"case": info.id, "provider": info.provider, "state": info.state.name.lower(), "appealed": info.appealed}
    return facts | {
        "frozen_wei": str(info.amount),
        "bond_wei": str(info.bond),
        "carrier": info.carrier,
        "final_at": info.final_at,
    }


def lines_of(row: dict[str, Any], now: int) -> list[str]:
    """A slash in two lines, and what can still be done about it."""
    name = f"case {row['case']}" if "case" in row else row["kind"]
    if "case" not in row:
        lost = f"{ether(int(row['amount_wei']))} tokens of stake are lost, by the node's own signatures"
    elif row["state"] == "frozen":
        lost = f"{ether(int(row['frozen_wei']))} tokens of stake are frozen, final {when(row['final_at'], now)}"
        if not row["appealed"] and now < row["final_at"]:
            lost += f"; its provider may: contract case appeal {row['case']}"
    else:
        lost = f"{ether(int(row['frozen_wei']))} tokens of stake, {row['state']}"
    return [f"{date(row['time'])}  {name}  pool {row['pool']}  {row['node']}", f"    {row['reason']}: {lost}"]


# Judging: carry a quorum's verdicts, or signatures that contradict each other, to the chain. Cases are JSON files

CaseFile = Annotated[Path, typer.Argument(metavar="CASE", help="A case file (JSON); see docs/contracts-cli.md.")]


@transaction(app, "slash", example="slash case.json --network base-sepolia --key anybody")
async def slash(chain: "ChainClient", me: "Address", case: CaseFile) -> CommandPlan:
    """Carry a quorum's slash verdicts over a file that its node signed to the chain."""
    from node.chain.cases import FileCase

    given = _read_case(case, FileCase)
    c, call = given.commitment, given.call(chain.contracts)
    hours = await chain.ask("read a parameter", lambda contracts: contracts.appeal_seconds()) / 3600
    amount = await chain.ask("read a slash", lambda contracts: contracts.slash_of(c.pool, c.node))
    frozen = f"{ether(amount)} tokens of its provider's stake are frozen"
    bond = await chain.ask("read a bond", lambda contracts: contracts.case_bond(amount))
    says = (
        f"the node {c.node} is evicted and is paid nothing more, and {frozen}: lost after {hours:g} h unless "
        f"overturned. You put up {ether(bond)} tokens: they come back with a fiftieth of the stake once that is lost; "
        f"if it is overturned the provider gets {BOND_WON} of them"
    )
    steps = [*await approve_steps(chain, me, chain.profile.contracts.vault, bond), step(f"slash {c.node}", call)]
    return CommandPlan(says, f"{c.node} is slashed", steps)


@transaction(app, "evidence", example="evidence contradiction.json --network base-sepolia --key me")
async def evidence(chain: "ChainClient", me: "Address", case: CaseFile) -> CommandPlan:
    """Slash whoever signed two statements that contradict each other: commitments, verdicts, roots."""
    from node.chain.cases import CommitmentContradiction, Contradiction

    given = _read_case(case, Contradiction)
    first = given.first
    if isinstance(given, CommitmentContradiction):
        node = given.first.node
        amount = await chain.ask("read a slash", lambda contracts: contracts.slash_of(first.pool, node))
        taken = f"{ether(amount)} tokens of stake of the provider of {node}"
    else:
        price = (await chain.pool(first.pool)).slash_amount
        taken = f"{ether(price)} tokens of stake for each unit of the validator's node"
    says = f"{taken} are lost at once and for ever"
    return CommandPlan(
        says, "the evidence was accepted", [step("slash by its own signatures", given.call(chain.contracts))]
    )


@transaction(case_app, "overturn", example="case overturn 7 0xNode --network base-sepolia --key arbiter")
async def overturn(chain: "ChainClient", me: "Address", pool: Pool, node: Node) -> CommandPlan:
    """As the arbiter: undo a quorum's slash while it is frozen."""
    says = (
        f"the frozen stake of {node}'s provider goes back to it, as far as no other case claims it, and it gets "
        f"{BOND_WON} of the bond of who carried the slash; no other stake moves"
    )
    return CommandPlan(
        says, f"the slash of {node} is undone", [step("overturn a slash", chain.contracts.overturn(pool, node))]
    )


def _read_case(path: Path, wanted: type) -> Any:
    from node.chain.cases import FileCase, read_case

    case = read_case(path)
    if not isinstance(case, wanted):
        kind = type(case).__struct_config__.tag
        other = "evidence" if wanted is FileCase else "slash"
        raise CommandError("this is another kind of case", f"it is {kind!r}", f"use: contract {other}", USAGE)
    return case
