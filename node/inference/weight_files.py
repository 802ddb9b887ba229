"""Which file of a model directory has which tensor: the one reader that engine, learner, merge, sizing and assets ask.

Every tensor of every file is accounted for, by the files' headers alone. The index decides; without one
`model.safetensors` counts, and nothing else. What lies beside them (shards of an earlier save, backups, adapters) is
left out and named. Where loaders would disagree about what the model is, none is read. Knows no library of tensors.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from node.inference.errors import ModelError
from node.inference.model_files import CONFIG, EMBEDDING, HEAD, INDEX, NESTED, WEIGHTS, read_json

BLOCKS, SCALES = "_blocks", "_scales"
"""Of a tensor in MXFP4 (OCP Microscaling Formats 1.0): two numbers a byte, lower half first, and a power of two, 127
more than its exponent, for each 32 of them."""
# A model of a million tensors has less.
MAX_INDEX_BYTES = 32 * 1024 * 1024
SUFFIX = ".safetensors"
_ELSEWHERE = "transformers_weights"
"""Of config.json: the file that transformers loads instead of all others."""
_LFS = b"version https://git-lfs"
_PIECE = 1 << 24
_BESIDE_PICTURES = ((r"^language_model\.(?=model\.|lm_head\.)", ""), (r"^model\.language_model\.", "model."))
"""Names that a language model has in files of a model that reads pictures, too -> its own."""
_PUBLISHED: Mapping[str, Sequence[tuple[str, str]]] = {
    "mixtral": (
        (r"\.block_sparse_moe\.", ".mlp."),
        (r"\.w1\.weight$", ".gate_proj.weight"),
        (r"\.w3\.weight$", ".up_proj.weight"),
        (r"\.w2\.weight$", ".down_proj.weight"),
    )
}
"""The same of architectures that transformers renames."""
_SHARD = re.compile(r"(.*-of-\d+)\.safetensors")


class Stored(NamedTuple):
    """A tensor as a file's header has it. called: its name there; dtype: safetensors' name of its type; start, stop:
    bytes of the file."""

    file: Path
    called: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """files: those that count, in the order of their names; tensors: of the model, by name; left_out: other files with
    weights in the directory; unnamed: tensors of `files` that the index gives to no file."""

    files: tuple[Path, ...]
    tensors: Mapping[str, Stored]
    left_out: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()

    @property
    def numbers(self) -> int:
        """Of all tensors. What MXFP4 has in a byte counts as two, and its scales as none."""
        shapes = {name: one.shape for name, one in self.tensors.items()}
        scales = {name.removesuffix(BLOCKS) + SCALES for name in shapes if name.endswith(BLOCKS)}
        counted = {name: math.prod(shape) for name, shape in shapes.items() if name not in scales}
        return sum(count * (2 if name.endswith(BLOCKS) else 1) for name, count in counted.items())

    @property
    def has_own_head(self) -> bool:
        """Whether the output head is a tensor of its own, and not the embedding or a copy of it. Reads both where both
        are there. Raises ModelError."""
        head, embedding = self.tensors.get(HEAD), self.tensors.get(EMBEDDING)
        if head is None or embedding is None:
            return head is not None
        if (head.dtype, head.shape) != (embedding.dtype, embedding.shape):
            return True
        try:
            pairs = zip(_bytes_of(head), _bytes_of(embedding), strict=True)
            return any(one != other for one, other in pairs)
        except (OSError, ValueError) as error:
            refuse(head.file, str(error))


def weight_files(directory: Path) -> WeightFiles:
    """Of a model directory in Hugging Face form. Raises ModelError where files are missing or broken, and where it is
    not one model."""
    files, homes = _chosen(directory)
    config = read_json(directory / CONFIG) if (directory / CONFIG).exists() else {}
    elsewhere = config.get(_ELSEWHERE)
    if elsewhere not in (None, WEIGHTS if homes is None else INDEX):
        refuse(directory / CONFIG, f"{_ELSEWHERE} = {str(elsewhere)[:80]!r}: other programs load other files", _ONE_WAY)
    others = {path.name for path in directory.glob(f"*{SUFFIX}")} - {path.name for path in files}
    found = _accounted(directory, files, homes, tuple(sorted(others)))
    kind = str(config.get("model_type"))
    others = _BESIDE_PICTURES if kind in NESTED else _PUBLISHED.get(kind, ())
    return replace(found, tensors=_named(found.tensors, others)) if others else found


def _named(tensors: Mapping[str, Stored], others: Sequence[tuple[str, str]]) -> dict[str, Stored]:
    """By the names that the model's tensors have here. Raises ModelError where two would have one."""
    named: dict[str, Stored] = {}
    for name, stored in tensors.items():
        own = name
        for pattern, ours in others:
            own = re.sub(pattern, ours, own, count=1)
        if own in named:
            refuse(stored.file, f"{stored.called[:100]!r} and {named[own].called[:100]!r} are one tensor's names")
        named[own] = stored
    return named


def files_of(directory: Path) -> tuple[Path, ...]:
    """The files that make up a model, by the index alone: none is opened. Raises ModelError where one is missing."""
    return _chosen(directory)[0]


def has_weights(directory: Path) -> bool:
    """Whether a directory has any file with weights: members fetch some models without."""
    return next(directory.glob(f"*{SUFFIX}"), None) is not None


def has_own_head(directory: Path) -> bool:
    """Whether the weights in a model directory have a head of their own, whatever its config.json says; False where
    there are no weights. Raises ModelError."""
    return has_weights(directory) and weight_files(directory).has_own_head


def _chosen(directory: Path) -> tuple[tuple[Path, ...], dict[str, str] | None]:
    """(files in the order of their names, tensor -> file name where there is an index)."""
    index, whole = directory / INDEX, directory / WEIGHTS
    if not index.exists():
        if not whole.exists():
            beside = [path.name for path in directory.glob(f"*{SUFFIX}")]
            has = _few(beside) if beside else f"no {SUFFIX} file"
            refuse(directory, f"it has neither {INDEX} nor {WEIGHTS}, but {has}", _EXPORT)
        return (whole,), None
    homes = _indexed(index)
    names = sorted(set(homes.values()))
    if whole.exists() and WEIGHTS not in names:
        refuse(directory, f"{INDEX} names {_few(names)}, and {WEIGHTS} lies beside them", _TWO_MODELS)
    files = tuple(directory / name for name in names)
    if missing := [path.name for path in files if not path.is_file()]:
        why = (
            f"{INDEX} names {len(files)} files with weights, {len(missing)} of them missing: {missing[0]} is not there"
        )
        refuse(directory, why, f"copy the missing files into {directory}, or export the model again")
    return files, homes


class _Named(NamedTuple):
    name: str
    stored: Stored


def _accounted(
    directory: Path, files: Iterable[Path], homes: Mapping[str, str] | None, left_out: tuple[str, ...]
) -> WeightFiles:
    tensors: dict[str, Stored] = {}
    unnamed: list[str] = []
    for path in files:
        for name, stored in _header(path):
            # Which of two were taken would depend on the loader: some go by the index, some by the files' order.
            if name in tensors or (homes is not None and homes.get(name, path.name) != path.name):
                other = tensors[name].file.name if name in tensors else (homes or {})[name]
                why = f"tensor {name[:100]!r} stands in {path.name} and belongs to {other}"
                refuse(directory, f"{why}: these are shards of two models", _EXPORT)
            if homes is not None and name not in homes:
                unnamed.append(name)
            else:
                tensors[name] = stored
    if lost := sorted(set(homes or ()) - tensors.keys()):
        where = (homes or {})[lost[0]]
        refuse(directory / INDEX, f"tensor {lost[0][:100]!r} is to be in {where}, which lacks it", _EXPORT)
    return WeightFiles(tuple(files), tensors, left_out, tuple(unnamed))


def _indexed(index: Path) -> dict[str, str]:
    """Tensor -> file name, of an index. Raises ModelError."""
    try:
        with index.open("rb") as file:
            data = file.read(MAX_INDEX_BYTES + 1)
        if len(data) > MAX_INDEX_BYTES:
            raise ValueError(f"larger than {MAX_INDEX_BYTES} bytes")
        homes: Any = json.loads(data, object_pairs_hook=_once)["weight_map"]
        homes = dict(homes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        refuse(index, f"no weight_map in it: {str(error)[:200]}", _EXPORT)
    names = set(map(str, homes.values()))
    # An index is a stranger's file: `../../x` in it would read whatever lies there.
    if odd := [one for one in homes.values() if not _is_plain(one)]:
        refuse(index, f"it names {str(odd[0])[:80]!r}, which is no {SUFFIX} file of its directory", _EXPORT)
    if not names:
        refuse(index, "its weight_map names no file", _EXPORT)
    # `model-00001-of-00002` and `model-00002-of-00003`: one save writes one number of shards.
    saves = {found[1].rpartition("-of-")[2] for one in names if (found := _SHARD.fullmatch(one))}
    if len(saves) > 1:
        refuse(index, f"it names {_few(names)}: shards of two models", _EXPORT)
    return homes


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and name.endswith(SUFFIX) and Path(name).name == name and "\\" not in name


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys stand in it once: of two, every program takes another. Raises ValueError."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in found if keys.count(key) > 1)
        raise ValueError(f"{twice[:100]!r} is named twice")
    return found


def _header(path: Path) -> Iterator[_Named]:
    """Raises ModelError."""
    # Here, as a daemon names the files of its run without reading any.
    from safetensors import SafetensorError, safe_open

    try:
        # The library looks at every bound; the places are only in the text.
        with safe_open(path, framework="np"):
            pass
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            said: dict[str, Any] = json.loads(file.read(size), object_pairs_hook=_once)
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        refuse(path, *_broken(path, error))
    found = [name for name in said if name != "__metadata__"]
    if not found:
        refuse(path, "there are no tensors in it", _EXPORT)
    for name in found:
        start, stop = (8 + size + place for place in said[name]["data_offsets"])
        yield _Named(name, Stored(path, name, str(said[name]["dtype"]), tuple(said[name]["shape"]), start, stop))


def _broken(path: Path, error: Exception) -> tuple[str, str]:
    """(why, remedy) of a file that cannot be read."""
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(_LFS)) == _LFS:
                return "it is a pointer of Git LFS, not the weights", f"run `git lfs pull` in {path.parent}"
    return f"cannot read the weights: {str(error)[:200]}", "restore, copy or export the file again"


def _bytes_of(stored: Stored) -> Iterator[bytes]:
    with stored.file.open("rb") as file:
        file.seek(stored.start)
        for at in range(stored.start, stored.stop, _PIECE):
            yield file.read(min(_PIECE, stored.stop - at))


def _few(names: Iterable[str]) -> str:
    """Some names in words: 'a, b and 3 more'."""
    listed = sorted(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


_EXPORT = "export or fetch the model again, into an empty directory"
_TWO_MODELS = "some programs load the one and some the other: delete what is not the model"
_ONE_WAY = f"delete {_ELSEWHERE} from it, and keep the weights in {WEIGHTS} or in the files of an index"


def refuse(where: Path, why: str, remedy: str = _EXPORT) -> NoReturn:
    raise ModelError("the model cannot be loaded", f"{where}: {why}", remedy)
