"""What `--gguf` writes answers in llama.cpp as the model does here: tokens, and log-probabilities of all of them."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from node.inference.tokenizer import LocalTokenizer
from node.weights.errors import WeightsError
from node.weights.gguf import modelfile, planned, write_gguf
from protocol.policy import bf16_bits, encode_image

pytest.importorskip("gguf", reason="the library gguf is not installed")
llama_cpp = pytest.importorskip("xllamacpp", reason="llama.cpp is not installed: pip install xllamacpp")
tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

SIZES: dict[str, Any] = {
    "vocab_size": 420,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": None,
}
FAR = {"rope_type": "llama3", "rope_theta": 5e3, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FAR |= {"original_max_position_embeddings": 32}
QWEN2 = pytest.importorskip("transformers.models.qwen2.tokenization_qwen2").PRETOKENIZE_REGEX
LLAMA3 = QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
TEXT = (
    "It's 12345 o'clock,  isn't it?\n\n\tÜber 3½ naïve cafés: 你好 世界! \U0001f600 a_b==c  \r\n I'LL "
    "we'Ve 007x  <|end|>done "
)


def tokenizer_file(folder: Path, split: str, *, bos: bool = False) -> None:
    """A byte-level BPE of 420 tokens at most, which cuts texts as `split` says."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors, trainers
    from tokenizers import decoders as of_bytes

    regex = {"qwen2": QWEN2, "llama-bpe": LLAMA3, "dbrx": LLAMA3}.get(split)
    own = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex is None)
    before = {"gpt-2": [], "smollm": [pre_tokenizers.Digits(individual_digits=True)]}.get(split)
    if before is None:
        before = [pre_tokenizers.Split(tokenizers.Regex(regex), "isolated")]
    made = Tokenizer(models.BPE(ignore_merges=split == "llama-bpe"))
    made.pre_tokenizer = pre_tokenizers.Sequence([*before, own]) if before else own
    made.decoder = of_bytes.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=410, special_tokens=["<|begin|>", "<|end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator([TEXT.replace("<|end|>", "")] * 3 + ["the naïve cat isn't 12345, 12 1 345  \n\n"], trainer)
    made.add_tokens([AddedToken("<think>", normalized=False)])
    if bos:
        made.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    made.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|end|>{% endfor %}<assistant>"
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "chat_template": template}))


def model_dir(folder: Path, config: Any, split: str, *, bos: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            random = torch.randn(parameter.shape) * (0.3 if parameter.dim() == 1 else 0.12)
            parameter.copy_(random + 1.0 if "norm" in name else random)
    tensors = {name: bf16_bits(tensor.detach().numpy()) for name, tensor in model.named_parameters()}
    (folder / "model.safetensors").write_bytes(encode_image(tensors))
    config.save_pretrained(folder)
    tokenizer_file(folder, split, bos=bos)
    return folder


def configurations() -> dict[str, tuple[Callable[[], Any], str, bool]]:
    """Name -> (its configuration, how its tokenizer cuts, whether that puts a token before)."""
    from transformers import LlamaConfig, MistralConfig, Olmo2Config, Qwen2Config, Qwen3Config, SmolLM3Config

    biased = {"attention_bias": True, "mlp_bias": True}
    return {
        "llama": (lambda: LlamaConfig(**SIZES, tie_word_embeddings=True), "smollm", False),
        "llama, biased": (lambda: LlamaConfig(**SIZES, **biased), "gpt-2", False),
        "llama, far": (lambda: LlamaConfig(**SIZES, rope_parameters=FAR), "llama-bpe", True),
        "mistral": (lambda: MistralConfig(**SIZES, head_dim=32, sliding_window=None), "dbrx", True),
        "qwen2": (lambda: Qwen2Config(**SIZES, tie_word_embeddings=True), "qwen2", False),
        "qwen3": (lambda: Qwen3Config(**SIZES, head_dim=32), "qwen2", False),
        "smollm3": (lambda: SmolLM3Config(**SIZES, no_rope_layers=[1, 1, 1, 0]), "llama-bpe", False),
        "olmo2": (lambda: Olmo2Config(**SIZES), "dbrx", False),
    }


@contextmanager
def served(file: Path) -> Iterator[Callable[[str, dict[str, Any]], dict[str, Any]]]:
    """llama.cpp's own server with a file."""
    params = llama_cpp.CommonParams()
    params.model.path = str(file)
    params.n_ctx, params.n_parallel, params.warmup, params.n_gpu_layers = 512, 1, False, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.verbosity = -1
    server = llama_cpp.Server(params)
    with httpx.Client(base_url=server.listening_address, timeout=60, trust_env=False) as client:

        def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
            answer = client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()

        yield ask
    del server


def their_logprobs(ask: Callable[[str, dict[str, Any]], dict[str, Any]], prompt: list[int], size: int) -> np.ndarray:
    """Of the next token; where an end token is drawn the server tells none, so that other seeds are tried."""
    asked = {"prompt": prompt, "n_predict": 1, "n_probs": size, "temperature": 1.0, "top_k": 0}
    answers = (ask("/completion", {**asked, "seed": seed}).get("completion_probabilities") for seed in range(16))
    found = np.full(size, -np.inf)
    for one in next(filter(None, answers))[0]["top_logprobs"]:
        found[one["id"]] = one["logprob"]
    return found


def our_logprobs(directory: Path, prompt: list[int]) -> np.ndarray:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([prompt])).logits[0, -1], -1).numpy()


@pytest.mark.parametrize("name", list(configurations()))
def test_llama_cpp_reads_and_computes_what_is_written(name: str, tmp_path: Path) -> None:
    config, split, bos = configurations()[name]
    directory = model_dir(tmp_path / "model", config(), split, bos=bos)
    plan, files = planned(directory), {}
    for kind in ("bf16", "f16", "q8_0"):
        files[kind] = tmp_path / f"m-{kind}.gguf"
        write_gguf(plan, directory, files[kind], kind)
    tokenizer = LocalTokenizer(directory)
    prompt = tokenizer.encode(TEXT)
    ours = our_logprobs(directory, prompt)
    with served(files["bf16"]) as ask:
        assert ask("/tokenize", {"content": TEXT})["tokens"] == prompt
        assert ask("/tokenize", {"content": "a b", "add_special": True})["tokens"] == [0] * bos + tokenizer.encode(
            "a b"
        )
        theirs = their_logprobs(ask, prompt, len(ours))
        chat = ask("/apply-template", {"messages": [{"role": "user", "content": "hi"}]})["prompt"]
        assert chat == tokenizer.render([("user", "hi")])
    assert np.abs(theirs - ours).max() < 0.05, np.abs(theirs - ours).max()
    assert np.std(ours) > 0.5, "a model that says nothing would agree with any"
    for kind, bound in (("f16", 0.05), ("q8_0", 0.3)):
        with served(files[kind]) as ask:
            assert np.abs(their_logprobs(ask, prompt, len(ours)) - ours).max() < bound, kind
    assert files["q8_0"].stat().st_size < 0.8 * files["bf16"].stat().st_size


def refused(directory: Path, change: dict[str, Any] | None = None, file: str = "config.json") -> str:
    if change:
        told = json.loads((directory / file).read_bytes())
        for key, value in change.items():
            table = told
            *above, last = key.split(".")
            for step in above:
                table = table[step]
            table[last] = value
        (directory / file).write_text(json.dumps(told))
    with pytest.raises(WeightsError) as caught:
        planned(directory)
    assert "convert_hf_to_gguf" in caught.value.remedy
    return caught.value.why


def test_what_llama_cpp_would_take_for_something_else_is_refused_by_name(tmp_path: Path, tiny_assets: Path) -> None:
    from transformers import Phi3Config

    def made(name: str) -> Path:
        config, split, bos = configurations()[name]
        return model_dir(tmp_path / str(len(list(tmp_path.iterdir()))), config(), split, bos=bos)

    assert "window of 8 places" in refused(made("mistral"), {"sliding_window": 8})
    assert "without positions" in refused(made("smollm3"), {"no_rope_layers": [1, 0, 1, 0]})
    assert "kind 'yarn'" in refused(
        made("qwen2"),
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 1e4,
                "original_max_position_embeddings": 64,
            }
        },
    )
    tokens = "tokenizer.json"
    assert "byte-level" in refused(tiny_assets / "model")
    assert "pattern" in refused(made("qwen2"), {"pre_tokenizer.pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "[a-z]+"}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ]}, tokens)  # fmt: skip
    assert "pattern" in refused(made("qwen2"), {"model.ignore_merges": True}, tokens)
    assert "'Lowercase'" in refused(made("qwen2"), {"normalizer": {"type": "Lowercase"}}, tokens)
    assert "'phi3' is not written" in refused(
        model_dir(tmp_path / "phi", Phi3Config(**{**SIZES, "pad_token_id": 0}, sliding_window=None), "qwen2")
    )


def test_numbers_that_half_precision_does_not_hold_leave_no_file(tmp_path: Path) -> None:
    config, split, _ = configurations()["qwen3"]
    directory = model_dir(tmp_path / "model", config(), split)
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = 1e6
    save_file(tensors, directory / "model.safetensors")
    plan = planned(directory)
    with pytest.raises(WeightsError, match="no GGUF") as caught:
        write_gguf(plan, directory, tmp_path / "m.gguf", "f16")
    assert "up_proj" in caught.value.why
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert write_gguf(plan, directory, tmp_path / "m.gguf", "bf16") == (tmp_path / "m.gguf").stat().st_size


def test_ollama_is_told_what_it_reads(tmp_path: Path) -> None:
    for family, gguf, line in (
        ("llama", "m.gguf", "FROM .\n"),
        ("qwen3", "m.gguf", "FROM ./m.gguf\n"),
        ("qwen3", None, None),
    ):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
        assert modelfile(tmp_path, gguf) == line
