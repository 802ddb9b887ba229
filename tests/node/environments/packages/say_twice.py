"""A package of verifiers v1 as anybody could publish it: two turns, and a reward for the second answer."""

import verifiers.v1 as vf
from verifiers.v1.envs.single_agent import SingleAgentEnv


class TwiceData(vf.TaskData):
    word: str


class TwiceTask(vf.Task[TwiceData]):
    @vf.reward(weight=1.0)
    async def said_it(self, trace: vf.Trace) -> float:
        last = trace.branches[-1].messages[-1]
        return float((last.content or "").strip() == self.data.word)


class TwiceConfig(vf.TasksetConfig):
    num_tasks: int = 5


class TwiceTaskset(vf.Taskset[TwiceTask, TwiceConfig]):
    def load(self) -> list[TwiceTask]:
        words = ["abc", "xyz", "dog", "cat", "sun", "sky", "sea"]
        return [
            TwiceTask(TwiceData(prompt=f"Say {w}.", word=w), self.config.task)
            for w in (words * 100)[: self.config.num_tasks]
        ]


class TwiceEnv(SingleAgentEnv):
    async def run(self, task: TwiceTask, agents: vf.Agents) -> None:
        async with agents.agent.interaction(task) as chat:
            await chat.turn()
            await chat.turn("Again, please.")


__all__ = ["TwiceTaskset", "TwiceEnv"]
