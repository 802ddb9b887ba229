"""The daemon and everything it runs."""

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


class _Later(ModuleType):
    """A part of py_ecc until something is computed with it."""

    curve_order = 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001
    """What eth_keyfile reads when it is imported."""

    class G2ProofOfPossession:
        @staticmethod
        def SkToPk(key: int) -> bytes:
            from py_ecc.bls.ciphersuites import G2ProofOfPossession  # pyright: ignore[reportMissingTypeStubs]

            return bytes(G2ProofOfPossession.SkToPk(key))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


def _tame_py_ecc() -> None:
    """eth_account's key files import it, for keys that Ethereum's own validators have. It makes tables of their curve,
    which takes half as long as all of web3; so those parts are imported when they are used. And it lifts Python's limit
    of recursion to 100,000. With that `json` and msgspec go down as far as a stranger's brackets: at some 40,000 the
    stack ends, and the process with it. So it is imported before anything else, and the limit put back."""
    limit = sys.getrecursionlimit()
    try:
        import py_ecc  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        return
    sys.setrecursionlimit(limit)
    for name in ("bls", "bls12_381"):
        later = _Later(f"py_ecc.{name}")
        later.__path__ = [str(Path(py_ecc.__path__[0], name))]
        sys.modules.setdefault(later.__name__, later)


_tame_py_ecc()
