"""`python examples/watch.py STATE_DIR`: what a node of this machine does, told by the interface for programs.

`python examples/watch.py NETWORK POOL DIRECTORY` follows the policies of a pool instead, without joining it.
"""

import asyncio
import sys

from node import sdk


async def look(state_dir: str) -> None:
    node = sdk.Node(state_dir)
    told = await node.status()
    print(f"{told.node.role} {told.node.state}, step {told.run.step if told.run else None}")
    for task in await node.tasks() if told.node.role == "trainer" else []:
        print(f"task {task['id'][:8]} ({task['kind']}): {'open' if task['open'] else 'over'}")


async def follow(network: str, pool: int, directory: str) -> None:
    async with sdk.follow(network, pool=pool, directory=directory) as policies:
        async for policy in policies:
            print(f"step {policy.step} of {policy.run}: {policy.path}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        asyncio.run(look(sys.argv[1]))
    else:
        asyncio.run(follow(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
