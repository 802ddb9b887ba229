"""One row per message: how many of one author are kept, and how many one may say in a time. `counts.py` has the other
half: who may say it, and what it counts for.

The bounds of a message's own fields stand with it (`protocol.messages`), the signatures that it carries in
`board.py`. Whoever adds a message adds its struct there and its two rows.
"""

from collections.abc import Mapping

import msgspec

from node.network.budget import Budgets
from protocol.messages import (
    Certificate,
    CertificatesShown,
    CheckpointOffered,
    CheckRequested,
    CutSigned,
    DisputeRaised,
    DueSigned,
    EarningsSigned,
    EnvironmentPublished,
    EpochShown,
    Heartbeat,
    LotsRevealed,
    Message,
    PolicyAnnounced,
    RolloutCommitted,
    Seal,
    SilenceSigned,
    StepJudged,
    StepObjected,
    TaskClaimed,
    TaskOffered,
    ValidatorSaid,
    VerdictIssued,
    VerdictRechecked,
)


class Rule(msgspec.Struct, frozen=True):
    """kept: messages of one author that the shelf keeps; per_second, burst: what one member may say by itself."""

    kept: int
    per_second: float
    burst: float


RULES: Mapping[type[Message], Rule] = {
    Heartbeat: Rule(1, 4.0, 40.0),  # one in two seconds, fewer in a large pool; the newest is kept
    PolicyAnnounced: Rule(64, 1.0, 64.0),  # one a step; a restart says the newest again
    CheckpointOffered: Rule(64, 1.0, 64.0),  # one a checkpoint; a restart offers those kept again
    StepObjected: Rule(16, 0.5, 16.0),  # one in a term: who objects follows no further
    RolloutCommitted: Rule(256, 2.0, 128.0),  # a few dozen in 240 s; a restart says the last 16 again
    ValidatorSaid: Rule(1024, 15.0, 512.0),  # four a second of a busy one
    VerdictIssued: Rule(1024, 15.0, 512.0),  # everybody's files: of a hundred workers twelve a second
    VerdictRechecked: Rule(64, 1.0, 64.0),  # one a dispute
    DueSigned: Rule(64, 2.0, 64.0),  # one a step, of 256 accepted works each
    StepJudged: Rule(128, 1.0, 64.0),  # one a step that it drew or that another accused
    LotsRevealed: Rule(16, 0.5, 16.0),  # one a window; a restart may tell a few at once
    DisputeRaised: Rule(64, 0.5, 32.0),  # one per file that a liar judged; six signatures
    CheckRequested: Rule(256, 4.0, 256.0),  # one per file that waits; all at once where a validator fell
    CertificatesShown: Rule(16, 0.5, 16.0),  # all open epochs in one, now and then until posted
    EarningsSigned: Rule(16, 0.5, 16.0),  # one an epoch, and again now and then until it is posted
    CutSigned: Rule(128, 4.0, 64.0),  # two a round, more where validators differ
    SilenceSigned: Rule(4, 0.5, 8.0),  # one a lease that nobody holds any more
    TaskOffered: Rule(64, 2.0, 64.0),  # MOST_TASKS of the task book, each said again and again
    TaskClaimed: Rule(64, 2.0, 64.0),  # one a shard, of seconds at least
    EnvironmentPublished: Rule(16, 0.5, 16.0),  # MOST_OWN of a catalogue, each once a minute
}


ENTRIES: Mapping[type, tuple[float, float]] = {
    Seal: (15.0, 512.0),  # one a verdict
    Certificate: (128.0, 4096.0),  # of files, of others' verdicts, of policies
    EpochShown: (4.0, 256.0),  # those of a window, again now and then
}
"""Per second, and in a burst, of what stands in one message beside others of its kind. A message within another one
costs what it costs alone."""
ELSE = (2.0, 128.0)
"""Of what is not its own news. A follower says the newest policies again when it starts: a few."""
HANDED = (50.0, 4096.0)
"""What one peer may hand over when we ask what we missed: a whole board at once, then what a loud pool says."""
PATIENCE = (1.0, 256.0)
"""Messages beyond these budgets that are only dropped. Whoever uses it up is not heard for MUTED seconds."""
MUTED = 60.0


def own_budgets() -> dict[type, Budgets]:
    """What each member may say of each kind of its own, and of the entries of one. Everything else is what others
    wrote, what was said before, and what is not worth reading: charged to who published it, never to who wrote it."""
    rates = {kind: (rule.per_second, rule.burst) for kind, rule in RULES.items()}
    return {kind: Budgets(*rate) for kind, rate in {**rates, **ENTRIES}.items()}
