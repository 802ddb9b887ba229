"""The contract commands against a real chain that says it is Base Sepolia: what goes wrong."""

import json
import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from cli.main import main
from contracts.deploy import BURNED
from node.chain.client import ChainClient
from node.chain.errors import TransactionUnconfirmed
from node.chain.profile import load_profile, user_profile_path, write_profile
from node.chain.sender import SendLimits
from node.chain.simulate import SimulatedStep
from node.config import NodeConfig
from node.preflight.chain import look_at_bond
from node.state.journal import Journal
from node.state.keystore import load_key
from protocol.identity import NodeKey
from tests.cli.rehearsal import CHAIN_ID, COIN, NETWORK, TOKEN, Scene, light_keys, stage


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A chain with the contracts, `me` with coin and 1000 tokens, and `poor` with nothing."""
    cache = Path(request.config.cache.mkdir("anvil"))  # type: ignore[union-attr]
    home = tmp_path_factory.mktemp("user") / "home"
    with light_keys(), stage(home, cache, quick=True) as scene:
        scene.me = scene.cli("keys", "new", "me", "--json")["address"]  # type: ignore[attr-defined]
        scene.cli("keys", "new", "poor", "--json")
        scene.rpc("anvil_setBalance", scene.me, hex(100 * COIN))  # type: ignore[attr-defined]
        scene.cli("contract", "deploy", "--network", NETWORK, "--key", "me", "--yes", "--json")
        scene.send("me", "faucet", scene.me, "1000")  # type: ignore[attr-defined]
        yield scene


@pytest.fixture(autouse=True)
def put_back(scene: Scene) -> Iterator[None]:
    snapshot = scene.rpc("evm_snapshot")
    yield
    scene.rpc("evm_revert", snapshot)


def bonded(scene: Any) -> int:
    return int(scene.look("show", scene.me)["bonded_wei"])


def test_a_dry_run_tells_gas_and_cost_and_sends_nothing(scene: Any) -> None:
    before = scene.rpc("eth_blockNumber")
    told = scene.send("me", "stake", "100", "--dry-run")
    assert [step["action"] for step in told["steps"]] == ["approve tokens", "bond stake"]
    assert told["complete"] and told["gas"] > 80_000 and int(told["cost_wei"]) > 0
    assert f"100 tokens of {scene.me}" in told["says"]
    assert scene.rpc("eth_blockNumber") == before


def test_the_gas_of_a_dry_run_is_what_it_then_costs(scene: Any) -> None:
    planned = scene.send("me", "stake", "100", "--dry-run")
    done = scene.send("me", "stake", "100")
    assert abs(planned["gas"] - done["gas_used"]) < planned["gas"] // 10
    assert done["link"] == f"https://sepolia.basescan.org/tx/{done['transaction']}"
    assert bonded(scene) == 100 * TOKEN


@pytest.mark.parametrize("more", [["--dry-run"], ["--yes"]])
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["stake", "100000"], "1000 tokens and needs 100000"),
        (["unstake", "1"], "less than that is there"),
        (["withdraw"], "nothing is unbonding"),
        (["pool", "fund", "9", "5"], "there is no such pool"),
        (["join", "9", "--contact", "x"], "there is no such pool"),
        (["case", "overturn", "9", "0x" + "11" * 20], ""),
    ],
)
def test_what_would_fail_is_told_before_anything_is_sent(
    scene: Any, arguments: list[str], says: str, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = scene.rpc("eth_blockNumber")
    assert main(["contract", *arguments, "--key", "me", "--network", NETWORK, *more]) == 4
    error = capsys.readouterr().err
    assert says in error and "why:" in error and "do:" in error and "Traceback" not in error
    assert scene.rpc("eth_blockNumber") == before


def test_who_cannot_pay_the_gas_is_told_so(scene: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["contract", "faucet", scene.me, "5", "--key", "poor", "--network", NETWORK, "--yes"]) == 4
    assert "has 0 ETH" in capsys.readouterr().err


def test_nobody_is_asked_where_nobody_can_answer(scene: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["contract", "stake", "1", "--key", "me", "--network", NETWORK]) == 2
    assert "--yes" in capsys.readouterr().err
    assert bonded(scene) == 0


@pytest.mark.parametrize(("answer", "code", "stake"), [("n", 130, 0), ("y", 0, 7 * TOKEN)])
def test_a_person_is_told_what_happens_to_the_money_and_asked(
    scene: Any, answer: str, code: int, stake: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: answer == "y")
    assert main(["contract", "stake", "7", "--key", "me", "--network", NETWORK]) == code
    assert f"7 tokens of {scene.me} become stake" in capsys.readouterr().err
    assert bonded(scene) == stake


def test_a_command_that_was_killed_after_sending_is_not_repeated(scene: Any) -> None:
    leave_unfinished(scene, amount=20)
    told = scene.cli(
        "contract", "stake", "20", "--key", "me", "--network", NETWORK, "--yes", "--json"
    )  # and no dry run
    assert told["recovered"] and bonded(scene) == 20 * TOKEN
    again = scene.send("me", "stake", "20")
    assert not again["recovered"] and bonded(scene) == 40 * TOKEN


def leave_unfinished(scene: Any, amount: int) -> None:
    """What a process leaves that was killed between sending and seeing the receipt."""
    profile = load_profile(NETWORK, home=scene.home)
    key = load_key(scene.home / "keys" / "me.json", "rehearsal")

    async def die() -> None:
        chain = ChainClient(profile, key, outbox=scene.home / "outbox" / f"{CHAIN_ID}.sqlite")
        vault = profile.contracts.vault
        await chain.execute(SimulatedStep("approve tokens", chain.contracts.approve(vault, 10**27)), key)
        chain._sender._look = lambda _: None  # type: ignore[method-assign]
        chain._sender._limits = SendLimits(poll=0.01, give_up=0.1, bump_after=60)
        with pytest.raises(TransactionUnconfirmed):
            await chain.bond(key.address, amount * TOKEN)
        chain.close()

    trio.run(die)


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (["earnings", "post"], "{}"),
        (["earnings", "post"], '{"pool": 1, "epoch": 0, "root": "ab", "total": 1, "signatures": []}'),
        (["claim", "1", "0x" + "11" * 20], '{"units": -1, "proof": []}'),
        (["claim", "1", "0x" + "11" * 20], '{"units": 1, "proof": ["0x12"]}'),
        (["claim", "1", "0x" + "11" * 20], "[" * 200_000),
    ],
)
def test_a_table_or_a_line_that_cannot_be_read_is_named(
    scene: Any, tmp_path: Path, command: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "given.json"
    path.write_text(text)
    assert main(["contract", *command, str(path), "--key", "me", "--network", NETWORK, "--yes"]) == 2
    assert f"{path} cannot be used" in capsys.readouterr().err


def test_who_can_take_what_is_told_before_anybody_stakes(scene: Any, capsys: pytest.CaptureFixture[str]) -> None:
    people = ["--trainer", NodeKey.generate().address, "--validator", NodeKey.generate().address]
    scene.send("me", "pool", "create", "--run-root", "ab" * 32, *people, "--fund", "50")
    told = scene.look("pool", "show", "1")["pool"]
    assert (told["arbiter"], told["min_window"], told["opener"]) == (scene.me, 3600, scene.me)
    assert (told["posted_epoch"], told["epochs_left"], told["owed_wei"]) == (None, None, "0")
    assert told["treasury"] != told["arbiter"]
    capsys.readouterr()
    assert main(["contract", "pool", "show", "1", "--network", NETWORK]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "1 of 1 validators say what everybody has earned, and can take 100 tokens of stake for each unit of a member"
        in shown
    )
    assert f"the arbiter {scene.me} can give that back for 24 h" in shown
    assert "no pool here pays sooner than 1 h" in shown


def test_a_consent_that_is_too_old_is_refused(scene: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scene.send("me", "stake", "100")
    state = tmp_path / "node"
    scene.cli("keys", "new", "--state-dir", str(state), "--json")
    consent = ["contract", "node", "consent", scene.me, "--state-dir", str(state), "--network", NETWORK]
    given = tmp_path / "consent.json"
    given.write_text(json.dumps(scene.cli(*consent, "--until", "+1m")))
    scene.wait(120)
    register = ["contract", "node", "register", "--consent", str(given), "--network", NETWORK, "--yes"]
    assert main([*register, "--key", "me"]) == 4
    assert "the signature is too old" in capsys.readouterr().err
    assert main([*register, "--key", "poor"]) == 3
    assert "for another provider" in capsys.readouterr().err
    given.write_text(json.dumps(scene.cli(*consent, "--until", "+1h")))
    assert main([*register, "--key", "me"]) == 0


def test_another_chain_behind_the_profile_is_refused(scene: Any, capsys: pytest.CaptureFixture[str]) -> None:
    other = msgspec.structs.replace(load_profile(NETWORK, home=scene.home), name="other", chain_id=8453)
    write_profile(user_profile_path("other", scene.home), other)
    assert main(["contract", "stake", "1", "--key", "me", "--network", "other", "--yes"]) == 4
    error = capsys.readouterr().err
    assert "another chain" in error and "84532" in error


def test_a_profile_whose_contracts_are_not_there_is_refused(scene: Any, capsys: pytest.CaptureFixture[str]) -> None:
    real = load_profile(NETWORK, home=scene.home)
    moved = msgspec.structs.replace(real.contracts, swarm=scene.me)
    write_profile(user_profile_path("moved", scene.home), msgspec.structs.replace(real, contracts=moved))
    assert main(["contract", "stake", "1", "--key", "me", "--network", "moved", "--yes"]) == 4
    assert "swarm" in capsys.readouterr().err


def test_a_deployment_that_was_interrupted_goes_on(scene: Any) -> None:
    """Three of its seven transactions stand, then the endpoint dies."""
    profile = msgspec.structs.replace(load_profile(NETWORK, home=scene.home, deployed=False), name="second")
    write_profile(user_profile_path("second", scene.home), profile)
    deploy = ["contract", "deploy", "--network", "second", "--key", "me", "--replace", "--yes", "--json"]
    real, sent = ChainClient.execute, []

    async def dying(self: ChainClient, step: Any, key: Any) -> Any:
        if len(sent) == 3:
            raise KeyboardInterrupt
        sent.append(step.action)
        return await real(self, step, key)

    ChainClient.execute = dying  # type: ignore[method-assign]
    try:
        scene.cli(*deploy, code=130)
    finally:
        ChainClient.execute = real  # type: ignore[method-assign]
    planned = scene.cli(*deploy[:-2], "--dry-run", "--json")
    assert len(planned["steps"]) == 5
    assert "slashes are burned whole" in planned["says"] and f"{scene.me} may undo" in planned["says"]
    before = int(scene.rpc("eth_blockNumber"), 16)
    done = scene.cli(*deploy)
    assert int(scene.rpc("eth_blockNumber"), 16) == before + 5
    assert load_profile("second", home=scene.home).contracts.swarm == done["swarm"] != profile.contracts.swarm
    told = scene.cli("contract", "params", "--network", "second", "--json")
    assert told["contracts"]["court"] == done["court"]
    # What was consented to is what the chain has.
    born = told["parameters"]
    assert (born["treasury"], born["arbiter"], born["bond_bps"]) == (BURNED, scene.me, 2500)
    assert "two appeals" in scene.cli(*deploy, "--unbonding", "47h", code=2)["errors"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"kind": "file"}', '{"kind": "what"}', '{"kind": "epoch", "pool": -1}', "{" * 100_000],
)
def test_a_case_that_cannot_be_read_is_named(
    scene: Any, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "case.json"
    path.write_text(text)
    assert main(["contract", "slash", str(path), "--key", "me", "--network", NETWORK, "--yes"]) == 4
    assert "cannot be used" in capsys.readouterr().err


def test_events_can_be_read_by_programs(scene: Any) -> None:
    scene.send("me", "stake", "3")
    rows = scene.look("events")["events"]
    (row,) = [row for row in rows if row["event"] == "Bonded"]
    assert row["amount_wei"] == str(3 * TOKEN) and row["provider"] == scene.me
    json.dumps(rows)


def test_who_follows_a_pool_is_told_what_who_looks_at_it_is(scene: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    people = ["--trainer", NodeKey.generate().address, "--validator", NodeKey.generate().address]
    people += ["--run-root", "ab" * 32, "--fund", "50"]
    scene.send("me", "stake", "3")
    pool, other = (scene.send("me", "pool", "create", *people)["pool"] for _ in range(2))
    scene.send("me", "pool", "end", str(pool))
    scene.rpc("anvil_mine", hex(64))  # what is followed must be deep enough
    heard: list[dict[str, Any]] = []

    def hear(row: dict[str, Any]) -> None:
        heard.append(json.loads(json.dumps(row)))
        if row["event"] == "PoolEnded":
            raise KeyboardInterrupt

    looked = scene.look("events", "--pool", str(pool))["events"]
    monkeypatch.setattr("cli.contract.look.print_json", hear)
    assert main(["contract", "events", "--network", NETWORK, "--pool", str(pool), "--follow", "--json"]) == 130
    assert heard == looked
    assert {"Bonded", "PoolCreated"} <= {row["event"] for row in heard}
    assert {row["pool"] for row in heard if "pool" in row} == {pool} != {other}


def test_a_stranger_can_choose_among_pools(scene: Any, capsys: pytest.CaptureFixture[str]) -> None:
    line = "sort: sort, model of 1.2 MB; workers: any machine, */float32/*"
    people = ["--trainer", NodeKey.generate().address, "--validator", NodeKey.generate().address]
    scene.send("me", "pool", "create", "--run-root", "ab" * 32, *people, "--fund", "50", "--uri", line, "--invited")
    told = scene.look("pool", "list")
    (pool,) = told["pools"]
    assert (pool["members"], pool["run_uri"], pool["escrow_wei"]) == (0, line, str(50 * TOKEN))
    assert int(told["stake_of_one_node_wei"]) == 100 * TOKEN
    capsys.readouterr()
    assert main(["contract", "pool", "list", "--network", NETWORK]) == 0
    shown = capsys.readouterr().out
    assert line in shown and "pays 1 per 1000 units, 50 tokens left" in shown and "by invitation" in shown
    assert "0 members, 1 of 1 validators decide" in shown and "bonds 100 tokens" in shown


def test_opening_a_pool_ends_with_what_to_do_now_and_makes_nobody_judge_himself(
    scene: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = NodeKey.generate().address, NodeKey.generate().address
    base = ["contract", "pool", "create", "--run-root", "ab" * 32, "--network", NETWORK, "--key", "me", "--yes"]
    before = scene.rpc("eth_blockNumber")
    assert main([*base, "--trainer", one, "--validator", other, "--validator", one.lower()]) == 2
    assert "the trainer cannot be a validator" in capsys.readouterr().err and scene.rpc("eth_blockNumber") == before
    assert main([*base, "--trainer", one, "--validator", other, "--invited", "--fund", "1"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    number = len(scene.look("pool", "list")["pools"])
    assert last.startswith(f"It is pool {number}, by invitation.") and f"pool invite {number} --bearer" in last


def test_the_chair_of_a_pool_is_its_managers_until_trainers_are_seated(scene: Any) -> None:
    """Who opens a pool is not its trainer: whoever has the trainer's machine ends nothing, and names nobody."""
    manager, first, second = (NodeKey.generate().address for _ in range(3))
    opening = ["pool", "create", "--run-root", "22" * 32, "--validator", first, "--trainer"]
    assert "one key cannot be both" in scene.send("me", *opening, scene.me, code=2)["errors"]
    pool = scene.send("me", *opening, manager)["pool"]
    alone = scene.look("chair", "show", str(pool))
    assert (alone["holder"], alone["term"], alone["seated"]) == (manager, 0, False)
    scene.send("me", "chair", "seat", str(pool), "--trainer", scene.me, "--trainer", second, "--lease", "10m")
    seated = scene.look("chair", "show", str(pool))
    assert seated["trainers"] == [scene.me, second] and seated["holder"] == scene.me and seated["lease_seconds"] == 600
    # It has no stake and never joined: it keeps its first lease, and no more.
    refused = scene.send("me", "chair", "hold", str(pool), "--step", "3", "--root", "33" * 32, code=4)
    assert "no member with a stake" in refused["errors"]
    assert scene.look("chair", "show", str(pool))["until"] == seated["until"]
    scene.send("me", "chair", "take", str(pool), "--step", "4", "--root", "33" * 32, "--dry-run", code=4)


def test_what_doctor_prints_for_a_validator_without_a_bond_is_typed_as_it_is_and_helps(
    scene: Any, tmp_path: Path
) -> None:
    node = scene.cli("keys", "new", "--state-dir", str(tmp_path / "judge"), "--json")["address"]
    scene.send("me", "provider", "register")
    scene.send("me", "node", "register", "--node-state", str(tmp_path / "judge"))
    people = [
        "--trainer",
        "0x" + "22" * 20,
        "--validator",
        node,
        "--slash",
        "50",
        "--fund",
        "50",
        "--run-root",
        "ab" * 32,
    ]
    number = scene.send("me", "pool", "create", *people)["pool"]
    config = NodeConfig(network=NETWORK, home=scene.home, provider_key_file=scene.home / "keys" / "me.json")

    def looked_at(who: Any) -> Any:
        async def look() -> Any:
            with closing(ChainClient(load_profile(NETWORK, home=scene.home))) as chain:
                return await look_at_bond(chain, who, await chain.pool(number), config)

        return trio.run(look)

    before = looked_at(node)
    assert before.level == "warning" and "needs 12.5" in before.what
    assert main([*shlex.split(before.remedy)[1:], "--yes"]) == 0
    assert looked_at(node).level == "ok" and looked_at(scene.me) is None, "who carries none is not asked"
    scene.send("me", "node", "lend", node, "0")
    refused = scene.send("me", "node", "lend", "0x" + "11" * 20, "5", code=4)
    assert "not yours" in refused["errors"]


def test_the_way_back_to_a_nodes_stake_is_one_command_that_goes_on_where_it_was(
    scene: Any,
) -> None:
    scene.send("me", "provider", "register")
    state = scene.home / "nodes" / "leaver"
    node = scene.cli("keys", "new", "--state-dir", str(state), "--json")["address"]
    scene.send("me", "node", "register", "--node-state", str(state))
    Journal(state / "journal.sqlite").close()
    left = scene.cli("leave", "--now", "--state-dir", str(state), "--network", NETWORK, "--json")
    assert left["steps"] == [f"intellect-node contract node retire {node}"] and left["left_pool"] is None
    before = scene.look("provider", "show", scene.me)
    scene.send("poor", "node", "retire", node, code=4)  # its provider's alone
    scene.send("me", "node", "remove", node)  # whoever began by hand goes on from there
    (leaving,) = scene.look("provider", "show", scene.me)["leaving"]
    assert leaving == {"node": node, "units": 1, "free_at": scene.look("node", "show", node)["free_at"]}
    assert "answered long enough" in scene.send("me", "node", "release", code=4)["errors"]
    scene.send("me", "node", "retire", node)
    assert int(scene.look("provider", "show", scene.me)["unbonding_wei"]) == int(before["bonded_wei"]) > 0
    told = scene.send("me", "node", "retire", node, code=4)
    assert "say it again from" in told["errors"]
    scene.wait(30 * 86_400)
    scene.send("me", "node", "retire", node)
    after = scene.look("provider", "show", scene.me)
    assert int(after["token_wei"]) == int(before["token_wei"]) + int(before["bonded_wei"])
    assert after["leaving"] == [] and scene.look("node", "show", node)["units"] == 0
    assert "nothing to do" in scene.send("me", "node", "retire", node, code=4)["errors"]
