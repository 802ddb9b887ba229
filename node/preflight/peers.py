"""The pool's members as this machine reaches them, and the run that they hand out: looked at without joining."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import trio

from contracts.bindings import Member as MemberInfo
from contracts.bindings import PoolInfo
from node.chain.client import ChainClient
from node.member import Member, open_member
from node.network.host import Libp2pNetwork
from node.preflight.finding import Finding, ok, warning
from node.run.assets import Run, obtain_run, obtain_spec
from protocol.identity import NodeKey
from protocol.messages import Heartbeat
from protocol.run import RunSpec
from protocol.statements import Domain

DIAL_SECONDS = 15.0
RUN_SECONDS = 120.0
HEAR_SECONDS = 8.0
"""For the trainer's next heartbeat, the dialling included."""
QUOTA = 64 * 2**30
LOOPBACK = "/ip4/127.0.0.1/tcp/0"
T = TypeVar("T")


class Visit(msgspec.Struct, frozen=True):
    """run: None where nobody handed it out in time."""

    finding: Finding
    run: Run | None


async def visit(chain: ChainClient, pool: PoolInfo, directory: Path) -> Visit:
    """Dial all members with a key of the moment, and fetch the run into `directory`. Raises ChainError."""
    members = [one for one in await chain.members(pool.id) if not (one.evicted or one.left)]
    if not members:
        return Visit(
            warning("peers", f"nobody is in pool {pool.id} now", "wait for its trainer, or choose another"), None
        )
    async with _visitor(chain, pool, members, directory) as member:
        run = await _in_time(
            member, lambda: obtain_run(pool.run_root, member.blobs, member.membership.addresses, directory / "run")
        )
        return Visit(_judge(len(member.network.connected()), len(members), run), run)


async def ask_for_spec(chain: ChainClient, pool: PoolInfo, directory: Path) -> RunSpec | None:
    """What a pool's run says, asked of its members without joining; None where nobody is reached. Raises ChainError."""
    members = [one for one in await chain.members(pool.id) if not (one.evicted or one.left)]
    if not members:
        return None
    async with _visitor(chain, pool, members, directory) as member:
        return await _in_time(member, lambda: obtain_spec(pool.run_root, member.blobs, member.membership.addresses))


async def is_over(chain: ChainClient, pool: PoolInfo, directory: Path) -> bool:
    """Whether the pool's trainer says in its heartbeat that the run is over; False where it is not heard in time.

    Raises ChainError.
    """
    members = [one for one in await chain.members(pool.id) if not (one.evicted or one.left)]
    if not any(one.node == pool.manager for one in members):
        return False
    async with _visitor(chain, pool, members, directory) as member, trio.open_nursery() as nursery:
        beats = member.board.subscribe(Heartbeat, member.membership.is_trainer)
        nursery.start_soon(member.listen)
        over = False
        with trio.move_on_after(HEAR_SECONDS):
            over = (await anext(aiter(beats))).message.finished
        nursery.cancel_scope.cancel()
        return over


@asynccontextmanager
async def _visitor(
    chain: ChainClient, pool: PoolInfo, members: Sequence[MemberInfo], directory: Path
) -> AsyncIterator[Member]:
    key, profile = NodeKey.generate(), chain.profile
    domain = Domain(profile.chain_id, profile.contracts.swarm)
    network = Libp2pNetwork(key, LOOPBACK, private=profile.lan)
    async with open_member(key, domain, pool, network, directory / "blobs", quota=QUOTA) as member:
        for one in members:
            member.membership.joined(one.node, one.contact)
        yield member


async def _in_time(member: Member, obtain: Callable[[], Awaitable[T]]) -> T | None:
    with trio.move_on_after(DIAL_SECONDS):
        while not member.network.connected():  # noqa: ASYNC110 - the network has no event for it
            await trio.sleep(0.1)
    with trio.move_on_after(RUN_SECONDS if member.network.connected() else 0):
        return await obtain()
    return None


def _judge(reached: int, members: int, run: Run | None) -> Finding:
    data = {"members": members, "reached": reached, "run": run.spec.name if run else None}
    if not reached:
        what = f"none of the pool's {members} members can be reached from here"
        return warning("peers", what, "let TCP connections out of this machine, or wait: they may be offline", **data)
    answer = f"{reached} of {members} members answer"
    if run is None:
        return warning("peers", f"{answer}, none has the run yet", "wait, and try again", **data)
    return ok("peers", f"{answer}, and the run {run.spec.name} is had from them", **data)
