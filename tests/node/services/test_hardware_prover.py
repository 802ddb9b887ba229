"""Who is challenged to prove a GPU, by whom, and when again."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import trio

from node.services.hardware_prover import HardwareProver
from node.swarm.claims import Claims, ClaimTrial
from node.swarm.membership import Membership, may_challenge
from protocol.identity import NodeKey
from protocol.messages import Heartbeat
from tests.memory_network import MemoryHub, MemoryNetwork

PAUSE = 600.0
VALID = 24 * 3600.0

VALIDATOR, GPU, CPU, SILENT, TRAINER = (NodeKey(bytes([n]) * 32) for n in range(1, 6))


def beat(engine: str, sequence: int) -> Heartbeat:
    return Heartbeat(
        pool=1,
        boot=0,
        count=sequence,
        at=sequence,
        role="worker",
        state="",
        contact="",
        policy_step=0,
        interval=9e8,
        engine=engine,
    )


class Seat:
    """A validator among a node with a GPU, one without, and one that has not said anything yet."""

    def __init__(self) -> None:
        network = MemoryNetwork(VALIDATOR, MemoryHub())
        self.membership = Membership(VALIDATOR.address, network, TRAINER.address, (VALIDATOR.address,))
        self.claims = Claims(network, partial(may_challenge, self.membership))
        self.sequence = 0
        member: Any = SimpleNamespace(membership=self.membership, claims=self.claims, key=VALIDATOR)
        self.service = HardwareProver(member, asks=True)
        for key in (VALIDATOR, GPU, CPU, SILENT):
            self.membership.joined(key.address, "")

    def due(self) -> list[str]:
        self.sequence += 1
        engines = {VALIDATOR: "cuda-sm90/bfloat16/vllm", GPU: "cuda-sm90/bfloat16/vllm", CPU: "x86/float32/sdpa"}
        for key, engine in engines.items():
            assert self.membership.table.beat(key.address, beat(engine, self.sequence), trio.current_time())
        return self.service.due()


async def test_who_claims_a_gpu_is_challenged_and_again_when_the_trial_lapses(autojump_clock: Any) -> None:
    seat = Seat()
    assert seat.due() == [GPU.address]
    seat.claims.trials[GPU.address] = ClaimTrial(False, 9.0, trio.current_time(), "late")
    assert seat.due() == []
    await trio.sleep(2 * PAUSE + 1)
    assert seat.due() == [GPU.address]
    seat.claims.trials[GPU.address] = ClaimTrial(True, 0.3, trio.current_time())
    await trio.sleep(2 * PAUSE + 1)
    assert seat.due() == []
    await trio.sleep(VALID / 2)
    assert seat.due() == [GPU.address] and seat.claims.confirmed(GPU.address), "asked anew before it lapses"


def test_only_validators_and_the_trainer_may_challenge() -> None:
    may = partial(may_challenge, Seat().membership)
    assert may(VALIDATOR.address) and may(TRAINER.address) and not may(GPU.address)
