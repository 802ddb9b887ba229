"""A model directory's chat template: messages in, the text that the model was trained on out.

A template is a jinja program, run here (`template_language`). To import transformers for it takes five seconds of CPU
and all of torch, so what the directory says in plain words is read here, too. What only transformers knows (a special
token that stands in no file but in the code of a tokenizer's class, one of several templates) it is asked for; where
the two would say something else is a bug of this module, but for the clock.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from node.inference.architectures import beyond_bounds
from node.inference.errors import ModelError, panics_as_errors
from node.inference.model_files import MAX_CONFIG_BYTES, language_config, read_json

Messages = Sequence[Mapping[str, str]]
Render = Callable[[Messages], str]
"""Messages in the template, ready for the assistant's turn. Raises jinja2.TemplateError where it takes no such ones."""

FILE = "chat_template.jinja"
SETTINGS = "tokenizer_config.json"
_MORE_TEMPLATES = "additional_chat_templates"
_MORE_TOKENS = "special_tokens_map.json"
_TURN = "intellect-node said this"
_NAMED_TOKENS = ("extra_special_tokens", "model_specific_special_tokens")


class ChatTemplate(NamedTuple):
    """text: the program; tokens: the special tokens that it may ask for by name."""

    text: str
    tokens: Mapping[str, str]


def load_template(directory: Path, settings: Mapping[str, Any] = MappingProxyType({})) -> Render:
    """Raises ModelError if there is no template, or none that can be loaded. settings: what it is given beside the
    messages, such as enable_thinking."""
    from jinja2 import TemplateError

    from node.inference.template_language import compiled

    try:
        text, tokens = stated(directory) or _asked_for(directory)
        render = compiled(text).render
    except TemplateError as error:
        raise _unusable(
            f"{directory}: {error}",
            "use one that is plain jinja with nothing random in it, since everybody has to read the same prompt",
        ) from None
    given = {"tools": None, "documents": None, "add_generation_prompt": True, **tokens, **settings}
    return lambda messages: render(messages=messages, **given)


def stated(directory: Path) -> ChatTemplate | None:
    """As the directory's files say it; None if that is not known to be what transformers would take. Raises
    jinja2.TemplateError for a text that is no template."""
    from node.inference.template_language import names

    settings = _read(directory / SETTINGS)
    text = _only_template(directory, settings)
    # Settings that cannot be read may name tokens. transformers is asked then, and says what is wrong.
    if text is None or (not settings and (directory / SETTINGS).exists()):
        return None
    tokens = _special_tokens(directory, settings, names(text))
    return None if tokens is None else ChatTemplate(text, tokens)


def has_chat_template(directory: Path) -> bool:
    """Whether a model directory brings a chat template, in any of the places that transformers looks at."""
    in_settings = (_read(directory / name).get("chat_template") for name in ("chat_template.json", SETTINGS))
    return (directory / FILE).is_file() or any(in_settings)


def eos_texts(directory: Path) -> list[str]:
    """Of the tokens that the tokenizer's settings call `eos_token`."""
    found = (_text_of(_read(directory / name).get("eos_token")) for name in (SETTINGS, _MORE_TOKENS))
    return [text for text in found if text]


def turn_end(directory: Path) -> str | None:
    """The special token that the directory's template puts behind what an assistant has said; None where there is none
    such, or no template that these files alone determine."""
    from jinja2 import TemplateError

    from node.inference.template_language import compiled

    special = _added_tokens(directory)
    try:
        template = stated(directory)
        if template is None or not special:
            return None
        turns = [{"role": role, "content": _TURN} for role in ("user", "assistant", "user")]
        given = {"tools": None, "documents": None, "add_generation_prompt": True, **template.tokens}
        parts = compiled(template.text).render(messages=turns, **given).split(_TURN)
    except (TemplateError, RecursionError, UnicodeDecodeError):
        return None  # whoever asks in chats is told what is wrong with it (`load_template`)
    behind = parts[2].lstrip() if len(parts) == 4 else ""
    return max((text for text in special if behind.startswith(text)), key=len, default=None)


def _added_tokens(directory: Path) -> set[str]:
    """Texts of the tokens that tokenizer.json calls special."""
    try:
        added = json.loads((directory / "tokenizer.json").read_bytes()).get("added_tokens") or []
        return {one["content"] for one in added if one.get("special") and one.get("content")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()  # the tokenizer's own loading complains


def _read(path: Path) -> dict[str, Any]:
    """Settings as far as they can be read: what is wrong with them the tokenizer's own loading complains about."""
    try:
        return read_json(path)
    except ModelError:
        return {}


def _only_template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """Its text; None where there are several to choose from, or none."""
    if (directory / _MORE_TEMPLATES).exists():
        return None
    if (directory / FILE).is_file():
        if (directory / FILE).stat().st_size > MAX_CONFIG_BYTES:
            raise _unusable(f"{directory / FILE} has more than {MAX_CONFIG_BYTES} bytes", "use a shorter one")
        return (directory / FILE).read_text(encoding="utf-8")
    text = settings.get("chat_template")
    return text if isinstance(text, str) and text else None


def _special_tokens(directory: Path, settings: Mapping[str, Any], asked: set[str]) -> dict[str, str] | None:
    """Those that a template asks for by name; None if one's text does not follow from the settings."""
    if any(isinstance(settings.get(name), dict) for name in _NAMED_TOKENS):
        return None
    tokens = {name: _text_of(settings.get(name)) for name in asked if name.endswith("_token")}
    known = {name: text for name, text in tokens.items() if text is not None}
    # special_tokens_map.json may name others than the settings do: which of them count only transformers knows.
    if len(known) < len(tokens) or (known and (directory / _MORE_TOKENS).exists()):
        return None
    return known


def _text_of(token: Any) -> str | None:
    """A special token as settings have it: its text, or an object that holds it."""
    if isinstance(token, dict) and token.get("__type") == "AddedToken":
        token = token.get("content")
    return token if isinstance(token, str) else None


def _asked_for(directory: Path) -> ChatTemplate:
    """As transformers has it."""
    from transformers import AutoTokenizer

    # It looks into the model's description for the tokenizer's kind, and counts the layers there.
    config = directory / "config.json"
    if config.exists() and (why := beyond_bounds(language_config(read_json(config)))):
        raise _unusable(f"{config}: {why}", "correct it")
    try:
        with panics_as_errors():
            tokenizer: Any = AutoTokenizer.from_pretrained(
                str(directory), local_files_only=True, trust_remote_code=False
            )
        if tokenizer.chat_template:
            return ChatTemplate(tokenizer.get_chat_template(), tokenizer.special_tokens_map)
    except Exception as error:
        raise _unusable(f"{directory}: {error}", "check tokenizer_config.json") from None
    raise _unusable(f"{directory} has none", "use a chat model")


def _unusable(why: str, remedy: str) -> ModelError:
    plain = f"{remedy}, or set template = 'plain' in the environment's arguments"
    return ModelError("the chat template cannot be loaded", why, plain)
