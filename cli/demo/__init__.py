"""`intellect-node demo`: a swarm on this machine, and the view, report and supervision around it."""

from cli.demo.command import EXAMPLES, command

__all__ = ["EXAMPLES", "command"]
