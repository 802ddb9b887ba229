"""Copies of a local chain's state: written whole, kept in turn, checked before they are loaded.

anvil's own state file is written in place and can be torn by a kill; these cannot.
"""

import gzip
import json
from pathlib import Path

import structlog

from node.state.files import write_whole

KEEP = 3
MAX_STATE = 2 * 1024**3
log = structlog.get_logger()


class StateCopies:
    """Numbered files in one folder, the highest the newest. Blocking."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _copies(self) -> list[Path]:
        return sorted(self._folder.glob("state-*.json"), reverse=True)

    def save(self, dump: str) -> Path:
        """dump: what anvil_dumpState returns, 0x and gzipped JSON in hex. Raises ValueError or OSError."""
        try:
            data = gzip.decompress(bytes.fromhex(dump.removeprefix("0x")))
        except (OSError, EOFError) as error:
            raise ValueError(f"not a state: {error}") from error
        newest = self._copies()
        number = int(newest[0].stem.removeprefix("state-")) + 1 if newest else 1
        target = self._folder / f"state-{number:09d}.json"
        write_whole(target, data)
        for old in [*self._copies()[KEEP:], *self._folder.glob(".state-*")]:  # and what a killed keeper left
            old.unlink(missing_ok=True)
        return target

    def newest_valid(self) -> Path | None:
        """The newest copy that can be loaded; damaged ones are set aside."""
        for path in self._copies():
            why = _damage(path)
            if why is None:
                return path
            log.warning("devnet.state_damaged", path=str(path), why=why)
            path.rename(path.with_suffix(".damaged"))
        return None


def _damage(path: Path) -> str | None:
    if path.stat().st_size > MAX_STATE:
        return "too big"
    try:
        state = json.loads(path.read_bytes())
    except ValueError as error:
        return str(error)[:100]
    missing = {"block", "accounts", "blocks", "best_block_number"} - set(state if isinstance(state, dict) else ())
    return f"without {', '.join(sorted(missing))}" if missing else None
