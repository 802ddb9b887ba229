"""Messages are read off tokens only where the template makes these very tokens of them."""

from pathlib import Path

import pytest

from node.tasks.conversations import ConversationMessage, Conversations
from tests.node.inference.test_tokenizer import CHATML, LAST_ONLY, NO_END, tokenizer

NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + CHATML
SHOTS = [("user", "ab"), ("assistant", "cd"), ("user", "ef")]


@pytest.mark.parametrize("template", [CHATML, NO_END, NO_SYSTEM])
def test_a_prompt_is_told_as_the_messages_that_it_was_made_of(tmp_path: Path, template: str) -> None:
    texts = tokenizer(tmp_path, template)
    told = [SHOTS[:1], SHOTS] if template is NO_SYSTEM else [SHOTS[:1], SHOTS, [("system", "be good"), *SHOTS]]
    for said in told:
        assert Conversations(texts).prompt(texts.encode_messages(said)) == [ConversationMessage(*one) for one in said]


@pytest.mark.parametrize("template", [CHATML, NO_END, LAST_ONLY])
def test_plain_text_is_one_message_with_every_letter(tmp_path: Path, template: str) -> None:
    texts = tokenizer(tmp_path, template)
    for text in ("ab cd", "[user]ab", "user:ab"):
        tokens = texts.encode(text)
        assert Conversations(texts).prompt(tokens) == [ConversationMessage("user", text)]
        assert Conversations(texts).response([2, *tokens, 3], [1, len(tokens), 1])[1] == ConversationMessage(
            "user", text
        )


@pytest.mark.parametrize("template", [CHATML, NO_END])
def test_what_the_environment_said_is_told_without_the_template_around_it(tmp_path: Path, template: str) -> None:
    texts = tokenizer(tmp_path, template)
    reply = texts.encode_reply("higher")
    said = Conversations(texts).response([2, *reply, 3], [1, len(reply), 1])
    assert [one.role for one in said] == ["assistant", "user", "assistant"] and said[1].content == "higher"
