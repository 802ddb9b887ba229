"""What this node wrote and cannot read again is its own disk's activity: caches are made anew, all else is named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog.testing

from node.errors import StateError
from node.state.kept import cached, kept
from node.tasks.records import ShardRecord, TaskFolder
from node.training.spool import Spool
from node.weights.records import PolicyRecords
from protocol.blobs import describe
from protocol.errors import ProtocolError


def no_utf_8() -> Any:
    return msgspec.msgpack.decode(b"\x81\xa1\xff\xc0", type=dict[str, Any])


def strangers() -> Any:
    raise ProtocolError("bad bytes", "they are short")


@pytest.mark.parametrize("decode", [no_utf_8, strangers, lambda: int(b"1x"), lambda: msgspec.json.decode(b"[" * 2000)])
def test_nobody_else_is_told_to_mend_what_this_disk_has_changed(decode: Callable[[], Any], tmp_path: Path) -> None:
    with pytest.raises(StateError) as caught:
        kept(tmp_path / "spool.json", decode)
    assert "this disk" in caught.value.why and "spool.json" in caught.value.what
    assert "sender" not in caught.value.remedy and "disk" in caught.value.remedy


def test_a_cache_is_put_aside_and_told_of_once(tmp_path: Path) -> None:
    path = tmp_path / "published.json"
    path.write_bytes(b"\xff")
    with structlog.testing.capture_logs() as logs:
        assert cached(path, no_utf_8) is None
    assert [(entry["event"], entry["file"]) for entry in logs] == [("state.set_aside", str(path))]
    assert not path.exists() and (tmp_path / "published.json.damaged").read_bytes() == b"\xff"
    assert cached("the journal's forks", lambda: 7) == 7, "the control"


def test_a_file_that_cannot_be_opened_is_no_damage(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        cached(tmp_path / "none", (tmp_path / "none").read_bytes)


def test_a_step_on_record_that_the_disk_has_changed_is_named(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.metrics_path(3).parent.mkdir(parents=True)
    spool.metrics_path(3).write_bytes(b'{"loss": 1.0')
    with pytest.raises(StateError, match="step-000003.json is damaged"):
        spool.record(3)


def test_a_damaged_record_of_a_policy_is_told_and_asked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "000000001-ab.policy"
    path.write_bytes(b"half a rec")
    with structlog.testing.capture_logs() as logs:
        assert PolicyRecords(tmp_path).read() == []
    assert [entry["event"] for entry in logs] == ["state.set_aside"] and not path.exists()


def test_a_bought_result_in_which_a_bit_has_flipped_is_no_result(tmp_path: Path) -> None:
    folder, data = TaskFolder(tmp_path), b"answers" * 100
    (tmp_path / "shards").mkdir()
    (tmp_path / "file").write_bytes(data)
    record = ShardRecord(0, "0x1", "aa", describe(data).root.hex(), 5, "", (), 0.0)
    assert folder.add(record, tmp_path / "file", b"report")
    assert folder.result(0)[1] == data, "the control"
    place = tmp_path / "shards" / "00000.arrow"
    place.write_bytes(data[:-1] + b"S")
    with pytest.raises(StateError, match=r"00000.arrow is damaged"):
        folder.result(0)
