"""`python -m benchmarks.refusals [--quick]`: how long each refusal takes, and what it leaves behind.

Every case is a whole program in a fresh process with a home of its own. Seconds are those of this machine now: beside
them stand the seconds of computing, which a busy machine does not change.
"""

import argparse
import json
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import msgspec
import trio

from cli.output import quiet_logs
from contracts.bindings import Addresses
from node.chain.client import ChainClient
from node.chain.profile import NetworkProfile, write_profile
from node.state.keystore import save_key
from node.state.locks import FileLock
from protocol.identity import NodeKey
from tests.node.chain.chains import Participants, deployed_chain

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "transformers", "libp2p", "web3", "pyarrow", "matplotlib", "node.daemon")
"""What no refusal needs."""


NOWHERE = NetworkProfile(
    name="test", chain_id=31337, rpc_urls=("http://127.0.0.1:9",), contracts=Addresses(*["0x" + "11" * 20] * 5)
)


class Case(msgspec.Struct, frozen=True):
    """One command that must be refused. words: {dir} stands for the case's directory; code: of exit; says: a part of
    the error."""

    name: str
    words: str
    code: int
    says: str
    chain: bool = False


CASES = (
    Case("a role that there is not", "join --role king", 2, "king"),
    Case("a network that there is not", "join --network nowhere", 4, "there is no network 'nowhere'"),
    Case("no local chain", "join --network local", 4, "there is no local chain"),
    Case("a network without contracts", "join --network base-sepolia", 4, "the contracts are not on base-sepolia"),
    Case("no multiaddr", "join --listen here", 3, "--listen here is no multiaddr"),
    Case("no address for the page", "join --page nope", 3, "the page cannot be served at nope"),
    Case("no run file", "join --role trainer --run absent.toml", 6, "absent.toml"),
    Case("a state directory in use", "join --network {dir}/net.toml --state-dir {dir}/held", 3, "is in use"),
    Case("a journal that is none", "join --network {dir}/net.toml --state-dir {dir}/broken", 3, "no SQLite database"),
    Case("a journal of a newer program", "join --network {dir}/net.toml --state-dir {dir}/newer", 3,
         "this program knows forms up to"),
    Case("a directory of another user", "join --network {dir}/net.toml --pool 1 --state-dir {dir}/theirs",
         3, "another user's" if os.getuid() == 0 else "permissions"),
    Case("a file as its place", "join --network {dir}/net.toml --state-dir {dir}/net.toml/node", 3, "is no directory"),
    Case("nothing to go on with", "demo --resume --dir {dir}/demo", 3, "there is no demo to go on with"),
    Case("a setting that there is not", "config set colour blue", 2, "there is no setting colour"),
    Case("a wrong password", "join --network {dir}/net.toml --pool 1 --state-dir {dir}/own --password-file {dir}/wrong",
         3, "the password is wrong"),
    Case("a lost password", "join --network {dir}/net.toml --pool 1 --state-dir {dir}/own",
         3, "no password for the key"),
    Case("no pool named", "join --network {dir}/net.toml", 3, "no pool to join"),
    Case("another chain", "join --network {dir}/other.toml --pool 1", 4, "chain", chain=True),
    Case("a pool that there is not", "join --network {dir}/net.toml --pool 99", 4, "pool 99", chain=True),
    Case("a pool that has ended", "join --network {dir}/net.toml --pool 1", 3, "pool 1 has ended", chain=True),
    Case("nothing to train", "train --run absent.toml --dir {dir}/runs", 6, "absent.toml"),
    Case("nothing to demonstrate", "demo --run absent.toml --dir {dir}/demo", 6, "absent.toml"),
    Case("a node that there is not", "leave --state-dir {dir}/nobody --network local", 4, "there is no node"),
)  # fmt: skip


@contextmanager
def scene(directory: Path, profile: NetworkProfile) -> Iterator[None]:
    """What the cases find: profiles of a chain, a key, and a state directory that somebody holds."""
    write_profile(directory / "net.toml", profile)
    write_profile(directory / "other.toml", msgspec.structs.replace(profile, chain_id=profile.chain_id + 1))
    save_key(directory / "own" / "node-key.json", NodeKey.generate(), "right")
    (directory / "wrong").write_text("wrong\n")
    (directory / "wrong").chmod(0o600)
    (directory / "held").mkdir()
    (directory / "broken").mkdir()
    (directory / "broken" / "journal.sqlite").write_text("{}")
    (directory / "newer").mkdir()
    with closing(sqlite3.connect(directory / "newer" / "journal.sqlite")) as journal:
        journal.execute("PRAGMA user_version=99")
    _of_another_user(directory / "theirs")
    lock = FileLock(directory / "held" / "lock")
    lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _of_another_user(place: Path) -> None:
    """As far as this user can make one: root gives it away, another takes its own rights from itself."""
    save_key(place / "node-key.json", NodeKey.generate(), "theirs")
    (place / "password").write_text("theirs\n")
    (place / "password").chmod(0o600)
    if os.getuid() == 0:
        for path in (place, *place.iterdir()):
            os.chown(path, 12_345, 12_345)
    else:
        place.chmod(0)


def files_of(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def words_of(case: Case, directory: Path) -> list[str]:
    return [word.format(dir=directory) for word in case.words.split()]


def environment_of(directory: Path) -> dict[str, str]:
    ours = ("INTELLECT_NODE_", "PYTHONDONTWRITEBYTECODE")  # an installed program need not compile its modules
    clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**clean, "INTELLECT_NODE_HOME": str(directory / "home"), "XDG_RUNTIME_DIR": str(directory)}


def ask(case: Case, directory: Path) -> dict[str, object]:
    """Run one in a fresh process."""
    before, used, began = files_of(directory), _computing(), time.monotonic()
    command = [sys.executable, "-m", "cli", *words_of(case, directory)]
    environment = {**environment_of(directory), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    seconds, computing = time.monotonic() - began, _computing() - used
    return {
        "case": case.name,
        "seconds": round(seconds, 2),
        "computing": round(computing, 2),
        "debris": sorted(files_of(directory) - before),
        "as_expected": done.returncode == case.code and case.says in done.stderr,
    }


def _computing() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def _ended_pool(profile: NetworkProfile) -> None:
    """Pool 1 of this chain, over."""
    client = ChainClient(profile, NodeKey.generate())
    people = Participants(client)
    await people.prepare()
    await people.end()
    client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="Only the cases that need no chain.")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as folder, quiet_logs():
        directory = Path(folder)
        with deployed_chain(Path(tempfile.gettempdir()) / "anvil") if not quick else nullcontext(NOWHERE) as profile:
            if not quick:
                trio.run(_ended_pool, profile)
            with scene(directory, profile):
                ask(CASES[-1], directory)  # the first one may have to compile modules
                for case in CASES:
                    if not (quick and case.chain):
                        print(json.dumps(ask(case, directory)), flush=True)


if __name__ == "__main__":
    main()
