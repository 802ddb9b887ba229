"""The dishonest nodes really do what they are said to do: their services on a network in memory, heard by a court.

What honest nodes make of it stands in `validators/test_register_attacks.py`; whole swarms with them are played by
`benchmarks.live_register`.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from cli.demo.cast import DemoOptions, Scene, cast, join_command, nodes
from node.run.assets import Run
from node.services.context import Context
from node.services.judging.judge import Validator
from node.swarm.vote_set import FileState
from protocol.earnings import most_files
from protocol.identity import Address
from protocol.messages import PolicyAnnounced, RolloutCommitted, Signed
from protocol.statements import WorkCommitment, sign
from tests.attacks.validators.court import (
    DOMAIN,
    OTHER,
    POOL,
    Court,
    InlineJournal,
    Seat,
    policy_root,
    root_of,
)
from tests.cheats.nodes import (
    FARTHEST,
    NODES,
    SPAM_RATE,
    Attack,
    CommitmentSpam,
    CopiedRoots,
    CopiedRootsRealPolicy,
    CopiedRootsSizeOne,
    Decoy,
    IndexSpam,
    PolicyEcho,
    Silencing,
    made_up,
    whisper,
)
from tests.node.networks import real

__all__ = ["real"]

Commitment = Signed[RolloutCommitted]


def context_of(court: Court, seat: Seat) -> Context:
    """What the services of a node at this seat are given."""
    return Context(
        key=seat.key,
        domain=DOMAIN,
        pool=POOL,
        run=Run(court.run, bytes(32), b"", Path("/")),
        board=seat.board,
        blobs=court.blobs,
        journal=InlineJournal(),
        membership=seat.membership,
        policy_cache=None,  # type: ignore[arg-type]
        jury=seat.jury,
    )


def heard(court: Court, author: Address = OTHER.address) -> list[Commitment]:
    """What the trainer has heard of one author's commitments."""
    return [one for one in court.trainer.board.messages(RolloutCommitted) if one.author == author]


async def beside(nursery: trio.Nursery, kind: Callable[[Context], Attack]) -> tuple[Court, Context]:
    """A court with one validator, and an attacker at its second worker's seat."""
    court = Court([Validator], quorum=1)
    await court.open(nursery)
    context = context_of(court, court.workers[1])
    await kind(context).start(nursery)
    return court, context


@pytest.mark.parametrize(
    ("kind", "size", "slot"),
    [
        (CopiedRoots, 9, (made_up(root_of()), 0)),
        (CopiedRootsSizeOne, 1, (made_up(root_of()), 0)),
        (CopiedRootsRealPolicy, 9, (policy_root(0), 0)),
        (Silencing, 9, (policy_root(0), 1)),
    ],
)
async def test_a_copier_names_anothers_file_in_a_slot_of_its_own(
    autojump_clock, kind: type[Attack], size: int, slot: tuple[bytes, int]
) -> None:
    async with trio.open_nursery() as nursery:
        court, _ = await beside(nursery, kind)
        work = await court.commit()
        await trio.sleep(5)
        (copy,) = heard(court)
        said = copy.message.commitment
        assert (said.file_root, said.units, copy.message.size) == (root_of(), 100, size)
        assert (said.policy_root, said.index) == slot
        assert court.trainer.jury.state.vote_set.state(work) is FileState.ACCEPTED
        nursery.cancel_scope.cancel()


async def test_a_decoy_is_in_slots_that_its_node_does_not_use_again(autojump_clock) -> None:
    async with trio.open_nursery() as nursery:
        court, context = await beside(nursery, Decoy)
        commitment = WorkCommitment(POOL, OTHER.address, policy_root(0), 0, root_of(key=OTHER), 100)
        signature = sign(OTHER, DOMAIN, commitment)
        await context.board.post(RolloutCommitted(pool=POOL, commitment=commitment, signature=signature, size=9))
        await trio.sleep(1)
        said = [one.message.commitment for one in heard(court)]
        assert {one.file_root for one in said} == {root_of(key=OTHER)}
        assert {(one.policy_root, one.index) for one in said} == {
            (policy_root(0), 0),
            (policy_root(0), 1),
            (made_up(root_of(key=OTHER)), 0),
        }
        assert context.journal.count_said("commitment", policy_root(0)) == 1, "so the next index is not the decoy's"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", [CommitmentSpam, IndexSpam])
async def test_spam_goes_past_its_own_journal_at_its_rate(autojump_clock, kind: type[Attack]) -> None:
    async with trio.open_nursery() as nursery:
        court, context = await beside(nursery, kind)
        await trio.sleep(4)
        arrived = [one.message.commitment for one in heard(court)]
        assert context.journal.count_said("commitment", b"") == 0
        assert 20 < len(arrived) <= 5 * SPAM_RATE
        if kind is IndexSpam:
            assert {one.policy_root for one in arrived} == {policy_root(0)}
            assert most_files(court.run) < max(one.index for one in arrived) < FARTHEST
        assert len(court.trainer.jury.state.register._works) == 0
        nursery.cancel_scope.cancel()


async def test_an_echo_repeats_what_others_said(autojump_clock, monkeypatch: pytest.MonkeyPatch) -> None:
    async with trio.open_nursery() as nursery:
        court = Court([Validator], quorum=1)
        await court.open(nursery)
        context, said = context_of(court, court.workers[1]), []

        async def publish(topic: str, data: bytes) -> None:
            await trio.lowlevel.checkpoint()
            said.append(data)

        monkeypatch.setattr(court.workers[1].network, "publish", publish)
        await PolicyEcho(context).start(nursery)
        await trio.sleep(1)
        (policy,) = court.trainer.board.messages(PolicyAnnounced)
        assert said.count(policy.raw) > 10
        assert not any(court.workers[1].board.opened(raw).author == OTHER.address for raw in said)
        nursery.cancel_scope.cancel()


async def test_a_whisper_reaches_one_peer_before_everybody(real) -> None:
    """Of three nodes: what is handed to one peer only is heard by that one first."""
    speaker, hearer, other = real.make(), real.make(), real.make()
    order: list[tuple[Address, bytes]] = []
    for node in (speaker, hearer, other):
        node.subscribe("t", lambda _, data, who=node.address: order.append((who, data)) is None)
    await real.start(speaker, hearer, other)
    await real.introduce(speaker, hearer, other)
    with trio.fail_after(20):
        while (other.address, b"warm") not in order or (hearer.address, b"warm") not in order:
            await speaker.publish("t", b"warm")
            await trio.sleep(0.1)
        await whisper(speaker, hearer.address, "t", b"secret")
    await real.until(lambda: {(hearer.address, b"secret"), (other.address, b"secret")} <= {*order})
    assert order.index((hearer.address, b"secret")) < order.index((other.address, b"secret"))


def test_the_demo_starts_them_by_name_as_whole_nodes(tmp_path: Path) -> None:
    assert list(nodes()) == list(NODES)
    options = DemoOptions(tmp_path, workers=1, cheats=("decoy", "own-problems"))
    commands = [join_command(one, Scene(tmp_path), Path("net.toml"), 1) for one in cast(options)]
    assert [one[1:4] for one in map(list, commands)] == [
        *([["-m", "cli", "join"]] * 3),
        ["-m", "tests.cheats.nodes", "decoy"],
        ["-m", "cli", "join"],
    ]
    assert "--engine-command" not in commands[3] and "--engine-command" in commands[4]


def test_every_attack_says_in_one_line_what_it_does() -> None:
    attacks = [kind for node in NODES.values() for kind in node.services if issubclass(kind, Attack)]
    assert len(attacks) == len(NODES)
    assert all(kind.__doc__ and len(kind.__doc__.splitlines()) == 1 for kind in attacks)
