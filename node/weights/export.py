"""A held policy as a model directory: sharded safetensors and their index, as Hugging Face and vLLM load them.

The directory appears whole, by one rename, and carries the policy's record, so that anybody can check it later against
what the trainer signed (`verify_directory`). Copies and hashes: call in a thread.
"""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from node.inference.errors import ModelError
from node.inference.layers import LayeredImage
from node.inference.model_files import INDEX as INDEX_NAME
from node.inference.model_files import as_bf16
from node.inference.weight_files import has_weights
from node.inference.weight_files import weight_files as inference_weights
from node.state.files import sync_directory, whole_file, write_whole
from node.weights.errors import WeightsError, disk_errors
from node.weights.images import U16, mapped
from node.weights.records import RECORD_NAME, PolicyRecord, encode_record, read_record
from protocol.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS, LORA_A, is_adapter, peft_name
from protocol.policy import (
    MalformedPolicy,
    PolicyManifest,
    TensorInfo,
    bf16_bits,
    bf16_values,
    decode_image,
    image_header,
    image_layout,
    raw,
    weights_root,
)
from protocol.policy_patch import forms

CONFIG_NAME = "config.json"
OnBytes = Callable[[int], object]
"""Called with bytes done since the last call."""


class Exported(msgspec.Struct, frozen=True):
    """What a directory holds. files: the weight files; size: their bytes."""

    directory: Path
    step: int
    root: bytes
    files: tuple[str, ...]
    size: int


def plan_shards(tensors: Sequence[TensorInfo], most: int) -> list[tuple[TensorInfo, ...]]:
    """Tensors in their order, cut into files of at most `most` bytes of weights (one tensor, if that is bigger)."""
    shards: list[list[TensorInfo]] = [[]]
    size = 0
    for tensor in tensors:
        bytes_ = 2 * math.prod(tensor.shape)
        # A tensor is never cut: no loader puts one together from two files.
        if shards[-1] and size + bytes_ > most:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += bytes_
    return [tuple(shard) for shard in shards]


def export_model(
    image: Path | LayeredImage,
    record: PolicyRecord,
    assets: Mapping[str, Path],
    out: Path,
    *,
    shard_bytes: int = 5_000_000_000,  # as Hugging Face cuts them: loaders then map one file after the other
    on_progress: OnBytes = lambda _: None,
) -> Exported:
    """Write the directory `out`, which must not exist. assets: the model's other files (configuration, tokenizer).

    An adapter is written below it, in PEFT's format and as it was signed; merged into the start model only where that
    lies beside the assets. Every tensor is checked on the way. Raises MalformedPolicy, WeightsError, WeightsDiskError.
    """
    image = _opened(image)
    with whole_directory(out) as partial:
        adapter = holds_adapter(image)
        signed = partial / POLICY_DIRECTORY if adapter else partial
        signed.mkdir(exist_ok=True)
        names = {info.name for info in record.manifest.tensors}
        written = _write_shards(image, record.manifest, signed, shard_bytes, on_progress)
        files = tuple(str((signed / name).relative_to(partial)) for name in written)
        for name, source in assets.items():
            if name == CONFIG_NAME:
                # The start model may have been float32; loaders believe the config, and would widen what is bf16.
                write_whole(partial / name, as_bf16(source.read_bytes(), names))
                continue
            with whole_file(partial / name) as file, source.open("rb") as data:
                shutil.copyfileobj(data, file)
        if adapter:
            base = assets[CONFIG_NAME].parent if CONFIG_NAME in assets else partial
            files += write_both(image, partial, base)
        write_whole(signed / RECORD_NAME, encode_record(record))
    size = sum((out / name).stat().st_size for name in files)
    return Exported(out, record.manifest.step, record.manifest.policy_root, files, size)


@contextmanager
def whole_directory(out: Path) -> Iterator[Path]:
    """A model directory to fill, which is called `out` when the block ends, and is gone if the block raises. Raises
    WeightsError where `out` exists, WeightsDiskError."""
    if out.exists():
        raise WeightsError(f"{out} exists", "a model directory is written whole or not at all", "name another one")
    # Beside it, so that the rename stays within one file system.
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with disk_errors(f"the model directory {out}"):
            partial.mkdir(parents=True)
            yield partial
            os.replace(partial, out)
            sync_directory(out.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write_shards(
    image: LayeredImage, manifest: PolicyManifest, directory: Path, most: int, on_progress: OnBytes
) -> tuple[str, ...]:
    # Before a byte is written: the digests below are of tensors by their place in this list.
    if image.forms != forms(manifest.tensors):
        raise MalformedPolicy("wrong policy image", "its tensors have other names or shapes than the manifest's")
    places = {info.name: place for place, info in enumerate(manifest.tensors)}
    shards = plan_shards(manifest.tensors, most)
    names = [_shard_name(place, len(shards)) for place in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        with (directory / name).open("wb") as file:
            file.write(image_header((info.name, info.shape) for info in shard))
            for info in shard:
                data = raw(image[info.name])
                if image.layout.hashed(places[info.name], data).digest != info.digest:
                    raise MalformedPolicy("wrong policy image", f"{info.name[:80]} is not the manifest's")
                file.write(data)
                on_progress(2 * math.prod(info.shape))
            file.flush()
            os.fsync(file.fileno())
    if len(shards) > 1:
        total = 2 * sum(math.prod(info.shape) for info in manifest.tensors)
        homes = {info.name: name for name, shard in zip(names, shards, strict=True) for info in shard}
        index = {"metadata": {"total_size": total}, "weight_map": homes}
        write_whole(directory / INDEX_NAME, (json.dumps(index, indent=2) + "\n").encode())
    return tuple(names)


def _shard_name(place: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{place + 1:05d}-of-{count:05d}.safetensors"


def weight_files(path: Path) -> list[Path]:
    """The safetensors files that make up a model directory (or the one file itself). Raises WeightsError."""
    if path.is_file():
        return [path]
    try:
        found = inference_weights(path)
    except ModelError as error:
        raise WeightsError(f"cannot use the weights in {path}", error.why, error.remedy) from None
    if found.unnamed:
        why = f"its index gives tensor {found.unnamed[0][:80]!r} to no file"
        raise WeightsError(f"cannot use the weights in {path}", why, "fetch or export the model again")
    return list(found.files)


def describe_files(files: Sequence[Path], on_progress: OnBytes = lambda _: None) -> tuple[TensorInfo, ...]:
    """Infos, in name order, of the bf16 tensors of several files. Raises MalformedPolicy."""
    tensors: dict[str, U16] = {}
    for file in files:
        for name, tensor in decode_image(mapped(file)).items():
            # Two files with one name: which of them is loaded depends on the loader.
            if name in tensors:
                raise MalformedPolicy("bad policy", f"{name[:80]} stands in two files")
            tensors[name] = tensor
    return describe_tensors(tensors, on_progress)


def describe_tensors(tensors: Mapping[str, U16], on_progress: OnBytes = lambda _: None) -> tuple[TensorInfo, ...]:
    """The same of tensors that are mapped already."""
    shapes = [(name, tuple(tensors[name].shape)) for name in sorted(tensors)]
    layout, infos = image_layout(shapes), list[TensorInfo]()
    for place, (name, shape) in enumerate(shapes):
        infos.append(TensorInfo(name, shape, layout.hashed(place, raw(tensors[name])).digest))
        on_progress(tensors[name].nbytes)
    return tuple(infos)


def verify_directory(path: Path, on_progress: OnBytes = lambda _: None) -> tuple[bytes, PolicyRecord | None]:
    """The weights root of a model directory or file, and its record if it carries one, which then fits.

    The policy root is the record's: weights alone do not say of which step they are.

    Raises MalformedPolicy naming the first tensor that is not the record's; WeightsError.
    """
    infos = describe_files(weight_files(path), on_progress)
    record = read_record(path / RECORD_NAME) if path.is_dir() else None
    if record is not None:
        ours = {info.name: info for info in infos}
        for info in record.manifest.tensors:
            if ours.get(info.name) != info:
                raise MalformedPolicy(
                    "not the policy", f"{info.name[:80]} is missing or another than the one signed for"
                )
        # Tensors on top would be loaded by some architectures, and nobody signed them.
        if len(ours) != len(record.manifest.tensors):
            raise MalformedPolicy("not the policy", "it has tensors that the policy does not have")
    return weights_root(infos), record


# Adapters (protocol.lora) for others: in PEFT's format, and merged into the start model.
# PEFT loads an adapter as weight + lora_B @ lora_A * lora_alpha / r. A policy has the trainer's factor in its second
# matrix already, so lora_alpha is r here, whatever the recipe said: the sum is the same. Hashes nothing: the image is
# the caller's to verify.
ADAPTER_DIRECTORY, POLICY_DIRECTORY = "adapter", "policy"
"""Below an exported model: PEFT's files, and the tensors that the trainer signed."""
MERGED_WEIGHTS = "model.safetensors"


def _opened(image: Path | LayeredImage) -> LayeredImage:
    return image if isinstance(image, LayeredImage) else LayeredImage(image)


def holds_adapter(image: Path | LayeredImage) -> bool:
    """Whether a policy's image is an adapter. Raises MalformedPolicy."""
    return is_adapter(_opened(image))


def write_both(image: Path | LayeredImage, out: Path, model_dir: Path) -> tuple[str, ...]:
    """An adapter for PEFT and, where the start model's weights are at hand, merged into them; the weight files,
    relative to `out`. Raises MalformedPolicy."""
    write_adapter(image, out / ADAPTER_DIRECTORY, model_dir)
    found = f"{ADAPTER_DIRECTORY}/{ADAPTER_WEIGHTS}"
    # Whoever only fetched the policy has no start model; the adapter alone is of use to him.
    if not has_weights(model_dir):
        return (found,)
    write_merged(image, model_dir, out / MERGED_WEIGHTS)
    return (found, MERGED_WEIGHTS)


def write_adapter(image: Path | LayeredImage, out: Path, model_dir: Path) -> None:
    """Write adapter_config.json and adapter_model.safetensors into the directory `out`. model_dir: the start model's,
    whose name or place is told to those who load the adapter by itself. Raises MalformedPolicy."""
    tensors = dict(_opened(image))
    out.mkdir(parents=True, exist_ok=True)
    # By PEFT's names, which sort otherwise than ours.
    named = dict(sorted((peft_name(name), tensor) for name, tensor in tensors.items()))
    with whole_file(out / ADAPTER_WEIGHTS) as file:
        file.write(image_header((name, tensor.shape) for name, tensor in named.items()))
        for tensor in named.values():
            file.write(raw(tensor))
    config = peft_config({name: tensor.shape for name, tensor in tensors.items()}, _called(model_dir))
    write_whole(out / ADAPTER_CONFIG, (json.dumps(config, indent=2) + "\n").encode())


def peft_config(shapes: Mapping[str, tuple[int, ...]], base: str) -> dict[str, object]:
    """What PEFT's LoraConfig writes of such an adapter."""
    rank = next(shape[0] for name, shape in shapes.items() if name.endswith(LORA_A))
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        # The last part of a name ("q_proj"): PEFT finds the layers by suffix.
        "target_modules": sorted({name.rpartition(".")[0].rpartition(".")[2] for name in shapes}),
        "inference_mode": True,
    }


def _called(model_dir: Path) -> str:
    """As on the hub, if its config.json says so; else its place on this machine."""
    try:
        name = json.loads((model_dir / "config.json").read_bytes()).get("_name_or_path")
    except (OSError, ValueError, AttributeError):
        name = None
    return name if isinstance(name, str) and name else str(model_dir.resolve())


def write_merged(image: Path | LayeredImage, model_dir: Path, out: Path) -> None:
    """Write the canonical bf16 image of the start model with the adapter in it. image: the adapter's, or its directory
    in PEFT's format. Needs torch; raises ModelError.

    Rounding to bf16 swallows what is smaller than a weight's last bit: the adapter itself is exact.
    """
    import torch

    from node.inference.lora import expected_tensors, merged, read_peft
    from node.inference.start_weights import StartWeights
    from node.inference.torch_engine import build_model, image_names

    if isinstance(image, Path) and image.is_dir():
        adapter = read_peft(
            image, partial(expected_tensors, parameters=image_names(build_model(model_dir, device="meta")))
        )
    else:
        tensors = _opened(image).items()
        adapter = {name: torch.from_numpy(bf16_values(tensor)).to(torch.bfloat16) for name, tensor in tensors}
    # Tensor by tensor from its files: the whole model need not fit beside its merged copy.
    start = StartWeights(model_dir)
    whole, names = merged(start, adapter), sorted(start)
    with whole_file(out) as file:
        file.write(image_header((name, start.shape(name)) for name in names))
        for name in names:
            file.write(raw(bf16_bits(whole[name].float().numpy())))
