"""The daemon and everything it runs."""

import sys
from importlib import import_module

from node.later import put_off


def _tame_py_ecc() -> None:
    """eth_account's key files import it, and it lifts Python's limit of recursion to 100,000. With that `json` and
    msgspec go down as far as a stranger's brackets: at some 40,000 the stack ends, and the process with it. So it is
    imported before anything else, and the limit put back."""
    limit = sys.getrecursionlimit()
    try:
        import_module("py_ecc")
    except ImportError:
        return
    sys.setrecursionlimit(limit)


put_off()
_tame_py_ecc()
