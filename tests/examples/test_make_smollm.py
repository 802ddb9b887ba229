"""The maker of examples/smollm.toml: rows that can be scored, and a GGUF file's Llama as Hugging Face has it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from examples.gguf_llama import config, halves, hugging_face_name, write_tokenizer
from examples.make_smollm import PACKAGES, problems, row, write_rows
from examples.pinned import CONSTRAINTS
from node.environments.files import read_rows
from node.inference.chat_template import has_chat_template
from node.inference.tokenizer import LocalTokenizer
from node.run.file import load_run_file

FACTS: dict[str, Any] = {
    "llama.embedding_length": 576,
    "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3,
    "llama.feed_forward_length": 1536,
    "llama.block_count": 30,
    "llama.context_length": 8192,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
    "llama.rope.freq_base": 100000.0,
    "tokenizer.ggml.tokens": ["<|end|>", "1", "2", "12", "a", "b", "ab"],
    "tokenizer.ggml.token_type": [3, 1, 1, 1, 1, 1, 1],
    "tokenizer.ggml.merges": ["1 2", "a b"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.ggml.padding_token_id": 0,
    "tokenizer.chat_template": "{{ messages[0]['content'] }}",
}


def test_every_problem_shows_another_of_its_kind_solved_and_has_an_answer(tmp_path: Path) -> None:
    made = list(problems())
    assert len({problem.text for problem in made}) > 0.9 * len(made)
    for number, problem in enumerate(made):
        left, sign, right, _, result = problem.solution.split()
        assert int(result) == (int(left) + int(right) if sign == "+" else int(left) - int(right))
        said = row(number, problem)["prompt"]
        assert [one["role"] for one in said] == ["system", "user", "assistant", "user"]
    assert write_rows(tmp_path) == len(made)
    assert list(read_rows(tmp_path / "train.jsonl")) == list(read_rows(tmp_path / "train.parquet"))
    lines = (tmp_path / "words.jsonl").read_text().splitlines()
    words = [json.loads(line)["prompt"][-1]["content"] for line in lines]
    assert len(words) == len(set(words)) > 100


def test_what_it_fetches_is_pinned_and_its_run_file_can_be_read() -> None:
    pinned = CONSTRAINTS.read_text().splitlines()
    assert all(any(line.startswith(f"{name}==") for line in pinned) for name in PACKAGES)
    lengths = load_run_file(Path("examples/smollm_lengths.toml"))
    assert lengths.length_budget.targets[-1] < lengths.rollout.max_output_tokens
    rollout = load_run_file(Path("examples/smollm.toml")).rollout
    assert rollout.max_output_tokens < 16 and rollout.prompts_per_step % rollout.prompts_per_file == 0


def test_the_halves_of_heads_stand_as_hugging_face_wants_them() -> None:
    """What llama.cpp's converter does to query and key weights, undone."""
    heads, width = 3, 8
    ours = np.arange(heads * width * 5, dtype=np.float32).reshape(heads * width, 5)
    theirs = ours.reshape(heads, 2, width // 2, 5).swapaxes(1, 2).reshape(ours.shape)
    assert not np.array_equal(theirs, ours)
    assert np.array_equal(halves(theirs, heads), ours)


def test_tensors_have_names_of_a_llama_and_others_are_refused() -> None:
    assert hugging_face_name("blk.29.ffn_norm.weight") == "model.layers.29.post_attention_layernorm.weight"
    assert hugging_face_name("output_norm.weight") == "model.norm.weight"
    for strange in ("blk.0.ssm_a.weight", "blk.x.attn_q.weight", "rope_freqs.weight"):
        with pytest.raises(ValueError, match="none of a Llama model"):
            hugging_face_name(strange)


def test_the_description_has_numbers_as_people_wrote_them() -> None:
    made = SimpleNamespace(**config(FACTS, tied=True))
    assert (made.rms_norm_eps, made.head_dim, made.vocab_size, made.tie_word_embeddings) == (1e-05, 64, 7, True)


def test_the_tokenizer_takes_digits_one_by_one_and_ends_where_the_model_does(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, FACTS)
    (tmp_path / "config.json").write_text(json.dumps(config(FACTS, tied=True)))
    tokenizer = LocalTokenizer(tmp_path)
    assert tokenizer.encode("ab12<|end|>") == [6, 1, 2, 0]
    assert tokenizer.decode([6, 1, 2, 0]) == "ab12"
    assert tokenizer.eos == {0} and has_chat_template(tmp_path)
