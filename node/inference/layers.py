"""A policy's tensors as they are asked for: a base image's, or what patches make of them. Nothing is written, and no
more is in memory than is looked at.

A base and its patches are what a node keeps of a policy (node.weights): 0.1 % of changed weights lie in 87 % of an
image's pages, so patching one in place would write it anew.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from node.limits import cores
from node.state.files import mapped
from protocol import freshness
from protocol.delta import PatchError, patched, patched_part
from protocol.policy import MalformedPolicy, TensorInfo, decode_image, image_layout, raw, weights_root
from protocol.policy_patch import split_policy_patch
from protocol.stretches import HashedTensor, ImageHasher, TensorHasher

U16 = NDArray[np.uint16]
# Beyond that the disk or the memory bus is what is waited for.
MAX_THREADS = 8
# Below, starting threads takes longer than the work.
PARALLEL_BYTES = 32 * 1024**2
"""Images below this size are worked on by one thread."""
Item = TypeVar("Item")
Result = TypeVar("Result")


class PatchFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A patch on this disk. base_root, target_root: of the policies that it leads from and to."""

    path: str
    base_root: bytes
    target_root: bytes


class LayeredImage(Mapping[str, U16]):
    """bf16 bits by name. Raises OSError, MalformedPolicy or PatchError for files that cannot be one.

    digests: 32 bytes of each tensor in name order, with which every tensor is compared as it is put together; without
    them the caller compares.
    """

    def __init__(self, base: Path, patches: Sequence[PatchFile] = (), digests: bytes = b"") -> None:
        self.base, self.patches = base, tuple(patches)
        data = mapped(base)
        self._tensors = decode_image(data)
        self._names = list(self._tensors)
        self.forms = [(name, tuple(tensor.shape)) for name, tensor in self._tensors.items()]
        self.layout = image_layout(self.forms)
        self.digests = [digests[at : at + 32] for at in range(0, len(digests), 32)]
        if digests and len(digests) != 32 * len(self._names):
            raise MalformedPolicy("wrong base", "it has more or fewer tensors than the policy")
        infos = [TensorInfo(name, shape, b"") for name, shape in self.forms]
        self.layers = [
            split_policy_patch(mapped(Path(one.path)), one.base_root, one.target_root, infos) for one in self.patches
        ]
        self._body = data[8 + int.from_bytes(data[:8], "little") :]

    def __len__(self) -> int:
        return len(self._names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> U16:
        """A view of the base where nothing leads on from it. Raises MalformedPolicy, PatchError."""
        tensor = self._tensors[name]
        if not self.layers:
            return tensor
        out = np.empty(tensor.size, dtype=np.uint16)
        self.put_together(bisect_right(self._names, name) - 1, out)
        return out.reshape(tensor.shape)

    @property
    def roots(self) -> tuple[bytes, ...]:
        """Of the policies from the base to this one, where patches lead on from it."""
        return tuple(one.base_root for one in self.patches[:1]) + tuple(one.target_root for one in self.patches)

    @property
    def weights_root(self) -> bytes:
        """Of the tensors that the digests are of."""
        infos = (TensorInfo(*form, digest) for form, digest in zip(self.forms, self.digests, strict=True))
        return weights_root(tuple(infos))

    def root(self, stop: Callable[[], object] = lambda: None) -> bytes:
        """Of the blob that it is: every tensor is compared, and nothing kept. Raises PatchError, and what `stop`
        raises."""
        whole = ImageHasher(self.layout)
        for found in in_order(lambda at: self.put_together(at, None, stop), range(len(self)), self.layout.size):
            whole.add(found)
        return whole.blob().root

    def put_together(self, place: int, out: U16 | None, stop: Callable[[], object] = lambda: None) -> HashedTensor:
        """The tensor at a place, into uint16[n] where that is given, compared with its digest where there is one. stop:
        called now and then; what it raises ends the work. Raises PatchError."""
        hasher, at = TensorHasher(self.layout, place), 0
        for window in self.windows(place):
            stop()
            if out is not None:
                out[at : at + window.size] = window
            at += window.size
            hasher.update(raw(window))  # while it is in the processor's cache
        found = hasher.finish()
        if self.digests and found.digest != self.digests[place]:
            raise PatchError(f"{self._names[place][:80]} is not the tensor that was signed for")
        return found

    def windows(self, place: int) -> Iterator[U16]:
        """Of the tensor at a place; each is overwritten by the next. Raises PatchError."""
        before = self.layout.offsets[place] // 2
        return patched(self._tensors[self._names[place]], [layer[place] for layer in self.layers], before=before)

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the tensors, which follow each other without gaps. Raises PatchError."""
        if not self.layers:
            return bytes(self._body[offset : offset + length])
        header, parts, end = len(self.layout.header), list[bytes](), offset + length
        place = bisect_right(self.layout.offsets, header + offset) - 1
        while offset < end:
            start = self.layout.offsets[place] - header
            upto = min(end, start + self.layout.sizes[place])
            if upto > offset:
                first, last = (offset - start) // 2, -(-(upto - start) // 2)
                bits = patched_part(
                    self._tensors[self._names[place]], [layer[place] for layer in self.layers], first, last
                )
                skipped = offset - start - 2 * first
                parts.append(bytes(raw(bits))[skipped : skipped + upto - offset])
                offset = upto
            place += 1
        return b"".join(parts)

    def answer(self, key: bytes) -> str:
        """64 hex digits over the leaves that `key` chooses of the tensors' bytes (protocol.freshness)."""
        return freshness.answer(key, len(self._body), self.read)


def in_order(
    work: Callable[[Item], Result], items: Sequence[Item], size: int, workers: int | None = None
) -> Iterator[Result]:
    """The results of `work`, in the order of `items`: from several threads where `size` bytes are worth them, or from
    as many as `workers` says.

    A few results are ready ahead of the one that is taken, no more: they may be whole tensors.
    """
    if workers is None:
        workers = min(MAX_THREADS, cores(), len(items)) if size >= PARALLEL_BYTES else 1
    if workers < 2:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="weights") as pool:
        ahead: deque[Future[Result]] = deque()
        try:
            for item in items:
                ahead.append(pool.submit(work, item))
                # One more than there are threads, so that none waits for the one who takes the results.
                if len(ahead) > workers:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            # Whoever takes the results stopped early: what has not begun need not be done.
            for future in ahead:
                future.cancel()
