"""verl and DAPO: data_source, prompt, ability, reward_model {style, ground_truth}, extra_info {index, split}.

DAPO-Math-17k holds each of its problems about a hundred times: equal rows are one problem.
"""

from collections.abc import Mapping
from typing import Any

from node.environments.task_types.shapes.base import Published, Shape, id_of, mapping, only_known
from node.environments.task_types.shapes.intellect import truths_of
from node.environments.task_types.shapes.tests import read_tests

NAME = "verl"
_CODE = ("codecontests", "apps", "codeforces", "taco", "livecodebench")
_MATHEMATICS = ("gsm8k", "math", "aime", "numina", "amc", "olympiad", "minerva")


def read(row: Mapping[str, Any]) -> Published:
    source, ability = str(row["data_source"]), str(row.get("ability", "")).lower()
    model = mapping(row["reward_model"], "reward_model")
    only_known(model, {"style", "ground_truth"}, "reward_model")
    if not str(model.get("style", "rule")).startswith("rule") or "ground_truth" not in model:
        raise ValueError(f"its reward_model is {str(model.get('style'))[:40]!r}, not a rule with a ground_truth")
    task, form, info = _reading(source, ability, model["ground_truth"])
    extra = mapping(row.get("extra_info"), "extra_info")
    name = f"{source}-{extra.get('split', '')}-{extra['index']}"[:256] if "index" in extra else None
    return Published(f"{NAME}, {form}", id_of(name, row["prompt"], info), row["prompt"], task, info, several=True)


def _reading(source: str, ability: str, truth: Any) -> tuple[str, str, dict[str, Any]]:
    last = source.lower().rpartition("/")[2]
    if last.startswith(_CODE) or ability in ("code", "coding"):
        form, tests = read_tests({"tests": truth})
        return "prime_rl_code", f"tests: {form.partition(' in ')[0]}", {"language": "python", "test_cases": tests}
    if last.startswith(_MATHEMATICS) or ability == "math":
        return "marked_math", "mathematics", {"ground_truth": truths_of(truth)}
    raise ValueError(f"rows of the data source {source[:80]!r} (ability {ability[:40]!r}) are not scored here")


SHAPE = Shape(
    NAME,
    "data_source, prompt, reward_model",
    lambda row: {"data_source", "prompt", "reward_model"} <= row.keys(),
    read,
)
