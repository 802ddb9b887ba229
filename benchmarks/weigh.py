"""Weighs processes, and what imports add to one: `python -P benchmarks/weigh.py MODULE...` prints one line of JSON.

Imports the standard library only, so that nothing is there before it is weighed, and can be run on another checkout's
modules (PYTHONPATH).
"""

import importlib
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, cast

SHOWN = 40


def resident(pid: int) -> dict[str, int]:
    """KiB of a process' memory by kind: `rss`, `pss` (shared pages in shares), `anonymous` (heap, stacks), `file`
    (mapped libraries), `private` (what its end would free), and its threads and open descriptors."""
    fields: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0])
    return {
        "rss": fields["Rss"],
        "pss": fields["Pss"],
        "anonymous": fields["Anonymous"],
        "file": fields["Rss"] - fields["Anonymous"],
        "private": fields["Private_Clean"] + fields["Private_Dirty"],
        "threads": len(os.listdir(f"/proc/{pid}/task")),
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
    }


class _Scales(MetaPathFinder):
    """Lets the other finders find, and weighs what executing each module adds, without what it imports in turn."""

    def __init__(self) -> None:
        self.added: Counter[str] = Counter()
        self.modules: Counter[str] = Counter()
        self._inner = [0]

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in others if hasattr(finder, "find_spec"))
        spec: ModuleSpec | None = next((spec for spec in found if spec is not None), None)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = cast(Any, _Weighed(spec.loader, self))
        return spec

    def weigh(self, loader: Any, module: ModuleType) -> None:
        before = _now()
        self._inner.append(0)
        try:
            loader.exec_module(module)
        finally:
            grown = _now() - before
            package = module.__name__.partition(".")[0]
            self.added[package] += grown - self._inner.pop()
            self.modules[package] += 1
            self._inner[-1] += grown


class _Weighed:
    """A loader on the scales; in all else the loader itself."""

    def __init__(self, loader: Any, scales: _Scales) -> None:
        self._loader = loader
        self._scales = scales

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._scales.weigh(self._loader, module)


def _now() -> int:
    """Resident KiB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def weigh_imports(modules: Sequence[str]) -> dict[str, Any]:
    """For a process that has imported nothing of theirs."""
    before = resident(os.getpid())
    scales = _Scales()
    sys.meta_path.insert(0, scales)
    for name in modules:
        importlib.import_module(name)
    after = resident(os.getpid())
    packages = {name: [added, scales.modules[name]] for name, added in scales.added.most_common(SHOWN)}
    total = {kind: after[kind] - before[kind] for kind in ("rss", "anonymous", "file")}
    return {"interpreter": before["rss"], **total, "modules": scales.modules.total(), "packages": packages}


if __name__ == "__main__":
    print(json.dumps(weigh_imports(sys.argv[1:])))
