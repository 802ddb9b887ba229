"""One policy in this machine's memory, which patches turn into the next one where it lies.

A policy is kept as a base and patches (`layers`). To put it together costs a pass for each patch, and whoever checks or
loads it pays that anew: a process that engines share pays once, and for one patch a step. The copy is a canonical image
in a file without a disk, so an engine's other processes read it as any image. It is not kept where memory is short
(`room.has_room_for_copy`); then everything is put together from the base, as without it.

Each move hashes what it made, and where that is not what was signed the tensor is made from the base again. So nobody
reads a copy that was not compared whole.
"""

import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from blake3 import blake3

from node.inference.layers import U16, LayeredImage, in_order
from protocol.blobs import describe_pieces
from protocol.delta import PatchError, is_unchanged, patch_in_place
from protocol.policy import raw
from protocol.stretches import HashedTensor, Layout, TensorHasher

Stop = Callable[[], object]
"""Raises where nobody waits any more; asked often."""


class CopiedImage(NamedTuple):
    """path: by which this user's processes read it; root: the blob that it is."""

    path: Path
    root: bytes


class _Way(NamedTuple):
    """From one policy to another. back: patches of the former, the last first; forth: of the latter. Each is one part
    for each tensor."""

    old: LayeredImage
    back: Sequence[Sequence[memoryview]]
    forth: Sequence[Sequence[memoryview]]


class HostCopy:
    """has_room: whether this machine has memory for a copy of so many bytes. Threads may use it at a time."""

    def __init__(self, has_room: Callable[[int], bool]) -> None:
        self._has_room = has_room
        # Whoever reads or moves it has this: a policy that changes while it is loaded would be nobody's.
        self._lock = threading.Lock()
        self._memory: _Memory | None = None
        self._policy: LayeredImage | None = None

    @contextmanager
    def at(self, image: LayeredImage, stop: Stop = lambda: None) -> Iterator[CopiedImage | None]:
        """Becomes this policy, and stays it meanwhile; None where no copy is kept. Raises PatchError for what does not
        come to the image's digests, and what `stop` raises."""
        with ExitStack() as held:
            held.enter_context(self._lock)
            there = self._bring(image, stop)
            if there is None:
                held.close()  # who puts it together otherwise needs nobody to wait
            yield there

    @contextmanager
    def glance(self, image: LayeredImage) -> Iterator[memoryview | None]:
        """The bytes of the policy's tensors, if it is this one already and nobody is at work with it."""
        if not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            yield self._memory.body if self._memory and self._is(image) else None
        finally:
            self._lock.release()

    def close(self) -> None:
        """Give the memory back."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        memory, self._memory, self._policy = self._memory, None, None
        if memory is not None:
            memory.close()

    def _is(self, image: LayeredImage) -> bool:
        held = self._policy
        return held is not None and held.roots == image.roots and held.digests == image.digests

    def _bring(self, image: LayeredImage, stop: Stop) -> CopiedImage | None:
        memory = self._room_of(image)
        if memory is None:
            return None
        if not self._is(image):
            # Of no policy until all of it was compared: a move that ends half-way leaves none.
            held, self._policy = self._policy, None
            way = _way(held, image)
            bring = lambda place: _brought(memory.tensors[place], place, way, image, stop)
            for place, found in enumerate(in_order(bring, range(len(image)), image.layout.size)):
                if found is not None:
                    memory.take(place, found)
            memory.hash_what_is_shared()
            self._policy = image
        return CopiedImage(memory.path, memory.root)

    def _room_of(self, image: LayeredImage) -> "_Memory | None":
        """None where none is kept: of an image that lies in a file as it is, and where memory is short."""
        layout, memory = image.layout, self._memory
        if not image.patches or not image.digests:
            return None
        if memory is None or (memory.layout.header, memory.layout.sizes) != (layout.header, layout.sizes):
            self._forget()
            self._memory = memory = _Memory.made(layout) if self._has_room(layout.size) else None
        return memory


def _way(old: LayeredImage | None, new: LayeredImage) -> _Way | None:
    """By the newest policy that both rest on."""
    if old is None or not old.patches:
        return None
    known = {root: at for at, root in enumerate(old.roots)}
    common = next((at for at in range(len(new.roots) - 1, -1, -1) if new.roots[at] in known), None)
    if common is None:
        return None
    back = old.layers[known[new.roots[common]] :]
    return _Way(old, back[::-1], new.layers[common:])


def _brought(tensor: U16, place: int, way: _Way | None, image: LayeredImage, stop: Stop) -> HashedTensor | None:
    """What a tensor has become, which is what was signed; None where it was that already. Raises PatchError."""
    if way is not None:
        back, forth = ([one[place] for one in layers] for layers in (way.back, way.forth))
        same = way.old.digests[place] == image.digests[place]
        # It was compared when it came, and nothing is done to it.
        if same and all(is_unchanged(one, tensor.size) for one in (*back, *forth)):
            return None
        try:
            found = _moved(tensor, place, back, forth, image.layout, stop)
            if found.digest == image.digests[place]:
                return found
        except PatchError:
            pass  # such as new bits, which nobody takes back
    return image.put_together(place, tensor, stop)


def _moved(
    tensor: U16, place: int, back: Sequence[memoryview], forth: Sequence[memoryview], layout: Layout, stop: Stop
) -> HashedTensor:
    """Raises PatchError."""
    if back:
        for _ in patch_in_place(tensor, back, back=True):
            stop()
    hasher = TensorHasher(layout, place)
    for window in patch_in_place(tensor, forth, before=layout.offsets[place] // 2):
        stop()
        hasher.update(raw(window))  # while it is in the processor's cache
    return hasher.finish()


class _Memory:
    """A canonical image in a file without a disk. tensors: its numbers, uint16[n]; pieces: its hashes as a blob."""

    def __init__(self, descriptor: int, layout: Layout) -> None:
        shared = mmap.mmap(descriptor, layout.size)
        # What this process forks shares memory that is a file, and could write there.
        shared.madvise(mmap.MADV_DONTFORK)
        view = memoryview(shared)
        view[: len(layout.header)] = layout.header
        self._descriptor, self._view = descriptor, view
        self.layout, self.path = layout, Path(f"/proc/{os.getpid()}/fd/{descriptor}")
        self.tensors = [
            np.frombuffer(view, "<u2", size // 2, offset) if size else np.empty(0, "<u2")
            for offset, size in zip(layout.offsets, layout.sizes, strict=True)
        ]
        self._pieces = [b""] * -(-layout.size // layout.piece_size)
        whole = {each.piece for place in range(len(layout.sizes)) for each in layout.stretches(place) if each.whole}
        self._shared = [piece for piece in range(len(self._pieces)) if piece not in whole]

    @classmethod
    def made(cls, layout: Layout) -> "_Memory | None":
        """None where the system has no such files, or no room for this one."""
        if not hasattr(os, "memfd_create"):
            return None
        descriptor = os.memfd_create("intellect-policy", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # All of it now: memory that is missing later ends the process, in the middle of a write.
            os.posix_fallocate(descriptor, 0, layout.size)
            memory = cls(descriptor, layout)
            seal_future_write = 0x10  # of linux/fcntl.h: the mapping that is there is written to, and nothing else
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seal_future_write | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            return memory
        except OSError:
            os.close(descriptor)
            return None

    @property
    def body(self) -> memoryview:
        return self._view[len(self.layout.header) :]

    def take(self, place: int, found: HashedTensor) -> None:
        """The hashes of a tensor's own pieces."""
        first = -(-self.layout.offsets[place] // self.layout.piece_size)
        self._pieces[first : first + len(found.pieces)] = found.pieces

    def hash_what_is_shared(self) -> None:
        """Pieces of several tensors, or of the header."""
        size = self.layout.piece_size
        for piece in self._shared:
            self._pieces[piece] = blake3(self._view[piece * size : (piece + 1) * size]).digest()

    @property
    def root(self) -> bytes:
        return describe_pieces(self.layout.size, self.layout.piece_size, self._pieces).root

    def close(self) -> None:
        """Its memory is free when its last reader is gone."""
        os.close(self._descriptor)
