"""A dishonest engine: solves problems of its own choice, the easy ones, instead of the drawn ones.

`python -m tests.cheats.own_problems` is a drop-in for `python -m node.inference.process`. Everything else
about it is honest: tokens, activations, sampling.
"""

from node.environments.base import Problem
from node.inference.process import main
from node.inference.session import EngineSession

CANDIDATES = 2000


class OwnProblems(EngineSession):
    def problems(self) -> list[Problem]:
        candidates = (self.environment.problem(i) for i in range(min(CANDIDATES, self.environment.size)))
        return sorted(candidates, key=_effort)[: self.run.rollout.prompts_per_file]


def _effort(problem: Problem) -> int:
    """How many characters of the answer do not stand in the prompt at the same place."""
    answer = problem.answer[0]
    return sum(a != b for a, b in zip(answer, problem.prompt.ljust(len(answer)), strict=False))


if __name__ == "__main__":
    main(OwnProblems)
