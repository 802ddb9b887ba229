"""Files that are hashed as they are written, from several places at once."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.weights.pieces import PiecedFile
from protocol.blobs import DEFAULT_PIECE_SIZE, describe


@given(
    size=st.integers(1, 4 * DEFAULT_PIECE_SIZE + 3),
    cuts=st.lists(st.floats(0, 1), max_size=8),
    parts=st.integers(1, 5),
    order=st.randoms(use_true_random=False),
)
def test_whatever_the_stretches_the_blob_is_that_of_the_bytes(tmp_path_factory, size, cuts, parts, order) -> None:
    data = bytes(os.urandom(64) * (size // 64 + 1))[:size]
    ends = sorted({0, size, *(int(cut * size) for cut in cuts)})
    spans = list(zip(ends, ends[1:], strict=False))
    order.shuffle(spans)
    path: Path = tmp_path_factory.mktemp("pieces") / "file"
    with path.open("w+b") as opened:
        file = PiecedFile(opened.fileno(), size)
        for start, end in spans:
            step = max(1, (end - start) // parts)
            file.write(start, [data[at : min(at + step, end)] for at in range(start, end, step)])
        assert file.describe() == describe(data)
    assert path.read_bytes() == data


def test_pieces_are_hashed_as_they_pass_and_only_shared_ones_are_read_again(tmp_path, monkeypatch) -> None:
    size = 3 * DEFAULT_PIECE_SIZE
    data = os.urandom(size)
    read: list[int] = []
    honest = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, n, at: read.append(at) or honest(fd, n, at))
    with (tmp_path / "file").open("w+b") as opened:
        file = PiecedFile(opened.fileno(), size)
        file.write(0, [data[:1000]])
        file.write(1000, [data[1000:]])
        assert file.describe() == describe(data)
    assert read == [0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's full device")
def test_a_full_disk_is_told() -> None:
    with open("/dev/full", "r+b", buffering=0) as full, pytest.raises(OSError, match="No space"):
        PiecedFile(full.fileno(), 10).write(0, [b"1234567890"])
