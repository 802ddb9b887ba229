"""docs/vectors.json against this program, in both directions: what it makes now, and what it understands."""

import json
from typing import Any, get_args

import msgspec
import pytest

from node.blobs import wire
from node.blobs.http.sources import decode_listing
from protocol import statements
from protocol.blobs import decode_info, describe
from protocol.errors import ProtocolError
from protocol.identity import NodeKey, recover
from protocol.manifest import PolicyStatement
from protocol.messages import open_envelope, topic
from protocol.policy import decode_manifest
from protocol.statements import Domain, signer_of
from scripts import vectors

TOLD: dict[str, Any] = json.loads(vectors.FILE.read_text(encoding="utf-8"))
DOMAIN = Domain(TOLD["domain"]["chain_id"], TOLD["domain"]["contract"])


def fields(told: dict[str, Any], kind: type) -> Any:
    """A struct of what stands in the file: hex digits where it has bytes."""
    raw = {one.name for one in msgspec.structs.fields(kind) if one.type is bytes}
    return kind(**{name: bytes.fromhex(value) if name in raw else value for name, value in told.items()})


def test_the_file_is_what_the_program_makes_now() -> None:
    assert vectors.FILE.read_text(encoding="utf-8") == vectors.written(), "run: python scripts/vectors.py"


def test_every_kind_of_statement_is_there_and_is_signed_by_whom_it_says() -> None:
    for one in [*TOLD["statements"], TOLD["policy_statement"]["commitment"]]:
        kind = getattr(statements, one["type"].partition("(")[0])
        said, signature = fields(one["fields"], kind), bytes.fromhex(one["signature"])
        assert statements.type_string(kind) == one["type"] and statements.struct_hash(said).hex() == one["struct_hash"]
        assert recover(bytes.fromhex(one["digest"]), signature) == signer_of(DOMAIN, said, signature) == one["signer"]
    told = {one["type"].partition("(")[0] for one in TOLD["statements"]}
    assert told == {kind.__name__ for kind in get_args(statements.Statement)}
    said = fields(TOLD["policy_statement"]["fields"], PolicyStatement)
    assert said.struct_hash.hex() == TOLD["policy_statement"]["struct_hash"]


def test_envelopes_are_read_as_they_stand_there_and_the_broken_ones_refused() -> None:
    assert topic(DOMAIN, TOLD["pool"]) == TOLD["topic"]
    for key in TOLD["keys"]:
        assert NodeKey(bytes.fromhex(key["secret"])).peer_id == key["peer_id"]
    for one in TOLD["envelopes"]:
        signed = open_envelope(DOMAIN, TOLD["pool"], bytes.fromhex(one["raw"]))
        assert signed.author == one["author"] and type(signed.message).__name__ == one["message"]["type"]
        assert vectors._plain(msgspec.to_builtins(signed.message, builtin_types=(bytes,))) == one["message"]
    for one in TOLD["refused"]:
        with pytest.raises(ProtocolError):
            signed = open_envelope(DOMAIN, TOLD["pool"], bytes.fromhex(one["raw"]))
            assert signed.author == TOLD["envelopes"][0]["author"], one["why"]
            pytest.fail(f"taken: {one['why']}")


def test_requests_blobs_policies_and_the_gateways_list_are_read() -> None:
    policy = TOLD["policy"]
    manifest = decode_manifest(bytes.fromhex(policy["manifest"]))
    assert manifest.policy_root.hex() == policy["policy_root"] and manifest.image_root.hex() == policy["image_root"]
    assert describe(bytes.fromhex(policy["manifest"])).root.hex() == policy["manifest_root"]
    asked = [wire.read_request(bytes.fromhex(one["request"])[4:]) for one in TOLD["requests"][1:]]
    assert [type(one) for one in asked] == [wire.AskInfo, wire.AskInfo, wire.AskPieces]
    body = wire.read_answer(bytes.fromhex(TOLD["requests"][1]["answer"])[5:], TOLD["keys"][0]["address"], b"")
    have = msgspec.msgpack.decode(body, type=wire.HaveInfo)
    assert [piece.hex() for piece in decode_info(have.info, manifest.image_root).pieces] == policy["pieces"]
    row = decode_listing(TOLD["gateway"]["body"].encode()).policies[0]
    signed = open_envelope(DOMAIN, TOLD["pool"], bytes.fromhex(row.announcement))
    assert row.policy_root == policy["policy_root"] and signed.author == TOLD["envelopes"][1]["author"]


def test_a_file_in_which_one_digit_differs_is_noticed(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    text = vectors.FILE.read_text(encoding="utf-8")
    (tmp_path / "vectors.json").write_text(text.replace("7d", "7e", 1))
    monkeypatch.setattr(vectors, "FILE", tmp_path / "vectors.json")
    with pytest.raises(AssertionError, match="run: python"):
        test_the_file_is_what_the_program_makes_now()
