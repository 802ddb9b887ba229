"""A recorded-looking moment of a demo, made up from numbers: for the README's picture and for tests."""

import math

from cli.daemon_status import SlashPart, TrainingPart, VerdictPart, VerdictsPart
from cli.demo.snapshot import Participant, ProcessState, Row, Snapshot


def _address(n: int) -> str:
    return "0x" + f"{n:x}" * 40


def sample_snapshot(step: int = 96, steps: int = 150) -> Snapshot:
    """A demo at `step`, its cheat caught."""
    people = [
        Participant("trainer", "trainer", address=_address(1)),
        Participant("worker 1", "worker", address=_address(2)),
        Participant("worker 2", "worker", address=_address(3)),
        Participant("validator", "validator", address=_address(4)),
        Participant("cheat", "worker", cheat="own-problems", address=_address(5)),
    ]
    states = ("working", "working", "working", "working", "evicted")
    speeds = (9400.0, 2210.0, 2150.0, None, None)
    paid = (19, 97, 95, 24, 0)
    rows = tuple(
        Row(
            person,
            ProcessState(4000 + i, "running"),
            states[i],
            step - i % 2,
            speeds[i],
            190 if i in (1, 2) else 0,
            1 if person.cheat else 0,
            paid_wei=paid[i] * 10**17,
        )
        for i, person in enumerate(people)
    )
    rewards = tuple((k, 0.78 - 0.5 * math.exp(-k / 45) + 0.03 * math.sin(k * 1.7)) for k in range(step + 1))
    slash = SlashPart(_address(5), _address(10), str(100 * 10**18), 5, "0x" + "5a" * 32, 61)
    recent = [
        VerdictPart(_address(2), 3, step, 0, 0, 0.2),
        VerdictPart(_address(3), 3, step, 0, 0, 0.6),
        VerdictPart(_address(2), 2, step, 0, 0, 1.1),
        VerdictPart(_address(5), 0, 1, 2, 5, 49.0),
    ]
    return Snapshot(
        phase="training",
        elapsed=71.0,
        run_name="sort",
        chain_id=31337,
        block=184,
        pool=1,
        step=step,
        steps_total=steps,
        target=0.7,
        rewards=rewards,
        train_rewards=rewards,
        rows=rows,
        staleness={"0": 5100, "1": 14200, "2": 4800, "dropped": 640},
        verdicts=VerdictsPart(379, 1, {"WRONG_DRAW": 1}, recent),
        slashed=(slash,),
        training=TrainingPart(step=step, done=False, seconds=58.0),
        training_seconds=58.0,
    )
