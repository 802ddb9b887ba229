"""The task types that can be scored: one table."""

from node.environments.task_types import (
    code,
    code_output,
    formed,
    instructions,
    json_schema,
    judged,
    math,
    reasoning_gym,
)
from node.environments.task_types.base import TaskType

_CODE = "a Python program that passes tests, run in the sandbox"
_FOLLOWED = "an answer that follows instructions on length, words and form"
_MARKED = "a mathematical answer in a box, or behind #### or Answer:"
_PREDICTED = "what a program prints, as JSON"
_SCHEMA = "JSON that fits a schema"
_GYM = "what a data set of reasoning-gym pays (an extra)"
_JUDGED = "an answer that judges compare with a good one"
_ORDER = "numbered sentences in their order, in <unscrambled_text>"
_TREE = "a tree drawn with characters, in <ascii_formatted>"
_FORM = "a text in exactly the form that is asked for"
_DIFF = "a unified diff with exactly the changes that are asked for"
_OBJECT = "a JSON object equal to the right one"

TASK_TYPES = {
    one.name: one
    for one in (
        TaskType("verifiable_math", "a mathematical answer", "bounded", math.read_truth, math.open_scorer),
        TaskType("marked_math", _MARKED, "bounded", math.read_truth, math.open_marked),
        TaskType("prime_rl_code", _CODE, "bounded", code.read_truth, code.CodeScorer, programs=True),
        TaskType("verifiable_code", _CODE, "bounded", code.read_truth, code.CodeScorer, programs=True),
        TaskType("code_output_prediction", _PREDICTED, "exact", code_output.read_truth, code_output.open_scorer),
        TaskType("ifeval", _FOLLOWED, "exact", instructions.read_truth, instructions.open_scorer),
        TaskType("instruction_following", _FOLLOWED, "exact", instructions.read_truth, instructions.open_scorer),
        TaskType("json_schema", _SCHEMA, "bounded", json_schema.read_truth, json_schema.SchemaScorer, programs=True),
        TaskType("reasoning_gym", _GYM, "bounded", reasoning_gym.read_truth, reasoning_gym.open_scorer),
        TaskType("llm_judgeable_groundtruth_similarity", _JUDGED, "judged", judged.read_truth, judged.open_scorer),
        TaskType("unscrambling", _ORDER, "exact", formed.read_sentences, formed.opener("unscrambling")),
        TaskType("unscramble_sentence", _ORDER, "exact", formed.read_sentences, formed.opener("unscrambling")),
        TaskType("ascii_tree_formatting", _TREE, "exact", formed.read_truth, formed.opener("ascii_tree_formatting")),
        TaskType("formatask", _FORM, "exact", formed.read_truth, formed.opener("formatask")),
        TaskType("git_diff", _DIFF, "exact", formed.read_diff, formed.opener("git_diff")),
        TaskType("complex_json_output", _OBJECT, "exact", formed.read_truth, formed.opener("complex_json_output")),
    )
}
