"""What is simulated: so many nodes of these kinds for so long, and what happens to them."""

import msgspec

from protocol.audit import AuditSpec
from protocol.run import EnvironmentSpec, Recipe, RolloutSpec, RunSpec

MOST_FILES = 8192
"""Of eight groups in a step: as many as a run allows."""


class Costs(msgspec.Struct, frozen=True):
    """What messages cost a node, as measured. message_ms: CPU per message heard, its copies included; idle: share of a
    core without any message; copies: of each message, as `gossip.py` counts them; overhead: bytes of libp2p's own
    envelope around a message and of the frames around that; ihave: bytes of one message's id."""

    message_ms: float = 0.93
    idle: float = 0.0025
    copies: float = 1.5
    overhead: int = 260
    ihave: int = 47


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """nodes: members at the start; full: of them with everything of their own; hours: of swarm time; churn: share of
    the members that leave in an hour, half of them without a word, and as many that come; partition: seconds for
    which a third is cut off, in the middle; cheats: share of the workers that cheat; idle: share of them that say that
    they live and make nothing; work: False: members only talk; ghosts: members on chain that never speak;
    slow: share of the nodes on a slow uplink, where news wait behind bulk for `slow_seconds`; validators: of
    the nodes; policy_bytes: of a policy's patch; delay: seconds of a hop."""

    nodes: int = 1000
    full: int = 16
    hours: float = 1.0
    churn: float = 0.1
    partition: float = 600.0
    cheats: float = 0.1
    idle: float = 0.0
    work: bool = True
    ghosts: int = 0
    slow: float = 0.0
    slow_seconds: float = 0.36
    validators: int = 4
    seed: int = 7
    policy_bytes: float = 120e6
    policy_seconds: float | None = None
    """Seconds that a policy takes to everybody; None: as the exchange's simulation says."""
    learner_seconds: float = 240.0
    group_seconds: float = 0.05
    """A validator's engine, per group."""
    file_seconds: tuple[tuple[float, float], ...] = ((0.5, 110.0), (0.35, 55.0), (0.15, 25.0))
    """(share of the workers, seconds per file) of each class of machines."""
    delay: float = 0.04
    files_per_step: int | None = None
    """None: one for each of nine in ten workers."""
    quorum: int = 2
    costs: Costs = Costs()

    @property
    def seconds(self) -> float:
        return 3600.0 * self.hours

    @property
    def workers(self) -> int:
        return self.nodes - self.validators - 1

    def run(self) -> RunSpec:
        """The run that they train. Eight groups of eight in a file."""
        files = self.files_per_step or min(max(1, round(0.9 * self.workers)), MOST_FILES)
        run = RunSpec(
            name="simulated",
            environment=EnvironmentSpec(name="sort"),
            rollout=RolloutSpec(group_size=8, prompts_per_step=8 * files, prompts_per_file=8),
            recipe=Recipe(max_staleness=4, steps=10_000),
            audit=AuditSpec(verdict_seconds=120.0, delivery_seconds=60.0),
        )
        run.check()
        return run
