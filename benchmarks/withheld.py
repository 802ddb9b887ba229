"""Which leaders lose their term by what they do not hand over, and after how many steps?

    python -m benchmarks.withheld [--terms 100] [--steps 8000] [--seed S] [--quick] [--json FILE]

Plays terms on the product's own count of looks (`node/audit/looks.py`): four validators, a quorum of three, a step a
minute, of which each validator's lot draws one in eight. Some looks are in vain, also when they are tried again: each
by itself (a validator's trouble that it does not see), or of some steps those of all validators (an outage of the
leader's, or what it withholds). A term is over once a quorum has too many in vain at one time. ADR 130 has the table.
"""

import random
import secrets
from statistics import median
from typing import Literal

import msgspec

from benchmarks.command import parser_of, save
from node.audit.looks import LookHistory
from protocol.manifest import PolicyStatement

VALIDATORS, QUORUM, DRAWN, MINUTE = 4, 3, 1 / 8, 60.0
STATED = PolicyStatement(1, 1, 0, 0, bytes(32), bytes(32), bytes(32), bytes(32))
Of = Literal["looks", "steps"]
CASES: tuple[tuple[Of, float], ...] = (
    ("looks", 0.01), ("looks", 0.02),
    ("steps", 0.005), ("steps", 0.01), ("steps", 0.02), ("steps", 0.03), ("steps", 0.05), ("steps", 0.08),
    ("steps", 0.125), ("steps", 0.25),
)  # fmt: skip


def over_after(of: Of, share: float, steps: int, chance: random.Random) -> int | None:
    """The step at which a quorum has had enough; None if it never has. share: of the looks or steps, in vain."""
    now = [0.0]
    looks = [LookHistory(lambda: now[0]) for _ in range(VALIDATORS)]
    enough = [False] * VALIDATORS
    for step in range(1, steps + 1):
        now[0] += MINUTE
        withheld = of == "steps" and chance.random() < share
        for place, history in enumerate(looks):
            if chance.random() >= DRAWN:
                continue
            statement = msgspec.structs.replace(STATED, step=step)
            in_vain = withheld or (of == "looks" and chance.random() < share)
            (history.withheld if in_vain else history.came)(statement)
            enough[place] = history.sound_of_some(1) is not None or history.are_enough
        if sum(enough) >= QUORUM:
            return step
    return None


def main() -> None:
    parser = parser_of(__doc__, "five terms of 1,000 steps")
    parser.add_argument("--terms", type=int, default=100, help="of each row")
    parser.add_argument("--steps", type=int, default=8000, help="of a term, at most")
    parser.add_argument("--seed", type=int, default=None, help="drawn, and printed")
    a = parser.parse_args()
    seed = secrets.randbelow(10**6) if a.seed is None else a.seed
    terms, steps = (5, 1000) if a.quick else (a.terms, a.steps)
    print(f"seed {seed}, {terms} terms of {steps} steps")
    rows = []
    for of, share in CASES:
        found = [over_after(of, share, steps, random.Random(f"{seed} {of} {share} {term}")) for term in range(terms)]
        ended = [step for step in found if step is not None]
        after = median(ended) if ended else None
        rows.append({"of": of, "share": share, "terms": terms, "ended": len(ended), "after": after})
        print(f"{share:6.1%} of the {of} in vain: {len(ended)} terms over, after {after} steps (median)", flush=True)
    save(a.json, {"seed": seed, "steps": steps, "rows": rows})


if __name__ == "__main__":
    main()
