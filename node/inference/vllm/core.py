"""vLLM itself: started, given requests, stepped. The only module that calls it, besides what runs inside of it."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from node.inference.errors import EngineError
from node.inference.vllm.arguments import RUNNER, environment

EXTENSION = "node.inference.vllm.worker.WorkerExtension"
PROCESSOR = "node.inference.vllm.v1:ReplayableSampler"
"""By name: vLLM imports it where tokens are drawn."""


class VllmCore:
    """vLLM with our hooks. Requests have numbers of ours. Raises EngineError."""

    def __init__(self, arguments: Mapping[str, Any], device: str) -> None:
        own = {"worker_extension_cls": EXTENSION, "logits_processors": [PROCESSOR]}
        self._vllm = start({**arguments, **own}, device)
        self.longest: int = self._vllm.model_config.max_model_len
        """Tokens of the longest sequence, prompt and output, that the cache has room for."""
        self.everywhere("intellect_attach")

    def submit(
        self, number: int, prompt: Sequence[int], limit: int, salt: str, ends: Sequence[int] = (), **more: Any
    ) -> str:
        """What vLLM calls the request. salt: requests with another one share no block of the cache; ends: token ids
        that end the output; more: of its SamplingParams."""
        from vllm.inputs import TokensPrompt  # pyright: ignore[reportMissingImports]
        from vllm.sampling_params import RequestOutputKind, SamplingParams  # pyright: ignore[reportMissingImports]

        sampling = SamplingParams(
            temperature=0.0,  # greedy: the logits leave it one choice
            max_tokens=limit,
            stop_token_ids=list(ends),
            ignore_eos=True,  # what vLLM takes for the end; ours stand in stop_token_ids
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
            **more,
        )
        tokens = TokensPrompt(prompt_token_ids=list(prompt), cache_salt=salt)
        return self._vllm.add_request(str(number), tokens, sampling)

    def step(self) -> list[tuple[int, list[int], bool]]:
        """One token for every request that has room; of those that ended (number, output, by an end token)."""
        outputs = _guarded(self._vllm.step)
        ended = [(int(output.request_id), output.outputs[0]) for output in outputs if output.finished]
        return [(number, list(said.token_ids), said.finish_reason == "stop") for number, said in ended]

    def abort(self, numbers: Sequence[int]) -> None:
        """Unknown or finished ones are ignored."""
        self._vllm.abort_request([str(number) for number in numbers])

    def close(self) -> None:
        """End vLLM's processes and give its memory back."""
        self._vllm.engine_core.shutdown()
        del self._vllm

    def everywhere(self, method: str, *arguments: Any) -> Any:
        """Call a method of node.inference.vllm.worker in all of vLLM's processes; what the first answers."""
        return _guarded(lambda: self._vllm.collective_rpc(method, args=arguments))[0]


def start(arguments: Mapping[str, Any], device: str) -> Any:
    """vLLM's engine. Its variables are set before it is imported. Raises EngineError."""
    for name, value in environment(device).items():
        os.environ.setdefault(name, value)
    if os.environ[RUNNER] != "0":
        raise EngineError(
            "vLLM did not start", "its second model runner has no hooks that the engine knows", f"unset {RUNNER}"
        )
    from vllm.engine.arg_utils import EngineArgs  # pyright: ignore[reportMissingImports]
    from vllm.v1.engine.llm_engine import LLMEngine  # pyright: ignore[reportMissingImports]

    try:
        return LLMEngine.from_engine_args(EngineArgs(**arguments))
    except (ValueError, RuntimeError) as error:
        raise EngineError(
            "vLLM did not start",
            " ".join(str(error).split())[:500],
            "see the engine's log; --engine torch does without vLLM",
        ) from error


def _guarded(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except torch.OutOfMemoryError as error:
        raise EngineError("the device has no memory left", str(error)[:300], "use a GPU with more") from error
