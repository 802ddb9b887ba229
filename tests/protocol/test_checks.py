import msgspec
import numpy as np
import pytest

from protocol.checks import (
    OBJECTIVE,
    ExpectedProblem,
    Fault,
    Reason,
    check_activations,
    check_draw,
    check_form,
    check_groups,
    check_identity,
    check_sampling,
    check_staleness,
    check_termination,
    check_turn,
    check_units,
    parse_proofs,
    subject_of,
)
from protocol.envelope import seal
from protocol.identity import NodeKey
from protocol.rollout import RolloutBatch, RolloutHeader, SampleRow
from protocol.run import EnvironmentSpec, RolloutSpec, RunSpec, VerificationSpec
from protocol.statements import VerdictOutcome, WorkCommitment
from protocol.toploc import ProofErrors, proofs_for

NODE = NodeKey(b"\x05" * 32).address
ROOT = b"\x11" * 32
EOS = 9
CUTS = VerificationSpec(toploc_k=4)
RUN = RunSpec(
    name="t",
    environment=EnvironmentSpec(name="sort"),
    rollout=RolloutSpec(group_size=2, prompts_per_step=2, prompts_per_file=2, max_prompt_tokens=4, max_output_tokens=3),
    verification=CUTS,
)
PROOF = proofs_for(np.arange(8, dtype=np.uint16).reshape(1, 8), 4)
EXPECTED = [ExpectedProblem("p0", [1, 2]), ExpectedProblem("p1", [3, 4])]
COMMITMENT = WorkCommitment(1, NODE, ROOT, 0, bytes(32), 8)


HEADER = RolloutHeader(1, NODE, ROOT.hex(), 0)


def sealed(row: SampleRow) -> SampleRow:
    return msgspec.structs.replace(row, proofs=seal(PROOF, subject_of(HEADER, row), CUTS.toploc_k, CUTS.toploc_batch))


def honest() -> RolloutBatch:
    rows = tuple(
        sealed(SampleRow(g, s, f"p{g}", EXPECTED[g].prompt, [5, EOS], True, b"")) for g in range(2) for s in range(2)
    )
    return RolloutBatch(HEADER, rows)


def altered(index: int = 1, **change: object) -> RolloutBatch:
    rows = list(honest().rows)
    rows[index] = msgspec.structs.replace(rows[index], **change)
    return RolloutBatch(honest().header, tuple(rows))


def verdict(batch: RolloutBatch) -> Reason:
    """The first fault of a file, in the order in which a validator looks."""
    checks = (
        lambda: check_identity(batch, COMMITMENT),
        lambda: check_groups(batch, RUN),
        lambda: check_form(batch, RUN, 10),
        lambda: check_units(batch, COMMITMENT),
        lambda: check_draw(batch, EXPECTED),
        lambda: check_termination(batch, RUN, frozenset({EOS})),
        lambda: fault if isinstance(fault := parse_proofs(batch, CUTS), Fault) else None,
    )
    return next((fault.reason for check in checks if (fault := check())), Reason.NONE)


def test_an_honest_file_passes() -> None:
    assert verdict(honest()) is Reason.NONE


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (RolloutBatch(msgspec.structs.replace(honest().header, index=1), honest().rows), Reason.WRONG_IDENTITY),
        (
            RolloutBatch(msgspec.structs.replace(honest().header, policy_root="22" * 32), honest().rows),
            Reason.WRONG_IDENTITY,
        ),
        (RolloutBatch(honest().header, honest().rows[:-1]), Reason.INCOMPLETE_GROUP),
        (RolloutBatch(honest().header, honest().rows[::-1]), Reason.INCOMPLETE_GROUP),
        (altered(prompt=[]), Reason.MALFORMED),
        (altered(prompt=[1, 2, 3, 4, 5]), Reason.MALFORMED),
        (altered(output=[10, EOS]), Reason.MALFORMED),
        (altered(output=[-1, EOS]), Reason.MALFORMED),
        (altered(output=[5, 5, EOS]), Reason.UNITS),
        (altered(problem_id="easy"), Reason.WRONG_DRAW),
        (altered(prompt=[1, 3]), Reason.WRONG_PROMPT),
        (altered(output=[EOS, EOS]), Reason.TERMINATION),
        (altered(output=[5, 5], finished=False), Reason.TERMINATION),
        (altered(finished=False), Reason.TERMINATION),
        (altered(proofs=b""), Reason.BAD_PROOF_FORM),
        (altered(proofs=PROOF * 2), Reason.BAD_PROOF_FORM),
        (altered(proofs=bytes(len(PROOF))), Reason.BAD_PROOF_FORM),
    ],
)
def test_each_fault_has_its_reason(batch: RolloutBatch, reason: Reason) -> None:
    assert verdict(batch) is reason
    assert Fault(reason, "").outcome is VerdictOutcome.SLASH


TURNS = msgspec.structs.replace(RUN, rollout=RolloutSpec(max_output_tokens=5, max_environment_tokens=3))
PLAYED = SampleRow(0, 0, "p0", [1, 2], [5, EOS, 7, 5, 6, EOS], True, b"", [2, 1, 3])


def in_turns(**change: object) -> Reason:
    batch = RolloutBatch(HEADER, (msgspec.structs.replace(PLAYED, **change),))
    fault = check_form(batch, TURNS, 10, turns=3) or check_termination(batch, TURNS, frozenset({EOS}))
    return fault.reason if fault else Reason.NONE


def test_a_rollout_of_turns_passes_whatever_the_environment_says_in_it() -> None:
    assert in_turns() is Reason.NONE
    assert in_turns(output=[5, EOS, EOS, 5, 6, EOS]) is Reason.NONE, "templates put end tokens behind what users say"
    assert in_turns(output=[5, EOS, 7, 5, 6, 5], finished=False) is Reason.NONE
    assert RolloutBatch(HEADER, (PLAYED,)).units == 5


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"segments": [2, 1]}, Reason.MALFORMED),
        ({"segments": [6]}, Reason.MALFORMED),
        ({"segments": [2, 1, 2]}, Reason.MALFORMED),
        ({"segments": [2, 1, 4]}, Reason.MALFORMED),
        ({"segments": [2, 0, 4]}, Reason.MALFORMED),
        ({"segments": [7, -4, 3]}, Reason.MALFORMED),
        ({"segments": [1, 1, 1, 1, 1, 0, 1]}, Reason.MALFORMED),
        ({"output": [EOS, 1, EOS, 1, EOS, 1, EOS], "segments": [1] * 7}, Reason.MALFORMED),
        ({"output": [5, EOS, 7, 7, 7, 7, EOS], "segments": [2, 4, 1]}, Reason.MALFORMED),
        ({"output": [5, 5, EOS, 7, 5, 6, EOS], "segments": [3, 1, 3]}, Reason.MALFORMED),
        ({"segments": [1, 2, 3]}, Reason.TERMINATION),
        ({"output": [EOS, EOS, 7, 5, 6, EOS]}, Reason.TERMINATION),
        ({"output": [5, 5, 7, 5, 6, EOS]}, Reason.TERMINATION),
        ({"output": [5, EOS, 7, EOS, 6, EOS]}, Reason.TERMINATION),
        ({"output": [5, EOS, 7, 5], "segments": [2, 1, 1], "finished": False}, Reason.TERMINATION),
        ({"finished": False}, Reason.TERMINATION),
    ],
)
def test_turns_that_do_not_add_up_or_do_not_end_are_faults(change: dict, reason: Reason) -> None:
    assert in_turns(**change) is reason


def test_the_environment_must_have_said_what_the_file_says() -> None:
    assert check_turn(PLAYED, 0, [7], [7]) is None and check_turn(PLAYED, 1, None, None) is None
    for said, replayed in (([7], [8]), ([7], [7, 7]), ([7], None), (None, [7])):
        fault = check_turn(PLAYED, 0, said, replayed)
        assert fault is not None and (fault.reason, fault.outcome) == (Reason.FORGED_TURN, VerdictOutcome.SLASH)


@pytest.mark.parametrize("reason", [Reason.ACTIVATIONS, Reason.SAMPLING, Reason.STALE, Reason.UNAVAILABLE, Reason.GAP])
def test_what_arithmetic_or_the_network_may_cause_never_costs_the_stake(reason: Reason) -> None:
    assert reason not in OBJECTIVE
    assert Fault(reason, "").outcome is VerdictOutcome.REJECT


def test_sampling_cuts_both_the_mean_and_the_share() -> None:
    assert check_sampling(np.zeros(100), CUTS) is None
    assert check_sampling(np.full(100, 2e-4), CUTS) is not None
    lone = np.zeros(10_000)
    lone[0] = 0.5
    assert check_sampling(lone, CUTS) is None
    assert check_sampling(np.array([np.nan]), CUTS) is not None


def test_activations_are_cut_on_exponents_mean_and_median() -> None:
    assert check_activations([ProofErrors(0, 0.0, 0.0)], CUTS) is None
    for bad in (ProofErrors(9, 0.0, 0.0), ProofErrors(0, 0.6, 0.0), ProofErrors(0, 0.0, 1.0)):
        fault = check_activations([ProofErrors(0, 0.0, 0.0), bad], CUTS)
        assert fault is not None and fault.reason is Reason.ACTIVATIONS


def test_staleness_is_counted_from_the_policy_that_made_the_tokens() -> None:
    assert check_staleness(3, 5, RUN) is None
    assert check_staleness(2, 5, RUN) is not None
