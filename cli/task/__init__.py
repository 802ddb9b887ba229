"""`intellect-node task`: have the swarm generate, filter, evaluate, judge, review or merge something.

Asked for at the node of the pool's trainer, over its control socket; workers do the shards, validators judge them.
"""

from cli.task.commands import app

__all__ = ["app"]
