"""What counts for pay: certified works, and why one counts no more.

A node shows its certificates as a blob; validators check the signatures, and compute from the union of what all nodes
show a table (`table.py`).
"""

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from protocol.codec import decode_msgpack
from protocol.errors import ProtocolError
from protocol.identity import Address, address_bytes, address_from_bytes
from protocol.pages import Name, Word
from protocol.run import RunSpec
from protocol.statements import Accepted, Rechecked, Verdict, WorkCommitment, work_id

# Far beyond what a node makes in an epoch; it bounds how many signatures a stranger's blob makes us check.
MAX_WORKS = 65_536
"""Works of one node in one epoch that a blob may name."""
MAX_SHOWN_BYTES = 16 * 2**20
MAX_REFUSALS = 4_096
MAX_SIGNATURES = 16
"""Of one work: a pool has no more validators."""

Signature = Annotated[bytes, msgspec.Meta(min_length=65, max_length=65)]
Epoch = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Signatures = Annotated[tuple[Signature, ...], msgspec.Meta(max_length=MAX_SIGNATURES)]

# what is paid


def of_file(commitment: WorkCommitment) -> Accepted:
    """A worker's file that was accepted."""
    return Accepted(commitment.pool, commitment.node, commitment.epoch, work_id(commitment), commitment.units)


def of_judgement(run: RunSpec, validator: Address, verdict: Verdict, checked: int, groups: int) -> Accepted:
    """A validator's verdict that was decided as said; checked: groups that it recomputed, of `groups`.

    Units: judging * tokens * the paid share of the groups, rounded down. The work's id names the judged work where a
    file's names the file, and no units: one judgement is one work, whatever is said of its size.
    """
    id = work_id(verdict)
    # Capped: a validator that recomputes everything in every file would else be paid without end for work that nobody
    # asked.
    paid = min(checked / groups, run.pay.judged_share)
    # Shifted by one bit: an index stays below 2^63, which is what SQLite and readers of JSON can hold.
    place = (verdict.policy_root, int.from_bytes(id[:8]) >> 1, id, 0, verdict.epoch)
    work = work_id(WorkCommitment(verdict.pool, validator, *place))
    return Accepted(verdict.pool, validator, verdict.epoch, work, int(run.pay.judging * verdict.units * paid))


def of_policy(run: RunSpec, pool: int, trainer: Address, step: int, root: bytes, epoch: int) -> Accepted:
    """A trainer's policy for which enough was accepted: a work whose file is the policy itself. Its id names no epoch:
    a policy that is announced again in another one is the same work."""
    units = policy_units(run)
    return Accepted(pool, trainer, epoch, work_id(WorkCommitment(pool, trainer, root, step, root, units)), units)


def policy_units(run: RunSpec) -> int:
    """What a policy is paid."""
    rollout = run.rollout
    most = rollout.prompts_per_step * rollout.group_size * rollout.max_output_tokens
    return min(int(run.pay.training * most), 2**32 - 1)


def contribution_units(run: RunSpec, learnt: int) -> int:
    """What a contribution to a round is paid. learnt: tokens of text, or rollouts: of these as much as a policy that is
    learnt from so many."""
    return min(int(run.pay.training * learnt * run.rollout.max_output_tokens), 2**32 - 1) if run.seats else learnt


def most_files(run: RunSpec) -> int:
    """Submissions that one node may make for one policy: eight times what everybody learns from it, and some; one
    contribution a round.

    More than that nobody can use, and whoever commits to more only fills other people's tables.
    """
    return 1 if run.pretraining is not None else 8 * run.files_per_policy + 32


# what a node shows


class ShownWork(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One work with the signatures that its node has: of Accepted, by different validators."""

    work: Word
    units: Annotated[int, msgspec.Meta(ge=1, lt=2**32)]
    signatures: Signatures


class Shown(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """All that one node shows of one epoch, by rising work."""

    node: Name
    epoch: Epoch
    works: Annotated[tuple[ShownWork, ...], msgspec.Meta(max_length=MAX_WORKS)]

    def statement(self, pool: int, work: ShownWork) -> Accepted:
        """What the signatures of a work are of."""
        return Accepted(pool, address_from_bytes(self.node), self.epoch, work.work, work.units)


def encode_certificates(node: Address, epoch: int, works: Iterable[ShownWork]) -> bytes:
    """The blob that a node shows of an epoch."""
    # One order, so that the same certificates are the same blob, whoever shows them.
    ordered = sorted(works, key=lambda one: one.work)[:MAX_WORKS]
    return msgspec.msgpack.encode(Shown(address_bytes(node), epoch, tuple(ordered)))


def decode_certificates(data: bytes, node: Address, epoch: int) -> Shown:
    """Parse what a stranger shows; raises ProtocolError, also where it is another node's, another epoch's or doubled.
    Checks no signature."""
    what = "malformed certificates"
    shown = decode_msgpack(data, Shown, limit=MAX_SHOWN_BYTES, error=ProtocolError, what=what)
    if shown.node != address_bytes(node) or shown.epoch != epoch:
        raise ProtocolError(what, "they are another node's or another epoch's")
    # Strictly rising: one comparison finds both a wrong order and a work that is shown twice.
    if any(one.work >= two.work for one, two in zip(shown.works, shown.works[1:], strict=False)):
        raise ProtocolError(what, "the works are doubled or not in order")
    return shown


# what a table rests on


class Source(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, order=True):
    """A blob of certificates that went into a table. node: 20 bytes; root, size: of the blob."""

    epoch: Epoch
    node: Name
    root: Word
    size: Annotated[int, msgspec.Meta(gt=0, le=MAX_SHOWN_BYTES)]


class Said(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One validator's signed word against a work; rechecked: found in a dispute."""

    outcome: Annotated[int, msgspec.Meta(ge=1, le=2)]
    reason: Annotated[int, msgspec.Meta(ge=0, le=255)]
    values: Word
    rechecked: bool
    signature: Signature


class Refusal(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Why a certified work counts no more: a quorum refused it before its window was over. commitment: its fields
    behind the pool."""

    node: Name
    policy_root: Word
    index: Epoch
    file_root: Word
    units: Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
    epoch: Epoch
    said: Annotated[tuple[Said, ...], msgspec.Meta(max_length=MAX_SIGNATURES)]

    def statements(self, pool: int) -> list[tuple[Verdict, bytes]]:
        """(what was signed, its signature)."""
        place = (pool, address_from_bytes(self.node), self.policy_root, self.index, self.file_root, self.units)
        return [
            (
                (Rechecked if one.rechecked else Verdict)(*place, one.outcome, one.reason, self.epoch, one.values),
                one.signature,
            )
            for one in self.said
        ]

    def work(self, pool: int) -> bytes:
        """The work's id."""
        place = (self.policy_root, self.index, self.file_root, self.units, self.epoch)
        return work_id(WorkCommitment(pool, address_from_bytes(self.node), *place))


def refusal_of(said: Sequence[tuple[Verdict, bytes]]) -> Refusal:
    """The proof that a quorum refused a work, of signed verdicts about it (at least one)."""
    verdict = said[0][0]
    kept = [Said(v.outcome, v.reason, v.values, isinstance(v, Rechecked), signature) for v, signature in said]
    place = (verdict.policy_root, verdict.index, verdict.file_root, verdict.units, verdict.epoch)
    return Refusal(address_bytes(verdict.node), *place, tuple(kept[:MAX_SIGNATURES]))
