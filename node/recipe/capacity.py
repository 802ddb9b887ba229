"""Which length budgets fit this machine: the capacity class that a worker puts into its files.

Class c may be dealt the first c + 1 targets of the run. The class is the highest whose longest answers this node can
make in the time that the run gives a file, at the speed that it has measured, and whose key-value cache fits its
memory. Pure, but for the two functions that measure.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from node import limits
from node.hardware import Gpu
from node.inference.architectures import recalling_layers
from node.inference.errors import ModelError
from node.inference.model_files import language_config, read_json
from protocol.run import RunSpec


class MachineCapacity(msgspec.Struct, frozen=True):
    """memory: free bytes for a cache; cache_per_token: bytes of key-value cache per token of one sequence; gpu_memory:
    the same of its largest GPU, 0 without."""

    memory: int
    cache_per_token: int
    gpu_memory: int = 0


class CapacityGauge:
    """Speed as measured file by file, and the class that follows.

    speed: tokens per second, prompts left out, as far as is known before the first file; without it the class begins
    with 0. believed: whether the others have seen the machine's GPU compute (node.swarm.claims): until then it counts
    as one without.
    """

    def __init__(
        self,
        run: RunSpec,
        machine: MachineCapacity,
        speed: float | None = None,
        believed: Callable[[], bool] = lambda: False,
    ) -> None:
        self._run = run
        self._machine = machine
        self._believed = believed
        self.speed = speed

    def note(self, output_tokens: int, seconds: float) -> None:
        """One file was made in `seconds`."""
        if seconds <= 0 or output_tokens <= 0:
            return
        speed = output_tokens / seconds
        # Slow enough that one file on a busy machine does not change the class, quick enough for ten to do so.
        smoothing = 0.7
        self.speed = speed if self.speed is None else smoothing * self.speed + (1 - smoothing) * speed

    @property
    def capacity(self) -> int:
        """The class for the next file."""
        targets = self._run.length_budget.targets
        # Targets ascend, so those that fit are the first ones.
        return max(sum(self._fits(target) for target in targets) - 1, 0)

    def _fits(self, target: int) -> bool:
        """Whether a file full of answers of this length can be made in time and memory."""
        if self.speed is None:
            return False
        rollout = self._run.rollout
        seconds = rollout.samples_per_file * target / self.speed
        tokens = rollout.group_size * (rollout.max_prompt_tokens + target)
        memory = self._machine.gpu_memory if self._believed() else self._machine.memory
        # Of the memory that is free: the rest is for weights, activations and other programs.
        fits = tokens * self._machine.cache_per_token <= 0.5 * memory
        return seconds <= self._run.length_budget.seconds and fits


def measure(assets: Path, gpus: tuple[Gpu, ...] = ()) -> MachineCapacity:
    """This machine and the run's model. Blocking: call from a thread."""
    largest = max((gpu.memory for gpu in gpus), default=0)
    return MachineCapacity(limits.memory().free, cache_per_token(assets / "model" / "config.json"), largest)


def cache_per_token(config: Path) -> int:
    """Bytes of keys and values per token: 2 * layers that attend * key-value heads * head dimension * bytes of each.

    0, which limits nothing, if the description does not say them.
    """
    try:
        model = language_config(read_json(config))
        heads = int(model["num_attention_heads"])
        layers = int(model["num_hidden_layers"]) - recalling_layers(model)
        key_heads = int(model.get("num_key_value_heads") or heads)
        dimension = int(model.get("head_dim") or int(model["hidden_size"]) // heads)
    except (ModelError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        return 0
    # Bytes of a number in the cache: the engines compute in fp32 on a CPU; a GPU engine's bf16 needs half of that.
    cache_bytes = 4
    return 2 * layers * key_heads * dimension * cache_bytes
