"""What an engine process needs to know of a task: its environment, and the problems and seeds of one shard.

Environments of tasks are kept, the few that were used last. Knows nothing of leases, nodes or results.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from node.environments.base import Environment, Problem, Tokenizer
from node.environments.registry import load_environment
from node.inference.errors import EngineError
from node.inference.guarded import Guarded
from node.inference.opinions import load_opinions
from node.inference.wire import ShardOrder
from protocol.errors import ProtocolError
from protocol.run import RunSpec
from protocol.tasks import SUBJECT, Part, TaskId, TaskSpec, decode_task, run_of_shard, shard_seed, task_id

KEPT = 3


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
        known = self._kept.pop(id, None)
        self._kept[id] = known or self._load(spec, Path(order.assets_dir))
        while len(self._kept) > KEPT:
            del self._kept[next(iter(self._kept))]  # closed once no job uses it
        return self._kept[id]

    def _load(self, spec: TaskSpec, assets: Path) -> Environment:
        base: Callable[[], Environment] = lambda: self._own  # noqa: E731 - loaded only where it is needed
        if spec.environment is not None:
            own = spec.environment
            base = lambda: load_environment(own, assets, self._tokenizer)  # noqa: E731
        if spec.kind != "judge":
            return Guarded(base())
        return Guarded(load_opinions(assets / SUBJECT, base(), self._tokenizer))

    def close(self) -> None:
        """Stop the helpers of the environments that tasks brought along."""
        for id in list(self._kept):
            self._kept.pop(id).close()
