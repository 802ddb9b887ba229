"""What a round comes to where a validator or a peer plays for it: nobody's word or replica moves the clock of the
others. Each play has a control in which the rule that stands against it is taken out."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from node.services.base import Service
from node.services.rounds import round_closer
from node.services.rounds.adding import Outer
from node.services.rounds.round_closer import RoundCloser
from protocol.agreement import Proposal
from protocol.identity import NodeKey
from protocol.messages import RoundVote, open_envelope, seal
from tests.attacks.validators.court import DOMAIN, POOL
from tests.cheats.seats import Rusher
from tests.node.services.rounds.test_rounds import (
    GRACE,
    ROUND,
    Node,
    Town,
    nothing,
    until,
    without_threads,  # noqa: F401 - a fixture
)


class Hasty(RoundCloser):
    """The control: it says what it has accepted by now as soon as anybody has spoken."""

    def _wanted(self, outer: Outer, now: float) -> Proposal | None:
        if not any(self._rounds.votes.book.of(outer.round)._said.values()):
            return super()._wanted(outer, now)
        accepted = [work for work in self._rounds.works() if self._is_accepted(work, now)]
        return Proposal(outer.root, outer.state, outer.size, self._files(outer, accepted))


class WithLiar(Node):
    """The last validator rushes; the others are of `honest`."""

    honest: type[RoundCloser] = RoundCloser
    liar: type[RoundCloser] = Rusher

    def services(self) -> list[Any]:
        if self.role != "validator":
            return super().services()
        kind = self.liar if self.key == self.town.judges[-1] else self.honest
        own: Service = kind(self.context, self.rounds)
        return [own if isinstance(one, RoundCloser) else one for one in super().services()]


class AmongHasty(WithLiar):
    honest = Hasty


class NobodyLies(WithLiar):
    liar = RoundCloser


class LiarsTown(Town):
    def __init__(self, folder: Path, kind: type[Node], **how: Any) -> None:
        folder.mkdir(exist_ok=True)
        self.kind = kind
        super().__init__(folder, **how)


async def test_a_validator_that_rushes_rounds_changes_nothing_in_what_they_come_to(
    tmp_path: Path, autojump_clock: Any
) -> None:
    ends = dict[str, tuple[list[int], float]]()
    roots = dict[str, dict[int, set[bytes]]]()
    for kind in (NobodyLies, WithLiar, AmongHasty):
        town = LiarsTown(tmp_path / kind.__name__, kind, steps=3)
        one, _ = town.add(2), town.add(4)
        began = trio.current_time()
        await town.play(nothing)
        figures = one.rounds.figures.values()
        ends[kind.__name__] = [each.contributions for each in figures], trio.current_time() - began
        roots[kind.__name__] = town.roots()
        assert all(len(each) == 1 for each in town.roots().values()) and len(town.roots()) == 4
        assert not one.context.state.disputes.quarantined and not [x for node in town.nodes for x in node.court.slashed]
    assert ends["NobodyLies"][0] == ends["WithLiar"][0] == [2, 2, 2], ends
    assert roots["NobodyLies"] == roots["WithLiar"], "the same run to the bit"
    assert ends["WithLiar"][1] < ends["NobodyLies"][1] + 3, ends
    assert ends["AmongHasty"][0] == [0, 0, 0], "the control: nothing is ever learnt"


@pytest.mark.parametrize("waits", [False, True], ids=["the rule", "the control"])
async def test_a_seat_that_is_claimed_and_left_empty_keeps_one_round_open_and_no_more(
    tmp_path: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    if waits:
        monkeypatch.setattr(round_closer, "IDLE_ROUNDS", 0)
    town = Town(tmp_path, validators=2, steps=4)
    steady, empty = town.add(2), town.add(3, seconds=2.0, bend=never)
    await town.play(nothing)
    seconds = [one.seconds for one in steady.rounds.figures.values()]
    assert steady.counts() == {"accepted": 4} and not empty.counts()
    long = [one > ROUND for one in seconds]
    assert long == ([True] * 4 if waits else [True] + [False] * 3), seconds
    assert all(one <= ROUND + GRACE + 5 for one in seconds), seconds


async def never(lab: Any, job: Any, found: dict[str, Any]) -> None:
    """Its steps end with the run."""
    if type(job).__name__ == "Train":
        await until(lambda: lab.town.nodes[0].rounds.over)
        await trio.sleep_forever()


async def test_a_validator_that_missed_a_liars_words_learns_from_who_is_bound_by_them_what_it_is_bound_by(
    tmp_path: Path,
) -> None:
    """The real signatures: of a quorum's open words, beside a closed one."""
    town = Town(tmp_path, steps=9)
    judges = [NodeKey(bytes([60 + number]) * 32) for number in range(4)]
    named = [RoundVote(pool=POOL, round=1, ballot=0, closed=False, outer=bytes(32), state=bytes(32), size=1, files=())]
    there, away = town.add(2), town.add(4)
    shown = [open_envelope(DOMAIN, POOL, seal(key, DOMAIN, named[0])) for key in judges[:3]]
    for node in (there, away):
        node.membership.appoint([key.address for key in judges], 3)
    for one in shown:
        there.rounds.votes.note(one)  # type: ignore[arg-type]
    book = there.rounds.votes.book.of(1)
    word = named[0].word._replace(closed=True)
    closed = msgspec.structs.replace(named[0], closed=True, shown=book.shown(word))
    assert len(closed.shown) == 3
    false = msgspec.structs.replace(closed, files=(b"\1" * 32,), shown=(*closed.shown, bytes(65)))
    for message, known in ((false, False), (closed, True)):
        away.rounds.votes.note(open_envelope(DOMAIN, POOL, seal(judges[0], DOMAIN, message)))
        assert away.rounds.votes.book.of(1).knows(message.word) is known
    assert not away.context.state.disputes.quarantined.keys() - {judges[0].address}


async def test_a_validator_that_starts_again_is_bound_by_what_it_has_signed(tmp_path: Path) -> None:
    town = Town(tmp_path, validators=3, steps=9)
    node = town.add(7, "validator")
    node.membership.appoint([node.key.address, *(key.address for key in town.judges)], 3)
    cutting_, journal = RoundCloser(node.context, node.rounds), node.context.journal
    for round_, ballot, closed in ((1, 0, False), (1, 0, True), (2, 0, False)):
        cut = RoundVote(
            pool=POOL, round=round_, ballot=ballot, closed=closed, outer=bytes(32), state=bytes(32), size=1, files=()
        )
        journal.say("round_vote", f"{round_}/{ballot}/{int(closed)}".encode(), seal(node.key, DOMAIN, cut))
    await cutting_._recall(1)
    assert set(node.rounds.votes.book.of(1)._said[node.key.address]) == {(0, False), (0, True)}
    assert not node.rounds.votes.book.of(2).has_own, "each round when it is looked at"
