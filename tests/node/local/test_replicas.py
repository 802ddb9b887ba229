"""Several trainers at a desk: disjoint shares, exact resume, and contributions that their manifests explain."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from blake3 import blake3

from node.audit.desk import audit_at_desk
from node.audit.findings import Says
from node.local.replicas import LocalReplicas
from node.metrics.observer import Observer
from node.recipe.desk import desk_root
from node.run.file import load_run_file
from node.training.batch import decode_batch
from node.training.errors import TrainingError
from node.training.length import without_length
from node.training.outer import OuterStateFile
from node.training.replicas import ReplicaRounds
from node.training.settings import TrainerSettings
from node.training.spool import Spool
from node.training.world import World
from protocol.blobs import describe
from protocol.contribution import Expected, decode_header, encode_header, expected_of
from protocol.manifest import ComposedBatch, MalformedManifest, decode_composed
from protocol.pretraining import Diloco
from protocol.replicas import share
from protocol.run import RunSpec, encode_run
from tests.node.local.test_rollouts import BUDGET, EngineInProcess, Examiner, story

ROUNDS, PEERS, INNER = 2, 2, 2
PER_ROUND = PEERS * INNER
SPEED = ("tokens_per_second", "peak_memory_bytes", "mfu")


class Died(Exception):
    """Stands for a kill -9 of the learner, and of the daemon with it."""


class ReplicasInProcess:
    """The learner's program in a thread. stop_after: steps after which it dies, -1: never."""

    name, pid, restarts, memory = "learner", None, 0, ""

    def __init__(self, spool: Spool, run: RunSpec, stop_after: int = -1) -> None:
        self._spool, self._run, self._left = spool, run, stop_after

    def finish(self) -> None:
        pass

    async def run(self) -> None:
        await trio.to_thread.run_sync(self._train, abandon_on_cancel=True)

    def _train(self) -> None:
        replicas = ReplicaRounds(self._spool, self._run, TrainerSettings(), World())
        real = replicas._learner.step

        def step(*given: Any) -> dict[str, Any]:
            if self._left == 0:
                raise Died
            self._left -= 1
            return real(*given)

        replicas._learner.step = step  # type: ignore[method-assign]
        replicas.train()


def make(run: RunSpec, assets: Path, directory: Path, level: int = 1, stop_after: int = -1) -> LocalReplicas:
    encoded, spool = encode_run(run), Spool(directory / "spool")
    return LocalReplicas(
        run,
        encoded,
        directory,
        assets,
        peers=PEERS,
        engines=[EngineInProcess(encoded, assets)],
        learner=ReplicasInProcess(spool, run, stop_after),
        evaluator=Examiner(spool, run.recipe.steps),
        spool=spool,
        observer=Observer(run, directory),
        async_level=level,
    )


@pytest.fixture
def run(tiny_run: RunSpec) -> RunSpec:
    rules = Diloco(inner_steps=INNER, exchange="int8", inner_state="reset", stretch=1, max_contributions=4)
    recipe = msgspec.structs.replace(tiny_run.recipe, steps=ROUNDS, max_staleness=3)
    sizes = {"max_output_tokens": 6, "max_prompt_tokens": 12, "prompts_per_step": 3, "prompts_per_file": 2}
    rollout = msgspec.structs.replace(tiny_run.rollout, **sizes)
    return msgspec.structs.replace(tiny_run, recipe=recipe, rollout=rollout, diloco=rules, length_budget=BUDGET)


def told(directory: Path) -> list[dict[str, Any]]:
    """The records without what a clock says."""
    return [{name: value for name, value in one.items() if name not in SPEED} for one in story(directory)]


def manifests(directory: Path) -> list[ComposedBatch]:
    spool = Spool(directory / "spool")
    return [decode_composed(spool.works_path(place).read_bytes()) for place in range(ROUNDS * PER_ROUND)]


async def test_each_trainer_learns_from_its_own_share_of_outer_policies(
    run: RunSpec, tiny_assets: Path, tmp_path: Path
) -> None:
    await make(run, tiny_assets, tmp_path).run()
    records, spool = told(tmp_path), Spool(tmp_path / "spool")
    assert [one["step"] for one in records] == list(range(ROUNDS + 1))
    assert records[1]["contributions"] == PEERS and records[1]["rollouts"] == PER_ROUND * 3 * 4
    assert len({one["outer_root"] for one in records}) == ROUNDS + 1 and records[1]["bits_per_parameter"] < 9
    assert json.loads(spool.metrics_path(ROUNDS).read_bytes())["updates"] <= PER_ROUND
    used = set[tuple[bytes, bytes]]()
    for place, composed in enumerate(manifests(tmp_path)):
        round_, replica_id = place // PER_ROUND, place % PER_ROUND // INNER
        composed.check(desk_root(run), 0, round_, run.recipe.max_staleness)
        outer = bytes.fromhex(records[round_]["outer_root"])
        for work in composed.works:
            assert share(outer, work.file_root, PEERS) == replica_id
            assert work.policy_step == 0, "policies lag by one round"
            assert (work.file_root, work.used) not in used
            used.add((work.file_root, work.used))
    with pytest.raises(MalformedManifest, match="asked for was step 0"):
        composed.check(desk_root(run), 0, 0, run.recipe.max_staleness)

    first = (ROUNDS - 1) * PER_ROUND
    batches = [decode_batch(spool.batch(place)) for place in range(first, first + PER_ROUND)]
    names = [name for batch in batches for name in batch.header.files]
    assert len(names) == len(set(names)) == PER_ROUND * 3
    replicas = ReplicaRounds(spool, run, TrainerSettings(), World())
    assert replicas._admit(batches[0], ROUNDS - 1, first) is batches[0]
    assert replicas._admit(batches[0], ROUNDS - 1, first) is batches[0]  # the same again, after a restart
    with pytest.raises(TrainingError, match="learnt from before"):
        replicas._admit(batches[0], ROUNDS - 1, first + INNER)
    with pytest.raises(TrainingError, match="of round 1"):
        replicas._admit(batches[1], 0, 1)


async def test_a_run_of_several_trainers_that_was_killed_goes_on_as_if_it_had_not_been(
    run: RunSpec, tiny_assets: Path, tmp_path: Path
) -> None:
    """With all that a replica may keep for itself: moments, and what it has not sent."""
    assert run.diloco is not None
    run = msgspec.structs.replace(
        run, diloco=msgspec.structs.replace(run.diloco, inner_state="kept", exchange="sparse")
    )
    await make(run, tiny_assets, tmp_path / "straight").run()
    for stop_after in (3, 4):  # at the second replica of the first round, and of the next
        with pytest.raises(BaseExceptionGroup):
            await make(run, tiny_assets, tmp_path / "killed", stop_after=stop_after).run()
    await make(run, tiny_assets, tmp_path / "killed").run()
    assert told(tmp_path / "killed") == told(tmp_path / "straight")
    assert manifests(tmp_path / "killed") == manifests(tmp_path / "straight")


@pytest.mark.parametrize(("state", "exchange"), [("kept", "sparse"), ("reset", "int8")])
async def test_whoever_has_a_seats_manifests_and_files_makes_its_contribution_again(
    run: RunSpec, tiny_assets: Path, tmp_path: Path, state: Any, exchange: Any
) -> None:
    assert run.diloco is not None
    run = msgspec.structs.replace(run, diloco=msgspec.structs.replace(run.diloco, inner_state=state, exchange=exchange))
    await make(run, tiny_assets, tmp_path, level=0).run()
    last, spool = ROUNDS - 1, Spool(tmp_path / "spool")
    for replica_id in range(PEERS):
        audit = audit_at_desk(tmp_path, last, replica_id=replica_id)
        assert [one.test for one in audit.findings] == ["manifest", "replay"] and audit.says is Says.HOLDS, audit
    with pytest.raises(TrainingError, match="nothing to audit"):
        audit_at_desk(tmp_path, last)
    elsewhere = audit_at_desk(tmp_path, last, TrainerSettings(micro_batch_tokens=64), replica_id=1)
    assert elsewhere.differences and elsewhere.findings[1].figures["distance"] <= elsewhere.findings[1].figures["limit"]

    # what is not as the header says: its files' values, its own moments, the numbers it sent
    rounds = spool.root / "rounds"
    own, path = rounds / f"{last - 1:06d}" / "own-1.safetensors", rounds / f"{last:06d}" / "replica-1.inc"
    first, whole = last * PER_ROUND, path.read_bytes()
    # What the spool has lost of the manifest, or of one of the rounds before, says nothing of the replica.
    named, before = spool.works_path(first + INNER), spool.works_path(first - PER_ROUND)
    for path_, data in (
        (named, spool.works_path(first).read_bytes()),
        (named, b""),
        (before, before.read_bytes()[:-9]),
    ):
        with changed(path_, data):
            audit = audit_at_desk(tmp_path, last, replica_id=1)
            assert [one.says for one in audit.findings] == [Says.UNDECIDED], audit
            assert "was damaged on this machine" in audit.findings[0].text
    header = decode_header(whole, expected(run, last, spool))[0]
    others = tuple(describe(spool.works_path(first + number).read_bytes()).root for number in range(INNER))
    lie = whole.replace(encode_header(header), encode_header(msgspec.structs.replace(header, batches=others)))
    with (
        changed(path, lie),
        changed(spool.works_path(first + INNER), spool.works_path(first).read_bytes()),
        changed(spool.works_path(first + INNER + 1), spool.works_path(first + 1).read_bytes()),
    ):
        assert "of replica 0" in broken(tmp_path, last, "manifest")
    with changed(path, whole[:-1] + bytes([whole[-1] ^ 1])):
        assert broken(tmp_path, last, "replay")
    if state == "kept":
        with changed(own, own.with_name("own-0.safetensors").read_bytes()):
            assert "other bits" in broken(tmp_path, last, "replay")
        with changed(own, own.read_bytes()[:-4]):
            assert "length, names or shapes" in broken(tmp_path, last, "replay")


def expected(run: RunSpec, round_: int, spool: Spool) -> Expected:
    assert run.diloco is not None
    outer = OuterStateFile(spool.root / "rounds" / f"outer-{round_:06d}.safetensors")
    return expected_of(run.diloco, blake3(without_length(run)).digest(), {round_: outer.root}, 3 * 4)


def broken(directory: Path, round_: int, test: str) -> str:
    """What an audit of replica 1 says against it."""
    audit = audit_at_desk(directory, round_, replica_id=1)
    assert [one.test for one in audit.broken] == [test], audit
    return audit.broken[0].text


@contextmanager
def changed(path: Path, data: bytes) -> Iterator[None]:
    whole = path.read_bytes()
    path.write_bytes(data)
    yield
    path.write_bytes(whole)


async def test_the_example_trains(tiny_assets: Path, tmp_path: Path, run: RunSpec) -> None:
    """Its own words, with a smaller model and fewer answers."""
    file = load_run_file(Path("examples/trainers.toml"))
    rollout = msgspec.structs.replace(file.rollout, group_size=2, prompts_per_step=2, prompts_per_file=2)
    recipe = msgspec.structs.replace(file.recipe, steps=1)
    # An untrained model solves nothing: its answers differ in length alone.
    sections = file.sections() | {"rollout": rollout, "recipe": recipe, "length_budget": BUDGET}
    spec = RunSpec(name=file.name, environment=run.environment, **sections)
    spec.check(desk=True)
    await make(spec, tiny_assets, tmp_path).run()
    assert told(tmp_path)[-1]["contributions"] == PEERS
