"""What a transfer frees serves the next one."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
from node.network.host import keep_freed_blocks
def transfer():
    return [b"x" * (2 * 1024**2) for _ in range(8)]
def faults():
    transfer()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    transfer()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults())
keep_freed_blocks()
print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other rules")
def test_blocks_of_one_transfer_serve_the_next_one_without_a_page_fault() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    as_it_comes, kept = (int(line) for line in said.stdout.split())
    assert kept < 100 < 1000 < as_it_comes
