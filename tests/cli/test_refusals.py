"""What is refused is refused at once: nothing heavy is imported for it, and nothing is written."""

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from benchmarks.refusals import CASES, HEAVY, ROOT, Case, environment_of, files_of, scene, words_of
from contracts.deploy import TOKEN
from node.chain.client import ChainClient
from node.chain.faucet import DevnetFaucet
from node.chain.profile import NetworkProfile
from node.chain.setup import prepare_participant
from node.member import Participant, open_member
from node.network.host import Libp2pNetwork
from node.preflight.reach import is_over
from protocol.identity import NodeKey
from protocol.messages import Heartbeat
from tests.node.chain.chains import Participants, deployed_chain

FRESH = """
import json, os, sys
import cli.main, node.config, node.preflight.early, node.preflight.chain
cli.main._command()
for number, words in enumerate(json.loads(sys.argv[1])):
    if os.fork() == 0:
        os.dup2(os.open(f"{sys.argv[2]}/{number}", os.O_WRONLY | os.O_CREAT), 2)
        code = cli.main.main(words)
        sys.stderr.write("\\n" + json.dumps([code, list(sys.modules)]))
        sys.stderr.flush()
        os._exit(0)
    os.wait()
"""
"""A process of its own for each, forked from one that has imported what a look at the chain needs, and has made the
tree of commands as `--help` does, which takes a quarter of a second."""


@pytest.fixture(scope="module")
def chain(request: pytest.FixtureRequest) -> Iterator[NetworkProfile]:
    with deployed_chain(Path(request.config.cache.mkdir("anvil"))) as profile:  # type: ignore[union-attr]
        yield profile


@pytest.fixture(scope="module")
def people(chain: NetworkProfile) -> Participants:
    """Pool 1 is over."""

    async def prepare() -> Participants:
        people = Participants(ChainClient(chain, NodeKey.generate()))
        await people.prepare()
        await people.end()
        people.client.close()
        return people

    return trio.run(prepare)


@pytest.fixture(scope="module")
def told(
    chain: NetworkProfile, people: Participants, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[int, str, list[str]]]:
    """Exit code, error and modules of every case; and under "debris" what all of them together have left."""
    place, errors = tmp_path_factory.mktemp("place"), tmp_path_factory.mktemp("errors")
    with scene(place, chain):
        before = files_of(place)
        words = json.dumps([words_of(case, place) for case in CASES])
        environment = {**environment_of(place), "PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", FRESH, words, str(errors)], cwd=place, env=environment, check=True)
        debris = sorted(files_of(place) - before)
    found = {}
    for number, case in enumerate(CASES):
        text, _, last = (errors / str(number)).read_text().rpartition("\n")
        found[case.name] = (*json.loads(last)[:1], text, json.loads(last)[1])
    return {**found, "debris": (0, "", debris)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_cannot_be_is_refused_before_anything_heavy_is_imported(case: Case, told: dict[str, Any]) -> None:
    code, error, modules = told[case.name]
    assert (code, case.says in error) == (case.code, True), error
    assert "Traceback" not in error
    assert not {*HEAVY} & {*modules}


def test_refusals_leave_nothing_behind(told: dict[str, Any]) -> None:
    assert told["debris"][2] == []


async def test_who_looks_before_joining_hears_from_who_leads_whether_the_run_is_over(
    chain: NetworkProfile, tmp_path: Path
) -> None:
    """The manager, and then a trainer that the manager has given the chair."""
    people = Participants(ChainClient(chain, NodeKey.generate()))
    await people.prepare()
    client = people.client
    for leader, finished in ((people.manager, False), (NodeKey.generate(), True)):
        await prepare_participant(client, DevnetFaucet(client), NodeKey.generate(), leader, stake=100 * TOKEN)
        if leader is not people.manager:
            await client.seat_trainers(people.pool, (leader.address,), 60, 60, key=people.manager)
        pool, network = await client.pool(people.pool), Libp2pNetwork(leader, "/ip4/127.0.0.1/tcp/0", private=True)
        place = tmp_path / f"{finished}"
        async with (
            open_member(leader, client.domain, pool, network, place / "own", quota=1 << 20) as member,
            trio.open_nursery() as nursery,
        ):
            await client.join(pool.id, network.contacts()[0], key=leader)
            nursery.start_soon(member.listen)
            nursery.start_soon(_beat, member, finished)
            with trio.fail_after(60):
                assert await is_over(client, pool, place) is finished
                assert [one.holder for one in await client.terms(pool.id)] == [leader.address] * finished
            nursery.cancel_scope.cancel()
    client.close()


async def _beat(member: Participant, finished: bool) -> None:
    for count in itertools.count():
        beat = Heartbeat(
            pool=member.pool,
            boot=1 + finished,
            count=count,
            at=int(time.time() * 1000),
            role="trainer",
            state="working",
            contact=member.network.contacts()[0],
            policy_step=3,
            interval=0.2,
            finished=finished,
        )
        await member.board.post(beat)
        await trio.sleep(0.2)
