"""Workers that compute with other experts than a model's routers choose, or say that others did."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from node.inference.engine import Completion, Engine, GenerationRequest, generate
from node.inference.experts import Routes
from node.inference.session import EngineFactory, EngineSession
from node.inference.torch_engine import TorchEngine
from protocol.run import RunSpec
from tests.cheats.sessions import with_sampler


class _Fewer(Routes):
    def choose(self, scores: Tensor) -> Tensor:
        kept = scores.clone()
        kept[:, : scores.shape[1] // 2] -= 1e4
        return super().choose(kept)


class HalfOfTheExperts(EngineSession):
    """Keeps only half of the experts in memory, has routers choose among these, and says so: its tokens, activations
    and experts all fit together."""

    def __init__(self, run: RunSpec, assets: Path, factory: EngineFactory) -> None:
        super().__init__(run, assets, factory)
        assert isinstance(self.engine, TorchEngine) and self.engine.routing is not None
        model, routing = self.engine._model, self.engine.routing
        real = model.routes

        def routes(*said: Any) -> Routes:
            own = real(*said)
            assert own is not None
            return _Fewer(routing, own._given)

        model.routes = routes  # type: ignore[method-assign]


def others_named(engine: Engine, requests: Sequence[GenerationRequest], temperature: float) -> list[Completion]:
    """Computes with the routers' experts, and writes down the first ones."""
    assert engine.routing is not None
    line = np.tile(np.arange(engine.routing.chosen, dtype=np.uint8), engine.routing.layers)
    made = generate(engine, requests, temperature)
    for one in made:
        assert one.experts is not None
        one.experts[:] = line
    return made


OthersNamed = with_sampler(others_named)
