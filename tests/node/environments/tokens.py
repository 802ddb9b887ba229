"""A tokenizer for tests."""

from collections.abc import Mapping, Sequence
from typing import Any


class Characters:
    """Ids are code points; a line feed ends an answer."""

    eos = frozenset({10})

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, tokens: Any) -> str:
        return "".join(chr(t) for t in tokens if t != 10)

    def encode_chat(self, text: str) -> list[int]:
        return self.encode_messages([("user", text)])

    def encode_messages(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        return self.encode("".join(f"<{role}>{text}" for role, text in messages) + "<assistant>")

    def encode_reply(self, text: str) -> list[int]:
        return self.encode(f"<user>{text}<assistant>")

    def asked_with(self, settings: Mapping[str, Any]) -> "Characters":
        return self
