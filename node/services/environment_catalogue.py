"""The catalogue of environments: what this node's owner publishes is offered to the pool, what others offer is shown.

Over the control socket: POST /environments {"file": ARCHIVE}, GET /environments?word=, GET /environments/NAME_OR_ROOT,
which fetches the package and says whether it is what its offer says.
"""

import time
from functools import partial
from pathlib import Path
from typing import Self

import msgspec
import structlog
import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from node.changes import every
from node.environments.package.archive import MAX_BYTES, unpack
from node.environments.package.manifest import Manifest, read_manifest
from node.errors import NodeError
from node.services.base import Service
from node.services.context import Context
from node.services.tasking.requests import read_body, refusal, told
from node.services.workplace import Workplace
from node.state.files import write_whole
from node.state.kept import cached
from node.swarm.catalogue import CatalogueEntry, Offer, ReviewBook, entries
from node.swarm.register import RegisteredWork
from protocol.errors import UNREADABLE, IntellectError
from protocol.messages import MAX_ABOUT, EnvironmentPublished

log = structlog.get_logger()
MOST_OWN = 16


class NotOffered(NodeError):
    """A package that nobody offers, or that nobody hands over."""


class PublishRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """file: an archive on this machine."""

    file: str


class EnvironmentCatalogue(Service):
    """kept: where this node's own offers are written down."""

    name = "catalogue"

    def __init__(self, context: Context, kept: Path) -> None:
        self._context, self._kept = context, kept
        self.own: dict[str, Offer] = {}
        self.reviews = ReviewBook()

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        return cls(place.context, place.directory / "published.json")

    async def run(self) -> None:
        if await trio.Path(self._kept).is_file():
            read = partial(msgspec.json.decode, await trio.Path(self._kept).read_bytes(), type=list[Offer])
            # An offer that is lost can be made again; a daemon that ends for it does nothing else either.
            self.own = {one.root: one for one in (cached(self._kept, read) or [])[:MOST_OWN]}
        self._context.state.register.follow(self._hear)

        async def say() -> None:
            for one in list(self.own.values()):
                await self._say(one)

        await every(60.0, say)  # seconds: the board forgets after four minutes what is not said again

    def entries(self) -> list[CatalogueEntry]:
        return entries(self._context.facts.standing(EnvironmentPublished), self.reviews)

    async def publish(self, file: Path) -> Offer:
        """Hold an archive, and offer it. Raises IntellectError, OSError."""
        if len(self.own) >= MOST_OWN:
            raise NotOffered("too many packages", f"this node offers {MOST_OWN} already", "publish at another node")
        # Unpacking a stranger's archive takes time in proportion to its size: in a thread.
        manifest = await trio.to_thread.run_sync(_read, file)
        blob = await self._context.blobs.add(file)
        # It is printed in others' terminals, where a control character could rewrite what stands there.
        about = "".join(c if c.isprintable() else " " for c in manifest.about)[:MAX_ABOUT]
        own = Offer(manifest.name, blob.root.hex(), blob.size, manifest.determinism, manifest.turns, about)
        self.own[own.root] = own
        encoded = msgspec.json.encode(list(self.own.values()))
        # Before the offer is said: after a restart it is said again.
        await trio.to_thread.run_sync(write_whole, self._kept, encoded)
        await self._say(own)
        return own

    async def fetched(self, entry: CatalogueEntry) -> tuple[Path, list[str]]:
        """The archive, and what its offer says otherwise. Raises NotOffered where nobody hands it over."""
        try:
            path = await self._context.blobs.fetch(
                bytes.fromhex(entry.root), list(entry.publishers), max_size=MAX_BYTES, timeout=20.0
            )
        except IntellectError as error:
            raise NotOffered(
                f"nobody hands {entry.name} over",
                f"{len(entry.publishers)} offer {entry.root[:16]}...: {error.why}",
                "try again when they are there, or choose another",
            ) from None
        manifest = await trio.to_thread.run_sync(_read, path)
        # An offer's fields are its publisher's word; what the archive says itself is what will run.
        said = {"name": entry.name, "determinism": entry.determinism, "turns": entry.turns}
        return path, [f"{key}: offered {value}, is {getattr(manifest, key)}" for key, value in said.items()
                      if getattr(manifest, key) != value]  # fmt: skip

    def find(self, text: str) -> CatalogueEntry:
        """By NAME, ROOT (or how it begins) or NAME@ROOT. Raises NotOffered where there is none, or several."""
        name, _, root = text.partition("@")
        found = [
            one
            for one in self.entries()
            if (one.name == name and one.root.startswith(root))
            # A root may be shortened, but not so far that two packages share the beginning by chance.
            or (not root and len(name) > 7 and one.root.startswith(name))
        ]
        if len({one.root for one in found}) != 1:
            known = ", ".join(f"{one.name}@{one.root[:16]}" for one in found[:5]) or "nobody offers it"
            raise NotOffered(f"{text[:80]!r} names {len(found)} packages", known, "name NAME@ROOT: env search")
        return found[0]

    def routes(self) -> list[Route]:
        async def publish(request: Request) -> Response:
            try:
                offered = msgspec.json.decode(await read_body(request), type=PublishRequest)
                return JSONResponse(msgspec.to_builtins(await self.publish(Path(offered.file))))
            except UNREADABLE as error:
                return refusal("the request cannot be read", str(error), "use: intellect-node env publish")
            except (IntellectError, OSError) as error:
                return told(error)

        most_shown = 500

        async def search(request: Request) -> Response:
            word = request.query_params.get("word", "").lower()
            found = [one for one in self.entries() if word in f"{one.name} {one.about.lower()} {one.root}"]
            return JSONResponse({"environments": msgspec.to_builtins(found[:most_shown]), "found": len(found)})

        async def show(request: Request) -> Response:
            try:
                entry = self.find(request.path_params["text"])
                path, differs = await self.fetched(entry)
            except (IntellectError, OSError) as error:
                return told(error)
            return JSONResponse({**msgspec.to_builtins(entry), "file": str(path), "differs": differs})

        return [
            Route("/environments", publish, methods=["POST"]),
            Route("/environments", search, methods=["GET"]),
            Route("/environments/{text}", show, methods=["GET"]),
        ]

    async def _say(self, own: Offer) -> None:
        # Milliseconds, as of every message that replaces an older one by its author.
        sequence = time.time_ns() // 1_000_000
        fields = {**msgspec.structs.asdict(own), "root": bytes.fromhex(own.root)}
        await self._context.board.post(EnvironmentPublished(pool=self._context.pool, sequence=sequence, **fields))

    def _hear(self, work: RegisteredWork) -> None:
        """A review's result is its reviewer's signed word, so a badge rests on nobody else's."""
        if work.task is not None and work.task.spec.kind == "review":
            spec = work.task.spec
            self.reviews.heard(spec.subject, work.task.id, work.node, work.commitment.file_root.hex(), spec.copies)


def _read(file: Path) -> Manifest:
    if file.stat().st_size > MAX_BYTES:
        raise NotOffered("the package is too large", f"{file} has more than {MAX_BYTES} bytes", "leave something out")
    return read_manifest(unpack(file.read_bytes()))
