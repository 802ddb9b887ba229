"""Swarms of two or three nodes, over either network."""

from tests.node.networks import folders, real, swarm

__all__ = ["folders", "real", "swarm"]
