"""What a validator pledges, draws and reveals; and that a restart repeats all of it."""

from types import SimpleNamespace
from typing import Any

import trio

from node.clock import Clock
from node.services.judging.lots import OwnLots, pledge_fact
from node.state.pen import Fence
from protocol.audit import RATE_ONE, UNMEASURED_SHARE, AuditSpec, as_rate, needed_share
from protocol.identity import NodeKey
from protocol.lots import broken_promise, pack_groups
from protocol.messages import LotsRevealed
from protocol.run import EnvironmentSpec, Recipe, RolloutSpec, RunSpec
from protocol.statements import Domain
from tests.attacks.validators.court import InlineJournal

KEY = NodeKey(b"\x01" * 32)
ME, DOMAIN = KEY.address, Domain(31337, KEY.address)
RUN = RunSpec(
    name="t",
    environment=EnvironmentSpec(name="sort"),
    rollout=RolloutSpec(prompts_per_step=64, prompts_per_file=32),
    recipe=Recipe(max_staleness=2),
    audit=AuditSpec(window=4),
)
ROOT = b"\x07" * 32


class Posted:
    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def post(self, message: Any) -> None:
        await trio.lowlevel.checkpoint()
        self.messages.append(message)


async def own_lots(journal: InlineJournal, board: Posted, key: NodeKey = KEY) -> OwnLots:
    own = {"key": key, "domain": DOMAIN, "pool": 1, "journal": journal, "board": board}
    context: Any = SimpleNamespace(run=SimpleNamespace(spec=RUN), clock=Clock(), **own)
    made = OwnLots(context)
    await made.prepare()
    return made


async def test_a_pledge_stands_before_its_window_and_holds_after_a_restart() -> None:
    journal = InlineJournal()
    first = await own_lots(journal, Posted())
    assert [pledge.window for pledge in first.pledges] == [0, 1]
    assert first.pledges[0].rate == as_rate(UNMEASURED_SHARE) < as_rate(needed_share(4 * 32, RUN.audit))
    again = await own_lots(journal, Posted())
    assert again.pledges == first.pledges
    assert again.draw(ROOT, 3, 10**6, False) == first.draw(ROOT, 3, 10**6, False)
    # What was pledged can be told whatever became of the journal: it follows from the key, and from nothing else.
    without = await own_lots(InlineJournal(), Posted())
    assert [one.hash for one in without.pledges] == [one.hash for one in first.pledges]
    other = await own_lots(InlineJournal(), Posted(), NodeKey(b"\x02" * 32))
    assert not {one.hash for one in other.pledges} & {one.hash for one in first.pledges}


async def test_windows_that_may_have_been_pledged_elsewhere_are_not_pledged_again_but_for_what_was_heard() -> None:
    journal = InlineJournal()
    journal.close_fence(Fence(step=5))  # in window 1: a daemon pledges one ahead
    journal.note_once(*pledge_fact(1, (77, 0)))
    mine = await own_lots(journal, Posted())
    mine.newest = 5
    await mine._pledge(1, 2, 3)
    assert {window: pledge.rate for window, pledge in mine._pledged.items() if window < 3} == {1: 77}
    assert 3 in mine._pledged  # the control


async def test_secrets_are_told_when_no_file_can_come_any_more_and_prove_the_lots(autojump_clock) -> None:
    board = Posted()
    mine = await own_lots(InlineJournal(), board)
    pledge = mine.pledges[0]
    lot = mine.draw(ROOT, 3, 10**6, suspect=False)
    assert lot.window == 0
    assert lot.rate == RATE_ONE  # nothing better to do
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mine.run)
        for step in range(7):
            mine.policy(step)
            await trio.sleep(1)
        assert board.messages == []  # step 3 and two of staleness, and two of grace
        mine.policy(7)
        await trio.sleep(1)
        (told,) = board.messages
        assert isinstance(told, LotsRevealed)
        assert told.window == 0
        checked = pack_groups(lot.groups, 32)
        assert broken_promise(pledge, told.secret, ME, 1, ROOT, 32, checked, lot.rate) is None
        mine.policy(40)
        await trio.sleep(1)
        assert [pledge.window for pledge in mine.pledges] == [10, 11]
        nursery.cancel_scope.cancel()


async def test_a_busy_validator_keeps_to_its_pledge_and_looks_at_newcomers_and_suspects_entirely() -> None:
    mine = await own_lots(InlineJournal(), Posted())
    everything, known = tuple(range(32)), {"verified": 10**6, "suspect": False}
    assert mine.draw(ROOT, 0, **known).groups == everything and mine.looks() == "looks at everything"
    mine.arrived(ME)
    mine.worked(groups=1, seconds=0.1)
    mine.took(6)
    lot = mine.draw(ROOT, 0, **known)
    assert lot.rate == mine.pledges[0].rate < RATE_ONE and set(lot.groups) < set(everything)
    assert mine.draw(ROOT, 0, verified=10**6, suspect=True).groups == everything
    assert mine.draw(ROOT, 0, verified=0, suspect=False).groups == everything
    assert mine.looks() == "is busy: looks at newcomers and suspects whole, at 6% of the others' groups"
    mine.took(50)
    assert mine.draw(ROOT, 0, verified=0, suspect=False) == mine.draw(ROOT, 0, verified=9**9, suspect=True) == lot
    assert mine.looks() == "is behind: looks at 6% of all groups, as it pledged, and at no more"
