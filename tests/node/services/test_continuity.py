"""Who am I? What a daemon says whose journal is not its key's newest, or whose key speaks elsewhere."""

from typing import Any

import pytest
import trio

from node.swarm.ownwords import PROTOCOL, ask
from tests.node.services.daemons import FILES, WORKER, Swarm, copied, files_in
from tests.node.services.earners import inline

COPY = "the state directory was copied"


@pytest.fixture
async def swarm(nursery: trio.Nursery, autojump_clock, monkeypatch: pytest.MonkeyPatch) -> Swarm:
    # The clock jumps while a thread works: on a busy machine a word would be kept seconds after it was to be said.
    monkeypatch.setattr(trio.to_thread, "run_sync", inline)
    made = Swarm(nursery)
    await made.begin()
    return made


async def test_the_control_without_doubt_a_copy_and_an_older_journal_lose_the_stake(
    swarm: Swarm, autojump_clock: Any
) -> None:
    first = swarm.start()
    await trio.sleep(10)
    backup = copied(first.journal)
    await trio.sleep(1.0)
    first.continuity._amiss = lambda words: _nothing()  # type: ignore[method-assign]
    second = swarm.start(backup)
    second.continuity._amiss = lambda words: _nothing()  # type: ignore[method-assign]
    await trio.sleep(30)
    assert swarm.rivals


async def _nothing() -> str:
    await trio.lowlevel.checkpoint()
    return ""


async def test_a_first_join_and_a_restart_wait_for_nothing(swarm: Swarm, autojump_clock) -> None:
    first = swarm.start()
    await trio.sleep(20)
    assert first.opened_after is not None and first.opened_after < 0.1 and first.files()
    first.alive.cancel()
    again = swarm.start(copied(first.journal))
    await trio.sleep(30)
    assert again.opened_after is not None and again.opened_after < 0.1 and len(again.files()) > len(first.files())
    assert again.ended is None and again.continuity.holds == 0 and not swarm.rivals


async def test_a_copy_beside_the_first_ends_with_nothing_said_and_the_first_works_on(
    swarm: Swarm, autojump_clock: Any
) -> None:
    first = swarm.start()
    await trio.sleep(10)
    second = swarm.start(copied(first.journal), doubt=COPY)
    await trio.sleep(60)
    assert second.ended is not None and "another daemon" in second.ended.what
    assert set(second.files()) < set(first.files())
    assert first.ended is None and first.pen.may_write and first.continuity.holds == 0 and not swarm.rivals


async def test_an_older_journal_takes_in_what_it_lacks_and_goes_on_behind_the_fence(
    swarm: Swarm, autojump_clock: Any
) -> None:
    first = swarm.start()
    await trio.sleep(10)
    backup = copied(first.journal)
    await trio.sleep(14)
    lost = set(first.files()) - set(files_in(backup))
    first.alive.cancel()
    await trio.sleep(0.5)
    again = swarm.start(backup, doubt="it is an older copy")
    await trio.sleep(12)
    assert again.opened_after is not None and again.opened_after < 12
    assert lost and lost <= set(again.files()) and again.continuity._words.adopted >= len(lost)
    fence = again.journal.fence.step
    await trio.sleep(30)
    made = set(again.files()) - set(first.files())
    assert made and fence >= 0 and not swarm.rivals  # and it works on
    assert again.pen.generation > first.pen.generation


@pytest.mark.parametrize("many", [2, 3])
@pytest.mark.parametrize("apart", [0.0, 0.3, 1.1])
async def test_copies_that_start_in_one_moment_never_both_sign(
    swarm: Swarm, many: int, apart: float, autojump_clock: Any
) -> None:
    first = swarm.start()
    await trio.sleep(10)
    first.alive.cancel()
    backup = first.journal
    await trio.sleep(5)
    copies = []
    for _ in range(many):
        copies.append(swarm.start(copied(backup), doubt=COPY))
        await trio.sleep(apart)
    await trio.sleep(90)
    assert sum(one.ended is None for one in copies) <= 1 and not swarm.rivals
    assert all(set(one.files()) <= set(first.files()) for one in copies if one.ended)


async def test_two_that_were_never_in_doubt_hear_each_other_while_they_work(swarm: Swarm, autojump_clock) -> None:
    """A forged mark, or a first join of one key at two places."""
    first = swarm.start()
    await trio.sleep(10)
    backup = copied(first.journal)
    await trio.sleep(3)
    second = swarm.start(backup)
    await trio.sleep(60)
    # The older one holds still while the newer is heard; the newer ends, since an older one lives.
    assert first.continuity.holds >= 1 and second.ended is not None and first.ended is None
    await trio.sleep(60)
    assert first.pen.may_write and first.pen.generation > second.pen.generation
    assert set(first.files()) - set(second.files())


async def test_where_nobody_answers_nothing_is_signed_and_the_owner_may_vouch(
    swarm: Swarm, autojump_clock: Any
) -> None:
    first = swarm.start()
    await trio.sleep(10)
    first.alive.cancel()
    for one in swarm.others:
        one.network._handlers.pop(PROTOCOL)
    again = swarm.start(copied(first.journal), doubt=COPY)
    await trio.sleep(120)
    assert again.opened_after is None and set(again.files()) == set(first.files())
    assert any("--vouch" in event.text for event in again.progress.events)
    again.alive.cancel()
    vouched = swarm.start(copied(first.journal), doubt=COPY, vouch=True)
    await trio.sleep(30)
    assert vouched.opened_after is not None and set(vouched.files()) > set(first.files())


async def test_alone_by_the_chain_it_opens_after_four_seconds(nursery: trio.Nursery, autojump_clock) -> None:
    alone = Swarm(nursery)
    alone.others = []
    made = alone.start(doubt=COPY)
    await trio.sleep(20)
    assert made.opened_after is not None and 4 <= made.opened_after < 9


async def test_members_that_keep_words_to_themselves_cost_no_stake(swarm: Swarm, autojump_clock) -> None:
    """They answer, and leave out what was said since the backup: the fence keeps the stake."""
    first = swarm.start()
    await trio.sleep(10)
    backup = copied(first.journal)
    await trio.sleep(8)
    first.alive.cancel()
    for one in swarm.others:
        one.continuity._server._words_of = lambda asker: iter(())  # type: ignore[method-assign]
        one.board._message_store.share = lambda known, room: []  # type: ignore[method-assign]
    again = swarm.start(backup, doubt="it is an older copy")
    await trio.sleep(60)
    assert again.opened_after is not None and again.continuity._words.adopted == 0
    assert len(again.files()) > FILES and not swarm.rivals


async def test_what_others_repeat_or_invent_neither_ends_a_daemon_nor_holds_it(
    swarm: Swarm, autojump_clock: Any
) -> None:
    first = swarm.start()
    await trio.sleep(16)
    old = [one for one in swarm.others[1].board._message_store._kept.values() if one.signed.author == WORKER.address]
    assert old
    first.alive.cancel()
    await trio.sleep(2)
    again = swarm.start(copied(first.journal))
    liar = swarm.others[4]
    for _ in range(20):
        for kept in old:
            await liar.board._wire.publish(liar.board._topic, kept.signed.raw)
        await liar.board._wire.publish(liar.board._topic, old[0].signed.raw[:-1] + b"\0")
        await trio.sleep(2.0)
    assert again.ended is None and again.continuity.holds == 0 and again.pen.may_write


async def test_a_word_that_the_journal_lacks_holds_the_pen_until_it_is_taken_in(
    swarm: Swarm, autojump_clock: Any
) -> None:
    first = swarm.start()
    await trio.sleep(10)
    backup = copied(first.journal)
    await trio.sleep(8)
    first.alive.cancel()
    lost = set(first.files()) - set(files_in(backup))
    again = swarm.start(backup)  # with a forged mark: no doubt
    await trio.sleep(40)
    assert lost and again.continuity.holds >= 1 and again.pen.may_write and lost <= set(again.files())


async def test_what_the_key_asks_for_it_alone_gets(swarm: Swarm, autojump_clock) -> None:
    first = swarm.start()
    await trio.sleep(10)
    other = swarm.others[4]
    told = await ask(other.network, swarm.others[1].key.address)
    own = [one.author for one in map(other.board.opened, told.envelopes)]
    assert set(own) <= {other.key.address}
    again = await ask(other.network, swarm.others[1].key.address)
    assert again.envelopes == []  # one answer in ten seconds
    mine = await ask(first.network, swarm.others[1].key.address)
    assert {one.author for one in map(first.board.opened, mine.envelopes)} == {WORKER.address}
