"""A model directory's chat template: messages in, the text that the model was trained on out.

A template is a jinja program. transformers runs it in jinja2's sandbox, with two functions and a filter of its own;
to import transformers for that takes five seconds of CPU and all of torch. So a template that needs nothing else is
run here, in the same sandbox with the same names. What only transformers knows (a special token that stands in no file
but in the code of a tokenizer's class, a tag of its own, one of several templates) goes to transformers, and where the
two would say something else is a bug of this module.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Never

from node.inference.errors import ModelError
from node.inference.model_files import read_json

Messages = Sequence[Mapping[str, str]]
Render = Callable[[Messages], str]
"""Messages in the template, ready for the assistant's turn. Raises jinja2.TemplateError where it takes no such ones."""

FILE = "chat_template.jinja"
SETTINGS = "tokenizer_config.json"
_MORE_TEMPLATES = "additional_chat_templates"
_MORE_TOKENS = "special_tokens_map.json"
_NAMED_TOKENS = ("extra_special_tokens", "model_specific_special_tokens")


def load_template(directory: Path) -> Render:
    """Raises ModelError if there is no template, or none that can be loaded."""
    return render_here(directory) or _render_by_transformers(directory)


def render_here(directory: Path) -> Render | None:
    """By jinja2 alone; None if that is not known to be what transformers would say."""
    from jinja2 import TemplateSyntaxError, meta
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    settings = _read(directory / SETTINGS)
    text = _only_template(directory, settings)
    if text is None or (not settings and (directory / SETTINGS).exists()):
        return None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_raise, strftime_now=_now)
    try:
        template = environment.from_string(text)
        tokens = _special_tokens(directory, settings, meta.find_undeclared_variables(environment.parse(text)))
    except TemplateSyntaxError:
        return None
    if tokens is None:
        return None
    given = {"tools": None, "documents": None, "add_generation_prompt": True, **tokens}
    return lambda messages: template.render(messages=messages, **given)


def has_chat_template(directory: Path) -> bool:
    """Whether a model directory brings a chat template, in any of the places that transformers looks at."""
    in_settings = (_read(directory / name).get("chat_template") for name in ("chat_template.json", SETTINGS))
    return (directory / FILE).is_file() or any(in_settings)


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
        return (directory / FILE).read_text(encoding="utf-8")
    text = settings.get("chat_template")
    return text if isinstance(text, str) and text else None


def _special_tokens(directory: Path, settings: Mapping[str, Any], asked: set[str]) -> dict[str, str] | None:
    """Those that a template asks for by name; None if one's text does not follow from the settings."""
    if any(isinstance(settings.get(name), dict) for name in _NAMED_TOKENS):
        return None
    tokens = {name: _text_of(settings.get(name)) for name in asked if name.endswith("_token")}
    known = {name: text for name, text in tokens.items() if text is not None}
    if len(known) < len(tokens) or (known and (directory / _MORE_TOKENS).exists()):
        return None
    return known


def _text_of(token: Any) -> str | None:
    """A special token as settings have it: its text, or an object that holds it."""
    if isinstance(token, dict) and token.get("__type") == "AddedToken":
        token = token.get("content")
    return token if isinstance(token, str) else None


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As it stands: jinja2's own filter would write it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> Never:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _render_by_transformers(directory: Path) -> Render:
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ModelError(
            "the chat template cannot be loaded",
            f"{directory}: {error}",
            "check tokenizer_config.json, or set template = 'plain' in the environment's arguments",
        ) from None
    if not tokenizer.chat_template:
        raise ModelError(
            "the chat template cannot be loaded",
            f"{directory} has none",
            "use a chat model, or set template = 'plain' in the environment's arguments",
        )
    return lambda messages: tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
