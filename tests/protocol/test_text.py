"""Token streams, and the rows that every peer learns from."""

from collections import Counter

import numpy as np
import pytest

from protocol.text import HEADER_BYTES, Cursor, StreamHeader, TextError, cursor_of, read_header, shuffled, tokens_of

HEADER = StreamHeader(2, 1, 258, 1000, b"t" * 32, b"s" * 32)


def stream(header: StreamHeader = HEADER) -> bytes:
    return header.encode() + (np.arange(header.tokens) % 258).astype("<u2").tobytes()


def cursor(rows: tuple[int, ...] = (40, 30), weights: tuple[int, ...] = (3, 1), replicas: int = 3) -> Cursor:
    return cursor_of(b"run", (weights, (0, 1)), rows, anneals_from=20, batch=4, replicas=replicas)


def test_a_stream_comes_back_with_its_header() -> None:
    header, tokens = tokens_of(stream())
    assert header == HEADER and len(HEADER.encode()) == HEADER_BYTES
    assert tokens.tolist() == [i % 258 for i in range(1000)]
    assert (header.rows(10), header.rows(999), header.rows(1000)) == (99, 1, 0)  # a row needs a target


@pytest.mark.parametrize(
    ("header", "size", "words"),
    [
        (HEADER._replace(width=3), None, "of 3 bytes"),
        (HEADER._replace(tokens=0), None, "0 tokens"),
        (HEADER._replace(tokens=1 << 41), None, "tokens of 2"),
        (HEADER, 2087, "not its size"),
        (HEADER._replace(end=258), None, "end token"),
        (HEADER._replace(vocabulary=70_000), None, "end token"),
    ],
)
def test_a_stream_that_is_not_what_it_says_is_refused(header: StreamHeader, size: int | None, words: str) -> None:
    with pytest.raises(TextError, match=words):
        read_header(header.encode(), size or HEADER_BYTES + header.tokens * header.width)


def test_a_file_that_is_no_stream_is_refused() -> None:
    for data in (b"", bytes(HEADER_BYTES), b"PK" + stream()[2:]):
        with pytest.raises(TextError):
            read_header(data, len(data))


def test_no_two_seats_and_no_two_steps_have_a_row_until_all_were_had() -> None:
    line = cursor(rows=(100,), weights=(1,))._replace(annealing=cursor().mix)
    had = [place for step in range(8) for replica_id in range(3) for place in line.places(replica_id, step)]
    assert len(had) == 96 and len(set(had)) == 96
    rest = [place for replica_id in range(3) for place in line.places(replica_id, 8)]
    assert len(set(had) | set(rest)) == 100  # a row comes again only when every row has come


def test_the_mix_is_exact_in_every_period_and_changes_where_annealing_begins() -> None:
    line = cursor()
    parts = [line.mix.place(i).part for i in range(400)]
    assert all(Counter(parts[at : at + 4]) == {0: 3, 1: 1} for at in range(0, 400, 4))
    assert len({tuple(parts[at : at + 4]) for at in range(0, 400, 4)}) == 4  # in an order of its own
    assert {place.part for place in line.places(0, 19)} == {0, 1}
    assert {place.part for step in range(20, 40) for place in line.places(1, step)} == {1}


def test_rows_follow_from_the_run_alone() -> None:
    assert cursor().places(2, 7) == cursor().places(2, 7)
    assert cursor().places(2, 7) == [(0, 15), (0, 32), (0, 39), (0, 12)]
    other = cursor_of(b"another", ((3, 1), (0, 1)), (40, 30), anneals_from=20, batch=4, replicas=3)
    assert other.places(2, 7) != cursor().places(2, 7)
    with pytest.raises(ValueError, match="replica 3"):
        cursor().places(3, 0)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 65, 1000])
def test_shuffling_is_a_permutation(count: int) -> None:
    assert sorted(shuffled(i, count, b"key") for i in range(count)) == list(range(count))
