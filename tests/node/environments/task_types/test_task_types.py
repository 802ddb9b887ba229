"""Rows of the published task types as they occur in the wild, and what answers to them are worth."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from node.environments.base import one_answer
from node.environments.errors import DatasetError, EnvironmentFault
from node.environments.errors import Undecided as Slow
from node.environments.programs import ProgramRunner
from node.environments.registry import load_environment, needs_runtime
from node.environments.task_types import code, instructions, json_schema, reasoning_gym, table
from node.environments.task_types.table import TASK_TYPES
from node.sandbox import SandboxLimits, Undecided
from protocol.run import EnvironmentSpec
from tests.node.environments.sandboxes import OpenSandbox
from tests.node.environments.tokens import Characters


def load(path: Path, rows: list[dict[str, Any]], **args: Any):
    (path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    arguments = {"path": "d.jsonl", "held_back_share": 0.3} | args
    return load_environment(EnvironmentSpec(name="dataset", args=arguments), path, Characters())


def row(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "problem_id": number,
        "prompt": [{"role": "user", "content": f"{number} + 1 =", "extra": None}],
        "task_type": "verifiable_math",
        "verification_info": str({"ground_truth": str(number + 1), "more": None}),
    } | changes


def test_integer_ids_chats_and_python_reprs_are_taken(tmp_path: Path) -> None:
    environment = load(tmp_path, [row(number) for number in range(30)])
    assert environment.size + environment.held_back == 30
    problem = environment.problem(0)
    number = int(problem.problem_id)
    assert (problem.prompt, problem.answer) == (f"{number} + 1 =", (str(number + 1),))
    right = one_answer(Characters().encode(f"{number + 1}\n"))
    assert environment.score([problem], [right]) == [1.0]
    environment.close()


def test_a_chat_of_several_messages_needs_a_template(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
    rows = [row(number, prompt=chat) for number in range(30)]
    with pytest.raises(DatasetError, match="line 1: the prompt is a chat.*template = 'plain'"):
        load(tmp_path, rows)
    environment = load(tmp_path, rows, template="chat")
    tokens = environment.prompt_tokens(environment.problem(0))
    assert Characters().decode(tokens) == "<system>Be brief.<user>Why?<assistant>"


def test_a_null_info_is_good_where_nothing_of_it_is_needed(tmp_path: Path) -> None:
    likeness = {"task_type": "llm_judgeable_groundtruth_similarity", "verification_info": None}
    rows = [row(n, **likeness, gold_standard_solution="because") for n in range(30)]
    environment = load(tmp_path, rows)
    assert environment.determinism == "judged" and environment.problem(0).answer == ("because",)
    assert environment.is_judged(environment.problem(0))
    answers = [one_answer(Characters().encode("because\n"))] * 2
    assert environment.score([environment.problem(0)] * 2, answers) == [0.0, 0.0] and environment.gave_up == 2
    with pytest.raises(DatasetError, match="line 31: verification_info needs ground_truth"):
        load(tmp_path, [*rows, row(30, verification_info=None)])


def model_with(annotation: str) -> dict[str, Any]:
    source = f"from pydantic import BaseModel\nclass A(BaseModel):\n    a: {annotation!r}\n"
    return {"task_type": "pydantic_adherance", "verification_info": {"pydantic_config": source, "model_name": "A"}}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (model_with("List["), "the type 'List[' is no Python"),
        (model_with("int\0"), "is no Python"),
        (model_with("(" * 5000), "is no Python"),
        (model_with("-" * 20_000 + "1"), "is no Python"),
        ({"task_type": "verifiable_maths"}, "did you mean 'verifiable_math'"),
        ({"task_type": "poetry"}, "use one of"),
        ({"verification_info": "{'a': __import__('os')}"}, "neither JSON"),
        ({"verification_info": "{'a': " + "[" * 40 + "]" * 40 + "}"}, "not JSON"),
        ({"verification_info": "{'a': '" + "x" * 300_000 + "'}"}, "not JSON"),
        ({"verification_info": "['a']"}, "not JSON"),
        ({"verification_info": [1]}, "verification_info"),
        ({"prompt": []}, "the prompt is empty"),
        ({"prompt": [{"role": "assistant", "content": "x"}]}, "not the user's"),
        ({"prompt": [{"role": "tool", "content": "x"}]}, "Invalid enum value"),
        ({"prompt": [{"role": "user"}]}, "content"),
        ({"problem_id": [1]}, "problem_id"),
        ({"verification_info": {"ground_truth": "2", "tolerance": 1}}, "which may change what is right"),
        ({"verification_info": {"ground_truth": True}}, "ground_truth"),
        ({"gold_standard_solution": "so \\boxed{7}"}, "two truths"),
        ({"task_type": "ifeval", "verification_info": {"instruction_id_list": [[]]}}, "of another type"),
        ({"task_type": "verifiable_code", "verification_info": {"test_cases": []}}, "any program would pass"),
    ],
)
def test_other_rows_are_refused_with_file_line_and_remedy(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(DatasetError) as caught:
        load(tmp_path, [row(0), row(1, **changes)])
    assert says in caught.value.why and "d.jsonl, line 2: " in caught.value.why and caught.value.remedy


def test_a_data_set_is_as_dependable_as_its_least_row_and_says_whether_it_runs_programs(tmp_path: Path) -> None:
    tests = {"test_cases": [{"input": "", "output": "1"}]}
    program = {"task_type": "prime_rl_code", "verification_info": tests}
    predicted = {"task_type": "code_output_prediction", "verification_info": {"ground_truth": "3"}}
    for kinds, expected, runs in (((predicted,), "exact", False), ((predicted, program), "bounded", True)):
        environment = load(tmp_path, [row(n, **kinds[n % len(kinds)]) for n in range(40)])
        assert environment.determinism == expected
        assert not environment.is_judged(environment.problem(0))
        assert needs_runtime("dataset", {"path": "d"}, {"d": tmp_path / "d.jsonl"}) is runs
    assert not needs_runtime("sort", {}, {})


@pytest.mark.parametrize(
    ("answer", "truth", "reward"),
    [
        ('I think so. {"output": "3"}', "3", 1.0),
        ('{"output": "4"} no, rather:\n```json\n{"output": "3"}\n```', "3", 1.0),
        ('{"output": "3"} no, rather {"output": "4"}', "3", 0.0),
        ('{"output": {"a": [1]}}', {"a": [1]}, 1.0),
        ('<think>{"output": "3"}</think> 3', "3", 0.0),
        ('{"output": "3"', "3", 0.0),
        ("{" * 100_000, "3", 0.0),
        ("3", "3", 0.0),
    ],
)
def test_a_predicted_output_stands_in_the_last_object(answer: str, truth: Any, reward: float) -> None:
    assert code.output_reward(answer, code.read_output({"ground_truth": truth}, {})) == reward


@pytest.mark.parametrize("truth", [float("inf"), [float("nan")]])
def test_an_output_that_no_answer_could_equal_is_refused(truth: Any) -> None:
    with pytest.raises(ValueError, match="ground_truth has a number that is infinite"):
        code.read_output({"ground_truth": truth}, {})


FOLLOWED = [
    ("keywords:existence", {"keywords": ["tea"]}, "I like tea.", "I like teal."),
    ("keywords:frequency", {"keyword": "a", "frequency": 2, "relation": "at least"}, "a b A", "a b"),
    ("keywords:forbidden_words", {"forbidden_words": ["b"]}, "bb a", "a b"),
    ("keywords:letter_frequency", {"letter": "x", "let_frequency": 2, "let_relation": "less than"}, "x", "xX"),
    ("length_constraints:number_words", {"num_words": 3, "relation": "at least"}, "a b c", "a b"),
    ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "exactly"}, "A. B!", "A."),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n\nb"),
    ("detectable_content:number_placeholders", {"num_placeholders": 1}, "Dear [name]", "Dear name"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "x\np.s. y", "x"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a"),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "so *it* is", "so it is"),
    ("detectable_format:multiple_sections", {"section_spliter": "Part", "num_sections": 2}, "Part 1 Part 2", "Part 1"),
    ("detectable_format:json_format", {}, '```json\n{"a": 1}\n```', "{a: 1}"),
    ("detectable_format:title", {}, "<<Poem>> x", "Poem"),
    ("detectable_format:constrained_response", {}, "My answer is yes.", "yes"),
    ("change_case:english_capital", {}, "YES 1", "Yes"),
    ("change_case:english_lowercase", {}, "yes 1", "Yes"),
    ("change_case:capital_word_frequency", {"capital_frequency": 1, "capital_relation": "at most"}, "A b", "A B"),
    ("startend:end_checker", {"end_phrase": "Bye."}, "x bye.", "bye. x"),
    ("startend:quotation", {}, '"x"', 'x"'),
    ("punctuation:no_comma", {}, "a b", "a, b"),
    ("combination:repeat_prompt", {"prompt_to_repeat": "Why?"}, "why? so", "so"),
    ("combination:two_responses", {}, "a ****** b", "a ****** a"),
]


@pytest.mark.parametrize(("name", "settings", "good", "bad"), FOLLOWED)
def test_an_instruction_is_followed_or_not(name: str, settings: dict[str, Any], good: str, bad: str) -> None:
    info = {"instruction_id_list": [name], "kwargs": [settings | {"nothing": None}]}
    truth = instructions.read_truth(info, {})
    assert [instructions.reward(text, truth) for text in (good, f"<think>,</think>{good}", bad, "")] == [1, 1, 0, 0]


def test_every_instruction_is_tried_and_all_must_be_followed() -> None:
    assert {name for name, *_ in FOLLOWED} == {*instructions.CHECKS}
    names = ["punctuation:no_comma", "startend:quotation"]
    truth = instructions.read_truth({"instruction_id_list": names, "kwargs": None}, {})
    assert [instructions.reward(text, truth) for text in ('"a b"', '"a, b"', "a b")] == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("info", "why"),
    [
        ({}, "needs instruction_id_list"),
        ({"instruction_id_list": ["punctuation:no_commas"]}, "did you mean 'punctuation:no_comma'"),
        ({"instruction_id_list": ["startend:quotation"], "kwargs": []}, "as many kwargs"),
        ({"instruction_id_list": ["startend:quotation"], "kwargs": [{"x": 1}]}, "wrong arguments"),
        ({"instruction_id_list": ["startend:quotation"], "kwargs": ["x"]}, "wrong arguments"),
        (
            {"instruction_id_list": ["length_constraints:number_words"], "kwargs": [{"num_words": 1, "relation": "?"}]},
            "wrong arguments",
        ),
    ],
)
def test_instructions_that_cannot_be_checked_are_refused(info: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        instructions.read_truth(info, {})


PERSON = {
    "type": "object",
    "required": ["name", "tags"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "minLength": 1, "pattern": "^[A-Z]"},
        "age": {"$ref": "#/$defs/years"},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "maxItems": 2},
        "pair": {"prefixItems": [{"type": "integer"}, {"const": None}], "items": False},
        "either": {"oneOf": [{"type": "string"}, {"multipleOf": 0.5, "exclusiveMaximum": 3}], "not": {"const": "x"}},
    },
    "$defs": {"years": {"type": "integer", "minimum": 0}},
}
FITS = {
    '{"name": "A", "tags": []}': 1.0,
    'Here: ```json\n{"name": "A", "tags": ["a", "b"], "age": 3.0, "pair": [1, null]}\n```': 1.0,
    '{"name": "A", "tags": [], "either": 1.5}': 1.0,
    '{"name": "a", "tags": []}': 0.0,
    '{"name": "A"}': 0.0,
    '{"name": "A", "tags": [], "more": 1}': 0.0,
    '{"name": "A", "tags": ["c"]}': 0.0,
    '{"name": "A", "tags": ["a", "a"]}': 0.0,
    '{"name": "A", "tags": [], "age": -1}': 0.0,
    '{"name": "A", "tags": [], "age": true}': 0.0,
    '{"name": "A", "tags": [], "pair": [1, null, 2]}': 0.0,
    '{"name": "A", "tags": [], "either": "x"}': 0.0,
    '{"name": "A", "tags": [], "either": 3}': 0.0,
    "[1]": 0.0,
    "not JSON": 0.0,
    "": 0.0,
}


def test_json_fits_a_schema_or_not() -> None:
    scorer = TASK_TYPES["json_schema"].open(ProgramRunner(OpenSandbox, SandboxLimits()))
    truth = json_schema.read_truth({"json_schema": json.dumps(PERSON)}, {})
    assert scorer.score([(text, truth) for text in FITS]) == [*FITS.values()]
    assert isinstance(scorer, json_schema.SchemaScorer) and isinstance(scorer._sandbox, OpenSandbox)
    asked = len(scorer._sandbox.calls)
    scorer._sandbox.fail_with["fits"] = Undecided("no", "slow", "wait")
    assert scorer.score([(next(iter(FITS)), truth), ("[2]", truth)]) == [1.0, 0.0] and scorer.gave_up == 1
    assert len(scorer._sandbox.calls) == asked + 1
    scorer.close()


def test_a_right_answer_is_paid_although_its_batch_is_more_than_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_schema, "_REMEMBERED", 2)
    scorer = TASK_TYPES["json_schema"].open(ProgramRunner(OpenSandbox, SandboxLimits()))
    truth = json_schema.read_truth({"json_schema": {"type": "integer"}}, {})
    assert scorer.score([("1", truth)]) == [1.0]
    answers = ["1", "2", "x", "3", "4", "1"]
    assert scorer.score([(answer, truth) for answer in answers]) == [1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    assert scorer.gave_up == 0
    scorer.close()


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (None, "needs json_schema"),
        ("{", "not JSON"),
        ({"properties": {"a": {"minLenght": 1}}}, "did you mean 'minLength'"),
        ({"items": {"$ref": "http://x/y"}}, "nothing is fetched"),
        ({"format": "date"}, "is not checked here"),
        ({"items": {"$ref": "#/$defs/none"}}, "which is not there"),
        ({"type": "strin"}, "did you mean 'string'"),
        ({"type": ["null", "int"]}, "'int' does not exist"),
        ({"anyOf": []}, "anyOf is wrong"),
        ({"items": {"required": "a"}}, "required is wrong"),
        ({"not": {"minLength": -1}}, "minLength is wrong"),
        ({"multipleOf": 0}, "not above 0"),
        ({"properties": {"a": 5}}, "properties is wrong"),
        ({"description": "x" * 70_000}, "more than"),
    ],
)
def test_schemas_that_are_not_checked_are_refused(schema: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        json_schema.read_truth({"json_schema": schema}, {})


class Gym:
    """As node.environments.reasoning.environment.ReasoningGym. Pays for what stands in the entry."""

    asked = 0

    def score_published(self, dataset: str, row: dict[str, Any], answer: str) -> float:
        self.asked += 1
        if answer == "slow":
            raise Slow("no", "slow", "wait")
        return 1.0 if answer == row["answer"] else 0.0625  # as chain_sum pays for any answer

    def close(self) -> None:
        self.asked = 0


def test_a_row_of_reasoning_gym_is_paid_by_its_data_set() -> None:
    gym = Gym()
    scorer = reasoning_gym.ReasoningScorer(gym)  # type: ignore[arg-type]
    entry = {"question": "1 + 1", "answer": "2", "metadata": {}}
    truth = reasoning_gym.read_truth({"dataset_name": "chain_sum", "entry": entry}, {})
    other = {"reasoning_gym_dataset": "chain_sum", "reasoning_gym_entry": json.dumps(entry)}
    assert reasoning_gym.read_truth(other, {}) == truth
    answers = ["2", "so <answer>2</answer>", "3", "2", ""]
    assert scorer.score([(answer, truth) for answer in answers]) == [1.0, 1.0, 0.0, 1.0, 0.0] and gym.asked == 2
    assert scorer.score([("slow", truth)] * 2) == [0.0, 0.0] and scorer.gave_up == 2
    scorer.close()


def test_a_member_without_reasoning_gym_learns_it_when_it_loads_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INTELLECT_NODE_REASONING_GYM_PYTHON", sys.executable)
    monkeypatch.setattr("node.environments.reasoning.environment._CHILD", tmp_path / "missing.py")
    entry = {"question": "1 + 1", "answer": "2", "metadata": {"source_dataset": "chain_sum"}}
    with pytest.raises(EnvironmentFault, match="needs reasoning-gym"):
        load(tmp_path, [entry | {"question": str(number)} for number in range(30)])


@pytest.mark.parametrize(
    ("info", "why"),
    [
        ({}, "needs dataset_name"),
        ({"dataset_name": "countdown", "entry": {"answer": "1"}}, "'countdown' are not scored"),
        ({"dataset_name": "chain_sums", "entry": {"answer": "1"}}, "not scored"),
        ({"dataset_name": "chain_sum", "entry": "{"}, "not JSON"),
        ({"dataset_name": "chain_sum", "entry": {"answer": "x" * 300_000}}, "more than"),
    ],
)
def test_rows_of_reasoning_gym_that_cannot_be_scored_are_refused(info: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        reasoning_gym.read_truth(info, {})


def test_judges_are_told_what_a_good_answer_is() -> None:
    info = {"judging_instructions": "Look at the units."}
    assert table._read_judged(info, {"gold_standard_solution": "5 m"}) == ("5 m", "Look at the units.")
    with pytest.raises(ValueError, match="gold_standard_solution"):
        table._read_judged({}, {"gold_standard_solution": None})
