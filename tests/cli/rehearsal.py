"""The whole story of the contracts through the command line, on an anvil that calls itself Base Sepolia.

Deploy, faucet, stake, register, open and fund a pool, join, earn, claim, slash, appeal, overturn, evidence, end, sweep,
withdraw: chain id 84532, a block per transaction or every 2 s, the windows of a public network (time is moved on where
they are waited for). It fails if the chain, the journal and the books do not agree at the end.
"""

import contextlib
import io
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
from eth_account import Account
from eth_hash.auto import keccak

from cli.main import main as run_cli
from node.chain.anvil import find_anvil
from node.chain.cases import CommitmentContradiction, FileCase, VerdictContradiction, Vote, write_case
from node.chain.endpoints import rpc
from node.chain.http import certificates
from node.chain.outbox import Fate, Outbox
from node.chain.profile import load_profile, user_profile_path, write_profile
from node.state.directory import FACT
from node.state.journal import TABLE, Journal
from node.state.keystore import load_key, read_password
from node.state.pay import PAY, PayRecord
from protocol.earnings import Accepted, EarningsLine, leaves_of, own_line
from protocol.identity import NodeKey
from protocol.messages import EpochRootSigned, seal
from protocol.statements import Domain, Earnings, EpochRoot, Verdict, VerdictOutcome, WorkCommitment, sign
from protocol.table import EarningsTable, encode_head
from tests.cli.promises import ACCOUNT, Seen, leaves, seen, unkept

NETWORK = "base-sepolia"
CHAIN_ID = 84532
COIN = 10**18
TOKEN = 10**18
HOUR, DAY = 3600, 86_400
REASON = 5
POLICY = b"\x07" * 32
REWARD_PER_UNIT = 10**15


class RehearsalFailed(Exception):
    """A command, or the books at the end, did not come out as they should."""


@dataclass
class Scene:
    """home: of the user; url: of the chain; rows: what was done, with gas and seconds."""

    home: Path
    url: str
    confirmations: int
    rows: list[dict[str, Any]] = field(default_factory=list)
    promised: list[str] = field(default_factory=list)
    """Commands whose sentence was held against the chain."""

    def rpc(self, method: str, *params: Any) -> Any:
        with httpx.Client(timeout=30.0, verify=certificates()) as http:
            return rpc(http, self.url, method, *params)

    def wait(self, seconds: int) -> None:
        """Let the chain's clock go on."""
        self.rpc("evm_increaseTime", seconds)
        self.rpc("evm_mine")

    def cli(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """One command in this process; its JSON. Raises RehearsalFailed for another exit code."""
        shown, errors = io.StringIO(), io.StringIO()
        started = time.perf_counter()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(errors):
            found = run_cli(list(arguments))
        seconds = time.perf_counter() - started
        if found != code:
            raise RehearsalFailed(f"{' '.join(arguments)}: exit code {found}\n{shown.getvalue()}{errors.getvalue()}")
        told = json.loads(shown.getvalue()) if shown.getvalue().startswith("{") else {"errors": errors.getvalue()}
        if "gas_used" in told:
            name = " ".join(word for word in arguments[:3] if word.isascii() and word.replace("-", "").isalpha())
            self.rows.append({"command": name, "gas": told["gas_used"], "seconds": seconds})
        return told

    def send(self, signer: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        """`intellect-node contract ...` by a key with that name, or by the node with that state directory. What the
        sentence that asks for consent says is what the chain then has."""
        state = self.home / "nodes" / signer
        who = ["--state-dir", str(state)] if state.exists() else ["--key", signer]
        command = ["contract", *arguments, *who, "--network", NETWORK, "--json"]
        if code or "--dry-run" in arguments:
            return self.cli(*command, "--yes", code=code)
        planned = self.cli(*command, "--dry-run")
        told = self.cli(*command, "--yes")
        self._hold_to(arguments, planned["says"], told)
        return told

    def _hold_to(self, arguments: tuple[str, ...], says: str, told: dict[str, Any]) -> None:
        receipts = [self.rpc("eth_getTransactionReceipt", one) for one in told["transactions"]]
        now = int(self.rpc("eth_getBlockByNumber", receipts[-1]["blockNumber"], False)["timestamp"], 16)
        addresses = load_profile(NETWORK, home=self.home).contracts
        has = seen(receipts, addresses, now)
        lost = unkept(says, has)
        if lost:  # known afterwards, or before, and in no log
            lost = unkept(says, self.known(has))
        if lost:
            raise RehearsalFailed(f"{' '.join(arguments)}: {says!r} names {lost}, which the chain has not")
        self.promised.append(" ".join(arguments))

    def known(self, has: Seen) -> Seen:
        """With what is known of the pools and cases that a command was about, and the contracts' times."""
        facts = [self.look("params")["parameters"]]
        facts += [self.look("case", "show", str(one)) for kind, one in has.about if kind == "case"]
        pools = [self.look("pool", "show", str(one))["pool"] for kind, one in has.about if kind == "pool"]
        values = [str(value) for value in leaves(facts + pools)]
        found = {int(value) for value in values if value.isdigit()}
        worth = {units * int(pool["reward_per_unit_wei"]) for pool in pools for units in has.numbers}
        numbers = has.numbers | found | worth | {2 * seconds for seconds in found}
        accounts = has.accounts | {value.lower() for value in values if ACCOUNT.fullmatch(value)}
        return msgspec.structs.replace(has, numbers=numbers, accounts=accounts)

    def look(self, *arguments: str) -> dict[str, Any]:
        return self.cli("contract", *arguments, "--network", NETWORK, "--json")

    def node(self, name: str) -> NodeKey:
        state = self.home / "nodes" / name
        return load_key(state / "node-key.json", read_password(os.environ.get("INTELLECT_NODE_PASSWORD"), None, state))


def rehearse(scene: Scene) -> None:
    """The story. Raises RehearsalFailed, or whatever a step raises."""
    people = _make_keys(scene)
    _deploy(scene, people)
    _stake_and_register(scene, people)
    pool = _open_pool(scene, people)
    _attest(scene, people, pool)
    _earn(scene, people, pool)
    _wrongly_slashed(scene, people, pool)
    _rightly_slashed(scene, people, pool)
    _caught_by_own_signatures(scene, people, pool)
    _end(scene, people, pool)
    _check_books(scene, people)


def _make_keys(scene: Scene) -> dict[str, str]:
    people: dict[str, str] = {}
    for name in ("deployer", "arbiter", "owner", "provider", "judges", "cheats"):
        people[name] = scene.cli("keys", "new", name, "--json")["address"]
    for name in ("worker", "cheat", "twin", "trainer", "judge-1", "judge-2", "judge-3"):
        state = scene.home / "nodes" / name
        people[name] = scene.cli("keys", "new", "--state-dir", str(state), "--json")["address"]
    for address in people.values():
        scene.rpc("anvil_setBalance", address, hex(COIN))
    return people


def _deploy(scene: Scene, people: dict[str, str]) -> None:
    deploy = ["contract", "deploy", "--network", NETWORK, "--key", "deployer", "--arbiter", people["arbiter"], "--json"]
    planned = scene.cli(*deploy, "--dry-run")
    if len(planned["steps"]) < 5 or not 5_000_000 < planned["gas"] < 30_000_000:
        raise RehearsalFailed(f"the dry run does not foresee the deployment: {planned}")
    scene.cli(*deploy, "--yes")
    if scene.look("params")["parameters"]["arbiter"] != people["arbiter"]:
        raise RehearsalFailed("the arbiter is not in office")
    scene.cli(*deploy, "--yes", code=2)  # not over contracts that stand


def _stake_and_register(scene: Scene, people: dict[str, str]) -> None:
    for name in ("owner", "provider", "judges", "cheats"):
        scene.send("deployer", "faucet", people[name], "2000")
    scene.send("provider", "provider", "register", "--units", "2")
    scene.send("provider", "stake", "170")
    scene.send("judges", "stake", "400")
    scene.send("cheats", "stake", "300")
    nodes = {"provider": ["worker"], "judges": ["judge-1", "judge-2", "judge-3"], "cheats": ["cheat", "twin"]}
    for provider, names in nodes.items():
        for name in names:
            if name == "worker":
                _register_by_consent(scene, people, provider, name)
                continue
            state = str(scene.home / "nodes" / name)
            scene.cli(*_register(provider), "--node-state", state)
    for name, provider in (("worker", "provider"), ("twin", "cheats")):
        if scene.look("node", "show", people[name])["provider"] != people[provider]:
            raise RehearsalFailed(f"{name} is not registered under {provider}")


def _register(provider: str) -> list[str]:
    return ["contract", "node", "register", "--key", provider, "--network", NETWORK, "--yes", "--json"]


def _register_by_consent(scene: Scene, people: dict[str, str], provider: str, name: str) -> None:
    """The node's key lies on another machine: only its signature travels."""
    state = str(scene.home / "nodes" / name)
    given = ["contract", "node", "consent", people[provider], "--state-dir", state, "--network", NETWORK]
    consent = scene.home / "consent.json"
    consent.write_text(json.dumps(scene.cli(*given)))
    scene.cli(*_register(provider), "--consent", str(consent))


def _open_pool(scene: Scene, people: dict[str, str]) -> int:
    judges = [word for n in (1, 2, 3) for word in ("--validator", people[f"judge-{n}"])]
    terms = ["--trainer", people["trainer"], *judges, "--threshold", "2", "--slash", "50", "--lease", "30d"]
    opened = scene.send("owner", "pool", "create", "--run-root", "ab" * 32, *terms, "--fund", "500")
    pool = opened["pool"]
    scene.send("owner", "pool", "fund", str(pool), "100")
    if int(scene.look("pool", "show", str(pool))["pool"]["escrow_wei"]) != 600 * TOKEN:
        raise RehearsalFailed("the pool does not have its money")
    for name in ("worker", "cheat", "twin"):
        scene.send(name, "join", str(pool), "--contact", f"/ip4/192.0.2.1/tcp/4001/p2p/{scene.node(name).peer_id}")
    if len(scene.look("pool", "show", str(pool))["members"]) != 3:
        raise RehearsalFailed("not everybody is a member")
    return pool


def _attest(scene: Scene, people: dict[str, str], pool: int) -> None:
    """Two judges sign what they measured, at one time and until one; who signed something else is told so."""
    when = {"made_at": int(time.time()) - 60, "until": int(time.time()) + DAY}

    def sign_by(judge: str, units: int, code: int = 0) -> str:
        state = ["--state-dir", str(scene.home / "nodes" / judge), "--network", NETWORK]
        times = ["--made-at", str(when["made_at"]), "--until", time.strftime("%FT%TZ", time.gmtime(when["until"]))]
        command = ["contract", "attest", "sign", str(pool), people["worker"], "--units", str(units)]
        told = scene.cli(*command, *times, *state, code=code)
        path = scene.home / f"attested-{judge}-{units}.json"
        path.write_text(json.dumps(told))
        return str(path)

    sign_by("worker", 1, code=3)  # not its own judge
    first, second, other = sign_by("judge-1", 1), sign_by("judge-2", 1), sign_by("judge-3", 2)
    scene.send("owner", "attest", "send", first, other, code=2)
    scene.send("owner", "attest", "send", first, code=4)  # no quorum
    scene.send("owner", "attest", "send", first, second)
    events = scene.look("events", "--pool", str(pool))["events"]
    found = [{name: event[name] for name in when} for event in events if event["event"] == "NodeAttested"]
    if found != [when]:
        raise RehearsalFailed(f"attested were {found}, not {when}")


def _commitment(scene: Scene, pool: int, name: str, seed: int) -> WorkCommitment:
    return WorkCommitment(pool, scene.node(name).address, POLICY, 0, bytes([seed]) * 32, 1000, 0)


def _verdict(c: WorkCommitment, outcome: VerdictOutcome) -> Verdict:
    reason = 0 if outcome == VerdictOutcome.ACCEPT else REASON
    return Verdict(**msgspec.structs.asdict(c), outcome=int(outcome), reason=reason)


def _domain(scene: Scene) -> Domain:
    return Domain(CHAIN_ID, load_profile(NETWORK, home=scene.home).contracts.swarm)


def _earn(scene: Scene, people: dict[str, str], pool: int) -> None:
    """Six epochs' earnings of one node in one table; they are paid once the window is over, once."""
    worker, units, domain = scene.node("worker").address, 4000, _domain(scene)
    root = keccak(b"\0" + bytes.fromhex(worker[2:]) + units.to_bytes(8))
    scene.wait(6 * HOUR)
    epoch = scene.look("pool", "show", str(pool))["pool"]["epoch"] - 1
    earnings = Earnings(pool, epoch, 1, root, units, bytes(32))
    signed = [sign(scene.node(judge), domain, earnings) for judge in ("judge-1", "judge-2")]
    table, line = scene.home / "table.json", scene.home / "line.json"
    facts = {"pool": pool, "epoch": epoch, "number": 1, "root": root.hex(), "total": units, "blob": bytes(32).hex()}
    table.write_text(json.dumps(facts | {"signatures": ["0x" + one.hex() for one in signed]}))
    state = scene.home / "nodes" / "worker"
    head, files = EarningsTable(pool, epoch, units, (EarningsLine(bytes.fromhex(worker[2:]), units),)).files()
    _remember(state, TABLE, msgspec.msgpack.encode([encode_head(head), *files]))
    written = ["earnings", "line", str(pool), worker, "--state-dir", str(state), "--out", str(line)]
    scene.cli("contract", *written, "--network", NETWORK, "--json", code=4)  # the table is not posted yet
    line.write_text(json.dumps({"units": units, "proof": []}))
    scene.send("owner", "earnings", "post", str(table), code=4)
    scene.wait(DAY + HOUR)
    scene.send("owner", "claim", str(pool), worker, str(line), code=4)
    scene.send("owner", "earnings", "hold", str(pool), code=4)  # nothing waits
    scene.send("owner", "earnings", "post", str(table))
    scene.send("owner", "claim", str(pool), worker, str(line), code=4)
    scene.send("owner", "earnings", "hold", str(pool))
    if not scene.look("earnings", "show", str(pool))["waiting"]["held"]:
        raise RehearsalFailed("the table is not held")
    scene.wait(2 * DAY)  # nobody drops it
    before = int(scene.look("provider", "show", people["provider"])["token_wei"])
    line.unlink()
    scene.look(*written)
    scene.send("owner", "claim", str(pool), worker, str(line))
    paid = int(scene.look("provider", "show", people["provider"])["token_wei"]) - before
    told = scene.look("rewards", people["provider"])
    if not paid == int(told["paid_wei"]) == units * REWARD_PER_UNIT:
        raise RehearsalFailed(f"paid {paid}, told {told}")
    if [(one["pool"], one["epoch"], one["owed_wei"]) for one in told["tables"]] != [(pool, epoch, "0")]:
        raise RehearsalFailed(f"the tables are {told['tables']}")
    scene.send("owner", "claim", str(pool), worker, str(line), code=4)
    shown = scene.look("earnings", "show", str(pool), worker)
    if (shown["epoch"], shown["claimed"], shown["owed_wei"]) != (epoch, units, "0"):
        raise RehearsalFailed(f"the earnings are {shown}")


def _file(scene: Scene, people: dict[str, str], pool: int) -> None:
    """What two judges named of an epoch that no table has is filed and redeemed by hand, and not swept."""
    worker, state, domain, units = scene.node("worker").address, scene.home / "nodes" / "worker", _domain(scene), 700
    epoch = scene.look("earnings", "show", str(pool))["epoch"] + 1
    works = [Accepted(pool, worker, epoch, bytes([n]) * 32, units // 2) for n in (1, 2)]
    works.append(Accepted(pool, scene.node("cheat").address, epoch, bytes([3]) * 32, 5))
    leaves, _ = leaves_of(works)
    journal = Journal(state / "journal.sqlite")
    for number, judge in enumerate((scene.node("judge-1"), scene.node("judge-2")), 1):
        said = EpochRoot(pool, epoch, number, leaves.root(), units + 5, bytes(32))
        message = EpochRootSigned(pool=pool, statement=said, signature=sign(judge, domain, said))
        line = own_line(leaves, works, worker)
        if line is None:
            raise RehearsalFailed("the root has no line of the worker")
        journal.earned.note_line(epoch, judge.address, number, *line, seal(judge, domain, message))
    journal.close()
    path = scene.home / "filing.json"
    written = ["earnings", "filing", str(pool), worker, "--state-dir", str(state), "--out", str(path)]
    if scene.look(*written)["units"] != units:
        raise RehearsalFailed("not all of it can be filed")
    scene.send("provider", "earnings", "file", str(path), code=4)  # a table may still come
    scene.wait(2 * DAY + 2 * HOUR)
    scene.send("owner", "earnings", "file", str(path), code=4)  # neither the node nor its provider
    scene.send("provider", "earnings", "file", str(path))
    scene.send("provider", "earnings", "file", str(path), code=4)
    scene.cli("contract", *written, "--network", NETWORK, "--json", code=4)  # nothing more
    scene.send("owner", "earnings", "redeem", str(pool), worker, code=4)
    scene.send("owner", "pool", "sweep", str(pool), code=4)
    shown = scene.look("earnings", "show", str(pool), worker)
    if (shown["filed"], shown["filing"]["filed"]) != (units, units):
        raise RehearsalFailed(f"the filings are {shown}")
    scene.send("owner", "earnings", "hold", str(pool))
    scene.send("deployer", "earnings", "drop", str(pool), "--filed-by", worker, code=4)  # filing goes on
    scene.wait(4 * DAY)
    before = int(scene.look("provider", "show", people["provider"])["token_wei"])
    scene.send("owner", "earnings", "redeem", str(pool), worker)
    if int(scene.look("provider", "show", people["provider"])["token_wei"]) - before != units * REWARD_PER_UNIT:
        raise RehearsalFailed("not what was filed was redeemed")
    scene.send("owner", "earnings", "redeem", str(pool), worker, code=4)


def _remember(state: Path, name: str, value: bytes) -> None:
    """In a node's journal, as its daemon would."""
    journal = Journal(state / "journal.sqlite")
    journal.remember(name, value)
    journal.close()


def _slash(scene: Scene, pool: int, name: str, seed: int) -> int:
    """Have a node slashed by a quorum: the case."""
    c, domain = _commitment(scene, pool, name, seed), _domain(scene)
    verdict = _verdict(c, VerdictOutcome.SLASH)
    votes = tuple(Vote(sign(scene.node(judge), domain, verdict), verdict.values) for judge in ("judge-1", "judge-2"))
    path = scene.home / f"case-{seed}.json"
    write_case(path, FileCase(c, sign(scene.node(name), domain, c), REASON, votes))
    scene.send("owner", "slash", str(path))
    slashed = [e for e in scene.look("events", "--pool", str(pool))["events"] if e["event"] == "Slashed"]
    return slashed[-1]["case_id"]


def _wrongly_slashed(scene: Scene, people: dict[str, str], pool: int) -> None:
    """Frozen, appealed, overturned: everything is back, and of the carrier's bond what was not burned."""
    before = _wealth(scene, people["provider"])
    case = _slash(scene, pool, "worker", 2)
    scene.send("provider", "case", "appeal", str(case))
    scene.send("owner", "case", "finalize", str(case), code=4)
    scene.send("deployer", "case", "arbiter", people["deployer"], code=4)  # only the arbiter names who comes after it
    scene.send("arbiter", "case", "arbiter", people["deployer"])
    scene.send("deployer", "case", "arbiter", "--accept", code=4)  # two appeals later, at the soonest
    scene.send("deployer", "case", "overturn", str(pool), people["worker"], code=4)
    scene.send("arbiter", "case", "overturn", str(pool), people["worker"])
    shown = scene.look("case", "show", str(case))
    if (shown["state"], shown["node"], shown["reason"]) != ("overturned", people["worker"], "wrong_draw"):
        raise RehearsalFailed(f"the case is {shown}")
    scene.send("owner", "case", "collect", people["provider"])
    scene.send("owner", "case", "collect", people["provider"], code=4)
    won = _wealth(scene, people["provider"]) - before
    if (won, shown["bond_wei"], shown["carrier"]) != (50 * TOKEN // 4 * 9 // 10, str(50 * TOKEN // 4), people["owner"]):
        raise RehearsalFailed(f"a wrong slash was not given back: {shown}, {won}")
    scene.send("worker", "join", str(pool), "--contact", "again")


def _rightly_slashed(scene: Scene, people: dict[str, str], pool: int) -> None:
    """Frozen, nobody objects, final: the stake is gone."""
    before = _wealth(scene, people["cheats"])
    case = _slash(scene, pool, "cheat", 3)
    _leaves_while_slashed(scene, people, pool)
    scene.wait(2 * DAY)
    scene.send("owner", "case", "finalize", str(case))
    scene.send("deployer", "case", "arbiter", "--accept")
    if scene.look("params")["parameters"]["arbiter"] != people["deployer"]:
        raise RehearsalFailed("the arbiter's successor is not in office")
    if before - _wealth(scene, people["cheats"]) != 50 * TOKEN:
        raise RehearsalFailed("the slash did not take 50 tokens")


def _leaves_while_slashed(scene: Scene, people: dict[str, str], pool: int) -> None:
    """Its pay is held and its stake is frozen: that is told, and nothing is waited for. A silent chain is told, too."""
    state = scene.home / "nodes" / "cheat"
    _remember(state, FACT, _label(pool, scene))
    record = PayRecord(bytes(32), 0, 2, 0, 70, 0, 2, started_at=0, epoch_seconds=HOUR, window=DAY)
    _remember(state, PAY, msgspec.msgpack.encode(record))
    leave = ["leave", "--network", NETWORK, "--state-dir", str(state)]
    told = scene.cli(*leave, "--when-paid", code=7)["errors"]
    if "70 units (0.07 tokens) are held until then" not in " ".join(told.split()):
        raise RehearsalFailed(f"who is slashed is told: {told}")
    left = scene.cli(*leave, "--now", "--json")
    if not left["slashed"] or left["unpaid_units"] != 70 or not left["steps"]:
        raise RehearsalFailed(f"who is slashed is told another way back: {left}")
    silent = msgspec.structs.replace(load_profile(NETWORK, home=scene.home), rpc_urls=("http://127.0.0.1:9",))
    write_profile(scene.home / "silent.toml", silent)
    leave[2] = str(scene.home / "silent.toml")
    told = scene.cli(*leave, "--now", code=4)["errors"]
    if "lease runs out by itself" not in " ".join(told.split()):
        raise RehearsalFailed(f"a silent chain is told as: {told}")


def _label(pool: int, scene: Scene) -> bytes:
    return f"{CHAIN_ID}:{load_profile(NETWORK, home=scene.home).contracts.swarm}:{pool}".encode()


def _caught_by_own_signatures(scene: Scene, people: dict[str, str], pool: int) -> None:
    """Two commitments of one node for one place; two verdicts of one validator over one file."""
    domain = _domain(scene)
    first, second = (_commitment(scene, pool, "twin", seed) for seed in (4, 5))
    signatures = [sign(scene.node("twin"), domain, c) for c in (first, second)]
    path = scene.home / "twice.json"
    write_case(path, CommitmentContradiction(first, signatures[0], second, signatures[1]))
    scene.send("owner", "evidence", str(path))
    verdicts = [_verdict(first, outcome) for outcome in (VerdictOutcome.SLASH, VerdictOutcome.ACCEPT)]
    signed = [sign(scene.node("judge-3"), domain, verdict) for verdict in verdicts]
    path = scene.home / "verdicts.json"
    write_case(path, VerdictContradiction(verdicts[0], signed[0], verdicts[1], signed[1]))
    scene.send("owner", "evidence", str(path))
    kinds = [e["event"] for e in scene.look("events", "--pool", str(pool))["events"]]
    if kinds.count("Slashed") < 3 or "ValidatorStruck" not in kinds:
        raise RehearsalFailed("the evidence left no trace")


def _end(scene: Scene, people: dict[str, str], pool: int) -> None:
    """The pool ends, what nobody earned comes back, and so do the stakes."""
    scene.send("trainer", "pool", "pause", str(pool))
    scene.send("trainer", "pool", "resume", str(pool))
    scene.send("provider", "pool", "end", str(pool), code=4)  # only its manager may, and who opened it
    scene.send("owner", "pool", "end", str(pool))
    _remember(scene.home / "nodes" / "worker", FACT, _label(pool, scene))
    leave = ["leave", "--now", "--network", NETWORK, "--state-dir", str(scene.home / "nodes" / "worker"), "--json"]
    told = scene.cli(*leave)
    if told["left_pool"] != pool or scene.look("node", "show", people["worker"])["pool"] is not None:
        raise RehearsalFailed(f"a pool that is over was not left: {told}")
    if scene.cli(*leave)["steps"] != told["steps"]:
        raise RehearsalFailed("who leaves twice is told another way back")
    _file(scene, people, pool)
    scene.wait(2 * DAY)
    scene.send("owner", "pool", "sweep", str(pool))
    back = told["steps"][0].removeprefix("intellect-node contract ").split()
    scene.send("owner", *back, code=4)  # its provider's alone
    scene.send("provider", *back)
    scene.send("provider", *back, code=4)  # nothing before its date
    scene.send("provider", "rebond", "40")
    scene.send("provider", "withdraw", code=4)
    scene.send("provider", "provider", "remove")
    scene.wait(8 * DAY)
    scene.send("provider", "withdraw")


def _wealth(scene: Scene, account: str) -> int:
    facts = scene.look("provider", "show", account)
    return sum(int(facts[f"{name}_wei"]) for name in ("token", "bonded", "unbonding", "frozen"))


def _check_books(scene: Scene, people: dict[str, str]) -> None:
    """The honest provider has its stake and its pay; the journal says what the chain says."""
    facts = scene.look("provider", "show", people["provider"])
    if int(facts["bonded_wei"]) or int(facts["token_wei"]) < 2000 * TOKEN:
        raise RehearsalFailed(f"the honest provider's books are wrong: {facts}")
    profile = load_profile(NETWORK, home=scene.home)
    sources = [f"{CHAIN_ID}:{profile.contracts.swarm}", f"{CHAIN_ID}:0x{'00' * 20}"]
    for source in sources:
        outbox = Outbox(scene.home / "outbox" / f"{CHAIN_ID}.sqlite", source)
        try:
            for row in [row for address in people.values() for row in outbox.history(address)]:
                receipt = scene.rpc("eth_getTransactionReceipt", row.hash)
                mined = receipt is not None and int(receipt["status"], 16) == 1
                if mined != (row.fate is Fate.MINED):
                    raise RehearsalFailed(f"the journal says {row.fate.value} of {row.hash}, the chain {receipt}")
        finally:
            outbox.close()


@contextlib.contextmanager
def stage(directory: Path, cache: Path, *, quick: bool, block: float = 2) -> Iterator[Scene]:
    """A chain that says it is Base Sepolia, and a user whose profile of that network leads to it. quick: a block per
    transaction; else one each `block` seconds."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(find_anvil(cache)), "--port", str(port), "--chain-id", str(CHAIN_ID), "--accounts", "0", "--silent"]
    chain = subprocess.Popen([*command, *([] if quick else ["--block-time", str(block)])])
    kept = {
        name: os.environ.get(name)
        for name in ("INTELLECT_NODE_HOME", "INTELLECT_NODE_PASSWORD", "INTELLECT_KEY_PASSWORD")
    }
    passwords = {"INTELLECT_NODE_PASSWORD": "rehearsal", "INTELLECT_KEY_PASSWORD": "rehearsal"}
    os.environ |= {"INTELLECT_NODE_HOME": str(directory), **passwords}
    try:
        scene = Scene(directory, f"http://127.0.0.1:{port}", 0 if quick else 2)
        _until_up(scene, chain)
        shipped = load_profile(NETWORK, home=directory, deployed=False)
        own = msgspec.structs.replace(shipped, rpc_urls=(scene.url,), confirmations=scene.confirmations)
        write_profile(user_profile_path(NETWORK, directory), own)
        yield scene
    finally:
        chain.kill()
        chain.wait()
        for name, value in kept.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def _until_up(scene: Scene, chain: subprocess.Popen[bytes]) -> None:
    for _ in range(500):
        if chain.poll() is not None:
            break
        try:
            scene.rpc("eth_chainId")
            return
        except httpx.HTTPError:
            time.sleep(0.02)
    raise RehearsalFailed("anvil does not answer")


@contextlib.contextmanager
def light_keys() -> Iterator[None]:
    """Keystores that open fast; the format is the same. Not by scrypt: with any n its Python part takes what a fifth of
    a command takes."""
    full = Account.encrypt
    fast = {"kdf": "pbkdf2", "iterations": 1}
    Account.encrypt = staticmethod(lambda secret, password, **_: full(secret, password, **fast))  # type: ignore[method-assign]
    try:
        yield
    finally:
        Account.encrypt = full  # type: ignore[method-assign]
