"""Whether a member multiplies as fast as the GPU that it claims: a timed challenge (protocol.freivalds), both ends.

Four requests, always in this order: is it ready (its child starts, off the clock), the challenge (on the clock), some
rows of the product, and what came of it. A member answers few others, one at a time and each seldom. The time
counts from the question to the last byte of the digests: a long line is the prover's bad luck, and the limit leaves
half a second for it.
"""

import secrets
from collections.abc import Callable
from typing import Protocol, cast

import msgspec
import structlog
import trio

from node.bounded_dict import BoundedDict
from node.clock import Seconds
from node.network.budget import Budgets
from node.network.errors import PeerMisbehaved, RequestTimedOut
from node.network.interface import Network
from protocol.codec import decode_msgpack
from protocol.errors import IntellectError, ProtocolError
from protocol.freivalds import (
    DIGEST_BYTES,
    MOST_SIZE,
    ROWS,
    SEED_BYTES,
    BadProduct,
    Challenge,
    check_product,
    chosen_rows,
    decode_digests,
    decode_rows,
)
from protocol.identity import Address

log = structlog.get_logger()
PROTOCOL = "/intellect-node/matrix/1"
GPU_HARDWARE = ("cuda", "hip", "rocm", "xpu")
"""How the names of engines' classes begin that say they compute on a GPU."""
MAX_REQUEST = 512
NO, YES = b"n", b"y"


class Prover(Protocol):
    """Multiplies, in a process of its own (node.hardware.multiplier). Everything raises IntellectError."""

    async def run(self) -> None: ...

    async def warm(self) -> None: ...

    async def digests(self, challenge: Challenge) -> bytes: ...

    async def rows(self, challenge: Challenge, rows: tuple[int, ...]) -> bytes: ...


class _Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    pass


class IsReady(_Question, frozen=True):
    """Whether it will take a challenge now; answered once it is warm."""


class Pose(_Question, frozen=True):
    """The clock runs."""

    challenge: Challenge


class ShowRows(_Question, frozen=True):
    """ROWS of the product, by number."""

    rows: tuple[int, ...]


class TrialTold(_Question, frozen=True):
    """What came of it."""

    passed: bool


Question = IsReady | Pose | ShowRows | TrialTold
_ANY_QUESTION = cast(type[Question], Question)  # msgspec decodes unions; type checkers have no word for it


class ClaimTrial(msgspec.Struct, frozen=True):
    """What came of a challenge. seconds: what the product took; at: monotonic; why: in words, empty if passed."""

    passed: bool
    seconds: float
    at: float
    why: str = ""


class AskerTurn(msgspec.Struct):
    """One asker's, while it lasts. challenge: None until it is posed; shown: rows of its product were."""

    asker: Address
    until: float
    challenge: Challenge | None = None
    shown: bool = False


def claims_gpu(engine: str) -> bool:
    """Whether a class of engines (protocol.engines) is that of a GPU."""
    return engine.startswith(GPU_HARDWARE)


class Claims:
    """Asks and answers. may_ask: whose challenges are taken; prover: None where this node has nothing to show; size: of
    the matrices that it poses."""

    def __init__(
        self,
        network: Network,
        may_ask: Callable[[Address], bool],
        prover: Prover | None = None,
        clock: Seconds = trio.current_time,
        size: int = MOST_SIZE,
        # For 8.8e12 additions and multiplications and the line: 4.4e12 a second, if half a second of it is the line's.
        seconds: float = 2.5,
    ) -> None:
        self._show_seconds = 60.0
        self._pause = 600.0  # seconds between two challenges by one asker
        self._valid = 24 * 3600.0  # seconds for which a trial says something: GPUs are given back
        self._network, self._may_ask, self._clock = network, may_ask, clock
        self._size, self._seconds = size, seconds
        self.prover = prover
        members = 4096
        self.trials: BoundedDict[Address, ClaimTrial] = BoundedDict(members, refresh=True)
        """Of others, by this node."""
        self.told: BoundedDict[Address, bool] = BoundedDict(members, refresh=True)
        """What others say came of challenging this node."""
        self._asked = Budgets(1 / self._pause, 1)
        self._turn: AskerTurn | None = None
        network.serve(PROTOCOL, self._answer, max_request=MAX_REQUEST)

    def confirmed(self, member: Address) -> bool:
        """Whether this node has seen it multiply like a GPU, lately."""
        trial = self.trials.get(member)
        return trial is not None and trial.passed and self._clock() - trial.at < self._valid

    def counts_as(self, member: Address, engine: str) -> str:
        """gpu or cpu: what this node takes a member for that computes with this class; empty of who says none."""
        if not engine:
            return ""
        return "gpu" if claims_gpu(engine) and self.confirmed(member) else "cpu"

    def due(self, member: Address) -> bool:
        """Whether it is time to challenge it: never tried, tried in vain a while ago, or so long ago that it lapses."""
        trial = self.trials.get(member)
        return trial is None or self._clock() - trial.at > (self._valid / 2 if trial.passed else 2 * self._pause)

    @property
    def believed(self) -> bool:
        """Whether most of those who challenged this node saw it pass."""
        said = list(self.told.values())
        return bool(said) and 2 * sum(said) > len(said)

    # asking

    async def challenge(self, member: Address) -> ClaimTrial | None:
        """None where the member takes no challenge now. Raises NetworkError where it cannot be asked."""
        # Seconds: its child may load its libraries first.
        if await self._ask(member, IsReady(), 0, 100.0) is None:
            return None
        trial = await self._tried(member)
        self.trials[member] = trial
        log.info("claim.tried", peer=member, passed=trial.passed, seconds=round(trial.seconds, 2), why=trial.why)
        await self._ask(member, TrialTold(trial.passed), 0, self._show_seconds)
        return trial

    async def _tried(self, member: Address) -> ClaimTrial:
        challenge, began = Challenge(secrets.token_bytes(SEED_BYTES), self._size), self._clock()
        patience = 30.0  # seconds after which a product is not waited for any longer
        try:
            answer = await self._ask(member, Pose(challenge), self._size * DIGEST_BYTES, patience)
        # Only this says something of its speed. A line that breaks is no trial, and raises.
        except RequestTimedOut:
            return ClaimTrial(False, self._clock() - began, began, f"no product within {patience:g} s")
        took = self._clock() - began
        if took > self._seconds:
            return ClaimTrial(False, took, began, f"the product took {took:.1f} s of {self._seconds:g}")
        try:
            await self._check(member, challenge, answer)
        except BadProduct as error:
            return ClaimTrial(False, took, began, error.why)
        return ClaimTrial(True, took, began)

    async def _check(self, member: Address, challenge: Challenge, answer: bytes | None) -> None:
        """Raises BadProduct, NetworkError."""
        digests = decode_digests(answer or b"", challenge.size)
        # Drawn only now that the digests bind the product: rows known before could be computed alone.
        asked = chosen_rows(challenge.size, secrets.token_bytes(32))
        shown = await self._ask(member, ShowRows(asked), 4 * challenge.size * ROWS, self._show_seconds)
        rows, secret = decode_rows(shown or b"", challenge.size, ROWS), secrets.token_bytes(32)
        await trio.to_thread.run_sync(check_product, challenge, digests, asked, rows, secret)

    async def _ask(self, member: Address, question: Question, longest: int, timeout: float) -> bytes | None:
        """The answer's body; None if the member says no."""
        body = msgspec.msgpack.encode(question)
        answer = await self._network.request(member, PROTOCOL, body, max_response=1 + longest, timeout=timeout)
        if answer[:1] not in (YES, NO):
            raise PeerMisbehaved(member, "its answer to a challenge is none")
        return answer[1:] if answer[:1] == YES else None

    # answering

    async def _answer(self, asker: Address, request: bytes) -> bytes:
        """Raises what was wrong with the question or with the prover: that one stream is reset."""
        question = decode_msgpack(
            request, _ANY_QUESTION, limit=MAX_REQUEST, error=ProtocolError, what="malformed question"
        )
        if not self._may_ask(asker):
            return NO
        if isinstance(question, IsReady):
            return YES if await self._take_turn(asker) else NO
        turn, prover = self._turn, self.prover
        if turn is None or prover is None or turn.asker != asker or self._clock() > turn.until:
            return NO
        return await self._go_on(turn, prover, question)

    async def _go_on(self, turn: AskerTurn, prover: Prover, question: Question) -> bytes:
        """Each question once, in order."""
        match question:
            case Pose(challenge=challenge) if turn.challenge is None:
                challenge.check()
                turn.challenge = challenge
                return YES + await prover.digests(challenge)
            case ShowRows(rows=rows) if turn.challenge is not None and not turn.shown:
                if len(rows) != ROWS or not all(0 <= row < turn.challenge.size for row in rows):
                    return NO
                turn.shown = True
                return YES + await prover.rows(turn.challenge, rows)
            case TrialTold(passed=passed) if turn.challenge is not None:
                self.told[turn.asker] = passed
                self._turn = None
                return YES
            case _:
                return NO

    async def _take_turn(self, asker: Address) -> bool:
        """Whether this node is now ready for a challenge by `asker`."""
        now = self._clock()
        busy = self._turn is not None and now <= self._turn.until
        if self.prover is None or busy or not self._asked.take(asker, 1, now):
            return False
        # Before the prover warms up, which takes long: who asks meanwhile finds the turn taken.
        self._turn = turn = AskerTurn(asker, now + 240.0)  # for one asker, from its first question to its last
        try:
            await self.prover.warm()
        except IntellectError as error:
            log.warning("claim.cannot_prove", why=error.why)
            self._turn = None
            return False
        # Warming up may outlast the turn, which is another asker's then.
        return self._turn is turn
