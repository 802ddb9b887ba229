"""The contracts' events as plain rows: for the terminal, for JSON, for the demo's report."""

from typing import TYPE_CHECKING, Any, TypeVar

from cli.output import date, ether, short

if TYPE_CHECKING:
    from node.chain.client import ChainClient

T = TypeVar("T")
VALIDATORS_FAULTS = {200: "contradicting_verdicts", 201: "false_root", 202: "false_table"}
"""The Court's REASON_DOUBLE_VERDICT, REASON_FALSE_ROOT and REASON_FALSE_TABLE."""
_TIMES = ("lease_until", "made_at", "until", "from", "withdrawable_at", "final_at", "ended_at")
_NAMED = ("pool", "node", "provider", "manager", "payer", "epoch", "units", "contact", "case_id")
_NAMED += ("holder", "term", "from_step", "step")
_AMOUNTS = ("amount", "escrow", "bonded", "unbonding", "burned", "compensation")
_AMOUNTS += ("bond", "reward_per_unit", "slash_amount")


async def event_rows(chain: "ChainClient") -> list[dict[str, Any]]:
    """Every event of the contracts since they were deployed, oldest first; JSON-ready."""
    from contracts.bindings import parse_log

    head = await chain.block()
    logs = await chain.logs(chain.profile.deployed_block, head.number, [], everything=True)
    parsed = [parse_log(log, chain.profile.contracts) for log in logs]
    return [event_row(event) for event in parsed if event is not None]


async def events_of(chain: "ChainClient", kind: type[T], *topics: str | None) -> list[T]:
    """Every event of one kind that was told, oldest first. topics: of its indexed fields, None for any."""
    from contracts.bindings import parse_log, topic_of

    head = await chain.block()
    wanted = ["0x" + topic_of(kind).hex(), *topics]  # type: ignore[arg-type]
    logs = await chain.logs(chain.profile.deployed_block, head.number, wanted)
    return [event for log in logs if isinstance(event := parse_log(log, chain.profile.contracts), kind)]


def pool_topics(pool: int | None) -> list[str]:
    """Of the events of one pool; none asks for those of all."""
    from contracts.bindings import pool_topic

    return [] if pool is None else ["0x" + pool_topic(pool).hex()]


def event_row(event: Any) -> dict[str, Any]:
    """One event: its name, then its fields, those of a pool's terms among them; amounts in wei as strings, roots in
    hex."""
    row: dict[str, Any] = {"event": type(event).__name__, **_fields(event)}
    return row | _fields(row.pop("params")) if "params" in row else row


def _fields(struct: Any) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if isinstance(value, bytes):
            value = value.hex()
        # `from` is a word of Python's, so the field is `from_`.
        name = name.rstrip("_")
        row[f"{name}_wei" if name in _AMOUNTS else name] = str(value) if name in _AMOUNTS else value
    return row


def describe_event(row: dict[str, Any]) -> str:
    """A row in a few words."""
    words = []
    for name in _NAMED:
        if row.get(name) not in (None, ""):
            value = row[name]
            words.append(f"{name} {short(value) if str(value).startswith('0x') else str(value)[:60]}")
    words += [f"{name} {ether(int(row[f'{name}_wei']))}" for name in _AMOUNTS if f"{name}_wei" in row]
    words += [f"{name.replace('_', ' ')} {date(row[name])}" for name in _TIMES if name in row]
    if "reason" in row:
        words.append(f"reason {fault_name(row['reason'])}")
    return "  ".join(words)


def fault_name(reason: int) -> str:
    """Why somebody lost pay or stake, whatever number the chain holds: of a file, of a validator."""
    from protocol.checks import reason_name

    return VALIDATORS_FAULTS.get(reason) or reason_name(reason)
