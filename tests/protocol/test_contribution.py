"""A contribution's file: one length, one run, one round; and nothing of it is believed."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.contribution import (
    Contribution,
    ContributionHeader,
    Expected,
    decode_contribution,
    encode_contribution,
    encode_header,
    most_bytes,
)
from protocol.exchange import ContributionError, form_of
from protocol.pretraining import Diloco

SHAPES = {"b": (3, 100), "a": (17,), "c.weight": (64, 65)}
HEADER = ContributionHeader(
    b"r" * 32, 7, b"o" * 32, 2, 1000, 3.5, 3.0, (b"i" * 32, b"j" * 32), (b"s" * 32,), "cpu float32 x1"
)
EXPECTED = Expected(b"r" * 32, {6: b"p" * 32, 7: b"o" * 32}, 4, 5000, 3)
EXCHANGES = ("float32", "int8", "int4", "sparse")


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    source = np.random.default_rng(seed)
    return {name: source.normal(0, 1e-3, shape).astype(np.float32).reshape(-1) for name, shape in SHAPES.items()}


def written(exchange: str, header: ContributionHeader = HEADER) -> bytes:
    return b"".join(encode_contribution(header, tensors(), form_of(Diloco(exchange=exchange))))  # type: ignore[arg-type]


def read(data: bytes, exchange: str, shapes: dict[str, tuple[int, ...]] = SHAPES) -> Contribution:
    return decode_contribution(data, shapes, form_of(Diloco(exchange=exchange)), EXPECTED)  # type: ignore[arg-type]


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_contribution_comes_back_as_it_was_written(exchange: str) -> None:
    data, form = written(exchange), form_of(Diloco(exchange=exchange))  # type: ignore[arg-type]
    found = read(data, exchange)
    assert found.header == HEADER and list(found.parts) == sorted(SHAPES)
    assert len(data) <= most_bytes(SHAPES, form)
    for name, values in tensors().items():
        assert (found.tensor(name) == form.decode(form.encode(values), values.size)).all()
    whole = np.concatenate([found.tensor(name) for name in SHAPES]).astype(np.float64)
    assert found.check() == pytest.approx(np.linalg.norm(whole), rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run_root": bytes(32)}, "another run"),
        ({"round": 8}, "of round 8"),
        ({"round": 5, "outer": b"p" * 32}, "of round 5"),
        ({"round": 6}, "another outer state"),
        ({"outer": bytes(32)}, "another outer state"),
        ({"outer": bytes(31)}, "not 32 bytes"),
        ({"replica_id": 4}, "replica is 4"),
        ({"replica_id": -1}, "replica is -1"),
        ({"tokens": 0}, "learnt from 0"),
        ({"tokens": 5001}, "5001 tokens"),
        ({"loss_last": float("nan")}, "not finite"),
        ({"stretches": (b"s" * 32,) * 4}, "4 digests"),
        ({"arithmetic": "x" * 401}, "too long"),
        ({"batches": (b"b" * 32,)}, "names 1 batches"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ContributionError, match=words):
        read(written("int8", msgspec.structs.replace(HEADER, **changes)), "int8")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokens": 64}, ""),
        ({"tokens": 96}, "names 2 batches"),
        ({"tokens": 64, "batches": ()}, "names 0 batches"),
        ({"tokens": 64, "batches": (b"b" * 32, b"c" * 31)}, "not 32 bytes"),
        ({"tokens": 5024, "batches": (b"b" * 32,) * 157}, "5024 tokens of 5000"),
    ],
)
def test_what_was_learnt_from_rollouts_names_the_batch_of_every_step(changes: dict[str, object], words: str) -> None:
    said = msgspec.structs.replace(HEADER, batches=(b"b" * 32, b"c" * 32))
    why = EXPECTED._replace(batch=32).objection(msgspec.structs.replace(said, **changes))
    assert words in why and bool(why) == bool(words)


def test_a_late_contribution_of_the_round_before_is_taken() -> None:
    late = msgspec.structs.replace(HEADER, round=6, outer=b"p" * 32)
    assert read(written("int4", late), "int4").header.round == 6


def test_a_model_of_another_shape_is_refused_before_anything_is_decoded() -> None:
    for shapes in ({**SHAPES, "a": (18,)}, {"a": (17,)}, {**SHAPES, "d": (1,)}):
        with pytest.raises(ContributionError, match="the run's model"):
            read(written("int8"), "int8", shapes)
    with pytest.raises(ContributionError, match="the run's model"):
        read(written("int8"), "int4")


def test_a_number_that_is_none_is_found_by_the_check() -> None:
    data = bytearray(written("float32"))
    data[-4:] = b"\0\0\xc0\x7f"
    with pytest.raises(ContributionError, match="not finite"):
        read(bytes(data), "float32").check()


def test_a_header_cannot_promise_more_than_is_there() -> None:
    honest = written("int8")
    for data in (b"", honest[:7], honest[:4] + b"\xff\xff\xff\x7f" + honest[8:], b"IND\x02" + honest[4:]):
        with pytest.raises(ContributionError):
            read(data, "int8")


@settings(max_examples=150)
@given(st.sampled_from(EXCHANGES), st.lists(st.tuples(st.integers(0, 20_000), st.integers(0, 255)), max_size=6))
def test_a_damaged_file_is_another_contribution_or_the_one_error(exchange: str, changes: list[tuple[int, int]]) -> None:
    data = bytearray(written(exchange))
    for at, value in changes:
        data[at % len(data)] = value
    try:
        found = read(bytes(data), exchange)
        assert np.isfinite(found.check())
    except ContributionError as error:
        assert error.why
    else:
        assert encode_header(found.header) + b"".join(found.parts.values()) == bytes(data) or changes
