"""The demo's directory: what lies where, and how a fresh start clears it."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from cli.errors import CommandError

MARKER = ".intellect-node-demo"
OURS = ("home", "nodes", "model", "logs", "report", "run.toml", "pool", "cast.json", ".matplotlib")


@dataclass(frozen=True, slots=True)
class Scene:
    """Paths below the demo's directory."""

    directory: Path

    @property
    def home(self) -> Path:
        """What a user's own home directory of the program would be: the chain, its profile."""
        return self.directory / "home"

    @property
    def model(self) -> Path:
        return self.directory / "model"

    @property
    def run_file(self) -> Path:
        return self.directory / "run.toml"

    @property
    def pool_file(self) -> Path:
        """The number of the demo's pool."""
        return self.directory / "pool"

    @property
    def cast_file(self) -> Path:
        """Who took part, for a demo that goes on with them."""
        return self.directory / "cast.json"

    @property
    def report(self) -> Path:
        return self.directory / "report"

    @property
    def logs(self) -> Path:
        return self.directory / "logs"

    def state_dir(self, name: str) -> Path:
        """The state directory of the participant `name`."""
        return self.directory / "nodes" / slug(name)

    def log(self, name: str) -> Path:
        """Where the participant `name` writes what is not in its own structured log."""
        return self.logs / f"{slug(name)}.log"

    def claim(self) -> None:
        """Make the directory the demo's; raises CommandError for one that holds somebody else's files."""
        self.directory.mkdir(parents=True, exist_ok=True)
        marker = self.directory / MARKER
        strangers = [entry.name for entry in self.directory.iterdir() if entry.name not in (*OURS, MARKER, ".lock")]
        if not marker.exists() and strangers:
            raise CommandError(
                f"will not use {self.directory} for a demo",
                f"it holds other files: {', '.join(sorted(strangers)[:3])}",
                "name an empty or a new directory: --dir DIR",
            )
        marker.touch()

    def clear(self) -> None:
        """Remove what an earlier demo left; other files stay."""
        for name in OURS:
            path = self.directory / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    @property
    def can_resume(self) -> bool:
        return self.pool_file.exists() and self.run_file.exists()


def slug(name: str) -> str:
    """'worker 1' -> 'worker-1'"""
    return "".join(c if c.isalnum() else "-" for c in name.lower()).strip("-")
