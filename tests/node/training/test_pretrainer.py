"""Rounds of several peers at a desk: what they learn, exact resume, and an outer state with the same bits for
everybody."""

import math
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from blake3 import blake3

from node.errors import RunFileError
from node.state.files import write_whole
from node.training import inner, pretrainer, trainer
from node.training.errors import TrainingError
from node.training.inner import InnerLearner
from node.training.lowering import AGAIN, in_words, read_notes
from node.training.memory import WHERE
from node.training.outer import OuterStateFile, apply_round
from node.training.pretrainer import Pretrainer
from node.training.settings import TrainerSettings
from node.training.spool import Spool
from node.training.text import TextModel
from node.training.world import World
from protocol.contribution import Contribution, ContributionHeader, Expected, decode_contribution
from protocol.exchange import form_of
from protocol.pretraining import Diloco
from protocol.run import RunSpec
from tests.node.training.texts import compiled, records, spool_of

WAYS = {
    "int4": "",
    "sparse": 'exchange = "sparse"',
    "reset": 'exchange = "int8"\ninner_state = "reset"',
    "momentum": 'exchange = "float32"\nouter_rate = 0.7\nouter_momentum = 0.9',
}


def train(run: RunSpec, spool: Spool) -> Pretrainer:
    pretrainer = Pretrainer(spool, run, TrainerSettings(), World())
    pretrainer.train()
    return pretrainer


class Killed(BaseException):
    """Stands for a kill -9: nothing that tidies up sees it."""


@pytest.mark.parametrize("way", [*WAYS, "muon"])
def test_peers_learn_and_go_on_exactly_after_they_are_killed(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = {"text": 'optimizer = "muon"'} if way == "muon" else {"rounds": WAYS[way]}
    run = compiled(tmp_path, inner=2, **more)
    through = spool_of(run, tmp_path / "through")
    train(run.spec, through)
    expected = records(through)
    assert expected[-1]["eval_loss"] < expected[0]["eval_loss"] - (0.05 if way == "sparse" else 0.5)
    assert expected[-1]["perplexity"] == pytest.approx(math.exp(expected[-1]["eval_loss"]))
    assert expected[1]["tokens"] == 2 * 2 * 64 and expected[1]["contributions"] == 2
    assert set(expected[1]["eval_loss_by_data"]) == {"counting", "letters"}

    killed, real, left = spool_of(run, tmp_path / "killed"), InnerLearner.step, [7]

    def step(self: InnerLearner, *given: object) -> tuple[float, float]:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        return real(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(InnerLearner, "step", step)
    with pytest.raises(Killed):
        train(run.spec, killed)
    assert len(records(killed)) == 2  # in the second round, with the second replica at work
    monkeypatch.setattr(InnerLearner, "step", real)
    train(run.spec, killed)
    assert records(killed) == expected
    assert not list((killed.root / "rounds" / "000001").glob("*.inc"))  # nothing is kept that no restart needs


def contributions(pretrainer: Pretrainer, run: RunSpec, round_: int, outer: OuterStateFile) -> list[Contribution]:
    assert run.diloco
    expected = Expected(pretrainer._root, {round_: outer.root}, 4, 256, 2)
    folder = pretrainer._rounds / f"{round_:06d}"
    return [
        decode_contribution(path.read_bytes(), outer.shapes, form_of(run.diloco), expected)
        for path in sorted(folder.glob("*.inc"))
    ]


def test_the_contributions_of_a_round_make_the_next_state_for_anybody(tmp_path: Path) -> None:
    run = compiled(tmp_path, steps=1, rounds='exchange = "float32"')  # int4 numbers add up exactly in any order
    spool = spool_of(run, tmp_path / "desk", peers=3)
    pretrainer = train(run.spec, spool)
    first, second = (OuterStateFile(pretrainer._outer_path(number)) for number in (0, 1))
    second.check()
    found = contributions(pretrainer, run.spec, 0, first)
    assert [one.header.replica_id for one in found] == [0, 1, 2]
    assert all(len(one.header.stretches) == 2 and one.header.tokens == 256 for one in found)
    assert len({one.header.stretches[0] for one in found}) == 1  # all begin alike, and
    assert len({one.header.stretches[1] for one in found}) == 3  # learn from rows of their own
    assert run.spec.diloco
    folder = pretrainer._rounds / "000000"
    ids = [blake3((folder / f"replica-{one.header.replica_id}.inc").read_bytes()).digest() for one in found]
    for number, order in enumerate(permutations(zip(ids, found, strict=True))):
        by_id = [one for _, one in sorted(order, key=lambda pair: pair[0])]
        assert apply_round(first, by_id, run.spec.diloco, tmp_path / f"state-{number}") == second.root
    backwards = [one for _, one in sorted(zip(ids, found, strict=True), key=lambda pair: pair[0], reverse=True)]
    assert apply_round(first, backwards, run.spec.diloco, tmp_path / "backwards") != second.root  # so the order matters


def test_a_stretch_of_a_reset_peer_can_be_replayed_from_public_data_alone(tmp_path: Path) -> None:
    run = compiled(tmp_path, rounds='exchange = "int8"\ninner_state = "reset"', steps=2)
    pretrainer = train(run.spec, spool_of(run, tmp_path / "desk"))
    outer = OuterStateFile(pretrainer._outer_path(1))
    claimed = contributions(pretrainer, run.spec, 1, outer)[1].header
    validator = Pretrainer(spool_of(run, tmp_path / "validator"), run.spec, TrainerSettings(), World())
    learner, data = validator._learner, validator._data
    learner.load(outer.tensor)
    learner.begin(None)
    assert learner.digest(4) == claimed.stretches[0]
    losses = [learner.step(data.rows(1, step), step)[0] for step in (4, 5)]
    assert losses[0] == claimed.loss_first and learner.digest(6) == claimed.stretches[1]
    learner.step(data.rows(0, 6), 6)
    assert learner.digest(6) != claimed.stretches[1]


def test_a_round_in_float32_of_one_peer_is_plain_training(tmp_path: Path) -> None:
    run = compiled(tmp_path, rounds='exchange = "float32"', steps=2)
    spool = spool_of(run, tmp_path / "desk", peers=1)
    pretrainer = train(run.spec, spool)
    learner, data = pretrainer._learner, pretrainer._data
    again = spool_of(run, tmp_path / "again", peers=1)
    start = Pretrainer(again, run.spec, TrainerSettings(), World())
    start._start()
    learner.load(OuterStateFile(start._outer_path(0)).tensor)
    learner.begin(None)
    for number in range(8):
        learner.step(data.rows(0, number), number)
    found = OuterStateFile(pretrainer._outer_path(2))
    for name, values in learner.weights():
        assert np.allclose(found.tensor(name).reshape(-1), values, atol=1e-6), name


FRAGMENTS = 'exchange = "float32"\nfragments = 2'


def test_fragments_of_one_peer_are_plain_training_and_each_round_exchanges_its_own(tmp_path: Path) -> None:
    run = compiled(tmp_path, rounds=FRAGMENTS, steps=6)
    pretrainer = Pretrainer(spool_of(run, tmp_path / "desk", peers=1), run.spec, TrainerSettings(), World())
    pretrainer._forget = lambda round_: None  # type: ignore[method-assign]
    pretrainer.train()
    states = [OuterStateFile(pretrainer._outer_path(number)) for number in range(7)]
    learner, data = pretrainer._learner, pretrainer._data
    learner.load(states[0].tensor)
    learner.begin(None)
    sent = [pretrainer._sent(0), pretrainer._sent(1)]
    assert sorted(sent[0] + sent[1]) == sorted(learner.shapes) and sent[0] and sent[1]
    counts = [sum(math.prod(learner.shapes[name]) for name in names) for names in sent]
    assert max(counts) < 2 * min(counts)
    for round_ in range(6):
        for step in (2 * round_, 2 * round_ + 1):
            learner.step(data.rows(0, step), step)
        for name, values in learner.weights():
            before, after = (states[round_ + one].tensor(name).reshape(-1) for one in (0, 1))
            if name in sent[round_ % 2]:  # what goes on locally while it is under way is not lost, and not added twice
                assert np.allclose(after, values, atol=1e-5) and not (before == after).all(), (round_, name)
            else:
                assert (before == after).all(), (round_, name)


def test_fragments_go_on_exactly_and_make_the_same_states_for_anybody(tmp_path: Path) -> None:
    run = compiled(tmp_path, rounds=FRAGMENTS.replace("float32", "sparse"), steps=5)
    through, killed = spool_of(run, tmp_path / "through"), spool_of(run, tmp_path / "killed")
    train(run.spec, through)
    assert records(through)[-1]["eval_loss"] < records(through)[0]["eval_loss"]
    pretrainer, real = Pretrainer(killed, run.spec, TrainerSettings(), World()), Pretrainer._write
    kept: list[tuple[OuterStateFile, list[Contribution]]] = []

    def write(self: Pretrainer, header: ContributionHeader, *given: object) -> None:
        if (header.round, header.replica_id) == (3, 1) and self is pretrainer:
            raise Killed
        real(self, header, *given)  # type: ignore[arg-type]

    def applied(outer: OuterStateFile, ids: list[Contribution], rules: Diloco, path: Path) -> bytes:
        kept.append((outer, ids))
        return apply_round(outer, ids, rules, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pretrainer, "_write", write)
        with pytest.raises(Killed):
            pretrainer.train()
        patch.setattr("node.training.pretrainer.apply_round", applied)
        train(run.spec, killed)
    assert records(killed) == records(through)
    assert [outer.round for outer, _ in kept] == [3, 4]
    for outer, ids in kept:
        assert set(ids[0].parts) == set(pretrainer._sent(outer.round)) and run.spec.diloco
        for order in permutations(sorted(ids, key=lambda one: one.header.replica_id)):
            in_order = sorted(order, key=lambda one: ids.index(one))
            root = apply_round(outer, in_order, run.spec.diloco, tmp_path / f"again-{outer.round}")
            assert root.hex() == records(through)[outer.round + 1]["outer_root"]


def test_one_fragment_is_the_run_without_the_word_and_too_many_are_refused(tmp_path: Path) -> None:
    one, none = (compiled(tmp_path, rounds=rounds).encoded for rounds in ("fragments = 1", ""))
    assert (
        one == none and b"fragments" not in none and b"fragments" in compiled(tmp_path, rounds="fragments = 2").encoded
    )
    none_spec = compiled(tmp_path).spec
    with pytest.raises(RunFileError, match="must divide inner_steps"):
        compiled(tmp_path, rounds="fragments = 3")
    assert none_spec.diloco
    many = msgspec.structs.replace(none_spec, diloco=msgspec.structs.replace(none_spec.diloco, fragments=64))
    with pytest.raises(TrainingError, match="leaves rounds nothing"):
        Pretrainer(spool_of(compiled(tmp_path), tmp_path / "many"), many, TrainerSettings(), World())


def test_rows_cut_into_smaller_passes_learn_the_same(tmp_path: Path) -> None:
    run = compiled(tmp_path, steps=1)
    losses = []
    for tokens in (16384, 16):
        spool = spool_of(run, tmp_path / str(tokens))
        Pretrainer(spool, run.spec, TrainerSettings(micro_batch_tokens=tokens), World()).train()
        losses.append(records(spool)[1]["eval_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def starve(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Memory runs out in a forward pass of more than so many rows."""
    real = inner.packed_rows

    def packed(part: Any, *given: Any) -> Any:
        batch = real(part, *given)
        if len(part) > rows:
            monkeypatch.setattr(TextModel, "forward", no_memory)
        return batch

    def no_memory(*_: Any) -> None:
        monkeypatch.setattr(TextModel, "forward", forward)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    forward = TextModel.forward
    monkeypatch.setattr(inner, "packed_rows", packed)


def test_where_memory_runs_out_rounds_go_on_in_smaller_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = compiled(tmp_path, steps=1)
    spool, plain = spool_of(run, tmp_path / "starved"), spool_of(run, tmp_path / "plain")
    train(run.spec, plain)
    starve(monkeypatch, rows=4)
    with pytest.raises(SystemExit) as ended:
        trainer._train(spool)
    assert ended.value.code == AGAIN and "training.memory_ran_out" in capfd.readouterr().err
    (note,) = read_notes(spool.lowered_path)
    assert (note.phase, note.tokens) == ("forward", 64), "half of the pass, not of what was allowed"
    assert "in the forward pass of step 0" in in_words(spool.lowered_path, TrainerSettings())
    trainer._train(spool)
    assert records(spool)[1]["eval_loss"] == pytest.approx(records(plain)[1]["eval_loss"], rel=1e-4)
    assert records(spool)[1]["computed_by"] != records(plain)[1]["computed_by"], "who replays it makes the same passes"


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer", "publish"])
def test_memory_that_runs_out_in_rounds_is_told_by_phase(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: dict[str, tuple[Any, str]] = {
        "forward": (TextModel, "forward"),
        "backward": (torch.Tensor, "backward"),
        "optimizer": (torch.optim.AdamW, "step"),
        "publish": (pretrainer, "stream_image"),
    }

    def fail(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    run = compiled(tmp_path, steps=1)
    spool = spool_of(run, tmp_path / "spool")
    # One row a pass: nothing is left to make smaller.
    write_whole(spool.settings_path, msgspec.json.encode({"micro_batch_tokens": 16}))
    monkeypatch.setattr(*places[phase], fail)
    with pytest.raises(TrainingError, match=WHERE[phase]) as caught:
        trainer._train(spool)
    assert not spool.lowered_path.exists() and "Tried to allocate 20.00 GiB" in caught.value.why


def test_a_damaged_state_is_not_trained_on(tmp_path: Path) -> None:
    run = compiled(tmp_path, steps=1)
    spool = spool_of(run, tmp_path / "desk", peers=1)
    pretrainer = train(run.spec, spool)
    path = pretrainer._outer_path(1)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    longer = msgspec.structs.replace(run.spec, recipe=msgspec.structs.replace(run.spec.recipe, steps=2))
    with pytest.raises(TrainingError, match="not those that its root names"):
        train(longer, spool)


def test_more_peers_than_seats_are_refused(tmp_path: Path) -> None:
    run = compiled(tmp_path)
    with pytest.raises(TrainingError, match="max_contributions = 4"):
        Pretrainer(spool_of(run, tmp_path / "desk", peers=5), run.spec, TrainerSettings(), World()).train()
