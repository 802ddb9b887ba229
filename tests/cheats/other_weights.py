"""A dishonest engine: samples with weights that are not the policy's (as if quantised, or an older model).

`python -m tests.cheats.other_weights` is a drop-in for `python -m node.inference.process`. It solves the
drawn problems with the drawn random numbers.
"""

import torch

from node.inference.engine import Weights
from node.inference.process import main
from node.inference.session import EngineSession

NOISE = 0.05
"""Standard deviation of the error, relative to that of each tensor."""


class OtherWeights(EngineSession):
    def adjust(self, weights: Weights) -> Weights:
        random = torch.Generator().manual_seed(0)
        return {name: _disturbed(tensor, random) for name, tensor in weights.items()}


def _disturbed(tensor: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    exact = tensor.float()
    return exact + NOISE * exact.std(correction=0) * torch.randn(exact.shape, generator=random)


if __name__ == "__main__":
    main(OtherWeights)
