"""The thief's story: a stranger with 20 tokens commits to a root that it made up, with a million units.

    python -m benchmarks.thief [--steps 220] [--units 1000000] [--validator] [--json]

A demo trains with trainer, two workers and a validator, each the program's own daemon. Beside them a stranger uses
nothing but the command line: it gets 20 tokens, becomes a provider, registers a node, joins the pool, and commits. Once
the epoch is mature it asks for its pay. Told is what it was paid, what is left of its stake, and after how many seconds
somebody objected; the honest pay of the same time is the control. With --validator there are three of them, and it is
one of these that commits what nobody judged, before its own daemon commits what it did.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.live_attacks import prepare

TOKEN = 10**18
PATIENCE = 240.0
TRIES = 10
VALIDATORS = ("validator-1", "validator-2", "validator-3")
HONEST = ("worker-1", "worker-2", "trainer", "validator", *VALIDATORS[:-1])


class Swarm:
    """A demo, and a stranger's command line beside it."""

    def __init__(self, folder: Path, run: Path, validators: int) -> None:
        self.demo = folder / "demo"
        words = ["demo", "--run", str(run), "--no-cheat", "--no-view", "--dir", str(self.demo)]
        words += ["--validators", str(validators)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cli", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        password = {"INTELLECT_KEY_PASSWORD": "thief", "INTELLECT_NODE_PASSWORD": "thief"}
        self.environment = {**os.environ, **password, "INTELLECT_NODE_HOME": str(self.demo / "home")}

    def tell(self, *words: str, may_fail: bool = False) -> dict[str, Any]:
        """One command; its JSON, or with `may_fail` what it said."""
        done = subprocess.run(
            [sys.executable, "-m", "cli", *words, "--json"], env=self.environment, capture_output=True, text=True
        )
        if done.returncode and may_fail:
            return {"said": done.stderr.strip().splitlines()}
        if done.returncode:
            sys.exit(f"{' '.join(words)}:\n{done.stderr}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def until_paid_once(self) -> None:
        """The first honest epoch is on chain: the pool is at work."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            logs = self.demo.glob("nodes/worker-*/logs/daemon.jsonl")
            if any('"work.committed"' in log.read_text() for log in logs):
                return
            time.sleep(1)
        sys.exit("no worker committed anything")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


class Thief(NamedTuple):
    """key: of its provider, as the command line takes it; state: the node's directory."""

    provider: str
    node: str
    key: str
    state: str


def stranger(swarm: Swarm) -> Thief:
    """Comes with 20 tokens and joins."""
    state = str(swarm.demo / "thief")
    thief = swarm.tell("keys", "new", "thief")["address"]
    node = swarm.tell("keys", "new", "--state-dir", state)["address"]
    for who, amount in ((thief, "20"), (node, "1")):
        swarm.tell("contract", "faucet", who, amount, "--yes")
    swarm.tell("contract", "provider", "register", "--key", "thief", "--yes")
    swarm.tell("contract", "node", "register", "--node-state", state, "--key", "thief", "--yes")
    swarm.tell("contract", "join", "1", "--state-dir", state, "--contact", "/ip4/127.0.0.1/tcp/9", "--yes")
    return Thief(thief, node, "thief", state)


def judge(swarm: Swarm) -> Thief:
    """Has judged for the pool until now."""
    state = swarm.demo / "nodes" / VALIDATORS[-1]
    del swarm.environment["INTELLECT_NODE_PASSWORD"]  # its own lies in its directory, and opens both keys
    swarm.environment["INTELLECT_KEY_PASSWORD"] = (state / "password").read_text().strip()
    node = swarm.tell("keys", "show", "--state-dir", str(state))["address"]
    key = str(state / "provider-key.json")
    return Thief(swarm.tell("keys", "show", key)["address"], node, key, str(state))


def story(swarm: Swarm, thief: Thief, units: int) -> dict[str, Any]:
    """What the thief does, and what comes of it."""
    before = swarm.tell("contract", "show", thief.provider)
    for _ in range(TRIES):  # epochs of a demo are short, and its machine is busy
        pool = swarm.tell("contract", "pool", "show", "1")["pool"]
        epoch = pool["epoch"]
        committed = ["contract", "work", "commit", "1", str(epoch), "ab" * 32, str(units)]
        committed += ["--state-dir", thief.state, "--yes"]
        started = time.monotonic()
        if "said" not in swarm.tell(*committed, "--unchecked", may_fail=True):
            break
    else:
        sys.exit("the thief was too slow for every epoch")
    refused = swarm.tell(*committed, may_fail=True)
    matures = pool["started_at"] + (epoch + 1) * pool["epoch_seconds"] + pool["window"]
    objected = None
    while swarm.tell("contract", "pool", "show", "1")["now"] <= matures:
        bonded = int(swarm.tell("contract", "show", thief.provider)["bonded_wei"])
        if objected is None and bonded < int(before["bonded_wei"]):
            objected = time.monotonic() - started
        time.sleep(1)
    settle = ["contract", "settle", "1", thief.node, str(epoch), "--key", thief.key, "--yes"]
    asked = swarm.tell(*settle, may_fail=True)
    account = swarm.tell("contract", "show", thief.provider)
    honest = {name: _paid(swarm, name) for name in HONEST if (swarm.demo / "nodes" / name).exists()}
    return {
        "paid": (int(account["token_wei"]) - int(before["token_wei"])) / TOKEN,
        "bonded_before": int(before["bonded_wei"]) / TOKEN,
        "bonded": int(account["bonded_wei"]) / TOKEN,
        "seconds_to_objection": objected and round(objected, 1),
        "seconds_to_maturity": round(time.monotonic() - started, 1),
        "command_without_unchecked": refused.get("said", ["went through"])[0],
        "settle_said": asked.get("said", ["went through"])[0],
        "honest_paid": honest,
    }


def _paid(swarm: Swarm, name: str) -> float:
    """Tokens that an honest node's provider was paid by its own daemon."""
    told = swarm.tell("status", "--state-dir", str(swarm.demo / "nodes" / name))
    return sum(int(one["pay"]["paid_wei"]) for one in told["daemons"] if one["pay"]) / TOKEN


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=220)
    parser.add_argument("--units", type=int, default=1_000_000)
    parser.add_argument("--validator", action="store_true", help="the thief is one of three validators")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        swarm = Swarm(Path(folder), prepare(Path(folder), given.steps)["plain"], 3 if given.validator else 1)
        try:
            swarm.until_paid_once()
            told = story(swarm, judge(swarm) if given.validator else stranger(swarm), given.units)
        finally:
            swarm.stop()
    if given.json:
        print(json.dumps(told))
        return
    for name, value in told.items():
        print(f"{name.replace('_', ' '):28} {value}")


if __name__ == "__main__":
    main()
