"""When this node rests: while its owner paused it, outside of its hours, and while somebody else uses the machine.

A pause is a file in the state directory, so it outlives the daemon. Hours are a moment that is waited for; the machine
is looked at in a thread, every 15 s. Trainers and validators do not rest: others wait for what they promised.
"""

import math
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, Self

import msgspec
import structlog
import trio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from node.changes import Bell, every
from node.config import Role
from node.errors import NodeError
from node.guest.machine import MachineLook, UseWatch, machine_cores
from node.guest.rest import PAUSED, GuestRest
from node.guest.settings import LONGEST, GuestSettings, read_guest
from node.services.base import Service
from node.services.context import Context
from node.services.workplace import Workplace
from node.state.files import write_whole
from node.status_schema import RestPart
from protocol.errors import UNREADABLE

log = structlog.get_logger()
NAME = "pause.json"
MAX_BYTES = 4096


class Pause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Its owner's word. until: unix seconds, None: until it is resumed."""

    until: float | None = None


class PauseRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """seconds: how long, None: until it is resumed; patience: seconds that what is under way may last, None: as the
    settings have it."""

    seconds: float | None = None
    patience: float | None = None

    def fault(self) -> str:
        good = lambda value, most: value is None or (math.isfinite(value) and 0 <= value <= most)
        return "" if good(self.seconds, LONGEST) and good(self.patience, 86_400.0) else "a time is out of bounds"


class CannotRest(NodeError):
    """Others wait for what a node of this role promised."""


class RestKeeper(Service):
    """look: at what others use of the machine, None where that does not matter; cores: that the machine has."""

    name = "rest-keeper"

    def __init__(
        self,
        context: Context,
        rest: GuestRest,
        guest: GuestSettings,
        role: Role,
        directory: Path,
        look: MachineLook | None = None,
        cores: int = 1,
    ) -> None:
        self._context, self._rest, self._guest, self._role = context, rest, guest, role
        self._path = directory / NAME
        self._look, self._cores = look, cores
        self._pause: Pause | None = None
        self._bell = Bell()
        self._until: float | None = None
        self._change: tuple[float, float | None] = (math.inf, None)
        """When the hours begin or end next, and since when that is known."""
        self._idle_since: float | None = None
        self._use = ""

    @classmethod
    async def open(cls, place: Workplace) -> Self:
        guest = read_guest(place.config.guest)
        watch = UseWatch(gpus=any(gpu.vendor == "nvidia" for gpu in place.hardware.gpus)) if guest.only_idle else None
        own = (place.context, place.rest, guest, place.role, place.directory)
        return cls(*own, watch, machine_cores())

    def routes(self) -> list[Route]:
        pause = Route("/pause", self._asked_to_pause, methods=["POST"])
        return [pause, Route("/resume", self._asked_to_resume, methods=["POST"])]

    async def start(self, nursery: trio.Nursery) -> None:
        """Ready once it is known whether the node rests: no engine is loaded for one that does."""
        self._pause = await trio.to_thread.run_sync(read_pause, self._path)
        if self._role != "worker":
            self._pause = None  # of the time when it was a worker
            return
        if self._look is not None:
            self._rest.say("machine", f"looks for {self._guest.idle_minutes:g} minutes whether others use the machine")
        self._judge()
        nursery.start_soon(self.run)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            if self._look is not None:
                nursery.start_soon(self._watch, self._look)
            nursery.start_soon(self._tell)
            while True:
                due = self._judge()
                # Seconds at most that a moment of the wall clock is waited for at a time: machines sleep, and clocks
                # are put right.
                await self._bell.wait(min(due - self._context.clock.wall(), 60.0) if due < math.inf else due)

    # its owner's word

    async def pause(self, wanted: PauseRequest) -> None:
        """Raises CannotRest, and StateError where it cannot be kept."""
        if self._role != "worker":
            raise CannotRest(
                f"a {self._role} cannot be paused", self._cost(), "to stop it all the same: intellect-node stop"
            )
        until = None if wanted.seconds is None else self._context.clock.wall() + wanted.seconds
        await trio.to_thread.run_sync(write_whole, self._path, msgspec.json.encode(Pause(until)))
        self._pause = Pause(until)
        self._rest.say("owner", "", None)
        self._judge(wanted.patience)
        self._bell.ring()

    async def resume(self) -> None:
        await trio.to_thread.run_sync(lambda: self._path.unlink(missing_ok=True))
        self._pause = None
        self._judge()
        self._bell.ring()

    async def _asked_to_pause(self, request: Request) -> Response:
        try:
            wanted = msgspec.json.decode(await request.body() or b"{}", type=PauseRequest)
            if fault := wanted.fault():
                return _refused("the node is not paused", fault, "use: intellect-node pause --for 2h")
            await self.pause(wanted)
        except UNREADABLE as error:
            return _refused("the request cannot be read", str(error), "use: intellect-node pause")
        except NodeError as error:
            return _refused(error.what, error.why, error.remedy)
        except OSError as error:
            return _refused("the pause cannot be kept", f"{self._path}: {error.strerror}", "free space there")
        return JSONResponse({"why": self._rest.why, "until": self._until})

    async def _asked_to_resume(self, _: Request) -> Response:
        await self.resume()
        return JSONResponse({"why": self._rest.why})

    def _cost(self) -> str:
        """Who waits for a node that promised more than files."""
        context, membership = self._context, self._context.membership
        now = context.clock.monotonic()
        if self._role == "trainer":
            if membership.trainer != membership.own:
                return "the others count on its replay and its seat: one that rests could not take over"
            others = [one for one in membership.terms.trainers if one != membership.own]
            if not others:
                return "it leads, and the pool has no other trainer: nothing is learnt until it is back"
            return f"it leads: silent for a while, it loses its term and its pay to one of {len(others)} standbys"
        left = [one for one in membership.validators if one != membership.own and membership.table.is_live(one, now)]
        vote_set, register = context.state.vote_set, context.state.register
        works = (work.id for node in membership.addresses() for work in register.of(node))
        open_ = sum(vote_set.verdict_of(id, membership.own) is None for id in works)
        words = f"{open_} works wait for its verdict, and its lots are pledged"
        if len(left) < context.quorum:
            why = f"of the others {len(left)} live, and {context.quorum} must agree"
            return f"{words}; {why}: nobody is paid until it is back"
        return f"{words}; the {len(left)} others go on without it, and it is paid for none of these"

    # what follows

    def _judge(self, patience: float | None = None) -> float:
        """Say what the owner's word and the hours come to now; when to look again, by the wall clock."""
        now, hours = self._context.clock.wall(), self._guest.hours
        due = math.inf
        if self._pause is not None and self._pause.until is not None:
            if self._pause.until <= now:
                self._pause = None
            else:
                due = self._pause.until
        why = ""
        if self._pause is not None:
            why = "paused by its owner"
            why += f" until {_clock(self._pause.until)}" if self._pause.until else " until intellect-node resume"
        self._rest.say("owner", why, patience)
        change = self._next_change(now) if hours.spans else None
        begins = f" until {_clock(change, hours.zone)}" if change else ", and they never come"
        self._rest.say("hours", "" if hours.open(now) else f"outside of its hours{begins}")
        self._until = (self._pause.until if self._pause else change) if self._rest.why else None
        return min(due, change if change is not None else math.inf)

    def _next_change(self, now: float) -> float | None:
        """Looked for again once it is there, or the clock went back."""
        since, change = self._change
        if not since <= now < (math.inf if change is None else change):
            change = self._guest.hours.next_change(now)
            self._change = now, change
        return change

    async def _watch(self, look: MachineLook, *, look_every: float = 15.0) -> None:
        """Who uses the machine: it must have been left alone for a while."""
        told = False

        async def watch() -> None:
            nonlocal told
            if self._pause is not None:
                return
            use = await trio.to_thread.run_sync(look)
            now, busy = self._context.clock.monotonic(), use.busy(self._cores)
            if use.gpu is None and not told:
                told = True
                self._context.progress.trouble(
                    "whether others use the GPU cannot be told here (nvidia-smi pmon does not say): only processors "
                    "and battery count"
                )
            if use.cores is not None or busy:
                self._note(busy, now)

        await every(look_every, watch)

    def _note(self, busy: str, now: float) -> None:
        self._use = busy
        if busy:
            self._idle_since = None
            self._rest.say("machine", f"the machine is in use: {busy}")
            return
        self._idle_since = now if self._idle_since is None else self._idle_since
        if now - self._idle_since >= 60 * self._guest.idle_minutes:
            self._rest.say("machine", "")

    async def _tell(self) -> None:
        """Put each rest and its end on record."""
        progress, before = self._context.progress, ""
        while True:
            changed = self._rest.changed.next
            if self._rest.why == before:
                await changed.wait()
                continue
            before = self._rest.why
            log.info("node.rests" if before else "node.works", why=before)
            progress.tell(PAUSED if before else "resumed", before or "it works again")

    def beat(self) -> dict[str, Any]:
        return {"state": PAUSED} if self._rest.why else {}

    def status(self) -> dict[str, Any]:
        rest = self._rest
        return {"rest": RestPart(rest.why, self._until, bool(rest.why) and not rest.quiet, rest.dropped, self._use)}


def read_pause(path: Path) -> Pause | None:
    """What its owner said last. What the disk has made unreadable counts as a pause: it was one. Blocking."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=Pause)
    except FileNotFoundError:
        return None
    except UNREADABLE:
        log.warning("pause.damaged", file=str(path))
        return Pause()


def _clock(at: float, zone: tzinfo | None = None) -> str:
    return datetime.fromtimestamp(at, zone).strftime("%a %H:%M %Z").strip()


def _refused(what: str, why: str, remedy: str) -> Response:
    return JSONResponse({"what": what, "why": why, "remedy": remedy}, status_code=400)
