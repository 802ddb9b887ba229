"""A trainer's state from a checkpoint that a stranger handed over: nothing is believed before its root fits.

safetensors, read by hand: a length, a JSON header of names and places, and float32 numbers. Every bound is looked at
before anything is allocated, and the numbers are mapped, not copied, until the state root is the signed one.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from node.state.files import mapped
from protocol.errors import UNREADABLE, ProtocolError
from protocol.manifest import CheckpointCard, state_root

F32 = NDArray[np.float32]
PARTS = ("weight", "exp_avg", "exp_avg_sq")
MAX_HEADER = 1 << 26
"""Bytes of JSON; a tensor has some hundred."""
_METADATA = "__metadata__"

Shapes = Mapping[str, tuple[int, ...]]


class State(msgspec.Struct, frozen=True):
    """A copy of what a learner held. tensors: part ("weight", "exp_avg", "exp_avg_sq") -> parameter -> values; moments
    are zeros before the first update."""

    step: int
    updates: int
    consumed: dict[str, int]
    tensors: dict[str, dict[str, F32]]


class UnusableState(ProtocolError):
    """A checkpoint that is not what it should be. Whoever handed it over may be another one than who made it."""


class _Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_state(card: CheckpointCard, files: Sequence[Path], shapes: Shapes, root: bytes) -> State:
    """The state with this root. shapes: of the trained parameters, in the learner's order. Raises UnusableState."""
    if len(files) != 1:
        raise _unusable(card, f"it was written by {len(files)} ranks, which one process cannot be")
    wanted = {f"{part}/{name}": shape for name, shape in shapes.items() for part in _parts(card)}
    found = _tensors(card, files[0], wanted)
    digests = ((name, blake3(found[name].reshape(-1).view(np.uint8).data).digest()) for name in wanted)
    if state_root(card.step, card.updates, dict(card.consumed), digests) != root:
        raise _unusable(card, "it is not the state that the trainer stated")
    # Although the root fits: whoever stated it may have stated such numbers.
    if not all(np.isfinite(values).all() for values in found.values()):
        raise _unusable(card, "it holds numbers that are not finite")
    tensors = {part: {name: found[f"{part}/{name}"].copy() for name in shapes} for part in _parts(card)}
    for part in PARTS:
        tensors.setdefault(part, {name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
    return State(card.step, card.updates, dict(card.consumed), tensors)


def _parts(card: CheckpointCard) -> tuple[str, ...]:
    return PARTS if card.updates else PARTS[:1]


def _tensors(card: CheckpointCard, path: Path, wanted: Shapes) -> dict[str, F32]:
    """Views of a file, which must hold these tensors and nothing else, end to end."""
    try:
        data = mapped(path)
    except OSError as error:
        raise _unusable(card, f"it cannot be read: {error.strerror}") from error
    # A file too short for this number gets one that the next check refuses.
    length = int.from_bytes(data[:8], "little") if len(data) >= 8 else len(data)
    header_each = 1024
    if not 0 < length <= min(MAX_HEADER, header_each * (len(wanted) + 1), len(data) - 8):
        raise _unusable(card, f"its header of {length} bytes does not fit the file or the model")
    places = _places(card, bytes(data[8 : 8 + length]))
    if places.keys() != wanted.keys():
        odd = sorted(places.keys() ^ wanted.keys())
        raise _unusable(card, f"{len(odd)} tensors are not those of the run's model, the first is {odd[0][:80]!r}")
    for name, place in places.items():
        if place.dtype != "F32" or place.shape != wanted[name]:
            raise _unusable(card, f"{name[:80]} is {place.dtype}{list(place.shape)[:8]}, not F32{list(wanted[name])}")
    # After the shapes were compared: a product of a stranger's numbers could overflow.
    if why := next(_faults(places, len(data) - 8 - length), None):
        raise _unusable(card, why)
    body = np.frombuffer(data, np.uint8, offset=8 + length)
    return {name: body[slice(*place.data_offsets)].view("<f4").reshape(place.shape) for name, place in places.items()}


def _places(card: CheckpointCard, header: bytes) -> dict[str, _Place]:
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        return {name: msgspec.json.decode(one, type=_Place) for name, one in raw.items() if name != _METADATA}
    except UNREADABLE as error:
        raise _unusable(card, f"its header cannot be read: {str(error)[:200]}") from error


def _faults(places: Mapping[str, _Place], size: int) -> Iterator[str]:
    """Where tensors do not stand end to end, or not in their sizes. size: bytes behind the header."""
    spans = sorted(place.data_offsets for place in places.values())
    if spans[0][0] != 0 or spans[-1][1] != size or any(one[1] != two[0] for one, two in pairwise(spans)):
        yield f"its tensors do not fill the {size} bytes behind the header: it is cut off, or they overlap"
    for name, place in places.items():
        begin, end = place.data_offsets
        if end - begin != 4 * int(np.prod(place.shape, dtype=np.int64)):
            yield f"{name[:80]} has another size than its shape"


def _unusable(card: CheckpointCard, why: str) -> UnusableState:
    return UnusableState(f"the checkpoint of step {card.step} cannot be used", why, "take it from another node")
