"""The chair: who trains a pool, whose turn it is, and the transactions by which a node leads."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.contract.frame import CommandPlan, chair_app, question, step, transaction, when
from cli.contract.pool import Pool
from cli.contract.values import address, time_option, word
from cli.errors import USAGE, CommandError
from cli.output import duration

if TYPE_CHECKING:
    from node.chain.client import ChainClient
    from protocol.identity import Address

Trainers = Annotated[
    list[Any] | None,
    typer.Option(
        "--trainer",
        parser=address,
        metavar="ADDRESS",
        rich_help_panel="Options",
        help="A trainer's node, in the order of their turn; repeatable.",
    ),
]
Step = Annotated[
    int, typer.Option("--step", min=0, max=2**64 - 1, help="`take`: the first policy you decide. `hold`: the newest.")
]
Root = Annotated[Any, typer.Option("--root", parser=word, metavar="ROOT", help="Policy root, 64 hex digits.")]


@question(chair_app, "show", example="chair show 7 --network base-sepolia --json")
async def show(chain: "ChainClient", pool: Pool) -> tuple[dict[str, Any], list[Any]]:
    """Who leads a pool's training, until when, and who comes next."""
    info = await chain.chair(pool)
    if info is None:
        manager = (await chain.pool(pool)).manager
        alone = {"pool": pool, "trainers": [manager], "holder": manager, "term": 0, "seated": False}
        return alone, [("leads", f"the manager {manager}, for good")]
    now = (await chain.block()).timestamp
    rows: list[Any] = [
        ("leads", f"{info.holder}, term {info.term}, from policy {info.from_step} on"),
        ("ended" if info.ended else "its lease ends", when(info.until, now)),
        *(
            (f"standby {one}", f"may take the chair {when(info.turn(one), now)}")
            for one in sorted({*info.trainers} - {info.holder}, key=info.turn)
        ),
    ]
    if info.proposed_from:
        rows.append(("proposed", f"{', '.join(info.proposed)}, from {when(info.proposed_from, now)}"))
    facts = {name: getattr(info, name) for name in info.__struct_fields__}
    return {**facts, "parent": info.parent.hex(), "holder": info.holder, "seated": True}, rows


@transaction(chair_app, "seat", example="chair seat 7 --trainer 0xAb.. --trainer 0xCd.. --lease 1h --key manager")
async def seat(
    chain: "ChainClient",
    me: "Address",
    pool: Pool,
    trainer: Trainers = None,
    lease: Annotated[int, time_option("After this time without a hold the chair is free.")] = "1h",  # type: ignore[assignment]
    grace: Annotated[int, time_option("Wait of each further standby behind the one before it.")] = "20s",  # type: ignore[assignment]
) -> CommandPlan:
    """As the manager or who opened the pool, once: name the trainers. The first leads; the others stand by."""
    trainers = _named(trainer)
    says = (
        f"{trainers[0]} leads pool {pool}, and {len(trainers) - 1} trainer(s) stand by; a lease lasts "
        f"{duration(lease)}; no money moves"
    )
    change = step("seat the trainers", chain.contracts.seat_trainers(pool, trainers, lease, grace))
    return CommandPlan(says, f"pool {pool} has {len(trainers)} trainer(s)", [change])


@transaction(chair_app, "propose", example="chair propose 7 --trainer 0xAb.. --trainer 0xEf.. --key opener")
async def propose(
    chain: "ChainClient",
    me: "Address",
    pool: Pool,
    trainer: Trainers = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Let those who were proposed before take their places.")
    ] = False,
) -> CommandPlan:
    """As who opened the pool: name other trainers, who can take their places one window later (--apply, by anybody).

    Naming anew undoes what was named. Nobody takes a place in a pool that has ended.
    """
    if apply:
        change = step("change the trainers", chain.contracts.apply_trainers(pool))
        says = f"the proposed trainers of pool {pool} take their places; no money moves"
        return CommandPlan(says, f"pool {pool} has new trainers", [change])
    trainers, info = _named(trainer), await chain.pool(pool)
    says = (
        f"{len(trainers)} trainer(s) are proposed for pool {pool}; in {duration(info.window)} they can take the places "
        "of all present ones; no money moves"
    )
    change = step("propose trainers", chain.contracts.propose_trainers(pool, trainers))
    return CommandPlan(says, f"trainers are proposed for pool {pool}", [change])


@transaction(chair_app, "hold", example="chair hold 7 --step 12 --root <64 hex digits> --state-dir nodes/trainer")
async def hold(chain: "ChainClient", me: "Address", pool: Pool, step_: Step, root: Root) -> CommandPlan:
    """As the leader: lead for another lease. A node that trains does so by itself."""
    call = chain.contracts.hold_chair(pool, step_, root)
    says = f"{me} leads pool {pool} for another lease; no money moves"
    return CommandPlan(says, f"the chair of pool {pool} is held", [step("hold the chair", call)])


@transaction(chair_app, "take", example="chair take 7 --step 13 --root <64 hex digits> --state-dir nodes/standby")
async def take(chain: "ChainClient", me: "Address", pool: Pool, step_: Step, root: Root) -> CommandPlan:
    """As a standby whose turn it is: lead from policy --step on. A node does so by itself.

    --root is the root of the policy before --step.
    """
    info = await chain.chair(pool)
    if info is None:
        raise CommandError(
            f"pool {pool} has no chair", "its manager trains, for good", "seat trainers first: chair seat", USAGE
        )
    # The term's number makes it a race with one winner: of two who take at once, one is refused.
    call = chain.contracts.take_chair(pool, info.term + 1, step_, root)
    says = f"{me} leads pool {pool} from policy {step_} on, in term {info.term + 1}; no money moves"
    return CommandPlan(says, f"the chair of pool {pool} is taken", [step("take the chair", call)])


def _named(trainers: list[Any] | None) -> "list[Address]":
    if not trainers:
        raise CommandError("nobody is named", "a pool needs a trainer", "give --trainer ADDRESS, repeatable", USAGE)
    return trainers
