"""Keeps every case that this node carries to the chain as a file, before it is sent.

So that its owner can look at it, hand it to somebody else, or carry it again by hand (`intellect-node contract
slash FILE`), whatever happens to this node or to its transaction.
"""

from collections.abc import Sequence
from pathlib import Path

import structlog
import trio

from node.chain.cases import Case, CommitmentContradiction, EpochCase, FileCase, commitment_in_json, write_case
from node.chain.client import ChainClient, Receipt
from protocol.identity import Address
from protocol.statements import Outcome, WorkCommitment

log = structlog.get_logger()


class CaseKeeper:
    """A chain client's way to slash, with the cases in `folder` as NODE-FILE.json or NODE-epoch-NUMBER.json."""

    def __init__(self, chain: ChainClient, folder: Path) -> None:
        self._chain = chain
        self._folder = folder

    async def slash(
        self, commitment: WorkCommitment, node_signature: bytes, reason: int, verdicts: Sequence[bytes]
    ) -> Receipt:
        """As ChainClient.slash."""
        case = FileCase(
            commitment=commitment_in_json(commitment),
            reason=reason,
            verdicts=_in_hex(verdicts),
            signature="0x" + node_signature.hex(),
        )
        await self._keep(_name(commitment), case)
        return await self._chain.slash(commitment, node_signature, reason, verdicts)

    async def invalidate(
        self,
        commitment: WorkCommitment,
        epoch: int,
        proof: Sequence[bytes],
        reason: int,
        verdicts: Sequence[bytes],
    ) -> Receipt:
        """Take a rejected file out of an epoch that is not mature; verdicts: with the outcome 'reject'."""
        case = FileCase(
            commitment=commitment_in_json(commitment),
            reason=reason,
            verdicts=_in_hex(verdicts),
            epoch=epoch,
            proof=_in_hex(proof),
        )
        await self._keep(_name(commitment) + "-pay", case)
        return await self._chain.invalidate(commitment, epoch, proof, Outcome.REJECT, reason, verdicts)

    async def invalidate_epoch(
        self, pool: int, node: Address, epoch: int, outcome: int, reason: int, verdicts: Sequence[bytes]
    ) -> Receipt:
        """As ChainClient.invalidate_epoch."""
        case = EpochCase(pool=pool, node=node, epoch=epoch, outcome=outcome, reason=reason, verdicts=_in_hex(verdicts))
        await self._keep(f"{node.lower()}-epoch-{epoch}", case)
        return await self._chain.invalidate_epoch(pool, node, epoch, outcome, reason, verdicts)

    async def evidence(
        self, first: WorkCommitment, first_signature: bytes, second: WorkCommitment, second_signature: bytes
    ) -> Receipt:
        """As ChainClient.evidence."""
        case = CommitmentContradiction(
            first=commitment_in_json(first),
            first_signature="0x" + first_signature.hex(),
            second=commitment_in_json(second),
            second_signature="0x" + second_signature.hex(),
        )
        await self._keep(_name(first), case)
        return await self._chain.evidence(first, first_signature, second, second_signature)

    async def _keep(self, name: str, case: Case) -> None:
        path = self._folder / f"{name}.json"
        try:
            await trio.to_thread.run_sync(write_case, path, case)
        except OSError as error:
            log.warning("case.not_kept", path=str(path), why=str(error))  # the case still goes to the chain


def _name(commitment: WorkCommitment) -> str:
    return f"{commitment.node.lower()}-{commitment.file_root.hex()[:16]}"


def _in_hex(words: Sequence[bytes]) -> tuple[str, ...]:
    return tuple("0x" + word.hex() for word in words)
