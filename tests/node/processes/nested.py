"""A program that has a fork server of its own: says by whom its child was forked, and how that ended."""

import json
import os
import sys

import psutil
import trio

from node.processes.forkserver import ForkServer
from node.processes.launch import fork_or_launch


async def main() -> None:
    server = fork_or_launch(("json",))
    assert server is not None
    children = ForkServer(server)
    async with trio.open_nursery() as nursery:
        await nursery.start(children.run)
        command = [sys.executable, "-m", "tests.node.processes.mirror", "5"]
        child = await children.start(command, os.environ, heard=True)
        assert child.stdin is not None
        parents = [one.pid for one in psutil.Process(child.pid).parents()]
        await child.stdin.aclose()
        status = await child.wait()
        forked = psutil.Process(server.process.pid).cmdline() == psutil.Process().cmdline()
        print(json.dumps({"by": parents[:2] == [server.process.pid, os.getpid()], "forked": forked, "status": status}))
        nursery.cancel_scope.cancel()


trio.run(main)
sys.exit(3)
