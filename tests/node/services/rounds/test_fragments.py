"""Rounds that exchange a part of the tensors each, in a swarm in memory: peers are a round ahead of the list.

The rounds are test_rounds'.
"""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import trio

from node.services.rounds.states import OuterFiles
from node.training.contributing import COPY, blob_root
from node.training.jobs import Job, Train
from node.training.outer import OuterStateFile, write_state
from protocol.checks import Reason
from protocol.contribution import encode_contribution
from protocol.messages import VerdictIssued
from tests.node.services.rounds.test_rounds import (  # noqa: F401 - fixtures
    GRACE,
    ROUND,
    Lab,
    Node,
    Town,
    nothing,
    stopped_over_rounds,
    until,
    until_beats_say,
    with_anothers_moments,
    withheld,
    without_threads,
)

FRAGMENTS = 4
HOW = f'exchange = "float32"\nfragments = {FRAGMENTS}\nround_seconds = 12\ngrace_seconds = 4'


def town_of(folder: Path, steps: int, how: str = HOW, validators: int = 2) -> Town:
    return Town(folder, validators=validators, steps=steps, how=how, inner=2 * FRAGMENTS)


async def test_replicas_stay_equal_while_peers_are_a_round_ahead_and_one_that_missed_rounds_or_joins_takes_part(
    tmp_path: Path, autojump_clock: Any
) -> None:
    town, ahead, late = town_of(tmp_path, steps=8), set[int](), list[Node]()

    async def watched(lab: Lab, job: Job, found: dict[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        if isinstance(job, Train) and job.round > steady.rounds.newest:
            ahead.add(job.round)

    steady, stopped = town.add(2, bend=watched), town.add(3, bend=stopped_over_rounds)

    async def story(nursery: trio.Nursery) -> None:
        await until(lambda: steady.rounds.newest == 4)
        await until_beats_say(steady, 4)
        late.append(town.add(5))
        nursery.start_soon(late[0].live)

    await town.play(story)
    roots = town.roots()
    assert set(roots) == set(range(9)) and all(len(each) == 1 for each in roots.values()), roots
    assert steady.counts() == {"accepted": 8}, steady.counts()
    assert len(ahead) >= 3, ahead  # its steps did not wait for the list, but where it waited for the one that stopped
    figures = steady.rounds.figures
    assert all(one.seconds <= ROUND + GRACE + 5 for one in figures.values()), figures
    for node, least in ((stopped, 4), (late[0], 2)):  # back, and new: both begin at an outer state
        counts = node.counts()
        assert counts["accepted"] >= least and set(counts) <= {"accepted", "committed"}, counts
    assert not {1, 2} & set(late[0].roots)  # it jumped
    assert not [one for node in town.nodes for one in node.court.slashed]
    whole = 4 * sum(int(np.prod(shape)) for shape in steady.rounds.adding.shapes.values())
    assert steady.rounds.adding.most_bytes < whole / FRAGMENTS * 1.6 + (1 << 18)
    assert all(one.bits < 32 / FRAGMENTS * 1.6 + 1 for one in figures.values()), figures


async def test_one_peer_trains_as_it_would_alone(
    tmp_path: Path, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OuterFiles, "forget", lambda self, round_: None)
    rounds = 2 * FRAGMENTS
    town = town_of(tmp_path, steps=rounds, validators=1)
    worker = town.add(2)
    await town.play(nothing)
    assert worker.counts() == {"accepted": rounds}
    states = [OuterStateFile(worker.rounds.files.path(round_)) for round_ in range(rounds + 1)]
    learner, data, sent = town.peer._learner, town.peer._data, town.peer._sent
    learner.load(states[0].tensor)
    learner.begin(None)
    replica_id = worker.manager.services[1].replica_id
    for round_ in range(rounds):
        for step in (2 * round_, 2 * round_ + 1):
            learner.step(data.rows(replica_id, step), step)
        for name, values in learner.weights():
            before, after = (states[round_ + one].tensor(name).reshape(-1) for one in (0, 1))
            if name in sent(round_):
                assert np.allclose(after, values, atol=1e-5) and not (before == after).all(), (round_, name)
            else:
                assert (before == after).all(), (round_, name)


async def lies(lab: Lab, job: Job, found: dict[str, Any]) -> None:
    """In the second round: honest steps, and then a copy of the model that is no outcome of them. Later: half of the
    steps, sold as all."""
    await trio.lowlevel.checkpoint()
    if not isinstance(job, Train) or not job.round:
        return
    lab.town.hand_over(lab)
    peer, path, own, shapes = lab.town.peer, Path(found["path"]), Path(found["own"]), lab.town.peer._own_shapes()
    header = peer._decoded(path, peer._begun(job.round), job.round).header
    if job.round == 1:
        state = OuterStateFile(own)
        tensors = {name: state.tensor(name) * np.float32(1.5 if name.startswith(COPY) else 1) for name in state.shapes}
        write_state(own, job.round + 1, shapes, ((name, tensors[name]) for name in sorted(shapes)))
        _written_again(lab, job, path, inner=(header.inner[0], blob_root(own)))
    else:
        path.unlink()
        peer._contribute(job.round, job.replica_id, 0.0, fresh=job.fresh)
        _written_again(lab, job, path, tokens=header.tokens, stretches=header.stretches)


def _written_again(lab: Lab, job: Train, path: Path, **header: Any) -> None:
    peer = lab.town.peer
    made = peer._decoded(path, peer._begun(job.round), job.round)
    tensors = {name: made.tensor(name).copy() for name in made.shapes}
    said = msgspec.structs.replace(made.header, **header)
    path.write_bytes(b"".join(encode_contribution(said, tensors, made.form)))


async def test_half_of_the_steps_false_copies_and_anothers_moments_are_found_and_nobody_builds_on_them(
    tmp_path: Path, autojump_clock: Any
) -> None:
    town = town_of(tmp_path, steps=4, how=HOW.replace("12", "60"))  # so long that what is withheld is judged in time
    fresh = set[int]()

    async def lies_and_tells(lab: Lab, job: Job, found: dict[str, Any]) -> None:
        await lies(lab, job, found)
        fresh.update([job.round] if isinstance(job, Train) and job.fresh else [])

    honest, liar = town.add(2), town.add(4, bend=lies_and_tells)
    silent, thief = town.add(5, bend=withheld), town.add(6, bend=with_anothers_moments)
    await town.play(nothing)
    validator = next(one for one in town.nodes if one.role == "validator")
    assert all(len(each) == 1 for each in town.roots().values())
    assert honest.counts() == {"accepted": 4}, honest.counts()
    slashed = {(who, why) for node in town.nodes for who, why, _ in node.court.slashed}
    assert slashed == {(liar.key.address, Reason.NOT_REPRODUCED)}
    register, vote_set = validator.context.state.register, validator.context.state.vote_set
    found = {work.round: vote_set.state(work.id).value for work in register.of(liar.key.address)}
    assert (found[0], found[1], found[3]) == ("accepted", "rejected", "rejected"), found
    # Steps that had begun with the false copy are not sent: they would be refused. Those after the verdict begin anew.
    assert 2 not in found or 2 in fresh
    verdicts = [one.message.verdict for one in validator.context.board.messages(VerdictIssued)]
    for node in (silent, thief):
        assert {one.reason for one in verdicts if one.node == node.key.address} == {Reason.NONE, Reason.INNER_STATE}
        assert node.counts()["accepted"] >= 1
