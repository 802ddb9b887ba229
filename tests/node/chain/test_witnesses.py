"""What decides money is told by two endpoints: each lie beside its control, where one endpoint is all there is."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from contracts.bindings import Contracts, Joined, function_forms
from node.chain import connection
from node.chain.client import ChainClient
from node.chain.errors import ChainError, EndpointsDisagree, Reverted, TransactionUnconfirmed
from node.chain.follower import RolledBack
from node.chain.sender import SendLimits
from node.chain.witnesses import Witnesses, out_of_time
from tests.node.chain.test_follower import following, nothing_more, take

AGREED_FOR = 3600.0

LIMITS = SendLimits(poll=0.02, bump_after=0.3, give_up=2.0, lag=0.2, offered=0.1)
CALL, BLOCK = "eth_call", "eth_getBlockByNumber"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "Witnesses", partial(Witnesses, reconsidered=(0.05,)))


@pytest.fixture
def ask(people: Any, meddler: Any, connect: Callable[..., ChainClient]) -> Callable[..., ChainClient]:
    """Makes a client that asks the meddler first, and `honest` true endpoints beside it."""
    true = people.client.profile.rpc_urls[0]

    def make(honest: int, **options: Any) -> ChainClient:
        urls = (meddler.url, true, true.replace("127.0.0.1", "localhost"))[: 1 + honest]
        profile = msgspec.structs.replace(people.client.profile, rpc_urls=urls)
        return connect(profile, people.node, **options)

    return make


def lie_about(meddler: Any, view: str, word: int, lie: int) -> None:
    """One word in the answer of one view of the contracts is changed, and nothing else."""

    def rule(request: dict[str, Any]) -> dict[str, Any] | None:
        if request["method"] != CALL or VIEWS.get(request["params"][0].get("data", "0x")[2:10]) != view:
            return None
        answer = meddler.http.post("", json=request).json()["result"]
        words = [answer[2 + at : 66 + at] for at in range(0, len(answer) - 2, 64)]
        words[word] = f"{int(words[word], 16) ^ lie:064x}"
        return {"result": "0x" + "".join(words)}

    meddler.rule = rule


VIEWS = {
    form.selector.hex(): name
    for contract in Contracts.SLOTS.values()
    for name, form in function_forms(contract).items()
}
Asked = Callable[[ChainClient, Any], Any]
DECIDING: dict[str, tuple[str, int, Asked]] = {
    "who manages the pool": ("poolInfo", 2, lambda chain, people: chain.pool(people.pool)),
    "who judges": ("benchOf", -2, lambda chain, people: chain.pool(people.pool)),
    "the table that counts": ("bookOf", 4, lambda chain, people: chain.earnings(people.pool)),
    "the table that waits": ("waitingOf", 3, lambda chain, people: chain.waiting(people.pool)),
    "the pool with its tables": ("bookOf", 4, lambda chain, people: chain.books(people.pool)),
    "what a node was paid": ("paidOf", 0, lambda chain, people: chain.claimed(people.pool, people.node.address)),
    "who is a member": ("memberInfo", 6, lambda chain, people: chain.standing(people.pool, people.node.address)),
    "the stake that is needed": (
        "stakePerUnit",
        0,
        lambda chain, people: chain.required_stake(people.provider.address, 1),
    ),
}


@pytest.mark.parametrize("what", DECIDING)
async def test_a_view_that_one_endpoint_lies_about_is_not_believed(
    people: Any, meddler: Any, ask: Any, what: str
) -> None:
    view, word, asked = DECIDING[what]
    true = await asked(people.client, people)
    lie_about(meddler, view, word, 1)
    assert await asked(ask(0), people) != true, "the control: one endpoint alone is believed"
    with pytest.raises(EndpointsDisagree, match="tell different things"):
        await asked(ask(1), people)
    of_three = ask(2)
    assert await asked(of_three, people) == true, "two of three"
    assert [one.contradicted for one in of_three.endpoints()] == [1, 0, 0]


async def test_a_lie_that_begins_later_is_found_and_what_stays_so_costs_one_question(
    people: Any, meddler: Any, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, asked = ask(1), list[str]()
    meddler.at = lambda method, when: asked.append(method) if when == "before" else None
    true = await chain.claimed(people.pool, people.node.address)
    first = asked.count(CALL)
    for _ in range(5):
        await chain.claimed(people.pool, people.node.address)
    assert asked.count(CALL) == first + 5 and [one.alone for one in chain.endpoints()] == [0, 0]
    lie_about(meddler, "paidOf", 0, 7)
    with pytest.raises(EndpointsDisagree):
        await chain.claimed(people.pool, people.node.address)
    assert [one.disagreed for one in chain.endpoints()] == [1, 1]
    meddler.rule = lambda request: None
    assert await chain.claimed(people.pool, people.node.address) == true, "once it tells the truth again it goes on"


def test_an_answer_that_stays_is_asked_of_two_again_after_a_while() -> None:
    """Pure: endpoints that are two functions."""
    told, now = {0: 1, 1: 1}, [0.0]
    two = Witnesses(Two(), clock=lambda: now[0])  # type: ignore[arg-type]
    ask = lambda: two.decides("it", "ask", CALL, lambda: told[Two.asked])
    assert ask() == 1
    told[1] = 2  # news that the first one keeps back
    assert ask() == 1
    now[0] = AGREED_FOR
    with pytest.raises(EndpointsDisagree):
        ask()


class Two:
    """Two endpoints, of which the first is in use."""

    asked = 0

    def __len__(self) -> int:
        return 2

    def each(self, method: str) -> list[int]:
        return [0, 1]

    def shown(self, place: int) -> str:
        return f"endpoint {place}"

    def only(self, place: int) -> Any:
        from contextlib import contextmanager

        @contextmanager
        def asking() -> Any:
            Two.asked = place
            yield
            Two.asked = 0

        return asking()


async def test_an_answer_without_its_form_or_a_refusal_of_what_was_told_is_outvoted(
    people: Any, meddler: Any, ask: Any
) -> None:
    """With two nothing is believed; the control is what one alone brings about: an error all the same."""
    two, three = ask(1), ask(2)
    for chain in (two, three):
        assert await chain.claimed(people.pool, people.node.address) == 0
    for lie in ({"result": "0x"}, {"error": {"code": 3, "message": "execution reverted", "data": "0x"}}):
        meddler.rule = lambda request, lie=lie: lie if request["method"] == CALL and to_view(request) else None
        with pytest.raises(ChainError):
            await ask(0).claimed(people.pool, people.node.address)
        with pytest.raises(EndpointsDisagree):
            await two.claimed(people.pool, people.node.address)
        assert await three.claimed(people.pool, people.node.address) == 0


def to_view(request: dict[str, Any]) -> bool:
    return VIEWS.get(request["params"][0].get("data", "0x")[2:10]) == "paidOf"


async def test_a_pool_that_only_one_endpoint_knows_is_not_believed(people: Any, meddler: Any, ask: Any) -> None:
    """That the contract refuses is an answer, too. The control: where only one says that there is no such pool."""
    true = await people.client.pool(people.pool)
    wanted = f"{people.pool:064x}"
    number = 4711

    def rule(request: dict[str, Any]) -> dict[str, Any] | None:
        if request["method"] == CALL and f"{number:064x}" in request["params"][0].get("data", ""):
            request["params"][0]["data"] = request["params"][0]["data"].replace(f"{number:064x}", wanted)
        return None

    meddler.rule = rule
    assert (await ask(0).pool(number)).manager == true.manager, "the control"
    with pytest.raises(EndpointsDisagree):
        await ask(1).pool(number)
    with pytest.raises(Reverted):
        await ask(2).pool(number)


async def test_a_receipt_that_one_endpoint_invents_does_not_count(people: Any, meddler: Any, ask: Any) -> None:
    """It takes the transaction, shows a receipt, and sends nothing on. With a second one the transaction is carried out
    and told with its true receipt."""
    taken = dict[str, Any]()

    def rule(request: dict[str, Any]) -> dict[str, Any] | None:
        if request["method"] == "eth_sendRawTransaction":
            from eth_hash.auto import keccak

            digest = "0x" + keccak(bytes.fromhex(request["params"][0][2:])).hex()
            taken[digest] = True
            return {"result": digest}
        if request["method"] == "eth_getTransactionReceipt" and request["params"][0] in taken:
            zero, one = "0x" + "11" * 32, "0x1"
            told = {"transactionHash": request["params"][0], "blockNumber": one, "blockHash": zero, "status": one}
            return {"result": told | {"gasUsed": one, "logs": [], "effectiveGasPrice": one, "contractAddress": None}}
        return None

    meddler.rule = rule
    await ask(0, limits=LIMITS).join(people.pool, "invented")
    standing = await people.client.standing(people.pool, people.node.address)
    assert standing.joined_block == 0, "the control: told as done, and nothing happened"
    taken.clear()
    with pytest.raises(TransactionUnconfirmed):  # each tells its own receipt: unknown, and it stays in the outbox
        await ask(1, limits=LIMITS).join(people.pool, "here")
    standing = await people.client.standing(people.pool, people.node.address)
    assert standing.joined_block > 0, "the other endpoint was sent it"
    taken.clear()
    receipt = await ask(2, limits=LIMITS).join(people.pool, "there")
    true = await people.client.standing(people.pool, people.node.address)
    assert receipt.block == true.joined_block, "two of three"


async def test_a_receipt_that_one_endpoint_keeps_back_makes_nothing_sent_twice(
    people: Any, meddler: Any, ask: Any
) -> None:
    """It says that the number was used, and shows no receipt of ours. The control: alone, that is told as replaced."""
    from node.chain.errors import TransactionReplaced

    meddler.before["eth_getTransactionReceipt"] = {"result": None}
    meddler.before["eth_getTransactionByHash"] = {"result": None}
    meddler.rule = lambda request: (
        {"error": {"code": -32000, "message": "missing trie node"}}
        if request["method"] == BLOCK and request["params"][1]
        else None
    )
    with pytest.raises(TransactionReplaced):
        await ask(0, limits=LIMITS).join(people.pool, "alone")
    with pytest.raises(TransactionUnconfirmed):
        await ask(1, limits=LIMITS).join(people.pool, "two")


async def test_blocks_that_one_endpoint_calls_replaced_take_nothing_back(
    people: Any, meddler: Any, ask: Any, chain_rpc: Any, tmp_path: Path
) -> None:
    """Else whom a slash hit would be a member again. The control: alone it is believed."""

    def replaced(answer: dict[str, Any]) -> dict[str, Any]:
        found = answer.get("result")
        if isinstance(found, dict) and "parentHash" in found:
            flipped = {name: "0x" + "ee" * 4 + found[name][10:] for name in ("hash", "parentHash")}
            return answer | {"result": found | flipped}
        return answer

    for honest, taken_back in ((0, True), (1, False), (2, False)):
        people.client = ask(honest)
        async with following(people, tmp_path / f"{honest}.sqlite") as follower:
            await take(follower, 2)
            await trio.to_thread.run_sync(chain_rpc, "anvil_mine", "0x3")
            await trio.sleep(0.2)
            meddler.rewrite = replaced
            await trio.to_thread.run_sync(chain_rpc, "anvil_mine", "0x1")
            told: Any = None
            with trio.move_on_after(1.5):
                told = await follower.events.receive()
            assert isinstance(told, RolledBack) is taken_back
            meddler.rewrite = lambda answer: answer
            if not taken_back:
                await people.client.join(people.pool, f"after {honest}")
                (joined,) = await take(follower, 1)
                assert isinstance(joined, Joined), "once it is well again it goes on"
                assert await nothing_more(follower)


async def test_an_endpoint_that_stands_still_is_left_for_one_that_goes_on(
    people: Any, meddler: Any, ask: Any, chain_rpc: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "Witnesses", partial(Witnesses, reconsidered=(0.05,), behind=1.0))
    frozen = dict[str, Any]()
    meddler.rule = lambda request: frozen if frozen and request["method"] == BLOCK else None
    for honest, told in ((0, False), (1, True)):
        people.client = ask(honest)
        frozen.clear()
        async with following(people, tmp_path / f"{honest}.sqlite", look_back=0.3) as follower:
            await take(follower, 2 + honest)  # and what was told before
            latest = await trio.to_thread.run_sync(chain_rpc, BLOCK, "latest", False)
            frozen["result"] = latest
            await trio.sleep(2.1)
            await trio.to_thread.run_sync(chain_rpc, "anvil_mine", "0x1")
            await ask(2).execute(join_step(people, str(honest)), people.node)
            found: Any = None
            with trio.move_on_after(20 if told else 2):
                found = await follower.events.receive()
            assert (isinstance(found, Joined) and found.contact == str(honest)) is told
        assert any(one.lags for one in people.client.endpoints()) is told


def join_step(people: Any, contact: str) -> Any:
    from node.chain.simulate import SimulatedStep

    return SimulatedStep("join", people.client.contracts.join(people.pool, contact))


@pytest.mark.parametrize(
    ("heads", "left"),
    [
        ({0: 1000, 1: 1000}, []),
        ({0: 800, 1: 1000}, [0]),
        ({0: 1000, 1: 9000}, [1]),
        ({0: 9000, 1: 9001}, []),  # a chain whose clock was moved, or this machine's clock is wrong
        ({0: 1000}, []),
        ({}, []),
    ],
)
def test_who_is_out_of_time(heads: dict[int, int], left: list[int]) -> None:
    assert out_of_time(heads, 1000.0) == left
