"""What every process of vLLM gets (its `worker_extension_cls`): our hooks, and the methods that the engine calls there.

The names begin with the program's own, since vLLM mixes this class into its worker.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.inference.engine import F32, F64, U16
from node.inference.image import ImageFile, PatchedWeights
from node.inference.layers import PatchFile
from node.inference.lora import whole_weights
from node.inference.proofs import ProofRows
from node.inference.settings import keep_precision
from node.inference.vllm.hooks import Hooks, RowWatch
from node.inference.vllm.readback import check_weights

HEADS = ("lm_head.weight", "model.embed_tokens.weight")
"""Where the weights of the output head stand: in a tensor of their own, or in the embedding that it is tied to."""


class WorkerExtension:
    """Mixed into vLLM's worker. Errors that are raised here reach the engine."""

    model_runner: Any
    rank: int

    def intellect_attach(self) -> None:
        """Put the hooks in place, once."""
        from node.inference.vllm.v1 import sampler_of

        keep_precision()
        self._intellect = hooks = Hooks(records=self.rank == 0)
        model = self.model_runner.get_model()
        model.compute_logits = lambda hidden, *_, **__: hooks.logits(hidden)
        sampler_of(self.model_runner).hooks = hooks
        model.register_forward_hook(lambda *call: self._intellect_saw(call[-1]))

    def intellect_load(self, path: str, digest: bytes, model_dir: str, load: int) -> None:
        """Replace the weights by those of an image. Raises ModelError for one of another digest."""
        self.intellect_use(ImageFile.checked(Path(path), digest), model_dir, load)

    def intellect_load_patched(
        self, path: str, patches: Sequence[tuple[str, bytes, bytes]], digests: bytes, model_dir: str, load: int
    ) -> None:
        """The same of what patches make of an image, each tensor compared as it is put together."""
        layers = [PatchFile(*one) for one in patches]
        self.intellect_use(PatchedWeights(path, layers, digests), model_dir, load)

    def intellect_use(self, policy: Mapping[str, Tensor], model_dir: str, load: int) -> None:
        """Replace the weights by a policy's, and see that vLLM computes with them. load: their number, from 1.

        Raises EngineError where weights were not taken over.
        """
        weights = whole_weights(Path(model_dir), policy)
        with torch.no_grad():
            self.model_runner.reload_weights(weights_iterator=weights.items())
            # The load's number is the seed: each load is asked for other columns.
            check_weights(self.model_runner.get_model(), weights, seed=load)
        head = next(weights[name] for name in HEADS if name in weights)
        bias = weights.get("lm_head.bias")
        device = self.model_runner.device
        # Copied, also where the model is on the CPU: the file may lie in memory and be another policy's next.
        head, bias = head.to(device, copy=True), None if bias is None else bias.to(device, copy=True)
        self._intellect.use_head(head, bias)

    def intellect_take(self, number: int, count: int) -> U16 | ProofRows | None:
        """Heads, or what was kept of them, of the `count` tokens of a request that has ended; None but in the first
        process."""
        if not self._intellect.records:
            return None
        return self._intellect.recorder.take(number, count)

    def intellect_forget(self, number: int) -> None:
        self._intellect.recorder.forget(number)

    def intellect_watch(self, name: str, places: NDArray[np.int64]) -> None:
        """Keep the rows at these places of a request that is about to be computed."""
        self._intellect.watches[name] = RowWatch(places)

    def intellect_look(self, name: str, drawn: NDArray[np.int64], temperature: float) -> tuple[F64, F64, F32, U16]:
        """(lo, hi, logprob, heads) of the tokens that were drawn at a request's watched places."""
        return self._intellect.look(name, drawn, temperature)

    def intellect_unwatch(self) -> None:
        """Forget what was watched and never looked at."""
        self._intellect.watches.clear()

    def _intellect_saw(self, hidden: Tensor) -> None:
        """After each forward pass of the model: [tokens, hidden] of all requests in the batch."""
        watches = self._intellect.watches
        if not watches:
            return
        from node.inference.vllm.v1 import pieces

        for name, first, begin, end in pieces(self.model_runner):
            if name in watches:
                watches[name].saw(first, hidden[begin:end])
