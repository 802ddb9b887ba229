"""Rollouts of several turns: what the model is asked, when they end, and what a validator makes of them."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.strategies import DataObject, data, integers

from node.calibration.calibrate import exercise_of
from node.calibration.difficulty import Difficulty
from node.calibration.measure import MeasureStage, hand_over, look_at
from node.environments.base import Defaults, Determinism, Problem, Reply, Segment, Transcript
from node.environments.errors import Undecided
from node.environments.retry import RetryEnvironment
from node.inference.engine import Completion, GenerationRequest, generate
from node.inference.engines import torch_engine
from node.inference.errors import EngineError
from node.inference.session import EngineSession
from node.inference.turns import Bounds, PlayedRollout, play
from node.inference.wire import Inspect, Inspected, Produce, Produced
from node.training.evaluator import Evaluator
from node.training.warmstart import IGNORED, WorkedSolution
from protocol.checks import Reason
from protocol.disputes import UNDECIDED
from protocol.identity import NodeKey
from protocol.messages import DIGEST
from protocol.rollout import STATE_BYTES, decode, decode_report, encode
from protocol.run import EnvironmentSpec, RunSpec
from protocol.statements import VerdictOutcome
from tests.node.inference.work import produced_by, put, seen_by

PROBLEM = Problem("p", "", ("12",))
END = 1
ROOT, NODE = bytes(range(32)), NodeKey(b"\x07" * 32).address


class Counts(Defaults):
    """Says how many answers there were, in `words` tokens; `unsure`: how often it cannot tell first."""

    turns, gave_up, determinism = 3, 0, "exact"

    def __init__(self, words: int = 2, unsure: int = 0) -> None:
        self.words, self.unsure = words, unsure

    def step(self, problem: Problem, transcript: Transcript) -> list[int]:
        if self.unsure:
            self.unsure -= 1
            raise Undecided("it cannot tell", "busy", "wait")
        return [20 + len(transcript) // 2] * self.words


class Scripted:
    """An engine that answers what it is told to, and remembers what it was asked."""

    def __init__(self, *answers: list[int]) -> None:
        self.answers, self.asked = list(answers), []

    def __call__(self, requests: Sequence[GenerationRequest], temperature: float) -> list[Completion]:
        self.asked += [(list(one.prompt), one.uniforms.tolist()) for one in requests]
        made = [self.answers.pop(0) for _ in requests]
        return [Completion(one, one[-1] == END, np.full((len(one), 1), len(self.asked), np.uint16)) for one in made]


def played(environment: Any, script: Scripted, bounds: Bounds, limit: int = 8, **how: Any) -> PlayedRollout:
    request = GenerationRequest([9], np.arange(limit) / limit)
    (rollout,) = play(script, environment, [PROBLEM], [request], 1.0, bounds, **how)
    return rollout


def test_each_prompt_extends_the_one_before_and_numbers_count_sampled_tokens() -> None:
    script = Scripted([5, END], [6, 7, END], [8, END])
    rollout = played(Counts(), script, Bounds(3, 10))
    assert [prompt for prompt, _ in script.asked] == [[9], [9, 5, 1, 20, 20], [9, 5, 1, 20, 20, 6, 7, 1, 21, 21]]
    assert [numbers[0] for _, numbers in script.asked] == [0, 2 / 8, 5 / 8]
    assert rollout.segments == [2, 2, 3, 2, 2] and rollout.finished
    assert rollout.output == [5, 1, 20, 20, 6, 7, 1, 21, 21, 8, 1]
    assert (rollout.sampled, rollout.rows[:, 0].tolist()) == (7, [1, 2, 2, 2, 3, 3])


@pytest.mark.parametrize(
    ("bounds", "limit", "answers", "segments"),
    [
        (Bounds(2, 10), 8, [[5, END], [6, END]], [2, 2, 2]),
        (Bounds(3, 3), 8, [[5, END], [6, END]], [2, 2, 2]),
        (Bounds(3, 10), 4, [[5, END], [6, END]], [2, 2, 2]),
        (Bounds(3, 10), 3, [[5, END], [6]], [2, 2, 1]),
        (Bounds(3, 1), 8, [[5, END]], []),
        (Bounds(1, 10), 8, [[5, END]], []),
        (Bounds(3, 10), 2, [[5, 5]], []),
    ],
)
def test_a_rollout_ends_at_its_first_bound(
    bounds: Bounds, limit: int, answers: list[list[int]], segments: list[int]
) -> None:
    """Turns, tokens of the environment, tokens in all; an answer that was cut off is the last one."""
    script = Scripted(*answers)
    assert played(Counts(), script, bounds, limit).segments == segments and not script.answers


def test_an_environment_that_cannot_tell_is_asked_again_and_never_guessed() -> None:
    script = Scripted([5, END], [6, END], [7, END])
    assert played(Counts(unsure=2), script, Bounds(3, 10), strict=True).segments == [2, 2, 2, 2, 2]
    with pytest.raises(EngineError, match="busy"):
        played(Counts(unsure=9), Scripted([5, END]), Bounds(3, 10), strict=True)
    assert played(Counts(unsure=9), Scripted([5, END]), Bounds(3, 10)).segments == []


class Moody(Defaults):
    """What it says, that it is over, or that it cannot tell, follows from what was said."""

    turns, gave_up, determinism = 4, 0, "exact"

    def __init__(self) -> None:
        self.asked, self.passes = Counter[str](), 0

    def step(self, problem: Problem, transcript: Transcript) -> list[int] | None:
        place = f"{problem.problem_id} {[segment.tokens for segment in transcript]}"
        self.asked[place] += 1
        mood = crc32(place.encode()) % 5
        if mood == 0 and self.asked[place] <= int(problem.problem_id) % 4:  # 3: for as often as it is asked
            raise Undecided("it cannot tell", "moody", "wait")
        return None if mood == 1 else [20 + mood] * (mood + 1)

    def steps(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[Reply]:
        self.passes += 1
        return super().steps(problems, transcripts)


@settings(max_examples=40)
@given(data())
def test_rollouts_that_are_played_together_are_those_that_are_played_one_by_one(draw: DataObject) -> None:
    count = draw.draw(integers(1, 12))
    bounds, limit = Bounds(draw.draw(integers(1, 4)), draw.draw(integers(0, 12))), draw.draw(integers(1, 9))
    problems = [Problem(str(number), "", ()) for number in range(count)]
    requests = [GenerationRequest([9], np.linspace(0.1 * number, 1, limit)) for number in range(count)]

    def answers(asked: Sequence[GenerationRequest], temperature: float) -> list[Completion]:
        outputs = [[2 + len(one.prompt) % 3, END] if one.uniforms[0] < 0.8 else [5] for one in asked]
        outputs = [output[: len(one.uniforms)] for output, one in zip(outputs, asked, strict=True)]
        return [Completion(one, one[-1] == END, np.full((len(one), 1), one[0], np.uint16)) for one in outputs]

    together = Moody()
    said = [one.transcript for one in play(answers, together, problems, requests, 1.0, bounds)]
    alone = [play(answers, Moody(), [p], [r], 1.0, bounds) for p, r in zip(problems, requests, strict=True)]
    assert said == [one.transcript for (one,) in alone]
    assert together.passes <= 3 * (bounds.turns - 1)


@pytest.fixture(scope="module")
def session(tiny_assets: Path, tiny_run: RunSpec) -> EngineSession:
    environment = EnvironmentSpec(name="retry", args={"digits": 3, "held_back": 64, "tries": 3})
    made = EngineSession(msgspec.structs.replace(tiny_run, environment=environment), tiny_assets, torch_engine)
    made.keep(ROOT, str(tiny_assets / "model" / "model.safetensors"))
    return made


@pytest.fixture(scope="module")
def produced(session: EngineSession, tmp_path_factory: pytest.TempPathFactory) -> Produced:
    path = str(tmp_path_factory.mktemp("turns") / "file")
    return produced_by(session, Produce(policy_root=ROOT, node=NODE, pool=3, index=5, out_path=path))


def judge(session: EngineSession, made: Produced, **change: Any) -> Inspected:
    order = Inspect(
        policy_root=ROOT,
        node=NODE,
        pool=3,
        index=5,
        units=made.units,
        path=made.path,
        report_path=f"{made.path}.report",
    )
    return seen_by(session, msgspec.structs.replace(order, **change))


def test_honest_turns_are_accepted_with_a_log_prob_for_each_sampled_token(
    session: EngineSession, produced: Produced
) -> None:
    seen = judge(session, produced)
    assert (seen.outcome, seen.detail, seen.unreplayed) == (VerdictOutcome.ACCEPT, "", ())
    assert seen.statistics["sampling_mean"] < 1e-6 and seen.statistics["mantissa_mean"] < 0.1
    rows = decode(Path(produced.path).read_bytes(), 8).rows
    assert sum(bool(row.segments) for row in rows) > 4
    report = decode_report(Path(seen.report_path).read_bytes(), 8)
    assert [len(row.logprobs) for row in report.rows] == [row.units for row in rows]
    assert seen.tokens == produced.units == sum(row.units for row in rows) < produced.tokens


class Unsure(Defaults):
    """The session's environment, which cannot tell what it says to one problem."""

    determinism: Determinism = "bounded"

    def __init__(self, environment: Any, problem_id: str) -> None:
        self._environment, self._problem_id = environment, problem_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def step(self, problem: Problem, transcript: Transcript) -> list[int] | None:
        if problem.problem_id == self._problem_id:
            raise Undecided("it cannot tell", "busy", "wait")
        return self._environment.step(problem, transcript)


class Remembers(Unsure):
    """The session's environment as if a machine lived through its turns, which stands where its words lead. astray: the
    turn from which on it stands elsewhere."""

    def __init__(self, environment: Any, astray: int = 9) -> None:
        super().__init__(environment, "none")
        self._astray = astray

    def states(self, problem: Problem, transcript: Transcript) -> bytes:
        said = [repr(transcript[: 2 * turn + 1]) for turn in range(len(transcript) // 2)]
        return b"".join(
            sha256(f"{turn >= self._astray}{one}".encode()).digest()[:STATE_BYTES] for turn, one in enumerate(said)
        )


@pytest.mark.parametrize(
    ("astray", "states", "outcome", "reason", "detail"),
    [
        (9, lambda found: found, VerdictOutcome.ACCEPT, Reason.NONE, ""),
        (1, lambda found: found, VerdictOutcome.REJECT, Reason.OTHER_MACHINE, "behind answer 2"),
        (9, lambda found: b"\x00" + found[1:], VerdictOutcome.REJECT, Reason.OTHER_MACHINE, "behind answer 1"),
        (9, lambda found: b"", VerdictOutcome.REJECT, Reason.OTHER_MACHINE, "behind answer 1"),
        (9, lambda found: found[1:], VerdictOutcome.SLASH, Reason.MALFORMED, "bytes of states"),
    ],
    ids=["honest", "another machine", "another hash", "none", "cut"],
)
def test_the_machine_of_a_session_is_compared_turn_by_turn(
    session: EngineSession,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    astray: int,
    states: Callable[[bytes], bytes],
    outcome: VerdictOutcome,
    reason: Reason,
    detail: str,
) -> None:
    retry = session.environment
    monkeypatch.setattr(session, "environment", Remembers(retry))
    path = tmp_path / "file"
    made = produced_by(session, Produce(policy_root=ROOT, node=NODE, pool=3, index=5, out_path=str(path)))
    batch = decode(path.read_bytes(), 8)
    row = max(batch.rows, key=lambda one: len(one.segments))
    assert len(row.states) == 2 * STATE_BYTES
    rows = tuple(msgspec.structs.replace(one, states=states(one.states)) if one == row else one for one in batch.rows)
    path.write_bytes(encode(msgspec.structs.replace(batch, rows=rows)))
    monkeypatch.setattr(session, "environment", Remembers(retry, astray))
    seen = judge(session, made)
    assert (seen.outcome, seen.reason) == (outcome, reason) and detail in seen.detail


def test_where_there_is_no_machine_nobody_names_its_states(
    session: EngineSession, produced: Produced, tmp_path: Path
) -> None:
    batch = decode(Path(produced.path).read_bytes(), 8)
    assert not any(one.states for one in batch.rows)
    rows = tuple(msgspec.structs.replace(one, states=bytes(len(one.segments) // 2 * STATE_BYTES)) for one in batch.rows)
    (tmp_path / "file").write_bytes(encode(msgspec.structs.replace(batch, rows=rows)))
    seen = judge(session, produced, path=str(tmp_path / "file"))
    assert (seen.outcome, seen.reason) == (VerdictOutcome.REJECT, Reason.OTHER_MACHINE)


def test_who_cannot_replay_a_group_says_nothing_of_it(
    session: EngineSession, produced: Produced, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = decode(Path(produced.path).read_bytes(), 8).rows
    monkeypatch.setattr(session, "environment", Unsure(session.environment, rows[4].problem_id))
    seen = judge(session, produced)
    assert (seen.outcome, seen.unreplayed) == (VerdictOutcome.ACCEPT, (1,))
    assert seen.rewards[:DIGEST] != UNDECIDED and seen.rewards[DIGEST:] == UNDECIDED
    assert {row.group for row in decode_report(Path(seen.report_path).read_bytes(), 8).rows} == {0}


def test_the_lot_is_replayed_first_and_what_time_does_not_reach_is_left_open(
    session: EngineSession, produced: Produced, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands still until the second group is replayed, then the time is over."""
    rows = decode(Path(produced.path).read_bytes(), 8).rows
    passes = max(len(row.segments) // 2 + row.finished for row in rows if row.group == 1)
    for looks, unreplayed in ((2, (0, 1)), (2 + passes - 1, (0, 1)), (2 + passes, (0,))):
        now = iter([0.0] * looks)  # the look begins, the time begins, then each turn of all rollouts of a group
        monkeypatch.setattr("node.inference.replay.time.monotonic", lambda now=now: next(now, 1e9))
        seen = judge(session, produced, groups=(1,))
        assert (seen.outcome, seen.unreplayed) == (VerdictOutcome.ACCEPT, unreplayed)
        assert seen.rewards == UNDECIDED * 2


def test_a_run_may_allow_fewer_turns_than_the_environment_takes(session: EngineSession, produced: Produced) -> None:
    rollout = msgspec.structs.replace(session.run.rollout, max_turns=2)
    assert session.bounds == Bounds(3, 1024)
    seen = judge(under(session, rollout), produced)
    assert seen.reason == Reason.MALFORMED and "3 turns where there are 2" in seen.detail


def under(session: EngineSession, rollout: Any) -> Any:
    """The session by another run's limits."""
    import copy

    other = copy.copy(session)
    other.run = msgspec.structs.replace(session.run, rollout=rollout)
    return other


def evaluated(session: EngineSession, assets: Path) -> None:
    evaluator = Evaluator(session.run, assets)
    evaluator.evaluate(session.engine.read(str(assets / "model" / "model.safetensors")), 0)
    evaluator.close()


def filtered(session: EngineSession, assets: Path) -> None:
    difficulty = Difficulty(session.run, assets)
    assert len(list(difficulty.rates([session.environment.problem(number) for number in range(3)], 4))) == 3
    difficulty.close()


def calibrated(session: EngineSession, assets: Path) -> None:
    exercise = exercise_of(session.run, session.environment, 8, 0)
    stage = MeasureStage(lambda *told: None, "playing and looking", 16)
    made = exercise.played(partial(generate, session.engine), [slice(0, 8)], stage)
    work = hand_over(exercise.requests, made, 32, 32)
    seen = look_at(session.engine, work, 1.0, 32, stage)
    assert work.tokens == sum(len(one.distances) for one in seen) and max(one.distances.max() for one in seen) < 1e-6
    session.environment.score(exercise.problems, [one.transcript for one in made])


@pytest.mark.parametrize("who", [evaluated, filtered, calibrated])
def test_whoever_asks_for_answers_plays_all_turns(
    session: EngineSession,
    tiny_assets: Path,
    monkeypatch: pytest.MonkeyPatch,
    who: Callable[[EngineSession, Path], None],
) -> None:
    scored: list[int] = []
    score = RetryEnvironment.score

    def watched(self: Any, problems: Any, transcripts: Sequence[Transcript]) -> list[float]:
        scored.extend(map(len, transcripts))
        return score(self, problems, transcripts)

    monkeypatch.setattr(RetryEnvironment, "score", watched)
    put(session, ROOT)
    who(session, tiny_assets)
    assert 5 in scored and all(length in (1, 3, 5) for length in scored)


def test_a_lesson_teaches_answers_and_not_what_was_said_between_them(session: EngineSession) -> None:
    environment, tokenizer = session.environment, session.engine.tokenizer
    wrong_first = lambda problem, so_far: "0" if not so_far else problem.answer[0]
    tokens, learnt = WorkedSolution(environment, tokenizer, wrong_first).example(environment.problem(3))
    answer = environment.problem(3).answer[0]
    assert tokenizer.decode(tokens) == f"{environment.problem(3).prompt}0={int(answer[0] == '0')}={answer}"
    taught = [*tokenizer.encode("0"), END, *tokenizer.encode(answer), END]
    assert [token for token in learnt if token != IGNORED] == taught
    assert all(label in (token, IGNORED) for token, label in zip(tokens, learnt, strict=True))


def test_retry_tells_how_many_digits_stand_right_and_halves_a_second_try(session: EngineSession) -> None:
    tokenizer, problem = session.engine.tokenizer, Problem("retry-312", "312=", ("123",))

    def said(*texts: str) -> Transcript:
        ends = [Segment([*tokenizer.encode(text), END], sampled=i % 2 == 0) for i, text in enumerate(texts)]
        return ends

    step = session.environment.step(problem, said("132"))
    assert step is not None and tokenizer.decode(step) == "=1="
    assert session.environment.step(problem, said("123")) is None
    tries = [said("123"), said("1", "=1=", "123"), said("123", "=3=", "1")]
    assert session.environment.score([problem] * 3, tries) == [1.0, 0.5, 0.0]
