"""The engines of lying validators lie in the form that a swarm takes: what meets them live is more than noise."""

from pathlib import Path

import msgspec
import pytest

from node.inference.engines import torch_engine
from node.inference.errors import EngineError
from node.inference.session import EngineSession
from node.inference.wire import Inspect, Produce
from protocol.blobs import describe
from protocol.checks import Reason
from protocol.disputes import values_complete
from protocol.identity import NodeKey
from protocol.lots import pack_groups
from protocol.messages import MAX_VALUES, VerdictIssued
from protocol.rollout import decode_report
from protocol.run import RunSpec
from protocol.statements import Verdict, VerdictOutcome
from protocol.values import report_fault
from tests.cheats.liars import LIARS
from tests.node.inference.work import produced_by

KEY = NodeKey(b"\x07" * 32)


@pytest.fixture(scope="module")
def session(run: RunSpec, assets: Path, roots: list[bytes]) -> EngineSession:
    session = EngineSession(run, assets, torch_engine)
    session.keep(roots[-1], str(assets / "images" / "4"))
    return session


@pytest.fixture(scope="module")
def order(session: EngineSession, roots: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Inspect:
    """To look at an honest file."""
    path = tmp_path_factory.mktemp("liars") / "file"
    made = produced_by(session, Produce(policy_root=roots[-1], node=KEY.address, pool=3, index=5, out_path=str(path)))
    return Inspect(
        policy_root=roots[-1],
        node=KEY.address,
        pool=3,
        index=5,
        units=made.units,
        path=made.path,
        report_path=f"{made.path}.report",
        file_root=describe(path.read_bytes()).root,
    )


@pytest.mark.parametrize(("name", "reason"), [("false accuser", 5), ("statistical accuser", 8)])
def test_an_accuser_finds_a_fault_in_honest_work(
    session: EngineSession, order: Inspect, name: str, reason: int
) -> None:
    said = LIARS[name](session.at(order), order)
    assert said.outcome != VerdictOutcome.ACCEPT and Reason(said.reason) == reason and not said.report_path


@pytest.mark.parametrize("name", ["rubber stamp", "lazy stamp"])
def test_a_stamp_accepts_with_values_that_look_complete(
    session: EngineSession, order: Inspect, run: RunSpec, name: str
) -> None:
    said = LIARS[name](session.at(order), order)
    groups = run.rollout.prompts_per_file
    verdict = Verdict(3, KEY.address, order.policy_root, 5, order.file_root, order.units, said.outcome, said.reason)
    message = VerdictIssued(
        pool=3,
        verdict=verdict,
        signature=b"",
        checked=pack_groups(said.checked, groups),
        rewards=said.rewards,
        logprobs=said.logprobs,
    )
    assert said.outcome == VerdictOutcome.ACCEPT and values_complete(message, groups, MAX_VALUES)
    assert bool(said.checked) == bool(said.report_path) == (name == "rubber stamp")
    if said.report_path:
        report = decode_report(Path(said.report_path).read_bytes(), run.rollout.samples_per_file)
        assert report_fault(report, message, groups, run.rollout.group_size) is None


def test_a_stamp_accepts_what_cannot_even_be_read(session: EngineSession, order: Inspect, tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(b"noise")
    noise = msgspec.structs.replace(order, path=str(tmp_path / "noise"))
    assert LIARS["rubber stamp"](session, noise).outcome == VerdictOutcome.ACCEPT


def test_the_silent_one_never_answers(session: EngineSession, order: Inspect) -> None:
    with pytest.raises(EngineError):
        LIARS["silent"](session, order)
