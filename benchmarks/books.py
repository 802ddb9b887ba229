"""How much memory do a node's books take, hour after hour, in a pool of a thousand workers?

    python -m benchmarks.books [--workers 1000] [--validators 5] [--hours 4] [--silent] [--quick] [--json FILE]

Each worker commits to a file in five minutes, each validator seals and shows a verdict on it; a policy comes every five
minutes. With --silent every other worker says nothing more from the second hour on: what it has said must go, too. The
product's `PoolState` and `Facts` of one node hear all of it under a virtual clock, read from bytes as on the wire.
Printed is, for each hour, what the books hold (with what they share with nothing else), the memory of the process
beyond what it had before the first word, and the entries of all tables together. A node is flat when the later hours
are alike.
"""

import gc
import resource
import time
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from benchmarks.command import parser_of, save, silence_logs
from node.swarm.facts import Facts
from node.swarm.membership import Membership
from node.swarm.pool_state import Passed, PoolState, WordHeard
from protocol.audit import AuditSpec, window_of
from protocol.identity import Address, NodeKey
from protocol.lots import RATE_ONE, LotPledge, secret_hash
from protocol.messages import (
    Envelope,
    Judgement,
    LotsRevealed,
    RolloutCommitted,
    Seal,
    Signed,
    ValidatorBatch,
    VerdictIssued,
    seal_of,
)
from protocol.statements import WorkCommitment, work_id
from tests.node.swarm import pools
from tests.node.swarm.pools import POOL, Wire, policy_root, root, sizes, stated, verdict, weight

RUN = msgspec.structs.replace(pools.RUN, audit=AuditSpec())
EVERY = 300.0
"""Seconds between two policies, and two files of one worker."""
HOUR = 3600.0
SIGNATURE = 65


def key(name: str) -> Address:
    return NodeKey(blake3(name.encode()).digest()).address


class Books:
    """One node's, with the words that it hears."""

    def __init__(self, workers: int, validators: int) -> None:
        self.now = 1000.0
        wire: Any = Wire()
        self.leader = key("leader")
        self.workers = [key(f"worker {number}") for number in range(workers)]
        self.judges = [key(f"judge {number}") for number in range(validators)]
        self.membership = Membership(
            key("own"), wire, self.leader, tuple(self.judges), lambda: self.now, quorum=validators // 2 + 1
        )
        opened: Any = None
        self.state = PoolState(self.membership, RUN, POOL, opened, lambda: self.now)
        self.facts = Facts(lambda: self.now)
        for one in (self.leader, *self.workers, *self.judges):
            self.membership.joined(one, "")
        self.now += 100.0

    def hear(self, author: Address, word: Any) -> None:
        payload = msgspec.msgpack.encode(word)
        signature = b"" if isinstance(word, Judgement) else bytes(SIGNATURE)
        heard = msgspec.msgpack.decode(payload, type=type(word))  # no part of it is another word's, too
        signed = Signed(author, heard, msgspec.msgpack.encode(Envelope(payload, signature)))
        self.facts.tell(self.state.apply(WordHeard(signed)))

    def policy(self, step: int) -> None:
        self.hear(self.leader, stated(step, 0))
        window = window_of(step, RUN.audit)
        for judge in self.judges:
            lots = tuple(self._pledge(judge, one) for one in (window, window + 1))
            beat = msgspec.structs.replace(pools.beat("validator 1", step, step + 1), lots=lots)
            self.membership.table.beat(judge, beat, self.now)
            self.hear(judge, beat)
            if step % RUN.audit.window == RUN.audit.window - 1 and window > 0:
                secret = pools.secret(judge, window - 1)
                self.hear(judge, LotsRevealed(pool=POOL, window=window - 1, secret=secret))

    def _pledge(self, judge: Address, window: int) -> LotPledge:
        return LotPledge(window, secret_hash(pools.secret(judge, window), judge, POOL, window), RATE_ONE)

    def file(self, step: int, worker: Address, number: int) -> None:
        made = WorkCommitment(POOL, worker, policy_root(step), 0, root(f"{step} {number}"), 5)
        self.hear(worker, RolloutCommitted(pool=POOL, commitment=made, signature=bytes(SIGNATURE), size=10**6))
        word, id = verdict(VerdictIssued, made, step), work_id(made)
        word = msgspec.structs.replace(word, window=window_of(step, RUN.audit))
        for judge in self.judges:
            salted = msgspec.structs.replace(word, report_root=bytes(32), report_size=10**5)
            self.hear(judge, ValidatorBatch(pool=POOL, seals=(Seal(id, seal_of(salted, judge)),)))
        for judge in self.judges:
            self.hear(judge, msgspec.structs.replace(word, signature=bytes(SIGNATURE), report_root=bytes(32)))


def resident() -> float:
    """MB of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def measure(workers: int, validators: int, hours: int, *, silent: bool = False) -> list[dict[str, Any]]:
    books, rows, before = Books(workers, validators), list[dict[str, Any]](), resident()
    steps = int(hours * HOUR / EVERY)
    began = time.process_time()
    for step in range(steps):
        books.policy(step)
        speaking = books.workers[::2] if silent and step * EVERY >= HOUR else books.workers
        for number, worker in enumerate(speaking):
            books.now += EVERY / len(speaking)
            books.file(step, worker, number)
            if not number % 10:
                books.facts.tell(books.state.apply(Passed()))
        if not (step + 1) * EVERY % HOUR:
            row = {
                "hour": int((step + 1) * EVERY / HOUR),
                "MB": round(resident() - before, 1),
                "MiB of books": round(weight([books.state, books.facts]) / 2**20, 2),
                "entries": sizes(books.state),
                "works": len(books.state.register._works),
                "CPU s": round(time.process_time() - began, 1),
            }
            rows.append(row)
            print(row, flush=True)
    return rows


def main() -> None:
    parser = parser_of(__doc__, "20 workers, one hour")
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--validators", type=int, default=5)
    parser.add_argument("--hours", type=int, default=4)
    parser.add_argument("--silent", action="store_true", help="half of the workers stop after an hour")
    a = parser.parse_args()
    silence_logs()
    rows = measure(*((20, 3, 1) if a.quick else (a.workers, a.validators, a.hours)), silent=a.silent)
    save(a.json, rows)


if __name__ == "__main__":
    main()
