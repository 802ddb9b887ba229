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


@pytest.mark.parametrize("said", ["generation_config.json", "tokenizer_config.json", "chat_template"])
def test_an_answer_ends_where_any_of_the_files_says_that_it_does(tmp_path: Path, said: str) -> None:
    """A base model tuned on chats keeps its base's generation_config.json, and would never stop."""
    write_tokenizer(tmp_path, ALPHABET)
    write_config(tmp_path, len(ALPHABET) + 3, hidden=64, layers=1)
    file = tmp_path / "tokenizer.json"
    known = json.loads(file.read_text())
    (end,) = {one["id"] for one in known["added_tokens"] if one["content"] == "<eos>"} or {1}
    turn = {**known["added_tokens"][0], "id": len(ALPHABET) + 2, "content": "<turn>"}
    file.write_text(json.dumps({**known, "added_tokens": [*known["added_tokens"], turn]}))
    assert LocalTokenizer(tmp_path).eos == {end}  # a control
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    if said == "generation_config.json":
        (tmp_path / said).write_text(json.dumps({"eos_token_id": [end, turn["id"]]}))
    elif said == "tokenizer_config.json":
        (tmp_path / said).write_text(
            json.dumps({**settings, "eos_token": {"__type": "AddedToken", "content": "<turn>"}})
        )
    else:
        template = CHATML.replace("<eos>", "<turn>")
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": template}))
    found = LocalTokenizer(tmp_path)
    assert found.eos == {end, turn["id"]}
    assert found.end == end, "what is put behind a text of its own stays the model's own"


def test_a_directory_that_names_no_end_is_refused(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, ALPHABET)
    write_config(tmp_path, len(ALPHABET) + 2, hidden=64, layers=1)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        told = json.loads((tmp_path / name).read_text())
        (tmp_path / name).write_text(json.dumps({k: v for k, v in told.items() if not k.startswith("eos_token")}))
    with pytest.raises(ModelError, match="which token ends"):
        LocalTokenizer(tmp_path)
