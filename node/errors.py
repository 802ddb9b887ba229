"""The daemon's own failures; the packages below have their own trees under the same root."""

from protocol.errors import IntellectError


class NodeError(IntellectError):
    """Something about this node: its configuration, its state directory, its keys."""


class ConfigError(NodeError):
    """A setting that is missing, malformed or contradicts another."""


class StateError(NodeError):
    """The state directory cannot be used: locked, unwritable, full or damaged."""


class KeyError_(NodeError):
    """A key file that is missing, exposed, damaged or locked with another password."""


class EvictedError(NodeError):
    """This node's stake was taken or its membership ended by the quorum."""


class RunFileError(NodeError):
    """A run file, or a model or data set that it names, cannot be used."""
