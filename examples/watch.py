"""`python examples/watch.py STATE_DIR`: what a node of this machine does, told by the interface for programs.

`python examples/watch.py NETWORK POOL DIRECTORY` follows the policies of a pool instead, without joining it.
"""

import asyncio
import sys

from node import sdk

USAGE = "python examples/watch.py STATE_DIR, or python examples/watch.py NETWORK POOL DIRECTORY"


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


def main(words: list[str]) -> str | None:
    """None where all went well, else what a person reads."""
    try:
        match words:
            case [state_dir]:
                asyncio.run(look(state_dir))
            case [network, pool, directory] if pool.isdecimal():
                asyncio.run(follow(network, int(pool), directory))
            case _:
                return f"error: the command is not understood\n  why: it takes one word or three\n  do:  {USAGE}"
    except sdk.IntellectError as error:
        return f"error: {error.what}\n  why: {error.why}\n  do:  {error.remedy}"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
