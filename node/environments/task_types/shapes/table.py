"""Which shapes there are, and which one a row has; each form that is read in a few lines."""

from collections.abc import Mapping
from typing import Any

from node.environments.task_types.shapes import intellect
from node.environments.task_types.shapes.base import (
    Published,
    TaskShape,
    id_of,
    is_mathematical,
    is_no_answer,
    mapping,
    no_pictures,
    number_as_text,
    one_truth,
    only_known,
    only_text,
    present,
    whole_question,
)
from node.environments.task_types.shapes.columns import TABLE
from node.environments.task_types.shapes.intellect import MARK, mathematics, truths_of
from node.environments.task_types.shapes.tests import DEEPCODER, LIVECODEBENCH, PLACES, read_tests

_GSM8K = "GSM8K"


def _is_gsm8k(row: Mapping[str, Any]) -> bool:
    return "question" in row and isinstance(row.get("answer"), str) and MARK in row["answer"]


def _gsm8k(row: Mapping[str, Any]) -> Published:
    """Question, and an answer whose last line is `#### 72`."""
    question, truth = row["question"], row["answer"].rpartition(MARK)[2].strip().replace(",", "")
    if not isinstance(question, str) or not truth:
        raise ValueError("a question or what stands behind #### is missing")
    whole_question(row)
    info = {"ground_truth": truth}
    return Published(_GSM8K, id_of(row.get("id"), question), question, "marked_math", info, row["answer"])


_GYM = "reasoning-gym"


def _is_gym(row: Mapping[str, Any]) -> bool:
    return {"question", "metadata"} <= row.keys() and "source_dataset" in str(row["metadata"])


def _gym(row: Mapping[str, Any]) -> Published:
    """What its data sets hold, exported as they are. Many answers may be right, and only its data set knows which."""
    metadata = mapping(row["metadata"], "metadata")
    entry = {"question": row["question"], "answer": row.get("answer"), "metadata": metadata}
    info = {"dataset_name": metadata.get("source_dataset"), "entry": entry}
    return Published(_GYM, id_of(row.get("id"), entry), row["question"], "reasoning_gym", info)


_VERL = "verl"
_VERL_CODE = ("codecontests", "apps", "codeforces", "taco", "livecodebench")
_VERL_MATHEMATICS = ("gsm8k", "math", "aime", "numina", "amc", "olympiad", "minerva")


def _verl(row: Mapping[str, Any]) -> Published:
    """verl and DAPO. DAPO-Math-17k holds each of its problems about a hundred times: equal rows are one problem."""
    source, ability = str(row["data_source"]), str(row.get("ability", "")).lower()
    model = mapping(row["reward_model"], "reward_model")
    only_known(model, {"style", "ground_truth"}, "reward_model")
    if not str(model.get("style", "rule")).startswith("rule") or "ground_truth" not in model:
        raise ValueError(f"its reward_model is {str(model.get('style'))[:40]!r}, not a rule with a ground_truth")
    task, form, info = _verl_reading(source, ability, model["ground_truth"])
    extra = mapping(row.get("extra_info"), "extra_info")
    name = f"{source}-{extra.get('split', '')}-{extra['index']}"[:256] if "index" in extra else None
    return Published(f"{_VERL}, {form}", id_of(name, row["prompt"], info), row["prompt"], task, info)


def _verl_reading(source: str, ability: str, truth: Any) -> tuple[str, str, dict[str, Any]]:
    last = source.lower().rpartition("/")[2]
    if last.startswith(_VERL_CODE) or ability in ("code", "coding"):
        form, tests = read_tests({"tests": truth})
        return "prime_rl_code", f"tests: {form.partition(' in ')[0]}", {"language": "python", "test_cases": tests}
    if last.startswith(_VERL_MATHEMATICS) or ability == "math":
        return "marked_math", "mathematics", {"ground_truth": truths_of(truth)}
    raise ValueError(f"rows of the data source {source[:80]!r} (ability {ability[:40]!r}) are not scored here")


_MATH = "MATH"


def _is_solved(row: Mapping[str, Any]) -> bool:
    if "problem" not in row or "tests" in row or "reward_model" in row:
        return False
    others = row.keys().isdisjoint(("final_answer", "expected_answer", "ground_truth"))
    return "answer" in row or ("solution" in row and others)


def _solved(row: Mapping[str, Any]) -> Published:
    """MATH, AIME and NuminaMath: problem, with an answer or a solution that boxes it."""
    problem, solution = row["problem"], row.get("solution")
    if not isinstance(problem, str):
        raise ValueError("problem is no text")
    whole_question(row)
    if str(row.get("question_type")).lower() == "proof":
        raise ValueError("it asks for a proof, which is not scored here")
    for column in ("problem_is_valid", "solution_is_valid"):
        if str(row.get(column, "Yes")) != "Yes":
            raise ValueError(f"its publisher says {column} = {str(row[column])[:40]!r}")
    truth = present({"ground_truth": row.get("answer")})
    _, form, info = mathematics("verifiable_math", truth, solution)
    name = id_of(row.get("unique_id", row.get("id")), problem)
    form = "gold solution" if form == "gold solution" else "answer"
    return Published(f"{_MATH}, {form}", name, problem, "verifiable_math", info, solution)


_VERIFIERS = "verifiers v0"
_VERIFIERS_MATHEMATICS = ("default", "math", "gsm8k", "math500", "aime2024", "aime2025", "amc2023")


def _is_verifiers_v0(row: Mapping[str, Any]) -> bool:
    named = "answer" in row and ("question" in row or "prompt" in row)
    named = named and row.keys().isdisjoint(("reward_model", "final_answer", "expected_answer"))
    # Rows that fit two forms are refused, so the loosest form leaves the others theirs.
    return named and not (isinstance(row["answer"], str) and MARK in row["answer"]) and not _is_gym(row)


def _verifiers_v0(row: Mapping[str, Any]) -> Published:
    """What scores such rows stands in their package. Taken is what has one meaning: tests in the info, and answers that
    are mathematics. Prose is refused, since comparing it as mathematics would score every answer 0."""
    prompt, task = row.get("prompt", row.get("question")), row.get("task", "default")
    info = mapping(row.get("info"), "info")
    name = id_of(row.get("example_id", row.get("id")), prompt, info)
    if task == "code" or {*PLACES, "inputs", "outputs"} & info.keys():
        _, form, read_info = intellect.code("prime_rl_code", info, None)
        return Published(f"{_VERIFIERS}, {form.partition(' in ')[0]}", name, prompt, "prime_rl_code", read_info)
    whole_question(row)
    answer = number_as_text(row["answer"])
    if task not in _VERIFIERS_MATHEMATICS:
        raise ValueError(
            f"the task {str(task)[:80]!r} is scored by its package; give the row a task_type of `env list`"
        )
    if info:
        raise ValueError(f"what its info says ({', '.join(map(str, info))[:80]}) is known to its package only")
    if not isinstance(answer, str) or not is_mathematical(answer) or is_no_answer(answer):
        raise ValueError("its answer is no mathematics, and how else to compare it is known to its package only")
    return Published(f"{_VERIFIERS}, mathematics", name, prompt, "marked_math", {"ground_truth": answer})


SHAPES = (
    intellect.SHAPE,
    LIVECODEBENCH,
    DEEPCODER,
    TaskShape(
        _VERL,
        "data_source, prompt, reward_model",
        lambda row: {"data_source", "prompt", "reward_model"} <= row.keys(),
        _verl,
    ),
    TaskShape(_GSM8K, "question, answer with ####", _is_gsm8k, _gsm8k),
    TaskShape(_GYM, "question, answer, metadata.source_dataset", _is_gym, _gym),
    TaskShape(_MATH, "problem, answer or solution", _is_solved, _solved),
    TaskShape(_VERIFIERS, "question or prompt, answer", _is_verifiers_v0, _verifiers_v0),
    *(columns.shape() for columns in TABLE),
)


def read_published(raw: Mapping[str, Any]) -> Published:
    """A row in the one form that task types read. Raises ValueError that says what is wrong."""
    row = present(raw)
    no_pictures(row)
    one_truth(row)
    fitting = [shape for shape in SHAPES if shape.fits(row)]
    if not fitting:
        # Problem, Answer: as spreadsheets and AIME's publishers write them.
        small = {str(key).strip().lower().replace(" ", "_"): value for key, value in row.items()}
        row, fitting = small, [shape for shape in SHAPES if shape.fits(small)]
    if not fitting:
        forms = "; ".join(dict.fromkeys(f"{shape.name}: {shape.columns}" for shape in SHAPES))
        has = ", ".join(map(str, list(raw)[:12])) or "nothing"
        raise ValueError(f"it has no task_type, and the columns of no published form; it has {has} ({forms})")
    if len(fitting) > 1:
        raise ValueError(f"it has the truths of two forms, {fitting[0].name} and {fitting[1].name}: leave one out")
    published = fitting[0].read(row)
    only_text(published.prompt)
    return published
