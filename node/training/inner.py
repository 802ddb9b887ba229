"""A peer's inner phase: steps of AdamW or Muon on its own rows, from a shared outer state.

Knows the model, its optimisers and the schedule; knows nothing of files and of other peers, and of other processes only
that they hold shards. The same numbers come out for the same numbers in (one machine, one world size).
"""

import math
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor

from node.training.compiling import compiled_by, make_graphs
from node.training.decay import decay_groups
from node.training.errors import TrainingError
from node.training.memory import during
from node.training.settings import TrainerSettings
from node.training.sharding import decoder_layers, fill, placed, whole
from node.training.text import Rows, TextModel, packed_rows
from node.training.world import World
from protocol.exchange import F32
from protocol.rounds import digest_of, state_root
from protocol.run import RunSpec

Tensors = Callable[[str], F32]
"""A tensor by name, flat or in its shape."""
UPDATES = "updates"
"""Among a peer's own tensors: how many steps its optimisers have made."""


class Inner:
    """A model whose weights and optimisers are those of whatever peer it works for."""

    compiled: str
    """As `Learner.compiled`."""
    model: Any
    parameters: dict[str, Tensor]
    optimizers: list[torch.optim.Optimizer]

    def __init__(self, settings: TrainerSettings | None, world: World | None) -> None:
        self._settings, self._world = settings or TrainerSettings(), world or World()
        self._updates = 0

    @property
    def divisible(self) -> int:
        """Tokens of the largest pass of late that a smaller `micro_batch_tokens` would make smaller; 0: none."""
        raise NotImplementedError

    def _new_optimizers(self) -> list[torch.optim.Optimizer]:
        """Such as have made no step yet."""
        raise NotImplementedError

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the whole tensors, whatever part of them is here."""
        return {name: tuple(parameter.shape) for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def load(self, outer: Tensors) -> None:
        """Put an outer state into the model."""
        for name, parameter in self.parameters.items():
            fill(parameter, _tensor(outer(name), parameter.shape))

    # The optimisers

    @property
    def _fused(self) -> bool:
        on_gpu = self._world.device.type == "cuda" and not self._settings.offload_parameters
        return self._world.mesh is None or on_gpu

    def begin(self, tensor: Tensors | None) -> None:
        """Optimisers as a peer left them, or new ones. tensor: what it kept, by the names of `own_shapes`."""
        self.optimizers, self._updates = self._new_optimizers(), 0
        if tensor is None:
            return
        updates = float(tensor(UPDATES).reshape(-1)[0])
        for optimizer, name, parameter in self._optimized():
            state: dict[str, Any] = {}
            for slot in self._slots(optimizer):
                state[slot] = torch.zeros_like(parameter.detach())
                fill(state[slot], _tensor(tensor(f"{slot}/{name}"), parameter.shape))
            # Muon keeps no count. AdamW has it where its kernel reads it: see Learner.restore_optimizer.
            if "exp_avg" in state:
                place = parameter.device if self._fused else torch.device("cpu")
                state["step"] = torch.tensor(updates, device=place)
            optimizer.state[parameter] = state
        self._updates = int(updates)

    def own_shapes(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what a peer keeps of its optimisers, in name order."""
        found: dict[str, tuple[int, ...]] = {UPDATES: (1,)}
        for optimizer, name, parameter in self._optimized():
            found |= {f"{slot}/{name}": tuple(parameter.shape) for slot in self._slots(optimizer)}
        return dict(sorted(found.items()))

    def own_tensors(self) -> Iterator[tuple[str, F32]]:
        """The same, whole, in name order; all ranks take part in each."""
        held = {name: (optimizer, parameter) for optimizer, name, parameter in self._optimized()}
        for key in self.own_shapes():
            slot, _, name = key.partition("/")
            if key == UPDATES:
                yield key, np.array([self._updates], dtype=np.float32)
                continue
            optimizer, parameter = held[name]
            kept = optimizer.state[parameter].get(slot)
            # A parameter that had no gradient yet is kept as zeros: what the file holds follows from the model alone.
            # Whoever is handed it compares names and shapes before anything else.
            yield key, self._flat(torch.zeros_like(parameter.detach()) if kept is None else kept)

    def _optimized(self) -> Iterator[tuple[torch.optim.Optimizer, str, Tensor]]:
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    yield optimizer, names[id(parameter)], parameter

    @staticmethod
    def _slots(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq") if isinstance(optimizer, torch.optim.AdamW) else ("momentum_buffer",)

    # What others hear of it

    def weights(self) -> Iterator[tuple[str, F32]]:
        """Every weight, whole and flat, in name order; all ranks take part in each."""
        for name, parameter in self.parameters.items():
            yield name, self._flat(parameter.detach())

    def digest(self, step: int) -> bytes:
        """Of weights and optimisers: what a replay of the steps before must come to."""
        shapes = self.shapes | self.own_shapes()
        each = chain(self.weights(), self.own_tensors())
        return state_root(step, ((name, shapes[name], digest_of(values)) for name, values in each))

    def _flat(self, tensor: Tensor) -> F32:
        values: NDArray[Any] = whole(tensor, torch.float32).cpu().numpy()
        return values.reshape(-1)


class InnerLearner(Inner):
    """The model of a run that learns from text."""

    def __init__(
        self, model: Any, run: RunSpec, end: int, settings: TrainerSettings | None = None, world: World | None = None
    ) -> None:
        """end: the token that ends a document."""
        assert run.pretraining and run.diloco
        super().__init__(settings, world)
        self._text, self._rounds, self._recipe, self._end = run.pretraining, run.diloco, run.recipe, end
        self.model = model
        self.compiled = compiled_by(model, self._settings, self._world)
        whole, compiles = TextModel(model, self._settings.logit_cells), bool(self.compiled)
        self._whole: TextModel = placed(whole, self._settings, self._world, compiles=compiles)
        if compiles:
            make_graphs(self._whole, self._pass_of, self._settings.compile_seconds)
        self.parameters: dict[str, Tensor] = dict(sorted(model.named_parameters()))
        self._layers = {id(one) for layer in decoder_layers(model) for one in layer.parameters() if one.ndim == 2}
        self._total = run.recipe.steps * self._rounds.round_steps
        self._divisible = 0
        self.optimizers = self._new_optimizers()

    def _pass_of(self, tokens: int) -> Tensor:
        rows = np.zeros((2, tokens // 2 + 1), dtype=np.int64)
        return self._whole(packed_rows(rows, self._end, self._world.device), 1.0, 0.0)[0]

    @property
    def divisible(self) -> int:
        return self._divisible

    def _new_optimizers(self) -> list[torch.optim.Optimizer]:
        recipe, muon = self._recipe, self._text.optimizer == "muon"
        matrices = [one for one in self.parameters.values() if muon and id(one) in self._layers]
        others = [one for one in self.parameters.values() if not muon or id(one) not in self._layers]
        adamw = torch.optim.AdamW(
            decay_groups(others, recipe.weight_decay),
            lr=self._text.learning_rate,
            betas=(recipe.beta1, recipe.beta2),
            fused=self._fused,
        )
        if not matrices:
            return [adamw]
        # its steps are as large as AdamW's (arXiv 2502.16982), so that one learning rate is right for both
        muon_momentum = 0.95
        own: dict[str, Any] = {"momentum": muon_momentum, "adjust_lr_fn": "match_rms_adamw"}
        decay = recipe.weight_decay
        return [adamw, torch.optim.Muon(matrices, lr=self._text.learning_rate, weight_decay=decay, **own)]

    # Steps

    def step(self, rows: Rows, step: int) -> tuple[float, float]:
        """(mean cross-entropy before the step, norm of the gradient) of inner step `step`, counted over all rounds.

        Raises TrainingError where a number is not finite, and where memory runs out.
        """
        settings = self._settings
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        tokens = rows.shape[0] * (rows.shape[1] - 1)
        sums = torch.zeros(2, device=self._world.device)
        for part in self._passes(rows):
            batch = packed_rows(part, self._end, self._world.device)
            # A rank without rows makes its pass, too, and counts nothing: without it the others could not gather
            # the weights of a layer.
            with during("forward", settings, step):
                loss, parts = self._whole(batch, self._world.size * bool(len(part)) / tokens, self._text.z_loss)
            with during("backward", settings, step):
                loss.backward()  # FSDP averages over ranks; the scale already counts all tokens
            sums += parts if len(part) else 0
        rate = self._text.rate(step, self._total)
        with during("optimizer", settings, step):
            norm = self._clipped(step)
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = rate
                optimizer.step()
        self._updates += 1
        return self._world.sums([float(sums[0])])[0] / tokens, norm

    @torch.no_grad()
    def loss(self, rows: Rows) -> float:
        """Mean cross-entropy, nats per token."""
        total = 0.0
        for part in self._passes(rows):
            with during("forward", self._settings):
                _, parts = self._whole(packed_rows(part, self._end, self._world.device), 1.0, 0.0)
            total += float(parts[0]) if len(part) else 0.0
        return self._world.sums([total])[0] / (rows.shape[0] * (rows.shape[1] - 1))

    def _passes(self, rows: Rows) -> Iterator[Rows]:
        """This rank's rows, a micro-batch at a time; as many on every rank, some of them empty."""
        world, most = self._world, max(1, self._settings.micro_batch_tokens // (rows.shape[1] - 1))
        count = -(-len(rows) // (world.size * most))
        largest = -(-len(rows) // (count * world.size))
        self._divisible = largest * (rows.shape[1] - 1) if largest > 1 else 0
        return iter(np.array_split(rows, count * world.size)[world.rank :: world.size])

    def _clipped(self, step: int) -> float:
        found: Any = torch.nn.utils.clip_grad_norm_(self.parameters.values(), self._recipe.grad_clip)
        norm = float(found.full_tensor() if isinstance(found, DTensor) else found)
        if not math.isfinite(norm):
            raise TrainingError(
                f"training diverged at inner step {step}",
                f"the gradient's norm is {norm}",
                "lower pretraining.learning_rate and start the run again",
            )
        return norm


def _tensor(values: F32, shape: torch.Size) -> Tensor:
    return torch.tensor(values).reshape(shape)
