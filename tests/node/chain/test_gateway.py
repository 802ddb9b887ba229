"""A pool is followed through a gateway with a public chain's habits: each event once, and few questions."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from contracts.bindings import Joined
from node.chain import follower as follower_module
from node.chain.client import ChainClient
from node.chain.errors import EndpointsDisagree, RpcRefused
from node.chain.follower import AGAIN, EventFollower, EventStore
from node.chain.refusals import RESTS, RefusalKind
from tests.node.chain.gateway import Gateway
from tests.node.chain.test_follower import following, nothing_more, take

LAGS = (0, 4, 7, 0, 7, 7, 4)


@pytest.fixture
def gateway(meddler: Any, profile: Any) -> Iterator[Callable[..., Gateway]]:
    made: list[Gateway] = []

    def make(**habits: Any) -> Gateway:
        made.append(Gateway(meddler, profile.rpc_urls[0], **habits))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def through(people: Any, meddler: Any, connect: Callable[..., ChainClient]) -> Any:
    """The pool's people, with a node that sees the chain through the gateway."""
    people.direct = people.client
    people.client = connect(msgspec.structs.replace(people.client.profile, rpc_urls=(meddler.url,)), people.node)
    return people


async def mine(chain_rpc: Any) -> None:
    """Blocks, one after the other, as on a public chain."""
    while True:
        await trio.to_thread.run_sync(chain_rpc, "anvil_mine", "0x1")
        await trio.sleep(0.05)


@pytest.mark.parametrize("batches", [True, False])
async def test_where_each_look_finds_a_new_block_its_logs_come_along_with_it(
    through: Any, meddler: Any, chain_rpc: Any, tmp_path: Path, batches: bool
) -> None:
    meddler.batches, looks = batches, 6
    async with following(through, tmp_path / "f.sqlite", poll=0.6) as follower:
        before = 0
        with trio.fail_after(60):
            for look in range(4 + looks):
                before = meddler.posts if look == 4 else before
                await trio.to_thread.run_sync(chain_rpc, "anvil_mine", "0x1")
                await follower.looked.wait()
            requests = meddler.posts - before
            await through.direct.join(through.pool, "elsewhere")
            while not (isinstance(event := await follower.events.receive(), Joined) and event.contact == "elsewhere"):
                pass
        assert requests <= looks + 3 if batches else requests >= 2 * looks - 2


@pytest.mark.parametrize(("again", "all_told"), [(follower_module.AGAIN, True), (0, False)])
async def test_events_are_not_lost_behind_machines_that_lag(
    through: Any,
    gateway: Any,
    chain_rpc: Any,
    tmp_path: Path,
    again: int,
    all_told: bool,
) -> None:
    """The control asks for no block a second time."""
    habits = gateway(lags=LAGS)
    async with following(through, tmp_path / "f.sqlite", again=again) as follower:
        for number in range(8):
            await through.direct.join(through.pool, str(number))
            for _ in range(3):  # slowly enough for a look at each
                await trio.to_thread.run_sync(chain_rpc, "anvil_mine", "0x1")
                await trio.sleep(0.05)
        told: list[str] = []
        with trio.move_on_after(1):  # in which blocks go on coming
            async with trio.open_nursery() as nursery:
                nursery.start_soon(mine, chain_rpc)
                while len(told) < 8:
                    event = await follower.events.receive()
                    told += [event.contact] if isinstance(event, Joined) else []
                nursery.cancel_scope.cancel()
        assert habits.logs_asked
        assert (sorted(told) == [str(n) for n in range(8)]) is all_told


async def test_a_gateway_that_limits_lacks_and_lags_is_followed_each_event_once(
    through: Any, gateway: Any, chain_rpc: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(RESTS, RefusalKind.QUOTA, RESTS[RefusalKind.QUOTA]._replace(least=0.02))  # type: ignore[arg-type]
    gateway(lags=LAGS, heads=(0, 1, 0, 2), every=9, range_limit=10)
    told: list[str] = []
    async with following(through, tmp_path / "f.sqlite", patience=60) as follower, trio.open_nursery() as nursery:
        nursery.start_soon(mine, chain_rpc)
        await take(follower, 2)
        for number in range(4):
            await through.client.join(through.pool, str(number))  # sent through the gateway, too
        with trio.fail_after(30):
            while len(told) < 4:
                event = await follower.events.receive()
                assert isinstance(event, Joined)
                told.append(event.contact)
        assert sorted(told) == [str(n) for n in range(4)]
        assert await nothing_more(follower)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("each", [1, 3])
async def test_a_look_costs_two_questions_where_the_newest_block_is_another_and_one_where_it_stands_still(
    through: Any, gateway: Any, chain_rpc: Any, tmp_path: Path, each: int
) -> None:
    """Looks are steps here. each: blocks that come between two of them; where some were passed over, one is asked for
    by its number once in AGAIN / 2 blocks."""
    through.client.profile = msgspec.structs.replace(through.client.profile, confirmations=2)
    habits, looks = gateway(), 12
    await trio.to_thread.run_sync(chain_rpc, "anvil_mine", "0x8")
    follower = EventFollower(through.client, through.pool, tmp_path / "f.sqlite")
    with closing(EventStore(tmp_path / "f.sqlite")) as store:

        async def look() -> bool:
            return await follower._step(store, await through.client.block())

        while await look():
            pass
        for turn in range(3 + looks):
            if turn == 3:  # as many looks as there are confirmations
                habits.asked.clear()
                habits.by_number = 0
            await trio.to_thread.run_sync(chain_rpc, "anvil_mine", hex(each))
            await look()
        first, by_number = sum(habits.asked.values()), habits.by_number
        assert habits.asked["eth_getLogs"] == looks and by_number == (0 if each == 1 else looks * each // (AGAIN // 2))
        assert first == 2 * looks + by_number, "nothing else is asked for"
        await look()  # what was passed over before the newest block is asked for, since no other one comes
        standing = sum(habits.asked.values())
        assert standing - first <= 4
        for _ in range(9):
            await look()
        assert sum(habits.asked.values()) == standing + 9 and follower.healthy, "as often in an hour"


async def test_an_endpoint_that_tells_no_logs_is_found_out_by_the_nodes_own(
    through: Any, gateway: Any, chain_rpc: Any, meddler: Any, tmp_path: Path, connect: Callable[..., ChainClient]
) -> None:
    await through.client.join(through.pool, "here")
    await trio.to_thread.run_sync(chain_rpc, "anvil_mine", hex(follower_module.AGAIN + 1))
    meddler.before["eth_getLogs"] = {"result": []}
    latest = await through.client.block()
    follower = EventFollower(through.client, through.pool, tmp_path / "f.sqlite")
    with pytest.raises(RpcRefused, match="no log there says so"):
        await follower._check_logs(latest)
    urls = (meddler.url, *through.direct.profile.rpc_urls)
    through.client = connect(msgspec.structs.replace(through.client.profile, rpc_urls=urls), through.node)
    async with following(through, tmp_path / "g.sqlite") as follower:
        told = await take(follower, 3)  # the other endpoint's
        assert isinstance(told[2], Joined)


def with_second(through: Any, connect: Callable[..., ChainClient], *urls: str) -> None:
    """Its client asks the gateway first, and these beside it."""
    through.client = connect(
        msgspec.structs.replace(through.client.profile, rpc_urls=(through.client.url, *urls)), through.node
    )


async def test_an_event_that_one_endpoint_invents_is_never_told(
    through: Any, meddler: Any, tmp_path: Path, connect: Callable[..., ChainClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: with that endpoint alone it is."""

    def rewritten(answer: dict[str, Any]) -> dict[str, Any]:
        found = answer.get("result")
        if isinstance(found, list) and found and "logIndex" in found[0]:
            answer["result"] = [*found, found[-1] | {"logIndex": hex(int(found[-1]["logIndex"], 16) + 1)}]
        return answer

    meddler.rewrite = rewritten
    async with following(through, tmp_path / "alone.sqlite") as follower:
        assert len(await take(follower, 3)) == 3
    with_second(through, connect, *through.direct.profile.rpc_urls)
    async with following(through, tmp_path / "f.sqlite") as follower:
        with trio.fail_after(30):
            while not follower.unanswered:
                await trio.sleep(0.02)
        assert await nothing_more(follower) and follower.unanswered
        meddler.rewrite = lambda answer: answer
        assert len(await take(follower, 2)) == 2, "once they agree, it goes on"


async def test_of_three_endpoints_the_one_that_lies_is_passed_over(
    through: Any, meddler: Any, tmp_path: Path, connect: Callable[..., ChainClient]
) -> None:
    def emptied(answer: dict[str, Any]) -> dict[str, Any]:
        found = answer.get("result")
        if isinstance(found, list) and len(found) > 1 and "logIndex" in found[0]:
            answer["result"] = found[1:]
        return answer

    meddler.rewrite = emptied
    honest = through.direct.profile.rpc_urls[0]
    with_second(through, connect, honest, honest.replace("127.0.0.1", "localhost"))
    async with following(through, tmp_path / "f.sqlite") as follower:
        assert len(await take(follower, 2)) == 2


async def test_events_that_an_endpoint_keeps_back_are_found_by_another_and_told(
    through: Any,
    meddler: Any,
    chain_rpc: Any,
    tmp_path: Path,
    connect: Callable[..., ChainClient],
) -> None:
    """Not at once, but within `look_back`: an endpoint that says that nothing happened is not asked twice each time."""
    honest = through.direct.profile.rpc_urls[0]
    with_second(through, connect, honest, honest.replace("127.0.0.1", "localhost"))
    async with following(through, tmp_path / "f.sqlite", look_back=0.3) as follower:
        await take(follower, 2)
        meddler.before["eth_getLogs"] = {"result": []}
        await through.direct.join(through.pool, "here", key=through.node)
        await trio.to_thread.run_sync(chain_rpc, "anvil_mine", hex(2 * follower_module.AGAIN))
        (joined,) = await take(follower, 1)
        assert isinstance(joined, Joined) and joined.contact == "here"


async def test_a_second_endpoint_that_is_out_of_reach_stops_nobody(
    through: Any, tmp_path: Path, connect: Callable[..., ChainClient]
) -> None:
    with_second(through, connect, "http://127.0.0.1:9")
    async with following(through, tmp_path / "f.sqlite") as follower:
        assert len(await take(follower, 2)) == 2


async def test_a_pool_whose_people_one_endpoint_invents_is_not_read(
    through: Any, meddler: Any, connect: Callable[..., ChainClient]
) -> None:
    manager = (await through.client.pool(through.pool)).manager.lower().removeprefix("0x")
    liar = (manager[:-1] + ("0" if manager[-1] != "0" else "1")).lower()

    def rewritten(answer: dict[str, Any]) -> dict[str, Any]:
        found = answer.get("result")
        return answer | {"result": found.replace(manager, liar)} if isinstance(found, str) else answer

    meddler.rewrite = rewritten
    assert (await through.client.pool(through.pool, agreed=True)).manager.lower().endswith(liar), "the control"
    with_second(through, connect, *through.direct.profile.rpc_urls)
    with pytest.raises(EndpointsDisagree, match="tell different things"):
        await through.client.pool(through.pool, agreed=True)
