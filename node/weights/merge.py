"""Several policies of one shape merged into one model directory (protocol.merging), tensor by tensor over mapped files.

Nobody holds a whole model, and the bytes depend on nothing but the inputs and the numbers of the merge: not on threads,
shards or the machine. Maps, computes and hashes: call in a thread.
"""

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from node.inference.layers import LayeredImage
from node.inference.model_files import as_bf16
from node.state.files import write_whole
from node.weights.errors import WeightsError
from node.weights.export import (
    CONFIG_NAME,
    INDEX_NAME,
    describe_tensors,
    weight_files,
    whole_directory,
    write_merged,
)
from node.weights.images import U16, mapped, write_image
from node.weights.records import RECORD_NAME
from protocol.merging import Merge, MergeError, merged
from protocol.policy import MalformedPolicy, TensorInfo, decode_image, image_header, image_layout, raw, weights_root
from protocol.stretches import HashedTensor
from protocol.tasks import STRETCH

RECIPE_NAME = "intellect-merge.json"
"""What the merge was made of, beside the weights."""
OnBytes = Callable[[int], object]


class Merged(msgspec.Struct, frozen=True):
    """root: the weights root; inputs: those of the models, and of the base if there is one."""

    directory: Path
    root: bytes
    size: int
    tensors: int
    inputs: tuple[bytes, ...]


class _Model:
    """The tensors of a model directory or file as views, or of a held policy as they are asked for."""

    def __init__(self, source: Path | LayeredImage) -> None:
        """Raises WeightsError, MalformedPolicy."""
        if isinstance(source, LayeredImage):
            self.path, self.shapes = source.base, dict(source.forms)
            self.tensors: Mapping[str, U16] = source
            return
        self.path, tensors = source, dict[str, U16]()
        for file in weight_files(source):
            try:
                tensors |= decode_image(mapped(file))
            except MalformedPolicy as error:
                raise WeightsError(
                    f"cannot merge {source}",
                    f"{file.name}: {error.why}",
                    "merge models as `weights export`, `weights fetch` and `train` write them: bf16, names in order",
                ) from None
        self.tensors = tensors
        self.shapes = {name: tuple(tensors[name].shape) for name in sorted(tensors)}

    def root(self) -> bytes:
        return weights_root(describe_tensors(self.tensors))


def merge_models(
    merge: Merge,
    models: Sequence[Path],
    out: Path,
    *,
    base: Path | None = None,
    workers: int | None = None,
    on_progress: OnBytes = lambda _: None,
) -> Merged:
    """Write the model directory `out`, which must not exist; configuration and tokenizer are those of the first model.

    The inputs are hashed, too, so that the directory says what it was made of. told: bytes of the result, as they are
    done. Raises MergeError, WeightsError, WeightsDiskError.
    """
    merge.check()
    if merge.needs_base and base is None:
        raise MergeError(
            f"{merge.method} merges differences to a base", "name the model that all came from with --base"
        )
    with whole_directory(out) as partial:
        opened, origin = _opened(models, base if merge.needs_base else None)
        infos = _write(merge, opened, origin, partial / "model.safetensors", workers, on_progress)
        _copy_the_rest(models[0], partial, opened[0].tensors)
        inputs = tuple(one.root() for one in (*opened, *([origin] if origin else [])))
        root = weights_root(infos)
        write_whole(partial / RECIPE_NAME, _recipe(merge, inputs, root))
    return Merged(out, root, (out / "model.safetensors").stat().st_size, len(infos), inputs)


def merge_adapter(model: Path, adapter: Path, out: Path) -> Merged:
    """Write the model directory `out`, which must not exist: a model with an adapter to it in it. adapter: PEFT's
    directory, or a policy's image. Raises ModelError, WeightsError."""
    with whole_directory(out) as partial:
        write_merged(adapter, model, partial / "model.safetensors")
        made = _Model(partial)
        _copy_the_rest(model, partial, made.tensors)
        root = made.root()
    return Merged(out, root, (out / "model.safetensors").stat().st_size, len(made.tensors), ())


def stretches_of(model: Path) -> int:
    """Of how many stretches (protocol.tasks) a merge of models like this one is. Raises WeightsError."""
    return max(1, -(-_count(_Model(model)) // STRETCH))


def merge_stretches(
    merge: Merge, models: Sequence[Path | LayeredImage], base: Path | LayeredImage | None, stretches: range
) -> bytes:
    """A part of the merged image: these stretches of its numbers, and its header before the first. All parts one after
    another are what `merge_models` writes. Raises MergeError, WeightsError."""
    opened, origin = _opened(models, base)
    start, stop, total = stretches.start * STRETCH, stretches.stop * STRETCH, _count(opened[0])
    # The last stretch may end behind the numbers. The first one is there even where a model has none (`stretches_of`).
    if stop >= total + STRETCH and stretches.start:
        raise MergeError(f"they have {total:,} numbers, fewer than stretch {stretches.stop} begins at", "ask again")
    shapes = list(opened[0].shapes.items())
    parts, offset = [image_header(shapes)] if start == 0 else [], 0
    for name, shape in shapes:
        low, high = max(start - offset, 0), min(stop - offset, math.prod(shape))
        if low < high:
            flat = [model.tensors[name].reshape(-1) for model in opened]
            before = origin.tensors[name].reshape(-1) if origin else None
            parts += [bytes(raw(window)) for window in merged(merge, name, before, flat, low, high)]
        offset += math.prod(shape)
    return b"".join(parts)


def assemble(parts: Iterable[bytes], model: Path, out: Path) -> bytes:
    """Write the model directory `out`, which must not exist, of all parts of a merged image; its weights root.
    Configuration and tokenizer are those of `model`. Raises WeightsError, WeightsDiskError."""
    with whole_directory(out) as partial:
        with (partial / "model.safetensors").open("wb") as file:
            for part in parts:
                file.write(part)
        made = _Model(partial)
        root = made.root()
        _copy_the_rest(model, partial, made.tensors)
    return root


def _opened(
    models: Sequence[Path | LayeredImage], base: Path | LayeredImage | None
) -> tuple[list[_Model], _Model | None]:
    """The models and their base, all of one shape. Raises MergeError, WeightsError."""
    opened, origin = [_Model(path) for path in models], _Model(base) if base is not None else None
    for other in (*opened[1:], *([origin] if origin else [])):
        _check_alike(opened[0], other)
    return opened, origin


def _count(model: _Model) -> int:
    return sum(math.prod(shape) for shape in model.shapes.values())


def _write(
    merge: Merge, models: Sequence[_Model], base: _Model | None, out: Path, workers: int | None, on_progress: OnBytes
) -> tuple[TensorInfo, ...]:
    shapes = list(models[0].shapes.items())
    layout, digests = image_layout(shapes), dict[int, bytes]()

    def windows(place: int) -> Iterator[U16]:
        name = shapes[place][0]
        flat = [model.tensors[name].reshape(-1) for model in models]
        return merged(merge, name, base.tensors[name].reshape(-1) if base else None, flat)

    def check(place: int, found: HashedTensor) -> None:
        digests[place] = found.digest
        on_progress(layout.sizes[place])

    write_image(layout, windows, out, check, workers=workers)
    return tuple(TensorInfo(name, shape, digests[place]) for place, (name, shape) in enumerate(shapes))


def _check_alike(first: _Model, other: _Model) -> None:
    if first.shapes == other.shapes:
        return
    names = [name for name in {**first.shapes, **other.shapes} if first.shapes.get(name) != other.shapes.get(name)]
    raise MergeError(
        f"{other.path} and {first.path} differ in {len(names)} tensors: {names[0][:80]} has the shapes "
        f"{other.shapes.get(names[0], 'none')} and {first.shapes.get(names[0], 'none')}",
        "merge models that were trained from one",
    )


def _copy_the_rest(model: Path, out: Path, tensors: Collection[str]) -> None:
    """Configuration and tokenizer. tensors: names of those in `out`."""
    if not model.is_dir():
        return
    for path in sorted(model.iterdir()):
        # Not the index, the record or the recipe: they speak of the first model's weights.
        kept = path.suffix in (".json", ".txt", ".model", ".jinja") and path.name not in (INDEX_NAME, RECORD_NAME)
        if path.is_file() and kept and path.name != RECIPE_NAME:
            data = path.read_bytes()
            write_whole(out / path.name, as_bf16(data, tensors) if path.name == CONFIG_NAME else data)


def _recipe(merge: Merge, inputs: Sequence[bytes], root: bytes) -> bytes:
    said: Mapping[str, object] = {
        **msgspec.to_builtins(merge),
        "inputs": [one.hex() for one in inputs],
        "weights_root": root.hex(),
    }
    return (json.dumps(said, indent=2) + "\n").encode()
