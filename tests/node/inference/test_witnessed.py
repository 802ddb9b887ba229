"""Rollouts behind a real server: a validator accepts what it hears alike, refuses without a stake what it does not, and
has no word where the server is silent to it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from node.environments.server.dial import LOCAL_SERVERS
from node.inference.engines import torch_engine
from node.inference.errors import EngineError
from node.inference.session import EngineSession
from node.inference.wire import Inspect, Inspected, Produce, Produced
from node.training.warmstart import SORT_ALPHABET, create_model
from protocol.audit import AuditSpec
from protocol.checks import HEARSAY, Reason
from protocol.identity import NodeKey
from protocol.rollout import decode, encode
from protocol.run import EnvironmentSpec, RunError, RunSpec, decode_run, encode_run
from protocol.sections import EnvironmentPart
from protocol.segments import pieces
from protocol.statements import VerdictOutcome
from tests.node.environments.servers import openenv
from tests.node.inference.work import produced_by, seen_by

ROOT, NODE = bytes(range(32)), NodeKey(b"\x07" * 32).address
LETTERS = "".join(dict.fromkeys(SORT_ALPHABET + "<result>/not guessright\n"))
Told = dict[str, Any]


class Server:
    """How the server behaves at this moment."""

    def __init__(self) -> None:
        self.change: Callable[[Told], Told] = paying(lambda message: float(len(message) % 2))

    def __call__(self, on_progress: Told) -> Told:
        return self.change(on_progress)


def paying(reward: Callable[[str], float], words: str = "") -> Callable[[Told], Told]:
    """It shows `words` in front of its own, and pays by its own."""

    def change(on_progress: Told) -> Told:
        data = on_progress["data"]
        message = data["observation"]["message"]
        return on_progress | {"data": data | {"reward": reward(message), "observation": {"message": words + message}}}

    return change


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


@pytest.fixture(scope="module")
def url(server: Server) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch, openenv(server) as url:
        patch.setenv(LOCAL_SERVERS, "1")
        yield url


@pytest.fixture(scope="module")
def open_session(url: str, tiny_run: RunSpec, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], EngineSession]:
    assets = tmp_path_factory.mktemp("served")
    create_model(assets / "model", LETTERS, seed=7, hidden=64, layers=2)
    rows = [{"problem_id": str(n), "prompt": f"{n}=", "reset": {"seed": n}} for n in range(10)]
    (assets / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = {"path": "rows.jsonl", "url": url, "turns": 3, "held_back_share": 0.2, "seconds": 5.0}
    run = msgspec.structs.replace(
        tiny_run, environment=EnvironmentSpec(name="server", args=args), audit=AuditSpec(witnessed="alone")
    )

    def session() -> EngineSession:
        made = EngineSession(run, assets, torch_engine)
        made.keep(ROOT, str(assets / "model" / "model.safetensors"))
        return made

    return session


@pytest.fixture(scope="module")
def produced(open_session: Callable[[], EngineSession], tmp_path_factory: pytest.TempPathFactory) -> Produced:
    path = str(tmp_path_factory.mktemp("files") / "file")
    session = open_session()
    made = produced_by(session, Produce(policy_root=ROOT, node=NODE, pool=3, index=5, out_path=path))
    session.environment.close()
    return made


def judge(session: EngineSession, made: Produced, path: str = "") -> Inspected:
    path = path or made.path
    try:
        order = Inspect(
            policy_root=ROOT, node=NODE, pool=3, index=5, units=made.units, path=path, report_path=f"{path}.report"
        )
        return seen_by(session, order)
    finally:
        session.environment.close()


def test_what_is_heard_alike_is_accepted_and_may_be_trained_on(
    open_session: Callable[[], EngineSession], produced: Produced
) -> None:
    batch = decode(Path(produced.path).read_bytes(), 8)
    assert len(batch.header.heard) == 32 and sum(bool(row.segments) for row in batch.rows) >= 2
    seen = [judge(open_session(), produced) for _ in range(2)]
    assert [(one.outcome, one.detail) for one in seen] == [(VerdictOutcome.ACCEPT, "")] * 2
    assert seen[0].rewards == seen[1].rewards and seen[0].rewards_mean == pytest.approx(produced.reward_estimate)


@pytest.mark.parametrize(
    "change",
    [paying(lambda message: float(len(message) % 2), words="no "), paying(lambda message: 1 - len(message) % 2)],
    ids=["says otherwise", "pays otherwise"],
)
def test_what_is_heard_otherwise_is_unpaid_and_costs_no_stake(
    open_session: Callable[[], EngineSession],
    produced: Produced,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Told], Told],
) -> None:
    monkeypatch.setattr(server, "change", change)
    seen = judge(open_session(), produced)
    assert (seen.outcome, seen.reason) == (VerdictOutcome.REJECT, Reason.HEARD_OTHERWISE)
    assert seen.reason in HEARSAY and seen.report_path == ""


@pytest.mark.parametrize("shown", [False, True], ids=["beside what is shown", "in what is shown"])
def test_a_secret_that_one_member_alone_is_told_gains_it_nothing(
    open_session: Callable[[], EngineSession],
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    shown: bool,
) -> None:
    """Beside what is shown it is dropped, and the file is like any other. In what is shown it stands in the file, and
    nobody else hears it."""
    honest = server.change

    def telling(on_progress: Told) -> Told:
        data = honest(on_progress)["data"]
        message = data["observation"]["message"]
        observation = {"message": "tu" + message} if shown else {"message": message, "solution": "tu"}
        return on_progress | {"data": data | {"observation": observation, "grader": "tu"}}

    monkeypatch.setattr(server, "change", telling)
    session = open_session()
    made = produced_by(session, Produce(policy_root=ROOT, node=NODE, pool=3, index=5, out_path=str(tmp_path / "file")))
    batch = decode(Path(made.path).read_bytes(), 8)
    session.environment.close()
    found = [part for row in batch.rows for part, sampled in pieces(row.output, row.segments) if not sampled]
    told = [session._tokenizer.decode(list(part)) for part in found]
    assert told and all(("tu" in one) is shown for one in told)
    monkeypatch.setattr(server, "change", honest)
    seen = judge(open_session(), made)
    wanted = (VerdictOutcome.REJECT, Reason.HEARD_OTHERWISE) if shown else (VerdictOutcome.ACCEPT, None)
    assert (seen.outcome, seen.reason or None) == wanted


def test_a_worker_cannot_name_its_own_reward(
    open_session: Callable[[], EngineSession], produced: Produced, tmp_path: Path
) -> None:
    batch = decode(Path(produced.path).read_bytes(), 8)
    header = msgspec.structs.replace(batch.header, heard="11" * 16)
    (tmp_path / "file").write_bytes(encode(msgspec.structs.replace(batch, header=header)))
    seen = judge(open_session(), produced, str(tmp_path / "file"))
    assert (seen.outcome, seen.reason) == (VerdictOutcome.REJECT, Reason.HEARD_OTHERWISE)


def test_who_hears_nothing_has_no_word(
    open_session: Callable[[], EngineSession],
    produced: Produced,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(server, "change", lambda told: {"type": "error", "data": {"code": "CAPACITY_REACHED"}})
    with pytest.raises(EngineError, match="cannot be heard again"):
        judge(open_session(), produced)
    with pytest.raises(EngineError):
        session = open_session()
        produced_by(session, Produce(policy_root=ROOT, node=NODE, pool=3, index=5, out_path=str(tmp_path / "none")))
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("names", "said", "good"),
    [
        (["server"], "alone", True),
        (["server"], "no", False),
        (["server"], "mixed", False),
        (["sort"], "alone", False),
        (["sort", "server"], "mixed", True),
        (["sort", "server"], "alone", False),
        (["sort", "server"], "no", False),
    ],
)
def test_a_run_says_whether_servers_give_its_rewards(
    tiny_run: RunSpec, names: list[str], said: str, good: bool
) -> None:
    parts = tuple(EnvironmentPart(name=name, weight=1.0, label=name) for name in names) if len(names) > 1 else ()
    environment = EnvironmentSpec(name="mix" if parts else names[0], parts=parts)
    run = msgspec.structs.replace(tiny_run, environment=environment, audit=AuditSpec(witnessed=said))
    if good:
        assert decode_run(encode_run(run)) == run
    else:
        with pytest.raises(RunError, match="witnessed"):
            decode_run(encode_run(run))


def test_one_believed_validator_is_no_quorum_of_witnesses(tiny_run: RunSpec) -> None:
    audit = AuditSpec(witnessed="alone", trust="optimistic")
    run = msgspec.structs.replace(tiny_run, environment=EnvironmentSpec(name="server"), audit=audit)
    with pytest.raises(RunError, match="trust"):
        run.check()
