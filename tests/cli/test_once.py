"""A command that moves money is carried out once, wherever its process is killed, and the next one says so."""

import contextlib
import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.main import main
from node.chain.cases import FileCase, Vote, write_case
from node.chain.outbox import Fate, Outbox
from node.chain.profile import load_profile
from protocol.statements import Domain, Verdict, VerdictOutcome, WorkCommitment, sign
from tests.cli.killed import in_a_process
from tests.cli.rehearsal import CHAIN_ID, COIN, NETWORK, REASON, TOKEN, Scene, light_keys, stage

POOL = 1


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A pool with a judge and two workers, of which one is a member; `me` has stake and 1,000 tokens more."""
    cache = Path(request.config.cache.mkdir("anvil"))  # type: ignore[union-attr]
    home = tmp_path_factory.mktemp("user") / "home"
    with light_keys(), stage(home, cache, quick=True) as scene:
        people = {name: scene.cli("keys", "new", name, "--json")["address"] for name in ("me", "owner")}
        for name in ("member", "newcomer", "judge", "trainer"):
            state = str(scene.home / "nodes" / name)
            people[name] = scene.cli("keys", "new", "--state-dir", state, "--json")["address"]
        for address in people.values():
            scene.rpc("anvil_setBalance", address, hex(100 * COIN))
        scene.cli("contract", "deploy", "--network", NETWORK, "--key", "owner", "--yes", "--json")
        for name in ("me", "owner"):
            scene.send("owner", "faucet", people[name], "2000")
        scene.send("me", "stake", "300")
        for name in ("member", "newcomer", "judge"):
            words = ["contract", "node", "register", "--key", "me", "--network", NETWORK, "--yes", "--json"]
            scene.cli(*words, "--node-state", str(scene.home / "nodes" / name))
        scene.send("owner", *create(people))
        scene.send("member", "join", str(POOL), "--contact", "here")
        scene.people = people  # type: ignore[attr-defined]
        yield scene


def create(people: dict[str, str]) -> list[str]:
    terms = ["--trainer", people["trainer"], "--validator", people["judge"], "--slash", "50"]
    return ["pool", "create", "--run-root", "ab" * 32, *terms, "--fund", "300"]


def bonded(scene: Any) -> int:
    return int(scene.look("show", scene.people["me"])["bonded_wei"]) // TOKEN


def escrow(scene: Any) -> int:
    return int(scene.look("pool", "show", str(POOL))["pool"]["escrow_wei"]) // TOKEN


def pools(scene: Any) -> int:
    found = scene.look("pool", "list")["pools"]
    return len(found) * 10_000 + sum(int(one["escrow_wei"]) for one in found) // TOKEN


def joinings(scene: Any) -> int:
    return sum(one["event"] == "Joined" for one in scene.look("events", "--pool", str(POOL))["events"])


def frozen(scene: Any) -> int:
    return int(scene.look("provider", "show", scene.people["me"])["frozen_wei"]) // TOKEN


def case_of(scene: Any) -> str:
    c = WorkCommitment(POOL, scene.people["member"], b"\x07" * 32, 0, b"\x01" * 32, 1000, 0)
    domain = Domain(CHAIN_ID, load_profile(NETWORK, home=scene.home).contracts.swarm)
    verdict = Verdict(**msgspec.structs.asdict(c), outcome=int(VerdictOutcome.SLASH), reason=REASON)
    votes = (Vote(sign(scene.node("judge"), domain, verdict), verdict.values),)
    path = scene.home / "case.json"
    write_case(path, FileCase(c, sign(scene.node("member"), domain, c), REASON, votes))
    return str(path)


Words = Callable[[Any], list[str]]
COMMANDS: dict[str, tuple[str, Words, Callable[[Any], int], int]] = {
    "stake": ("me", lambda scene: ["stake", "200"], bonded, 200),
    # more than is left, so that the same cannot even be planned again
    "stake most": ("me", lambda scene: ["stake", "1500"], bonded, 1500),
    "fund": ("owner", lambda scene: ["pool", "fund", str(POOL), "100"], escrow, 100),
    "pool create": ("owner", lambda scene: create(scene.people), pools, 10_300),
    "join": ("newcomer", lambda scene: ["join", str(POOL), "--contact", "there"], joinings, 1),
    "slash": ("owner", lambda scene: ["slash", case_of(scene)], frozen, 50),
}


EVERYWHERE = ("stake most",)
"""Killed at each step. The others where something has happened that the program does not know, since all of them pass
the same outbox: a transaction sent and not settled, a result settled and not told."""


def killed_at(name: str, steps: list[str]) -> list[int]:
    # nothing that stays is done between what comes after a step and what comes before the next
    points = [at for at, step in enumerate(steps) if step.startswith("before") or at == len(steps) - 1]
    return [at for at in points if name in EVERYWHERE or steps[at] in ("before settle", "before told")]


def again(given: list[str]) -> tuple[int, str]:
    """The same command in this process: it is the one before that is killed."""
    shown, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(errors):
        code = main(list(given))
    return code, shown.getvalue() if code == 0 else errors.getvalue()


def fates(scene: Any, signer: str) -> set[str]:
    profile = load_profile(NETWORK, home=scene.home)
    outbox = Outbox(scene.home / "outbox" / f"{CHAIN_ID}.sqlite", f"{CHAIN_ID}:{profile.contracts.swarm}")
    rows = outbox.history(signer)
    outbox.close()
    return {row.fate.value for row in rows}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_is_killed_anywhere_has_one_effect_and_the_next_one_says_so(
    scene: Any, name: str, tmp_path: Path
) -> None:
    signer, words, effect, worth = COMMANDS[name]
    state = scene.home / "nodes" / signer
    who = ["--state-dir", str(state)] if state.exists() else ["--key", signer]
    given = ["contract", *words(scene), *who, "--network", NETWORK, "--yes", "--json"]
    before, kept = effect(scene), tmp_path / "home"
    shutil.copytree(scene.home / "outbox", kept)

    def begin_anew() -> None:
        nonlocal snapshot
        assert scene.rpc("evm_revert", snapshot)
        snapshot = scene.rpc("evm_snapshot")
        shutil.rmtree(scene.home / "outbox")
        shutil.copytree(kept, scene.home / "outbox")

    snapshot = scene.rpc("evm_snapshot")
    code, said, steps = in_a_process(given, tmp_path)
    assert code == 0 and not json.loads(said)["recovered"], f"the control, which nobody kills: {said}"
    assert effect(scene) - before == worth and fates(scene, scene.people[signer]) == {"mined"}
    for kill_at in killed_at(name, steps):
        step = steps[kill_at]
        begin_anew()
        code, _, passed = in_a_process(given, tmp_path, kill_at)
        assert code == -9 and passed[-1] == step
        happened = effect(scene) - before == worth
        code, said = again(given)
        assert code == 0, f"killed {step}: {said}"
        made = effect(scene) - before
        assert made == worth, f"killed {step}: {made}"
        if happened and passed.count("after told") < 1:
            assert json.loads(said)["recovered"], f"killed {step}: it does not say that it was done before"
        assert fates(scene, scene.people[signer]) <= {Fate.MINED.value, Fate.REPLACED.value}
    begin_anew()
