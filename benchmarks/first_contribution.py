"""From nothing to the first accepted contribution, as a newcomer: commands, decisions, seconds.

    python -m benchmarks.first_contribution [--only devnet|public] [--quick] [--json]

Real daemons train a small model; then somebody comes who has the program and, on the public network, a profile file.
`devnet`: the chain of this machine, where `join` does everything. `public`: an anvil that calls itself Base Sepolia,
blocks every 2 s and two confirmations (--quick: a block per transaction, none), where a provider must stake. There
the newcomer types `join`, and then exactly what `join` says that is missing: a step that cannot be copied fails here.
"send .. of the chain's coin" is done by the chain. Installing is not part of it (README: 45 s). The last line is one
object.
"""

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.rehearsal import NETWORK, stage
from cli.demo.cast import DemoOptions
from cli.demo.runs import write_run
from cli.demo.scene import Scene
from cli.demo.supervise import child_environment
from cli.devnet import cache_directory

ROOT = Path(__file__).resolve().parent.parent
PASSWORDS = {"INTELLECT_KEY_PASSWORD": "a newcomer's", "INTELLECT_NODE_PASSWORD": "a newcomer's"}
PATIENCE = 600.0
STEPS = 2000
LOOPBACK = ["--listen", "/ip4/127.0.0.1/tcp/0", "--no-preflight"]


class BenchmarkFailed(Exception):
    """A daemon ended, or something took longer than PATIENCE."""


@dataclass
class Newcomer:
    """What somebody typed and decided. seconds: to the first contribution; phases: how long each took."""

    commands: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    transfers: list[str] = field(default_factory=list)
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    first: str = ""

    def row(self, network: str) -> dict[str, Any]:
        return {
            "network": network,
            "commands": len(self.commands),
            "decisions": len(self.decisions),
            "transfers": len(self.transfers),
            "seconds": round(self.seconds, 1),
            "phases": {name: round(seconds, 1) for name, seconds in self.phases.items()},
            "typed": self.commands,
            "decided": self.decisions,
            "first": self.first,
        }


def cli(*arguments: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """One command that ends; its last line of JSON, if it speaks any."""
    command = [sys.executable, "-m", "cli", *arguments]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE)
    if done.returncode:
        raise BenchmarkFailed(f"{shlex.join(arguments)}: exit code {done.returncode}\n{done.stderr}")
    last = done.stdout.strip().rpartition("\n")[2]
    return json.loads(last) if last.startswith("{") else {}


@contextlib.contextmanager
def daemon(arguments: Sequence[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """`join --json` with these arguments, stopped at the end."""
    command = [sys.executable, "-m", "cli", "join", "--json", *arguments]
    process = subprocess.Popen(command, env=dict(environment), stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def told(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """What a daemon says, until it ends."""
    assert process.stdout is not None  # noqa: S101 - it was opened with a pipe
    ends = time.monotonic() + PATIENCE
    for line in process.stdout:
        if line.startswith("{"):
            yield json.loads(line)
        if time.monotonic() > ends:
            raise BenchmarkFailed("nothing came of it in time")
    raise BenchmarkFailed(f"a daemon ended with {process.wait()}")


def until(process: subprocess.Popen[str], key: str, value: str) -> None:
    for one in told(process):
        if one.get(key) == value:
            return


@contextlib.contextmanager
def swarm(run: Path, network: str, states: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """The run's own people: a trainer that has published, and a validator that has the policy."""
    common = ["--network", network, *LOOPBACK]
    trainer = ["--role", "trainer", "--run", str(run), "--state-dir", str(states / "trainer"), *common]
    validator = ["--role", "validator", "--state-dir", str(states / "validator"), *common]
    with daemon(trainer, environment) as first, daemon(validator, environment) as second:
        until(first, "phase", "first-contribution")
        until(second, "phase", "first-contribution")
        yield


def come(arguments: Sequence[str], environment: Mapping[str, str], give: Any = None) -> Newcomer:
    """Type `join`, and whatever it asks for, until something of this node is accepted. give: sends coin."""
    newcomer, began, phase, since = Newcomer(), time.monotonic(), "start", time.monotonic()
    newcomer.commands.append(shlex.join(["intellect-node", "join", *arguments]))
    with daemon(arguments, environment) as process:
        for one in told(process):
            now = time.monotonic()
            if "phase" in one:
                newcomer.phases[phase] = newcomer.phases.get(phase, 0.0) + now - since
                phase, since = one["phase"], now
            if one.get("event") == "do":
                obey(one["text"], newcomer, environment, give)
            if one.get("event") == "accepted":
                newcomer.first = one["text"]
            if one.get("phase") == "working":
                break
        newcomer.seconds = time.monotonic() - began
    return newcomer


def obey(step: str, newcomer: Newcomer, environment: Mapping[str, str], give: Any) -> None:
    """Do what `join` said, word for word; a command that asks is answered with yes."""
    if not step.startswith("intellect-node "):
        words = step.split()
        newcomer.transfers.append(step)
        give(words[words.index("to") + 1], round(float(words[1]) * 10**18))
        return
    words = shlex.split(step)
    newcomer.commands.append(step)
    asks = words[1] == "contract"
    newcomer.decisions.append(f"say yes to: {step}" if asks else f"a password for: {step}")
    cli(*words[1:], *(["--yes"] if asks else []), environment=environment)


def write_files(folder: Path) -> Path:
    """The run's files: a model that hardly knows anything, and the demo's run with many steps."""
    scene = Scene(folder)
    folder.mkdir(parents=True)
    teach = ["node.training.warmstart", "--out", str(scene.model), "--target", "0.1"]
    subprocess.run([sys.executable, "-m", *teach], env=child_environment(ROOT), check=True, capture_output=True)
    write_run(DemoOptions(folder, steps=STEPS), scene)
    text = scene.run_file.read_text(encoding="utf-8")
    kept = [line for line in text.splitlines() if not line.startswith("target_reward")]
    scene.run_file.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return scene.run_file


def on_the_devnet(folder: Path, run: Path) -> dict[str, Any]:
    environment = child_environment(ROOT, {"INTELLECT_NODE_HOME": str(folder / "home")})
    states = folder / "nodes"
    cli("devnet", "up", environment=environment)
    try:
        for name in ("trainer", "validator"):
            cli("keys", "new", "--state-dir", str(states / name), environment=environment)
        people = ["--trainer-state", str(states / "trainer"), "--validator-state", str(states / "validator")]
        opened = ["contract", "pool", "create", "--network", "local", "--run", str(run), *people, "--yes"]
        cli(*opened, environment=environment)
        with swarm(run, "local", states, environment):
            return come(["--network", "local"], environment).row("devnet")
    finally:
        cli("devnet", "down", "--forget", environment=environment)


def on_a_public_network(folder: Path, run: Path, *, quick: bool) -> dict[str, Any]:
    home = folder / "owner"
    with stage(home, cache_directory(), quick=quick) as scene:

        def give(address: str, wei: int) -> None:
            have = int(scene.rpc("eth_getBalance", address, "latest"), 16)
            scene.rpc("anvil_setBalance", address, hex(have + wei))

        owner = child_environment(ROOT, {"INTELLECT_NODE_HOME": str(home)} | {k: os.environ[k] for k in PASSWORDS})
        pool = _open_network(home, run, owner, give)
        profile = folder / f"{NETWORK}.toml"
        profile.write_text(f"pool = {pool}\n" + (home / "networks" / f"{NETWORK}.toml").read_text())
        environment = child_environment(ROOT, {"INTELLECT_NODE_HOME": str(folder / "newcomer"), **PASSWORDS})
        with swarm(run, str(profile), home / "nodes", owner):
            return come(["--network", str(profile)], environment, give).row("public")


def _open_network(home: Path, run: Path, owner: Mapping[str, str], give: Any) -> int:
    """What the owner of a run does before anybody comes: contracts, stake, nodes, pool. Returns its number."""
    address = cli("keys", "new", "owner", "--json", environment=owner)["address"]
    give(address, 10**19)
    signs = ["--network", NETWORK, "--key", "owner", "--yes", "--json"]
    cli("contract", "deploy", *signs, environment=owner)
    cli("contract", "faucet", address, "5000", *signs, environment=owner)
    cli("contract", "provider", "register", "--units", "2", *signs, environment=owner)
    states = {name: home / "nodes" / name for name in ("trainer", "validator")}
    for state in states.values():
        node = cli("keys", "new", "--state-dir", str(state), "--json", environment=owner)["address"]
        give(node, 10**18)
        cli("contract", "node", "register", "--node-state", str(state), *signs, environment=owner)
    people = ["--trainer-state", str(states["trainer"]), "--validator-state", str(states["validator"])]
    made = cli("contract", "pool", "create", "--run", str(run), *people, *signs, environment=owner)
    return int(made["pool"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("devnet", "public"))
    parser.add_argument("--quick", action="store_true", help="the public chain makes a block per transaction")
    parser.add_argument("--json", action="store_true", help="nothing but the last line")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="first-contribution-") as name:
        run = write_files(Path(name) / "run")
        if given.only != "public":
            rows.append(on_the_devnet(Path(name) / "devnet", run))
        if given.only != "devnet":
            rows.append(on_a_public_network(Path(name) / "public", run, quick=given.quick))
    for row in rows if not given.json else ():
        print(
            f"{row['network']}: {row['commands']} commands, {row['decisions']} decisions, {row['transfers']} transfers"
        )
        print(f"  {row['seconds']} s; {row['first']}")
        print("\n".join(f"  $ {one}" for one in row["typed"]))
    print(json.dumps({"load": os.getloadavg()[0], "rows": rows}))


if __name__ == "__main__":
    main()
