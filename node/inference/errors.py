"""What can be wrong with an engine, its model or its process."""

from protocol.errors import IntellectError


class EngineError(IntellectError):
    """The engine cannot do what it was asked: no such model, unknown policy, out of bounds."""


class ModelError(EngineError):
    """A model directory or weight image that is missing, broken or of the wrong shape."""


class EngineCrashed(EngineError):
    """The engine's process died or hung while it worked on a request; the request may be repeated."""
