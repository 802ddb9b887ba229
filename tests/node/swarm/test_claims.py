"""Claims of GPUs between members: an honest product passes, a forged and a slow one do not, and nobody is kept busy."""

import msgspec
import numpy as np
import pytest
import trio
from trio.testing import MockClock

from node.network.errors import NetworkError
from node.network.host import Libp2pNetwork
from node.swarm.claims import MAX_REQUEST, NO, PROTOCOL, Claims, ClaimTrial, Pose, Prover, ShowRows, TrialTold
from node.swarm.claims import IsReady as Ready
from protocol.freivalds import ROWS, Challenge, row_digests, rows_of
from protocol.identity import NodeKey
from tests.memory_network import MemoryHub, MemoryNetwork
from tests.node.networks import know

PAUSE = 600.0

VERIFIER, PROVER, OTHER = (NodeKey(bytes([n]) * 32) for n in (1, 2, 3))
SIZE, SECONDS = 64, 2.5


class Reference:
    """Multiplies by the protocol's own functions. seconds: what that takes; share: of the rows that it computes."""

    def __init__(self, seconds: float = 0.1, share: float = 1.0) -> None:
        self.seconds, self.share = seconds, share
        self.asked = 0

    async def run(self) -> None:
        raise AssertionError("nobody runs it")

    async def warm(self) -> None:
        await trio.sleep(60.0)  # off the clock

    def _product(self, challenge: Challenge) -> np.ndarray:
        every, keys = np.arange(challenge.size), challenge.keys
        left, right = (rows_of(key, challenge.size, every).astype(np.int32) for key in (keys.a, keys.b))
        return left @ right

    async def digests(self, challenge: Challenge) -> bytes:
        self.asked += 1
        await trio.sleep(self.seconds)
        rows = self._product(challenge)
        rows[int(self.share * challenge.size) :] = 0
        return row_digests(challenge.keys.digest, rows).tobytes()

    async def rows(self, challenge: Challenge, rows: tuple[int, ...]) -> bytes:
        return self._product(challenge)[list(rows)].astype("<i4").tobytes()


class AtOnce(Reference):
    """Is warm already, and takes the time that it takes."""

    async def warm(self) -> None:
        await trio.lowlevel.checkpoint()


class Babbling(Reference):
    """Answers with as much as it is asked for, and sense in none of it."""

    async def digests(self, challenge: Challenge) -> bytes:
        return b"x" * 8 * challenge.size


class Pair:
    """A verifier and a prover on one hub."""

    def __init__(self, prover: Prover | None) -> None:
        hub = MemoryHub()
        self.networks = [MemoryNetwork(key, hub) for key in (VERIFIER, PROVER, OTHER)]
        members = {VERIFIER.address, PROVER.address}
        self.asking, self.answering, self.stranger = (
            Claims(network, members.__contains__, shows, size=SIZE, seconds=SECONDS)
            for network, shows in zip(self.networks, (None, prover, None), strict=True)
        )

    async def open(self, nursery: trio.Nursery) -> None:
        for network in self.networks:
            await nursery.start(network.run)
            know(network, {PROVER.address: f"/ip4/127.0.0.1/tcp/1/p2p/{PROVER.peer_id}"})

    async def trial(self) -> ClaimTrial | None:
        return await self.asking.challenge(PROVER.address)


async def tried(prover: Prover | None) -> tuple[Pair, ClaimTrial | None]:
    pair = Pair(prover)
    async with trio.open_nursery() as nursery:
        await pair.open(nursery)
        trial = await pair.trial()
        nursery.cancel_scope.cancel()
    return pair, trial


async def test_who_multiplies_in_time_is_confirmed_and_hears_of_it(autojump_clock: MockClock) -> None:
    pair, trial = await tried(Reference())
    assert trial is not None and trial.passed and trial.seconds == pytest.approx(0.1)
    assert pair.asking.counts_as(PROVER.address, "cuda-sm90/bfloat16/vllm") == "gpu"
    assert pair.asking.counts_as(PROVER.address, "x86_64-avx2/float32/sdpa") == "cpu"
    assert pair.answering.believed
    await trio.sleep(2 * 24 * 3600)
    assert pair.asking.counts_as(PROVER.address, "cuda-sm90/bfloat16/vllm") == "cpu", "it lapses"


@pytest.mark.parametrize(
    ("prover", "why"),
    [
        (Reference(seconds=2.6), "took 2.6 s of 2.5"),
        (Reference(seconds=100.0), "no product within 30 s"),
        (Reference(share=0.25), "before it was asked for"),
        (Babbling(), "before it was asked for"),
    ],
)
async def test_forged_and_slow_products_leave_a_node_among_those_without(
    prover: Reference, why: str, autojump_clock: MockClock
) -> None:
    pair, trial = await tried(prover)
    assert trial is not None and not trial.passed and why in trial.why
    assert pair.asking.counts_as(PROVER.address, "cuda-sm90/bfloat16/vllm") == "cpu"
    assert not pair.answering.believed


async def test_a_node_without_a_gpu_says_no_and_that_is_no_trial(autojump_clock: MockClock) -> None:
    pair, trial = await tried(None)
    assert trial is None and not pair.asking.trials


async def test_one_asker_makes_a_member_multiply_once_in_a_while(autojump_clock: MockClock) -> None:
    prover = Reference()
    pair = Pair(prover)
    async with trio.open_nursery() as nursery:
        await pair.open(nursery)
        assert await pair.trial() is not None
        assert await pair.trial() is None
        await trio.sleep(PAUSE)
        assert await pair.trial() is not None
        nursery.cancel_scope.cancel()
    assert prover.asked == 2


async def ask(network: MemoryNetwork, question: msgspec.Struct | bytes) -> bytes:
    body = question if isinstance(question, bytes) else msgspec.msgpack.encode(question)
    return await network.request(PROVER.address, PROTOCOL, body, max_response=1 << 20, timeout=200.0)


async def test_questions_out_of_turn_cost_nothing(autojump_clock: MockClock) -> None:
    prover, good = Reference(), Challenge(b"s" * 32, SIZE)
    pair = Pair(prover)
    verifier, _, stranger = pair.networks
    async with trio.open_nursery() as nursery:
        await pair.open(nursery)
        assert await ask(stranger, Ready()) == NO
        for early in (Pose(good), ShowRows((0,) * ROWS), TrialTold(True)):
            assert await ask(verifier, early) == NO
        assert await ask(verifier, Ready()) != NO
        for malformed in (b"", b"\xc1", bytes(MAX_REQUEST), msgspec.msgpack.encode(Pose(Challenge(b"s", 1 << 30)))):
            with pytest.raises(NetworkError):
                await ask(verifier, malformed)
        assert await ask(stranger, Pose(good)) == NO
        assert await ask(verifier, Pose(good)) != NO
        assert await ask(verifier, Pose(good)) == NO, "once in a turn"
        for rows in ((0,) * (ROWS + 1), (-1,) * ROWS, (SIZE,) * ROWS):
            assert await ask(verifier, ShowRows(rows)) == NO
        nursery.cancel_scope.cancel()
    assert prover.asked == 1 and not pair.answering.told


async def test_a_challenge_travels_over_libp2p() -> None:
    verifier, prover = (Libp2pNetwork(key, "/ip4/127.0.0.1/tcp/0") for key in (VERIFIER, PROVER))
    parts = ((verifier, None), (prover, AtOnce()))
    asking, answering = (Claims(one, lambda _: True, shows, size=SIZE, seconds=60.0) for one, shows in parts)
    async with trio.open_nursery() as nursery:
        for network in (verifier, prover):
            await nursery.start(network.run)
        know(verifier, {PROVER.address: prover.contacts()[0]})
        with trio.fail_after(30):
            while not verifier.connected():
                await trio.sleep(0.05)
            trial = await asking.challenge(PROVER.address)
        nursery.cancel_scope.cancel()
    assert trial is not None and trial.passed and answering.believed
