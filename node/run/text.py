"""The data sets of a run that pre-trains: text as its owner has it, made into token streams once, and looked at.

A stream stands beside its text as NAME.tokens and names tokenizer and text by hash: it is made again when one of them
has changed. Text is .txt (one document), .jsonl (a document in "text" of every line) or .parquet (a column "text").
"""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from blake3 import blake3

from node.environments.parquet import ParquetError, rows_of
from node.errors import RunFileError
from node.inference.tokenizer import LocalTokenizer
from node.run.environments import Attempt, at_once
from node.state.files import mapped, whole_file
from protocol.pretraining import Diloco, Pretraining, TextPart
from protocol.text import HEADER_BYTES, StreamHeader, TextError, read_header, tokens_of

if TYPE_CHECKING:
    from node.run.file import RunFile

TOKENS = ".tokens"
# Tokenizers take memory of many times their text.
PIECE = 1 << 20
"""Characters of a document that are encoded together, cut at the end of a line."""
MAX_DOCUMENT_BYTES = 64 * 1024**2
"""Of a row of a table, which stands in memory as a whole."""


class TextStream(msgspec.Struct, frozen=True):
    """A data set of a run. rows, held_back: sequences for training and for evaluation."""

    name: str
    tokens: int
    rows: int
    held_back: int


class TextTokenizer:
    """The model's, with what streams name it by."""

    def __init__(self, file: Path, local: LocalTokenizer | None = None) -> None:
        self.local = local or LocalTokenizer(file.parent)
        self.digest = blake3(file.read_bytes()).digest()
        self.end = self.local.end
        self.vocabulary = max(self.local.vocabulary, max(self.local.eos) + 1)


def compile_text(
    run: "RunFile", path: Path, files: dict[str, Path], attempt: Attempt = at_once
) -> dict[str, Pretraining | Diloco]:
    """The sections of the run, with streams among `files`. path: of the run file. Raises RunFileError; empty for a run
    that does not pre-train."""
    text = run.pretraining
    if text is None:
        return {}
    tokenizer = attempt(_model_tokenizer, files)
    parts = text.data if tokenizer else ()
    data = tuple(attempt(compile_part, part, path, files, tokenizer) or part for part in parts) or text.data
    return {"pretraining": msgspec.structs.replace(text, data=data), "diloco": run.diloco or Diloco()}


def _model_tokenizer(files: dict[str, Path]) -> TextTokenizer | None:
    """None where there is no model, which somebody else complains about."""
    file = files.get("model/tokenizer.json")
    return TextTokenizer(file) if file else None


def compile_part(part: TextPart, path: Path, files: dict[str, Path], tokenizer: TextTokenizer) -> TextPart:
    """One data set as the run has it; its stream is put into `files`."""
    source = path.parent / part.file
    if not source.is_file():
        raise RunFileError(f"no text at {source}", f"pretraining.data in {path} names it", "correct the path")
    files[part.asset] = source if source.suffix == TOKENS else _stream_of(source, tokenizer)
    return msgspec.structs.replace(part, file=part.asset)


def check_stream(part: TextPart, text: Pretraining, path: Path, tokenizer: TextTokenizer) -> TextStream:
    """What there is to learn from in it. Raises RunFileError for one of another tokenizer, or one that is too short."""
    header = _header(path)
    if header.tokenizer != tokenizer.digest:
        raise _unusable(
            path, "it was made with another tokenizer than the model's", "make it again from its text, or delete it"
        )
    if header.end != tokenizer.end:
        raise _unusable(path, f"its end token is {header.end}, the model's {tokenizer.end}", "make it again")
    sequence = max(text.sequence, 1)  # where it is less, that is a mistake of its own
    rows = header.rows(sequence) - text.held_back
    if rows < 1:
        raise _unusable(
            path,
            f"{header.tokens:,} tokens are {header.rows(sequence)} rows of {sequence}, and "
            f"{text.held_back} are held back: nothing is left to train on",
            "add text, or lower pretraining.sequence or pretraining.held_back",
        )
    _check_tokens(path, header)
    return TextStream(part.name, header.tokens, rows, text.held_back)


def _stream_of(source: Path, tokenizer: TextTokenizer) -> Path:
    """The stream beside a text, made where it is not there or of something else."""
    target = source.with_name(source.name + TOKENS)
    digest = blake3().update_mmap(source).digest()
    try:
        known = _header(target) if target.exists() else None
    except RunFileError:
        known = None
    # Both by hash: a file's date says nothing after a copy.
    if known is not None and (known.tokenizer, known.source) == (tokenizer.digest, digest):
        return target
    # Half the bytes for every peer to fetch, where ids fit.
    width, count = 2 if tokenizer.vocabulary <= 1 << 16 else 4, 0
    header = StreamHeader(width, tokenizer.end, tokenizer.vocabulary, 0, tokenizer.digest, digest)
    batch = 256
    try:
        with whole_file(target) as file:
            file.write(header.encode())
            several = _pieces(source)
            while pieces := list(islice(several, batch)):
                for (_, last), tokens in zip(pieces, tokenizer.local.encode_all([t for t, _ in pieces]), strict=True):
                    ended = [*tokens, tokenizer.end] if last else tokens
                    file.write(np.array(ended, dtype=f"<u{width}").tobytes())
                    count += len(ended)
            file.seek(0)
            # Written over the first one, which has the same length: the count is known at the end only.
            file.write(header._replace(tokens=count).encode())
    except OSError as error:
        why = error.strerror or str(error)
        raise RunFileError(
            f"cannot write {target}", why, "make room there, or name a .tokens file that is ready"
        ) from None
    if not count:
        target.unlink()
        raise _unusable(source, "there is no text in it", "name another file")
    return target


def _pieces(source: Path) -> Iterator[tuple[str, bool]]:
    """(text, whether a document ends with it), none much longer than PIECE."""
    for document in _documents(source):
        at = 0
        while len(document) - at > PIECE:
            end = document.rfind("\n", at, at + PIECE) + 1 or at + PIECE
            yield document[at:end], False
            at = end
        yield document[at:], True


def _documents(source: Path) -> Iterable[str]:
    if source.suffix == ".jsonl":
        return _of_lines(source)
    if source.suffix == ".parquet":
        return _of_table(source)
    try:
        return [source.read_bytes().decode()]
    except UnicodeDecodeError as error:
        raise _no_utf8(source, error.start) from None


def _of_lines(source: Path) -> Iterator[str]:
    with source.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                text = json.loads(line)["text"]
            except UnicodeDecodeError as error:
                raise _no_utf8(source, error.start, f" of line {number}") from None
            except (ValueError, KeyError, TypeError, RecursionError):
                text = None
            if not isinstance(text, str):
                raise _unusable(source, f'line {number} is no object with a "text"', "correct or delete the line")
            yield text


def _of_table(source: Path) -> Iterator[str]:
    try:
        for number, row in enumerate(rows_of(source, most_row=MAX_DOCUMENT_BYTES, columns=["text"]), 1):
            text = {} if row is None else row["text"]
            if not isinstance(text, str | None):
                raise ParquetError(f"row {number} is no text, or has more than {MAX_DOCUMENT_BYTES} bytes")
            if text is not None:
                yield text
    except (ParquetError, OSError, KeyError) as error:
        raise _unusable(source, str(error)[:200], 'it must be parquet with a column "text"') from None


def _header(path: Path) -> StreamHeader:
    try:
        with path.open("rb") as file:
            return read_header(file.read(HEADER_BYTES), path.stat().st_size)
    except (OSError, TextError) as error:
        raise _unusable(path, getattr(error, "why", str(error)), "make it again from its text, or delete it") from None


def _check_tokens(path: Path, header: StreamHeader) -> None:
    """Raises RunFileError for a token beyond the vocabulary: the model has no row for it."""
    _, tokens = tokens_of(mapped(path))
    most = max(int(tokens[at : at + PIECE].max()) for at in range(0, header.tokens, PIECE))
    if most >= header.vocabulary:
        raise _unusable(path, f"it has token {most} of a vocabulary of {header.vocabulary}", "make it again")


def _no_utf8(source: Path, at: int, where: str = "") -> RunFileError:
    return _unusable(source, f"byte {at}{where} is no UTF-8", "convert it: iconv -f LATIN1 -t UTF-8 OLD > NEW")


def _unusable(path: Path, why: str, remedy: str) -> RunFileError:
    return RunFileError(f"cannot pre-train on {path}", why, remedy)
