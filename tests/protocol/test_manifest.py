"""Manifests of strangers: bounds, order, what stands twice; and roots that change with everything they name."""

from typing import Any

import msgspec
import pytest

from protocol.identity import address_from_bytes
from protocol.manifest import (
    MAX_MANIFEST_BYTES,
    Arithmetic,
    BatchManifest,
    ComposedBatch,
    MalformedManifest,
    PolicyStatement,
    UsedReport,
    UsedWork,
    decode_manifest,
    encode_manifest,
    lot_of,
    state_root,
    work_order,
)
from protocol.statements import work_id

RUN, POOL, STEP = b"\1" * 32, 4, 7
NODES = address_from_bytes(b"\5" * 20), address_from_bytes(b"\6" * 20)
CLASS = Arithmetic("x86_64-AVX2", "float32", 1, False, 1 << 14, True, 1 << 26, True, False, "fused", "torch 2", "")


def work(index: int = 0, **changes: Any) -> UsedWork:
    report = UsedReport(b"\6" * 20, b"\7" * 32, 900, b"\x0b")
    fields = {"epoch": 1, "size": 5000, "reports": (report,), "used": b"\x03", "flat": b"\x08"} | changes
    return UsedWork(b"\5" * 20, b"\3" * 32, fields.pop("policy_step", 6), index, b"\2" * 32, 40, **fields)


def in_order(*works: UsedWork) -> tuple[UsedWork, ...]:
    return tuple(sorted(works, key=lambda one: work_order(POOL, one)))


def manifest(works: tuple[UsedWork, ...] = in_order(work(), work(1)), **changes: Any) -> BatchManifest:
    fields = {"term": 0, "parent": b"\x08" * 32, "state": b"\x09" * 32, "arithmetic": CLASS} | changes
    batch = ComposedBatch(fields.pop("run_root", RUN), fields.pop("pool", POOL), fields.pop("step", STEP), works)
    return BatchManifest(batch, **fields)


def test_a_manifest_is_small_and_comes_back_as_it_was() -> None:
    data = encode_manifest(manifest(in_order(*(work(index) for index in range(32)))))
    decode_manifest(data).check(RUN, POOL, STEP, 2)
    assert len(data) < 300 + 32 * 200
    assert encode_manifest(decode_manifest(data)) == data


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (manifest(run_root=b"\0" * 32), "another run"),
        (manifest(pool=5), "another run"),
        (manifest(step=8), "for step 8"),
        (manifest(()), "names no work"),
        (manifest((work(), work())), "stands twice"),
        (manifest(in_order(work(), work(1))[::-1]), "not in order"),
        (manifest((work(policy_step=4),)), "more than 2 steps old"),
        (manifest((work(policy_step=8),)), "later policy"),
        (manifest((work(used=b"\x03", flat=b"\x01"),)), "used twice"),
        (manifest((work(used=b"\x07"),)), "without a report"),
        (manifest((work(used=b"\x03\x00"),)), "several files"),
        (manifest((work(reports=()),)), "no report"),
        (manifest((work(reports=2 * work().reports),)), "two reports"),
        (manifest((work(size=2**40),)), "its size"),
        (manifest(parent=b""), "root"),
        (manifest(ended_by="x" * 301), "too long"),
        (manifest(arithmetic=msgspec.structs.replace(CLASS, processor="x" * 301)), "arithmetic"),
    ],
)
def test_what_breaks_a_bound_or_a_rule_is_refused_with_its_reason(bad: BatchManifest, why: str) -> None:
    with pytest.raises(MalformedManifest, match="bad batch manifest") as caught:
        decode_manifest(encode_manifest(bad)).check(RUN, POOL, STEP, 2)
    assert why in caught.value.why


def test_a_works_lot_is_of_its_policy_its_node_and_its_index_and_of_nothing_that_a_worker_could_try() -> None:
    one = work()
    assert work_order(POOL, one)[:2] == (-6, lot_of(POOL, one.policy_root, one.author, 0))
    other = work(size=1, reports=(UsedReport(b"\1" * 20, RUN, 9, b"\x0b"),))
    changed = msgspec.structs.replace(other, file_root=RUN, units=41, epoch=2)
    assert work_order(POOL, changed)[:2] == work_order(POOL, one)[:2]
    places = {lot_of(POOL, root, node, index) for root in (RUN, bytes(32)) for node in NODES for index in range(50)}
    assert len(places) == 200 and max(places) < 2**48
    assert lot_of(POOL, RUN, NODES[0], 0) == 0x9B5C7C8B539E, "others compute the same"
    assert lot_of(0, RUN, NODES[0], 7) == 7, "at a desk"


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x91" * 5000, bytes(MAX_MANIFEST_BYTES + 1)])
def test_bytes_that_are_none_are_refused_before_anything_is_made_of_them(data: bytes) -> None:
    with pytest.raises(MalformedManifest):
        decode_manifest(data)


def test_the_slot_of_a_statement_is_its_term_and_step_and_its_hash_is_all_of_it() -> None:
    trainer = address_from_bytes(b"\5" * 20)
    fields: dict[str, Any] = {
        "pool": POOL,
        "term": 1,
        "step": STEP,
        "epoch": 2,
        "parent": b"\1" * 32,
        "policy_root": b"\2" * 32,
    }
    one = PolicyStatement(**fields, batch_root=b"\3" * 32, state_root=b"\4" * 32)
    for name, other in (
        ("epoch", 3),
        ("parent", b"\6" * 32),
        ("policy_root", b"\6" * 32),
        ("batch_root", RUN),
        ("state_root", RUN),
    ):
        changed = msgspec.structs.replace(one, **{name: other}).commitment(trainer)
        mine = one.commitment(trainer)
        assert (mine.policy_root, mine.index) == (changed.policy_root, changed.index) and work_id(mine) != work_id(
            changed
        )
    assert msgspec.structs.replace(one, term=2).commitment(trainer).policy_root != one.commitment(trainer).policy_root


def test_a_state_root_changes_with_everything_but_the_order_of_what_was_learnt_from() -> None:
    digests = [("weight/a", b"\1" * 32), ("weight/b", b"\2" * 32)]
    root = state_root(3, 3, {"x": 1, "y": 2}, digests)
    assert root == state_root(3, 3, {"y": 2, "x": 1}, digests)
    others = [
        state_root(4, 3, {"x": 1, "y": 2}, digests),
        state_root(3, 2, {"x": 1, "y": 2}, digests),
        state_root(3, 3, {"x": 1}, digests),
        state_root(3, 3, {"x": 1, "y": 2}, digests[::-1]),
        state_root(3, 3, {"x": 1, "y": 2}, digests[:1]),
    ]
    assert root not in others and len(set(others)) == 5
