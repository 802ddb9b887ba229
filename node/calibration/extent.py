"""How much is measured, and how far that is: a model's size decides how long a sample takes."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from node.calibration.alternatives import OTHER_DRAWS, other_weights
from node.inference.settings import EngineSettings
from node.inference.torch_engine import build_model, image_names
from protocol.run import RunSpec

Progress = Callable[[str, int, int], None]
"""(stage, how much is done, of how much)."""
MOST, LEAST = 256, 64
"""Samples of each kind of work. What fewer leave open, the tables allow (node.calibration.calibrate._expectations)."""
CPU_WORK, GPU_WORK = 2e13, 2e15
"""Multiplications and additions: some minutes of one core, or of a GPU."""
AT_ONCE = 32
"""Samples between two words of progress."""


class Stage:
    """Samples that are made or looked at, as progress."""

    def __init__(self, progress: Progress, name: str, total: int) -> None:
        self._progress, self._name, self._total = progress, name, total
        self._done = 0
        progress(name, 0, total)

    def parts(self, count: int, first: int = 0) -> Iterator[slice]:
        """Of samples from `first` up to `count`, so few at a time that there is something to tell."""
        return (slice(at, min(at + AT_ONCE, count)) for at in range(first, count, AT_ONCE))

    def advance(self, samples: int) -> None:
        self._done += samples
        self._progress(self._name, self._done, self._total)


def most_samples(run: RunSpec, model: Path, settings: Sequence[EngineSettings]) -> int:
    """Of each kind of work, LEAST to MOST: what an engine for this model does in some minutes. Raises ModelError."""
    parameters = sum(tensor.numel() for tensor in image_names(build_model(model, "meta")).values())
    tokens = run.rollout.max_prompt_tokens + run.rollout.max_output_tokens
    kinds = len(settings) + len(OTHER_DRAWS) + len(other_weights({}, 0.0))
    looks = 1 + len(settings)  # made once, looked at by each
    on_cpu = any(one.device == "cpu" for one in settings)
    affordable = (CPU_WORK if on_cpu else GPU_WORK) / (2 * parameters * tokens * kinds * looks)
    return int(min(MOST, max(LEAST, affordable)))
