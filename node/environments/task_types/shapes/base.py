"""The interface of a shape, and what shapes have in common."""

import ast
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import msgspec
from blake3 import blake3

from node.environments.base import nested_deeply
from node.environments.errors import nearest
from node.environments.numbers import number

MAX_REPR_CHARACTERS = 256 * 1024
MAX_REPR_DEPTH = 32
MAX_ID = 256
MOST_WORDS = 3
"""Bare words of a truth that is still compared as mathematics: units, "no real solution"."""
_BARE_WORDS = re.compile(r"[^\W\d_]{3,}")
_NO_ANSWER = frozenset({"proof", "notfound", "not found", "n/a", "nan", "none", "null", "unknown", "?", "-"})
"""What stands for an answer where there is none, in NuminaMath and others: whoever says it would be right."""
_BESIDE = ("choices", "options", "context", "passage", "documents", "table", "stem", "body")
"""Columns without which a question cannot be answered, and which no prompt here contains."""
_ANSWERS = ("answer", "final_answer", "expected_answer", "ground_truth", "reference_answer")
_PICTURES = re.compile(
    r"(?:.*_)?(?:images?|pictures?|photos?|figures?|videos?|audios?|img|pixel_values)(?:_?\d+|_(?:path|url|file|bytes|data)s?|_num)?"
    r"|picture_num",
    re.IGNORECASE,
)
_STANDS_FOR_ONE = re.compile(
    r"<(?:image|video|audio)(?:[ _]?\d+)?>"
    r"|<img\s[^<>]{0,2000}?\bsrc\s*="
    r"|!\[[^\]\n]{0,200}\]\(\s*<?(?:https?://|data:image/|[^\s()<>]{1,400}\.(?:png|jpe?g|gif|svg|webp|bmp)\b)",
    re.IGNORECASE,
)
"""A picture's place in a text: as chat templates mark it, as HTML, as Markdown."""
_LATEX = re.compile(r"\\[a-zA-Z]+|\\text\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class Published:
    """A row in the one form that task types read. shape: the form that it came in, for people; info: what a task type's
    `truth` is read from; gold: a published solution."""

    shape: str
    problem_id: str
    prompt: Any
    task: str
    info: dict[str, Any]
    gold: Any = None


@dataclass(frozen=True, slots=True)
class TaskShape:
    """name: for people; columns: what to add to a row to make it one, for people; fits: whether a row (without its null
    columns) is one; read: raises ValueError that says what is wrong."""

    name: str
    columns: str
    fits: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Mapping[str, Any]], Published]


def present(row: Mapping[str, Any]) -> dict[str, Any]:
    """Without null columns: parquet and JSON exports fill in what a row lacks."""
    return {key: value for key, value in row.items() if value is not None}


def only_known(given: Iterable[str], known: Collection[str], what: str) -> None:
    for key in given:
        if key not in known:
            raise ValueError(
                f"{what} has the key {str(key)[:80]!r}, which may change what is right; {nearest(str(key), known)}"
            )


def id_of(written: Any, *content: Any) -> str:
    """The row's own id, or one that follows from its content: held-back problems stay so when rows are added."""
    if written is None:
        digest = blake3(msgspec.json.encode(content, order="sorted")).hexdigest(length=10)
        return f"row-{digest}"
    # In Python a bool is an int: `true` would be an id.
    if isinstance(written, bool) or not isinstance(written, str | int):
        raise ValueError(f"problem_id is {str(written)[:40]!r}, neither text nor a whole number")
    text = str(written)
    if not 0 < len(text) <= MAX_ID:
        raise ValueError("problem_id is empty or too long")
    return text


def parsed(text: str, what: str) -> Any:
    """JSON, whatever its size and depth."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not JSON: {str(error)[:120]}") from None


def as_json(value: Any, what: str) -> str:
    """Raises ValueError for a number that JSON does not have: no program is given one, or can return it, so that no
    answer would be right."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        raise ValueError(f"{what} has a number that is infinite or none: no answer would be right") from None


def mapping(written: Any, what: str) -> dict[str, Any]:
    """An object, its JSON or its Python repr, without what is null in it; nothing is an empty one."""
    if isinstance(written, str):
        try:
            written = json.loads(written)
        except (ValueError, RecursionError) as error:
            written = _literal(written, str(error)[:120], what)
    if not isinstance(written, dict | None):
        raise ValueError(f"{what} is no object")
    return present(written or {})


def _literal(text: str, why: str, what: str) -> Any:
    """The value of a Python repr of plain values."""
    deep = len(text) > MAX_REPR_CHARACTERS or nested_deeply(text, most=MAX_REPR_DEPTH)
    if not text.lstrip().startswith("{") or deep:
        raise ValueError(f"{what} is not JSON: {why}")
    try:
        # It evaluates plain values only. Size and depth are bounded above, since deep text can crash it.
        return ast.literal_eval(text.strip())
    # All that `literal_eval` is documented to raise. Its MemoryError is the parser's depth, not this machine's memory.
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise ValueError(f"{what} is neither JSON ({why}) nor the repr of plain values") from None


def number_as_text(value: Any) -> Any:
    """A whole or finite number as its text; everything else as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if not math.isfinite(value):
        raise ValueError(f"the truth is {value}, which is no number")
    if float(value).is_integer() and abs(value) < 1 << 53:
        return repr(int(value))
    return repr(value) if isinstance(value, int) else format(Decimal(repr(value)), "f")  # 1e-05 is no mathematics


def is_mathematical(text: str, words: int = 1) -> bool:
    """Whether a truth can be compared as mathematics: no prose. Prose would score every answer 0."""
    return bool(text.strip()) and len(_BARE_WORDS.findall(_LATEX.sub(" ", text))) <= words


def is_no_answer(text: str) -> bool:
    return text.strip().lower() in _NO_ANSWER


def whole_question(row: Mapping[str, Any]) -> None:
    """Raise ValueError for a row that asks about more than its question: a right answer would be a matter of luck."""
    for column in _BESIDE:
        if row.get(column):
            raise ValueError(f"its column {column!r} belongs to the question: put it into the prompt, and leave it out")


def no_pictures(row: Mapping[str, Any]) -> None:
    """Raise ValueError for a row with pictures, films or sounds: no model here sees or hears them."""
    for column, value in row.items():
        if (_is_picture(str(column)) and _is_some(value)) or _is_media(value):
            raise ValueError(f"its column {str(column)[:80]!r} belongs to the question, and models here read text only")


def only_text(prompt: Any) -> None:
    """Raise ValueError for a question, text or a chat, that shows a picture or plays a sound somewhere."""
    if _STANDS_FOR_ONE.search(str(prompt)):
        raise ValueError("its prompt holds a picture or a sound, and models here read text only")


def one_truth(row: Mapping[str, Any]) -> None:
    """Raise ValueError for a row whose columns of truths hold different numbers. Only numbers are compared: one
    expression has many spellings, which contradict nothing."""
    found = {column: number(str(row.get(column, "")).strip()) for column in _ANSWERS}
    known = {column: value for column, value in found.items() if value is not None}
    for column, value in known.items():
        first = next(iter(known))
        if value != known[first]:
            raise ValueError(f"it has two truths: {first} {row[first]!s:.40}, {column} {row[column]!s:.40}")


@lru_cache(maxsize=1024)
def _is_picture(column: str) -> bool:
    return _PICTURES.fullmatch(column) is not None


def _is_some(value: Any) -> bool:
    """Whether a column of pictures has one: a number counts them (TACO's picture_num)."""
    return bool(value) and str(value).strip().lower() not in ("0", "none", "null", "nan", "[]", "false")


def _is_media(value: Any) -> bool:
    """What `datasets` makes of a picture or a sound, under whatever name."""
    values = value[:1] if isinstance(value, list) else [value]
    return any(isinstance(one, bytes) or (isinstance(one, dict) and {"bytes", "path"} == one.keys()) for one in values)
