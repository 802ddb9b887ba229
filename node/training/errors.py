"""What can go wrong in training."""

from protocol.errors import IntellectError


class TrainingError(IntellectError):
    """Training cannot go on: broken batch, numbers that are not finite, unusable spool or checkpoint."""
