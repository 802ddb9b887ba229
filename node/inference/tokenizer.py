"""A model directory's tokenizer, from local files only.

Knows tokenizer.json, what the directory's files say that an answer ends with, and what a chat template's text becomes;
knows nothing of weights. Never contacts a hub and never runs code from the directory (chat templates are rendered in
jinja's sandbox).
"""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, Self

from tokenizers import Tokenizer

from node.inference.chat_template import Render, eos_texts, load_template, turn_end
from node.inference.errors import ModelError, panics_as_errors
from node.inference.model_files import language_config, read_json

MAX_TOKENIZER_BYTES = 64 * 1024**2
DRAWS = ("dropout", "alpha", "nbest_size")
"""What makes a model of the library draw how it cuts a text: BPE's, and two of Unigram's."""
MAX_GROWTH = 64
"""Characters that a tokenizer makes of one before it cuts, or puts before a text: NFKC makes 18 of one."""
MAX_TOKEN = 1024
"""Characters of a token: the longest that are published have 128 blanks."""
_SAID = "intellect-node-said-this"
"""Stands for what was said before, where only what the template puts behind it is wanted."""


class LocalTokenizer:
    """encode/decode of a model directory; `eos`: the token ids that end a completion, as generation_config.json (or
    config.json), the tokenizer's settings and the chat template say it, all of them; `end`: the one that is put behind
    a text, which is the model's own."""

    def __init__(self, model_dir: Path) -> None:
        self._dir = model_dir
        path = model_dir / "tokenizer.json"
        try:
            if path.stat().st_size > MAX_TOKENIZER_BYTES:
                raise ValueError(f"larger than {MAX_TOKENIZER_BYTES} bytes")
            with panics_as_errors():
                self._tokenizer = Tokenizer.from_file(str(path))
                check_draws_nothing(self._tokenizer)
                check_growth(self._tokenizer)
                # Either would make a text's tokens depend on what stands beside it, or end it early.
                self._tokenizer.no_padding()
                self._tokenizer.no_truncation()
        except Exception as error:  # tokenizers raises bare Exception
            raise ModelError(
                "the tokenizer cannot be loaded",
                f"{path}: {error}",
                "put the model's tokenizer.json (the fast tokenizer) into the model directory",
            ) from None
        # A base model tuned on chats keeps its base's generation_config.json: its tokenizer and its template alone know
        # how its turns end, and without them no answer of it would.
        stated = _eos_ids(model_dir)
        others = {one for text in _ends_named(model_dir) if (one := self._tokenizer.token_to_id(text)) is not None}
        self.eos = frozenset({*stated, *others})
        if not self.eos:
            raise ModelError(
                "the model cannot be loaded",
                f"{model_dir} does not say which token ends an answer",
                "set eos_token_id in config.json or generation_config.json",
            )
        self.end = min(stated or self.eos)
        self._template: Render | None = None
        self._settings: Mapping[str, Any] = {}

    @property
    def vocabulary(self) -> int:
        """Number of known tokens, added ones included."""
        return self._tokenizer.get_vocab_size()

    def check_fits(self, vocabulary: int) -> None:
        """Raises ModelError where it has tokens that a model of this vocabulary does not know."""
        if max(self.eos) >= vocabulary or self.vocabulary > vocabulary:
            raise ModelError(
                "the model cannot be loaded",
                f"{self._dir}: the tokenizer has more tokens than the model",
                "put the tokenizer that belongs to the model into its directory",
            )

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text, without special tokens."""
        # A chat template writes its special tokens itself: the tokenizer would put some of them there twice.
        with self._told():
            return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_whole(self, text: str) -> list[int]:
        """The same with what the tokenizer puts around a text by itself, which no prompt here has."""
        with self._told():
            return self._tokenizer.encode(text).ids

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The same of many texts, on as many cores as there are."""
        with self._told():
            return [found.ids for found in self._tokenizer.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens left out; ids beyond the vocabulary are skipped."""
        with self._told():
            return self._tokenizer.decode(list(tokens), skip_special_tokens=True)

    def spell(self, tokens: Sequence[int]) -> str:
        """The same with special tokens, as they are written."""
        with self._told():
            return self._tokenizer.decode(list(tokens), skip_special_tokens=False)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A pattern that runs into its own limit, or a word without a token: each is the tokenizer's fault."""
        try:
            with panics_as_errors():
                yield
        except Exception as error:
            raise ModelError(
                "the tokenizer cannot be used", f"{self._dir}: {str(error)[:200]}", "correct its tokenizer.json"
            ) from None

    def asked_with(self, settings: Mapping[str, Any]) -> Self:
        """The same tokenizer, whose chat template is given these settings beside the messages."""
        other = copy(self)
        other._settings, other._template = settings, None
        return other

    def encode_chat(self, text: str) -> list[int]:
        """Token ids of one user message in the chat template, ready for the assistant's turn.

        Raises ModelError if the model has no chat template.
        """
        return self.encode_messages([("user", text)])

    def encode_messages(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """The same of several (role, text) messages, the last one the user's."""
        return self.encode(self.render(messages))

    def encode_reply(self, text: str) -> list[int]:
        """Token ids of one further user message: from behind the end token of an assistant's turn to where the
        assistant goes on.

        Read off the template around a turn of ours, so that nothing that was sampled is ever encoded anew. Raises
        ModelError if the model has no chat template, or one that drops the assistant's turns.
        """
        rendered = self.render([("user", _SAID), ("assistant", _SAID), ("user", text)])
        # Twice at most: what the environment says may hold these words, too.
        parts = rendered.split(_SAID, 2)
        if len(parts) != 3:
            raise ModelError(
                "the chat template cannot be used over several turns",
                f"that of {self._dir} does not repeat what was said before",
                "use a model whose template does, or set template = 'plain' in the environment's arguments",
            )
        return self._behind_the_end(self.encode(parts[2]))

    def _behind_the_end(self, tokens: list[int]) -> list[int]:
        """Without the end token that the template puts first, or after blanks: the policy has said its own."""
        end = next((i for i, token in enumerate(tokens) if token in self.eos), None)
        if end is None or self.decode(tokens[:end]).strip():
            return tokens
        return tokens[end + 1 :]

    def render(self, messages: Sequence[tuple[str, str]]) -> str:
        """Messages in the chat template, as text, ready for the assistant's turn. Raises ModelError if there is no
        template, or it takes no such messages."""
        from jinja2 import TemplateError

        if self._template is None:
            self._template = load_template(self._dir, self._settings)
        try:
            return self._template([{"role": role, "content": content} for role, content in messages])
        except TemplateError as error:
            roles = ", ".join(role for role, _ in messages)
            raise ModelError(
                "the chat template cannot be used", f"it takes no messages of {roles}: {error}", "change the prompt"
            ) from None


def check_draws_nothing(tokenizer: Tokenizer) -> None:
    """Raise ValueError for one that cuts the same text differently from one time to the next.

    Asked of what was loaded, not of the file: of a name that stands there twice, each reader takes another one.
    """
    for name in DRAWS:
        value = getattr(tokenizer.model, name, None)
        if value:
            raise ValueError(f"{name} = {value:g} cuts a text at random, and everybody has to read the same tokens")


def check_growth(tokenizer: Tokenizer) -> None:
    """Raise ValueError for one that could make gigabytes of a prompt, or of an answer's tokens."""
    if max(map(len, tokenizer.get_vocab()), default=0) > MAX_TOKEN:
        raise ValueError(f"a token has more than {MAX_TOKEN} characters")
    for part in (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder):
        if part is not None and _growth(json.loads(part.__getstate__())) > MAX_GROWTH:
            raise ValueError(f"it makes more than {MAX_GROWTH} characters of one")


def _growth(part: Any) -> int:
    """How many characters a step's description, or a sequence of steps, makes of one at most, or puts before a text."""
    grows = 1
    steps = part.get("normalizers") or part.get("pretokenizers") or part.get("decoders") or [part]
    if len(steps) > MAX_GROWTH:  # some put a blank beside each letter
        raise ValueError(f"it takes more than {MAX_GROWTH} steps")
    for step in steps:
        if step.get("type") == "Sequence":
            grows *= _growth(step)
        elif charsmap := step.get("precompiled_charsmap"):
            data = base64.b64decode(charsmap)
            # The length of a table of prefixes, the table, and what stands for what, with a zero behind each.
            grows *= max(map(len, data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")))
        elif step.get("type") == "ByteLevel":
            grows *= 4  # bytes of a character, each of which becomes one that has two
        else:
            grows *= max(1, len(step.get("content") or ""), len(step.get("prepend") or ""))
    return grows


def _eos_ids(model_dir: Path) -> list[int]:
    """Those of generation_config.json or, where it names none, of config.json. Raises ModelError."""
    for name in ("generation_config.json", "config.json"):
        path = model_dir / name
        if name == "generation_config.json" and not path.exists():
            continue
        eos = language_config(read_json(path)).get("eos_token_id")
        ids: list[Any] = eos if isinstance(eos, list) else [eos]
        if ids and all(type(one) is int and one >= 0 for one in ids):
            return ids
    return []


def _ends_named(model_dir: Path) -> list[str]:
    """Texts of the tokens that the tokenizer's settings and the chat template end an answer with."""
    end = turn_end(model_dir)
    return [*eos_texts(model_dir), *([end] if end else [])]
