"""Dishonest files: an honest submission, changed after it was made.

A *careful* cheat makes the envelopes and the freshness answer anew for what it changed; it holds the policy, after all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from node.inference.produce import produce
from node.inference.session import EngineSession
from node.inference.wire import Produce
from protocol import freshness
from protocol.checks import subject_of
from protocol.envelope import ENVELOPE_BYTES, seal
from protocol.identity import NodeKey
from protocol.rollout import RolloutBatch, SampleRow, decode, encode
from protocol.toploc import PRIME, proof_size

STRANGER = NodeKey(b"\x5a" * 32).address


@dataclass(frozen=True, slots=True)
class Scene:
    """What a cheat has before it when it changes a file. data: the honest file."""

    session: EngineSession
    order: Produce
    data: bytes

    @property
    def batch(self) -> RolloutBatch:
        return decode(self.data, self.session.run.rollout.samples_per_file)

    def made_for(self, **other: object) -> RolloutBatch:
        """An honest file for another slot: another node, index or policy."""
        path = Path(self.order.out_path).with_suffix(".other")
        order = msgspec.structs.replace(self.order, out_path=str(path), **other)
        produce(self.session.at(order), order)
        data = path.read_bytes()
        path.unlink()
        return decode(data, self.session.run.rollout.samples_per_file)


Tamper = Callable[[Scene], bytes]


def careful(scene: Scene, batch: RolloutBatch) -> bytes:
    """The file with fresh envelopes around the old proofs, and a fresh answer to the freshness challenge."""
    rules = scene.session.run.verification
    rows = tuple(
        msgspec.structs.replace(
            row,
            proofs=seal(row.proofs[ENVELOPE_BYTES:], subject_of(batch.header, row), rules.toploc_k, rules.toploc_batch),
        )
        for row in batch.rows
    )
    return with_freshness(scene, msgspec.structs.replace(batch, rows=rows))


def with_freshness(scene: Scene, batch: RolloutBatch) -> bytes:
    root, content = bytes.fromhex(batch.header.policy_root), freshness.content_digest(batch.rows)
    key = freshness.challenge(root, batch.header.node, batch.header.index, content)
    header = msgspec.structs.replace(batch.header, freshness=scene.session.answer(key))
    return encode(msgspec.structs.replace(batch, header=header))


def skipped_problems(scene: Scene) -> bytes:
    """Leaves the last group out."""
    batch = scene.batch
    last = batch.rows[-1].group
    return careful(scene, msgspec.structs.replace(batch, rows=tuple(row for row in batch.rows if row.group != last)))


def replayed_own(scene: Scene) -> bytes:
    """Submission index + 1's tokens under this index's name."""
    other = scene.made_for(index=scene.order.index + 1)
    return careful(scene, msgspec.structs.replace(other, header=scene.batch.header))


def copied(scene: Scene) -> bytes:
    """Another worker's tokens under this one's name."""
    other = scene.made_for(node=STRANGER)
    return careful(scene, msgspec.structs.replace(other, header=scene.batch.header))


def copied_as_it_is(scene: Scene) -> bytes:
    """Another worker's file, byte for byte."""
    return encode(scene.made_for(node=STRANGER))


def wrong_policy(scene: Scene) -> bytes:
    """A header that names another policy than the commitment."""
    header = msgspec.structs.replace(scene.batch.header, policy_root="77" * 32)
    return encode(msgspec.structs.replace(scene.batch, header=header))


def over_long(scene: Scene) -> bytes:
    """One output is longer than the run allows, its proofs repeated to fit."""
    limit, rules = scene.session.run.rollout.max_output_tokens, scene.session.run.verification
    first, *rest = scene.batch.rows
    output = [*first.output[:-1], *[first.output[0]] * (limit + 1)][: limit + 1]
    core = first.proofs[ENVELOPE_BYTES:][: proof_size(rules.toploc_k)]
    row = msgspec.structs.replace(first, output=output, finished=False)
    count = -(-limit // rules.toploc_batch)
    sealed = seal(core * count, subject_of(scene.batch.header, row), rules.toploc_k, rules.toploc_batch)
    row = msgspec.structs.replace(row, proofs=sealed)
    return with_freshness(scene, msgspec.structs.replace(scene.batch, rows=(row, *rest)))


def proofs_changed(change: Callable[[bytes, int], bytes]) -> Tamper:
    """change: (concatenated proofs of a sample, bytes of one proof) -> others; the envelope's head stays."""

    def tamper(scene: Scene) -> bytes:
        size = proof_size(scene.session.run.verification.toploc_k)

        def changed(row: SampleRow) -> SampleRow:
            head, core = row.proofs[:ENVELOPE_BYTES], row.proofs[ENVELOPE_BYTES:]
            return msgspec.structs.replace(row, proofs=head + change(core, size))

        return with_freshness(scene, msgspec.structs.replace(scene.batch, rows=tuple(map(changed, scene.batch.rows))))

    return tamper


def no_envelope(scene: Scene) -> bytes:
    rows = tuple(msgspec.structs.replace(row, proofs=row.proofs[ENVELOPE_BYTES:]) for row in scene.batch.rows)
    return with_freshness(scene, msgspec.structs.replace(scene.batch, rows=rows))


def moved_proofs(scene: Scene) -> bytes:
    """Each sample carries the proofs of the next one, envelopes made for where they stand."""
    rows = scene.batch.rows
    same = [i for i in range(len(rows) - 1) if len(rows[i].proofs) == len(rows[i + 1].proofs)]
    changed = list(rows)
    for i in same:
        changed[i] = msgspec.structs.replace(rows[i], proofs=rows[i + 1].proofs)
    return careful(scene, msgspec.structs.replace(scene.batch, rows=tuple(changed)))


def forged_column(name: str, kind: pa.DataType) -> Tamper:
    """A file that brings its own rewards or log-probabilities along."""

    def tamper(scene: Scene) -> bytes:
        table = _read(scene.data)
        column = pa.array(np.ones(table.num_rows)).cast(pa.float32())
        values = column if kind == pa.float32() else pa.array([[1.0]] * table.num_rows, kind)
        return _write(table.append_column(pa.field(name, kind, nullable=False), values))

    return tamper


def wrong_types(scene: Scene) -> bytes:
    """Tokens as 64-bit integers."""
    table = _read(scene.data)
    place = table.schema.get_field_index("output")
    tokens = pa.list_(pa.field("item", pa.int64(), nullable=False))
    field = pa.field("output", tokens, nullable=False)
    return _write(table.set_column(place, field, pa.array(table.column("output").to_pylist(), tokens)))


def zip_bomb(scene: Scene) -> bytes:
    """Compressed buffers that claim to unpack to gigabytes."""
    table = _read(scene.data)
    place = table.schema.get_field_index("proofs")
    bomb = pa.array([bytes(1 << 20)] * table.num_rows, pa.binary())
    return _write(table.set_column(place, pa.field("proofs", pa.binary(), nullable=False), bomb), "zstd")


def billion_rows(scene: Scene) -> bytes:
    """A record batch whose header says 10^9 rows, over the honest file's few bytes."""
    rows = scene.session.run.rollout.samples_per_file
    honest, claimed = rows.to_bytes(8, "little"), (10**9).to_bytes(8, "little")
    return scene.data.replace(honest, claimed)


def a_parquet_file(scene: Scene) -> bytes:
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(_read(scene.data), sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def cut_in_half(scene: Scene) -> bytes:
    return scene.data[: len(scene.data) // 2]


def _read(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


def _write(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        for batch in table.combine_chunks().to_batches():
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def repeated_root(core: bytes, size: int) -> bytes:
    """Non-canonical: the last coefficient is not reduced."""
    return core[:-2] + PRIME.to_bytes(2) if core else core
