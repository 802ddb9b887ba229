"""How an engine shall compute, as a command line has it, and what the machine and the run make of that."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from node.inference.engines import AUTO, ENGINES, EngineKind, kernels, kind_of, usable
from node.inference.settings import DTYPES, EngineSettings, devices
from node.units import GIB
from protocol.engines import permits


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Settings as a command line has them: what is None or "auto" is chosen by the machine and the run."""

    device: str | None = None
    dtype: str | None = None
    attention: str | None = None
    batch_tokens: int = 0
    engine: str = AUTO
    most: int = 0

    def granted(
        self, permitted: Sequence[str], devices: Sequence[str], engines: Mapping[str, EngineKind] = ENGINES
    ) -> EngineSettings:
        """The first of `devices` and of the ways to compute on it that the run permits (patterns of protocol.engines).

        If it permits none of them, the first one: whoever must not compute so says it in better words.
        """
        ways = self.ways(devices, engines)
        fitting = (way for way in ways if permits(permitted, way.name))
        return next(fitting, ways[0])

    def ways(self, devices: Sequence[str], engines: Mapping[str, EngineKind] = ENGINES) -> list[EngineSettings]:
        """All that this machine and what was said leave open, best first."""
        return [
            EngineSettings(device, dtype, kernel, self.batch_tokens, parallel, most=self.most)
            for device in ([self.device] if self.device else devices)
            for kind in self._kinds(device, engines)
            for dtype in ([self.dtype] if self.dtype else _dtypes(device))
            for kernel in ([self.attention] if self.attention else kind.kernels)
            for parallel in kind.splits(device)
        ]

    def _kinds(self, device: str, engines: Mapping[str, EngineKind]) -> list[EngineKind]:
        """What was named, though it may be missing: then its own words say so. Else what suits and works here."""
        if self.attention:
            return [kind_of(self.attention, engines)]
        if self.engine != AUTO:
            return [engines[self.engine]]
        return [kind for kind in engines.values() if kind.suits(device) and usable(kind, device)]


def _dtypes(device: str) -> Sequence[str]:
    """What suits a device, best first: only GPUs are faster in bfloat16 than they are inexact."""
    return DTYPES if device == "cpu" else DTYPES[::-1]


def main() -> None:
    """`python -m node.inference.options [the engine's options]`: the classes that this machine computes as, best first,
    as a JSON list. Nothing of a model is loaded."""
    print(json.dumps([way.name for way in options_from(sys.argv[1:]).ways(devices())]))


def options_from(arguments: Sequence[str]) -> EngineOptions:
    """The settings named on an engine's command line; prints usage and exits with 2 if it cannot be read."""
    parser = argparse.ArgumentParser(
        prog="engine",
        description="A node's inference engine, driven over pipes. What is not said is chosen: a GPU if there is one, "
        "vLLM on it if that is installed, and what the run permits.",
    )
    parser.add_argument("--engine", choices=(AUTO, *ENGINES), default=AUTO)
    parser.add_argument("--device", help="torch device")
    parser.add_argument("--dtype", choices=DTYPES)
    parser.add_argument("--attention", choices=kernels(), help="the kernel that a class of engines is named after")
    parser.add_argument(
        "--batch-tokens",
        type=int,
        help="most tokens in the cache of what is decoded, and in one forward pass (default: as many as fit)",
    )
    parser.add_argument(
        "--most-gib", type=float, default=0.0, help="of each GPU's memory, at most (default: all that is free)"
    )
    chosen = parser.parse_args(arguments)
    if chosen.batch_tokens is not None and chosen.batch_tokens < 1:
        parser.error("--batch-tokens must be at least 1")
    if not 0 <= chosen.most_gib < 1 << 20:
        parser.error("--most-gib must be 0 or more")
    if chosen.attention and chosen.engine not in (AUTO, kind_of(chosen.attention).name):
        parser.error(f"--attention {chosen.attention} is no kernel of --engine {chosen.engine}")
    most = int(chosen.most_gib * GIB)
    return EngineOptions(chosen.device, chosen.dtype, chosen.attention, chosen.batch_tokens or 0, chosen.engine, most)


if __name__ == "__main__":
    main()
