"""What contributions come to: fetched by a list's names, read against the run's rules, added in the list's order."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import structlog
import trio
from blake3 import blake3

from node.bounded_dict import BoundedDict
from node.services.context import Context
from node.state.files import as_named, mapped
from node.training.errors import TrainingError
from node.training.length import without_length
from node.training.outer import OuterStateFile, apply_round
from protocol.contribution import (
    Contribution,
    ContributionHeader,
    Expected,
    decode_contribution,
    decode_header,
    expected_of,
    most_bytes,
)
from protocol.errors import IntellectError, OwnFailure
from protocol.exchange import ContributionError, form_of
from protocol.pretraining import Diloco
from protocol.rounds import parts_of

log = structlog.get_logger()
Shapes = dict[str, tuple[int, ...]]


class Outer(NamedTuple):
    """An outer state that is here. state, size: of its file as a blob; opened: when it was made here, monotonic
    seconds."""

    round: int
    root: bytes
    path: Path
    state: bytes
    size: int
    opened: float


class Figures(msgspec.Struct, frozen=True):
    """One round that is over, as its contributions say. loss: of their last steps, weighted by tokens; tokens: or
    rollouts, learnt from; bits: of the largest contribution, per parameter; seconds: that it lasted here; batches:
    roots of the manifests that they name."""

    round: int
    loss: float | None
    tokens: int
    contributions: int
    bits: float
    seconds: float = 0.0
    batches: tuple[bytes, ...] = ()


class Adding:
    """late: rounds by which a contribution may be late; shapes, most_bytes: of the model and of a contribution, known
    once the learner has told them; roots: of the outer states that rounds began with here; fetch_seconds: for one."""

    def __init__(self, context: Context, rules: Diloco, fetch_seconds: float) -> None:
        self._fetch_seconds = fetch_seconds
        spec = context.run.spec
        self._context, self._rules, self._form, self._batch = context, rules, form_of(rules), spec.rollouts_per_batch
        # Of rollouts none: what it learnt from is dealt anew by then. Nor with fragments: the next round exchanges
        # other tensors.
        self.late = 0 if spec.replicas or rules.fragments > 1 else 1
        # Without its length: what was contributed before a run is lengthened stays a contribution to it.
        self._root = blake3(without_length(spec)).digest()
        self.shapes: Shapes = {}
        self._parts: list[Shapes] = []
        self.most_bytes = 0
        remembered = 256  # rounds whose root is kept
        self.roots: BoundedDict[int, bytes] = BoundedDict(remembered)

    def heed_model(self, shapes: dict[str, Any]) -> None:
        """What a round exchanges, fragment by fragment."""
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self._parts = [
            {name: self.shapes[name] for name in part} for part in parts_of(self.shapes, self._rules.fragments)
        ]
        self.most_bytes = max(most_bytes(part, self._form) for part in self._parts)

    async def fetch(self, files: Sequence[bytes]) -> dict[bytes, Path]:
        """Contributions by their roots, in this order. Raises TrainingError where one cannot be had, and OwnFailure
        where this machine cannot take it."""
        paths, own = dict[bytes, Path](), list[OwnFailure | OSError]()
        async with trio.open_nursery() as nursery:
            for root in files:
                nursery.start_soon(self._fetch, root, paths, own)
        # Before anything is said of members: what fails here says nothing of what they hand over.
        for error in own:
            if isinstance(error, OwnFailure):
                raise error
            remedy = "check the disk and the permissions of the state folder"
            raise OwnFailure("contributions of the round cannot be taken in here", str(error), remedy) from error
        if missing := len(set(files) - paths.keys()):
            what, why = f"{missing} contributions of the round cannot be had", "no member hands them over"
            raise TrainingError(what, why, "it is tried again")
        return {root: paths[root] for root in files}

    async def _fetch(self, root: bytes, paths: dict[bytes, Path], own: list[OwnFailure | OSError]) -> None:
        """own: takes what failed on this machine."""
        members, most = self._context.membership.addresses(), self.most_bytes
        try:
            paths[root] = await self._context.blobs.fetch(root, members, max_size=most, timeout=self._fetch_seconds)
        except (OwnFailure, OSError) as error:
            own.append(error)
        except IntellectError as error:
            log.info("contribution.unavailable", root=root.hex()[:16], why=error.why)

    def add(self, outer: Outer, paths: Mapping[bytes, Path], into: Path) -> Figures:
        """Make the next outer state; what cannot be decoded is left out, by everybody alike. Blocking. Raises
        OwnFailure where this machine's disk changed one.

        paths: in the order of the list; added in another one, float32 sums would have other bits."""
        expected, found, sizes = self._expected(outer), list[Contribution](), [0]
        shapes = self._parts[outer.round % len(self._parts)]
        for root, path in paths.items():
            data = as_named(mapped(path), root, "a contribution")
            try:
                one = decode_contribution(data, shapes, self._form, expected)
                one.check()
            except ContributionError as error:
                log.warning("contribution.left_out", round=outer.round, why=error.why)
                continue
            found.append(one)
            sizes.append(len(data))
        apply_round(OuterStateFile(outer.path), found, self._rules, into)
        tokens = sum(one.header.tokens for one in found)
        loss = sum(one.header.loss_last * one.header.tokens for one in found) / tokens if tokens else None
        named = tuple(root for one in found for root in one.header.batches)
        parameters = sum(math.prod(shape) for shape in self.shapes.values())
        return Figures(outer.round, loss, tokens, len(found), 8 * max(sizes) / parameters, batches=named)

    def _expected(self, outer: Outer) -> Expected:
        """What a contribution in a list may be: of its round, or late by one. Of those that began before this state the
        quorum has seen that they begin at the right one; a node that has just come does not know it."""
        late = {outer.round - 1: None} if self.late else {}
        root = outer.root if self._rules.begins_at(outer.round) == outer.round else None
        return expected_of(self._rules, self._root, late | {outer.round: root}, self._batch)

    def header_of(self, path: Path, round_: int) -> ContributionHeader:
        """What a contribution to a round says of itself. Blocking. Raises ContributionError, OSError."""
        begins = self.roots.get(self._rules.begins_at(round_))
        expected = expected_of(self._rules, self._root, {round_: begins}, self._batch)
        return decode_header(mapped(path), expected)[0]

    def named_in(self, round_: int, paths: Mapping[bytes, Path]) -> tuple[bytes, ...]:
        """The manifests that contributions name. Blocking. Raises OwnFailure as `add`."""
        found = list[bytes]()
        for root, path in paths.items():
            as_named(mapped(path), root, "a contribution")
            try:
                found += self.header_of(path, round_).batches
            except ContributionError as error:  # everybody left it out
                log.info("contribution.not_read", round=round_, why=str(error))
        return tuple(found)
