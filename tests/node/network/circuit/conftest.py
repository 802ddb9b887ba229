"""Three nodes, one of them a relay."""

from tests.node.networks import real

__all__ = ["real"]
