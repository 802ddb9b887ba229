"""What a node of each role consists of: every row of the table, opened at a real workplace on a network in memory."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import msgspec
import pytest
import structlog
import structlog.testing
import trio

from contracts.bindings import PoolInfo
from node.chain.ledger import Ledger
from node.chain.profile import NetworkProfile
from node.config import NodeConfig, Role
from node.daemon import REPLICA_ROLES, ROLES, Services
from node.hardware import Hardware
from node.member import open_member
from node.processes.forkserver import Anew
from node.run.assets import Run
from node.services.base import Service, ServiceManager
from node.services.context import make_context
from node.services.heartbeat import HeartbeatSender
from node.services.run_progress import RunProgress
from node.services.training.record import StepMetrics
from node.services.workplace import Workplace
from node.state.journal import Journal
from node.status import StatusPage, checked, joined
from node.status_schema import DaemonStatus
from node.swarm.facts import RunTold
from node.web.front import ApiServer
from node.web.host import HttpHost
from protocol.identity import NodeKey
from protocol.messages import Heartbeat
from protocol.pretraining import Diloco
from protocol.run import EnvironmentSpec, RunSpec, encode_run
from protocol.statements import Domain
from tests.memory_network import MemoryHub, MemoryNetwork

KEY, OTHER = (NodeKey(bytes([n]) * 32) for n in (1, 2))
DOMAIN = Domain(31337, OTHER.address)
RUN = RunSpec(name="t", environment=EnvironmentSpec(name="sort"))
POOL = dict.fromkeys(PoolInfo.__struct_fields__, 0) | {
    "id": 4,
    "manager": KEY.address,
    "validators": (OTHER.address,),
    "bootnodes": (),
}
EVERYBODY_ELSE = (
    "rest-keeper", "continuity", "counter-keeper", "blob-repairer", "jury", "heartbeat", "run-progress",
    "hardware-prover", "catalogue", "leaf-reader",
    "claimer", "departure", "claim-carrier",
)  # fmt: skip
WORK = {
    "files_committed": 0,
    "files_accepted": 0,
    "files_rejected": 0,
    "rejected_by_reason": {},
    "units": 0,
    "tokens_per_second": 0.0,
    "generate_seconds": 0.0,
    "last_reward_estimate": None,
    "waiting": None,
}


class ReadyEngine:
    """A child that is up and admitted."""

    name, engine_name, pid, restarts, used = "engine", "double", 7, 0, {"rollout": 1.23}

    def check_permitted(self, *_: object) -> None: ...


CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
}


@asynccontextmanager
async def workplace(role: Role, directory: Path, spec: RunSpec = RUN, **config: Any) -> AsyncIterator[Workplace]:
    pool: Any = PoolInfo(**POOL)  # type: ignore[arg-type]
    network = MemoryNetwork(KEY, MemoryHub())
    chain: Any = SimpleNamespace(profile=NetworkProfile(name="t", chain_id=31337, rpc_urls=()))
    (directory / "assets" / "model").mkdir(parents=True)
    (directory / "assets" / "model" / "config.json").write_text(json.dumps(CONFIG))  # by which a learner is planned
    run = Run(spec, bytes(32), encode_run(spec), directory / "assets")
    journal = Journal(directory / "journal.sqlite")
    async with open_member(KEY, DOMAIN, pool, network, directory / "blobs", quota=1 << 24) as member:
        context = make_context(member, run, journal)
        settings = NodeConfig(state_dir=directory, home=directory, **config)
        hardware = Hardware(2, 1 << 34, ())
        own = (settings, role, hardware, chain, member, context, ServiceManager(), directory)
        async with trio.open_nursery() as nursery:
            web = HttpHost()
            await nursery.start(web.run)
            control = ApiServer(directory / "control", DaemonStatus)
            place = Workplace(*own, Ledger(KEY.address), web, Anew(), control)
            place.__dict__["engine"] = ReadyEngine()
            yield place
            nursery.cancel_scope.cancel()
    journal.close()


async def crew_of(place: Workplace, roles: Mapping[Role, Services] = ROLES) -> ServiceManager:
    """Everybody of a role, as if they ran."""
    for kind in roles[place.role]:
        service = await kind.open(place)
        if service is not None:
            place.manager.services.append(service)
    return place.manager


@pytest.mark.parametrize(
    ("role", "names"),
    [
        (
            "worker",
            (
                "rest-keeper counter-keeper blob-repairer jury heartbeat continuity usage-tracker run-progress "
                "catalogue engine policies answer-server rollout-worker task-worker step-auditor leaf-reader claimer "
                "departure earnings-reporter"
            ).split(),
        ),
        (
            "validator",
            [
                "rest-keeper",
                "counter-keeper",
                "blob-repairer",
                "jury",
                "heartbeat",
                "continuity",
                "usage-tracker",
                "run-progress",
                "hardware-prover",
                "catalogue",
                "engine",
                "policies",
                "answer-server",
                "validator",
                "step-auditor",
                "certifier",
                "earnings-tabler",
                "leaf-reader",
                "claimer",
                "departure",
                "claim-carrier",
                "chair",
            ],
        ),
        (
            "trainer",
            [
                "rest-keeper",
                "counter-keeper",
                "blob-repairer",
                "jury",
                "heartbeat",
                "continuity",
                "usage-tracker",
                "run-progress",
                "hardware-prover",
                "catalogue",
                "leaf-reader",
                "claimer",
                "departure",
                "claim-carrier",
                "pool-keeper",
                "task-scheduler",
                "checkpoint-server",
                "step-auditor",
                "trainer",
            ],
        ),
    ],
)
async def test_every_role_can_be_opened_and_is_what_its_row_says(role: Role, names: list[str], tmp_path: Path) -> None:
    async with workplace(role, tmp_path) as place:
        assert (await crew_of(place)).names == names


@pytest.mark.parametrize("role", ROLES)
def test_a_service_has_a_name_of_its_own_and_can_run(role: Role) -> None:
    kinds = ROLES[role]
    assert len({kind.name for kind in kinds}) == len(kinds)
    for kind in kinds:
        if kind.open.__func__ is Service.open.__func__:  # type: ignore[attr-defined]
            needed = {one.name for one in signature(kind).parameters.values() if one.default is one.empty}
            assert needed <= {*dir(Workplace)}, kind
    idle = {kind.name for kind in kinds if (kind.run, kind.start) == (Service.run, Service.start)}
    assert idle <= {"answer-server", "gateway"}, "who does nothing by itself answers"


async def test_the_gateway_is_opened_only_where_it_is_asked_for(tmp_path: Path) -> None:
    asked = {"gateway": "127.0.0.1:0", "gateway_tls": False, "gateway_announce": "example.org:80"}
    async with workplace("trainer", tmp_path, **asked) as place:
        manager = await crew_of(place)
        assert manager.names == [
            "rest-keeper",
            "counter-keeper",
            "blob-repairer",
            "jury",
            "heartbeat",
            "continuity",
            "usage-tracker",
            "gateway",
            "run-progress",
            "hardware-prover",
            "catalogue",
            "leaf-reader",
            "claimer",
            "departure",
            "claim-carrier",
            "pool-keeper",
            "task-scheduler",
            "checkpoint-server",
            "step-auditor",
            "trainer",
        ]
        assert manager.beat()["gateway"] == "http://example.org:80"


@pytest.mark.parametrize(
    ("role", "names"),
    [
        ("worker", ["rounds", "engine", "rollout-worker", "earnings-reporter"]),
        ("validator", ["rounds", "engine", "validator", "round-closer", "certifier", "earnings-tabler"]),
        ("trainer", ["rounds", "replica-trainer", "pool-keeper", "state-publisher"]),
    ],
)
async def test_several_trainers_of_rollouts_have_roles_of_their_own(
    role: Role, names: list[str], tmp_path: Path
) -> None:
    run = msgspec.structs.replace(RUN, diloco=Diloco())
    async with workplace(role, tmp_path, run) as place:
        found = (await crew_of(place, REPLICA_ROLES)).names
        assert "usage-tracker" in found, "what each replica used is counted at every node"
        assert [one for one in found if one not in (*EVERYBODY_ELSE, "usage-tracker")] == names


@pytest.mark.parametrize("role", ROLES)
async def test_the_status_has_the_same_sections_whatever_runs(role: Role, tmp_path: Path) -> None:
    async with workplace(role, tmp_path) as place:
        page = StatusPage(place.manager)
        once = page.render()
        assert checked(msgspec.to_builtins(once)) == once
        page.connect(place.member)
        page.work_for(place.context)
        manager = await crew_of(place)
        status = msgspec.to_builtins(page.render())
        assert status["services"] == manager.names
        assert status["work"] == WORK
        assert (status["training"] is not None) == (role == "trainer")
        children = ["learner", "evaluator"] if role == "trainer" else ["engine"]
        assert [(one["name"], one["restarts"]) for one in status["processes"]] == [(name, 0) for name in children]
        assert status["node"]["engine"] == ("torch" if role == "trainer" else "double")
        assert (
            (status["engine"] is None) if role == "trainer" else status["engine"]["seconds_by_work"] == {"rollout": 1.2}
        )
        assert status["validator_audits"]["quarantined"] == []


@pytest.mark.parametrize("role", ROLES)
async def test_a_heartbeat_says_what_the_services_say(role: Role, tmp_path: Path) -> None:
    async with workplace(role, tmp_path) as place:
        manager = await crew_of(place)
        manager.state = "working"
        heart = next(service for service in manager.services if isinstance(service, HeartbeatSender))
        beat = heart.message(2.0)
        assert (beat.role, beat.state, beat.contact, beat.count) == (
            role,
            "working",
            place.member.network.contacts()[0],
            0,
        )
        assert manager.beat().keys() <= set(Heartbeat.__struct_fields__)
        assert {name: getattr(beat, name) for name in manager.beat()} == manager.beat()
        assert beat.policy_step == -1 and not beat.finished and beat.engine


async def test_a_trainer_that_is_done_says_so_in_status_and_heartbeat(tmp_path: Path) -> None:
    async with workplace("trainer", tmp_path) as place:
        manager = await crew_of(place)
        manager.state = "working"
        trainer: Any = manager.services[-1]
        trainer.record.metrics.extend(StepMetrics(step, eval_reward=step / 4) for step in range(4))
        assert (manager.beat()["finished"], manager.beat()["reward"]) == (False, 0.625)
        assert StatusPage(manager).render().run.final_reward is None
        trainer.record.finish()
        page = StatusPage(manager).render()
        assert page.node.state == "finished"
        assert (page.run.over, page.run.final_reward) == (True, 0.625)
        assert (manager.beat()["finished"], manager.beat()["reward"]) == (True, 0.625)


async def test_a_finished_run_tells_everybody_once_and_a_lengthened_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A logger of its own: once a test before has set up a daemon's logs, the module's is bound to them for good.
    monkeypatch.setattr("node.services.run_progress.log", structlog.get_logger())
    async with workplace("worker", tmp_path) as place:
        manager = await crew_of(place)
        page = StatusPage(manager)
        ending = next(service for service in manager.services if isinstance(service, RunProgress))
        going = RunTold("0x" + "11" * 20, over=False, step=9, reward=0.4)
        over = msgspec.structs.replace(going, over=True, reward=0.701)
        told: list[tuple[Any, ...]] = []
        with structlog.testing.capture_logs() as logs:
            for beat in (going, over, over, going):
                ending._hear(beat)
                told.append(tuple(getattr(page.render().run, name) for name in ("over", "reward", "final_reward")))
        assert told == [(False, 0.4, None), (True, 0.701, 0.701), (True, 0.701, 0.701), (False, 0.4, None)]
        (event,) = [one for one in logs if one["event"] == "run.over"]
        assert (event["step"], event["reward"]) == (9, 0.701) and "weights fetch" in event["remedy"]


def test_sections_are_joined_field_by_field_and_row_by_row() -> None:
    assert joined({"a": 1, "b": 2}, {"b": 3}) == {"a": 1, "b": 3}
    assert joined([1], [2]) == [1, 2]
    assert joined(None, {"a": 1}) == {"a": 1}


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ({"mood": {}}, "mood"),
        ({"node": {"mood": "good"}}, "node.mood"),
        ({"processes": [{"name": "engine", "mood": "good"}]}, "processes.mood"),
        ({"leader": {"step_verdicts": {"bad": [{"step": 3, "mood": 1}]}}}, "leader.step_verdicts.bad.mood"),
    ],
)
def test_a_service_that_says_what_no_reader_could_find_is_told_so(said: dict[str, Any], what: str) -> None:
    with pytest.raises(TypeError, match=f"no field {what}"):
        checked(said)
    with pytest.raises(msgspec.ValidationError, match="Expected `int`"):
        checked({"node": {"pid": "4711"}})


async def test_a_page_whose_shape_was_looked_through_is_looked_through_again_once_it_is_another() -> None:
    class Moody(Service):
        name = "moody"
        said: ClassVar[dict[str, Any]] = {"node": {"version": "1"}, "processes": []}

        async def run(self) -> None:
            await trio.sleep_forever()

        def status(self) -> dict[str, Any]:
            return self.said

    manager = ServiceManager()
    manager.services.append(Moody())
    page = StatusPage(manager)
    assert page.render().node.version == page.render().node.version == "1"
    Moody.said = {"node": {"version": "2", "mood": "good"}}
    with pytest.raises(TypeError, match=r"no field node\.mood"):
        page.render()


def test_tables_by_step_do_not_fill_the_memory_of_a_page() -> None:
    """Each page that is like none before is looked through, and remembered."""

    class Offering(Service):
        name = "offering"
        step = 0

        async def run(self) -> None:
            await trio.sleep_forever()

        def status(self) -> dict[str, Any]:
            self.step += 1
            return {"checkpoints": {"bytes_by_step": {str(self.step): 1}}, "board": {f"word {self.step}": 1}}

    manager = ServiceManager()
    manager.services.append(Offering())
    page = StatusPage(manager)
    pages = [page.render().checkpoints for _ in range(200)]
    assert pages[0] and pages[-1] and pages[-1].bytes_by_step == {"200": 1}
    assert len(page._checked) == 64, "words without end are forgotten"
    Offering.status = lambda self: {"checkpoints": {"bytes_by_step": {str(self.step): 1}}}  # type: ignore[method-assign]
    other = StatusPage(manager)
    for step in range(200):
        manager.services[0].step = step  # type: ignore[attr-defined]
        other.render()
    assert len(other._checked) == 1
