"""What is fuzzed: for every parser of strangers' bytes, what to call and honest inputs to start from.

A target gets any bytes. It returns, or raises the parser's own error inside itself; anything else that leaves it is a
finding. What was parsed goes on through the checks that need no model, as a validator would take it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from protocol import checks, messages, toploc
from protocol.blobs import decode_info, describe, encode_info
from protocol.codec import decode_msgpack
from protocol.contribution import MAX_TOKENS, ContributionHeader, Expected, decode_contribution, encode_contribution
from protocol.delta import PatchError, apply_patch, encode_patch
from protocol.disputes import compare as compare_verdicts
from protocol.disputes import values_complete
from protocol.earnings import Accepted, EarningsLine, Leaf, all_leaves, decode_leaves, leaves_of
from protocol.envelope import ProofSubject, open_envelope, seal
from protocol.errors import ProtocolError
from protocol.exchange import ContributionError, ExchangeForm, form_of
from protocol.freshness import content_digest
from protocol.identity import NodeKey
from protocol.lots import LotPledge
from protocol.manifest import PolicyStatement
from protocol.pages import read_page
from protocol.policy import (
    MalformedPolicy,
    PolicyManifest,
    PolicyPatch,
    WeightsSnapshot,
    decode_image,
    decode_manifest,
    describe_tensors,
    encode_image,
    encode_manifest,
    image_size,
    policy_root,
)
from protocol.policy_patch import framed, policy_patch_header, split_policy_patch
from protocol.pretraining import Diloco
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
from protocol.run import EnvironmentSpec, RolloutSpec, RunError, RunSpec, VerificationSpec, decode_run, encode_run
from protocol.statements import (
    Domain,
    Earnings,
    EpochRoot,
    Statement,
    Verdict,
    WorkCommitment,
    sign,
    signer_of,
    work_id,
)
from protocol.table import EarningsTable, Owed, decode_head, encode_head
from protocol.text import StreamHeader, TextError, tokens_of

K, ROWS = 8, 4
KEY = NodeKey(b"\x07" * 32)
NODE = KEY.address
DOMAIN = Domain(31337, NODE)
ROOT = bytes(range(32))
SUBJECT = ProofSubject(1, NODE, bytes(32), 0, 0, 0, [1, 2], [3, 4, 5, 6, 7, 8])
ACTIVATIONS = np.random.default_rng(0).integers(0, 0x7F80, (5, 16)).astype(np.uint16)
PROOFS = toploc.proofs_for(ACTIVATIONS, K, ROWS)
SEALED = seal(PROOFS, SUBJECT, K, ROWS)
COMMITMENT = WorkCommitment(1, NODE, bytes(32), 0, ROOT, 12)
RUN = RunSpec(
    name="fuzz",
    environment=EnvironmentSpec(name="sort", args={"digits": 4}),
    rollout=RolloutSpec(group_size=2, prompts_per_step=1, prompts_per_file=1, max_prompt_tokens=8, max_output_tokens=8),
    verification=VerificationSpec(toploc_k=K, toploc_batch=ROWS),
)


NUMBERS = (b"\xff" * 8, bytes(8), b"\x00\xca\x9a\x3b\0\0\0\0")
JSON_NUMBERS = (b"Infinity", b"NaN", b"1e999", b"-1", b"0", b"9" * 30, b"9" * 5000, b"[", b"{", b"null", b'"\\ud800"')


@dataclass(frozen=True, slots=True)
class Target:
    """call: must not raise; honest: inputs that it takes without an error; words: what mutations may put in."""

    call: Callable[[bytes], None]
    honest: tuple[bytes, ...]
    words: tuple[bytes, ...] = NUMBERS


def proof(data: bytes) -> None:
    try:
        parsed = toploc.parse_proof(data, K)
    except toploc.MalformedProof:
        return
    if parsed.encode() != data:
        raise AssertionError("a second encoding of one proof")
    toploc.compare(parsed, ACTIVATIONS)


def envelope(data: bytes) -> None:
    try:
        proofs = open_envelope(data, SUBJECT, K, ROWS)
    except toploc.MalformedProof:
        return
    if seal(b"".join(proof.encode() for proof in proofs), SUBJECT, K, ROWS) != data:
        raise AssertionError("a second encoding of one envelope")


def rollout(data: bytes) -> None:
    """A file and every check of it that needs no model, in a validator's order."""
    try:
        batch = decode(data, RUN.rollout.samples_per_file)
    except MalformedRollout:
        return
    expected = [checks.ExpectedProblem("p", [1, 2])]
    fault = (
        checks.check_identity(batch, COMMITMENT)
        or checks.check_groups(batch, RUN)
        or checks.check_form(batch, RUN, 16, turns=3)
        or checks.check_units(batch, COMMITMENT)
        or checks.check_draw(batch, expected)
        or checks.check_termination(batch, RUN, frozenset({8}), [6])
    )
    if fault is None:
        checks.parse_proofs(batch, RUN.verification)
        content_digest(batch.rows)


def report(data: bytes) -> None:
    try:
        decode_report(data, 4)
    except MalformedRollout:
        return


def message(data: bytes) -> None:
    """An envelope as it comes from the wire."""
    try:
        messages.open_envelope(DOMAIN, 1, data)
    except ProtocolError:
        return


def payload(data: bytes) -> None:
    """What a member signed, whatever it is, and what becomes of it."""
    for signature in (KEY.sign_hash(messages.message_digest(DOMAIN, data)), b""):  # a judgement needs none
        raw = msgspec.msgpack.encode(messages.Envelope(data, signature))
        try:
            opened = messages.open_envelope(DOMAIN, 1, raw).message
        except ProtocolError:
            continue
        for one in messages.entries(opened):
            _look_into(one)


def _look_into(opened: object) -> None:
    if isinstance(opened, messages.VerdictIssued):
        compare_verdicts(opened, VERDICT, 8, 0.1)
        values_complete(opened, 8, 8)
    statement = getattr(opened, "commitment", None) or getattr(opened, "verdict", None)
    if isinstance(statement, WorkCommitment | Verdict):
        work_id(statement)  # what was let in has a name
        _signer(statement, getattr(opened, "signature", b""))


def statement(data: bytes) -> None:
    for kind in (WorkCommitment, Verdict):
        try:
            parsed = decode_msgpack(data, kind, limit=4096, error=ProtocolError, what="malformed statement")
        except ProtocolError:
            continue
        _signer(parsed, bytes(64) + b"\x1b")


def _signer(statement: Statement, signature: bytes) -> None:
    try:
        signer_of(DOMAIN, statement, signature)
    except ProtocolError:
        return


def manifest(data: bytes) -> None:
    try:
        parsed = decode_manifest(data)
    except MalformedPolicy:
        return
    parsed.patches_from(ROOT)


def image(data: bytes) -> None:
    try:
        decode_image(data)
    except MalformedPolicy:
        return


def patch(data: bytes) -> None:
    """A policy's patch, down to the tensors."""
    try:
        for part, tensor in zip(split_policy_patch(data, ROOT, ROOT, INFOS), BASE.values(), strict=True):
            apply_patch(tensor.reshape(-1), part)
    except PatchError:
        return


def pieces(data: bytes) -> None:
    try:
        decode_info(data, PIECES.root)
    except ProtocolError:
        return


def run_file(data: bytes) -> None:
    try:
        decode_run(data)
    except RunError:
        return


SAMPLES = tuple(
    SampleRow(
        0, i, "p", [1, 2], [3, 4, 5, 6, 7, 8], True, seal(PROOFS, msgspec.structs.replace(SUBJECT, sample=i), K, ROWS)
    )
    for i in range(2)
)
FILE = encode(RolloutBatch(RolloutHeader(1, NODE, "00" * 32, 0, freshness="00" * 32), SAMPLES))
IN_TURNS = RolloutBatch(
    RolloutHeader(1, NODE, "00" * 32, 0, freshness="00" * 32),
    tuple(msgspec.structs.replace(row, output=[3, 8, 4, 5, 6, 7, 5, 8], segments=[2, 2, 4]) for row in SAMPLES),
)
FILE_IN_TURNS = encode(IN_TURNS)
REPORT = encode_report(
    ValidatorReport(ReportHeader("00" * 32, "00" * 32), tuple(ReportRow(0, i, 0.5, [-0.25] * 6) for i in range(2)))
)
BASE = {
    "a": np.arange(64, dtype=np.uint16).reshape(8, 8),
    "b": np.random.default_rng(1).integers(0, 0x10000, 96).astype(np.uint16),
    "c": np.full(512, 0x3F80, dtype=np.uint16),
}
CHANGED = {"a": BASE["a"] + np.uint16(1), "b": BASE["b"][::-1], "c": np.where(np.arange(512) % 99, BASE["c"], 7)}
TARGET_TENSORS = {name: tensor.astype(np.uint16) for name, tensor in CHANGED.items()}
INFOS = describe_tensors(BASE)
MANIFEST = PolicyManifest(
    ROOT,
    5,
    policy_root(5, INFOS),
    INFOS,
    ROOT,
    image_size(INFOS),
    WeightsSnapshot(3, ROOT, ROOT),
    (PolicyPatch(5, ROOT, policy_root(5, INFOS), ROOT, 9),),
)
PATCH = policy_patch_header(ROOT, ROOT, len(INFOS)) + b"".join(
    part for name in sorted(BASE) for part in framed(encode_patch(BASE[name], TARGET_TENSORS[name]))
)
PIECES = describe(bytes(70_000), 16 * 1024)
WORK = WorkCommitment(1, NODE, ROOT, 3, ROOT, 12)
JUDGED = Verdict(1, NODE, ROOT, 3, ROOT, 12, 0, 0)
_VERDICT = messages.VerdictIssued(
    pool=1,
    verdict=JUDGED,
    signature=b"",
    report_root=ROOT,
    report_size=7,
    window=1,
    rate=4,
    checked=b"\x05",
    rewards=bytes(range(32)),
    logprobs=np.array([-1.0, -2.0], dtype="<f4").tobytes(),
    verifier="cpu/float32/sdpa",
)
VERDICT = messages.signed(_VERDICT, KEY, DOMAIN)
_LEAVES, (LEAVES, _) = leaves_of([Accepted(1, NODE, 1, bytes([n]) * 32, 12) for n in (1, 2)])
_ROOTED = EpochRoot(1, 1, 9, _LEAVES.root(), 24, ROOT)
STATED = PolicyStatement(1, 0, 1, 0, ROOT, ROOT, ROOT, ROOT)
_EARNED = Earnings(1, 1, 7, ROOT, 12, ROOT)
_VERDICT_ENVELOPE = messages.seal(KEY, DOMAIN, VERDICT)
MESSAGES: tuple[messages.Message, ...] = (
    messages.Heartbeat(
        pool=1,
        boot=1,
        count=1,
        at=1,
        role="worker",
        state="ok",
        contact="x",
        policy_step=1,
        interval=1.0,
        lots=(LotPledge(1, ROOT, 3),),
    ),
    messages.PolicyAnnounced(
        pool=1,
        statement=STATED,
        signature=sign(KEY, DOMAIN, STATED.commitment(KEY.address)),
        manifest_root=ROOT,
        manifest_size=9,
        manifest=encode_manifest(MANIFEST),
    ),
    messages.RolloutCommitted(pool=1, commitment=WORK, signature=sign(KEY, DOMAIN, WORK), size=7),
    VERDICT,
    messages.LotsRevealed(pool=1, window=1, secret=ROOT),
    messages.DisputeRaised(pool=1, first=_VERDICT_ENVELOPE, second=_VERDICT_ENVELOPE),
    messages.VerdictRequested(pool=1, commitment=messages.seal(KEY, DOMAIN, VERDICT)),
    messages.ValidatorBatch(
        pool=1,
        seals=(messages.Seal(ROOT, messages.seal_of(VERDICT, KEY.address)),),
        carried=(VERDICT,),
    ),
    messages.EpochRootSigned(pool=1, statement=_ROOTED, signature=sign(KEY, DOMAIN, _ROOTED)),
    messages.EarningsVote(pool=1, earnings=_EARNED, table=ROOT, size=9, signature=sign(KEY, DOMAIN, _EARNED)),
)

SHAPES = {"a": (3, 40), "b": (70,)}
FORMS = {name: form_of(Diloco(exchange=name)) for name in ("float32", "int8", "int4", "sparse")}  # type: ignore[arg-type]
CONTRIBUTED = ContributionHeader(ROOT, 3, ROOT, 1, 99, 2.5, 2.0, (ROOT, ROOT), (ROOT,), "cpu")
EXPECTED = Expected(ROOT, {3: ROOT}, 4, 1000, 4)


def _contributed(form: ExchangeForm) -> bytes:
    tensors = {name: np.linspace(-1, 1, math.prod(shape), dtype=np.float32) for name, shape in SHAPES.items()}
    return b"".join(encode_contribution(CONTRIBUTED, tensors, form))


def contribution(data: bytes) -> None:
    """In every form, and the sum that its numbers go into."""
    for form in FORMS.values():
        try:
            found = decode_contribution(data, SHAPES, form, EXPECTED)
            norm = found.check()
        except ContributionError:
            continue
        if not math.isfinite(norm) or not np.isfinite(found.tensor("a") * np.float32(MAX_TOKENS)).all():
            raise AssertionError("a number that no mean survives")


def stream(data: bytes) -> None:
    try:
        header, tokens = tokens_of(data)
    except TextError:
        return
    if len(tokens) != header.tokens:
        raise AssertionError("a stream of another length")


_ROWS = tuple(EarningsLine(bytes([n]) * 20, n) for n in (1, 2))
HEAD, (LINES, DEBTS) = EarningsTable(1, 9, 4, _ROWS, tuple(Owed(one.node, 9, 7) for one in _ROWS), 3).files()


def table(data: bytes) -> None:
    try:
        head = decode_head(data, 1)
    except ProtocolError:
        return
    head.share(KEY.address, {}, ())
    head.root()


def lines(data: bytes) -> None:
    try:
        read_page(data, HEAD.pages[0], EarningsLine)
    except ProtocolError:
        return


def debts(data: bytes) -> None:
    try:
        read_page(data, HEAD.debts[0], Owed)
    except ProtocolError:
        return


def root(data: bytes) -> None:
    try:
        decode_leaves(data, _ROOTED)
    except ProtocolError:
        return


def leaves(data: bytes) -> None:
    try:
        all_leaves(_ROOTED, _LEAVES, [read_page(data, _LEAVES.pages[0], Leaf)])
    except ProtocolError:
        return


TARGETS = {
    "contribution": Target(contribution, tuple(map(_contributed, FORMS.values()))),
    "stream": Target(stream, (StreamHeader(2, 1, 9, 4, ROOT, ROOT).encode() + bytes(8),)),
    "proof": Target(proof, (PROOFS[: 2 + 2 * K],)),
    "envelope": Target(envelope, (SEALED,)),
    "rollout": Target(rollout, (FILE, FILE_IN_TURNS)),
    "report": Target(report, (REPORT,)),
    "message": Target(message, tuple(messages.seal(KEY, DOMAIN, one) for one in MESSAGES)),
    "payload": Target(payload, tuple(msgspec.msgpack.encode(one) for one in MESSAGES)),
    "statement": Target(statement, (msgspec.msgpack.encode(WORK), msgspec.msgpack.encode(JUDGED))),
    "manifest": Target(manifest, (encode_manifest(MANIFEST),)),
    "image": Target(image, (encode_image(BASE),), JSON_NUMBERS),
    "patch": Target(patch, (PATCH,)),
    "pieces": Target(pieces, (encode_info(PIECES),)),
    "table": Target(table, (encode_head(HEAD),)),
    "lines": Target(lines, (LINES,)),
    "debts": Target(debts, (DEBTS,)),
    "root": Target(root, (msgspec.msgpack.encode(_LEAVES),)),
    "leaves": Target(leaves, (LEAVES,)),
    "run": Target(run_file, (encode_run(RUN),), JSON_NUMBERS),
}
