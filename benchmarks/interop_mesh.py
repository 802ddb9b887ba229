"""A node of another program in the gossip mesh of ours: what each hears of all that is said, and what it makes of us.

Knows four ways in which it may stand there:

    beside    four nodes of ours are connected with each other and with it
    stranger  the same, and nobody's list of members names it
    between   two nodes of ours are connected through it alone
    digests   as between, and it keeps no mesh: what it brings and gets of others is told and asked for (IHAVE, IWANT);
              js alone

Whoever takes part says its share of the messages, RATE a second in all. Lost is what is not heard within PATIENCE after
the last one.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any, Protocol

import trio

from benchmarks.children import Talk
from node.network.host import Libp2pNetwork
from protocol.identity import Address, NodeKey, address_of_peer

PROGRAM = Path(__file__).with_name("interop_mesh.mjs")
WAYS = {"beside": 4, "stranger": 4, "between": 2, "digests": 2}
"""How many nodes of ours."""
APART = ("between", "digests")
TOPIC = "interop"
RATE = 12.0
SIZE = 600
"""Bytes of a message: a signed commitment's."""
WARM = 5.0
"""Seconds after the connections, so that links are made."""
PATIENCE = 10.0


class Ours:
    """A node of ours, and the texts that it heard."""

    def __init__(self) -> None:
        self.network = Libp2pNetwork(NodeKey.generate(), "/ip4/127.0.0.1/tcp/0")
        self.heard: list[str] = []

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        channel = self.network.subscribe(TOPIC, lambda _author, _data: True)
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda task_status: self.network.run(task_status=task_status))
            task_status.started()
            async for _, data in channel:
                self.heard.append(data.decode())

    async def say(self, text: str) -> None:
        await self.network.publish(TOPIC, text.encode())


class Theirs(Protocol):
    """The node of another program."""

    contact: str

    async def dial(self, contact: str) -> None: ...

    async def join(self, topic: str) -> None: ...

    async def say(self, text: str) -> None: ...

    async def told(self) -> dict[str, Any]:
        """heard: all texts; mesh: how many links it has; lowest_score: of us, at any time."""
        ...


class Js(Talk):
    """Driven by lines of JSON."""

    contact = ""

    async def dial(self, contact: str) -> None:
        await self.tell({"do": "dial", "contact": contact})

    async def join(self, topic: str) -> None:
        await self.tell({"do": "join", "topic": topic})

    async def say(self, text: str) -> None:
        await self.tell({"do": "say", "text": text})

    async def told(self) -> dict[str, Any]:
        return await self.ask({"do": "tell"})


@asynccontextmanager
async def js_node(folder: Path, mesh: bool) -> AsyncIterator[Js]:
    """It ends with the context."""
    command = ["node", str(folder / PROGRAM.name), *([] if mesh else ["no-mesh"])]
    async with trio.open_nursery() as nursery:
        js = Js(await nursery.start(partial(trio.run_process, command, stdin=PIPE, stdout=PIPE, cwd=folder)))
        js.contact = (await js.hear())["contact"]
        yield js
        nursery.cancel_scope.cancel()


async def stand(way: str, messages: int, program: AbstractAsyncContextManager[Theirs]) -> dict[str, Any]:
    """What came of one way."""
    ours = [Ours() for _ in range(WAYS[way])]
    async with trio.open_nursery() as nursery, program as theirs:
        for one in ours:
            await nursery.start(one.run)
        await theirs.join(TOPIC)
        await _connect(way, ours, theirs)
        await trio.sleep(WARM)
        said = await _talk([*ours, theirs], messages)
        await trio.sleep(PATIENCE)
        told = await theirs.told()
        nursery.cancel_scope.cancel()
    return {"way": way, "messages": messages, **_result(said, ours, told)}


async def _connect(way: str, ours: Sequence[Ours], theirs: Theirs) -> None:
    """It dials us; where it stands between, we know nobody else."""
    named = {} if way == "stranger" else {_member_at(theirs.contact): theirs.contact}
    among = {} if way in APART else {one.network.address: one.network.contacts()[0] for one in ours}
    for one in ours:
        others = {who: where for who, where in (named | among).items() if who != one.network.address}
        one.network.set_contacts(others)
    for one in ours:
        await theirs.dial(one.network.contacts()[0])


def _member_at(contact: str) -> Address:
    return address_of_peer(contact.rpartition("/p2p/")[2])


async def _talk(speakers: Sequence[Ours | Theirs], messages: int) -> list[set[str]]:
    """What each of them said."""
    said: list[set[str]] = [set() for _ in speakers]
    began = trio.current_time()
    for number in range(messages):
        speaker = number % len(speakers)
        text = f"{number} ".ljust(SIZE, ".")
        await speakers[speaker].say(text)
        said[speaker].add(text)
        await trio.sleep_until(began + (number + 1) / RATE)
    return said


def _result(said: list[set[str]], ours: Sequence[Ours], told: dict[str, Any]) -> dict[str, Any]:
    """Of what they said, of what we said, and of what came to them."""
    all_said, by_them = set[str]().union(*said), said[-1]
    pairs = list(zip(ours, said[:-1], strict=True))
    return {
        "we_lost_of_theirs": sum(len(by_them - set(one.heard)) for one in ours),
        "we_lost_of_ours": sum(len(all_said - by_them - own - set(one.heard)) for one, own in pairs),
        "they_lost": len(all_said - by_them - set(told["heard"])),
        "twice": sum(len(one.heard) - len(set(one.heard)) for one in ours),
        "their_mesh": told["mesh"],
        "lowest_score": told["lowest_score"],
    }
