"""The checks before joining, each by its pure core: what a newcomer gets wrong must be named with what mends it."""

import json
import os
import re
import socketserver
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from contracts.bindings import PoolInfo, PostedEarnings
from node.chain.bonds import Bond
from node.chain.errors import shown
from node.chain.profile import NetworkProfile
from node.config import NodeConfig
from node.hardware import Gpu, Hardware
from node.hardware.builds import Builds
from node.inference.errors import EngineError
from node.preflight.chain import (
    ChainStanding,
    Provider,
    against_chain,
    against_peers,
    check_bond,
    check_gas,
    check_pool,
    check_rpc,
    check_stake,
    check_witnesses,
    judge,
    next_steps,
)
from node.preflight.engines import check_class, check_engines, judge_class
from node.preflight.finding import CheckFinding, PreflightFailed, failure, ok, warning, worst
from node.preflight.machine import (
    check_disk,
    check_keys,
    check_lock,
    check_memory,
    check_versions,
    installed_versions,
    judge_disk,
    judge_gpu,
)
from node.preflight.reach import check_announced, check_listen, is_public
from node.preflight.running import Running, check_running
from node.preflight.settings import NAMED, OTHERS, PREFIX, check_settings
from node.preflight.survey import check_before_stake, exit_code
from node.state.directory import StateDir
from node.training.planning import machine_of
from protocol.identity import NodeKey
from protocol.run import Asset, EnvironmentSpec, RunSpec, VerificationSpec
from protocol.sections import Requirement, Requirements
from protocol.thresholds import Thresholds

NODE, PROVIDER = (NodeKey(bytes([n]) * 32).address for n in (1, 2))
BASE = NetworkProfile(name="base-sepolia", chain_id=84532, rpc_urls=("https://rpc.example/v2/secret",))
GIB = 2**30


def model_of(size: int) -> RunSpec:
    asset = Asset(path="model/model.safetensors", root="0" * 64, size=size)
    return RunSpec(name="t", environment=EnvironmentSpec(name="sort"), assets=(asset,))


# findings


def test_the_worst_finding_counts_and_its_code_is_the_programs() -> None:
    fine, doubtful, wrong = ok("clock", "fine"), warning("gpu", "old", "update"), failure("stake", "none", "bond")
    assert [worst([]), worst([fine]), worst([doubtful, fine]), worst([wrong, doubtful])] == [
        "ok",
        "ok",
        "warning",
        "failure",
    ]
    assert [exit_code([fine, doubtful]), exit_code([fine, wrong]), exit_code([failure("disk", "full", "")])] == [
        0,
        4,
        3,
    ]


def test_a_refusal_names_the_first_failure_and_how_many_more_there_are() -> None:
    error = PreflightFailed(
        [ok("clock", ""), failure("disk", "full", "make room"), failure("port", "taken", "another")]
    )
    assert (error.what, error.remedy) == ("this node cannot join yet: disk", "make room")
    assert error.why == "full (and 1 more: intellect-node doctor)"


# clock


@pytest.mark.parametrize(
    ("behind", "level"), [(2, "ok"), (119, "ok"), (121, "warning"), (-14, "ok"), (-16, "warning"), (-301, "failure")]
)
def test_the_clock_is_held_against_the_newest_block(behind: int, level: str) -> None:
    assert against_chain(1000.0, 1000.0 + behind).level == level


def test_a_devnets_clock_that_somebody_moved_refuses_nobody() -> None:
    assert against_chain(10_000.0, 0.0, rehearsal=True).level == "warning"


def test_most_peers_decide_whose_clock_is_wrong() -> None:
    assert against_peers([]) is None
    one_liar = against_peers([0.2, -0.3, 9e9])
    assert one_liar is not None and one_liar.level == "ok"
    ahead = against_peers([40.0, 41.0, 0.1])
    assert ahead is not None and ahead.level == "warning" and "40 s ahead of" in ahead.what


# disk, memory, GPU


def test_a_disk_that_will_be_full_is_a_warning_with_the_quota_that_fits(tmp_path: Path) -> None:
    found = judge_disk(free=5 * GIB, stored=GIB, quota=20 * GIB, image=0, place=tmp_path)
    assert found.level == "warning" and "INTELLECT_NODE_STORE_QUOTA=" in found.remedy
    room = int(found.remedy.partition("QUOTA=")[2].partition(" ")[0])
    assert judge_disk(free=5 * GIB, stored=0, quota=room, image=0, place=tmp_path).level == "ok"
    assert judge_disk(free=200 * 2**20, stored=0, quota=GIB, image=0, place=tmp_path).level == "failure"


def test_a_directory_that_is_not_there_yet_is_looked_at_by_its_parent(tmp_path: Path) -> None:
    assert check_disk(tmp_path / "not" / "yet", quota=0).data["path"] == str(tmp_path)


def test_a_blob_that_a_running_daemon_evicts_meanwhile_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One goes after it was listed, and one after it was first looked at."""
    store, look = tmp_path / "blobs" / "complete", Path.stat
    store.mkdir(parents=True)
    for name in ("kept", "listed", "seen"):
        (store / name).write_bytes(bytes(1000))

    def stat(path: Path, **how: Any) -> os.stat_result:
        if path.name == "listed":
            path.unlink(missing_ok=True)
        found = look(path, **how)
        if path.name == "seen":
            path.unlink()
        return found

    monkeypatch.setattr(Path, "stat", stat)
    found = check_disk(tmp_path, quota=1 << 40)
    control = judge_disk(1 << 50, 2000, 1 << 40, 0, tmp_path)
    assert sorted(one.name for one in store.iterdir()) == ["kept"]
    assert found.data["wanted_bytes"] == control.data["wanted_bytes"], "the sizes of what was seen count"


def test_a_model_that_does_not_fit_is_a_failure_and_which_one_depends_on_the_role() -> None:
    machine, with_gpu = Hardware(2, 8 * GIB, ()), Hardware(2, 8 * GIB, (Gpu("H100", 80 * GIB),))

    def look(size: int, role: str, hardware: Hardware, **said: int) -> CheckFinding:
        seen = machine_of(hardware, Builds("12.8"), "0")
        return check_memory(model_of(size) if size else None, role, hardware, seen, said=said)

    assert look(0, "worker", machine).level == "ok"
    assert look(GIB, "worker", machine).level == "ok"
    refused = look(GIB, "trainer", machine)
    assert refused.level == "failure" and "this would fit" in refused.remedy
    assert "GB of memory more for a copy of the policy" in look(GIB, "worker", machine).what
    assert "no memory for a copy of the policy" in look(60 * GIB, "validator", with_gpu).what
    assert look(60 * GIB, "validator", with_gpu).level == "ok" and look(90 * GIB, "worker", with_gpu).level == "failure"
    planned = look(GIB, "trainer", with_gpu)
    assert planned.level == "ok" and planned.what.startswith("1 of 1 card learns") and planned.data["learners"] == ["0"]
    told = look(GIB, "trainer", with_gpu, micro_batch_tokens=1 << 18)
    assert told.level == "warning" and "as said" in told.what


@pytest.mark.parametrize(
    ("wanted", "gpu", "here", "level", "words"),
    [
        ("auto", True, True, "ok", "vllm"),
        ("auto", True, False, "ok", "torch; vLLM is not installed"),
        ("auto", False, True, "ok", "torch"),
        ("torch", True, True, "ok", "torch"),
        ("vllm", True, True, "ok", "vllm"),
        ("vllm", True, False, "failure", "vLLM is not installed"),
    ],
)
def test_the_engine_that_will_compute_is_named(
    wanted: str, gpu: bool, here: bool, level: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check_version() -> str:
        if here:
            return "vllm"
        raise EngineError("vLLM is not installed", "no package vllm", "pip install vllm")

    monkeypatch.setattr("node.preflight.engines.check_version", check_version)
    found = check_engines(wanted, gpu=gpu, own=None)
    assert found.level == level and words in found.what
    assert found.remedy == ("pip install vllm" if level == "failure" else "")
    assert "mine.py" in check_engines(wanted, gpu=gpu, own="python mine.py").what


@pytest.mark.parametrize(
    ("vendor", "driver", "builds", "tool", "level", "words"),
    [
        ("", "", Builds(), False, "ok", "no GPU"),
        ("", "", Builds("12.8"), True, "warning", "shows no GPU"),
        ("nvidia", "550.54.15", Builds(), True, "warning", "build of torch"),
        ("nvidia", "470.82.01", Builds("12.8"), True, "warning", "too old"),
        ("nvidia", "550.54.15", Builds("13.0"), True, "warning", "too old"),
        ("nvidia", "550.54.15", Builds("12.8"), True, "ok", "driver 550.54.15"),
        ("amd", "", Builds("12.8"), False, "warning", "ROCm build"),
        ("amd", "", Builds(None, "6.4"), False, "ok", "ROCm 6.4"),
    ],
)
def test_a_gpu_needs_a_driver_and_a_build_of_torch_that_are_made_for_it(
    vendor: str, driver: str, builds: Builds, tool: bool, level: str, words: str
) -> None:
    gpus = (Gpu("L4", 24 * GIB, vendor=vendor),) if vendor else ()
    found = judge_gpu(Hardware(2, GIB, gpus, driver=driver), builds, tool=tool)
    assert found.level == level and words in found.what + found.remedy


# keys, lock, versions, settings


def test_keys_must_be_private_and_open(tmp_path: Path) -> None:
    assert [one.level for one in check_keys(tmp_path / "new", None, None)] == ["ok"]
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "node-key.json").write_text("{}")
    (state / "node-key.json").chmod(0o644)
    exposed = check_keys(state, None, None)[-1]
    assert exposed.level == "failure" and exposed.remedy == f"chmod 600 {state / 'node-key.json'}"
    (state / "node-key.json").chmod(0o600)
    assert check_keys(state, None, None)[-1].what.startswith("no password")
    state.chmod(0o777)
    assert check_keys(state, None, None)[0].level == "warning"


def test_a_wrong_password_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from eth_account import Account

    from node.state.keystore import write_private

    keystore = Account.encrypt(bytes([1]) * 32, "right", kdf="pbkdf2", iterations=2)
    write_private(tmp_path / "node-key.json", __import__("json").dumps(dict(keystore)))
    assert check_keys(tmp_path, "right", None)[-1].data["address"] == NODE
    wrong = check_keys(tmp_path, "wrong", None)[-1]
    assert wrong.level == "failure" and "password" in wrong.remedy


def test_a_second_daemon_is_in_the_way_and_a_killed_ones_file_is_not(tmp_path: Path) -> None:
    assert check_lock(tmp_path, joining=True).level == "ok"
    held = StateDir(tmp_path)
    assert check_lock(tmp_path, joining=False).level == "ok"
    found = check_lock(tmp_path, joining=True)
    assert found.level == "failure" and found.data["pid"] == str(os.getpid())
    held.close()
    (tmp_path / "lock").write_text("99999\n")
    assert check_lock(tmp_path, joining=True).level == "ok"


def test_what_is_installed_is_what_is_asked_for_and_anything_else_is_named() -> None:
    assert check_versions().level == "ok"
    found = check_versions({**installed_versions(), "libp2p": "0.2.7", "trio": None})
    assert (
        found.level == "warning" and "libp2p is 0.2.7, wanted ==0.8.1" in found.what and "trio is missing" in found.what
    )
    for torch in ("2.9.1", "3.0.0"):
        found = check_versions({**installed_versions(), "torch": torch})
        assert found.level == "warning" and f"torch is {torch}, wanted ==2.13.0" in found.what


def test_settings_of_another_version_are_named_with_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    assert [one.level for one in check_settings(file, {})] == ["ok", "ok"]
    file.write_text('role = "worker"\nstorage_quota = 5\n')
    of_file, of_environment = check_settings(
        file, {"INTELLECT_NODE_LISTENS": "x", "INTELLECT_NODE_HOME": "/h", "INTELLECT_NODE_CACHE": "/c"}
    )
    assert of_file.level == "failure" and "storage_quota: did you mean store_quota?" in of_file.remedy
    assert of_environment.level == "warning" and "did you mean listen?" in of_environment.remedy
    assert of_environment.data["unknown"] == ["LISTENS"]


def test_every_variable_that_the_program_reads_is_known(tmp_path: Path) -> None:
    """By the sources: who adds one finds it named here."""
    root = Path(__file__).resolve().parents[3]
    rooms = ("cli/**", "node/**", "protocol/**", "contracts")
    sources = (file for room in rooms for file in root.glob(f"{room}/*.py"))
    names = {name for file in sources for name in re.findall(rf"{PREFIX}([A-Z]\w*)", file.read_text("utf-8"))}
    assert names - {name.upper() for name in NodeConfig.model_fields} == {*OTHERS, NAMED}
    used = {f"{PREFIX}{name}": "1" for name in names - {NAMED} | {f"{NAMED}DOUBLES"}}
    assert [one.level for one in check_settings(tmp_path / "config.toml", used)] == ["ok", "ok"]


# chain


def endpoint(**more: Any) -> dict[str, Any]:
    return {"endpoint": "https://a", "chain_id": 84532, "seconds": 0.1, "block": 9, "timestamp": 1000} | more


@pytest.mark.parametrize(
    ("more", "level", "words"),
    [
        ({}, "ok", "block 9"),
        ({"chain_id": 1}, "warning", "is chain 1"),
        ({"error": "refused"}, "warning", "refused"),
        ({"seconds": 3.0}, "warning", "slow"),
        ({"timestamp": 900}, "warning", "lags"),
        ({"logs_from": 7}, "warning", "logs from block 7"),
        ({"logs_from": 0}, "ok", "block 9"),
    ],
)
def test_an_endpoint_is_judged_by_what_it_says(more: dict[str, Any], level: str, words: str) -> None:
    found = judge(endpoint(**more), BASE, 1010.0)
    assert found.level == level and words in found.what


def test_an_rpc_that_drips_before_its_answer_is_left_in_time() -> None:
    over = threading.Event()

    class Drip(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                self.request.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                while not over.wait(0.05):
                    self.request.sendall(b"a")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Drip) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        began = time.monotonic()
        # Whoever is not left alone after a while is let go here.
        threading.Timer(10, over.set).start()
        found = check_rpc(NetworkProfile(name="t", chain_id=1, rpc_urls=(url,)), 0.0, timeout=0.2)
        took = time.monotonic() - began
        over.set()
        server.shutdown()
    assert took < 5 and "does not end" in found[0].what


def test_a_dead_rpc_is_a_failure_and_its_credentials_are_not_shown() -> None:
    dead = NetworkProfile(name="t", chain_id=1, rpc_urls=("http://user:secret@127.0.0.1:1/v3/secret?key=secret",))
    found = check_rpc(dead, 0.0)
    assert found[-1].level == "failure" and "rpc_urls" in found[-1].remedy
    assert "secret" not in str(found) and shown(dead.rpc_urls[0]) == "http://127.0.0.1:1/…"


@pytest.mark.parametrize(
    ("urls", "serving", "level", "words"),
    [
        (("https://rpc.example",), None, "warning", "one endpoint alone says who judges"),
        (("https://rpc.example",), 1, "warning", "nothing checks it"),
        (("http://127.0.0.1:8545",), 1, "ok", "on this machine"),
        (("https://rpc.example", "https://other.example"), 2, "ok", "two must agree"),
        (("https://rpc.example", "https://other.example"), 1, "warning", "one of 2 endpoints serves this chain now"),
    ],
)
def test_what_no_second_endpoint_checks_is_said(
    urls: tuple[str, ...], serving: int | None, level: str, words: str
) -> None:
    found = check_witnesses(NetworkProfile(name="t", chain_id=1, rpc_urls=urls), serving)
    assert (found.level, found.name) == (level, "witnesses") and words in found.what
    assert level == "ok" or "rpc_urls" in found.remedy


def standing(**more: Any) -> ChainStanding:
    plain = {
        "node": NODE,
        "provider": None,
        "bonded": 0,
        "required": 20 * 10**18,
        "coin": 0,
        "gas": 10**14,
        "day": 10**13,
    }
    return ChainStanding(**(plain | more))


def test_what_is_missing_on_chain_comes_as_commands_to_be_copied() -> None:
    assert steps_of(standing(coin=1), None) == ["intellect-node keys new provider"]
    poor = Provider("me", PROVIDER, coin=0, token=5 * 10**18, needs=10**15, mintable=True)
    common = "--network base --key me"
    bond = f"intellect-node contract provider register --units 1 {common}"
    register = f"intellect-node contract node register --units 1 --node-state /s {common}"
    assert steps_of(standing(coin=10**18), poor) == [
        f"send 0.001 of the chain's coin to {PROVIDER} (the provider, for gas)",
        f"intellect-node contract faucet {PROVIDER} 15 {common}",
        bond,
        register,
    ]
    spaced = next_steps(standing(coin=10**18, bonded=20 * 10**18), poor, "my net.toml", Path("/a b"), 1)
    assert "--node-state '/a b' --network 'my net.toml' --key me" in spaced[-1]
    rich = Provider("me", PROVIDER, coin=10**18, token=20 * 10**18, needs=10**15, mintable=False)
    assert steps_of(standing(coin=10**18), rich) == [bond, register]
    assert steps_of(standing(coin=10**18, bonded=20 * 10**18), rich) == [register]
    short = standing(provider=PROVIDER, bonded=5 * 10**18, coin=10**18)
    assert steps_of(short, rich) == [f"intellect-node contract stake 15 --provider {PROVIDER} {common}"]
    assert steps_of(standing(provider=PROVIDER, bonded=20 * 10**18), rich)[0].endswith("(this node, for gas)")


def steps_of(where: ChainStanding, provider: Provider | None) -> list[str]:
    return next_steps(where, provider, "base", Path("/s"), 1)


def test_a_validator_without_the_bond_of_a_case_is_told_what_its_provider_types() -> None:
    token, common = 10**18, "--network base --key me"
    empty = Bond(NODE, PROVIDER, needed=25 * token, own=0)
    found = check_bond(empty, common)
    send = f"send 25 of the network's tokens to {PROVIDER} (the provider)"
    assert found.level == "warning" and "cannot carry a slash" in found.what
    assert found.remedy == f"{send}; then intellect-node contract node lend {NODE} 25 {common}"
    some = msgspec.structs.replace(empty, own=5 * token, provided=100 * token)
    assert check_bond(some, common).remedy == f"intellect-node contract node lend {NODE} 20 {common}"
    for enough in (
        msgspec.structs.replace(some, allowed=20 * token),
        msgspec.structs.replace(empty, own=25 * token),
    ):
        assert check_bond(enough, common).level == "ok"


def test_stake_and_gas_are_judged_apart() -> None:
    assert check_stake(standing(), ["a", "b"]).remedy == "a; then b"
    assert check_stake(standing(provider=PROVIDER, bonded=19 * 10**18), []).level == "failure"
    assert check_stake(standing(provider=PROVIDER, bonded=20 * 10**18), []).level == "ok"
    assert check_gas(standing()).remedy.startswith(f"send 0.00017 of the chain's coin to {NODE}")
    assert check_gas(standing(coin=10**14 + 10**13)).level == "warning"
    assert check_gas(standing(coin=10**15)).level == "ok"


@pytest.mark.parametrize(
    ("fields", "level"), [({}, "ok"), ({"ended": 1}, "failure"), ({"paused": 1}, "failure"), ({"escrow": 0}, "warning")]
)
def test_a_pool_that_takes_or_pays_nobody_is_named(fields: dict[str, int], level: str) -> None:
    plain = dict.fromkeys(PoolInfo.__struct_fields__, 0) | {"id": 4, "escrow": 10**18}
    assert check_pool(PoolInfo(**(plain | fields))).level == level  # type: ignore[arg-type]


@pytest.mark.parametrize(("units", "level"), [(599, "ok"), (600, "warning")])
def test_a_pool_whose_workers_make_more_than_it_pays_is_told_before_joining(units: int, level: str) -> None:
    plain = dict.fromkeys(PoolInfo.__struct_fields__, 0) | {"id": 4, "escrow": 10**18, "units_per_epoch": 300}
    assert check_pool(PoolInfo(**plain), PostedEarnings(9, bytes(32), 9000, units, 2)).level == level  # type: ignore[arg-type]


# ports


@pytest.mark.parametrize(
    ("address", "role", "level"),
    [
        ("/ip4/127.0.0.1/tcp/4001", "worker", "failure"),
        ("/ip4/192.168.1.7/tcp/4001", "worker", "warning"),
        ("/ip4/192.168.1.7/tcp/4001", "validator", "warning"),
        ("/ip6/::1/tcp/4001", "worker", "failure"),
        ("/ip4/8.8.8.8/tcp/4001", "trainer", "ok"),
        ("/dns4/node.example.org/tcp/4001", "trainer", "ok"),
    ],
)
def test_what_is_announced_on_a_public_network_must_be_reachable(address: str, role: str, level: str) -> None:
    found = check_announced(address, role, public=True)
    assert found.level == level and ("--announce" in found.remedy) == (level != "ok")
    assert check_announced(address, role, public=False).level == "ok"


def test_an_address_that_its_owner_chose_is_believed() -> None:
    assert check_announced("/ip4/10.0.0.1/tcp/1", "trainer", public=True, chosen=True).level == "warning"


def test_a_port_that_is_taken_or_no_address_is_a_failure() -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = check_listen(f"/ip4/127.0.0.1/tcp/{other.getsockname()[1]}")
    assert taken.level == "failure" and "Address already in use" in taken.what
    assert check_listen("localhost:4001").level == "failure"
    assert check_listen("/ip4/127.0.0.1/tcp/0").level == "ok"


def test_only_a_devnet_on_this_machine_is_not_public() -> None:
    def profile(name: str, chain: int, url: str) -> NetworkProfile:
        return NetworkProfile(name=name, chain_id=chain, rpc_urls=(url,))

    assert not is_public(profile("local", 31337, "http://127.0.0.1:8545"))
    assert not is_public(profile("t", 31337, "http://localhost:8545"))
    assert is_public(profile("base", 8453, "http://127.0.0.1:8545"))  # its owner's own node of Base
    assert is_public(profile("local", 31337, "http://10.0.0.5:8545"))


def test_a_finding_is_what_programs_read() -> None:
    import msgspec

    assert msgspec.json.decode(msgspec.json.encode(ok("a", "b", c=1)), type=CheckFinding) == ok("a", "b", c=1)


# a running daemon


def test_a_running_daemon_is_judged_by_what_it_says() -> None:
    alone = Running("policy", "fetching policy 3", others=4, connected=0, tried=3, reached=0, troubles=["no RPC"])
    level = {finding.name: finding.level for finding in check_running(alone)}
    assert level == {"daemon": "ok", "connections": "warning", "dialled": "warning", "trouble": "warning"}
    hidden = Running("working", "", others=2, connected=2, tried=2, way="relayed", seen="11.0.0.7:40123", relays=2)
    dialled = check_running(hidden)[2]
    assert "2 members carry" in dialled.what and "in vain" not in dialled.what
    stuck = check_running(msgspec.structs.replace(hidden, punched=1, unpunched=3))[2]
    assert "1 hidden members are reached directly" in stuck.what and "with 3 that was tried in vain" in stuck.what
    assert "--announce /ip4/11.0.0.7/tcp/PORT" in dialled.remedy
    fine = Running("working", "its share is made", others=4, connected=3, tried=3, reached=2, offsets=(0.1, -0.2))
    assert worst(check_running(fine)) == "ok" and len(check_running(fine)) == 4
    assert check_running(Running("stake", "waits"))[2].level == "ok"
    for ahead, told in ((20.0, "warning"), (86_400.0, "failure"), (-400.0, "warning"), (1.0, "ok")):
        clock = check_running(msgspec.structs.replace(fine, ahead=ahead, peers=5))[-1]
        assert (clock.name, clock.level) == ("clock", told) and "5 peers" in clock.what


THERE = "cuda-sm90/float32/vllm/tf32/tp1/vllm-0.32.0"
MEASURED = VerificationSpec(engines=("*/*/*",), pairs={f"{THERE}>{THERE}": Thresholds()})


def test_a_machine_whose_class_was_not_measured_is_told_how_it_is() -> None:
    here = ["x86/float32/sdpa/ieee/tp1/torch-2.13.0", "x86/float32/eager/ieee/tp1/torch-2.13.0"]
    for role in ("worker", "validator"):
        finding = judge_class(MEASURED, role, here)
        assert finding.level == "failure" and exit_code([finding]) == 6
        assert here[0] in finding.what and THERE in finding.what and "calibrate export" in finding.remedy
        assert judge_class(MEASURED, role, [*here, THERE]).level == "ok"
        assert judge_class(VerificationSpec(), role, here).level == "ok"


async def test_this_machine_is_asked_for_its_classes_without_a_model() -> None:
    finding = await check_class(MEASURED, "worker", ["--engine", "torch"])
    assert finding.level == "failure" and all("/tp1/torch-" in name for name in finding.data["classes"])
    assert (await check_class(MEASURED, "worker", ["--no-such-option"])).level == "warning"


class Unregistered:
    """A chain on which nobody has put up a stake for the node, or somebody has."""

    profile = BASE

    def __init__(self, provider: str | None) -> None:
        self.provider = provider

    async def node_info(self, node: str) -> Any:
        return self


@pytest.mark.parametrize(
    ("provider", "role", "command", "refused"),
    [
        (None, "worker", None, True),
        (None, "validator", None, True),
        (None, "trainer", None, False),
        (None, "worker", "an engine of my own", False),
        (PROVIDER, "worker", None, False),
    ],
)
async def test_an_uncalibrated_machine_is_refused_before_a_stake(
    monkeypatch: pytest.MonkeyPatch, provider: str | None, role: Any, command: str | None, refused: bool
) -> None:
    async def spec(*_: object) -> RunSpec:
        return RunSpec(name="measured elsewhere", environment=EnvironmentSpec(name="sort"), verification=MEASURED)

    monkeypatch.setattr("node.preflight.survey.ask_for_spec", spec)
    # Not the program that the test above asks: it imports for seconds, and says the same for every role.
    classes = json.dumps(["x86/float32/sdpa/ieee/tp1/torch-2.13.0"])
    monkeypatch.setattr("node.preflight.engines.NAMES", (sys.executable, "-S", "-c", f"print({classes!r})"))
    config: Any = NodeConfig(engine_command=command)
    chain, pool = cast("Any", Unregistered(provider)), cast("Any", None)
    if not refused:
        await check_before_stake(chain, pool, NODE, config, role, Hardware(4, 16 << 30, ()))
        return
    with pytest.raises(PreflightFailed) as caught:
        await check_before_stake(chain, pool, NODE, config, role, Hardware(4, 16 << 30, ()))
    assert "not calibrated" in caught.value.why or "no work was calibrated" in caught.value.why


@pytest.mark.parametrize(("provider", "refused"), [(None, True), (PROVIDER, False)])
async def test_a_cap_below_what_the_run_needs_is_refused_before_a_stake(
    monkeypatch: pytest.MonkeyPatch, provider: str | None, refused: bool
) -> None:
    async def spec(*_: object) -> RunSpec:
        need = Requirements(worker=Requirement(cores=4))
        return RunSpec(name="four cores", environment=EnvironmentSpec(name="sort"), requirements=need)

    monkeypatch.setattr("node.preflight.survey.ask_for_spec", spec)
    config: Any = NodeConfig(guest={"cores": 2}, engine_command="none is asked")
    own = (cast("Any", Unregistered(provider)), cast("Any", None), NODE, config, "worker", Hardware(8, 16 * GIB, ()))
    if not refused:
        return await check_before_stake(*own)
    with pytest.raises(PreflightFailed) as caught:
        await check_before_stake(*own)
    assert "[guest] cores = 2: the run asks for 4" in caught.value.why


async def test_a_store_too_small_for_the_runs_policies_is_refused_before_a_stake(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def spec(*_: object) -> RunSpec:
        return RunSpec(name="large", environment=EnvironmentSpec(name="sort"))

    monkeypatch.setattr("node.preflight.survey.ask_for_spec", spec)
    monkeypatch.setattr(RunSpec, "weight_bytes", lambda *_: 10 * GIB)
    config: Any = NodeConfig(store_quota=20 * GIB, engine_command="none is asked")
    own = (cast("Any", Unregistered(None)), cast("Any", None), NODE, config, "worker", Hardware(8, 64 * GIB, ()))
    with pytest.raises(PreflightFailed) as caught:
        await check_before_stake(*own)
    assert "store_quota is 21.5 GB" in caught.value.why and "2.3 images" in caught.value.why
    # What the remedy names is enough, for the doctor's look at the disk as well.
    room = int(caught.value.remedy.partition("QUOTA=")[2].partition(" ")[0])
    assert room == int(2.3 * 10 * GIB)
    told = judge_disk(free=200 * GIB, stored=0, quota=room, image=10 * GIB, place=tmp_path)
    assert told.level == "ok"
    told = judge_disk(free=200 * GIB, stored=0, quota=room - 1, image=10 * GIB, place=tmp_path)
    assert told.level == "failure" and str(room) in told.remedy
    assert judge_disk(free=20 * GIB, stored=0, quota=room, image=10 * GIB, place=tmp_path).level == "failure"
    assert judge_disk(free=20 * GIB, stored=10 * GIB, quota=room, image=10 * GIB, place=tmp_path).level != "failure"
