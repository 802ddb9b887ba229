import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from protocol.audit import RATE_ONE
from protocol.identity import NodeKey
from protocol.lots import (
    LotPledge,
    broken_promise,
    drawn_groups,
    pack_groups,
    secret_hash,
    unpack_groups,
    window_secret,
)

ME, YOU = NodeKey(b"\x01" * 32).address, NodeKey(b"\x02" * 32).address
SECRET = window_secret(b"\x07" * 32, 1, 5)
ROOT = blake3(b"file").digest()
PLEDGE = LotPledge(5, secret_hash(SECRET, ME, 1, 5), RATE_ONE // 4)


def checked(rate: int = RATE_ONE // 4, root: bytes = ROOT) -> bytes:
    return pack_groups(drawn_groups(SECRET, root, 64, rate), 64)


def test_a_lot_is_a_function_of_secret_and_file() -> None:
    assert drawn_groups(SECRET, ROOT, 64, 20_000) == drawn_groups(SECRET, ROOT, 64, 20_000)
    assert drawn_groups(SECRET, ROOT, 64, 20_000) != drawn_groups(SECRET, blake3(b"other").digest(), 64, 20_000)
    assert drawn_groups(SECRET, ROOT, 64, 20_000) != drawn_groups(window_secret(b"\x07" * 32, 1, 6), ROOT, 64, 20_000)


@given(st.binary(min_size=32, max_size=32), st.integers(0, RATE_ONE), st.integers(0, RATE_ONE))
def test_a_higher_rate_draws_a_superset(secret: bytes, one: int, other: int) -> None:
    low, high = sorted((one, other))
    assert set(drawn_groups(secret, ROOT, 40, low)) <= set(drawn_groups(secret, ROOT, 40, high))


def test_the_rate_is_the_share_that_is_drawn() -> None:
    drawn = sum(len(drawn_groups(SECRET, blake3(bytes([n])).digest(), 256, RATE_ONE // 10)) for n in range(200))
    assert drawn / (200 * 256) == pytest.approx(0.1, abs=0.01)
    assert drawn_groups(SECRET, ROOT, 16, RATE_ONE) == tuple(range(16))
    assert drawn_groups(SECRET, ROOT, 16, 0) == ()


@given(st.sets(st.integers(0, 99)), st.integers(100, 130))
def test_bitmaps_read_back(groups: set[int], count: int) -> None:
    assert unpack_groups(pack_groups(groups, count), count) == tuple(sorted(groups))


def test_bitmaps_in_another_form_are_refused() -> None:
    assert unpack_groups(b"\xff", 8) == tuple(range(8))
    assert unpack_groups(b"\xff", 7) is None
    assert unpack_groups(b"\xff\x00", 8) is None
    with pytest.raises(ValueError, match="group 8"):
        pack_groups([8], 8)


def test_a_kept_lot_is_proven_by_the_revealed_secret() -> None:
    assert broken_promise(PLEDGE, SECRET, ME, 1, ROOT, 64, checked(), RATE_ONE // 4) is None
    more = pack_groups(range(64), 64)
    assert broken_promise(PLEDGE, SECRET, ME, 1, ROOT, 64, more, RATE_ONE // 4) is None


@pytest.mark.parametrize(
    ("why", "secret", "author", "bitmap", "rate"),
    [
        ("not the pledged one", window_secret(b"\x08" * 32, 1, 5), ME, checked(), RATE_ONE // 4),
        ("not the pledged one", SECRET, YOU, checked(), RATE_ONE // 4),
        ("pledged were", SECRET, ME, checked(RATE_ONE // 8), RATE_ONE // 8),
        ("not recomputed", SECRET, ME, bytes(8), RATE_ONE // 4),
        ("not recomputed", SECRET, ME, checked(root=bytes(32)), RATE_ONE // 4),
        ("another length", SECRET, ME, bytes(7), RATE_ONE // 4),
    ],
)
def test_a_broken_promise_is_named(why: str, secret: bytes, author, bitmap: bytes, rate: int) -> None:
    seen = broken_promise(PLEDGE, secret, author, 1, ROOT, 64, bitmap, rate)
    assert seen is not None
    assert why in seen


def test_another_pool_or_window_has_another_hash() -> None:
    assert len({secret_hash(SECRET, ME, pool, window) for pool in (1, 2) for window in (5, 6)}) == 4
