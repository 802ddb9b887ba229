"""The road to a public pool, walked: every command that `pool plan --public` prints, on a chain with a public one's
habits, and the file that lets people in.

Blocks come by themselves, two on top of a receipt before it counts; data costs a fee of the layer below; the endpoint
refuses long ranges of logs, some requests, and methods. Time runs some hundred times as fast.
"""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from cli.contract import public
from cli.contract.plan import PlanFile
from cli.contract.public import requests_a_day
from cli.contract.sources import Deployed, handing_in
from cli.main import main
from node.chain.profile import load_profile, user_profile_path, write_profile
from node.chain.simulate import GAS_PRICE_ORACLE
from node.config import NodeConfig
from node.preflight.early import refuse_early
from node.preflight.finding import PreflightFailed
from node.preflight.survey import PreflightSurvey, Scope
from node.state.journal import Journal
from node.state.keystore import claimed_address, read_keystore
from node.state.leave import LEAVING, label_of
from protocol.identity import NodeKey
from protocol.statements import Domain
from tests.cli.rehearsal import COIN, NETWORK, TOKEN, Scene, light_keys, stage
from tests.node.chain.gateway import Gateway
from tests.node.chain.meddler import meddling

L1_FEE = 12_345_678
KEYS = ("deployer", "owner", "provider")
PEER = NodeKey(b"\x05" * 32).peer_id
PLAN = """
network = "base-sepolia"

[deploy]
key = "deployer"
unbonding = "3d"
appeal = "2h"
stake_per_unit = 60
min_window = "30m"

[pool]
key = "owner"
run_root = "{root}"
trainer_state = "nodes/trainer"
validator_state = ["nodes/v1", "nodes/v2"]
threshold = 2
reward = "0.5"
fund = 300
slash = 60
epoch = "2h"
units_per_epoch = 400_000
invited = true

[[provider]]
key = "provider"
nodes = ["nodes/trainer", "nodes/v1", "nodes/v2"]

[public]
members = 20
requests = 400_000
"""


@dataclass
class Road:
    """told: what `pool plan --public --json` said; spent: by key, wei; pool: the number."""

    scene: Scene
    told: dict[str, Any]
    spent: dict[str, int]
    pool: int
    folder: Path

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scene, name)

    def stretch(self, title: str) -> dict[str, Any]:
        return next(one for one in self.told["road"] if one["title"] == title)

    def invite(self, *words: str, code: int = 0, out: str = "theirs.toml") -> dict[str, Any]:
        state = ["--state-dir", str(self.folder / "nodes/trainer"), "--network", NETWORK, "--json"]
        named = ["--out", str(self.folder / out)]
        return self.cli("pool", "invite", str(self.pool), *words, *named, *state, code=code)  # as people say it

    def join(self, node: str, profile: Path | str, *more: str, code: int = 0) -> dict[str, Any]:
        words = ["--state-dir", str(self.folder / "nodes" / node), "--network", str(profile), "--yes", "--json"]
        return self.cli("contract", "join", str(self.pool), *more, *words, code=code)

    def address(self, node: str) -> str:
        return claimed_address(read_keystore(self.folder / "nodes" / node / "node-key.json")) or ""

    def registered(self, node: str) -> str:
        """A new node of the provider's; its address."""
        state = str(self.folder / "nodes" / node)
        address = self.cli("keys", "new", "--state-dir", state, "--json")["address"]
        self.rpc("anvil_setBalance", address, hex(COIN))
        self.send("provider", "node", "register", "--node-state", state)
        return address


@pytest.fixture(scope="module")
def road(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Road]:
    """The plan's commands are sent, as they were printed."""
    cache, folder = Path(request.config.cache.mkdir("anvil")), tmp_path_factory.mktemp("user")  # type: ignore[union-attr]
    with (
        light_keys(),
        stage(folder / "home", cache, quick=False, block=0.2) as scene,
        meddling(scene.url) as meddler,
    ):
        gateway = Gateway(meddler, scene.url, every=97, range_limit=2000)
        profile = load_profile(NETWORK, home=scene.home, deployed=False)
        # Two makers: what money follows from is asked of both.
        habits = msgspec.structs.replace(profile, rpc_urls=(meddler.url, scene.url))
        write_profile(user_profile_path(NETWORK, scene.home), habits)
        scene.rpc("anvil_setCode", GAS_PRICE_ORACLE, f"0x63{L1_FEE:08x}5f5260205ff3")
        people = {name: scene.cli("keys", "new", name, "--json")["address"] for name in KEYS}
        for address in people.values():
            scene.rpc("anvil_setBalance", address, hex(COIN))
        file = folder / "pool.toml"
        file.write_text(PLAN.format(root="ab" * 32))
        told = scene.cli("contract", "pool", "plan", "--public", str(file), "--json")
        done: dict[str, Any] = {}
        for step in told["commands"]:
            program, *words = step["command"]
            assert program == "intellect-node"
            done = scene.cli(*words, *(["--yes"] if step["sends"] else []), "--json")
        left = {name: int(scene.rpc("eth_getBalance", people[name], "latest"), 16) for name in KEYS}
        yield Road(scene, told, {name: COIN - wei for name, wei in left.items()}, done["pool"], folder)
        gateway.close()


def test_the_printed_commands_make_the_pool_and_cost_about_what_was_said(road: Road) -> None:
    assert road.told["tokens_wei"] == {"owner": str(300 * TOKEN), "provider": str(180 * TOKEN)}
    pool = road.look("pool", "show", str(road.pool))["pool"]
    assert (pool["window"], pool["epoch_seconds"], pool["threshold"], pool["invited"]) == (86_400, 7200, 2, True)
    assert (pool["escrow_wei"], pool["slash_amount_wei"]) == (str(300 * TOKEN), str(60 * TOKEN))
    assert (pool["run_root"], pool["units_per_epoch"]) == ("ab" * 32, 400_000)
    for judge in pool["validators"]:
        assert road.look("node", "show", judge)["registered"], "it can judge"
    born = road.look("params")["parameters"]
    assert (born["unbonding_period"], born["min_window"], born["stake_per_unit_wei"]) == (
        259_200,
        1800,
        str(60 * TOKEN),
    )
    sums = road.stretch("Coin for gas, and tokens")["sums"]
    for name in KEYS:
        # Told is twice of what it costs at the price of that moment; anvil's falls from block to block.
        assert road.spent[name] < int(sums[name]) < 12 * road.spent[name], name
    assert set(sums) == {*KEYS, "nodes/trainer", "nodes/v1", "nodes/v2"}


def test_the_road_says_the_rest_in_order(road: Road) -> None:
    assert [one["title"] for one in road.told["road"]] == [
        "Roles and keys",
        "The chain's endpoint",
        "Coin for gas, and tokens",
        "Contracts, stakes and pool",
        "Sources for all to read",
        "Your own nodes, and bootnodes",
        "Alerts",
        "What an invited person needs",
    ]
    asked = road.stretch("The chain's endpoint")["sums"]
    assert asked["members"] == 23 and asked["all"] == 23 * asked["each"]
    assert any("requests a day of 23 members are more than the 400,000" in one for one in road.told["warnings"])
    needs = road.stretch("What an invited person needs")
    assert needs["sums"]["stake_wei"] == str(60 * TOKEN) and "join theirs.toml" in needs["commands"][1][1]
    assert "alchemy.com/faucets" in " ".join(road.stretch("Coin for gas, and tokens")["lines"])


@pytest.mark.parametrize("invited", [True, False])
def test_each_command_that_is_printed_names_the_network_as_one_word(tmp_path: Path, invited: bool) -> None:
    place = tmp_path / "my nets" / "base; sepolia.toml"
    place.parent.mkdir()
    profile = load_profile(NETWORK, home=tmp_path, deployed=False)
    write_profile(place, msgspec.structs.replace(profile, name="my net"))
    text = PLAN.format(root="ab" * 32).replace('"base-sepolia"', json.dumps(str(place)))
    (tmp_path / "pool.toml").write_text(text.replace("invited = true", f"invited = {str(invited).lower()}"))
    plan, quote = PlanFile(tmp_path / "pool.toml"), public.Quote(1, 0.0, 2.0)
    assert plan.profile is not None and plan.network == str(place)
    parts = public._verification(plan, plan.profile), public._nodes(plan, plan.profile)
    parts = (*parts, public._people(plan, plan.profile, quote))
    words = [shlex.split(command) for part in parts for _, command in part.commands]
    networks = [one[one.index("--network") + 1] for one in words if "--network" in one]
    assert set(networks) == {str(place)} and len(networks) == (6 if invited else 5)
    assert words[-1] == ["intellect-node", "join", "theirs.toml" if invited else "my net.toml"]


def test_a_member_asks_as_often_as_was_counted() -> None:
    """`test_gateway` counts them: two looks and one question for logs in a block of two seconds."""
    assert requests_a_day(1.0, 2.0) == 129_600
    assert requests_a_day(6.0, 2.0) == 28_800, "logs of all blocks since the last look come in one answer"


def test_the_plan_is_checked_against_what_is_there(
    road: Road, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def mistakes(text: str, *more: str) -> str:
        file = tmp_path / "pool.toml"
        file.write_text(text.format(root="ab" * 32))
        told = road.cli("contract", "pool", "plan", str(file), *more, "--json", code=2)
        return str([f"{one['place']} {one['what']}" for one in told["findings"]])

    assert "are on base-sepolia already" in mistakes(PLAN)
    without = PLAN[: PLAN.index("[deploy]")] + PLAN[PLAN.index("[pool]") :]
    longer = without.replace('"2h"', '"71h"\nlease = "72h"')
    assert "longer than the unbonding" in mistakes(longer), "the chain is asked"
    near = without.replace("invited = true", f'bootnode = ["/ip4/10.0.0.1/tcp/4001/p2p/{PEER}", "nowhere"]')
    told = mistakes(near, "--public")
    assert "cannot be dialled from elsewhere" in told and "nowhere" in told
    assert "nobody else's" in mistakes(without.replace("base-sepolia", "local"), "--public")
    (tmp_path / "pool.toml").write_text(without.format(root="ab" * 32))
    capsys.readouterr()
    assert main(["contract", "pool", "plan", str(tmp_path / "pool.toml"), "--public"]) == 0
    shown = capsys.readouterr().out
    assert "\n1. Roles and keys\n" in shown and "\n8. What an invited person needs\n" in shown
    assert "\nintellect-node join theirs.toml\n" in shown and "\nnote: " in shown


def test_the_sources_are_what_is_deployed_and_the_commands_say_how_it_was_made(road: Road, tmp_path: Path) -> None:
    told = road.look("source", "--out", str(tmp_path / "source.json"), "--verify")
    assert {one["name"] for one in told["contracts"]} >= {"TestToken", "StakeVault", "Swarm", "Court", "Chair"}
    swarm = next(one for one in told["contracts"] if one["name"] == "Swarm")
    places = load_profile(NETWORK, home=road.home).contracts
    assert all(one["same"] for one in told["contracts"])
    assert swarm["arguments"][24:64] == places.vault[2:].lower(), "the vault is the first of its arguments"
    first, second = swarm["commands"]
    assert f"/v2/verify/84532/{places.swarm}" in first and '"src/Swarm.sol:Swarm"' in first
    words = shlex.split(second)
    assert f"constructorArguments={swarm['arguments']}" in words and f"sourceCode@{tmp_path / 'source.json'}" in words
    assert "chainid=84532" in handing_in(84532, Deployed("Chair", places.chair, None, ""), tmp_path)[1]


def test_a_contract_of_another_version_is_named_by_each_command_with_what_to_do(
    road: Road, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told and not refused: who has a stake in an older deployment takes it out with this program."""
    place = load_profile(NETWORK, home=road.home).contracts.payroll
    true = road.rpc("eth_getCode", place, "latest")
    dry = ["contract", "pool", "end", "1", "--key", "owner", "--network", NETWORK, "--dry-run"]
    try:
        assert main(dry) == 0 and "another version" not in capsys.readouterr().err, "the control"
        road.rpc("anvil_setCode", place, true[:-2] + "fe")
        told = road.look("source", "--out", str(tmp_path / "source.json"), "--verify")
        assert [one["name"] for one in told["contracts"] if not one["same"]] == ["Payroll"]
        assert main(dry) == 0
        error = " ".join(capsys.readouterr().err.split())
        assert "payroll of the network base-sepolia" in error and "source --out source.json --verify" in error
        road.rpc("anvil_setCode", place, "0x600160005260206000f3")  # its answers have another form
        assert main(["contract", "earnings", "show", "1", "--network", NETWORK]) == 4
        error = " ".join(capsys.readouterr().err.split())
        assert "of another version" in error and "payroll" in error and "form of the contract's ABI" not in error
    finally:
        road.rpc("anvil_setCode", place, true)


def test_what_would_let_in_nobody_is_not_signed(road: Road) -> None:
    folder = road.folder
    assert "whom?" in road.invite(code=2)["errors"]
    assert "over already" in road.invite("--bearer", "2", "--until", "2020-01-01", code=2)["errors"]
    wrong = ["--key", "owner", "--network", NETWORK, "--out", str(folder / "x.toml")]
    assert "only the manager" in road.cli("contract", "pool", "invite", "1", "--bearer", "2", *wrong, code=3)["errors"]
    people = folder / "people.csv"
    people.write_text("Bob\n0x12,Eve\n")
    assert len(road.invite("--list", str(people), code=2)["findings"]) == 1
    words = ["pool", "create", "--run-root", "cd" * 32, "--trainer-state", str(folder / "nodes/trainer"), "--fund", "0"]
    opened = road.send("owner", *words, "--validator-state", str(folder / "nodes/v1"), "--slash", "60")["pool"]
    over = ["--bearer", "1", "--out", str(folder / "x.toml"), "--network", NETWORK, "--key", "owner"]
    assert "is open" in road.cli("contract", "pool", "invite", str(opened), *over, code=4)["errors"]
    road.send("owner", "pool", "end", str(opened))
    assert "has ended" in road.cli("contract", "pool", "invite", str(opened), *over, code=4)["errors"]
    ended = NodeConfig(network=NETWORK, pool=opened, state_dir=folder / "nodes" / "late", role="worker")
    with pytest.raises(PreflightFailed, match="has ended"):
        refuse_early(ended)
    _wish_to_leave(road, folder / "nodes" / "late", opened)
    refuse_early(ended)  # it comes for its pay alone
    assert not (folder / "x.toml").exists() and not road.look("pool", "invitations", "1")["invitations"]


def test_an_invitation_lets_in_as_many_as_it_says_until_it_is_taken_back(road: Road, tmp_path: Path) -> None:
    judge, own = road.address("v1"), user_profile_path(NETWORK, road.home)
    road.rpc("anvil_setBalance", judge, hex(COIN))
    road.join("v1", NETWORK)  # whom the pool names comes uninvited
    road.send("deployer", "faucet", road.look("node", "show", judge)["provider"], "120")
    road.send("provider", "stake", "120")
    first, second = road.registered("a"), road.registered("b")
    assert road.invite("--bearer", "1")["places"] == 1
    theirs = road.folder / "theirs.toml"
    refuses(road, "a", own, "no invitation")
    assert "invited nodes only" in road.join("a", NETWORK, code=4)["errors"]
    foreseen = rehearsed(road, "a", theirs)
    assert foreseen["invitation"].level == foreseen["join"].level == "ok", "the contract itself was asked"
    refuse_early(config_of(road, "a", theirs))
    road.join("a", theirs)
    refuses(road, "b", theirs, "its 1 place(s) are taken")

    # By address, here of a node; a copy is of no use to a stranger.
    people = road.folder / "people.csv"
    people.write_text(f"address,name\n{second},Cleo\n")
    road.invite("--list", str(people), out="named.toml")
    named, elsewhere = road.folder / "named.toml", tmp_path / "elsewhere.toml"
    refuses(road, "stranger", named, f"it is for {second}, and this is a node whose key is not made yet")
    elsewhere.write_text(named.read_text().replace("\nchain_id = 84532\npool", "\nchain_id = 8453\npool"))
    refuses(road, "b", elsewhere, "it is for chain 8453")
    road.join("b", named)

    road.invite("--bearer", "1", out="lost.toml")
    rows = road.look("pool", "invitations", str(road.pool))["invitations"]
    assert [(one["taken"], one["state"], one["whose"]) for one in rows] == [
        (1, "used up", "whoever has theirs.toml"),
        (1, "used up", "Cleo"),
        (0, "open", "whoever has lost.toml"),
    ]
    manager = ["--state-dir", str(road.folder / "nodes/trainer"), "--network", NETWORK, "--yes", "--json"]
    road.rpc("anvil_setBalance", road.address("trainer"), hex(COIN))
    revoke = ["contract", "pool", "revoke", str(road.pool), "--all", "--file", str(theirs), *manager]
    road.cli(*revoke)
    assert "nothing to take back" in road.cli(*revoke, code=2)["errors"]
    states = [one["state"] for one in road.look("pool", "invitations", str(road.pool))["invitations"]]
    assert states == ["taken back", "used up", "taken back"]
    refuses(road, "stranger", road.folder / "lost.toml", "the manager took it back")
    road.join("a", NETWORK, "--contact", "who came by it stays")
    members = road.look("pool", "show", str(road.pool))["members"]
    assert {one["node"] for one in members} == {judge, first, second}


def _wish_to_leave(road: Road, state: Path, pool: int) -> None:
    state.mkdir()
    journal = Journal(state / "journal.sqlite")
    journal.remember(LEAVING, label_of(Domain(84532, load_profile(NETWORK, home=road.home).contracts.swarm), pool))
    journal.close()


def config_of(road: Road, node: str, profile: Path) -> NodeConfig:
    return NodeConfig(network=str(profile), pool=road.pool, state_dir=road.folder / "nodes" / node, role="worker")


def refuses(road: Road, node: str, profile: Path, says: str) -> None:
    """As the real `join` begins."""
    with pytest.raises(PreflightFailed) as caught:
        refuse_early(config_of(road, node, profile))
    assert says in caught.value.why


def rehearsed(road: Road, node: str, profile: Path) -> dict[str, Any]:
    """As `join --dry-run` goes, as far as the pool's members are not asked: what it found, by name."""
    return {one.name: one for one in trio.run(PreflightSurvey(config_of(road, node, profile), Scope(joining=True)).run)}
