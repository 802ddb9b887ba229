"""An audit of a replica's round at a desk: its contribution, made again from what its manifests name.

What the replica kept for itself is read as a validator reads a stranger's. The learner's process is a validator's, too.
"""

import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from node.audit.findings import Audit, AuditFinding, Says
from node.recipe.desk import desk_batch, desk_root, read_composed
from node.state.files import as_named, mapped
from node.training.batch import encode_batch
from node.training.errors import TrainingError
from node.training.jobs import Check, JobFailure
from node.training.outer import OuterStateFile
from node.training.peer import ReplicaPeer
from node.training.pretrainer import peers_of
from node.training.program import settings_of
from node.training.replay import alone_in_its_world
from node.training.settings import TrainerSettings
from node.training.spool import Spool
from protocol.contribution import ContributionHeader
from protocol.errors import OwnFailure, ProtocolError
from protocol.manifest import ComposedBatch, MalformedManifest, decode_composed
from protocol.replicas import Used, broken_rule, groups_of
from protocol.run import RunSpec


def audit_replica(
    directory: Path, run: RunSpec, round_: int, replica_id: int, own: TrainerSettings | None = None
) -> Audit:
    """Of what a replica contributed to a round. Blocking. own: how to compute, None: as the trainer did. Raises
    TrainingError where the directory does not hold enough."""
    spool = Spool(directory / "spool")
    settings, began = own or settings_of(spool), time.monotonic()
    with alone_in_its_world(settings) as world, tempfile.TemporaryDirectory(prefix="intellect-audit-") as folder:
        peer = ReplicaPeer(spool, run, settings, world)
        path, before, after = peer.replica_files(round_, replica_id)
        if not path.exists():
            why = f"the directory keeps contributions to its newest two rounds, of {peers_of(spool, run)} replicas"
            raise TrainingError(f"replica {replica_id} of round {round_} is not there", why, "audit a later round")
        outer = OuterStateFile(peer.outer_file(round_))
        header = peer.header_of(path, outer)
        findings = [_manifest(spool, run, outer, header)]
        read = time.monotonic()
        if findings[0].says is Says.HOLDS:
            batches = tuple(_made(run, spool, directory, header, Path(folder)))
            places = [str(one) if one.exists() else "" for one in (before, after)]
            answer = peer.answer(
                Check(round_, str(path), (), replay=True, before=places[0], after=places[1], batches=batches)
            )
            findings.append(_replay(answer))
        seconds = {"manifest": read - began, "replay": time.monotonic() - read}
        here = peer.arithmetic
        differences = () if here == header.arithmetic else (f"computed by {here!r} instead of {header.arithmetic!r}",)
        return Audit(round_, here, header.arithmetic, differences, tuple(findings), seconds)


def _places(spool: Spool, run: RunSpec, round_: int, replica_id: int) -> range:
    """Of a replica's batches in a round."""
    assert run.diloco is not None  # the caller's
    first = (round_ * peers_of(spool, run) + replica_id) * run.diloco.inner_steps
    return range(first, first + run.diloco.inner_steps)


def _manifest(spool: Spool, run: RunSpec, outer: OuterStateFile, header: ContributionHeader) -> AuditFinding:
    """Whether the replica may have learnt from what its header names."""
    replicas, most = peers_of(spool, run), run.recipe.max_staleness
    # A slow replica makes fewer steps than a round has, and says so.
    places = list(_places(spool, run, outer.round, header.replica_id))[: len(header.batches)]
    try:
        if len(places) < len(header.batches):
            raise MalformedManifest("bad batch manifest", "the header names more batches than a round has")
        batches = [_named(spool, place, root) for place, root in zip(places, header.batches, strict=True)]
        for one in batches:
            one.check(desk_root(run), 0, outer.round, most)
        used = set[Used]()
        for round_ in range(max(outer.round - most - 1, 0), outer.round):
            for place in (place for other in range(replicas) for place in _places(spool, run, round_, other)):
                used.update(groups_of(_kept(spool, place)))
        # At a desk there are no verdicts, so every work counts as accepted.
        if why := broken_rule(outer.root, header.replica_id, replicas, batches, used, lambda work: True):
            raise MalformedManifest("bad batch manifest", why)
    # What the spool has lost is nobody's fault: others may have it as it was.
    except (OwnFailure, OSError) as error:
        why = f"{error.what}: {error.why}" if isinstance(error, OwnFailure) else str(error)
        return AuditFinding("manifest", Says.UNDECIDED, f"a part of it is not here: {why}")
    except ProtocolError as error:
        return AuditFinding("manifest", Says.BROKEN, error.why)
    works = len({work.file_root for one in batches for work in one.works})
    return AuditFinding(
        "manifest", Says.HOLDS, f"{len(batches)} batches of {works} files, all of its share and used once"
    )


def _named(spool: Spool, place: int, root: bytes) -> ComposedBatch:
    """The manifest that a header names. Raises OwnFailure where the spool has something else in its place,
    OSError where it has nothing, and MalformedManifest where that very one is none."""
    data = as_named(mapped(spool.works_path(place)), root, f"the manifest of batch {place}")
    return decode_composed(bytes(data))


def _kept(spool: Spool, place: int) -> ComposedBatch:
    """A manifest of before, which no header names here. Raises OwnFailure, OSError."""
    try:
        return read_composed(spool.works_path(place))
    except MalformedManifest as error:
        what = f"the manifest of batch {place} was damaged on this machine"
        raise OwnFailure(what, error.why, "audit a later round") from error


def _made(run: RunSpec, spool: Spool, directory: Path, header: ContributionHeader, folder: Path) -> Iterator[str]:
    """Files of the batches, from files and reports."""
    for place in list(_places(spool, run, header.round, header.replica_id))[: len(header.batches)]:
        path = folder / f"{place}.batch"
        path.write_bytes(encode_batch(desk_batch(run, directory / "rollouts", read_composed(spool.works_path(place)))))
        yield str(path)


def _replay(answer: JobFailure) -> AuditFinding:
    found, finding = answer.found, partial(AuditFinding, "replay")
    if answer.what or "lacks" in found:
        why = answer.why or f"its own state {' and '.join(found['lacks'])} the round is not here"
        return finding(Says.UNDECIDED, why)
    if "fault" in found or "state" in found:
        return finding(Says.BROKEN, found.get("fault") or found["state"])
    figures = {"distance": found["distance"]}
    if found["equal"]:
        return finding(Says.HOLDS, "the same bits: contribution, digests and what the replica keeps", figures)
    if found["same"]:
        return finding(Says.BROKEN, "in the same arithmetic its steps come to other bits", figures)
    most_distance = 0.25  # as validators of rounds have it (node.services.rounds.judging)
    far = found["distance"] > most_distance
    return finding(Says.BROKEN if far else Says.HOLDS, "in another arithmetic", figures | {"limit": most_distance})
