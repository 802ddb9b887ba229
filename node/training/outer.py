"""Outer states on disk, and the step from one to the next: what everybody makes alike of a round's contributions.

A state file is safetensors, float32, names in order; its metadata names the round and the state root
(protocol.rounds), and it appears whole or not at all. Tensors are read, added and written one at a time.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from node.state.files import mapped, whole_file
from node.training.errors import TrainingError
from protocol.contribution import Contribution, Shapes
from protocol.exchange import F32
from protocol.policy import bf16_bits, image_header, raw
from protocol.pretraining import Diloco
from protocol.rounds import Mean, digest_of, fragment, outer_step, state_root

MOMENTUM = "momentum/"


class OuterStateFile:
    """A state that is on disk. round, root: of the state; shapes: by name."""

    def __init__(self, path: Path) -> None:
        """Raises TrainingError for a file that is none."""
        from safetensors import SafetensorError, safe_open  # here: daemons of runs without rounds do without it

        try:
            self._file = safe_open(path, framework="np")
            said = self._file.metadata() or {}
            self.round, self.root = int(said["round"]), bytes.fromhex(said["root"])
            names = sorted(self._file.keys())
            self.shapes = {name: tuple(self._file.get_slice(name).get_shape()) for name in names}
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise _damaged(path, str(error)[:200]) from None
        self.path = path

    def tensor(self, name: str) -> F32:
        """float32, in its shape."""
        return self._file.get_tensor(name)

    def check(self) -> None:
        """Raises TrainingError unless its numbers are those that its root names."""
        found = ((name, shape, digest_of(self.tensor(name))) for name, shape in self.shapes.items())
        if state_root(self.round, found) != self.root:
            raise _damaged(self.path, "its numbers are not those that its root names")


Take = Callable[[str, F32], None]


def _front(round_: int, shapes: Shapes) -> str:
    """What stands before a state's numbers, with zeros for its root; padded to 8 bytes."""
    entries: dict[str, object] = {"__metadata__": {"format": "np", "round": str(round_), "root": "0" * 64}}
    offset = 0
    for name in sorted(shapes):
        end = offset + 4 * math.prod(shapes[name])
        entries[name] = {"dtype": "F32", "shape": list(shapes[name]), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":"))
    return text + " " * (-len(text.encode()) % 8)


def state_size(round_: int, shapes: Shapes) -> int:
    """Bytes of a state's file; never fewer in a later round."""
    return 8 + len(_front(round_, shapes).encode()) + 4 * sum(math.prod(shape) for shape in shapes.values())


def strangers_state(path: Path, round_: int, shapes: Shapes) -> OuterStateFile:
    """A state that somebody else wrote. Raises TrainingError unless it is the very file that `state_file` would write
    of its numbers for this round and these shapes, and all of them are finite."""
    data, text = mapped(path), _front(round_, shapes).encode()
    front = len(text).to_bytes(8, "little") + text
    # The first such run of zeros is the root: no name of a tensor stands before it.
    root = front.index(b"0" * 64)
    # Byte by byte, before any reader of the format sees it: no other names, types, shapes, gaps or lengths.
    said, rest = bytes(data[: len(front)]), (slice(0, root), slice(root + 64, None))
    if len(data) != state_size(round_, shapes) or any(said[part] != front[part] for part in rest):
        raise _damaged(path, "its length, names or shapes are not those of this run and round")
    found = OuterStateFile(path)
    found.check()
    if not all(np.isfinite(found.tensor(name)).all() for name in shapes):
        raise _damaged(path, "a number in it is not finite")
    return found


@contextmanager
def state_file(path: Path, round_: int, shapes: Shapes) -> Iterator[tuple[Take, list[bytes]]]:
    """(take the next tensor, of names in order; a list that holds the root when the block has ended)."""
    text = _front(round_, shapes)
    digests: list[tuple[str, tuple[int, ...], bytes]] = []
    root: list[bytes] = []
    with whole_file(path) as file:
        file.write(len(text.encode()).to_bytes(8, "little") + text.encode())

        def take(name: str, values: F32) -> None:
            digests.append((name, tuple(shapes[name]), digest_of(values)))
            file.write(np.ascontiguousarray(values, dtype="<f4").reshape(-1).view(np.uint8).data)

        yield take, root
        root.append(state_root(round_, digests))
        # The root is known last. Its place was left free, so nothing behind it moves.
        file.seek(8)
        file.write(text.replace("0" * 64, root[0].hex(), 1).encode())


def write_state(path: Path, round_: int, shapes: Shapes, tensors: Iterable[tuple[str, F32]]) -> bytes:
    """The whole of a state; its root."""
    with state_file(path, round_, shapes) as (take, root):
        for name, values in tensors:
            take(name, values)
    return root[0]


def outer_shapes(shapes: Shapes, rules: Diloco) -> dict[str, tuple[int, ...]]:
    """Of an outer state, with its momentum if the run has one."""
    held = {name: tuple(shape) for name, shape in shapes.items()}
    return held | ({MOMENTUM + name: shape for name, shape in held.items()} if rules.outer_momentum else {})


def apply_round(outer: OuterStateFile, contributions: Sequence[Contribution], rules: Diloco, path: Path) -> bytes:
    """Write the next outer state; its root. contributions: those that are in, in the order of their ids. Tensors
    that are not of the round's fragment stay as they are.

    Raises ContributionError if one of them cannot be decoded; nothing is written then.
    """
    shapes = {name: shape for name, shape in outer.shapes.items() if not name.startswith(MOMENTUM)}
    exchanged = frozenset(fragment(shapes, outer.round, rules.fragments))
    with state_file(path, outer.round + 1, outer.shapes) as (take, root):
        for name in sorted(outer.shapes):
            if name.removeprefix(MOMENTUM) not in exchanged:
                take(name, outer.tensor(name))
                continue
            # Momentum stands apart from the weights in a file, so this is computed once for each of the two.
            # Keeping the first result would hold as much as a model in memory.
            values, momentum = _stepped(outer, name.removeprefix(MOMENTUM), contributions, rules)
            take(name, values if momentum is None or not name.startswith(MOMENTUM) else momentum)
    return root[0]


def write_policy(outer: OuterStateFile, path: Path) -> None:
    """The canonical bf16 image of an outer state, which is what rollouts are sampled with."""
    names = [name for name in outer.shapes if not name.startswith(MOMENTUM)]
    with whole_file(path) as file:
        file.write(image_header((name, outer.shapes[name]) for name in names))
        for name in names:
            file.write(raw(bf16_bits(outer.tensor(name))))


def _stepped(
    outer: OuterStateFile, name: str, contributions: Sequence[Contribution], rules: Diloco
) -> tuple[F32, F32 | None]:
    before = outer.tensor(name).reshape(-1)
    mean = Mean(before.size)
    for one in contributions:
        mean.add(one.tensor(name), one.header.tokens)
    momentum = outer.tensor(MOMENTUM + name).reshape(-1) if rules.outer_momentum else None
    return outer_step(before, momentum, mean.result(), rules)


def _damaged(path: Path, why: str) -> TrainingError:
    return TrainingError(
        f"the state {path.name} cannot be used", f"{path}: {why}", "restore it from a copy, or start the run again"
    )
