"""Every cheat of the catalogue is found in its first file, for its own reason, and never costs more than it may."""

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from node.environments.base import Problem, Transcript
from node.inference.engines import torch_engine
from node.inference.session import EngineSession
from node.inference.settings import EngineSettings
from node.inference.wire import Inspect, Inspected, Produce, Produced
from protocol.checks import OBJECTIVE, Reason
from protocol.decision import ANYTHING, PROOF_BINS, TOKEN_BINS, CalibrationTable, DecisionSpec
from protocol.engines import pair
from protocol.identity import NodeKey
from protocol.rollout import decode
from protocol.run import RunSpec
from protocol.statements import Domain, VerdictOutcome, WorkCommitment, sign, signer_of
from tests.cheats.catalogue import CHEATS, Cheat
from tests.cheats.sessions import Renamed
from tests.node.inference.work import produced_by, seen_by

KEY = NodeKey(b"\x07" * 32)
HONEST = Cheat("nothing", frozenset())


def open_session(kind: type[EngineSession], run: RunSpec, assets: Path, roots: list[bytes]) -> EngineSession:
    session = kind(run, assets, torch_engine)
    for step, root in enumerate(roots):
        session.keep(root, str(assets / "images" / str(step)))
    return session


@pytest.fixture(scope="module")
def validator(run: RunSpec, assets: Path, roots: list[bytes]) -> EngineSession:
    return open_session(EngineSession, run, assets, roots)


def submit(cheat: Cheat, run: RunSpec, assets: Path, roots: list[bytes], out: Path) -> Produced:
    session = open_session(cheat.session, run, assets, roots)
    order = Produce(policy_root=roots[-1], node=KEY.address, pool=3, index=5, out_path=str(out / "file"))
    return cheat.produce(session.at(order), order)


def judge(validator: EngineSession, roots: list[bytes], made: Produced, *, second_look: bool = False) -> Inspected:
    order = Inspect(
        policy_root=roots[-1],
        node=KEY.address,
        pool=3,
        index=5,
        units=made.units,
        path=made.path,
        report_path=f"{made.path}.report",
        second_look=second_look,
    )
    return seen_by(validator, order)


def test_honest_work_is_accepted(
    validator: EngineSession, run: RunSpec, assets: Path, roots: list[bytes], tmp_path: Path
) -> None:
    made = submit(HONEST, run, assets, roots, tmp_path)
    with scored_by(validator) as scored:
        seen = judge(validator, roots, made)
    assert (seen.outcome, seen.detail) == (VerdictOutcome.ACCEPT, "")
    assert len(scored) == 16, "every answer, as no answer of a cheat is: see found()"


@contextmanager
def scored_by(validator: EngineSession) -> Iterator[list[Problem]]:
    """The problems whose answers the validator's environment is asked to score."""
    scored: list[Problem] = []
    environment = validator.environment

    class Spied:
        def __getattr__(self, name: str) -> Any:
            return getattr(environment, name)

        def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
            scored.extend(problems)
            return environment.score(problems, transcripts)

    validator.environment = Spied()  # type: ignore[assignment]
    try:
        yield scored
    finally:
        validator.environment = environment


def test_honest_bfloat16_is_met_in_bfloat16(
    validator: EngineSession, run: RunSpec, assets: Path, roots: list[bytes], tmp_path: Path
) -> None:
    """The verifier's own engine computes in float32, and the run's thresholds leave no room for another arithmetic."""
    session = EngineSession(run, assets, functools.partial(torch_engine, settings=EngineSettings(dtype="bfloat16")))
    for step, root in enumerate(roots):
        session.keep(root, str(assets / "images" / str(step)))
    made = produced_by(
        session, Produce(policy_root=roots[-1], node=KEY.address, pool=3, index=5, out_path=f"{tmp_path}/f")
    )
    seen = judge(validator, roots, made)
    assert (seen.outcome, seen.detail) == (VerdictOutcome.ACCEPT, "") and "/bfloat16/" in seen.verifier
    crossed = judge(validator, roots, made, second_look=True)
    assert "/float32/" in crossed.verifier and crossed.reason == Reason.ACTIVATIONS


def test_an_engine_that_the_run_does_not_permit_is_a_fault_of_form(
    validator: EngineSession, run: RunSpec, assets: Path, roots: list[bytes], tmp_path: Path
) -> None:
    strict = msgspec.structs.replace(run.verification, engines=("*/bfloat16/*",))
    session = open_session(EngineSession, msgspec.structs.replace(run, verification=strict), assets, roots)
    seen = judge(session, roots, submit(HONEST, run, assets, roots, tmp_path))
    assert (seen.outcome, seen.reason) == (VerdictOutcome.SLASH, Reason.MALFORMED) and "float32" in seen.detail


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_found_in_its_first_file(
    validator: EngineSession, run: RunSpec, assets: Path, roots: list[bytes], tmp_path: Path, name: str
) -> None:
    found(CHEATS[name], validator, run, assets, roots, tmp_path)


def found(
    cheat: Cheat, validator: EngineSession, run: RunSpec, assets: Path, roots: list[bytes], tmp_path: Path
) -> Inspected:
    made = submit(cheat, run, assets, roots, tmp_path)
    with scored_by(validator) as scored:
        seen = judge(validator, roots, made)
    assert Reason(seen.reason) in cheat.reasons, seen.detail
    assert not scored, "a forged file is refused before a scorer has read any of it"
    assert seen.outcome == (VerdictOutcome.SLASH if seen.reason in OBJECTIVE else VerdictOutcome.REJECT)
    assert seen.report_path == "" and not Path(f"{tmp_path}/file.report").exists()
    return seen


@pytest.fixture(scope="module")
def turns_validator(turns_run: RunSpec, assets: Path, roots: list[bytes]) -> EngineSession:
    return open_session(EngineSession, turns_run, assets, roots)


def test_honest_turns_are_accepted(
    turns_validator: EngineSession, turns_run: RunSpec, assets: Path, roots: list[bytes], tmp_path: Path
) -> None:
    made = submit(HONEST, turns_run, assets, roots, tmp_path)
    seen = judge(turns_validator, roots, made)
    assert (seen.outcome, seen.detail, seen.unreplayed) == (VerdictOutcome.ACCEPT, "", ())
    rows = decode(Path(made.path).read_bytes(), 16).rows
    assert {len(row.segments) for row in rows} >= {0, 5}, "some are right at once, some never"


@pytest.mark.parametrize("name", [name for name, cheat in CHEATS.items() if cheat.turns])
def test_a_forged_turn_is_found_in_its_first_file(
    turns_validator: EngineSession, turns_run: RunSpec, assets: Path, roots: list[bytes], tmp_path: Path, name: str
) -> None:
    """Where there are turns, for what it is and not for its form."""
    seen = found(CHEATS[name], turns_validator, turns_run, assets, roots, tmp_path)
    assert seen.reason != Reason.MALFORMED


def test_what_arithmetic_decides_never_costs_the_stake_at_once() -> None:
    for name, cheat in CHEATS.items():
        assert not (cheat.reasons & OBJECTIVE) or not (cheat.reasons & {Reason.ACTIVATIONS, Reason.SAMPLING}), name


def test_a_commitment_signed_by_another_key_is_not_the_workers() -> None:
    domain = Domain(31337, KEY.address)
    commitment = WorkCommitment(3, KEY.address, bytes(32), 0, bytes(32), 10)
    stranger = NodeKey(b"\x09" * 32)
    assert signer_of(domain, commitment, sign(KEY, domain, commitment)) == commitment.node
    assert signer_of(domain, commitment, sign(stranger, domain, commitment)) == stranger.address != commitment.node


def test_equivocation_is_two_signed_statements_about_one_slot() -> None:
    """Both signatures are valid, the slots are equal, the files are not: that is all that the contract asks for."""
    domain = Domain(31337, KEY.address)
    one = WorkCommitment(3, KEY.address, bytes(32), 0, b"\x01" * 32, 10)
    other = msgspec.structs.replace(one, file_root=b"\x02" * 32)
    signers = {signer_of(domain, statement, sign(KEY, domain, statement)) for statement in (one, other)}
    assert signers == {KEY.address} and one != other


def test_arithmetic_that_no_engine_knows_leaves_nothing_behind(validator: EngineSession) -> None:
    """Files name it: a stranger could name another one in each."""
    known = dict(validator._bench.siblings)
    for number in range(3):
        assert validator.like(f"x/strange{number}/own") is validator.engine
    assert validator._bench.siblings == known


EXACT, ROUGH = (EngineSettings(dtype=dtype).name for dtype in ("float32", "bfloat16"))


def calibrated(run: RunSpec, classes: tuple[str, str] = (EXACT, ROUGH)) -> RunSpec:
    """The run as if fp32 and bf16 had been measured: equals agree, fp32 seen in bf16 is far off."""

    def table(width: int) -> CalibrationTable:
        return CalibrationTable(proofs=counts(PROOF_BINS, width), tokens=counts(TOKEN_BINS, width))

    def counts(bins: int, width: int) -> tuple[int, ...]:
        return tuple(100 if i < width else 0 for i in range(bins))

    honest = {pair(a, b): table(1 if a == b else 12) for a in classes for b in classes}
    decision = DecisionSpec(honest=honest, cheating={"int8": table(10)})
    rules = msgspec.structs.replace(
        run.verification,
        mantissa_mean=20.0,
        exponent_mismatches=32,
        sampling_mean=0.1,
        sampling_outside=0.5,
        pairs={name: run.verification.thresholds("", "") for name in honest if name.count("float32") == 2},
        decision=decision,
    )
    return msgspec.structs.replace(run, verification=rules)


def seen_under(
    name: str, validator: EngineSession, cheat: Cheat, assets: Path, roots: list[bytes], out: Path
) -> list[Inspected]:
    """The first and the second look at a cheat's file whose header says this class."""
    session = open_session(cheat.session, validator.run, assets, roots)
    session.engine = Renamed(session.engine, name)
    order = Produce(policy_root=roots[-1], node=KEY.address, pool=3, index=5, out_path=str(out / "file"))
    made = cheat.produce(session.at(order), order)
    return [judge(validator, roots, made, second_look=second) for second in (False, True)]


@pytest.mark.parametrize("name", ["int8", "temperature 0.9", "greedy"])
def test_a_cheat_is_met_in_its_own_arithmetic_and_then_in_another_type(
    run: RunSpec, assets: Path, roots: list[bytes], tmp_path: Path, name: str
) -> None:
    validator = open_session(EngineSession, calibrated(run), assets, roots)
    first, second = seen_under(EXACT, validator, CHEATS[name], assets, roots, tmp_path)
    assert first.outcome == VerdictOutcome.REJECT and first.verifier == EXACT and second.verifier == ROUGH
    assert set(first.evidence.log_ratios) == set(second.evidence.log_ratios) == {"int8", ANYTHING}


@pytest.mark.parametrize("says", ["zz/float32/sdpa", "zz/bfloat16/sdpa", "zz/float32/zz", f"{EXACT}.1"])
def test_a_name_that_nobody_calibrated_is_malformed(
    run: RunSpec, assets: Path, roots: list[bytes], tmp_path: Path, says: str
) -> None:
    validator = open_session(EngineSession, calibrated(run), assets, roots)
    first, _ = seen_under(says, validator, CHEATS["int8"], assets, roots, tmp_path)
    assert first.reason == Reason.MALFORMED and "not calibrated" in first.detail


def test_what_was_measured_elsewhere_only_is_held_against_nobody_here(
    run: RunSpec, assets: Path, roots: list[bytes]
) -> None:
    """By this machine's numbers honest work of another might look like a cheat's."""
    hardware = EXACT.partition("/")[0]
    there = (EXACT.replace(hardware, "elsewhere"), ROUGH.replace(hardware, "elsewhere"))
    validator = open_session(EngineSession, calibrated(run, there), assets, roots)
    for engine_class in there:
        assert validator.like(engine_class) is validator.unlike(engine_class) is validator.engine
        assert not validator.run.verification.judges(engine_class, validator.engine.name)
