"""A swarm in one process, under a virtual clock: what is the product's own code here, and what is a model of it.

**The product's own:** board, shelf, allowance, catch-up (`node.swarm.board`), membership, heartbeats, jury (register,
votes, audit lots, disputes), the worker (`RolloutWorker`: its share, when it waits, what it commits to), the validator
(`Validator`: queues, lots, records, verdicts, slashing), the trainer's ingest and pool of groups, every signature and
every check. The exchange's decisions (`exchange.py`) are those of `node.blobs.scheduling`. With a copy of the rules the
copy would be simulated, and the product shipped.

**Modelled:**
- the clock: `trio.testing.MockClock`, which jumps to the next thing that is due. Messages arrive in ticks of TICK s;
- links: the scenario's delay one way in the median, log-normal; a blob takes as long as the exchange's simulation says;
- gossip: a tree in a graph of bounded degree, made anew every EPOCH s; a message waits at each hop for the CPU (M/D/1
  at the load of the last epoch). Digests are counted in bytes. Whoever needs more than its core loses the excess.
  Playing every control message would cost more than all boards together. `gossip.py` runs the product's own rules of
  gossip, under a clock and on links of its own;
- the CPU: so many ms per message as were measured (docs/simulation.md), and an idle share;
- engines: seconds per file by the node's class; the learner: seconds per step; checking: seconds per group;
- the truth: an engine that checks knows which groups were cheated, and sees those that its lot drew;
- the chain: everybody hears of a join, a leave or a slash after CHAIN s.

**Sampled:** `full` nodes run all of the above. The others publish, relay, generate and commit with keys of their own,
and read the board of one of the full ones, as if they had heard what it has heard. Their costs are the mesh's.
An hour of a thousand members is 70 million deliveries of heartbeats alone: not every node can have a board of its own.

**Shared:** parsing, signatures and hashes of one message are computed once and not once per node (`shared.py`). The
product never does that.
"""

TICK = 0.05
"""Seconds: messages that arrive within one are handed over together."""
EPOCH = 30.0
"""Seconds between two repairs of the mesh, and two looks at the load."""
CHAIN = 2.0
"""Seconds from a transaction to everybody's knowledge of it."""
