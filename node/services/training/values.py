"""The values that the trainer may believe: what two validators agree on, or what it recomputed itself; and where they
come from, so that a manifest can name them and anybody can fetch them again.

A report is one validator's opinion. The rows of a group are believed if the reports of two validators hold the same
ones (rewards exactly, log-probabilities token by token within the tolerance). What only one report has, and what two
have differently, is recomputed here, or not used. By a lot of its own the trainer recomputes what validators agree on,
too, so that two who collude are found out, and so is the only validator of a pool whose quorum is one: there, one
report is used unchecked between two lots. Whoever said what is not so is not believed here any more.
"""

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import structlog
import trio
from blake3 import blake3

from node.bounded_dict import BoundedDict
from node.inference.client import EngineProcess
from node.inference.wire import Inspect, Inspected, LoadPolicy
from node.recipe.pool import Origin
from node.services.context import Context
from node.state.facts import keep, recall
from node.state.files import as_named
from node.swarm.disputes import STRIKES
from node.swarm.register import RegisteredWork, WorkId
from protocol.checks import HEARSAY, Reason, reason_name
from protocol.disputes import UNDECIDED, Conflict, VerdictConflict
from protocol.errors import IntellectError, OwnFailure, ProtocolError
from protocol.identity import Address, address_bytes
from protocol.lots import draws_file, unpack_groups
from protocol.messages import DIGEST, NO_PROMPTS, Judgement
from protocol.rollout import ReportHeader, ReportRow, ValidatorReport, decode_report, encode_report
from protocol.run import RolloutSpec
from protocol.statements import VerdictOutcome
from protocol.values import report_fault, rows_differ

log = structlog.get_logger()
_ORDER = "intellect-node report order v1"
Rows = dict[int, list[ReportRow]]
"""Group -> its samples, in order."""
DISTRUSTED = "distrusted_reports"
REPORT_NAME = "own-report-{}.arrow"


class ReportSource(msgspec.Struct, frozen=True):
    """A report: who wrote it, its root and size."""

    author: Address
    root: bytes
    size: int


class LookShares(NamedTuple):
    """Shares of the files that are recomputed here: where validators agree, where one is alone, and rewards by
    themselves, which are cheap. Alone, a forger of every file escapes 20 of them with a chance of 0.3 %."""

    agreed: float = 1 / 64
    alone: float = 1 / 4
    rewards: float = 1 / 8


class OwnLook:
    """This node's own engine, started when it is first needed. image: the file of a policy by step; scratch: a place
    for reports."""

    def __init__(self, context: Context, child: EngineProcess, image: Callable[[int], Path], scratch: Path) -> None:
        self._context = context
        self._child = child
        self._image = image
        self._scratch = scratch
        self._wanted, self._ready = trio.Event(), trio.Event()
        self._broken = ""
        self._waiting = 0

    async def run(self) -> None:
        """Keep the engine, once it is wanted, until cancelled. One that does not start costs its looks, no more."""
        await self._wanted.wait()
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._child.run)
                self._ready.set()
        except* IntellectError as group:
            # Whoever waits for the engine goes on as well, and finds `_broken`.
            self._broken = str(group.exceptions[0])
            log.warning("own_look.unavailable", why=self._broken)
            self._ready.set()

    async def at(self, work: RegisteredWork, path: Path, groups: Sequence[int]) -> tuple[Inspected, Rows] | None:
        """What this node finds in a file, and the rows of `groups`; None if it cannot look now."""
        most_waiting = 8  # files: of further ones the groups that need this node's own look are not used
        if self._broken or self._waiting >= most_waiting:
            return None
        commitment, report = work.commitment, self._scratch / REPORT_NAME.format(work.id.hex()[:16])
        order = msgspec.structs.replace(Inspect.of(commitment, path, report), groups=tuple(groups))
        load = LoadPolicy(policy_root=commitment.policy_root, step=work.step, path=str(self._image(work.step)))
        self._waiting += 1
        try:
            self._wanted.set()
            await self._ready.wait()
            if self._broken:
                return None
            found = await self._child.ask(order, timeout=120.0, policy=load)
            return found, await own_rows(found, self._context.run.spec.rollout)
        except IntellectError as error:
            log.warning("own_look.failed", work=work.id.hex()[:16], why=error.why)
            return None
        finally:
            self._waiting -= 1


class Believed(msgspec.Struct, frozen=True):
    """What may be trained on of one file. path: of the file; rows: of the groups; votes: of those whose reports were
    had; sources: the report from which a group's rows are, where it is not an own look; lacks: whether somebody
    looked at more groups, and the values of these may come yet."""

    path: Path
    rows: Rows
    votes: tuple[Judgement, ...]
    sources: Mapping[int, ReportSource] = {}
    lacks: bool = False


class Values:
    """Which values the trainer believes. look: None where this node cannot recompute anything; taken_back: told of
    works whose values rested on somebody who is not believed any more; hopeless: told why nobody is left to believe."""

    def __init__(
        self,
        context: Context,
        look: OwnLook | None,
        *,
        taken_back: Callable[[WorkId], object],
        hopeless: Callable[[str], None] = lambda why: None,
        shares: LookShares | None = None,
    ) -> None:
        self._shares = shares or LookShares()
        self._context = context
        self._rollout = context.run.spec.rollout
        self._tolerance = context.run.spec.audit.logprob_tolerance
        self._look = look
        self._taken_back = taken_back
        self._hopeless = hopeless
        # Never told, and new at each start: no validator can know which files are recomputed here.
        self._secret = secrets.token_bytes(32)
        remembered = 4096
        self._alone: BoundedDict[WorkId, Address] = BoundedDict(remembered)
        self._strikes: Counter[Address] = Counter()
        self._unserved: Counter[Address] = Counter()
        self.distrusted: dict[Address, str] = {}
        self.counts: Counter[str] = Counter()

    async def recall(self) -> None:
        """Who was not believed before a restart."""
        self.distrusted = await recall(self._context.journal, DISTRUSTED, dict[Address, str]) or {}

    def status(self) -> dict[str, object]:
        counted = {name: self.counts[name] for name in ("agreed", "alone", "recomputed", "unused")}
        return {"groups": counted, "not_served": dict(self._unserved), "distrusted": self.distrusted}

    async def of(
        self, work: RegisteredWork, votes: Mapping[Address, Judgement], fetch: Callable[[], Awaitable[Path]]
    ) -> Believed | None:
        """What may be believed of an accepted file; None if this node's own look refuses it. votes: of believed
        validators that accept it; fetch: brings the file. Raises IntellectError if that cannot be had. The caller holds
        file and reports."""
        silent = set(self._context.membership.validators) - votes.keys()
        voted = votes = {a: vote for a, vote in votes.items() if vote.report_root and a not in self.distrusted}
        fetched, away = await self._fetch_reports(work, votes)
        reports = in_order(work, fetched)
        path = await fetch()
        # Of one report there is nothing to compare.
        agreed, alone, apart = (
            await trio.to_thread.run_sync(_sorted, reports, self._tolerance)
            if len(reports) > 1
            else _sorted(reports, self._tolerance)
        )
        wanted = sorted(apart) if self._context.quorum == 1 else sorted(apart | alone.keys())
        rows = dict(agreed)
        found = await self._recompute(work, path, wanted, reports, votes)
        if found is None:
            return None
        rows |= found
        if self._context.quorum == 1:
            unchecked = {group: rest for group, rest in alone.items() if group not in rows}
            rows |= {group: rest for group, (_, rest) in unchecked.items()}
            self.counts["alone"] += len(unchecked)
            for author, _ in unchecked.values():
                self._alone[work.id] = author
        self.counts["agreed"] += len(agreed)
        self.counts["unused"] += len((apart | alone.keys()) - rows.keys())
        sources = whose(rows, reports, votes)
        # Asked once more: the own look may just have ended the belief in one of them.
        votes = {a: vote for a, vote in votes.items() if a in reports and a not in self.distrusted}
        looked = (unpack_groups(vote.checked, work.groups) or () for vote in voted.values())
        lacks = bool(away or silent) and (not rows or {group for groups in looked for group in groups} > rows.keys())
        return Believed(path, rows if votes else {}, tuple(votes.values()), sources, lacks)

    # what others say

    async def _fetch_reports(
        self, work: RegisteredWork, votes: Mapping[Address, Judgement]
    ) -> tuple[dict[Address, Rows], list[Address]]:
        """The reports of all who accept a file, at once, and whose may come yet: one that is not served costs a second
        and not a time-out. Equal reports have one root, and any of their authors serves it."""
        by_root: dict[bytes, list[Address]] = {}
        for author, vote in votes.items():
            by_root.setdefault(vote.report_root, []).append(author)
        had: dict[bytes, Path] = {}
        own = set[Address]()  # whose reports this machine could not take in or read, which says nothing of them
        began = self._context.clock.monotonic()

        async def one(root: bytes, authors: list[Address]) -> None:
            said = max(votes[author].report_size for author in authors)  # one that says too little spoils nobody's
            limit = min(said, self._rollout.most_report_bytes)
            try:
                had[root] = await self._context.blobs.fetch(root, authors, max_size=limit, timeout=30.0)
            except (OwnFailure, OSError) as error:
                own.update(authors)
                log.warning("report.not_taken_in", validators=authors, why=str(error))
                return
            except IntellectError as error:
                log.info("report.unavailable", validators=authors, why=error.why)
                return
            # Once one report is here the others get as long again, a second at least: a file must not wait for whoever
            # serves none.
            seconds = max(1.0, self._context.clock.monotonic() - began)
            nursery.cancel_scope.deadline = min(nursery.cancel_scope.deadline, trio.current_time() + seconds)

        async with trio.open_nursery() as nursery:
            for root, authors in by_root.items():
                nursery.start_soon(one, root, authors)
        reports: dict[Address, Rows] = {}
        away = [author for root, authors in by_root.items() if root not in had for author in authors]
        self._unserved.update(author for author in away if author not in own)
        for root, authors in by_root.items():
            if root not in had:
                continue
            for author in authors:
                try:
                    given = (self._rollout, work.commitment.file_root, votes[author], had[root])
                    reports[author] = await trio.to_thread.run_sync(read_report, *given)
                except (OwnFailure, OSError) as error:
                    away.append(author)
                    log.warning("report.not_read", validator=author, work=work.id.hex()[:16], why=str(error))
                except IntellectError as error:
                    log.warning("report.unusable", validator=author, work=work.id.hex()[:16], why=error.why)
        return reports, away

    # what this node finds itself

    async def _recompute(
        self,
        work: RegisteredWork,
        path: Path,
        wanted: list[int],
        reports: Mapping[Address, Rows],
        votes: Mapping[Address, Judgement],
    ) -> Rows | None:
        """Groups that are recomputed here because they must be, or by lot; None if that shows that the file must not be
        used."""
        lot = self._shares.alone if self._context.quorum == 1 else self._shares.agreed
        # The whole file then: recomputing only what is in doubt would never find two that lie alike.
        if draws_file(self._secret, work.id, lot):
            wanted = sorted({*wanted, *(group for rows in reports.values() for group in rows)})
        if self._look is None or not (wanted or draws_file(self._secret, work.id, self._shares.rewards)):
            return {}
        looked = await self._look.at(work, path, wanted)
        if looked is None:
            return {}
        found, rows = looked
        self.counts["recomputed"] += len(rows)
        for author, vote in votes.items():
            finding = contradiction(found, rows, vote, reports.get(author, {}), self._tolerance)
            if finding is not None:
                await self._blame(author, work, finding)
        return rows if found.outcome == VerdictOutcome.ACCEPT else None

    async def _blame(self, author: Address, work: RegisteredWork, finding: VerdictConflict) -> None:
        """Believe a validator less, or no more: what it said is not what this node computes."""
        self._strikes[author] += 1
        what = f"{finding.what} ({work.title}, of {work.node})"
        log.warning("report.contradicted", validator=author, what=what)
        if author in self.distrusted or not (finding.objective or self._strikes[author] >= STRIKES):
            return
        self.distrusted[author] = what
        await keep(self._context.journal, DISTRUSTED, self.distrusted)
        self._context.progress.trouble(f"validator {author} is not believed any more: {what}")
        for id, by in list(self._alone.items()):
            if by == author:
                self._taken_back(id)
        # Validators alone: a trainer that stands by gives no verdicts, and must not keep a hopeless run going.
        membership = self._context.membership
        seated = filter(membership.is_validator, membership.validators)
        if not set(seated) - self.distrusted.keys():
            self._hopeless(f"no validator is left whose values can be believed: {author}: {what}")


def _sorted(
    reports: Mapping[Address, Rows], tolerance: float
) -> tuple[Rows, dict[int, tuple[Address, list[ReportRow]]], set[int]]:
    """(groups on which two reports agree, those that one has, those that reports have differently)."""
    agreed: Rows = {}
    alone: dict[int, tuple[Address, list[ReportRow]]] = {}
    apart: set[int] = set()
    for group in {group for rows in reports.values() for group in rows}:
        said = [(author, rows[group]) for author, rows in reports.items() if group in rows]
        if len(said) == 1:
            alone[group] = said[0]
        # All of them, not two of three: a third that differs is reason enough to look.
        elif all(rows_differ(said[0][1], rows, tolerance) is None for _, rows in said[1:]):
            agreed[group] = said[0][1]
        else:
            apart.add(group)
    return agreed, alone, apart


def read_report(rollout: RolloutSpec, file_root: bytes, vote: Judgement, path: Path) -> Rows:
    """The rows of a report that is about this file and holds what its author signed. Raises ProtocolError, OwnFailure
    and OSError."""
    report = decode_report(as_named(path.read_bytes(), vote.report_root, "a report"), rollout.samples_per_file)
    check_report(report, file_root, vote, rollout.prompts_per_file, rollout.group_size)
    return by_group(report.rows)


def check_report(report: ValidatorReport, file_root: bytes, vote: Judgement, groups: int, size: int) -> None:
    """Raises ProtocolError for one that is about another file, or says otherwise than its author signed. groups: of
    the file; size: samples of each."""
    if report.header.file_root != file_root.hex():
        raise ProtocolError("unusable report", "it is not about this file")
    fault = report_fault(report, vote, groups, size)
    if fault is not None:
        raise ProtocolError("unusable report", fault)


async def own_rows(found: Inspected, rollout: RolloutSpec) -> Rows:
    """The rows of the report that this node's own engine wrote, which is needed no more then."""
    if not found.report_path:
        return {}
    return await trio.to_thread.run_sync(_taken, Path(found.report_path), rollout)


def _taken(report: Path, rollout: RolloutSpec) -> Rows:
    try:
        data = report.read_bytes()
    finally:
        report.unlink(missing_ok=True)
    return by_group(decode_report(data, rollout.samples_per_file).rows)


def contradiction(
    found: Inspected, rows: Rows, vote: Judgement, theirs: Rows, tolerance: float
) -> VerdictConflict | None:
    """What an accepting verdict and its report say that is not what this node finds. rows, theirs: recomputed here, and
    in the report."""
    reason = Reason(found.reason)
    # Who was to see other prompts finds other answers wrong, and neither is at fault.
    if found.prompts != vote.prompts and NO_PROMPTS not in (found.prompts, vote.prompts):
        return None
    if found.outcome != VerdictOutcome.ACCEPT:
        if found.outcome != VerdictOutcome.SLASH or reason in HEARSAY:
            return None  # arithmetic: one file says little, and the pool's own rules decide
        what = f"it accepted a file that is refused: {reason_name(reason)}"
        return VerdictConflict(Conflict.CONTRADICTION, what, objective=True)
    for at in range(0, min(len(found.rewards), len(vote.rewards)), DIGEST):
        own, said = found.rewards[at : at + DIGEST], vote.rewards[at : at + DIGEST]
        if own != said and UNDECIDED not in (own, said):
            what = f"the rewards of group {at // DIGEST} are others"
            return VerdictConflict(Conflict.CONTRADICTION, what, objective=True)
    differing = (rows_differ(rows[group], theirs[group], tolerance) for group in sorted(rows.keys() & theirs.keys()))
    return next((finding for finding in differing if finding is not None), None)


def by_group(rows: Sequence[ReportRow]) -> Rows:
    """The rows of a report, group by group."""
    found: Rows = {}
    for row in rows:
        found.setdefault(row.group, []).append(row)
    return found


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
        info = await context.blobs.add(await trio.to_thread.run_sync(encode_report, report))
        known |= dict.fromkeys(own, ReportSource(context.key.address, info.root, info.size))
    size = work.signed.message.size
    return {
        group: Origin(work.commitment, size, address_bytes(one.author), one.root, one.size)
        for group, one in known.items()
    }
