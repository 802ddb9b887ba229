"""What a transfer frees serves the next one."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from node.network.host import keep_freed_blocks
if sys.argv[1] == "kept":
    keep_freed_blocks()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def transfer():
    return [b"x" * (2 * 1024**2) for _ in range(8)]
transfer()
before = faults()
transfer()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other rules")
def test_blocks_of_one_transfer_serve_the_next_one_without_a_page_fault() -> None:
    def faults(how: str) -> int:
        said = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
        return int(said.stdout)

    assert faults("kept") < 100 < 1000 < faults("as it comes")
