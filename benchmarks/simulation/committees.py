"""Committees of a large bench: who is drawn, what liars among them can do, and what their words cost each role.

    python -m benchmarks.simulation.committees [--validators 100] [--workers 10000] [--liars 0.1 0.2 0.33]
        [--days 20000] [--seed 7] [--quick] [--json]

Planned, not built: a worker belongs to a shard for a day, a shard to seven validators of whom five decide; both follow
from a beacon of the chain. One objection sends a work to a grand committee of 31, of whom 21 decide.

`exact` are hypergeometric sums, `played` so many shard-days with the draw of this module. Bytes are those of the
product's messages as it encodes and signs them, with libp2p's envelope and copies as the simulation has them
(`scenario.Costs`); CPU is messages times what one was measured to cost. Gas is reckoned: from `benchmarks.gas` (a table
by 2 of 3 and by 11 of 16), and from the list that a call would bring in place of a slot for each signer.
"""

import json
import math
import random
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from blake3 import blake3

from benchmarks.command import parser_of
from benchmarks.simulation.scenario import Costs
from protocol.checks import Reason
from protocol.identity import Address, NodeKey
from protocol.liveness import BEATS_PER_SECOND
from protocol.lots import RATE_ONE, pack_groups
from protocol.messages import (
    DIGEST,
    MAX_ENTRIES,
    Heartbeat,
    RolloutCommitted,
    Seal,
    ValidatorBatch,
    VerdictIssued,
    seal,
    seal_of,
    values_hash,
)
from protocol.statements import Domain, Verdict, VerdictOutcome, WorkCommitment, sign, work_id

POOL, UNITS = 1, 8 * 16 * 8_192
COMMITTEE, DECIDE, GRAND, GRAND_DECIDE = 7, 5, 31, 21
SEALED_WITHIN, SHOWN_WITHIN = 2.0, 1.0
"""Seconds that words of a busy validator wait for others (`node.services.judging.verdict_publisher`)."""
BEAT_EVERY = 5.0
"""Seconds between two heartbeats in a shard."""
LOOKED, OPENED_AFTER = (2.0, 20.0), 5.0
"""Seconds from a commitment to a seal, between these, and from the seal until its verdict may be shown."""
POLICIES = 10
"""Whose words are counted."""
DOMAIN = Domain(31337, Address("0x" + "11" * 20))


# who is drawn


def drawn(beacon: bytes, label: bytes, among: int, many: int) -> tuple[int, ...]:
    """`many` different ones of `among`, ascending, by a beacon that nobody chose: the same on every machine."""
    # the first steps of a shuffle (Knuth), each with 64 bits of one stream
    stream = blake3(beacon + label).digest(8 * many)
    places: dict[int, int] = {}
    found: list[int] = []
    for at in range(many):
        other = at + int.from_bytes(stream[8 * at : 8 * at + 8], "little") % (among - at)
        found.append(places.get(other, other))
        places[other] = places.get(at, at)
    return tuple(sorted(found))


def committees(beacon: bytes, bench: int, shards: int) -> list[tuple[int, ...]]:
    """Places on the bench, of each shard."""
    return [drawn(beacon, b"shard %d" % shard, bench, COMMITTEE) for shard in range(shards)]


def shard_of(beacon: bytes, worker: Address, shards: int) -> int:
    """By address and day, never by a work: an id can be made until it suits, an address cannot after the beacon."""
    return int.from_bytes(blake3(beacon + worker.encode()).digest(8), "little") % shards


def grand(beacon: bytes, work: bytes, bench: int) -> tuple[int, ...]:
    """beacon: the next one after the objection, so whoever objects does not know it."""
    return drawn(beacon, work, bench, min(GRAND, bench))


# what liars can do


def chance(bench: int, liars: int, size: int, least: int) -> float:
    """That at least so many of a committee of this size lie."""
    of = range(least, min(size, liars) + 1)
    return sum(math.comb(liars, k) * math.comb(bench - liars, size - k) for k in of) / math.comb(bench, size)


CASES = (
    ("five of seven lie", COMMITTEE, DECIDE),
    ("all seven lie: nobody objects", COMMITTEE, COMMITTEE),
    ("liars can block", COMMITTEE, COMMITTEE - DECIDE + 1),
    ("21 of 31 lie", GRAND, GRAND_DECIDE),
    ("liars can block 31", GRAND, GRAND - GRAND_DECIDE + 1),
)


def liars(bench: int, share: float, days: int, seed: int) -> dict[str, dict[str, float]]:
    """days: shard-days that are drawn, each with one grand committee."""
    lying, counts = round(share * bench), Counter[str]()
    for day in range(days):
        beacon = blake3(b"%d %d" % (seed, day)).digest()
        seen = {COMMITTEE: drawn(beacon, b"shard 0", bench, COMMITTEE), GRAND: grand(beacon, b"a work", bench)}
        for name, size, least in CASES:
            counts[name] += sum(place < lying for place in seen[size]) >= least
    return {
        name: {"exact": chance(bench, lying, size, least), "played": counts[name] / days} for name, size, least in CASES
    }


# what words cost


def verdict(author: NodeKey, of: WorkCommitment, groups: int, checked: Sequence[int], *, accept: bool) -> VerdictIssued:
    """A validator's signed word on a file, as the product forms it."""
    outcome, reason = (VerdictOutcome.ACCEPT, Reason.NONE) if accept else (VerdictOutcome.REJECT, Reason.ACTIVATIONS)
    values: dict[str, Any] = {"rewards": bytes(DIGEST * groups), "logprobs": b"\0\0\x80\xbf" * len(checked)}
    if not accept:
        values = {"group": checked[0] if checked else -1}
    said = VerdictIssued(
        pool=of.pool,
        verdict=Verdict(**msgspec.structs.asdict(of), outcome=int(outcome), reason=int(reason)),
        signature=bytes(65),
        window=0,
        rate=RATE_ONE // 50,
        checked=pack_groups(checked, groups),
        verifier="cuda-sm90/bfloat16/vllm/ieee/tp1/vllm-0.32.0",
        report_root=bytes(32),
        report_size=4 * UNITS,
        prompts=blake3(of.file_root).digest(),
        **values,
    )
    signs = msgspec.structs.replace(said.verdict, values=values_hash(said))
    return msgspec.structs.replace(said, verdict=signs, signature=sign(author, DOMAIN, signs))


def commitment(author: NodeKey, policy_root: bytes, file_root: bytes) -> RolloutCommitted:
    of = WorkCommitment(POOL, author.address, policy_root, 0, file_root, UNITS)
    return RolloutCommitted(pool=POOL, commitment=of, signature=sign(author, DOMAIN, of), size=4 * UNITS)


def beat(role: str) -> Heartbeat:
    contact = "/ip4/203.0.113.7/tcp/4001/p2p/16Uiu2HAmPLe7Mzm8TsYUubgCAW1aJoeFScxrLj8ppHFivPo97bUZ"
    return Heartbeat(
        pool=POOL, boot=1, count=1, at=1, role=role, state="", contact=contact, policy_step=7, interval=BEAT_EVERY
    )  # fmt: skip


class Words(msgspec.Struct, frozen=True):
    """Of one shard, a second: messages and bytes of each kind, before copies."""

    messages: dict[str, float]
    kilobytes: dict[str, float]


class Spoken(msgspec.Struct, frozen=True):
    """A seal, or the verdict behind it. at: when its validator has it; by: when it is said at the latest."""

    at: float
    by: float
    word: Seal | VerdictIssued


def sayings(words: Sequence[Spoken]) -> Iterator[tuple[float, ValidatorBatch]]:
    """The messages of one validator in one shard: when the first word is due, all that it has goes with it."""
    due = deque(sorted(words, key=lambda one: one.by))
    while due:
        now, riding, later = due[0].by, list[Seal | VerdictIssued](), list[Spoken]()
        while due and due[0].by <= now + SEALED_WITHIN:
            one = due.popleft()
            if one.at <= now and len(riding) < MAX_ENTRIES:
                riding.append(one.word)
            else:
                later.append(one)
        due.extendleft(reversed(later))
        seals = tuple(word for word in riding if isinstance(word, Seal))
        shown = tuple(word for word in riding if not isinstance(word, Seal))
        yield now, ValidatorBatch(pool=POOL, seals=seals, carried=shown)


def spoken(key: NodeKey, shown: VerdictIssued, at: float, place: int) -> tuple[Spoken, Spoken]:
    """at: when its validator has looked; place: of it among the committee, of whom the first DECIDE are needed."""
    opened = at + OPENED_AFTER
    sealed = Seal(work_id(shown.verdict), seal_of(shown, key.address))
    return (
        Spoken(at, at + SEALED_WITHIN, sealed),
        Spoken(opened, opened + (0.0 if place < DECIDE else SHOWN_WITHIN), shown),
    )


def words_of_a_shard(workers: float, members: int, policy_seconds: float, groups: int, seed: int) -> Words:
    """A shard's files come at random, its validators seal and show verdicts on them as the product lets words wait."""
    key, chosen = NodeKey(blake3(b"anybody").digest()), random.Random(seed)
    seconds = POLICIES * policy_seconds
    many = max(1, round(workers * POLICIES))
    sizes, counts = Counter[str](), Counter[str]()
    made = commitment(key, bytes(32), bytes(32))
    shown = verdict(key, made.commitment, groups, (0,), accept=True)
    files = [chosen.uniform(0, seconds) for _ in range(many)]
    counts["commitments"], sizes["commitments"] = many, many * len(seal(key, DOMAIN, made))
    for member in range(members):
        words = [
            word
            for at in files
            for word in spoken(key, msgspec.structs.replace(shown), at + chosen.uniform(*LOOKED), member)
        ]
        for _, said in sayings(words):
            counts["validators"] += 1
            sizes["validators"] += len(seal(key, DOMAIN, said))
    beats = (workers + members) / BEAT_EVERY
    messages = {kind: count / seconds for kind, count in counts.items()} | {"heartbeats": beats}
    kilobytes = {kind: size / seconds / 1e3 for kind, size in sizes.items()}
    kilobytes["heartbeats"] = beats * len(seal(key, DOMAIN, beat("worker"))) / 1e3
    return Words(messages, kilobytes)


def roles(workers: int, validators: int, policy_seconds: float, groups: int, seed: int) -> dict[str, dict[str, float]]:
    """What each role hears with as many shards as validators, beside everybody hearing all as today."""
    members = min(COMMITTEE, validators)
    shards = validators if validators > COMMITTEE else 1
    one = words_of_a_shard(workers / shards, members, policy_seconds, groups, seed)
    of_works = {kind: one.messages[kind] for kind in ("commitments", "validators")}
    topics = members * shards / validators
    found: dict[str, dict[str, float]] = {}
    for role, beats, heard in (
        ("worker", 1.0, 1.0),
        ("validator", 1.0, topics),
        ("trainer", 0.0, float(shards)),
    ):
        messages = beats * one.messages["heartbeats"] + heard * sum(of_works.values())
        kilobytes = beats * one.kilobytes["heartbeats"] + heard * sum(one.kilobytes[kind] for kind in of_works)
        found[role] = _cost(messages, kilobytes)
    messages = BEATS_PER_SECOND + shards * sum(of_works.values())
    beats = BEATS_PER_SECOND * one.kilobytes["heartbeats"] / one.messages["heartbeats"]
    found["everybody, without shards"] = _cost(messages, beats + shards * sum(one.kilobytes[kind] for kind in of_works))
    return found


def _cost(messages: float, kilobytes: float) -> dict[str, float]:
    costs = Costs()
    return {
        "messages a second": messages,
        "kB/s in": costs.copies * (kilobytes + messages * costs.overhead / 1e3),
        "CPU, % of a core": 100 * (costs.idle + messages * costs.message_ms / 1e3),
    }


# what the chain takes

POSTED = {2: 129_762, 11: 449_528}
"""Signers -> gas of a later table, `benchmarks.gas`."""
TRANSACTION, STORE, COLD, BYTE, ADDRESS_BYTES = 21_000, 5_000, 2_100, 16, 20
"""Gas of a transaction, a changed slot, a slot's first reading, a byte that is not zero; bytes of an address."""


def gas(bench: int, signers: int) -> dict[str, float]:
    """A table that so many sign, of a bench whose list is in storage today and brought with each call in the plan."""
    each = (POSTED[11] - POSTED[2]) / 9
    fixed = POSTED[2] - 2 * each
    listed = bench * ADDRESS_BYTES * BYTE + 30 + 6 * -(-bench * ADDRESS_BYTES // 32)
    return {
        f"post by {signers} as built, if a bench could be so large": fixed + signers * each,
        f"post by {signers} of {bench}, bench by hash": fixed + listed + signers * (each - COLD),
        f"seating {bench} by their hash": TRANSACTION + listed + STORE,
    }


def main() -> None:
    parser = parser_of(__doc__, "500 shard-days", "line")
    parser.add_argument("--validators", type=int, default=100)
    parser.add_argument("--workers", type=int, nargs="+", default=[10, 100, 1_000, 10_000])
    parser.add_argument("--liars", type=float, nargs="+", default=[0.1, 0.2, 0.33])
    parser.add_argument("--days", type=int, default=20_000, help="shard-days that are drawn")
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    days = 500 if asked.quick else asked.days
    found = {
        "seed": asked.seed,
        "liars": {f"{share:.0%}": liars(asked.validators, share, days, asked.seed) for share in asked.liars},
        "roles": {
            str(many): roles(many, min(asked.validators, max(4, many // 100)), 300.0, 8, asked.seed)
            for many in asked.workers
        },
        "gas": gas(asked.validators, GRAND_DECIDE),
    }
    if asked.json:
        print(json.dumps(found))
        return
    for section, rows in found.items():
        print(section if isinstance(rows, dict) else f"{section} {rows}")
        for name, row in rows.items() if isinstance(rows, dict) else ():
            print(f"  {name:56} {row:,.0f}" if isinstance(row, float | int) else f"  {name}")
            for what, values in row.items() if isinstance(row, dict) else ():
                print(f"    {what:34} " + "  ".join(f"{key} {value:.3g}" for key, value in values.items()))


if __name__ == "__main__":
    main()
