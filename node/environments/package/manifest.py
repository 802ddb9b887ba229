"""What a package says of itself: the head of `environment.py`, or `environment.toml` beside it."""

import re
import tomllib
from collections.abc import Mapping
from typing import Any

import msgspec

from node.environments.base import Determinism
from node.environments.builtin import BUILTIN
from node.environments.errors import PackageError, nearest
from node.sandbox import SandboxLimits
from node.sandbox.base import MAX_FUEL

CODE, SETTINGS, ROWS = "environment.py", "environment.toml", "rows.jsonl"
MAX_TURNS = 64
MAX_HEAD = 16 * 1024
"""Bytes at the top of the module in which its head must be."""
_RESERVED = (*BUILTIN, "mix")
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_HEAD = re.compile(r"(?m)^# /// environment$\s(?P<content>(^#(| .*)$\s)+)^# ///$")
"""As PEP 723 writes metadata into a script."""


class SessionLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Each rollout has a machine of its own. fuel: instructions of a whole session; call_fuel: of one call, and of a
    test; memory_mib: of a machine; disk_kib: for its files; result_characters: most of one result. Raises ValueError.
    """

    fuel: int = 20_000_000_000
    call_fuel: int = 4_000_000_000
    memory_mib: int = 128
    disk_kib: int = 4096
    result_characters: int = 2000

    def __post_init__(self) -> None:
        self.limits(())
        if self.disk_kib < 1 or not 0 < self.fuel <= MAX_FUEL or not 16 <= self.result_characters <= 1 << 16:
            raise ValueError(f"fuel (1..{MAX_FUEL}), disk_kib or result_characters (16..65536) is not one")

    def limits(self, packages: tuple[str, ...]) -> SandboxLimits:
        disk = self.disk_kib << 10
        return SandboxLimits(fuel=self.call_fuel, memory_mib=self.memory_mib, disk_bytes=disk, packages=packages)


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """name: in run files, metrics and problem ids; class: what verdicts depend on; turns: most answers of a rollout;
    packages: what its code and programs may import besides Python's own modules; limits: of every call of its code;
    session: of the machine that a rollout has, if it has one."""

    name: str
    determinism: Determinism = msgspec.field(name="class")
    turns: int = 1
    about: str = ""
    packages: tuple[str, ...] = ()
    limits: SandboxLimits = SandboxLimits()
    session: SessionLimits | None = None

    @property
    def runs_natively(self) -> bool:
        """Whether its code runs outside WASI too: not what imports from the shelf, nor a session's machine."""
        return not self.packages and self.session is None


def read_manifest(files: Mapping[str, bytes]) -> Manifest:
    """Raises PackageError naming the key that is wrong."""
    if CODE not in files:
        raise refused(f"there is no {CODE} in it", "name the module with prompt(row) and score(row, turns) so")
    text = _text(files)
    try:
        data = tomllib.loads(text)
        _check_keys(data, Manifest)
        _check_keys(data.get("limits", {}), SandboxLimits)
        _check_keys(data.get("session", {}), SessionLimits)
        manifest = msgspec.convert(data, Manifest)
        # The sandbox knows packages by its limits. The head's own key wins over one in [limits].
        limits = msgspec.structs.replace(manifest.limits, packages=manifest.packages)
        manifest = msgspec.structs.replace(manifest, limits=limits)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, RecursionError) as error:
        raise refused(f"its head is wrong: {error}", "see `intellect-node env new` for one that works") from None
    _check(manifest)
    return manifest


def is_name(name: str) -> bool:
    """Whether a package may be called so."""
    return bool(_NAME.fullmatch(name)) and name not in _RESERVED


def _text(files: Mapping[str, bytes]) -> str:
    # The expression ends its lines with $, which does not stand before a carriage return.
    top = files[CODE][:MAX_HEAD].decode(errors="replace").replace("\r\n", "\n")
    heads = [match["content"] for match in _HEAD.finditer(top)]
    if SETTINGS in files:
        # Two descriptions could contradict each other. The file counts as one, so a head beside it is refused.
        heads.append("")
    if len(heads) != 1:
        raise refused(
            f"it has {len(heads)} descriptions of itself" if heads else "it does not describe itself",
            f"put one '# /// environment' head at the top of {CODE}, or write {SETTINGS}",
        )
    if SETTINGS in files:
        return files[SETTINGS].decode()
    return "".join(line[2:] if line.startswith("# ") else line[1:] for line in heads[0].splitlines(keepends=True))


def _check_keys(data: Any, kind: type[msgspec.Struct]) -> None:
    known = kind.__struct_encode_fields__
    for key in data if isinstance(data, dict) else ():
        if key not in known:
            raise refused(f"{key!r} is no key of its head", nearest(key, known))


def _check(manifest: Manifest) -> None:
    if not _NAME.fullmatch(manifest.name):
        raise refused(f"its name is {manifest.name[:80]!r}", "use lower-case letters, digits, '-' and '_'")
    if manifest.determinism == "witnessed":
        raise refused(
            "its class is 'witnessed', but code in the sandbox asks no server", "use exact, bounded or judged"
        )
    if manifest.name in _RESERVED:
        raise refused(f"{manifest.name!r} is the name of a built-in environment", "give it another name")
    if not 1 <= manifest.turns <= MAX_TURNS:
        raise refused(f"turns is {manifest.turns}", f"use 1 to {MAX_TURNS}")
    if manifest.session is not None and (manifest.turns < 2 or manifest.determinism != "bounded"):
        why = f"it has sessions, {manifest.turns} turns, and the class {manifest.determinism!r}"
        raise refused(why, "use turns = 2 or more, and class 'bounded': a session's calls end where their fuel does")


def refused(why: str, remedy: str) -> PackageError:
    return PackageError("the environment package cannot be used", why, remedy)
