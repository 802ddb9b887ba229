"""What can be wrong with an engine, its model or its process."""

from protocol.errors import IntellectError


class EngineError(IntellectError):
    """The engine cannot do what it was asked: no such model, unknown policy, out of bounds."""


class ModelError(EngineError):
    """A model directory or weight image that is missing, broken or of the wrong shape."""


class EngineTimeout(EngineError):
    """A request took longer than its caller waits; it was given up, and the engine goes on with others."""


class EngineCrashed(EngineError):
    """The engine's process died or hung while it had a request; the request may be repeated.

    blameless: the engine said that it was at work on others when it ended.
    """

    def __init__(self, what: str, why: str, remedy: str, *, blameless: bool = False) -> None:
        super().__init__(what, why, remedy)
        self.blameless = blameless
