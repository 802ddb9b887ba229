"""Machines that train together share nothing but the process group, and go on where all of them were."""

import json
import os
import shutil
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from blake3 import blake3
from safetensors import safe_open
from safetensors.torch import save_file

from node.run.file import describe_file
from node.training import trainer
from node.training.checkpoint import Checkpoints
from node.training.errors import TrainingError
from node.training.handover import hand_over
from node.training.learner import Learner
from node.training.machine_spool import machine_spool
from node.training.meeting import hello, objection
from node.training.pulse import LOST_SECONDS, Pulses
from node.training.rendezvous import arguments, prepare
from node.training.settings import TrainerSettings, endpoint
from node.training.spool import Spool
from node.training.world import World
from protocol.lora import Lora
from protocol.run import Asset, RunSpec, encode_run
from tests.node.training.forks import die_at, end_of, fork
from tests.node.training.test_trainer import STEPS, batch, images, outcome, work

PAIR = TrainerSettings(nodes=2, rendezvous="127.0.0.1:1", device="cpu", checkpoint_every=2)
Pair = tuple[Spool, Spool]
LATE = 28
"""When the guest has the files (18 calls) and its first checkpoint (6), and writes its second."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def run(tiny_run: RunSpec, tiny_assets: Path) -> RunSpec:
    """With an adapter of rank 1, of which the second machine's shard has no rows, and with its files named; problems
    are nothing that ranks need."""
    files = sorted(path for path in tiny_assets.rglob("*") if path.is_file())
    infos = [(str(path.relative_to(tiny_assets)), describe_file(path)) for path in files]
    needed = [Asset(path=path, root=info.root.hex(), size=info.size) for path, info in infos]
    assets = (Asset(path="data/problems.jsonl", root="ab" * 32, size=9), *needed)
    recipe = msgspec.structs.replace(tiny_run.recipe, steps=STEPS, lora=Lora(rank=1, targets=("q_proj",)))
    return msgspec.structs.replace(tiny_run, assets=assets, recipe=recipe)


@pytest.fixture
def make_pair(run: RunSpec, tiny_assets: Path, tmp_path: Path) -> Callable[[str], Pair]:
    def make(name: str) -> Pair:
        host, guest = Spool(tmp_path / name), machine_spool(tmp_path / f"{name}-guest")
        host.prepare(encode_run(run), tiny_assets)
        for step in range(STEPS):
            host.write_batch(step, batch(step))
        for rank, spool in enumerate((host, guest)):
            settings = msgspec.structs.replace(PAIR, node_rank=rank)
            spool.settings_path.write_bytes(msgspec.json.encode(settings))
        return host, guest

    return make


def train(pair: Pair, end: int = 0) -> list[int]:
    """How the ranks ended. end: of the second one, see `die_at`."""
    port = free_port()

    def live(rank: int) -> None:
        place = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in place.items()}, GLOO_SOCKET_IFNAME="lo")
        if rank == 1:
            die_at(end)
        trainer._train(pair[rank])

    return [end_of(child) for child in [fork(live, rank) for rank in range(2)]]


def test_two_machines_publish_what_one_does_although_one_of_them_is_killed(make_pair: Callable[[str], Pair]) -> None:
    alone, _ = make_pair("alone")
    work(alone, device="cpu")
    killed = make_pair("killed")
    assert train(killed, LATE)[1] == -signal.SIGKILL
    assert train(killed) == [0, 0], "replayed steps came out the same"
    for mine, theirs in zip(outcome(killed[0])[1:], outcome(alone)[1:], strict=True):
        for name in ("loss", "grad_norm", "entropy", "mismatch_kl"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-5), (mine["step"], name)
    host, guest = killed
    assert not images(guest) and not list((guest.root / "in").iterdir())
    assert (guest.root / "run.json").read_bytes() == host.run_path.read_bytes()
    shards = [sorted(path.name for path in (spool.checkpoints / f"step-{STEPS:06d}").iterdir()) for spool in killed]
    assert len(shards[0]) == len(shards[1]) == 2 and shards[0] != shards[1], "a machine keeps its own"


def test_a_shard_that_lies_on_another_machine_is_missed_and_not_left_as_it_is(
    make_learner: Callable[..., Learner], tmp_path: Path
) -> None:
    learner = make_learner()
    checkpoints = Checkpoints(tmp_path, learner, "model", World(), keep=1)
    checkpoints.save(1, {})
    checkpoints.wait()
    (file,) = (tmp_path / "step-000001").glob("*.safetensors")
    with safe_open(file, framework="pt") as stored:
        told, tensors = stored.metadata(), {name: stored.get_tensor(name) for name in stored.keys()}
    name = next(name for name, tensor in tensors.items() if tensor.dim() == 2)
    save_file({**tensors, name: tensors[name][: len(tensors[name]) // 2].contiguous()}, file, told)
    state = json.loads((tmp_path / "step-000001" / "state.json").read_bytes())
    state["files"] = {file.name: blake3(file.read_bytes()).hexdigest()}
    (tmp_path / "step-000001" / "state.json").write_text(json.dumps(state))
    with pytest.raises(TrainingError, match="not whole on this machine") as caught:
        checkpoints.load_newest()
    assert name in caught.value.why


def test_what_a_machine_lacks_is_given_to_it_and_nothing_else(make_pair: Callable[[str], Pair]) -> None:
    """Not what it has already, by name and size."""
    host, guest = make_pair("given")
    (guest.root / "assets" / "model").mkdir()
    weights = guest.assets / "model" / "model.safetensors"
    shutil.copyfile(host.assets / "model" / "model.safetensors", weights)
    before = weights.stat().st_ino
    world = SimpleNamespace(leader=True, first=False, maxima=list, share=lambda data: data)
    held = {path.name: path.read_bytes() for path in (host.assets / "model").iterdir()}
    given: list[str] = []
    world.hand_out = lambda data: held[given[-1].removeprefix("model/")]
    hand_over(world, guest, host.run_path.read_bytes(), given.append)  # type: ignore[arg-type]
    assert sorted(given) == sorted(f"model/{name}" for name in held if name != "model.safetensors")
    assert all((guest.assets / "model" / name).read_bytes() == data for name, data in held.items())
    assert weights.stat().st_ino == before
    (guest.assets / given[0]).unlink()
    held = dict.fromkeys(held, b"something else")
    with pytest.raises(TrainingError, match="did not arrive"):
        hand_over(world, guest, host.run_path.read_bytes(), given.append)  # type: ignore[arg-type]
    assert not (guest.assets / given[0]).exists()


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("program", "9.9", "machine 1 has 9.9"),
        ("torch", "1.0", "torch"),
        ("name", "another", "'another'"),
        ("nodes", 3, "one of 3"),
        ("run", b"{}", "holds another run"),
    ],
)
def test_machines_that_do_not_fit_together_are_told_why(field: str, value: object, words: str, run: RunSpec) -> None:
    encoded = encode_run(run)
    first = hello(PAIR, encoded)
    fits = msgspec.structs.replace(first, machine=1, run=b"")
    longer = msgspec.structs.replace(run, recipe=msgspec.structs.replace(run.recipe, steps=99))
    assert objection([first, fits, msgspec.structs.replace(fits, run=encode_run(longer))]) == ()
    what, why, remedy = objection([first, fits, msgspec.structs.replace(fits, **{field: value})])
    assert words in why and what and remedy


def test_a_first_machine_that_is_not_there_is_named_and_so_is_a_port_in_use() -> None:
    port = free_port()
    away = msgspec.structs.replace(PAIR, node_rank=1, rendezvous=f"127.0.0.1:{port}", rendezvous_seconds=1.0)
    told: list[str] = []
    with pytest.raises(TrainingError, match=rf"cannot be reached at 127.0.0.1:{port}"):
        prepare(msgspec.structs.replace(away, rendezvous_seconds=0.01), told.append)
    with socket.create_server(("127.0.0.1", port)):
        assert set(prepare(away).values()) == {"lo"}
        with pytest.raises(TrainingError, match="cannot listen"):
            prepare(msgspec.structs.replace(away, node_rank=0))
    with pytest.raises(TrainingError, match="no machine called"):
        prepare(msgspec.structs.replace(away, rendezvous="nowhere.invalid:29500"))


def test_a_machine_is_lost_when_it_says_nothing_new_for_long() -> None:
    pulses = Pulses([1, 2], now=0.0)
    for now in (50.0, 100.0):
        pulses.heard(1, int(now), now)
        pulses.heard(2, 7, now)
    assert pulses.silent(150.0) == []
    assert pulses.silent(50.0 + LOST_SECONDS + 1) == [2], "the same count again is no sign of life"
    assert pulses.silent(100.0 + LOST_SECONDS + 1) == [1, 2]


def test_torchrun_is_told_of_the_machines_only_where_there_are_several() -> None:
    assert arguments(TrainerSettings(world_size=2)) == ["--standalone", "--nproc-per-node=2"]
    assert {"--nnodes=2", "--node-rank=0", "--rdzv-endpoint=127.0.0.1:1"} < set(arguments(PAIR))
    assert not PAIR.forkable


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("gpu0:29500", ("gpu0", 29500)),
        ("[fd00::1]:1", ("fd00::1", 1)),
        ("fd00::1:29500", None),
        ("gpu0", None),
        ("gpu0:0", None),
        (":29500", None),
    ],
)
def test_a_rendezvous_is_a_host_and_a_port(text: str, found: object) -> None:
    assert endpoint(text) == found
