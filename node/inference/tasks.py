"""What one submission asks for: its problems, the prompts as the model sees them, length targets and limits.

The same for the worker who answers and the validator who checks: both deal from (policy root, node, index) and the
capacity class in the file's header.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from node.environments.base import Environment, Problem, Tokenizer, Transcript
from node.environments.registry import load_environment
from node.inference.errors import EngineError
from node.inference.guarded import Guarded
from node.inference.opinions import load_opinions
from node.inference.turns import sampled_tokens
from node.inference.wire import ShardOrder
from protocol.budgets import limits, shaped, told
from protocol.errors import ProtocolError
from protocol.run import RunSpec
from protocol.tasks import SUBJECT, Part, TaskId, TaskSpec, decode_task, run_of_shard, shard_seed, task_id
from protocol.values import reward_tag


@dataclass(frozen=True, slots=True)
class DrawnTasks:
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


def deal(
    run: RunSpec,
    environment: Environment,
    problems: list[Problem],
    targets: tuple[int, ...],
) -> DrawnTasks:
    """targets: of lengths, as drawn; none where the run has no budgets."""
    asked = problems
    if targets:
        budget = run.length_budget
        asked = [
            # The target is in what the model reads only. Scorers get the problem as it is.
            replace(problem, prompt=told(budget, problem.prompt, target))
            for problem, target in zip(problems, targets, strict=True)
        ]
    prompts = [environment.prompt_tokens(problem) for problem in asked]
    return DrawnTasks(run, problems, prompts, targets, limits(run, targets))


# What an engine process needs to know of a task: its environment, and the problems and seeds of one shard.
# Environments of tasks are kept, the few that were used last. Knows nothing of leases, nodes or results.


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of a task. run: by which its file is made and checked; policy_root: of the policy that answers."""

    task: TaskId
    spec: TaskSpec
    number: int
    run: RunSpec
    environment: Environment
    policy_root: bytes

    def problems(self) -> list[Problem]:
        """One per group. Raises EngineError for numbers that the environment does not have."""
        numbers = self.spec.numbers(self.number)
        try:
            return [problem_of(self.environment, self.spec.part, number) for number in numbers]
        except IndexError as error:
            raise EngineError(
                "a task cannot be done", str(error), "its owner must ask for problems that there are"
            ) from None

    def seed(self, group: int, sample: int) -> bytes:
        """The 32-byte seed of one answer's random numbers."""
        return shard_seed(self.task, self.number, group, sample)


def problem_of(environment: Environment, part: Part, number: int) -> Problem:
    """A problem of a task's numbering. Raises IndexError."""
    if part == "held_out":
        return environment.held_back_problem(_within(number, environment.held_back))
    if part == "all" and number >= environment.size:
        return environment.held_back_problem(_within(number - environment.size, environment.held_back))
    return environment.problem(_within(number, environment.size))


def problems_in(environment: Environment, part: Part) -> int:
    """How many problems a task's numbering has."""
    training = environment.size if part != "held_out" else 0
    return training + (environment.held_back if part != "training" else 0)


def _within(number: int, size: int) -> int:
    if not 0 <= number < size:
        raise IndexError(f"problem {number} of {size}")
    return number


class Shards:
    """Opens shards for one session."""

    def __init__(self, run: RunSpec, assets: Path, environment: Environment, tokenizer: Tokenizer) -> None:
        self._run = run
        self._assets = assets
        self._own = environment
        self._tokenizer = tokenizer
        self._kept: dict[TaskId, Environment] = {}

    def open(self, order: ShardOrder, number: int) -> Shard:
        """Raises EngineError for a task or number that is none, EnvironmentFault for an environment that is none."""
        try:
            spec = decode_task(order.spec)
            run = run_of_shard(self._run, spec, number)
        except (ProtocolError, IndexError) as error:
            raise EngineError("a task cannot be done", str(error), "report this: the daemon sent it") from None
        id = task_id(order.spec)
        return Shard(id, spec, number, run, self._environment(id, spec, order), order.policy_root)

    def _environment(self, id: TaskId, spec: TaskSpec, order: ShardOrder) -> Environment:
        if spec.environment is None and spec.kind != "judge":
            return self._own
        # Taken out and put in again it is the newest: the one that was used longest ago goes first.
        known = self._kept.pop(id, None)
        self._kept[id] = known or self._load(spec, Path(order.assets_dir))
        while len(self._kept) > 3:
            del self._kept[next(iter(self._kept))]  # closed once no job uses it
        return self._kept[id]

    def _load(self, spec: TaskSpec, assets: Path) -> Environment:
        own = spec.environment
        found = self._own if own is None else load_environment(own, assets, self._tokenizer)
        if spec.kind != "judge":
            return Guarded(found)
        try:
            return Guarded(load_opinions(assets / SUBJECT, found, self._tokenizer))
        finally:
            if found is not self._own:  # asked for its answers and no more
                found.close()

    def close(self) -> None:
        """Stop the helpers of the environments that tasks brought along."""
        for id in list(self._kept):
            self._kept.pop(id).close()
