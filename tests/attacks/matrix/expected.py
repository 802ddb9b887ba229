"""What an author with a right may change, one row a message, and what nobody may change.

The oracle is the same run without the liar's words. Who has no right to move something moves nothing. Facts about an
author itself are its own, if it may say the message at all; `may` names the probes in which others may see something
of it. Where the author's own evidence against itself stands at every honest node, its term or its voice is over, and
only what is `SAFE` is compared.
"""

import msgspec

from protocol.messages import (
    AcceptedList,
    CheckpointOffered,
    DisputeRaised,
    EarningsVote,
    EnvironmentPublished,
    EpochRootSigned,
    Heartbeat,
    LeaderSilent,
    LotsRevealed,
    Message,
    PolicyAnnounced,
    RolloutCommitted,
    RoundVote,
    StepObjected,
    StepVerdict,
    TaskClaimed,
    TaskOffered,
    ValidatorBatch,
    VerdictIssued,
    VerdictRechecked,
    VerdictRequested,
)

LEADER, STANDBY, VALIDATOR = frozenset({"leader"}), frozenset({"standby"}), frozenset({"validator 4"})
IN_OFFICE = LEADER | STANDBY
MEMBERS = IN_OFFICE | VALIDATOR | {"dismissed", "worker 2", "cheat", "member", "former", "coming"}
NOBODY = frozenset[str]()


class Row(msgspec.Struct, frozen=True):
    """by: who has the right now; may: probes that others' facts may change in; adds: probes in which others may see
    more, and nothing less; evidence: whether its author may convict itself, which ends its term."""

    by: frozenset[str]
    may: frozenset[str] = NOBODY
    evidence: bool = False
    adds: frozenset[str] = NOBODY


ROWS: dict[type[Message], Row] = {
    Heartbeat: Row(MEMBERS),
    PolicyAnnounced: Row(LEADER, evidence=True),
    # Of a step that nobody else offers its offers stand alone: true or not, their bytes say.
    CheckpointOffered: Row(IN_OFFICE, adds=frozenset({"checkpoints"})),
    StepObjected: Row(STANDBY),
    RolloutCommitted: Row(MEMBERS),
    ValidatorBatch: Row(VALIDATOR, frozenset({"disputes"})),
    VerdictIssued: Row(VALIDATOR, frozenset({"disputes"})),
    VerdictRechecked: Row(VALIDATOR),
    AcceptedList: Row(VALIDATOR),
    StepVerdict: Row(VALIDATOR),
    LotsRevealed: Row(VALIDATOR),
    DisputeRaised: Row(IN_OFFICE | VALIDATOR, frozenset({"disputes"})),
    VerdictRequested: Row(IN_OFFICE),
    EpochRootSigned: Row(MEMBERS),
    EarningsVote: Row(VALIDATOR),
    RoundVote: Row(VALIDATOR),
    LeaderSilent: Row(VALIDATOR),
    TaskOffered: Row(IN_OFFICE),
    TaskClaimed: Row(MEMBERS),
    EnvironmentPublished: Row(MEMBERS),
}

SAFE = ("overpaid", "alone", "torn", "disbelieved", "slashed", "muted", "faults", "forked", "stuck", "unled")
"""Nobody honest is disbelieved, slashed, muted or stopped, work is paid once and decided by two at least, evidence
reaches everybody, a round comes to one list and ends, nothing raises, a leader that hands no policy over is said to be
gone: whatever is said."""


def row_of(kind: type[Message]) -> Row:
    """A message without a row moves nothing, whoever says it."""
    return ROWS.get(kind, Row(NOBODY))
