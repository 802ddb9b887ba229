"""Alarms: when a run's numbers look like trouble. Pure; records come in, in the order of their steps.

The signs are those of published runs that collapsed: entropy falls, then rises; the mismatch between sampler and
trainer grows; gradient norms grow; then the reward goes (INTELLECT-2, arXiv 2505.07291, section 4.3).
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from protocol.sections import Alarms


class Alarm(msgspec.Struct, frozen=True):
    """name: stable; step: where it began to ring; value and limit: what was compared; text: for people."""

    name: str
    step: int
    value: float
    limit: float
    text: str


class AlarmBook:
    """Which alarms ring now. `active`: by name."""

    def __init__(self, settings: Alarms) -> None:
        self._settings = settings
        self._recent: dict[str, deque[float]] = {}
        self._norms: deque[float] = deque(maxlen=1000)  # steps that the gradient norm's median is over
        self._lowest_entropy = math.inf
        self._best_reward = -math.inf
        self._silent = 0
        self.active: dict[str, Alarm] = {}

    def feed(self, record: Mapping[str, Any]) -> list[Alarm]:
        """Take in one step's record; returns the alarms that begin to ring with it."""
        step = int(record.get("step", 0))
        ringing = [alarm for alarm in self._check(step, record) if alarm]
        fresh = [alarm for alarm in ringing if alarm.name not in self.active]
        # The first word stays, with the step at which it began.
        self.active = {alarm.name: self.active.get(alarm.name, alarm) for alarm in ringing}
        return fresh

    def wait(self, step: int, batches: int) -> list[Alarm]:
        """So many batches in a row had no signal, so that no policy follows `step`; returns what begins to ring."""
        alarm = self._silence(step, self._silent + batches, "batches")
        if alarm is None or alarm.name in self.active:
            return []
        self.active[alarm.name] = alarm
        return [alarm]

    def _check(self, step: int, record: Mapping[str, Any]) -> list[Alarm | None]:
        return [
            self._entropy(step, self._mean("entropy", record)),
            self._mismatch(step, self._mean("mismatch_kl", record), record.get("mismatch_kl")),
            self._gradient(step, self._mean("grad_norm", record), record.get("grad_norm")),
            self._reward(step, self._mean("reward_mean", record)),
            self._signal(step, record.get("informative_share")),
        ]

    def _mean(self, name: str, record: Mapping[str, Any]) -> float | None:
        """The mean of the last `window` values, None until there are so many."""
        values = self._recent.setdefault(name, deque(maxlen=self._settings.window))
        value = record.get(name)
        if isinstance(value, int | float):
            values.append(float(value))
        return statistics.fmean(values) if len(values) == self._settings.window else None

    def _entropy(self, step: int, mean: float | None) -> Alarm | None:
        limit = self._settings.entropy_rise
        if mean is None or not limit:
            return None
        self._lowest_entropy = min(self._lowest_entropy, mean)
        # Below a thousandth of a nat a policy is as good as certain: twice nothing is no alarm.
        if mean <= limit * self._lowest_entropy or mean < 1e-3:
            return None
        text = f"entropy {mean:.3g} is more than {limit:g} times its lowest, {self._lowest_entropy:.3g}"
        return Alarm("entropy_rise", step, mean, limit * self._lowest_entropy, text)

    def _mismatch(self, step: int, mean: float | None, value: float | None) -> Alarm | None:
        limit = self._settings.mismatch
        # Times the limit of a mismatch at which one step is enough: then samples are of another policy, or the step
        # was.
        gross = 4.0
        if limit and value is not None and value > gross * limit:
            text = f"sampler and trainer differ by {value:.3g} nats per token in one step: lower the learning rate"
            return Alarm("mismatch", step, value, gross * limit, text)
        if mean is None or not limit or mean <= limit:
            return None
        text = f"sampler and trainer differ by {mean:.3g} nats per token, more than {limit:g}"
        return Alarm("mismatch", step, mean, limit, text)

    def _gradient(self, step: int, mean: float | None, value: float | None) -> Alarm | None:
        limit = self._settings.grad_norm
        # Before this step's norm joins them: a jump must not raise what it is compared with.
        # With fewer steps, the window would be the larger part of the median.
        usual = statistics.median(self._norms) if len(self._norms) >= 2 * self._settings.window else None
        if value is not None:
            self._norms.append(float(value))
        if mean is None or usual is None or not limit or mean <= limit * usual:
            return None
        text = f"the gradient's norm {mean:.3g} is more than {limit:g} times the usual {usual:.3g}"
        return Alarm("grad_norm", step, mean, limit * usual, text)

    def _reward(self, step: int, mean: float | None) -> Alarm | None:
        drop = self._settings.reward_drop
        if mean is None or not drop:
            return None
        self._best_reward = max(self._best_reward, mean)
        limit = (1 - drop) * self._best_reward
        if self._best_reward < 0.05 or mean >= limit:  # a best mean reward below this cannot collapse
            return None
        text = f"mean reward {mean:.3g} has lost more than {drop:.0%} of its best, {self._best_reward:.3g}"
        return Alarm("reward_collapse", step, mean, limit, text)

    def _signal(self, step: int, share: float | None) -> Alarm | None:
        if share is None:
            return None
        self._silent = self._silent + 1 if share == 0 else 0
        return self._silence(step, self._silent, "steps")

    def _silence(self, step: int, count: int, what: str) -> Alarm | None:
        limit = self._settings.no_signal
        if not limit or count < limit:
            return None
        text = f"all rewards of every group were equal for {count} {what}: there is nothing to learn from"
        return Alarm("no_signal", step, float(count), float(limit), text)
