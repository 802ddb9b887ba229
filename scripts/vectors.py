"""Writes docs/vectors.json: examples of what members say, for whoever writes another program (docs/other-programs.md).

    python scripts/vectors.py            writes the file anew
    python scripts/vectors.py --check    ends with 1 where it is not what the program makes now

Bytes are hex digits. Everything follows from the secrets and fields in it: signatures are RFC 6979's.
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from node.blobs import wire
from node.blobs.http.sources import PolicyRow, encode_listing
from node.swarm.catchup import CATCH_UP_PROTOCOL, CatchUp
from protocol.blobs import BlobInfo, describe, encode_info
from protocol.identity import NodeKey
from protocol.manifest import POLICY_STATEMENT, PolicyStatement
from protocol.messages import (
    Envelope,
    EpochRootSigned,
    Heartbeat,
    Message,
    PolicyAnnounced,
    RolloutCommitted,
    Seal,
    ValidatorBatch,
    VerdictIssued,
    message_digest,
    seal,
    signed,
    topic,
)
from protocol.policy import (
    PolicyManifest,
    describe_tensors,
    encode_image,
    encode_manifest,
    policy_root,
    weights_root,
)
from protocol.statements import (
    DOMAIN_TYPE,
    Attestation,
    Domain,
    Earnings,
    EpochRoot,
    Invitation,
    NodeRegistration,
    Rechecked,
    Statement,
    TermSilent,
    Ticket,
    Verdict,
    VerdictOutcome,
    WorkCommitment,
    digest,
    sign,
    struct_hash,
    type_string,
)

FILE = Path(__file__).resolve().parents[1] / "docs" / "vectors.json"
DOMAIN = Domain(31337, NodeKey(bytes([9]) * 32).address)
POOL, STEP, RUN_ROOT = 7, 12, bytes(range(32))
PROVIDER, WORKER, VALIDATOR, TRAINER = (NodeKey(bytes([n]) * 32) for n in (1, 2, 3, 4))


def _keys() -> list[dict[str, Any]]:
    return [
        {"secret": key.secret, "public_key": key.public_key, "address": key.address, "peer_id": key.peer_id}
        for key in (PROVIDER, WORKER, VALIDATOR, TRAINER)
    ]


def _statements() -> list[tuple[NodeKey, Statement]]:
    work = WorkCommitment(POOL, WORKER.address, bytes([17]) * 32, 3, bytes([18]) * 32, 4096, 21)
    told = msgspec.structs.asdict(work) | {"outcome": VerdictOutcome.REJECT, "reason": 4, "values": bytes([19]) * 32}
    return [
        (WORKER, work),
        (VALIDATOR, Verdict(**told)),
        (VALIDATOR, Rechecked(**told)),
        (VALIDATOR, EpochRoot(POOL, 21, 1_800_000_000, bytes([21]) * 32, 4096, bytes([22]) * 32)),
        (VALIDATOR, Earnings(POOL, 21, 1_700_000_000, bytes([20]) * 32, 123_456, bytes([21]) * 32)),
        (WORKER, NodeRegistration(PROVIDER.address, WORKER.address, 2, 0, 1_900_000_000)),
        (TRAINER, Invitation(POOL, WORKER.address, 2, 1_900_000_000)),
        (WORKER, Ticket(POOL, VALIDATOR.address)),
        (VALIDATOR, Attestation(POOL, WORKER.address, 2, 1_800_000_000, 1_900_000_000)),
        (VALIDATOR, TermSilent(POOL, 2, 1_800_000_000, STEP)),
    ]


def _statement(key: NodeKey, said: Statement) -> dict[str, Any]:
    return {
        "type": type_string(type(said)),
        "fields": msgspec.structs.asdict(said),
        "struct_hash": struct_hash(said),
        "digest": digest(DOMAIN, said),
        "signature": sign(key, DOMAIN, said),
        "signer": key.address,
    }


def _policy() -> tuple[bytes, PolicyManifest]:
    """Two tensors, one of which begins in one piece of the image and ends in another."""
    tensors = {
        "embed.weight": (np.arange(2 * 65_536, dtype=np.uint32) % 65_521).astype("<u2").reshape(2, 65_536),
        "head.bias": np.arange(5, dtype="<u2"),
    }
    image, infos = encode_image(tensors), describe_tensors(tensors)
    blob = describe(image)
    return image, PolicyManifest(RUN_ROOT, STEP, policy_root(STEP, infos), infos, blob.root, blob.size)


def _announcement(manifest: PolicyManifest) -> PolicyAnnounced:
    root = manifest.policy_root
    said = PolicyStatement(POOL, 0, STEP, 21, bytes([5]) * 32, root, bytes([6]) * 32, bytes([7]) * 32)
    encoded = encode_manifest(manifest)
    word = sign(TRAINER, DOMAIN, said.commitment(TRAINER.address))
    blob = describe(encoded).root
    fields = {"statement": said, "signature": word, "manifest": encoded}
    return PolicyAnnounced(pool=POOL, manifest_root=blob, manifest_size=len(encoded), **fields)


def _messages(manifest: PolicyManifest) -> list[tuple[NodeKey, Message]]:
    work = WorkCommitment(POOL, WORKER.address, manifest.policy_root, 3, bytes([18]) * 32, 4096, 21)
    told = msgspec.structs.asdict(work) | {"outcome": VerdictOutcome.ACCEPT, "reason": 0}
    verdict = VerdictIssued(pool=POOL, verdict=Verdict(**told), signature=b"", salt=bytes([8]) * 16)
    root = EpochRoot(POOL, 21, 1_800_000_000, bytes([21]) * 32, 4096, bytes([22]) * 32)
    rooted = EpochRootSigned(pool=POOL, statement=root, signature=sign(VALIDATOR, DOMAIN, root))
    beat = Heartbeat(
        pool=POOL,
        boot=1,
        count=2,
        at=1_800_000_000_000,
        role="worker",
        state="working",
        contact=f"/ip4/203.0.113.7/tcp/4001/p2p/{WORKER.peer_id}",
        policy_step=STEP,
        interval=2.5,  # a whole number may be written as one: others' MessagePack does, and members take both
        rate=1234.5,
    )
    return [
        (WORKER, beat),
        (TRAINER, _announcement(manifest)),
        (WORKER, RolloutCommitted(pool=POOL, commitment=work, signature=sign(WORKER, DOMAIN, work), size=70_000)),
        (VALIDATOR, signed(verdict, VALIDATOR, DOMAIN)),
        (VALIDATOR, ValidatorBatch(pool=POOL, seals=(Seal(work.work, bytes([9]) * 32),), carried=(rooted,))),
        (VALIDATOR, rooted),
    ]


def _envelope(key: NodeKey, message: Message) -> dict[str, Any]:
    raw = seal(key, DOMAIN, message)
    return {"message": msgspec.to_builtins(message, builtin_types=(bytes,)), "author": key.address, "raw": raw}


def _refused(beat: bytes) -> list[dict[str, Any]]:
    """Envelopes that every member refuses."""
    envelope = msgspec.msgpack.decode(beat, type=Envelope)
    payload, signature = envelope.payload, envelope.signature
    order = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
    other_s = (order - int.from_bytes(signature[32:64])).to_bytes(32)
    high = signature[:32] + other_s + bytes([55 - signature[64]])
    long_form = b"\x92\xc5" + len(payload).to_bytes(2) + payload + b"\xc4\x41" + signature
    elsewhere = msgspec.msgpack.decode(payload) | {"pool": POOL + 1}
    unknown = msgspec.msgpack.decode(payload) | {"mood": "good"}

    def sealed(fields: dict[str, Any]) -> bytes:
        other = msgspec.msgpack.encode(fields)
        return msgspec.msgpack.encode(Envelope(other, WORKER.sign_hash(message_digest(DOMAIN, other))))

    return [
        {"raw": long_form, "why": "the envelope is not in MessagePack's shortest form"},
        {"raw": msgspec.msgpack.encode(Envelope(payload, high)), "why": "s is in the upper half of the curve's order"},
        {"raw": msgspec.msgpack.encode(Envelope(payload, signature[:64])), "why": "the signature has no recovery byte"},
        {"raw": sealed(elsewhere), "why": "it is for another pool"},
        {"raw": sealed(unknown), "why": "it has a field that no message of its kind has"},
    ]


def _request(protocol: str, body: bytes, answer: bytes) -> dict[str, Any]:
    """As both stand on a stream of their own."""
    asked = len(body).to_bytes(4) + body
    return {"protocol": protocol, "request": asked, "answer": b"\0" + len(answer).to_bytes(4) + answer}


def _requests(envelopes: list[bytes], blob: BlobInfo, data: bytes) -> list[dict[str, Any]]:
    def encoded(value: object) -> bytes:
        return msgspec.msgpack.encode(value)

    have = wire.HaveInfo(encode_info(blob))
    last = len(blob.pieces) - 1
    piece = data[blob.span(last)[0] :]
    return [
        _request(CATCH_UP_PROTOCOL, encoded(CatchUp([], 0)), encoded(envelopes)),
        _request(wire.PROTOCOL, encoded(wire.AskInfo(blob.root)), wire.FOUND + encoded(have)),
        _request(wire.PROTOCOL, encoded(wire.AskInfo(bytes(32))), wire.MISSING),
        _request(wire.PROTOCOL, encoded(wire.AskPieces(blob.root, (last,))), wire.pieces_header([last], 0.0) + piece),
    ]


def vectors() -> dict[str, Any]:
    image, manifest = _policy()
    blob = describe(image)
    said = _announcement(manifest)
    envelopes = [_envelope(key, message) for key, message in _messages(manifest)]
    row = PolicyRow(STEP, manifest.policy_root.hex(), blob.root.hex(), blob.size, envelopes[1]["raw"].hex())
    return {
        "keys": _keys(),
        "domain": {
            "type": DOMAIN_TYPE.decode(),
            "name": "intellect-node",
            "version": "1",
            "chain_id": DOMAIN.chain_id,
            "contract": DOMAIN.contract,
            "separator": DOMAIN.separator(),
        },
        "statements": [_statement(key, said) for key, said in _statements()],
        "policy_statement": {
            "type": POLICY_STATEMENT,
            "fields": msgspec.structs.asdict(said.statement),
            "struct_hash": said.statement.struct_hash,
            "commitment": _statement(TRAINER, said.statement.commitment(TRAINER.address)),
        },
        "pool": POOL,
        "topic": topic(DOMAIN, POOL),
        "envelopes": envelopes,
        "refused": _refused(envelopes[0]["raw"]),
        "requests": _requests([one["raw"] for one in envelopes], blob, image),
        "policy": {
            "tensors": "bf16 patterns: embed.weight [2, 65536] is i % 65521 in order, head.bias [5] is 0 to 4",
            "step": STEP,
            "image_size": blob.size,
            "image_root": blob.root,
            "pieces": blob.pieces,
            "digests": {tensor.name: tensor.digest for tensor in manifest.tensors},
            "weights_root": weights_root(manifest.tensors),
            "policy_root": manifest.policy_root,
            "manifest": encode_manifest(manifest),
            "manifest_root": said.manifest_root,
        },
        "gateway": {"path": "/v1/policies", "body": encode_listing([row]).decode()},
    }


def written() -> str:
    return json.dumps(_plain(vectors()), indent=1, ensure_ascii=False) + "\n"


def _plain(value: Any) -> Any:
    """Bytes as hex digits."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(FILE.read_text(encoding="utf-8") != written())
    FILE.write_text(written(), encoding="utf-8")
