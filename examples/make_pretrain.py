"""Make what examples/pretrain.toml needs: text of four kinds, and an untrained byte-level model.

`python -m examples.make_pretrain` writes, beside this file, pretrain/*.jsonl (sources and documentation of Python's own
library, a document a line) and pretrain/model/ (Hugging Face form: 131,776 parameters, one token a byte).
"""

import ast
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from examples.asked import arguments
from node.inference.torch_engine import build_model
from node.training.warmstart import EOS, PAD, write_config, write_weights

LONGEST = 400_000
"""Bytes of a source file: longer ones are tables."""


def write_byte_tokenizer(out: Path) -> int:
    """tokenizer.json: one token per byte of UTF-8, after <pad> (0) and <eos> (1). The number of tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([PAD, EOS, *letters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([PAD, EOS])
    tokenizer.save(str(out / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "pad_token": PAD}
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    return len(vocabulary)


def create_byte_model(out: Path, seed: int, hidden: int = 64, layers: int = 2) -> None:
    """An untrained model directory."""
    out.mkdir(parents=True, exist_ok=True)
    write_config(out, write_byte_tokenizer(out), hidden, layers)
    torch.manual_seed(seed)
    write_weights(out, build_model(out))


def sources() -> Iterator[tuple[Path, str]]:
    """Each source file of the library, by its path below it."""
    library = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__", "ensurepip"}
    for path in sorted(library.rglob("*.py")):
        inside = path.relative_to(library)
        if skipped.isdisjoint(inside.parts) and path.stat().st_size <= LONGEST:
            yield inside, path.read_text(encoding="utf-8", errors="ignore")


def documentation(source: str) -> str:
    """The docstrings of a source file, one after another."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, documented))
    return "\n\n".join(text for text in found if text)


def kinds() -> dict[str, list[str]]:
    """Documents by data set."""
    found: dict[str, list[str]] = {"modules": [], "packages": [], "prose": [], "encodings": []}
    for inside, text in sources():
        kind = "modules" if len(inside.parts) == 1 else "encodings" if inside.parts[0] == "encodings" else "packages"
        found[kind].append(text)
        if prose := documentation(text):
            found["prose"].append(prose)
    return found


def main() -> None:
    asked = arguments(__doc__, "pretrain")
    out: Path = asked.out
    out.mkdir(parents=True, exist_ok=True)
    for name, documents in kinds().items():
        lines = [json.dumps({"text": text}) for text in documents if text.strip()]
        (out / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{name}: {len(lines)} documents, {sum(map(len, documents)):,} characters")
    create_byte_model(out / "model", asked.seed)


if __name__ == "__main__":
    main()
