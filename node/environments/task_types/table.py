"""The task types that can be scored: one table."""

from node.environments.task_types import code, code_output, judged, math
from node.environments.task_types.base import TaskType

_CODE = "a Python program that passes tests, run in the sandbox"

TASK_TYPES = {
    one.name: one
    for one in (
        TaskType("verifiable_math", "a mathematical answer", "bounded", math.read_truth, math.open_scorer),
        TaskType("prime_rl_code", _CODE, "bounded", code.read_truth, code.CodeScorer, programs=True),
        TaskType("verifiable_code", _CODE, "bounded", code.read_truth, code.CodeScorer, programs=True),
        TaskType(
            "code_output_prediction",
            "what a program prints, as JSON",
            "exact",
            code_output.read_truth,
            code_output.open_scorer,
        ),
        TaskType(
            "llm_judgeable_groundtruth_similarity",
            "an answer that judges compare with a good one",
            "judged",
            judged.read_truth,
            judged.open_scorer,
        ),
    )
}
