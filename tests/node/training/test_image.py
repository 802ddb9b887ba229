"""The image that is written tensor by tensor is the canonical one, and nobody holds two tensors for it."""

import io
import weakref
from collections.abc import Callable, Iterator

import torch

from node.inference.torch_engine import bf16_bits
from node.training.image import stream_image
from node.training.learner import Learner
from protocol.blobs import describe
from protocol.policy import describe_tensors, encode_image


def test_a_streamed_image_has_the_bytes_and_digests_of_the_canonical_one(make_learner: Callable[..., Learner]) -> None:
    learner, file = make_learner(), io.BytesIO()
    bits = {name: bf16_bits(tensor) for name, tensor in learner.image().items()}
    canonical = encode_image(bits)
    found = stream_image(learner.shapes, learner.tensors(), file)
    assert file.getvalue() == canonical and found.size == len(canonical)
    assert found.digest == describe(canonical).root.hex() and found.tensors == describe_tensors(bits)
    assert stream_image(learner.shapes, learner.tensors()) == found, "hashed alone"


def test_each_tensor_is_let_go_before_the_next_is_gathered(make_learner: Callable[..., Learner]) -> None:
    learner = make_learner()
    last: list[weakref.ref[torch.Tensor]] = []

    def watched() -> Iterator[tuple[str, torch.Tensor]]:
        tensors = learner.tensors()
        while True:
            assert not last or last[-1]() is None
            try:
                name, tensor = next(tensors)
            except StopIteration:
                return
            last.append(weakref.ref(tensor))
            yield name, tensor
            del tensor

    stream_image(learner.shapes, watched())
    assert len(last) == len(learner.parameters)
