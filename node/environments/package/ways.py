"""The processes in which `env check` plays a package: what must not depend on them is compared.

Both settings of the sandbox's compiler must come to the same.
"""

from node.environments.package.check import Way
from node.environments.runtime import opener_for


def all_ways() -> list[Way]:
    """The first is the sandbox as runs have it."""
    return [
        Way("WASI", "wasi", opener_for()),
        Way("WASI, other compiler settings", "wasi", opener_for(optimised=False)),
    ]
