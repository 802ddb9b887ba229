"""The task types that can be scored: one table."""

from node.environments.task_types import code, code_output, instructions, json_schema, judged, math, reasoning_gym
from node.environments.task_types.base import TaskType

_CODE = "a Python program that passes tests, run in the sandbox"
_FOLLOWED = "an answer that follows instructions on length, words and form"

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
        TaskType("ifeval", _FOLLOWED, "exact", instructions.read_truth, instructions.open_scorer),
        TaskType("instruction_following", _FOLLOWED, "exact", instructions.read_truth, instructions.open_scorer),
        TaskType(
            "json_schema",
            "JSON that fits a schema",
            "bounded",
            json_schema.read_truth,
            json_schema.SchemaScorer,
            programs=True,
        ),
        TaskType(
            "reasoning_gym",
            "what a data set of reasoning-gym pays (an extra)",
            "bounded",
            reasoning_gym.read_truth,
            reasoning_gym.open_scorer,
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
