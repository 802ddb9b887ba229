"""What a chat template says between two turns."""

import json
from pathlib import Path

import pytest

from node.inference.errors import ModelError
from node.inference.tokenizer import LocalTokenizer
from node.training.warmstart import write_config, write_tokenizer

CHATML = (
    "{% for m in messages %}{{ '[' + m.role + ']' + m.content + '<eos>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)
NO_END = "{% for m in messages %}{{ m.role + ':' + m.content + ' ' }}{% endfor %}assistant:"
LAST_ONLY = "{{ messages[-1].content }}"
ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEF-[]: "


def tokenizer(place: Path, template: str) -> LocalTokenizer:
    write_tokenizer(place, ALPHABET)
    write_config(place, len(ALPHABET) + 2, hidden=64, layers=1)
    settings = place / "tokenizer_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "chat_template": template}))
    return LocalTokenizer(place)


def test_a_reply_stands_between_the_end_of_one_turn_and_the_next(tmp_path: Path) -> None:
    """With the first message and the answer before it, it is what the template makes of the whole conversation."""
    tokens = tokenizer(tmp_path, CHATML)
    (end,) = tokens.eos
    whole = "[user]ab<eos>[assistant]cd<eos>[user]ef<eos>[assistant]"
    assert [*tokens.encode_chat("ab"), *tokens.encode("cd"), end, *tokens.encode_reply("ef")] == tokens.encode(whole)


def test_a_template_without_end_tokens_gives_up_nothing(tmp_path: Path) -> None:
    tokens = tokenizer(tmp_path, NO_END)
    assert tokens.decode(tokens.encode_reply("ef")) == " user:ef assistant:"


def test_a_template_that_forgets_earlier_turns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="several turns"):
        tokenizer(tmp_path, LAST_ONLY).encode_reply("ef")
