"""A package's rollouts as sessions in the sandbox that runs have: what they say, leave and earn, and what hostile calls
come to."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from node.environments.base import Segment, Transcript
from node.environments.errors import PackageError
from node.environments.package.archive import pack
from node.environments.package.check import PlayWay, check_package
from node.environments.package.environment import Arguments, PackageEnvironment, load
from node.environments.package.manifest import read_manifest
from node.environments.package.templates import template
from node.environments.programs import opener_for
from node.sandbox import RuntimeMissing, SandboxLimits, find_runtime
from protocol.rollout import STATE_BYTES
from tests.node.environments.sandboxes import OpenSandbox
from tests.node.environments.tokens import Characters

CODE = (
    template("session", "mend")
    .replace("turns = 4 ", "turns = 9 ")
    .replace("# fuel = 4_000_000_000", "# fuel = 1_000_000_000")
    .replace("# call_fuel = 1_000_000_000", "# call_fuel = 150_000_000")
)
CLEAN = "<python>import os; [os.remove(one) for one in os.listdir() if one != 'm.py']; os.listdir()</python>"
OWN_STEP = """
def step(row, turns):
    said = turns[-1]["content"]
    if said == "cat":
        return {"sh": "cat m.py"}
    if said == "both":
        return {"sh": "ls", "python": "1"}
    if said == "raise":
        raise ValueError(said)
    return f"say cat, not {said}" if said != "done" else None
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        find_runtime()
    except RuntimeMissing as missing:
        pytest.skip(f"{missing}; {missing.remedy}")
    return tmp_path_factory.mktemp("assets")


def loaded(folder: Path, code: str) -> PackageEnvironment:
    (folder / "environments").mkdir(exist_ok=True)
    (folder / "environments" / "mend.tar").write_bytes(pack({"environment.py": code.encode()}))
    return load(Arguments(held_back_share=0.3), folder, "mend", Characters(), half_open)


def half_open(files: Mapping[str, bytes], entry: str, limits: SandboxLimits) -> Any:
    """The machines of sessions in the sandbox; the package itself, no stranger's here, in a quick one without walls."""
    return (opener_for() if entry == "intellect_session" else OpenSandbox)(files, entry, limits)


@pytest.fixture(scope="module")
def mend(folder: Path) -> Iterator[PackageEnvironment]:
    environment = loaded(folder, CODE)
    yield environment
    environment.close()


def rollout(environment: PackageEnvironment, *said: str, number: int = 0) -> tuple[Transcript, list[str]]:
    """(all that is said in answer to these words, the environment's part as text)."""
    transcript: list[Segment] = []
    for text in said:
        transcript.append(Segment(Characters().encode(f"{text}\n"), sampled=True))
        reply = environment.step(environment.problem(number), transcript) if text != said[-1] else None
        if reply is not None:
            transcript.append(Segment(reply, sampled=False))
    return transcript, ["".join(map(chr, one.tokens)) for one in transcript if not one.sampled]


def mended(environment: PackageEnvironment) -> str:
    factor = environment.problem(0).prompt.partition("multiply by ")[2][0]
    return f"<sh>sed -i 's/x . [0-9]/x * {factor}/' m.py; cat m.py</sh>"


def test_a_session_remembers_and_hidden_tests_judge_what_it_leaves(mend: PackageEnvironment) -> None:
    work = ["<python>n = 41</python>", mended(mend), "<python>import m; n + m.times(0) + 1</python>", "done"]
    transcript, told = rollout(mend, *work)
    assert "def times(x)" in told[1] and "42" in told[2]
    problem = mend.problem(0)
    assert mend.score([problem] * 2, [transcript, rollout(mend, "<sh>cat m.py</sh>", "done")[0]]) == [1.0, 0.0]
    assert mend.gave_up == 0


def test_whoever_replays_it_hears_the_same_and_comes_to_the_same_states(mend: PackageEnvironment) -> None:
    transcript, told = rollout(mend, "<python>import random; x = random.random(); id(x)</python>", mended(mend), "done")
    other, problem = mend.another(), mend.problem(0)
    try:
        assert [other.step(problem, transcript[:end]) for end in (1, 3)] == [transcript[1].tokens, transcript[3].tokens]
        states = mend.states(problem, transcript)
        assert states == other.states(problem, transcript) and len(states) == 2 * STATE_BYTES
    finally:
        other.close()
    unlike, same = rollout(mend, "<python>import random; y = random.random(); id(y)</python>", mended(mend), "done")
    assert told == same, "the words do not show that another name is kept"
    assert mend.states(problem, unlike)[:STATE_BYTES] != states[:STATE_BYTES]


@pytest.mark.parametrize(
    ("hostile", "says"),
    [
        ("<python>while True: pass</python>", "ended early: out of fuel"),
        ("<sh>python -c 'while True: pass'</sh>", "ended early: out of fuel"),
        ("<python>import os; os.fork()</python>", "no attribute 'fork'"),
        ("<python>import time; time.sleep(10**6)</python>", "<result>"),
        ("<python>open('f', 'wb').write(b'x' * 10**6)</python>", "No space left"),
        ("<python>for n in range(99): open(f'f{n}', 'w').write('x' * 4000)</python>", "No space left"),
        ("<python>x = bytearray(10**9)</python>", "MemoryError"),
        ("<python>print('x' * 10**7)</python>", "[cut]"),
        ("<python>import os; os._exit(0)</python>", "ended early"),
        ("<python>open('/etc/passwd').read()</python>", "No such file"),
        ("<python>import environment</python>", "No module named 'environment'"),
    ],
)
def test_a_hostile_call_is_told_what_became_of_it_and_the_session_goes_on(
    mend: PackageEnvironment, hostile: str, says: str
) -> None:
    transcript, told = rollout(mend, hostile, CLEAN, mended(mend), "done")
    assert says in told[0] and told[1] == "<result>\n['m.py']\n</result>"
    assert mend.score([mend.problem(0)], [transcript]) == [1.0] and mend.gave_up == 0


def test_a_session_that_used_up_its_fuel_earns_nothing(folder: Path, mend: PackageEnvironment) -> None:
    loops = [f"<python>while {number}: pass</python>" for number in (1, 2)]
    assert mend.score([mend.problem(0)], [rollout(mend, mended(mend), *loops, "done")[0]]) == [1.0]
    short = loaded(folder, CODE.replace("# fuel = 1_000_000_000", "# fuel = 200_000_000"))
    try:
        transcript, told = rollout(short, mended(short), *loops, "done")
        assert "out of fuel" in told[-1]
        assert short.score([short.problem(0)], [transcript]) == [0.0] and short.gave_up == 0
    finally:
        short.close()


def test_a_package_may_say_itself_what_the_machine_is_to_do(folder: Path) -> None:
    environment = loaded(folder, CODE + OWN_STEP)
    try:
        _, told = rollout(environment, "<sh>ls</sh>", "cat", "done")
        assert "say cat, not <sh>ls</sh>" in told[0] and "def times" in told[1]
        for ends in ("both", "raise"):
            assert rollout(environment, ends, "done")[1] == []
    finally:
        environment.close()


@pytest.mark.parametrize(
    ("files", "tests"),
    [('{"../m.py": ""}', "[]"), ("7", "[]"), ('{"m.py": 1 / 0}', "[]"), ('{"m.py": ""}', "['1'] * 65")],
)
def test_files_that_no_machine_takes_are_worth_nothing(folder: Path, files: str, tests: str) -> None:
    changed = f"{CODE}\ndef files(row):\n    return {files}\n\ndef tests(row):\n    return {tests}\n"
    environment = loaded(folder, changed)
    try:
        transcript, told = rollout(environment, "<sh>ls</sh>", "done")
        assert told == [] and environment.score([environment.problem(0)], [transcript[:1]]) == [0.0]
    finally:
        environment.close()


def test_the_template_is_fit_for_a_run_and_one_that_pays_unmended_files_is_not(folder: Path) -> None:
    ways = [PlayWay("WASI", "wasi", half_open)]
    text = template("session", "mend").replace("range(2, 10)", "range(2, 4)")
    good = check_package({"environment.py": text.encode()}, ways, 1, seed=b"1")
    assert good.good and good.checked == 1
    lax = text.replace("return float(all(", "return float(bool(")
    bad = check_package({"environment.py": lax.encode()}, ways, 1, seed=b"1")
    assert {one.what for one in bad.findings} >= {"an empty answer gets 1"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("turns = 4 ", "turns = 1 "), "it has sessions, 1 turns"),
        (('"bounded"', '"exact"'), "class 'exact'"),
        (("disk_kib = 256", "disk_kib = 0"), "disk_kib"),
        (("disk_kib = 256", "disk_kib = 99999999"), "disk_bytes"),
        (("disk_kib = 256", "disk = 256"), "'disk' is no key"),
    ],
)
def test_a_head_whose_sessions_make_no_sense_is_refused(change: tuple[str, str], why: str) -> None:
    with pytest.raises(PackageError, match=why):
        read_manifest({"environment.py": template("session", "mend").replace(*change).encode()})
