"""Smaller micro-batches after memory ran out in a pass: from which step on, how small, and in which phase it was.

What a step is computed with follows from its number and these notes alone, so a replay has it too. A note counts while
all settings are what they were when it was made: whoever changes one has something else tried. Every rank has the notes
of all.
"""

import struct
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3

from node.state.files import write_whole
from node.training.memory import PASSES, WHERE, OutOfMemory, Phase
from node.training.program import tell
from node.training.settings import TrainerSettings

if TYPE_CHECKING:
    from node.training.world import World  # torch: whoever only reads the notes has no use for it

AGAIN = 75
"""Exit status of a trainer that is to be started again (EX_TEMPFAIL)."""
_NOTE = struct.Struct("<qqqq")
_OWN = ("node_rank", "interface", "threads", "peak_tflops")
"""Settings of one machine alone, which make no pass larger or smaller."""


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From `step` on at most `tokens` in a pass, where `settings` were to be tried and memory ran out in `phase`."""

    step: int
    tokens: int
    settings: int
    phase: Phase


class MicroBatchLimit:
    """Most tokens of a pass by step. All ranks make one at the same time."""

    def __init__(self, path: Path, settings: TrainerSettings, world: "World") -> None:
        self._path, self._setting, self._digest = path, settings.micro_batch_tokens, digest_of(settings)
        self._own = [note for note in read_notes(path) if note.settings == self._digest]
        slots = 32  # notes of one rank that the others hear of: more halvings than the largest setting has
        packed = b"".join(
            _NOTE.pack(note.step, note.tokens, note.settings, PASSES.index(note.phase)) for note in self._own[-slots:]
        )
        told = world.gather(packed.ljust(slots * _NOTE.size, b"\0"))
        # A note has one token at least: what has none fills a rank's slots up.
        values = [values for data in told for values in _NOTE.iter_unpack(data) if values[1]]
        self._notes = [Note(step, tokens, own, PASSES[phase]) for step, tokens, own, phase in values]

    def at(self, step: int) -> int:
        """Of what turns policy `step` into the next."""
        # The lowest of all ranks' notes: memory runs out on one of them, and all make the same passes.
        known = (note.tokens for note in self._notes if note.step <= step and note.settings == self._digest)
        return min(known, default=self._setting)

    def begin_again(self, error: OutOfMemory, step: int, largest: int) -> None:
        """Where memory ran out in a pass and smaller ones may help, all ranks start again with them. largest: tokens of
        the largest pass that a smaller limit divides, 0 where none does. Raises SystemExit then; comes back where
        another try would be the same."""
        if not error.of_a_pass or not largest:
            return
        event = {"event": "training.memory_ran_out", "step": step, "phase": error.phase, "why": error.why}
        tell({**event, "micro_batch_tokens": self.lower(step, error.phase, largest)})
        # A new process: what CUDA's allocator holds after an out-of-memory cannot be given back.
        raise SystemExit(AGAIN) from error

    def lower(self, step: int, phase: Phase, largest: int) -> int:
        """Less from `step` on, when the trainer has started again; returns it. largest: tokens of the largest pass that
        was tried: half of what was allowed may be more than there was."""
        tokens = max(1, min(self.at(step), largest) // 2)
        self._own.append(Note(step, tokens, self._digest, phase))
        write_whole(self._path, msgspec.json.encode(self._own))
        return tokens


def digest_of(settings: TrainerSettings) -> int:
    """63 bits of all that decides whether a pass fits."""
    said = {name: value for name, value in msgspec.to_builtins(settings).items() if name not in _OWN}
    return int.from_bytes(blake3(msgspec.json.encode(said)).digest(8), "little") >> 1


def read_notes(path: Path) -> list[Note]:
    """Of one rank; none where memory never ran out."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Note])
    except FileNotFoundError:
        return []


def in_words(path: Path, settings: TrainerSettings) -> str:
    """What became of memory that ran out under these settings; empty where it never did. Blocking."""
    notes = [note for note in read_notes(path) if note.settings == digest_of(settings)]
    if not notes:
        return ""
    last = notes[-1]
    return (
        f"memory ran out {WHERE[last.phase]} of step {last.step}: passes of at most {last.tokens:,} tokens since, "
        f"of {settings.micro_batch_tokens:,} that were set"
    )
