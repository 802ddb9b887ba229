"""The processes in which `env check` plays a package: what must not depend on them is compared.

Both settings of the sandbox's compiler must come to the same. Where the kernel can confine a native Python, the package
also runs under two hash seeds, which shows an order of a set that leaks into a reward.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from node.environments.package.check import Way
from node.environments.programs import Opener
from node.environments.runtime import opener_for
from node.sandbox import Limits, Sandbox, open_confined
from node.sandbox.confined import walls

SEEDS = ("1", "2")


def all_ways(*, native: bool = True) -> list[Way]:
    """The first is the sandbox as runs have it. native: whether the package can run there; one that imports from the
    shelf cannot. For a program of its own: it changes this process's environment."""
    ways = [
        Way("WASI", "wasi", opener_for()),
        Way("WASI, other compiler settings", "wasi", opener_for(optimised=False)),
    ]
    if native and walls.missing() is None:
        ways += [Way(f"native, hash seed {seed}", "native", _native(seed)) for seed in SEEDS]
    return ways


def _native(seed: str) -> Opener:
    def opened(files: Mapping[str, bytes], entry: str, limits: Limits) -> Sandbox:
        with _hash_seed(seed):
            return open_confined(files, entry, limits)

    return opened


@contextmanager
def _hash_seed(seed: str) -> Iterator[None]:
    """Of the processes that are started meanwhile."""
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = seed
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = before
