"""Where the values of a file's groups come from, so that a manifest can name them and anybody can fetch them again."""

from collections.abc import Mapping

import msgspec
from blake3 import blake3

from node.recipe.pool import Origin
from node.services.context import Context
from node.swarm.register import RegisteredWork
from protocol.identity import Address, address_bytes
from protocol.messages import Judgement
from protocol.rollout import ReportHeader, ReportRow, ValidatorReport, encode_report

_ORDER = "intellect-node report order v1"
Rows = dict[int, list[ReportRow]]
"""Group -> its samples, in order."""


class ReportSource(msgspec.Struct, frozen=True):
    """A report: who wrote it, its root and size."""

    author: Address
    root: bytes
    size: int


def in_order(work: RegisteredWork, reports: Mapping[Address, Rows]) -> dict[Address, Rows]:
    """Reports in the order in which they are heeded: of two that agree, not the one that came first."""

    def place(author: Address) -> bytes:
        return blake3(work.id + address_bytes(author), derive_key_context=_ORDER).digest()

    return {author: reports[author] for author in sorted(reports, key=place)}


def whose(rows: Rows, reports: Mapping[Address, Rows], votes: Mapping[Address, Judgement]) -> dict[int, ReportSource]:
    """Group -> the report whose very rows are believed. A group that this node recomputed is not among them."""
    return {
        group: ReportSource(author, votes[author].report_root, votes[author].report_size)
        for group, believed in rows.items()
        for author, said in reports.items()
        # By identity: another report may have equal rows, and was not the one that was heeded.
        if said.get(group) is believed
    }


async def origins_of(
    context: Context, work: RegisteredWork, rows: Rows, sources: Mapping[int, ReportSource]
) -> dict[int, Origin]:
    """Of every group that is believed. What this node recomputed becomes a report of its own, for others to fetch."""
    own = sorted(rows.keys() - sources.keys())
    known = dict(sources)
    if own:
        header = ReportHeader(work.commitment.file_root.hex(), work.commitment.policy_root.hex())
        report = ValidatorReport(header, tuple(row for group in own for row in rows[group]))
        info = await context.blobs.add(encode_report(report))
        known |= dict.fromkeys(own, ReportSource(context.key.address, info.root, info.size))
    size = work.signed.message.size
    return {
        group: Origin(work.commitment, size, address_bytes(one.author), one.root, one.size)
        for group, one in known.items()
    }
