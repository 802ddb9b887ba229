"""Several trainers at a desk: disjoint shares, exact resume, and contributions that their manifests explain."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from blake3 import blake3

from node.metrics.observer import Observer
from node.recipe.desk import desk_blobs, desk_root
from node.recipe.manifest import checked, materialise
from node.run.file import load_run_file
from node.services.local_seats import LocalSeats
from node.training.batch import decode_batch
from node.training.errors import TrainingError
from node.training.length import without_length
from node.training.outer import StateFile
from node.training.seats import SeatLearner, Seats
from node.training.settings import TrainerSettings
from node.training.spool import Spool
from node.training.world import World
from protocol.blobs import describe
from protocol.contribution import decode_contribution, expected_of
from protocol.exchange import form_of
from protocol.manifest import ComposedBatch, MalformedManifest, decode_composed
from protocol.pretraining import Diloco
from protocol.run import RunSpec, encode_run
from protocol.seats import share
from tests.node.services.test_local import EngineInProcess, Examiner, story

ROUNDS, PEERS, INNER = 2, 2, 2
PER_ROUND = PEERS * INNER
SPEED = ("tokens_per_second", "peak_memory_bytes", "mfu")


class Died(Exception):
    """Stands for a kill -9 of the learner, and of the daemon with it."""


class SeatsInProcess:
    """The learner's program in a thread. stop_after: steps after which it dies, -1: never."""

    name, pid, restarts = "learner", None, 0

    def __init__(self, spool: Spool, run: RunSpec, stop_after: int = -1) -> None:
        self._spool, self._run, self._left = spool, run, stop_after

    def finish(self) -> None:
        pass

    async def run(self) -> None:
        await trio.to_thread.run_sync(self._train, abandon_on_cancel=True)

    def _train(self) -> None:
        seats = Seats(self._spool, self._run, TrainerSettings(), World())
        real = seats._learner.step

        def step(*given: Any) -> dict[str, Any]:
            if self._left == 0:
                raise Died
            self._left -= 1
            return real(*given)

        seats._learner.step = step  # type: ignore[method-assign]
        seats.train()


def make(run: RunSpec, assets: Path, directory: Path, level: int = 1, stop_after: int = -1) -> LocalSeats:
    encoded, spool = encode_run(run), Spool(directory / "spool")
    return LocalSeats(
        run,
        encoded,
        directory,
        assets,
        peers=PEERS,
        engine=EngineInProcess(encoded, assets),
        learner=SeatsInProcess(spool, run, stop_after),
        evaluator=Examiner(spool, run.recipe.steps),
        spool=spool,
        observer=Observer(run, directory),
        async_level=level,
    )


@pytest.fixture
def run(tiny_run: RunSpec) -> RunSpec:
    rules = Diloco(inner_steps=INNER, exchange="int8", inner_state="reset", stretch=1, max_contributions=4)
    recipe = msgspec.structs.replace(tiny_run.recipe, steps=ROUNDS, max_staleness=3)
    rollout = msgspec.structs.replace(tiny_run.rollout, max_output_tokens=6, prompts_per_step=3, prompts_per_file=2)
    return msgspec.structs.replace(tiny_run, recipe=recipe, rollout=rollout, diloco=rules)


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
        round_, seat = place // PER_ROUND, place % PER_ROUND // INNER
        composed.check(desk_root(run), 0, round_, run.recipe.max_staleness)
        outer = bytes.fromhex(records[round_]["outer_root"])
        for work in composed.works:
            assert share(outer, work.file_root, PEERS) == seat
            assert work.policy_step == 0, "policies lag by one round"
            assert (work.file_root, work.used) not in used
            used.add((work.file_root, work.used))
    with pytest.raises(MalformedManifest, match="asked for was step 0"):
        composed.check(desk_root(run), 0, 0, run.recipe.max_staleness)

    first = (ROUNDS - 1) * PER_ROUND
    batches = [decode_batch(spool.batch(place)) for place in range(first, first + PER_ROUND)]
    names = [name for batch in batches for name in batch.header.files]
    assert len(names) == len(set(names)) == PER_ROUND * 3
    seats = Seats(spool, run, TrainerSettings(), World())
    assert seats._admit(batches[0], ROUNDS - 1, first) is batches[0]
    assert seats._admit(batches[0], ROUNDS - 1, first) is batches[0]  # the same again, after a restart
    with pytest.raises(TrainingError, match="learnt from before"):
        seats._admit(batches[0], ROUNDS - 1, first + INNER)
    with pytest.raises(TrainingError, match="of round 1"):
        seats._admit(batches[1], 0, 1)


async def test_a_run_of_several_trainers_that_was_killed_goes_on_as_if_it_had_not_been(
    run: RunSpec, tiny_assets: Path, tmp_path: Path
) -> None:
    """With all that a seat may keep for itself: moments, and what it has not sent."""
    assert run.diloco is not None
    run = msgspec.structs.replace(
        run, diloco=msgspec.structs.replace(run.diloco, inner_state="kept", exchange="sparse")
    )
    await make(run, tiny_assets, tmp_path / "straight").run()
    for stop_after in (3, 4):  # at the second seat of the first round, and of the next
        with pytest.raises(BaseExceptionGroup):
            await make(run, tiny_assets, tmp_path / "killed", stop_after=stop_after).run()
    await make(run, tiny_assets, tmp_path / "killed").run()
    assert told(tmp_path / "killed") == told(tmp_path / "straight")
    assert manifests(tmp_path / "killed") == manifests(tmp_path / "straight")


async def test_whoever_has_a_seats_manifests_and_files_makes_its_contribution_again(
    run: RunSpec, tiny_assets: Path, tmp_path: Path
) -> None:
    await make(run, tiny_assets, tmp_path, level=0).run()
    assert {work.policy_step for one in manifests(tmp_path)[PER_ROUND:] for work in one.works} <= {0, 1}
    spool, round_, seat = Spool(tmp_path / "spool"), ROUNDS - 1, 1
    outer = StateFile(spool.root / "rounds" / f"outer-{round_:06d}.safetensors")
    assert run.diloco is not None
    form, root = form_of(run.diloco), blake3(without_length(run)).digest()
    data = (spool.root / "rounds" / f"{round_:06d}" / f"seat-{seat}.inc").read_bytes()
    expected = expected_of(run.diloco, root, {round_: outer.root}, 3 * 4)
    claimed = decode_contribution(data, outer.shapes, form, expected)
    assert claimed.header.tokens == INNER * 3 * 4 and len(claimed.header.stretches) == INNER

    again = Spool(tmp_path / "again")
    again.prepare(encode_run(run), tiny_assets)
    again.peers_path.write_text(str(PEERS))
    learner = Seats(again, run, TrainerSettings(), World())._learner
    assert replayed(learner, run, tmp_path, outer, round_, claimed.header.batches) == [
        *claimed.header.stretches,
        *(bytes(claimed.parts[name]) for name in outer.shapes),
    ]
    first = round_ * PER_ROUND
    own = [describe(spool.works_path(place).read_bytes()).root for place in range(first, first + PER_ROUND)]
    assert tuple(own[INNER:]) == claimed.header.batches
    wrong = replayed(learner, run, tmp_path, outer, round_, tuple(own[:INNER]))
    assert wrong[0] == claimed.header.stretches[0] and wrong[1] != claimed.header.stretches[1]


def replayed(
    learner: SeatLearner, run: RunSpec, directory: Path, outer: StateFile, round_: int, batches: tuple[bytes, ...]
) -> list[bytes]:
    """Digests of the stretches, and the encoded tensors, of steps on the batches whose manifests have these roots."""
    assert run.diloco is not None
    form, found = form_of(run.diloco), list[bytes]()
    by_root = {describe(path.read_bytes()).root: path for path in (directory / "spool" / "works").iterdir()}
    learner.load(outer.tensor)
    learner.begin(None)
    for number, root in enumerate(batches):
        composed = decode_composed(by_root[root].read_bytes())
        files, reports = desk_blobs(directory / "rollouts", composed)
        rows = materialise(run, composed, checked(files), checked(reports)).rows
        found.append(learner.digest(round_ * INNER + number))
        learner.step(rows, round_ * INNER + number)
    return [*found, *(form.encode(outer.tensor(name).reshape(-1) - values) for name, values in learner.weights())]


async def test_the_example_trains(tiny_assets: Path, tmp_path: Path, run: RunSpec) -> None:
    """Its own words, with a smaller model and fewer answers."""
    file = load_run_file(Path("examples/trainers.toml"))
    rollout = msgspec.structs.replace(file.rollout, group_size=2, prompts_per_step=2, prompts_per_file=2)
    recipe = msgspec.structs.replace(file.recipe, steps=1)
    sections = file.sections() | {"rollout": rollout, "recipe": recipe}
    spec = RunSpec(name=file.name, environment=run.environment, **sections)
    spec.check(desk=True)
    await make(spec, tiny_assets, tmp_path).run()
    assert told(tmp_path)[-1]["contributions"] == PEERS
