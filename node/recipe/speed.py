"""How fast this machine's engine is on a small model: measured once, kept as long as the machine is the same."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog
import trio

from node.errors import ConfigError
from node.hardware import Hardware
from node.processes.forkserver import Anew, Starter
from node.state.files import write_whole
from protocol.errors import UNREADABLE

log = structlog.get_logger()
NAME = "speed.json"
COMMAND = (sys.executable, "-m", "node.recipe.selftest")
MAX_BYTES = 4096
LEAST_DECODE = 5.0
"""Tokens per second of the small model below which a machine is of no use as a worker."""


class Speed(msgspec.Struct, frozen=True):
    """decode, prefill: tokens per second; engine: its class; parameters: of the model that was measured."""

    decode: float
    prefill: float
    engine: str
    parameters: int

    def expected(self, parameters: int) -> float:
        """Tokens per second that it will draw with another model. The work grows with the parameters; a small model
        has more besides them, so larger ones do a little better than this. A guess that is too low costs one file of
        short answers; one that is too high would cost a file that comes too late."""
        return self.decode * self.parameters / max(parameters, 1)


class _Kept(msgspec.Struct, frozen=True):
    """What the file holds."""

    fingerprint: str
    speed: Speed


def recall(home: Path, hardware: Hardware) -> Speed | None:
    """What was measured on this machine, None if nothing was or the machine has changed. Blocking."""
    try:
        with (home / NAME).open("rb") as file:
            kept = msgspec.json.decode(file.read(MAX_BYTES), type=_Kept)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return kept.speed if kept.fingerprint == hardware.fingerprint else None


async def measured(
    home: Path,
    hardware: Hardware,
    options: Sequence[str] = (),
    command: Sequence[str] = COMMAND,
    starter: Starter | None = None,
) -> Speed | None:
    """The same, measured now if it is not known yet; None where it cannot be. options: the engine's."""
    known = await trio.to_thread.run_sync(recall, home, hardware)
    if known is not None:
        return known
    speed = await _ask([*command, *options], starter or Anew())
    # Only then: a machine that was too busy to answer is measured again.
    if speed is not None:
        data = msgspec.json.encode(_Kept(hardware.fingerprint, speed))
        await trio.to_thread.run_sync(_keep, home, data)
    return speed


def check_speed(speed: Speed | None) -> None:
    """Raises ConfigError for a machine that is too slow for a worker. None, which says nothing, is fast enough."""
    if speed is not None and speed.decode < LEAST_DECODE:
        raise ConfigError(
            "this machine is too slow for a worker",
            f"its engine draws {speed.decode:.1f} tokens a second of a model of {speed.parameters / 1e6:.1f} million "
            f"parameters, and {LEAST_DECODE:g} are the least",
            "use a faster machine, or say --role worker if something else kept it busy",
        )


async def _ask(command: list[str], starter: Starter, *, deadline: float = 120.0) -> Speed | None:
    try:
        with trio.fail_after(deadline):  # seconds: libraries that load on a busy machine, and two seconds of measuring
            said = await starter.said(command)
        # The last line: libraries print as well.
        return msgspec.json.decode(said.strip().split(b"\n")[-1], type=Speed)
    except (OSError, trio.TooSlowError, *UNREADABLE) as error:
        log.info("speed.unknown", why=str(error)[:300] or f"nothing within {deadline:g} s")
        return None


def _keep(home: Path, data: bytes) -> None:
    home.mkdir(parents=True, exist_ok=True)
    write_whole(home / NAME, data)
