"""Chat templates as programs: jinja as transformers runs it, without what differs from one reader to the next.

A prompt is made by the worker and made again by each validator, days later where there is a dispute, and must be the
same to the token. So the clock that templates may ask for stands still, and nothing is drawn at random.

Imports jinja2; whoever does not render imports `chat_template` alone.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any, Never

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

TODAY = datetime(2024, 7, 26)
"""What day it is in every prompt: the one that Llama's templates name themselves where they are told none."""


class _Generation(Extension):
    """A tag around what the assistant says, of which transformers can make a mask; what is in it is said as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller: Callable[[], str]) -> str:
        return caller()


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
    raise TemplateError(message)


_environment = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
)
_environment.filters["tojson"] = _to_json
_environment.globals.update(raise_exception=_raise, strftime_now=TODAY.strftime)
del _environment.filters["random"], _environment.globals["lipsum"]


def compiled(text: str) -> Template:
    """A template, ready to be rendered. Raises TemplateError."""
    return _environment.from_string(text)


def names(text: str) -> set[str]:
    """What a template asks for by name and does not set itself. Raises TemplateError."""
    return meta.find_undeclared_variables(_environment.parse(text))
