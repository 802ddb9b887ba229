"""A node in one file: whole and verified, or not at all; and what a file of a stranger's may not do."""

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from node.errors import KeyError_, StateError
from node.state import bundle
from node.state.bundle import (
    MAGIC,
    BundleHead,
    BundlePart,
    check_bundle,
    check_moved,
    read_bundle,
    read_head,
    write_bundle,
)
from node.state.journal import Journal
from node.state.keystore import load_key
from node.state.pen import Pen, mark_place
from protocol.identity import NodeKey

KEY = NodeKey(b"\x05" * 32)
PASSWORD = "random-" + "x" * 32
"""Light to open, as the node's own."""


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))


@pytest.fixture
def lived(tmp_path: Path) -> Path:
    place = tmp_path / "node"
    (place / "spool" / "metrics").mkdir(parents=True)
    (place / "spool" / "run.bin").write_bytes(b"run")
    (place / "spool" / "metrics" / "1.json").write_bytes(b"{}")
    (place / "spool" / "assets").symlink_to(tmp_path)
    (place / "blobs").mkdir()
    (place / "blobs" / "much").write_bytes(b"x" * 1000)
    journal = Journal(place / "journal.sqlite", Pen(shut=True))
    journal.examine(mark_place(place, "p"), first=True)
    journal.take_pen(journal.booted(1))
    journal.say("commitment", b"slot", b"word")
    journal.close()
    return place


@pytest.fixture
def exported(lived: Path, tmp_path: Path) -> Path:
    write_bundle(lived, tmp_path / "a.state", KEY, PASSWORD, 7, "1.0")
    return tmp_path / "a.state"


def test_what_is_exported_comes_back_and_is_in_doubt_until_its_pen_was_open(exported: Path, tmp_path: Path) -> None:
    assert exported.stat().st_mode & 0o777 == 0o600
    assert KEY.secret not in exported.read_bytes() and check_bundle(exported).address == KEY.address
    there = tmp_path / "there" / "node"
    head = read_bundle(exported, there, PASSWORD)
    assert {part.name for part in head.parts} == {
        "node-key.json",
        "journal.sqlite",
        "spool/run.bin",
        "spool/metrics/1.json",
    }
    assert load_key(there / "node-key.json", PASSWORD).address == KEY.address
    assert (there / "node-key.json").stat().st_mode & 0o777 == 0o600 and not (there / "blobs").exists()
    journal = Journal(there / "journal.sqlite", Pen(shut=True))
    assert journal.said("commitment", b"slot") == b"word"
    assert journal.examine(mark_place(there, "p"), first=True)  # whatever the chain and this machine's memory say
    journal.take_pen(journal.booted(2))
    assert not journal.examine(mark_place(there, "p"), first=False)
    journal.close()
    assert sorted(path.name for path in there.parent.iterdir()) == ["node"]


def test_nothing_is_overwritten(exported: Path, lived: Path, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="overwrite"):
        write_bundle(lived, exported, KEY, PASSWORD, 7, "1.0")
    with pytest.raises(StateError, match="files in it"):
        read_bundle(exported, lived, PASSWORD)


def test_another_password_opens_nothing_and_leaves_nothing(exported: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyError_, match="password is wrong"):
        read_bundle(exported, tmp_path / "there", "random-" + "y" * 32)
    assert not (tmp_path / "there").exists() and not list(tmp_path.glob(".there*"))


def _flip(raw: bytes) -> bytes:
    return raw[:-3] + bytes([raw[-3] ^ 1]) + raw[-2:]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw[:-1],
        lambda raw: raw[: len(raw) // 2],
        lambda raw: raw + b"x",
        _flip,
        lambda raw: b"",
        lambda raw: raw[1:],
    ],
    ids=["cut", "half", "more", "flip", "empty", "shifted"],
)
def test_a_file_that_was_copied_in_part_or_flipped_is_refused_whole(
    exported: Path, tmp_path: Path, spoil: Callable[[bytes], bytes]
) -> None:
    exported.write_bytes(spoil(exported.read_bytes()))
    with pytest.raises(StateError, match="state file"):
        read_bundle(exported, tmp_path / "there", PASSWORD)
    assert not (tmp_path / "there").exists() and not list(tmp_path.glob(".there*"))


GOOD = [BundlePart("node-key.json", 1, "0" * 64), BundlePart("journal.sqlite", 1, "0" * 64)]


@pytest.mark.parametrize(
    "parts",
    [
        [],
        GOOD[:1],
        [*GOOD, BundlePart("../evil", 1, "0" * 64)],
        [*GOOD, BundlePart("spool/../../evil", 1, "0" * 64)],
        [*GOOD, BundlePart("/etc/passwd", 1, "0" * 64)],
        [*GOOD, BundlePart("spool/.hidden", 1, "0" * 64)],
        [*GOOD, BundlePart("password", 1, "0" * 64)],
        [*GOOD, BundlePart("spool/a\nb", 1, "0" * 64)],
        [*GOOD, BundlePart("spool/" + "a/" * 9 + "a", 1, "0" * 64)],
        [*GOOD, GOOD[0]],
        [*GOOD, BundlePart("spool/a", -1, "0" * 64)],
        [*GOOD, BundlePart("spool/a", 1 << 41, "0" * 64)],
        [*GOOD, BundlePart("spool/a", 1, "0" * 63)],
        [*GOOD, *(BundlePart(f"spool/{n}", 1 << 40, "0" * 64) for n in range(5))],
    ],
)
def test_names_and_sizes_that_no_node_has_are_refused_before_anything_is_written(
    parts: list[BundlePart], tmp_path: Path
) -> None:
    encoded = msgspec.json.encode(BundleHead(KEY.address, 1, "1", tuple(parts)))
    (tmp_path / "bad").write_bytes(MAGIC + len(encoded).to_bytes(4) + encoded + b"xx")
    with pytest.raises(StateError, match="state file"):
        read_bundle(tmp_path / "bad", tmp_path / "there", PASSWORD)
    assert not (tmp_path / "there").exists() and not list(tmp_path.glob(".there*"))


@pytest.mark.parametrize("head", [b"", b"{", b"[" * 5000, b"\xff\xff", b'{"address": 1}'])
def test_a_head_that_is_none_is_refused(head: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(MAGIC + len(head).to_bytes(4) + head)
    with (tmp_path / "bad").open("rb") as file, pytest.raises(StateError):
        read_head(file)
    (tmp_path / "bad").write_bytes(MAGIC + b"\xff" * 4)
    with (tmp_path / "bad").open("rb") as file, pytest.raises(StateError, match="4294967295"):
        read_head(file)


def test_a_state_of_a_newer_program_is_refused(exported: Path, lived: Path, tmp_path: Path) -> None:
    newer = sqlite3.connect(lived / "journal.sqlite")
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    write_bundle(lived, tmp_path / "b.state", KEY, PASSWORD, 7, "9.0")
    with pytest.raises(StateError, match="form 99"):
        read_bundle(tmp_path / "b.state", tmp_path / "there", PASSWORD)
    assert not (tmp_path / "there").exists()


def test_a_state_that_does_not_fit_the_disk_is_refused_before_it_is_written(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.statvfs

    def small(path: object) -> os.statvfs_result:
        values = list(real(path))  # type: ignore[call-overload]
        values[4] = 0
        return os.statvfs_result(values)

    monkeypatch.setattr(bundle, "check_space", lambda *_: None)
    monkeypatch.setattr(bundle.os, "statvfs", small)
    with pytest.raises(StateError, match="does not fit"):
        read_bundle(exported, tmp_path / "there", PASSWORD)


def test_a_directory_whose_node_was_moved_is_told_so(lived: Path) -> None:
    check_moved(lived)
    (lived / "moved.json").write_text("{}")
    with pytest.raises(StateError, match="moved away"):
        check_moved(lived)
