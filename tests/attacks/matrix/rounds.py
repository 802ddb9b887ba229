"""A small pool that learns in rounds, played with and without a liar's words on what a round comes to.

Two peers, four validators (three must agree), three rounds; boards, juries, lists, replicas and outer steps are the
product's own (`tests/node/services/rounds`). The liar's node does all that an honest one does, and says words beside,
or in the place of its own.
"""

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import trio

from benchmarks.command import run_seeded
from protocol.errors import ProtocolError
from protocol.identity import NodeKey
from protocol.messages import RoundVote, parse_envelope, seal, topic
from tests.attacks.matrix import words
from tests.attacks.validators.court import DOMAIN, POOL
from tests.node.services.rounds.test_rounds import Node, Town, nothing
from tests.node.services.tasking.town import at_once

JUDGES = tuple(NodeKey(bytes([40 + number]) * 32) for number in range(4))
PEERS, ROUNDS, QUORUM = (2, 4), 3, 3
TOPIC = topic(DOMAIN, POOL)
LATE_SECONDS = 8.0
"""By which a run may end later than without the liar: ballots of its making."""
Facts = frozenset[tuple[Any, ...]]


class Spoken(Node):
    """Its words on rounds go by the liar first."""

    town: "LiarsTown"

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.membership.quorum = QUORUM
        board = self.member.board
        post_raw = board.post_raw

        async def told(raw: bytes) -> None:
            word = parse_envelope(POOL, raw).message
            if not isinstance(word, RoundVote) or not await self.town.heard(self, word):
                await post_raw(raw)

        board.post_raw = told  # type: ignore[method-assign]


class LiarsTown(Town):
    kind = Spoken

    def __init__(self, folder: Path, liar: str, deviation: str, moment: str) -> None:
        self.liar, self.deviation, self.moment = liar, deviation, moment
        self.salt = self.said = 0
        self._spoken: set[tuple[Any, ...]] = set()
        super().__init__(folder, validators=0, steps=ROUNDS)
        self.judges = JUDGES

    def name(self, node: Node) -> str:
        if node.key in self.judges:
            return f"validator {self.judges.index(node.key) + 1}"
        return f"worker {1 + PEERS.index(node.key.secret[0])}"

    async def heard(self, node: Node, word: RoundVote) -> bool:
        """Someone is about to say a word; whether it is the liar, which says another one in its place."""
        name, place = self.name(node), (word.round, word.ballot, word.closed)
        if self.moment == "instead":
            if name == self.liar:
                await self._say(node, word)
            return name == self.liar
        if name == "validator 1" and self.liar and place not in self._spoken:
            self._spoken.add(place)
            await self._say(next(one for one in self.nodes if self.name(one) == self.liar), word)
            await trio.sleep(0.1)  # it is there first
        return False

    async def _say(self, liar: Node, word: RoundVote) -> None:
        self.salt += 1
        replace, judges = msgspec.structs.replace, [f"validator {number}" for number in range(1, 4)]
        match self.deviation:
            case "two-faced":
                await self._send(liar, word, judges[:2])
                await self._send(liar, words.refreshed(word, self.salt), judges[2:])
            case "withheld from one":
                await self._send(liar, word, judges[1:])
            case "withheld from all but one":
                await self._send(liar, word, judges[:1])
            case "nothing, closed":
                await self._send(liar, replace(word, files=(), closed=True), judges)
            case "rushed":
                for number in range(4):
                    ahead = replace(word, round=word.round + 1, ballot=number, files=(), closed=False)
                    await self._send(liar, ahead, judges)
            case name:
                for one in words.deviated(word, name, self.salt):
                    await self._send(liar, one, None)

    async def _send(self, liar: Node, word: RoundVote, to: Sequence[str] | None) -> None:
        try:
            raw = seal(liar.key, DOMAIN, word)
        except (ProtocolError, OverflowError, ValueError):
            return
        self.said += 1
        if to is None:
            await liar.network.publish(TOPIC, raw)
            return
        reached = {one.key.address for one in self.nodes if self.name(one) in to}
        everybody = {one.key.address for one in self.nodes}
        for peer in self.hub.peers(liar.network):
            if peer.address in reached:
                peer.hand(TOPIC, liar.network.address, raw, everybody)


def play(folder: Path, liar: str = "", deviation: str = words.UNCHANGED, moment: str = "before", seed: int = 0) -> Any:
    """By probe: (who knows it, whom it is about or "", what)."""
    usual = without(seed)["late"] if liar else None

    async def live() -> dict[str, Facts]:
        with patch.object(trio.to_thread, "run_sync", at_once):
            town = LiarsTown(folder, liar, deviation, moment)
            for number in PEERS:
                town.add(number)
            began = trio.current_time()
            with trio.move_on_after(600.0) as over:
                await town.play(nothing)
            return _seen(town, trio.current_time() - began, usual, stuck=over.cancelled_caught)

    return run_seeded(seed, live)


def _seen(town: LiarsTown, seconds: float, usual: Facts | None, *, stuck: bool) -> dict[str, Facts]:
    """usual: the seconds of a run without a liar."""
    names = {node.key.address: town.name(node) for node in town.nodes}
    honest = [node for node in town.nodes if town.name(node) != town.liar]
    rounds = {(town.name(one), "", number, root.hex()[:8]) for one in honest for number, root in one.roots.items()}
    counts = {
        (town.name(one), "", number, figures.contributions)
        for one in honest
        for number, figures in one.rounds.figures.items()
    }
    late = usual or frozenset({("", "", seconds)})
    allowed = next(iter(late))[2] + LATE_SECONDS
    return {
        "forks": frozenset(),
        "rounds": frozenset(rounds),
        "contributions": frozenset(counts),
        "forked": frozenset(("", "", number) for number, roots in town.roots().items() if len(roots) > 1),
        "late": late if seconds <= allowed else frozenset({("", "", seconds)}),
        "stuck": frozenset({("", "", "it never ends")} if stuck else ()),
        "disbelieved": frozenset(
            (town.name(one), names[who]) for one in honest for who in one.context.state.disputes.quarantined
        ),
        "slashed": frozenset(("", names[who], reason) for one in honest for who, reason, _ in one.court.slashed),
        "muted": frozenset((town.name(one), names[who]) for one in honest for who in one.network._muted),
        "faults": frozenset(
            (town.name(one), "", one.network.stats().faults) for one in honest if one.network.stats().faults
        ),
    }


@cache
def without(seed: int) -> dict[str, Facts]:
    """The same run without a liar."""
    with tempfile.TemporaryDirectory() as folder:
        return play(Path(folder), seed=seed)
