"""What is evaluated: a sample of all held-back problems, other environments beside it, each policy once."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.torch import load_file

from node.environments.base import Problem, Transcript
from node.environments.errors import EnvironmentFault
from node.environments.registry import load_environment
from node.inference.engine import Completion, GenerationRequest
from node.inference.evaluation import Evaluation, sample
from node.inference.tokenizer import LocalTokenizer
from node.inference.torch_engine import TorchEngine
from node.metrics.prometheus import render
from node.recipe.requirements import reached_target
from node.run.file import compile_run
from node.run.problems import place_files
from node.training import evaluation
from node.training.evaluations import Evaluations
from node.training.evaluator import Evaluator, evaluation_engine
from node.training.settings import TrainerSettings
from node.training.spool import Spool
from node.training.warmstart import mean_reward
from protocol.run import EnvironmentSpec, EvaluationSpec, RolloutSpec, RunSpec, encode_run
from protocol.sections import EvaluationEnvironment, LengthBudget
from tests.node.environments.unsure import Unsure

MOST_WAITING = 4

LENGTHS = Path("examples/lengths.toml")
SORT = {"digits": 2, "held_back": 20}


def evaluated(assets: Path, *environments: EvaluationEnvironment) -> dict:
    run = RunSpec(
        name="evaluated",
        environment=EnvironmentSpec(name="sort", args=SORT),
        rollout=RolloutSpec(max_output_tokens=4),
        evaluation=EvaluationSpec(problems=12, environments=environments),
    )
    evaluator = Evaluator(run, assets)
    try:
        return evaluator.evaluate(load_file(assets / "model" / "model.safetensors"), 3)
    finally:
        evaluator.close()


def test_some_answers_are_kept_in_words(tiny_assets: Path) -> None:
    budget = LengthBudget(targets=(2, 3), alpha=0.1, text="{target}")
    run = RunSpec(
        name="read",
        environment=EnvironmentSpec(name="sort", args={"digits": 2, "held_back": 40}),
        rollout=RolloutSpec(max_output_tokens=4, max_prompt_tokens=12),
        evaluation=EvaluationSpec(problems=40),
        length_budget=budget,
    )
    evaluator = Evaluator(run, tiny_assets)
    try:
        found = evaluator.evaluate(load_file(tiny_assets / "model" / "model.safetensors"), 3)
        answers = evaluator.answers()
    finally:
        evaluator.close()
    assert len(answers) == 8 and found["eval_problems"] == 40
    for one in answers:
        assert set(one) == {"problem", "prompt", "answer", "reward", "length", "target", "finished"}
        assert one["prompt"].startswith(str(one["target"])) or one["prompt"].endswith(str(one["target"]))
        assert 1 <= one["length"] <= 4 and one["target"] in (2, 3)


class Obedient:
    """Answers as many tokens as the first number of the prompt says, or always three; all of them a 5."""

    def __init__(self, tokenizer: LocalTokenizer, *, obeys: bool) -> None:
        self._tokenizer, self._obeys = tokenizer, obeys

    def __call__(self, requests: Sequence[GenerationRequest], temperature: float) -> list[Completion]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: GenerationRequest) -> Completion:
        asked = int(self._tokenizer.decode(list(request.prompt))[0]) if self._obeys else 3
        count = min(asked, len(request.uniforms))
        tokens = [*self._tokenizer.encode("5" * (count - 1)), min(self._tokenizer.eos)]
        return Completion(tokens, True, np.zeros((count, 4), dtype=np.uint16))


def test_an_evaluation_sees_the_lengths_that_a_run_teaches(tiny_assets: Path, tmp_path: Path) -> None:
    """Any answer is right, so the task's own score says nothing: the reward that is judged has the length in it."""
    for name in (LENGTHS.name, "own_functions.py"):
        shutil.copyfile(LENGTHS.with_name(name), tmp_path / name)
    (tmp_path / "lengths").mkdir()
    (tmp_path / "lengths" / "model").symlink_to(tiny_assets / "model")
    compiled = compile_run(tmp_path / LENGTHS.name, desk=True)
    run = compiled.spec
    place_files(compiled, tmp_path / "assets")
    tokenizer = LocalTokenizer(tiny_assets / "model")
    environment = load_environment(run.environment, tmp_path / "assets", tokenizer)
    found = {
        obeys: Evaluation(run, environment, {}, Obedient(tokenizer, obeys=obeys)).figures(0) for obeys in (True, False)
    }
    assert found[True]["eval_task_reward"] == found[False]["eval_task_reward"] == 1.0
    assert found[True]["eval_reward"] == 1.0 and found[True]["eval_length_error"] == 0
    assert found[True]["eval_length_correlation"] == pytest.approx(1.0)
    assert found[True]["eval_length_by_target"] == {"2": 2.0, "4": 4.0, "6": 6.0, "8": 8.0}
    away = {"2": 1.0, "4": 1.0, "6": 3.0, "8": 5.0}
    assert found[False]["eval_length_error_by_target"] == away and found[False]["eval_length_correlation"] is None
    assert found[False]["eval_reward"] == pytest.approx(1 - run.length_budget.alpha * 2.5)
    assert not reached_target(run, [found[False]["eval_reward"]] * 10), "the goal is one of lengths"


def test_evaluation_environments_stand_by_label_and_leave_the_runs_own_reward_alone(
    tiny_assets: Path, tmp_path: Path
) -> None:
    (tmp_path / "model").symlink_to(tiny_assets / "model")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("def score(row, answer):\n    return len(row['prompt'])\n")
    asked = EvaluationEnvironment(name="reverse", label="length", args=SORT, reward="mine:score")
    both = evaluated(tmp_path, asked, EvaluationEnvironment(name="reverse", args=SORT))
    table = both["eval_reward_by_environment"]
    assert table["length"] == len("=12=") and set(table) == {"sort", "reverse", "length"}
    alone = evaluated(tmp_path)
    assert "eval_reward_by_environment" not in alone
    assert both["eval_reward"] == alone["eval_reward"] == pytest.approx(table["sort"])
    shown = render({"training": {"latest": both}})
    assert 'intellect_step_eval_reward_by_environment{environment="length"} 4.0' in shown


def test_the_sample_is_of_the_whole_set_and_another_for_each_key() -> None:
    """Of a mix each part has the share that taking turns gives it."""
    chosen = [sample([range(500)], 100, bytes([key]) * 32) for key in range(40)]
    assert all(len(set(one)) == 100 and one == sorted(one) for one in chosen)
    assert chosen[0] != chosen[1] and set().union(*chosen) == set(range(500))
    assert sample([range(500)], 100, bytes(32)) == chosen[0], "the same at every replay"
    assert sample([range(7)], 100, bytes(32)) == list(range(7)), "all of a small set"
    turns = [[0, 2, 4], [1, 3, 5, *range(6, 100)]]
    for key in range(5):
        mixed = sample(turns, 8, bytes([key]) * 32)
        assert len(mixed) == 8 and set(mixed) >= {0, 2, 4}


def test_a_policy_is_evaluated_after_it_is_out_and_once(tiny_assets: Path, tiny_run: RunSpec, tmp_path: Path) -> None:
    """A killed evaluator goes on with the policy that it was at, and finds what it would have found."""
    run = msgspec.structs.replace(tiny_run, recipe=msgspec.structs.replace(tiny_run.recipe, steps=3))
    run = msgspec.structs.replace(run, evaluation=EvaluationSpec(problems=4, every=2))
    spools = [Spool(tmp_path / name) for name in ("straight", "killed")]
    for spool in spools:
        spool.prepare(encode_run(run), tiny_assets)
        for step in range(4):
            shutil.copyfile(tiny_assets / "model" / "model.safetensors", spool.policy_path(step))
            spool.metrics_path(step).write_text(json.dumps({"step": step, "loss": 0.5}))
    straight, killed = spools
    left = Evaluations(straight, run)
    assert left.waiting() == [0, 2, 3] and left.complete(1) and not left.complete(2)
    evaluation.evaluate_all(straight)
    assert left.waiting() == [] and left.next() is None
    told = [straight.record(step) for step in range(4)]
    assert [("eval_reward" in one, one["loss"]) for one in told] == [
        (True, 0.5),
        (False, 0.5),
        (True, 0.5),
        (True, 0.5),
    ]
    assert told[2]["eval_problems"] == 4 and told[2]["eval_held_back"] == 64

    evaluation.evaluate_all(killed)
    killed.evaluation_path(2).unlink()
    written = killed.evaluation_path(3).stat().st_mtime_ns
    evaluation.evaluate_all(killed)
    assert killed.evaluation_path(3).stat().st_mtime_ns == written
    timed = ("eval_seconds",)
    again = [{name: value for name, value in killed.record(step).items() if name not in timed} for step in range(4)]
    assert again == [{name: value for name, value in one.items() if name not in timed} for one in told]


def test_an_evaluator_that_waits_for_a_policy_goes_on_where_a_later_state_is_taken_over(
    tiny_assets: Path, tiny_run: RunSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = msgspec.structs.replace(tiny_run, recipe=msgspec.structs.replace(tiny_run.recipe, steps=3))
    run = msgspec.structs.replace(run, evaluation=EvaluationSpec(problems=4))
    spool = Spool(tmp_path)
    spool.prepare(encode_run(run), tiny_assets)

    def is_made(step: int) -> None:
        shutil.copyfile(tiny_assets / "model" / "model.safetensors", spool.policy_path(step))
        spool.metrics_path(step).write_text(json.dumps({"step": step}))

    def taken_over(seconds: float) -> None:  # policies 1 and 2 are never made here
        is_made(3)
        spool.remember_adopted(3)

    is_made(0)
    monkeypatch.setattr(evaluation.time, "sleep", taken_over)
    evaluation.evaluate_all(spool)
    assert [spool.evaluation_path(step).exists() for step in range(4)] == [True, False, False, True]


def test_training_waits_for_an_evaluator_that_is_far_behind(tiny_run: RunSpec, tmp_path: Path) -> None:
    run = msgspec.structs.replace(tiny_run, recipe=msgspec.structs.replace(tiny_run.recipe, steps=20))
    spool = Spool(tmp_path)
    spool.prepare(encode_run(run), tmp_path)
    left = Evaluations(spool, run)
    for step in range(MOST_WAITING + 1):
        assert not left.behind
        spool.policy_path(step).touch()
        spool.metrics_path(step).write_text("{}")
    assert left.behind
    spool.forget_policies(3, keep=left.waiting())
    assert spool.policy_path(0).exists(), "it has to be evaluated still"
    spool.policy_path(0).unlink()
    assert left.next() == 1 and not left.behind, "what is gone is waited for no longer"


def test_the_evaluator_stays_off_the_learners_gpus_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    def engine(gpus: int, **settings: object) -> tuple[str, str]:
        monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
        chosen = evaluation_engine(TrainerSettings(**settings))
        return chosen.device, chosen.dtype

    assert engine(0) == ("cpu", "float32")
    assert engine(1) == ("cuda:0", "bfloat16")
    assert engine(4, world_size=3) == ("cuda:3", "bfloat16")
    assert engine(4, world_size=4, evaluation_dtype="float32") == ("cuda:0", "float32")
    assert engine(4, evaluation_device="cpu") == engine(4, device="cpu") == ("cpu", "float32")
    assert engine(4, device="cpu", evaluation_device="cuda") == ("cuda:0", "bfloat16")


@pytest.mark.parametrize(("unknown", "judged"), [(0, 40), (4, 36), (5, 35)])
def test_an_answer_without_a_verdict_is_in_no_mean_and_too_many_leave_no_figure(
    tiny_assets: Path, tmp_path: Path, unknown: int, judged: int
) -> None:
    """Every answer is right here. With verdicts that did not come in time it was a mean of 0.9, and looked worse."""
    (tmp_path / "model").symlink_to(tiny_assets / "model")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "mine.py").write_text("def score(row, answer):\n    return 1\n")
    asked = EnvironmentSpec(name="sort", args={"digits": 2, "held_back": 40}, reward="mine:score")
    evaluation = EvaluationSpec(problems=40)
    run = RunSpec(name="unsure", environment=asked, rollout=RolloutSpec(max_output_tokens=4), evaluation=evaluation)
    tokenizer = LocalTokenizer(tiny_assets / "model")
    inner = load_environment(asked, tmp_path, tokenizer)
    never = {inner.held_back_problem(number).problem_id for number in range(unknown)}
    environment = Unsure(inner, lambda problem, times: problem.problem_id in never)
    found = Evaluation(run, environment, {"other": environment}, Obedient(tokenizer, obeys=False)).figures(0)
    assert (found["eval_problems"], found["eval_undecided"]) == (judged, unknown)
    table = {"sort": 1.0, "other": 1.0} if unknown < 5 else {}
    assert found.get("eval_reward") == table.get("sort") and found["eval_reward_by_environment"] == table


@pytest.mark.parametrize("unknown", [0, 4, 5])
def test_a_warm_start_is_not_called_worse_than_it_is(tiny_assets: Path, unknown: int) -> None:
    engine = TorchEngine(tiny_assets / "model")
    engine.load(load_file(tiny_assets / "model" / "model.safetensors"))
    sort = load_environment(EnvironmentSpec(name="sort", args=SORT), tiny_assets, LocalTokenizer(tiny_assets / "model"))

    class Paid(Unsure):
        def score(self, problems: Sequence[Problem], transcripts: Sequence[Transcript]) -> list[float]:
            super().score(problems, transcripts)
            return [0.0 if problem.problem_id in never else 1.0 for problem in problems]

    problems = [sort.problem(number) for number in range(40)]
    never = {problem.problem_id for problem in problems[:unknown]}
    environment = Paid(sort, lambda problem, times: problem.problem_id in never)
    if unknown < 5:
        assert mean_reward(engine, environment, problems, bytes(32), 4) == 1.0
        return
    with pytest.raises(EnvironmentFault, match="5 of 40 answers got no verdict"):
        mean_reward(engine, environment, problems, bytes(32), 4)
