"""`python -m tests.upgrade.freeze`: writes what this version leaves behind into tests/upgrade/VERSION.

A state directory and a state file of a node that has promised, earned and sent; a run file and its run; a profile; what
`/status` says; the test vectors. Two calls differ in salts and nonces only. Before the version's tag the files are
written anew where a form changes; afterwards they stay as they are.
"""

import io
import json
import lzma
import shutil
import tarfile
import tempfile
from pathlib import Path

import msgspec

from node.chain.blocks import Block
from node.chain.follower import EventStore
from node.chain.outbox import Fate, Outbox, Pending
from node.chain.profile import Addresses, NetworkProfile, write_profile
from node.state.bundle import write_bundle
from node.state.directory import StateDir, check_owner, journal_of
from node.state.journal import Journal
from node.state.keystore import save_key
from node.state.pen import Pen, mark_place
from protocol.earnings import Accepted
from protocol.identity import NodeKey, address_from_bytes
from protocol.run import EnvironmentSpec, RunSpec, encode_run
from scripts.release import version_of
from tests.swarms import status

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KEY = NodeKey(b"\x05" * 32)
PASSWORD = "random-" + "x" * 32
"""Light to open, as the node's own."""
POOL = "31337 0x" + "11" * 20 + " 7"
RUN_FILE = """version = 1
name = "sort four digits"
model = "model"

[environment]
name = "sort"
args = { digits = 4 }

[rollout]
group_size = 8
prompts_per_step = 16

[recipe]
name = "intellect2"
steps = 60
"""
RUN = RunSpec(name="sort", environment=EnvironmentSpec(name="sort", args={"digits": 4}))
PROFILE = NetworkProfile(
    name="theirs",
    chain_id=84532,
    rpc_urls=("https://rpc.example/1",),
    contracts=Addresses(*(address_from_bytes(bytes([number]) * 20) for number in range(1, 7))),
    pool=7,
)
WORK = b"\x07" * 32


def live(place: Path) -> None:
    """A state directory whose node was in a pool."""
    directory = StateDir(place)
    save_key(place / "node-key.json", KEY, PASSWORD)
    journal = journal_of(place, Journal(place / "journal.sqlite", Pen(shut=True)), POOL)
    check_owner(journal, KEY.address)
    journal.examine(mark_place(place, POOL), first=True)
    journal.take_pen(journal.booted(1_800_000_000))
    journal.say("commitment", b"slot", b"word", 1_800_000_000.0)
    journal.files.add_file(b"\x01" * 32, b"\x02" * 32, 3, 640, 1_800_000_000.0, b"\x03" * 32, 4, 5, WORK)
    journal.files.judge_file(b"\x01" * 32, "accepted")
    journal.used.consume([b"\x01" * 32], 4)
    journal.pay.name(KEY.address, [Accepted(7, KEY.address, 5, WORK, 640)])
    journal.note_tallies(b"\x03" * 32, [("intake", "accepted", 1)])
    journal.close()
    outbox = Outbox(place / "outbox.sqlite")
    outbox.record(Pending("0x" + "ab" * 32, KEY.address, 1, b"raw", "join pool 7", "join", Fate.PENDING))
    outbox.close()
    store = EventStore(place / "chain.sqlite")
    store.bind("31337 here")
    store.advance(Block(12, b"\x0c" * 32, 1_800_000_000), [])
    store.close()
    directory.close()


def packed(place: Path) -> bytes:
    """The files of a directory as a small archive; the same bytes for the same files."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for path in sorted(path for path in place.rglob("*") if path.is_file() and path.name != "lock"):
            entry = tarfile.TarInfo(str(path.relative_to(place)))
            entry.size, entry.mode = path.stat().st_size, 0o600
            archive.addfile(entry, io.BytesIO(path.read_bytes()))
    return lzma.compress(raw.getvalue())


def unpack(archive: Path, place: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(archive.read_bytes()))) as found:
        found.extractall(place, filter="data")


def freeze(out: Path, version: str) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "node"
        live(place)
        (out / "state.tar.xz").write_bytes(packed(place))
        write_bundle(place, Path(folder) / "node.state", KEY, PASSWORD, 1_800_000_000, version)
        (out / "node.state.xz").write_bytes(lzma.compress((Path(folder) / "node.state").read_bytes()))
    (out / "run.toml").write_text(RUN_FILE, encoding="utf-8")
    (out / "run.json").write_bytes(encode_run(RUN))
    write_profile(out / "profile.toml", PROFILE)
    (out / "status.json").write_bytes(msgspec.json.encode(status(members=2)))
    vectors = json.loads((ROOT / "docs" / "vectors.json").read_bytes())
    (out / "vectors.json.xz").write_bytes(lzma.compress(json.dumps(vectors).encode()))


def main() -> None:
    version = version_of(ROOT)
    freeze(HERE / version, version)
    sizes = sum(path.stat().st_size for path in (HERE / version).iterdir())
    print(f"tests/upgrade/{version}: {sizes >> 10} KiB")


if __name__ == "__main__":
    main()
