import platform
import subprocess
import sys

import pytest

PROGRAM = """
import numpy as np
from node.inference.engines import keep_freed_memory

def pages():
    return int(open("/proc/self/statm").read().split()[1])

blocks = [np.ones(1 << 17) for _ in range(40)]
del blocks
assert keep_freed_memory()
blocks = [np.ones(1 << 17) for _ in range(40)]
held = pages()
del blocks
print(held - pages())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be told")
def test_what_is_freed_stays_with_the_process() -> None:
    """40 MiB in blocks that malloc would map and unmap one by one."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 1000
