"""Memory that is free goes back to the system while a program goes on."""

import subprocess
import sys

import pytest

FRAGMENTED = """
import ctypes, trio
from pathlib import Path
from node.processes import supervision

LIBC = ctypes.CDLL(None)
LIBC.malloc.restype = ctypes.c_void_p

def anonymous():
    # KiB of heap and stacks
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))

async def main():
    blocks = [LIBC.malloc(65536) for _ in range(600)]
    for block in blocks:
        ctypes.memset(block, 1, 65536)
    for number, block in enumerate(blocks):
        if number % 20:  # every twentieth stays, so that no end of the heap comes free
            LIBC.free(ctypes.c_void_p(block))
    before = anonymous()
    with trio.move_on_after(2.0):
        await supervision.give_back_memory(seconds=0.2)
    print(before - anonymous())

trio.run(main)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="another C library")
def test_what_lies_free_between_what_stays_is_given_back() -> None:
    shown = subprocess.run([sys.executable, "-c", FRAGMENTED], check=True, stdout=subprocess.PIPE, text=True)
    assert int(shown.stdout) > 30_000, "KiB: 570 of 600 blocks of 64 KiB"
