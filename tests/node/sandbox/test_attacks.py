"""Every attack that we know of, on both sandboxes, as this user and as nobody: none gets through."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.sandbox import CallOutcome, SandboxCall, Undecided, attacks, open_confined, open_wasi
from node.sandbox.base import CallStatus, Sandbox
from node.sandbox.confined import walls
from node.sandbox.runtime import child_environment, compiled

NOBODY = 65534
ROOT = Path(__file__).resolve().parents[3]
SLOW = {"endless_in_c", "endless_and_deaf", "giant_power", "deep_recursion", "zip_bomb"}
"""Natively each takes a whole second of CPU time, the least that the kernel counts; one such attack is played."""
OF_ALL_MACHINES = set(attacks.ATTACKS) - SLOW
OF_A_USER = {"read_secrets", "read_proc", "look_around", "write_files", "symlinks", "tcp", "forge_replies"}
"""In WASI, who runs it matters only where the guest would reach the host."""


@pytest.fixture(scope="module")
def behind_wasi(interpreter: Path) -> Iterator[Sandbox]:
    with open_wasi(attacks.FILES, attacks.ENTRY, attacks.LIMITS, interpreter) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def behind_walls() -> Iterator[Sandbox]:
    lacking = walls.missing()
    if lacking:
        pytest.skip(lacking)
    with open_confined(attacks.FILES, attacks.ENTRY, attacks.LIMITS) as sandbox:
        yield sandbox


def test_the_catalogue_names_every_attack_and_no_other() -> None:
    source = attacks.FILES[f"{attacks.ENTRY}.py"].decode()
    defined = {line.split("(")[0][4:] for line in source.splitlines() if line.startswith("def ")}
    assert defined - {"hello", "traces"} == set(attacks.ATTACKS)


def test_in_wasi_no_attack_gets_through_and_each_ends_as_it_does_everywhere(behind_wasi: Sandbox) -> None:
    found: dict[str, str] = {}
    for name, expected in attacks.ATTACKS.items():
        outcome = next(behind_wasi.run([SandboxCall(name)]))
        assert isinstance(outcome, CallOutcome), f"{name}: {outcome}"
        if attacks.breach(outcome) or outcome.status is not expected:
            found[name] = f"{outcome.status.value} {outcome.error} {outcome.value}"
    assert found == {}
    assert behind_wasi.call("hello", "you").value == "hello you"
    assert behind_wasi.call("traces") == behind_wasi.call("traces")
    assert behind_wasi.call("traces").value is None


def test_behind_the_kernels_walls_no_attack_gets_through(behind_walls: Sandbox) -> None:
    got = {name: attacks.breach(next(behind_walls.run([SandboxCall(name)]))) for name in sorted(OF_ALL_MACHINES)}
    assert {name: what for name, what in got.items() if what} == {}
    assert behind_walls.call("hello", "you").value == "hello you"
    assert behind_walls.call("traces").value is None


def test_a_wall_that_is_left_out_is_seen(behind_walls: Sandbox) -> None:
    """The control: what the attacks say of a process without walls."""
    program = "import attacks, json; print(json.dumps([attacks.read_secrets(), attacks.secrets_in_environment()]))"
    here = Path(attacks.__file__).with_name("guest")
    done = subprocess.run([sys.executable, "-c", program], cwd=here, capture_output=True, check=True)
    for said in json.loads(done.stdout):
        assert attacks.breach(CallOutcome(CallStatus.OK, said))


@pytest.mark.parametrize("kind", ["wasi", "confined"])
def test_as_nobody_no_attack_gets_through(kind: str, interpreter: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become nobody")
    python = _python_for_nobody()
    if python is None:
        pytest.skip("there is no Python that nobody may run")
    cache = _cache_of_nobody(interpreter, tmp_path) if kind == "wasi" else tmp_path
    played = sorted(OF_A_USER if kind == "wasi" else OF_ALL_MACHINES - {"endless_loop"})
    done = _as_nobody([python, "-P", str(Path(__file__).with_name("as_nobody.py")), kind, *played], cache)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}


def test_what_an_attacker_says_it_got_is_a_breach_and_a_forged_reply_of_its_own_is_none() -> None:
    assert attacks.breach(CallOutcome(CallStatus.OK, "/etc/passwd: b'root'"))
    assert not attacks.breach(CallOutcome(CallStatus.OK, 1.0))
    assert not attacks.breach(Undecided("a", "b", "c"))


def _as_nobody(argv: list[str], cache: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        cwd="/",
        env=child_environment() | {"INTELLECT_NODE_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )


def _python_for_nobody() -> str | None:
    """This Python, or the system's of the same version, which can use this one's packages."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        try:
            if _as_nobody([python, "-c", "import msgspec, wasmtime, node.sandbox"], Path("/")).returncode == 0:
                return python
        except OSError:
            continue
    return None


def _cache_of_nobody(interpreter: Path, tmp_path: Path) -> Path:
    """The interpreter and its compiled form where nobody, and nobody else, has them."""
    for folder in (*tmp_path.parents[:3], tmp_path):
        if folder.owner() == "root" and str(folder).startswith("/tmp/"):
            folder.chmod(0o711)
    place = tmp_path / "sandbox"
    place.mkdir(mode=0o700)
    for file in (interpreter, compiled(interpreter)):
        os.chown(shutil.copy(file, place), NOBODY, NOBODY)
    os.chown(place, NOBODY, NOBODY)
    return tmp_path
