"""What some code does with disks and threads, counted: no load of the machine blurs that."""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio


class Counts:
    """From its making on. synced: files and directories by path; jobs: functions that threads were given, by name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.synced, self.jobs = Counter[Path](), Counter[str]()
        fsync, in_thread = os.fsync, trio.to_thread.run_sync

        def counted(descriptor: int) -> None:
            self.synced[Path(f"/proc/self/fd/{descriptor}").readlink()] += 1
            fsync(descriptor)

        async def handed_over(function: Any, *args: Any, **named: Any) -> Any:
            self.jobs[getattr(function, "__qualname__", "?")] += 1
            return await in_thread(function, *args, **named)

        monkeypatch.setattr(os, "fsync", counted)
        monkeypatch.setattr(trio.to_thread, "run_sync", handed_over)

    def below(self, folder: Path) -> list[str]:
        """Names of what was synced there."""
        return [path.name for path in self.synced.elements() if path.is_relative_to(folder)]
