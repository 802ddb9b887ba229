"""The daemon and everything it runs."""

import sys
from contextlib import suppress

# eth_account imports it for curves that nobody needs here, and it lifts Python's limit of recursion to 100,000. With
# that `json` and msgspec go down as far as a stranger's brackets: at some 40,000 the stack ends, and the process with
# it. So it is imported before anything else, and the limit put back.
_limit = sys.getrecursionlimit()
with suppress(ImportError):
    import py_ecc  # noqa: F401  # pyright: ignore[reportMissingTypeStubs, reportUnusedImport]
sys.setrecursionlimit(_limit)
