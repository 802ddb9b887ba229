"""The whole story on the command line. Every sentence that asks for consent is what the chain then has: `Scene.send`
reads each of them."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from eth_hash.auto import keccak

from cli.contract import app
from contracts.deploy import BURNED
from node.chain.profile import load_profile
from protocol.identity import NodeKey
from protocol.statements import Domain, Earnings, EpochRoot, sign
from tests.cli.promises import Seen, unkept
from tests.cli.rehearsal import CHAIN_ID, COIN, DAY, HOUR, NETWORK, TOKEN, Scene, light_keys, rehearse, stage

WHO, OTHER = "0x" + "Ab" * 20, "0x" + "cd" * 20
SEEN = Seen(
    frozenset({7 * TOKEN, 5, 1_000_000, 10**15}), frozenset({WHO.lower()}), 913_600, frozenset(), frozenset({"ab" * 32})
)


@pytest.mark.parametrize(
    ("says", "lost"),
    [
        (f"7 tokens of {WHO} become stake after 24 h, in pool 5; 5 units at 1 per 1000 units", []),
        ("70 tokens are lost", ["70 tokens"]),
        (f"it goes to {OTHER}", [OTHER]),
        ("pool 6 and 4 unit(s) of epoch 3", ["pool 6", "4 unit(s)", "epoch 3"]),
        ("they come back after 25 h, or in 1 d 02 h", ["25 h", "1 d 02 h"]),
        ("paid for work at 2 per 1000 units", ["2 per 1000"]),
        (f"a pool for the run {'ab' * 8} is no run {'cd' * 8}", [f"run {'cd' * 8}"]),
    ],
)
def test_what_the_chain_has_not_is_named(says: str, lost: list[str]) -> None:
    assert unkept(says, SEEN) == lost


@pytest.mark.timeout(480)
def test_every_sentence_that_asks_for_consent_is_what_the_chain_then_has(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    cache = Path(request.config.cache.mkdir("anvil"))  # type: ignore[union-attr]
    with light_keys(), stage(tmp_path / "home", cache, quick=True) as scene:
        rehearse(scene)
        assert len(scene.rows) > 40
        read = list(scene.promised)
    with light_keys(), stage(tmp_path / "other", cache, quick=True) as scene:
        _hold_offices(scene)
        read += scene.promised
    known = set(_commands(typer.main.get_command(app)))
    assert known == {name for name in known if any(one.startswith(name) for one in read)}


def _commands(command: Any, path: tuple[str, ...] = ()) -> list[str]:
    """Those that send transactions: each of them has a dry run."""
    if hasattr(command, "commands"):
        return [name for word, part in command.commands.items() for name in _commands(part, (*path, word))]
    return [" ".join(path)] if any(option.name == "dry_run" for option in command.params) else []


def _hold_offices(scene: Scene) -> None:
    """What people do who open a pool, lead, judge and decide; and a node that is not covered any more."""
    me = scene.cli("keys", "new", "me", "--json")["address"]
    scene.rpc("anvil_setBalance", me, hex(100 * COIN))
    _deploy(scene)
    scene.send("me", "faucet", me, "2000")
    scene.send("me", "provider", "register", "--units", "4")
    nodes = {name: _node(scene, name, units) for name, units in (("lead", 1), ("next", 1), ("judge", 2))}
    opening = ["pool", "create", "--run-root", "ab" * 32, "--trainer", nodes["lead"], "--validator", nodes["judge"]]
    pool = str(scene.send("me", *opening, "--window", "4h", "--fund", "50")["pool"])
    scene.send("lead", "pool", "set-run", pool, "cd" * 32)
    scene.send(
        "lead", "pool", "bootnodes", pool, "--bootnode", f"/ip4/192.0.2.1/tcp/4001/p2p/{scene.node('next').peer_id}"
    )
    scene.send("lead", "pool", "revoke", pool, NodeKey.generate().address)
    _lead(scene, pool, nodes)
    scene.send("me", "pool", "validators", pool, "--validator", nodes["judge"], "--threshold", "1")
    scene.wait(4 * HOUR)
    scene.send("me", "pool", "validators", pool, "--apply")
    scene.send("me", "node", "lend", nodes["judge"], "100")
    _judge_falsely(scene, int(pool), nodes)
    scene.send("lead", "leave", pool)
    _file(scene, int(pool), nodes)
    _come_to_an_end(scene, nodes)


def _deploy(scene: Scene) -> None:
    command = ["contract", "deploy", "--network", NETWORK, "--key", "me", "--json"]
    says = scene.cli(*command, "--dry-run")["says"]
    scene.cli(*command, "--yes")
    nothing = Seen(frozenset(), frozenset(), 0, frozenset(), frozenset())
    assert unkept(says, nothing) and not unkept(says, scene.known(nothing))
    assert ("burned whole" in says) == (scene.look("params")["parameters"]["treasury"] == BURNED)
    scene.promised.append("deploy")


def _node(scene: Scene, name: str, units: int) -> str:
    state = scene.home / "nodes" / name
    node = scene.cli("keys", "new", "--state-dir", str(state), "--json")["address"]
    scene.rpc("anvil_setBalance", node, hex(COIN))
    scene.send("me", "node", "register", "--node-state", str(state), "--units", str(units))
    return node


def _lead(scene: Scene, pool: str, nodes: dict[str, str]) -> None:
    trainers = ["--trainer", nodes["lead"], "--trainer", nodes["next"]]
    scene.send("me", "chair", "seat", pool, *trainers, "--lease", "10m")
    for name in ("lead", "next"):
        scene.send(name, "join", pool, "--contact", "here")
    scene.send("lead", "chair", "hold", pool, "--step", "3", "--root", "33" * 32)
    scene.wait(HOUR)
    scene.send("next", "chair", "take", pool, "--step", "3", "--root", "33" * 32)
    scene.send("me", "chair", "propose", pool, *trainers[2:])
    scene.wait(4 * HOUR)
    scene.send("me", "chair", "propose", pool, "--apply")


def _judge_falsely(scene: Scene, pool: int, nodes: dict[str, str]) -> None:
    """A table that the guardian holds and the arbiter drops: its signer loses the slash of both of its units."""
    epoch = scene.look("pool", "show", str(pool))["pool"]["epoch"] - 5
    root = keccak(b"\0" + bytes.fromhex(nodes["next"][2:]) + (9).to_bytes(8))
    signature = sign(scene.node("judge"), _domain(scene), Earnings(pool, epoch, 1, root, 9, bytes(32)))
    facts = {"pool": pool, "epoch": epoch, "number": 1, "root": root.hex(), "total": 9, "blob": bytes(32).hex()}
    table = scene.home / "table.json"
    table.write_text(json.dumps(facts | {"signatures": ["0x" + signature.hex()]}))
    before = int(scene.look("node", "show", nodes["judge"])["units"]), scene.look("provider", "show", _me(scene))
    scene.send("me", "earnings", "post", str(table))
    scene.send("me", "earnings", "hold", str(pool))
    scene.send("me", "earnings", "drop", str(pool))
    left = int(scene.look("provider", "show", _me(scene))["bonded_wei"])
    assert before[0] == 2 and int(before[1]["bonded_wei"]) - left == 200 * TOKEN


def _file(scene: Scene, pool: int, nodes: dict[str, str]) -> None:
    """What no table has is filed after the end, by a word of who was convicted since, and redeemed."""
    scene.wait(2 * HOUR)
    epoch = scene.look("pool", "show", str(pool))["pool"]["epoch"]
    scene.send("me", "pool", "end", str(pool))
    scene.wait(10 * HOUR)
    leaf = keccak(b"\0" + bytes.fromhex(nodes["next"][2:]) + (5).to_bytes(8))
    root, domain = EpochRoot(pool, epoch, 1, leaf, 5, bytes(32)), _domain(scene)
    said = {"seat": 0, "number": 1, "root": leaf.hex(), "total": 5, "blob": bytes(32).hex(), "units": 5, "proof": []}
    line = said | {"signature": "0x" + sign(scene.node("judge"), domain, root).hex()}
    filing = {"epoch": epoch, "bench": 2, "threshold": 1, "validators": [nodes["judge"]], "lines": [line]}
    path = scene.home / "filing.json"
    path.write_text(json.dumps({"pool": pool, "node": nodes["next"], "filings": [filing]}))
    scene.send("me", "earnings", "file", str(path))
    scene.wait(6 * HOUR)
    scene.send("me", "earnings", "redeem", str(pool), nodes["next"])


def _domain(scene: Scene) -> Domain:
    return Domain(CHAIN_ID, load_profile(NETWORK, home=scene.home).contracts.swarm)


def _me(scene: Scene) -> str:
    return scene.look("pool", "show", "1")["pool"]["opener"]


def _come_to_an_end(scene: Scene, nodes: dict[str, str]) -> None:
    """Their provider's stake is too small now, for all but one unit of them."""
    scene.send("me", "node", "expel", nodes["judge"])
    scene.send("me", "node", "remove", nodes["lead"])
    scene.send("me", "stake", "100")
    scene.send("me", "unstake", "5")
    scene.wait(30 * DAY)
    scene.send("me", "node", "release")
    scene.send("me", "node", "retire", nodes["next"])
