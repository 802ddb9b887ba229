"""Keeps every case that this node carries to the chain as a file, before it is sent.

So that its owner can look at it, hand it to somebody else, or carry it again by hand (`intellect-node contract
slash FILE`), whatever happens to this node or to its transaction.
"""

from collections.abc import Sequence
from pathlib import Path

import structlog
import trio

from node.chain.cases import (
    Case,
    CertificateContradiction,
    CommitmentContradiction,
    FalseCertificate,
    FileCase,
    VerdictContradiction,
    Vote,
    certificate_in_json,
    commitment_in_json,
    to_hex,
    verdict_in_json,
    write_case,
)
from node.chain.client import ChainClient, Receipt
from protocol.statements import Accepted, Verdict, WorkCommitment

log = structlog.get_logger()


class CaseKeeper:
    """A chain client's way to slash, with the cases in `folder` as NODE-FILE.json, or by the work's id."""

    def __init__(self, chain: ChainClient, folder: Path) -> None:
        self._chain = chain
        self._folder = folder

    async def slash(
        self,
        commitment: WorkCommitment,
        node_signature: bytes,
        reason: int,
        signatures: Sequence[bytes],
        values: Sequence[bytes],
        rechecked: int,
    ) -> Receipt:
        """As ChainClient.slash."""
        pairs = enumerate(zip(signatures, values, strict=True))
        votes = tuple(
            Vote(signature=to_hex(signature), values=to_hex(found), rechecked=bool(rechecked >> i & 1))
            for i, (signature, found) in pairs
        )
        kept = commitment_in_json(commitment)
        case = FileCase(commitment=kept, signature=to_hex(node_signature), reason=reason, votes=votes)
        await self._keep(_name(commitment), case)
        return await self._chain.slash(commitment, node_signature, reason, signatures, values, rechecked)

    async def evidence(
        self, first: WorkCommitment, first_signature: bytes, second: WorkCommitment, second_signature: bytes
    ) -> Receipt:
        """As ChainClient.evidence."""
        case = CommitmentContradiction(
            first=commitment_in_json(first),
            first_signature=to_hex(first_signature),
            second=commitment_in_json(second),
            second_signature=to_hex(second_signature),
        )
        await self._keep(_name(first), case)
        return await self._chain.evidence(first, first_signature, second, second_signature)

    async def verdict_evidence(
        self, pool: int, work: bytes, first: Verdict, first_signature: bytes, second: Verdict, second_signature: bytes
    ) -> Receipt:
        """As ChainClient.verdict_evidence."""
        case = VerdictContradiction(
            first=verdict_in_json(first),
            first_signature=to_hex(first_signature),
            second=verdict_in_json(second),
            second_signature=to_hex(second_signature),
        )
        await self._keep(f"verdicts-{work.hex()[:16]}-{first_signature.hex()[:8]}", case)
        return await self._chain.verdict_evidence(pool, work, first, first_signature, second, second_signature)

    async def accepted_evidence(
        self, first: Accepted, first_signature: bytes, second: Accepted | Verdict, second_signature: bytes
    ) -> Receipt:
        """As ChainClient.accepted_evidence."""
        one = certificate_in_json(first)
        signatures = {"first_signature": to_hex(first_signature), "second_signature": to_hex(second_signature)}
        if isinstance(second, Accepted):
            case: Case = CertificateContradiction(first=one, second=certificate_in_json(second), **signatures)
        else:
            case = FalseCertificate(first=one, second=verdict_in_json(second), **signatures)
        await self._keep(f"certificate-{first.work.hex()[:16]}-{first_signature.hex()[:8]}", case)
        return await self._chain.accepted_evidence(first, first_signature, second, second_signature)

    async def _keep(self, name: str, case: Case) -> None:
        path = self._folder / f"{name}.json"
        try:
            await trio.to_thread.run_sync(write_case, path, case)
        except OSError as error:
            log.warning("case.not_kept", path=str(path), why=str(error))  # the case still goes to the chain


def _name(commitment: WorkCommitment) -> str:
    return f"{commitment.node.lower()}-{commitment.file_root.hex()[:16]}"
