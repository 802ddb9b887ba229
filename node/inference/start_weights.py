"""Policy 0: the weights of the start model's own files, rounded to bf16, read one tensor at a time.

Which file has a tensor says node.inference.weight_files.
Experts are a matrix each in the files that people publish, and one tensor of all in a model of transformers: read here
as the latter. Numbers of four bits (MXFP4, as gpt_oss has them) are read as what they stand for, which bf16 holds."""

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from node.inference.architectures import CORRECTION
from node.inference.errors import ModelError
from node.inference.weight_files import BLOCKS, SCALES, weight_files

_ONE_EXPERT = re.compile(r"(.+\.mlp\.experts)\.(0|[1-9]\d{0,3})\.(gate_proj|up_proj|down_proj)\.weight")
_FOUR_BITS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], dtype=torch.bfloat16)
_FOUR_BITS = torch.cat((_FOUR_BITS, -_FOUR_BITS))
_FLOATS = ("BF16", "F16", "F32", "F64")
_STACKED = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}


class StartWeights(Mapping[str, Tensor]):
    """Tensors of a model directory in Hugging Face form, by name. A rank needs one of them at a time, and only its
    shard of it for longer: the whole model is never in memory. Raises ModelError for files that are none."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stored_as = weight_files(directory).tensors
        self._files = {name: stored.file for name, stored in self._stored_as.items()}
        self._stacks = _stacks(self._files)
        whole = {name.removesuffix(BLOCKS) for name in self._files if name.endswith(BLOCKS)}
        self._small = {name for name in whole if name + SCALES in self._files}

    def __getitem__(self, name: str) -> Tensor:
        """bf16, on the CPU."""
        if name in self._stacks:
            return torch.stack([torch.cat([self[part] for part in parts]) for parts in self._stacks[name]])
        if name in self._small:
            return _widened(self._stored(name + BLOCKS), self._stored(name + SCALES), self.shape(name))
        stored = self._stored(name)
        if name.endswith(CORRECTION):
            # Experts are chosen by differences of these. What all have in common would take the bits that tell them
            # apart in bf16.
            stored = stored.float() - stored.float().mean()
        return stored.to(torch.bfloat16)

    def _stored(self, name: str) -> Tensor:
        stored = self._stored_as[name]
        with _opened(stored.file) as file:
            return file.get_tensor(stored.called)

    def __iter__(self) -> Iterator[str]:
        inside = {part for parts in self._stacks.values() for one in parts for part in one}
        inside |= {name + part for name in self._small for part in (BLOCKS, SCALES)}
        # What a stack or a tensor of four bits is made of has no name of its own in the model.
        return iter([*(name for name in self._files if name not in inside), *self._stacks, *self._small])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def check(self, parameters: Mapping[str, Tensor]) -> None:
        """Raises ModelError unless every parameter has a tensor of its name and shape, of numbers that stand for
        themselves: what is quantised means nothing without its scales."""
        for name, parameter in parameters.items():
            if name not in self._files and name not in self._stacks and name not in self._small:
                raise _unusable(self._directory, f"tensor {name!r} of the architecture is in no file")
            found, wanted = self.shape(name), tuple(parameter.shape)
            if found != wanted:
                raise _unusable(
                    self._files.get(name, self._directory),
                    f"tensor {name!r} has shape {found}, config.json makes it {wanted}",
                )
            for part in self._made_of(name):
                if (stored := self._stored_as[part]).dtype not in _FLOATS:
                    why = f"tensor {part!r} is of type {stored.dtype}, not one of {', '.join(_FLOATS)}"
                    raise _unusable(stored.file, why)

    def left_out(self, parameters: Mapping[str, Tensor]) -> list[str]:
        """Names of tensors in the files that the architecture has no place for."""
        used = {part for name in parameters for part in self._made_of(name)}
        used |= {name + part for name in self._small & parameters.keys() for part in (BLOCKS, SCALES)}
        return sorted(self._files.keys() - used)

    def _made_of(self, name: str) -> list[str]:
        """The tensors of the files that a tensor of the model is made of, but for what is in four bits."""
        if name in self._stacks:
            return [part for parts in self._stacks[name] for part in parts]
        return [name] if name in self._files else []

    def shape(self, name: str) -> tuple[int, ...]:
        """As the files' headers have it."""
        if name in self._stacks:
            return self._stacked_shape(name)
        if name in self._small:
            return self._widened_shape(name)
        return self._stored_as[name].shape

    def _widened_shape(self, name: str) -> tuple[int, ...]:
        """[experts, in, out]. Raises ModelError for blocks without a scale each, and for such as are no bytes."""
        for part in (name + BLOCKS, name + SCALES):
            if (found := self._stored_as[part].dtype) != "U8":
                raise _unusable(self._files[part], f"tensor {part!r} is of type {found}, not of bytes (U8)")
        blocks, scales = self.shape(name + BLOCKS), self.shape(name + SCALES)
        # 16 bytes are the 32 numbers that share a scale.
        if len(blocks) != 4 or blocks[3] != 16 or blocks[:3] != scales:
            raise _unusable(self._files[name + BLOCKS], f"blocks of {name!r} have shape {blocks}, scales {scales}")
        return blocks[0], 32 * blocks[2], blocks[1]

    def _stacked_shape(self, name: str) -> tuple[int, ...]:
        """Raises ModelError for experts of unlike shapes."""
        shapes = {tuple(map(self.shape, parts)) for parts in self._stacks[name]}
        one = next(iter(shapes))
        if len(shapes) > 1 or any(len(shape) != 2 or shape[1] != one[0][1] for shape in one):
            raise _unusable(self._directory, f"the experts that make up {name!r} have unlike shapes")
        return len(self._stacks[name]), sum(shape[0] for shape in one), one[0][1]


def _stacks(names: Iterable[str]) -> dict[str, list[list[str]]]:
    """Tensor -> of each expert the parts that it is made of, where all of them are there."""
    counts: dict[str, set[int]] = {}
    present = set(names)
    for name in present:
        if found := _ONE_EXPERT.fullmatch(name):
            counts.setdefault(found[1], set()).add(int(found[2]))
    stacks = {
        f"{place}.{whole}": [[f"{place}.{i}.{part}.weight" for part in parts] for i in sorted(numbers)]
        for place, numbers in counts.items()
        if numbers == set(range(len(numbers)))
        for whole, parts in _STACKED.items()
    }
    return {
        whole: parts for whole, parts in stacks.items() if present.issuperset(part for one in parts for part in one)
    }


def _widened(blocks: Tensor, scales: Tensor, shape: tuple[int, ...]) -> Tensor:
    """bf16[experts, in, out] of uint8[experts, out, in / 32, 16] and uint8[experts, out, in / 32]."""
    whole = torch.empty(shape[0], shape[2], shape[1], dtype=torch.bfloat16)
    # One expert at a time: as int32 its numbers take eight times the bytes of the file.
    for one, block, scale in zip(whole, blocks, scales, strict=True):
        pairs = torch.stack((block & 15, block >> 4), -1).flatten(-2).int()
        power = torch.exp2(scale[..., None].float() - 127).to(torch.bfloat16)
        one.copy_((_FOUR_BITS[pairs] * power).flatten(-2))
    return whole.transpose(1, 2).contiguous()


def _opened(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise _unusable(path, str(error)) from None


def _unusable(where: Path, why: str) -> ModelError:
    return ModelError(
        "the start model cannot be loaded", f"{where}: {why}", "use a complete model directory in Hugging Face form"
    )
