"""The task types that can be scored: one table."""

from collections.abc import Sequence

from node.environments.task_types import code, formed, instructions, json_schema, math, reasoning_gym
from node.environments.task_types.base import Question, Row, TaskType, Truth, pure

_MAX_JUDGED = 64 * 1024
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


def _read_judged(info: Row, row: Row) -> Truth:
    solution = row.get("gold_standard_solution") or info.get("gold_standard_solution") or info.get("ground_truth")
    told = info.get("judging_instructions") or ""
    if not isinstance(solution, str) or not isinstance(told, str) or len(solution) + len(told) > _MAX_JUDGED:
        raise ValueError("it needs gold_standard_solution: a text, not too long")
    return (solution, told) if told else (solution,)


class _Unjudged:
    """How good an answer is, judges say. Here nothing is decided: it gives up on every answer."""

    def __init__(self) -> None:
        self.gave_up = 0

    def score(self, questions: Sequence[Question]) -> list[float]:
        self.gave_up += len(questions)
        return [0.0] * len(questions)

    def close(self) -> None:
        """Nothing to stop."""


MARKED_TASKS = frozenset({"marked_math"})
"""That look for a mark, so that a prompt has to ask for one."""
MARKS = ("####", "boxed", "Answer:")
"""What a prompt has that does."""
TASK_TYPES = {
    one.name: one
    for one in (
        TaskType(
            "verifiable_math", "a mathematical answer", "bounded", math.read_truth, lambda _: math.MathematicalScorer()
        ),
        TaskType(
            "marked_math", _MARKED, "bounded", math.read_truth, lambda _: math.MathematicalScorer(math.marked_answer)
        ),
        TaskType("prime_rl_code", _CODE, "bounded", code.read_truth, code.CodeScorer, programs=True),
        TaskType("verifiable_code", _CODE, "bounded", code.read_truth, code.CodeScorer, programs=True),
        TaskType("code_output_prediction", _PREDICTED, "exact", code.read_output, pure(code.output_reward)),
        TaskType("ifeval", _FOLLOWED, "exact", instructions.read_truth, pure(instructions.reward)),
        TaskType("instruction_following", _FOLLOWED, "exact", instructions.read_truth, pure(instructions.reward)),
        # Patterns of a schema are tried in the sandbox, so such rows need the interpreter as programs do.
        TaskType("json_schema", _SCHEMA, "bounded", json_schema.read_truth, json_schema.SchemaScorer, programs=True),
        TaskType("reasoning_gym", _GYM, "bounded", reasoning_gym.read_truth, lambda _: reasoning_gym.ReasoningScorer()),
        TaskType("llm_judgeable_groundtruth_similarity", _JUDGED, "judged", _read_judged, lambda _: _Unjudged()),
        TaskType("unscrambling", _ORDER, "exact", formed.read_sentences, pure(formed.ordered)),
        TaskType("unscramble_sentence", _ORDER, "exact", formed.read_sentences, pure(formed.ordered)),
        TaskType("ascii_tree_formatting", _TREE, "exact", formed.read_truth, pure(formed.tree)),
        TaskType("formatask", _FORM, "exact", formed.read_truth, pure(formed.formed)),
        TaskType("git_diff", _DIFF, "exact", formed.read_diff, pure(formed.diff)),
        TaskType("complex_json_output", _OBJECT, "exact", formed.read_truth, pure(formed.json_object)),
    )
}
