"""A member that is no program of ours: js-libp2p, written from docs/other-programs.md."""

import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
import trio

from contracts.bindings import PoolParams
from contracts.deploy import TOKEN
from node.chain.faucet import DevnetFaucet
from node.chain.follower import EventFollower
from node.member import Participant, open_member
from node.network.host import Libp2pNetwork
from node.services.membership.events import Events
from node.state.journal import Journal
from node.weights.publish import Publisher, StepWord
from protocol.identity import NodeKey
from protocol.manifest import PolicyStatement
from protocol.policy import describe_tensors, encode_image, policy_root
from protocol.statements import sign
from tests.clients.conftest import ROOT

RUN_ROOT = bytes(range(32))


def test_it_understands_every_vector_and_makes_them_byte_by_byte(javascript) -> None:
    done = subprocess.run(
        javascript("vectors.mjs", str(ROOT / "docs" / "vectors.json")), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "refused 5" in done.stdout.splitlines()


async def publish(member: Participant, directory: Path, step: int) -> tuple[bytes, bytes]:
    """A policy of more than one piece: its root, and its image."""
    tensors = {"embed.weight": (np.arange(400_000, dtype=np.uint32) % (65_000 + step)).astype("<u2").reshape(400, 1000)}
    root = policy_root(step, describe_tensors(tensors))
    said = PolicyStatement(member.pool, 0, step, 0, bytes(32), root, bytes(32), bytes(32))
    word = StepWord(said, sign(member.key, member.domain, said.commitment(member.key.address)))
    image = directory / "image"
    image.write_bytes(encode_image(tensors))
    journal = Journal(directory / "journal.sqlite")
    try:
        workshop, store = directory / "building", member.blob_service.store
        publisher = Publisher(store, member.board, journal, RUN_ROOT, member.pool, workshop=workshop)
        await publisher.publish(step, image, word)
    finally:
        journal.close()
    return root, encode_image(tensors)


async def events_of(process: trio.Process) -> AsyncIterator[dict]:
    assert process.stdout is not None
    buffer = b""
    async for data in process.stdout:
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            yield json.loads(line)


@pytest.mark.parametrize("honest", [True, False], ids=["an honest leader", "a leader that is none"])
async def test_it_joins_is_believed_and_fetches_a_policy_verified(
    javascript, people, tmp_path: Path, honest: bool
) -> None:
    chain, key = people.client, people.node
    params = PoolParams(
        manager=key.address if honest else people.manager.address,
        run_root=RUN_ROOT,
        reward_per_unit=10**15,
        window=60,
        epoch_seconds=10,
        slash_amount=50 * TOKEN,
        validators=(people.validator.address,),
    )
    pool = await chain.create_pool(params, key=people.manager)
    provider, guest = NodeKey.generate(), NodeKey.generate()
    for one, token in ((provider, 100 * TOKEN), (guest, 0)):
        await DevnetFaucet(chain).fund(one.address, coin=10**18, token=token)
        (tmp_path / one.address).write_text(one.secret.hex())
    network = Libp2pNetwork(key, "/ip4/127.0.0.1/tcp/0")
    info = await chain.pool(pool)
    async with open_member(key, chain.domain, info, network, tmp_path / "blobs", quota=10**9) as member:
        follower = EventFollower(chain, pool, tmp_path / "chain.sqlite", poll=0.05)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.listen)
            await chain.join(pool, network.contacts()[0])
            await Events(follower, member.membership).start(nursery)
            if not honest:  # what it publishes, its own board takes for the moment
                member.membership.terms.take(1, key.address, 0, bytes(32), 2**40)
            root, image = await publish(member, tmp_path, 3)
            command = javascript(
                "member.mjs",
                *("--rpc", chain.url, "--swarm", chain.domain.contract, "--pool", str(pool), "--once"),
                *("--provider-key", str(tmp_path / provider.address), "--node-key", str(tmp_path / guest.address)),
                *("--out", str(tmp_path / "fetched")),
            )
            process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
            told: list[dict] = []
            with trio.move_on_after(120):
                async with aclosing(events_of(process)) as events:
                    async for event in events:
                        told.append(event)
                        if not honest and event["event"] == "heartbeat" and event["count"] > 2:
                            break
            process.kill()
            await process.wait()
            await process.stdout.aclose()  # type: ignore[union-attr]
            row = member.membership.table.get(guest.address)
            nursery.cancel_scope.cancel()
    # believed: its own signed word stands in the table of members, whoever leads
    assert row is not None and row.beat is not None, told
    assert row.beat.role == "worker" and row.beat.contact.startswith("/ip4")
    policies = [one for one in told if one["event"] == "policy"]
    if not honest:
        assert not policies, told
        return
    assert [(one["step"], one["root"]) for one in policies] == [(3, root.hex())], told
    assert await trio.Path(policies[0]["path"]).read_bytes() == image
    assert row.beat.policy_step == 3
