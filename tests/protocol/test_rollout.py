import random

import msgspec
import pyarrow as pa
import pytest

from protocol import rollout
from protocol.arrow_writer import schema_of
from protocol.identity import NodeKey
from protocol.rollout import (
    MalformedRollout,
    ReportHeader,
    ReportRow,
    RolloutBatch,
    RolloutHeader,
    SampleRow,
    ValidatorReport,
    decode,
    decode_report,
    encode,
    encode_report,
)

NODE = NodeKey(b"\x05" * 32).address
SCHEMA = schema_of(rollout._ROLLOUT)


def batch() -> RolloutBatch:
    rows = tuple(
        SampleRow(group, sample, f"p{group}", [1, 2, 3], [4, 5], True, b"proof" * 10)
        for group in range(2)
        for sample in range(3)
    )
    return RolloutBatch(RolloutHeader(1, NODE, "00" * 32, 0), rows)


def test_a_file_says_what_was_put_in() -> None:
    assert decode(encode(batch()), 6) == batch()
    assert batch().units == 12


def in_turns() -> RolloutBatch:
    first, *others = batch().rows
    row = msgspec.structs.replace(first, output=[4, 5, 6, 7, 8], segments=[2, 1, 2])
    return msgspec.structs.replace(batch(), rows=(row, *others))


def test_segments_are_a_column_of_files_that_have_some() -> None:
    """Files of single answers stay what they were, byte for byte: nodes of before refuse any other."""
    assert decode(encode(in_turns()), 6) == in_turns()
    assert in_turns().units == 12 + 2 and list(in_turns().rows[0].sampled) == [4, 5, 7, 8]
    assert b"segments" in encode(in_turns()) and b"segments" not in encode(batch())
    plain = {name: value for name, value in msgspec.to_builtins(batch().header).items() if name != "heard"}
    assert encode(batch()) == stream(SCHEMA, columns(), header=msgspec.json.encode(plain))
    heard = msgspec.structs.replace(batch(), header=msgspec.structs.replace(batch().header, heard="11" * 16))
    assert decode(encode(heard), 6) == heard


def test_a_column_of_segments_that_says_nothing_is_refused() -> None:
    schema = schema_of([*rollout._ROLLOUT, rollout.SEGMENTS])
    with pytest.raises(MalformedRollout, match="segments"):
        decode(stream(schema, [*columns(), [[]] * 6], header=msgspec.json.encode(batch().header)), 6)


def with_experts(batch: RolloutBatch) -> RolloutBatch:
    rows = tuple(msgspec.structs.replace(row, experts=b"\0\1" * row.fed) for row in batch.rows)
    return RolloutBatch(msgspec.structs.replace(batch.header, version=2), rows)


def test_experts_are_a_column_of_files_of_version_two() -> None:
    """All other files stay what they were, byte for byte: see above."""
    for plain in (batch(), in_turns()):
        told = with_experts(plain)
        assert decode(encode(told), 6) == told and decode(encode(plain), 6).header.version == 1
        assert encode(msgspec.structs.replace(told, header=plain.header)) == encode(told), "whoever writes says which"
        assert b"experts" in encode(told) and b"experts" not in encode(plain)
    data = encode(with_experts(batch()))
    with pytest.raises(MalformedRollout, match="version 1 in a file of the form of 2"):
        decode(data.replace(b'"version":2', b'"version":1'), 6)
    with pytest.raises(MalformedRollout, match="version 2 in a file of the form of 1"):
        decode(encode(batch()).replace(b'"version":1', b'"version":2'), 6)


def test_a_column_of_experts_that_says_nothing_or_stands_elsewhere_is_refused() -> None:
    segments, experts = rollout.SEGMENTS, rollout.EXPERTS
    header = msgspec.json.encode(with_experts(batch()).header)
    for added, values, why in (
        ([experts], [[b""] * 6], "a column of experts"),
        ([experts, segments], [[b"\0"] * 6, [[1, 1, 1]] * 6], "columns"),
        ([experts, experts], [[b"\0"] * 6] * 2, "columns"),
    ):
        with pytest.raises(MalformedRollout, match=why):
            decode(stream(schema_of([*rollout._ROLLOUT, *added]), [*columns(), *values], header=header), 6)


def test_a_report_says_what_was_put_in() -> None:
    report = ValidatorReport(ReportHeader("aa" * 32, "bb" * 32), (ReportRow(0, 0, 1.0, [-0.5, -0.25]),))
    assert decode_report(encode_report(report), 1) == report


def test_there_is_no_place_for_a_workers_own_reward() -> None:
    assert not {"reward", "rewards", "advantage", "logprobs"} & set(SampleRow.__struct_fields__)


def test_more_rows_than_the_run_allows_are_refused() -> None:
    with pytest.raises(MalformedRollout):
        decode(encode(batch()), 5)


def test_more_tokens_than_the_run_allows_are_refused_before_they_are_numbers() -> None:
    assert decode(encode(batch()), 6, 18) == batch()  # prompts of three tokens, six of them
    with pytest.raises(MalformedRollout, match="lists of 18 values"):
        decode(encode(batch()), 6, 17)


def stream(
    schema: pa.Schema, columns: list, options: pa.ipc.IpcWriteOptions | None = None, header: bytes = b"{}"
) -> bytes:
    stamped = schema.with_metadata({b"intellect-node": header})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, stamped, options=options) as writer:
        writer.write_batch(
            pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, stamped, strict=True)], schema=stamped)
        )
    return sink.getvalue().to_pybytes()


def columns() -> list[list]:
    return [[getattr(row, f.name) for row in batch().rows] for f in SCHEMA]


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_compressed_file_is_refused_before_it_is_unpacked(codec: str) -> None:
    with pytest.raises(MalformedRollout, match="plain record batch"):
        decode(stream(SCHEMA, columns(), pa.ipc.IpcWriteOptions(compression=codec)), 6)


def test_other_columns_are_refused() -> None:
    schema = SCHEMA.append(pa.field("reward", pa.float32()))
    with pytest.raises(MalformedRollout, match="columns"):
        decode(stream(schema, [*columns(), [1.0] * 6]), 6)


def test_an_unknown_header_field_is_refused() -> None:
    header = msgspec.json.encode({**msgspec.to_builtins(batch().header), "reward": 1})
    with pytest.raises(MalformedRollout):
        decode(stream(SCHEMA, columns(), header=header), 6)


def test_damage_anywhere_gives_a_clear_error_or_other_tokens_but_never_a_crash() -> None:
    good, dice = encode(batch()), random.Random(7)
    refused = 0
    for _ in range(1500):
        bad = bytearray(good)
        for _ in range(dice.randint(1, 4)):
            bad[dice.randrange(len(bad))] = dice.randrange(256)
        if dice.random() < 0.3:
            bad = bad[: dice.randrange(len(bad))]
        try:
            assert len(decode(bytes(bad), 6).rows) <= 6
        except MalformedRollout:
            refused += 1
    assert refused > 1000
