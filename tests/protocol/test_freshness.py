import msgspec
import numpy as np
import pytest
from blake3 import blake3

from protocol.freshness import LEAF_BYTES, answer, challenge, content_digest, leaf_numbers
from protocol.identity import NodeKey
from protocol.rollout import SampleRow

LEAVES = 32

NODE, OTHER = NodeKey(b"\x05" * 32).address, NodeKey(b"\x06" * 32).address
ROOT = b"\x11" * 32
BODY = np.random.default_rng(0).bytes(300 * LEAF_BYTES + 17)
ROWS = [SampleRow(0, 0, "p", [1, 2], [3, 4], True, b"proof"), SampleRow(0, 1, "p", [1, 2], [5], True, b"")]


def read(offset: int, length: int) -> bytes:
    return BODY[offset : offset + length]


def respond(body: bytes = BODY, **place) -> str:
    key = challenge(
        place.get("root", ROOT), place.get("node", NODE), place.get("index", 0), content_digest(place.get("rows", ROWS))
    )
    return answer(key, len(body), lambda offset, length: body[offset : offset + length])


def test_who_said_what_is_part_of_the_content() -> None:
    cuts = ([], [1, 1, 2], [2, 1, 1])
    turns = [msgspec.structs.replace(ROWS[0], output=[3, 4, 5, 6], segments=segments) for segments in cuts]
    assert len({content_digest([row]) for row in turns}) == 3


def test_the_same_policy_gives_the_same_answer() -> None:
    assert respond() == respond()
    assert len(respond()) == 64


@pytest.mark.parametrize(
    "change",
    [
        {"root": b"\x12" * 32},
        {"node": OTHER},
        {"index": 1},
        {"rows": ROWS[:1]},
        {"rows": [ROWS[0], msgspec.structs.replace(ROWS[1], output=[6])]},
    ],
)
def test_an_answer_serves_no_other_place_or_content(change) -> None:
    assert respond(**change) != respond()


def test_a_policy_of_which_one_percent_changed_gives_another_answer() -> None:
    """A step changes about 1 % of the weights, all over the place: every leaf."""
    body = bytearray(BODY)
    body[::200] = bytes((byte + 1) % 256 for byte in body[::200])
    assert respond(bytes(body)) != respond()


def test_a_tenth_of_the_leaves_missing_is_seen_nearly_always() -> None:
    size, trials, caught = 300 * LEAF_BYTES, 200, 0
    for trial in range(trials):
        key = challenge(ROOT, NODE, trial, bytes(32))
        caught += any(number < 30 for number in leaf_numbers(key, size))
    assert caught / trials > 0.9  # 1 - 0.9^32 = 0.966


def test_the_last_leaf_may_be_short_and_every_leaf_can_be_drawn() -> None:
    assert len(leaf_numbers(bytes(32), len(BODY))) == LEAVES
    drawn = {n for i in range(200) for n in leaf_numbers(challenge(ROOT, NODE, i, bytes(32)), len(BODY))}
    assert max(drawn) == 300
    assert leaf_numbers(bytes(32), 5) == (0,) * LEAVES


def test_content_is_hashed_in_the_form_that_is_on_record() -> None:
    """Places in 4 bytes, the flag in one, every field behind its length in 8; tokens are signed."""
    rows = [ROWS[0], SampleRow(7, 300, "é", [0, 2**31 - 1], [-1], False, bytes(3))]
    plain = b"".join(
        row.group.to_bytes(4, "little") + row.sample.to_bytes(4, "little") + bytes([row.finished])
        + b"".join(len(part).to_bytes(8, "little") + part for part in fields)
        for row in rows
        for fields in [
            [
                row.problem_id.encode(),
                *(b"".join(t.to_bytes(4, "little", signed=True) for t in ids) for ids in (row.prompt, row.output)),
                row.proofs,
            ]
        ]
    )  # fmt: skip
    assert content_digest(rows) == blake3(plain, derive_key_context="intellect-node rollout content v1").digest()


def test_content_covers_every_field() -> None:
    base = content_digest(ROWS)
    for change in (
        {"finished": False},
        {"problem_id": "q"},
        {"prompt": [1]},
        {"proofs": b"x"},
        {"sample": 3},
        {"experts": b"1"},
    ):
        assert content_digest([msgspec.structs.replace(ROWS[0], **change), ROWS[1]]) != base
