"""What a validator's learner finds in contributions: the honest one, and everything that passes for one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from node.bounded_dict import BoundedDict
from node.changes import Changes
from node.inference.wire import Inspect
from node.services.rounds.judging import ContributionJudge
from node.training.contributing import COPY, blob_root
from node.training.jobs import Check, Job, JobFailure, Publish, StartRound, Train
from node.training.memory import DeviceLost
from node.training.outer import OuterStateFile, apply_round, write_state
from node.training.peer import TextPeer
from node.training.settings import TrainerSettings
from node.training.world import World
from protocol.checks import Reason
from protocol.contribution import Contribution, ContributionHeader, encode_contribution, encode_header
from protocol.identity import Address, NodeKey
from protocol.statements import VerdictOutcome
from tests.node.training.texts import compiled, spool_of

NODE = NodeKey(bytes([2]) * 32).address
NEVER = 4e9
Tensors = dict[str, Any]


class Bench:
    """One learner, honest contributions of replicas 0 and 1 to round 0, and a judge of them."""

    def __init__(self, folder: Path) -> None:
        run = compiled(folder, rounds='exchange = "float32"\ninner_state = "reset"')
        self.peer = TextPeer(spool_of(run, folder / "peer"), run.spec, TrainerSettings(), World())
        self.folder = folder
        self.ask(StartRound())
        self.paths = [Path(self.ask(Train(0, replica_id, NEVER))["path"]) for replica_id in (0, 1)]
        context: Any = SimpleNamespace(run=SimpleNamespace(root=bytes(32), spec=run.spec))
        rounds: Any = SimpleNamespace(moved=Changes(), measured=lambda root, norm: None)
        self.looks = ContributionJudge(context, rounds)
        for replica_id in (0, 1):
            self.looks._claims.setdefault(NODE, BoundedDict(8))[replica_id] = None

    def ask(self, job: Job) -> dict[str, Any]:
        answer = self.peer.answer(job)
        assert not answer.what, answer
        return answer.found

    def read(self, replica_id: int) -> Contribution:
        return self.peer._decoded(self.paths[replica_id], OuterStateFile(self.peer._outer_path(0)))

    def write(self, change: Callable[[Tensors], Tensors], of: int = 0, **header: Any) -> Path:
        honest = self.read(of)
        tensors = change({name: honest.tensor(name).copy() for name in honest.shapes})
        said: ContributionHeader = msgspec.structs.replace(honest.header, **header)
        path = self.folder / "made.inc"
        path.write_bytes(b"".join(encode_contribution(said, tensors, honest.form)))
        return path

    def verdict(self, path: Path, *, replay: bool = True, node: Address = NODE, units: int | None = None) -> Any:
        found = self.ask(Check(0, str(path), tuple(str(one) for one in self.paths), replay))
        tokens = found.get("tokens", 256) if units is None else units
        order = Inspect(
            policy_root=bytes(32), node=node, pool=0, index=0, units=tokens, path=str(path), report_path="",
            file_root=bytes(32), groups=(0,) if replay else (),
        )  # fmt: skip
        return self.looks._inspected(order, found), found


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    yield Bench(tmp_path_factory.mktemp("bench"))


def noise(tensors: Tensors) -> Tensors:
    source = np.random.default_rng(0)
    return {k: source.normal(size=v.size, scale=v.std() + 1e-9).astype(np.float32) for k, v in tensors.items()}


def noisy(tensors: Tensors) -> Tensors:
    extra = noise(tensors)
    return {k: v + np.float32(0.05) * extra[k] for k, v in tensors.items()}


def times(factor: float) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {k: np.float32(factor) * v for k, v in tensors.items()}


def test_honest_work_is_accepted_with_and_without_a_replay(bench: Bench) -> None:
    for replica_id in (0, 1):
        found, seen = bench.verdict(bench.paths[replica_id])
        assert (found.outcome, found.checked) == (VerdictOutcome.ACCEPT, (0,)) and seen["equal"] and seen["same"]
        found, seen = bench.verdict(bench.write(lambda one: one, replica_id), replay=False)
        assert (
            found.outcome == VerdictOutcome.ACCEPT
        )  # the same bytes beside itself are like a copy, so they were replayed
        assert seen["alike"] > 0.99 and seen["equal"]


@pytest.mark.parametrize("cheat", ["noise", "zero", "sign", "copy", "half", "own-data", "three-times"])
def test_what_was_not_computed_is_found_and_costs_the_stake(bench: Bench, cheat: str) -> None:
    header: dict[str, Any] = {}
    if cheat == "copy":  # another replica's work with 5 % noise, under one's own replica
        path = bench.write(noisy, 1, replica_id=0)
    elif cheat == "own-data":  # real steps, on the rows of another replica
        path = bench.write(lambda one: one, 1, replica_id=0)
    elif cheat == "half":  # half of the steps, sold as all
        made = bench.peer._contribution_path(0, 0)
        made.rename(bench.folder / "whole")
        bench.ask(Train(0, 0, 0.0))
        assert bench.read(0).header.tokens == 64  # where time is over one step is made, and said
        found, _ = bench.verdict(made)
        assert found.outcome == VerdictOutcome.ACCEPT  # the control: who is slow and says so
        header = {"tokens": 256, "stretches": bench.read(0).header.stretches * 2}
        path = bench.write(lambda one: one, 0, **header)
        (bench.folder / "whole").rename(made)
    else:
        change = {"noise": noise, "zero": times(0), "sign": times(-1), "three-times": times(3)}[cheat]
        path = bench.write(change)
    found, seen = bench.verdict(path)
    assert (found.outcome, found.reason, found.group) == (VerdictOutcome.SLASH, Reason.NOT_REPRODUCED, 0), seen
    unasked, _ = bench.verdict(path, replay=False)
    if cheat in ("zero", "sign", "copy", "own-data"):  # found in all contributions, not by lot only
        assert unasked.reason == Reason.NOT_REPRODUCED, unasked


def test_in_another_arithmetic_what_is_near_passes_and_what_is_far_costs_the_pay(bench: Bench) -> None:
    near = bench.write(lambda one: {k: v * np.float32(1.001) for k, v in one.items()}, arithmetic="another")
    assert bench.verdict(near)[0].outcome == VerdictOutcome.ACCEPT
    for change in (noise, times(-1), times(3), times(0)):
        found, _ = bench.verdict(bench.write(change, arithmetic="another"))
        assert (found.outcome, found.reason) == (VerdictOutcome.REJECT, Reason.NO_GAIN)


def test_form_identity_and_seat(bench: Bench) -> None:
    nan = bench.write(lambda one: one)
    whole = bytearray(nan.read_bytes())
    whole[-300:] = b"\xff" * 300  # no numbers
    nan.write_bytes(whole)
    assert bench.verdict(nan)[0].reason == Reason.MALFORMED
    for wrong in ({"round": 1}, {"outer": b"x" * 32}, {"run_root": bytes(32)}, {"tokens": 100}, {"replica_id": 9}):
        assert bench.verdict(bench.write(lambda one: one, **wrong))[0].reason == Reason.MALFORMED, wrong
    assert bench.verdict(bench.paths[0], units=64)[0].reason == Reason.UNITS
    stranger = NodeKey(bytes([9]) * 32).address
    found, _ = bench.verdict(bench.paths[0], node=stranger)
    assert (found.outcome, found.reason) == (VerdictOutcome.REJECT, Reason.NOT_LEASED)


def test_a_job_that_cannot_be_done_is_answered_and_the_next_one_is_done(bench: Bench) -> None:
    answer = bench.peer.answer(Check(7, str(bench.paths[0])))
    assert answer.what and isinstance(answer, JobFailure)
    bench.ask(Publish(0, {}))


@pytest.mark.parametrize("error", ["CUDA out of memory.", "CUDA error: an illegal memory access was encountered"])
def test_a_validator_whose_device_fails_says_nothing_of_the_file(
    bench: Bench, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers that steps come to nothing from are the file's fault; these are the validator's own."""
    job = Check(0, str(bench.paths[0]), (), replay=True)

    def fail(*_: Any) -> None:
        raise RuntimeError(error)

    with monkeypatch.context() as patched:
        patched.setattr(torch.Tensor, "backward", fail)
        with pytest.raises((SystemExit, DeviceLost)):
            bench.peer.answer(job)
    bench.peer._spool.lowered_path.unlink(missing_ok=True)
    assert bench.ask(job)["equal"], "the control"


class KeptBench(Bench):
    """The same in a run whose moments outlive a round: replica 0's contribution to round 1, and what it began with."""

    def __init__(self, folder: Path, exchange: str) -> None:
        how = f'exchange = "{exchange}"\ninner_state = "kept"\nchunk = 64\ntop = 8'
        run = compiled(folder, rounds=how.replace(' fragments"', '"\nfragments = 2'), inner=8 if "frag" in how else 4)
        self.peer = TextPeer(spool_of(run, folder / "peer"), run.spec, TrainerSettings(), World())
        self.folder, self.most = folder, self.ask(StartRound())["own_bytes"]
        made = [Path(self.ask(Train(0, replica_id, NEVER))["path"]) for replica_id in (0, 1)]
        outer = OuterStateFile(self.peer._outer_path(0))
        contributions = [self.peer._decoded(path, outer) for path in made]
        apply_round(outer, contributions, self.peer._rules, self.peer._outer_path(1))
        self.paths = [Path(self.ask(Train(1, 0, NEVER))["path"])]
        self.before, self.after = self.peer._own_path(0, 0), self.peer._own_path(1, 0)
        self.others = self.peer._own_path(0, 1)
        context: Any = SimpleNamespace(run=SimpleNamespace(root=bytes(32), spec=run.spec))
        rounds: Any = SimpleNamespace(moved=Changes(), measured=lambda root, norm: None)
        self.looks = ContributionJudge(context, rounds)
        self.looks._claims.setdefault(NODE, BoundedDict(8))[0] = None

    def read(self, replica_id: int) -> Contribution:
        return self.peer._decoded(self.paths[replica_id], self.peer._begun(1), 1)

    def judged(self, path: Path, before: Path | None, after: Path | None = None) -> tuple[Any, dict[str, Any]]:
        places = {"before": str(before or ""), "after": str(after or "")}
        found = self.ask(Check(1, str(path), (), replay=True, **places))
        order = Inspect(
            policy_root=bytes(32), node=NODE, pool=0, index=0, units=256, path=str(path), report_path="",
            file_root=bytes(32), groups=(0,),
        )  # fmt: skip
        return self.looks._inspected(order, found), found


@pytest.fixture(scope="module", params=["float32", "sparse", "float32 fragments"])
def kept(tmp_path_factory: pytest.TempPathFactory, request: Any) -> Iterator[KeptBench]:
    yield KeptBench(tmp_path_factory.mktemp("kept"), request.param)


def test_steps_that_begin_with_moments_are_made_again_from_these(kept: KeptBench) -> None:
    found, seen = kept.judged(kept.paths[0], kept.before)
    assert found.outcome == VerdictOutcome.ACCEPT and seen["equal"] and seen["same"]
    assert seen["inner"] == [blob_root(one).hex() for one in (kept.before, kept.after)]
    assert kept.before.stat().st_size <= kept.most
    assert kept.ask(Check(1, str(kept.paths[0]), (), replay=True))["lacks"] == ["before"]
    found, _ = kept.judged(kept.paths[0], kept.others)  # another replica's moments come to other steps
    assert (found.outcome, found.reason) == (VerdictOutcome.SLASH, Reason.NOT_REPRODUCED)


def test_a_false_state_behind_honest_steps_costs_the_stake(kept: KeptBench) -> None:
    header = kept.read(0).header
    path = kept.folder / "made.inc"
    data, true = kept.paths[0].read_bytes(), header.inner[1]
    path.write_bytes(data.replace(true, blob_root(kept.others)))
    found, seen = kept.judged(path, kept.before)
    assert (found.outcome, found.reason) == (VerdictOutcome.SLASH, Reason.NOT_REPRODUCED) and seen["distance"] == 0
    # in another arithmetic the state itself is compared: near is good, made up is not
    head = encode_header(header)
    other = encode_header(msgspec.structs.replace(header, arithmetic="another"))
    path.write_bytes(data.replace(head, other))
    assert kept.ask(Check(1, str(path), (), replay=True, before=str(kept.before)))["lacks"] == ["after"]
    assert kept.judged(path, kept.before, kept.after)[0].outcome == VerdictOutcome.ACCEPT
    shapes = kept.peer._own_shapes()
    state, made_up = OuterStateFile(kept.after), kept.folder / "made-up.safetensors"
    # of a copy of the model, what the steps changed is compared: next to the weights themselves all is near
    for kind, factor in [("exp_avg/", 3.0)] + [(COPY, 1.24)] * any(name.startswith(COPY) for name in shapes):
        factors = {name: factor if name.startswith(kind) else 1.0 for name in shapes}
        tensors = ((name, np.float32(factors[name]) * state.tensor(name)) for name in sorted(shapes))
        write_state(made_up, 2, shapes, tensors)
        path.write_bytes(data.replace(head, other).replace(true, blob_root(made_up)))
        found, seen = kept.judged(path, kept.before, made_up)
        assert (found.outcome, found.reason) == (VerdictOutcome.REJECT, Reason.NO_GAIN), (kind, seen)


@pytest.mark.parametrize("cheat", ["truncated", "longer", "nan", "infinite", "round", "shapes", "garbage", "huge"])
def test_what_is_no_state_of_the_run_costs_the_pay_alone(kept: KeptBench, cheat: str) -> None:
    shapes, state, path = kept.peer._own_shapes(), OuterStateFile(kept.before), kept.folder / "state.safetensors"
    tensors = {name: state.tensor(name).copy() for name in sorted(shapes)}
    name, data = next(one for one in shapes if one.startswith("exp_avg_sq/")), kept.before.read_bytes()
    if cheat in ("nan", "infinite", "huge"):
        value = {"nan": np.nan, "infinite": np.inf, "huge": -1.0}[cheat]  # whose root is no number: steps diverge
        tensors[name].reshape(-1)[:] = value
        write_state(path, 1, shapes, tensors.items())
    elif cheat == "shapes":
        write_state(path, 1, {**shapes, name: (1, 1)}, {**tensors, name: np.ones((1, 1), np.float32)}.items())
    elif cheat == "round":
        write_state(path, 2, shapes, tensors.items())
    else:
        made = {"truncated": data[:-4], "longer": data + bytes(4), "garbage": bytes(len(data))}
        path.write_bytes(made[cheat])
    found, _ = kept.judged(kept.paths[0], path)
    assert (found.outcome, found.reason) == (VerdictOutcome.REJECT, Reason.INNER_STATE), found
