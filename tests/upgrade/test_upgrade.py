"""This program starts from what each version before it has left behind, and refuses what is of another form at once.

The folders beside this file are frozen (`tests.upgrade.freeze`): a change that one of them does not survive needs a
step forward (`node.state.tables.Form.steps`), or is none that docs/stability.md permits.
"""

import json
import lzma
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from cli.api import parse_status
from cli.errors import CommandError
from node.chain.errors import ProfileError
from node.chain.follower import EventStore
from node.chain.outbox import Outbox
from node.chain.profile import read_profile
from node.errors import RunFileError, StateError
from node.run.file import load_run_file
from node.state.bundle import MAGIC, read_bundle, read_head
from node.state.directory import StateDir, check_owner, check_place, journal_of
from node.state.journal import FORM, Journal
from node.state.keystore import load_key
from protocol import statements
from protocol.errors import IntellectError
from protocol.messages import open_envelope
from protocol.run import RunError, decode_run, encode_run
from protocol.statements import Domain, signer_of
from tests.test_vectors import fields
from tests.upgrade.freeze import HERE, KEY, PASSWORD, POOL, PROFILE, ROOT, RUN, WORK, freeze, unpack

VERSIONS = sorted(path.name for path in HERE.iterdir() if path.is_dir() and path.name[0].isdigit())
every_version = pytest.mark.parametrize("version", VERSIONS)


def test_the_first_version_is_among_them_and_freezing_writes_the_same_files(tmp_path: Path) -> None:
    assert "0.2.0" in VERSIONS
    freeze(tmp_path / "9.9.9", "9.9.9")
    assert {path.name for path in (tmp_path / "9.9.9").iterdir()} == {path.name for path in (HERE / "0.2.0").iterdir()}


@every_version
def test_a_node_starts_from_its_state_directory(version: str, tmp_path: Path) -> None:
    place = tmp_path / "node"
    unpack(HERE / version / "state.tar.xz", place)
    check_place(place)
    directory = StateDir(place)
    assert load_key(place / "node-key.json", PASSWORD).address == KEY.address
    journal = journal_of(place, Journal(place / "journal.sqlite"), POOL)
    check_owner(journal, KEY.address)
    assert journal.said("commitment", b"slot") == b"word" and journal.boots() >= 1_800_000_000
    with pytest.raises(StateError, match="twice for one slot"):
        journal.say("commitment", b"slot", b"another")
    assert journal.files.work_done(b"\x03" * 32) and journal.used.consumed() == {b"\x01" * 32: 4}
    assert journal.pay.unnamed(KEY.address, 9) == [] and journal.pay.leaf(KEY.address, 7, WORK)
    assert journal.tallies(b"\x03" * 32) == [("intake", "accepted", 1)]
    journal.close()
    outbox = Outbox(place / "outbox.sqlite")
    assert [one.action for one in outbox.pending(KEY.address)] == ["join pool 7"]
    outbox.close()
    store = EventStore(place / "chain.sqlite")
    assert store.blocks() == [(12, b"\x0c" * 32)]
    store.close()
    directory.close()


@every_version
def test_a_state_file_is_imported(version: str, tmp_path: Path) -> None:
    (tmp_path / "node.state").write_bytes(lzma.decompress((HERE / version / "node.state.xz").read_bytes()))
    assert read_bundle(tmp_path / "node.state", tmp_path / "there", PASSWORD).address == KEY.address
    journal = Journal(tmp_path / "there" / "journal.sqlite")
    assert journal.said("commitment", b"slot") == b"word"
    journal.close()


@every_version
def test_run_file_run_profile_and_status_are_read(version: str) -> None:
    place = HERE / version
    assert load_run_file(place / "run.toml").recipe.steps == 60
    raw = (place / "run.json").read_bytes()
    assert encode_run(decode_run(raw)) == raw and decode_run(raw) == RUN, "a run keeps its root"
    assert read_profile(place / "profile.toml") == PROFILE
    assert len(parse_status((place / "status.json").read_bytes()).swarm) == 2


@every_version
def test_what_members_of_that_version_say_is_understood(version: str) -> None:
    told: dict[str, Any] = json.loads(lzma.decompress((HERE / version / "vectors.json.xz").read_bytes()))
    domain = Domain(told["domain"]["chain_id"], told["domain"]["contract"])
    for one in told["envelopes"]:
        signed = open_envelope(domain, told["pool"], bytes.fromhex(one["raw"]))
        assert signed.author == one["author"] and type(signed.message).__name__ == one["message"]["type"]
    for one in told["statements"]:
        said = fields(one["fields"], getattr(statements, one["type"].partition("(")[0]))
        assert signer_of(domain, said, bytes.fromhex(one["signature"])) == one["signer"]
        assert type(said) in get_args(statements.Statement)


def later_journal(place: Path) -> None:
    Journal(place / "journal.sqlite").close()
    with closing(sqlite3.connect(place / "journal.sqlite")) as db:
        db.execute(f"PRAGMA user_version = {FORM.version + 1}")
    check_place(place)


def later_profile(place: Path) -> None:
    (place / "p.toml").write_text('version = 2\nchain = "something new"\n')
    read_profile(place / "p.toml")


def later_run_file(place: Path) -> None:
    (place / "r.toml").write_text("version = 2\n[something_new]\n")
    load_run_file(place / "r.toml")


def later_state_file(place: Path) -> None:
    (place / "s.state").write_bytes(MAGIC.replace(b"1", b"2") + b"what nobody knows yet")
    with (place / "s.state").open("rb") as file:
        read_head(file)


@pytest.mark.parametrize(
    ("meet", "kind", "theirs", "ours"),
    [
        (later_journal, StateError, f"form {FORM.version + 1}", f"forms up to {FORM.version}"),
        (later_profile, ProfileError, "version 2", "version 1"),
        (later_run_file, RunFileError, "version 2", "version 1"),
        (later_state_file, StateError, "version 2", "version 1"),
        (lambda _: decode_run(b'{"version": 2, "new": {}}'), RunError, "version 2", "version 1"),
        (lambda _: parse_status(b'{"schema_version": 2, "node": {}}'), CommandError, "schema 2", "reads 1"),
    ],
)
def test_what_is_of_another_version_is_refused_with_both_and_the_way(
    meet: Callable[[Path], None], kind: type[IntellectError], theirs: str, ours: str, tmp_path: Path
) -> None:
    with pytest.raises(kind) as caught:
        meet(tmp_path)
    assert theirs in caught.value.why and ours in caught.value.why
    assert "program" in caught.value.remedy or "in one version" in caught.value.remedy


def test_the_page_names_the_forms_that_there_are() -> None:
    page = (ROOT / "docs" / "stability.md").read_text(encoding="utf-8")
    from node.chain.follower import FORM as CHAIN
    from node.chain.outbox import FORM as OUTBOX
    from node.status_schema import SCHEMA_VERSION

    assert f"journal {FORM.version}, chain {CHAIN.version}, outbox {OUTBOX.version}" in page
    assert f"`schema_version` {SCHEMA_VERSION}" in page and msgspec.json.decode(encode_run(RUN))["version"] == 1
