"""A checkpoint that a stranger hands over: taken if it is the stated one, refused with a reason otherwise."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from node.training.state import MAX_HEADER, UnusableState, read_state
from protocol.manifest import (
    CheckpointCard,
    CheckpointFile,
    MalformedManifest,
    decode_card,
    encode_manifest,
    state_root,
)

SHAPES = {"a": (2, 3), "b": (4,)}
NAMES = [f"{part}/{name}" for name in SHAPES for part in ("weight", "exp_avg", "exp_avg_sq")]
CARD = CheckpointCard(5, 4, (("x:0", 3),), (CheckpointFile(bytes(32), 9),))


def numbers(nan: bool = False) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    found = {name: random.normal(size=SHAPES[name.partition("/")[2]]).astype(np.float32) for name in NAMES}
    if nan:
        found["exp_avg/b"][2] = np.nan
    return found


def packed(tensors: dict[str, np.ndarray], change: Callable[[dict[str, Any]], object] = lambda header: None) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = b""
    for name, values in tensors.items():
        span = [len(body), len(body) + values.nbytes]
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": span}
        body += values.tobytes()
    change(header)
    encoded = json.dumps(header).encode()
    return len(encoded).to_bytes(8, "little") + encoded + body


def root_of(tensors: dict[str, np.ndarray], step: int = 5) -> bytes:
    digests = ((name, blake3(tensors[name].tobytes()).digest()) for name in NAMES)
    return state_root(step, 4, {"x:0": 3}, digests)


def test_the_stated_state_is_read(tmp_path: Path) -> None:
    path, tensors = tmp_path / "state", numbers()
    path.write_bytes(packed(tensors))
    card = decode_card(encode_manifest(CARD))
    card.check(5)
    found = read_state(card, [path], SHAPES, root_of(tensors))
    assert (found.step, found.updates, found.consumed) == (5, 4, {"x:0": 3})
    for name, values in tensors.items():
        part, _, parameter = name.partition("/")
        assert np.array_equal(found.tensors[part][parameter], values)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "header"),
        (packed(numbers())[:-1], "do not fill"),
        (packed(numbers()) + b"\0", "do not fill"),
        ((1 << 62).to_bytes(8, "little") + bytes(100), "header of 4611686018427387904 bytes"),
        ((MAX_HEADER).to_bytes(8, "little") + bytes(100), "header"),
        (packed(numbers(), lambda h: h["weight/a"].update(shape=[3, 2])), "not F32"),
        (packed(numbers(), lambda h: h["weight/a"].update(shape=[1 << 40, 1 << 40])), "not F32"),
        (packed(numbers(), lambda h: h["weight/a"].update(dtype="F64")), "not F32"),
        (packed(numbers(), lambda h: h.pop("exp_avg/a")), "not those of the run's model"),
        (packed(numbers(), lambda h: h.update(more=h["weight/a"])), "not those of the run's model"),
        (packed(numbers(), lambda h: h["weight/a"].update(data_offsets=[24, 48])), "do not fill"),
        (packed(numbers(), lambda h: h["weight/a"].update(data_offsets=[0, 1 << 63])), "cannot be read|do not fill"),
        (packed(numbers(), lambda h: h["weight/a"].update(data_offsets=[-24, 0])), "do not fill"),
        (packed(numbers(), lambda h: h["weight/a"].update(code="os.system")), "cannot be read"),
        ((8).to_bytes(8, "little") + b"[[[[[[[[", "cannot be read"),
        (packed({name: values + 1 for name, values in numbers().items()}), "not the state that the trainer stated"),
    ],
    ids=lambda given: given[:40] if isinstance(given, str) else "",
)
def test_a_hostile_checkpoint_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "state"
    path.write_bytes(data)
    with pytest.raises(UnusableState, match=why):
        read_state(CARD, [path], SHAPES, root_of(numbers()))


def test_one_of_another_step_or_without_finite_numbers_is_refused_though_its_root_may_fit(tmp_path: Path) -> None:
    path, tensors = tmp_path / "state", numbers(nan=True)
    path.write_bytes(packed(tensors))
    with pytest.raises(UnusableState, match="not finite"):
        read_state(CARD, [path], SHAPES, root_of(tensors))
    with pytest.raises(UnusableState, match="not the state"):
        read_state(CARD, [path], SHAPES, root_of(tensors, step=6))
    with pytest.raises(UnusableState, match="2 ranks"):
        read_state(CARD, [path, path], SHAPES, root_of(tensors))


@pytest.mark.parametrize(
    "card",
    [
        CheckpointCard(6, 4, (), CARD.files),
        CheckpointCard(5, -1, (), CARD.files),
        CheckpointCard(5, 4, (("x", 5),), CARD.files),
        CheckpointCard(5, 4, (("x" * 301, 1),), CARD.files),
        CheckpointCard(5, 4, (), ()),
        CheckpointCard(5, 4, (), (CheckpointFile(b"", 1),)),
        CheckpointCard(5, 4, (), (CheckpointFile(bytes(32), 1 << 60),)),
    ],
    ids=["step", "updates", "future", "long", "empty", "root", "size"],
)
def test_a_card_that_cannot_be_is_refused(card: CheckpointCard) -> None:
    with pytest.raises(MalformedManifest):
        decode_card(encode_manifest(card)).check(5)
