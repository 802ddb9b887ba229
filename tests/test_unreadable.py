"""Whoever decodes bytes expects all that decoding raises: `protocol.errors.UNREADABLE`, or something wider."""

import ast
from pathlib import Path

import msgspec
import pytest

from protocol.errors import UNREADABLE

ROOT = Path(__file__).resolve().parents[1]
NARROW = {"MsgspecError", "DecodeError", "ValidationError"}
WIDE = {"UNREADABLE", "UnicodeDecodeError", "ValueError", "Exception", "BaseException"}


@pytest.mark.parametrize("bytes_", [b'{"\xff":1}', b"[" * 100_000, b"{", b"7"], ids=["text", "depth", "end", "type"])
def test_what_a_stranger_can_send_is_all_in_it(bytes_: bytes) -> None:
    with pytest.raises(UNREADABLE):
        msgspec.json.decode(bytes_, type=dict[str, str])


def test_no_decoding_of_bytes_expects_only_msgspecs_own_errors() -> None:
    files = [path for room in ("node", "protocol", "cli") for path in (ROOT / room).rglob("*.py")]
    texts = {path: text for path in files if "msgspec." in (text := path.read_text()) and ".decode(" in text}
    naming = {path: text for path, text in texts.items() if any(name in text for name in NARROW)}
    found = [f"{path.relative_to(ROOT)}:{line}" for path, text in naming.items() for line in _narrow(ast.parse(text))]
    assert len(texts) > 20 and found == []


def _narrow(tree: ast.Module) -> list[int]:
    """Lines of the handlers of msgspec's errors, around a decoding, beside which nothing wider is caught."""
    lines: list[int] = []
    for tried in (node for node in ast.walk(tree) if isinstance(node, ast.Try)):
        caught = [_names(handler.type) for handler in tried.handlers]
        narrow = any(NARROW & names for names in caught)
        if narrow and not set.union(*caught) & WIDE and any(map(_decodes, tried.body)):
            lines.append(tried.lineno)
    return lines


def _decodes(statement: ast.stmt) -> bool:
    calls = (node.func for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(
        isinstance(call, ast.Attribute) and call.attr == "decode" and ast.unparse(call.value).startswith("msgspec.")
        for call in calls
    )


def _names(kind: ast.expr | None) -> set[str]:
    if kind is None:
        return {"BaseException"}
    return {one.id for one in ast.walk(kind) if isinstance(one, ast.Name)} | {
        one.attr for one in ast.walk(kind) if isinstance(one, ast.Attribute)
    }
