"""What one submission asks for: its problems, the prompts as the model sees them, length targets and limits.

The same for the worker who answers and the validator who checks: both deal from (policy root, node, index) and the
capacity class in the file's header.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from node.environments.base import Environment, Problem, Transcript
from protocol.budgets import draw_targets, limits, shaped, told
from protocol.identity import Address
from protocol.run import RunSpec


@dataclass(frozen=True, slots=True)
class Tasks:
    """One entry per group. targets: empty where the run has no length budgets; limits: most sampled tokens."""

    run: RunSpec
    problems: list[Problem]
    prompts: list[list[int]]
    targets: tuple[int, ...]
    limits: list[int]

    def rewards(
        self, environment: Environment, groups: Sequence[int], transcripts: Sequence[Transcript]
    ) -> list[float]:
        """Scores of transcripts for the problems of `groups`, shaped by how much was sampled."""
        scores = environment.score([self.problems[group] for group in groups], transcripts)
        if not self.targets:
            return scores
        budget = self.run.length_budget
        return [
            shaped(budget, score, sampled_tokens(transcript), self.targets[group])
            for score, transcript, group in zip(scores, transcripts, groups, strict=True)
        ]


def sampled_tokens(transcript: Transcript) -> int:
    """How many tokens the policy said."""
    return sum(len(segment.tokens) for segment in transcript if segment.sampled)


def deal(
    run: RunSpec,
    environment: Environment,
    problems: list[Problem],
    policy_root: bytes,
    node: Address,
    index: int,
    capacity: int,
) -> Tasks:
    """Raises ValueError for a capacity class that the run does not have."""
    targets = draw_targets(run, policy_root, node, index, capacity)
    asked = problems
    if targets:
        budget = run.length_budget
        asked = [
            replace(problem, prompt=told(budget, problem.prompt, target))
            for problem, target in zip(problems, targets, strict=True)
        ]
    prompts = [environment.prompt_tokens(problem) for problem in asked]
    return Tasks(run, problems, prompts, targets, limits(run, targets))
