"""What can go wrong with weights on this node's own disk or on the way to it."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from protocol.errors import IntellectError, OwnFailure


class WeightsError(IntellectError):
    """Weights that cannot be had, kept or written."""


class WeightsDiskError(WeightsError, OwnFailure):
    """The disk is full or does not work."""


class PolicyUnknown(WeightsError):
    """Nobody that was asked knows this policy, or none of them could deliver it."""


class BlobDamaged(PolicyUnknown, OwnFailure):
    """This node's disk has lost or changed what it had."""


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """A full or broken disk, as an error that says what was being written."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise WeightsDiskError(
            f"{what} cannot be written",
            error.strerror or str(error),
            "free some space, or lower store_quota; the node goes on by itself" if full else "mend the disk",
        ) from error
