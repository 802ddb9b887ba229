"""Smaller micro-batches after memory ran out: from which step on, and how small.

What a step is computed with follows from its number and these notes alone, so a replay has it too. A note counts while
`micro_batch_tokens` is what it was when the note was made; every rank has the notes of all.
"""

import struct
from pathlib import Path

import msgspec

from node.state.files import write_whole
from node.training.world import World

LEAST_TOKENS = 1
_NOTE = struct.Struct("<qqq")
_SLOTS = 32
"""Notes of one rank that the others hear of: more halvings than the largest setting has."""


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From `step` on at most `tokens` in a pass, where `setting` was to be tried."""

    step: int
    tokens: int
    setting: int


class MicroBatchLimit:
    """Most tokens of a pass by step. All ranks make one at the same time."""

    def __init__(self, path: Path, setting: int, world: World) -> None:
        self._path, self._setting = path, setting
        self._own = _read(path)
        packed = b"".join(_NOTE.pack(note.step, note.tokens, note.setting) for note in self._own[-_SLOTS:])
        told = world.gather(packed.ljust(_SLOTS * _NOTE.size, b"\0"))
        # A note has one token at least: what has none fills a rank's slots up.
        self._notes = [Note(*values) for data in told for values in _NOTE.iter_unpack(data) if values[1]]

    def at(self, step: int) -> int:
        """Of what turns policy `step` into the next."""
        # The lowest of all ranks' notes: memory runs out on one of them, and all make the same passes.
        known = (note.tokens for note in self._notes if note.step <= step and note.setting == self._setting)
        return min(known, default=self._setting)

    def lower(self, step: int) -> int:
        """Half as much from `step` on, when the trainer has started again; returns it."""
        tokens = max(LEAST_TOKENS, self.at(step) // 2)
        self._own.append(Note(step, tokens, self._setting))
        write_whole(self._path, msgspec.json.encode(self._own))
        return tokens


def _read(path: Path) -> list[Note]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Note])
    except FileNotFoundError:
        return []
