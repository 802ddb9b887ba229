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
from protocol.values import reward_tag


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

    def witnessed(self, environment: Environment) -> list[int]:
        """The groups whose rewards a server says."""
        return [group for group, problem in enumerate(self.problems) if environment.is_witnessed(problem)]


def heard(witnessed: Sequence[int], rewards: Sequence[float], group_size: int) -> str:
    """What a file's header says of the rewards of such groups, among all of the file; empty where there are none.

    Whoever comes to the same words about the file has heard the same rewards.
    """
    told = [reward for group in witnessed for reward in rewards[group * group_size : (group + 1) * group_size]]
    return reward_tag(told).hex() if told else ""


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
