"""Which of the two samplers vLLM's model runner takes, by name: vLLM imports it where tokens are drawn."""

import os


def processors() -> list[str | type]:
    module = "v2" if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1" else "v1"
    return [f"node.inference.vllm.{module}:ReplayableSampler"]
