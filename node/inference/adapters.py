"""Several adapters (protocol.lora) beside one base, in one batch: x W' for all rows, and of each row its own adapter.

Merged (node.inference.lora), a policy is a whole model, and another policy takes its place. Apart, policies of one base
stand in slots: the matrices a of all of them under each other, and those b, too. A projection is then one product more
down to the slots and one up from them, however many there are; what other slots say of a row is set to zero in between,
so that nothing of another policy reaches it. This rounds otherwise than merged weights do, so it is a class of its own,
of the kernel `lora` (protocol.engines).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from node.inference.errors import EngineError, ModelError
from node.inference.transfer import sent
from protocol.lora import WEIGHT, adapted_weight, tensors_of

MOST_ADAPTERS = 64
"""At a time: a product over slots costs (slots x rank) columns, whether rows use them or not."""
NOBODY = -1
"""The slot of rows that have the base alone."""


class Site:
    """What adapters add to one projection, of one or several linear layers with the same input."""

    def __init__(self, adapters: "Adapters", layers: Sequence[str], widths: Sequence[int]) -> None:
        self._adapters, self.layers, self._widths = adapters, layers, widths
        self.down = torch.empty(0)
        """[layers * slots * rank, in], which is empty where no adapter has a part."""
        self.up: list[Tensor] = []
        """Of each layer [slots * rank, out]."""

    def provide(self, slots: int, rank: int, columns: int) -> None:
        """Room for so many, with what is there."""
        before, where = self.up, {"device": self._adapters.device, "dtype": self._adapters.dtype}
        down = torch.zeros(len(self.layers), slots, rank, columns, **where)
        up = [torch.zeros(slots, rank, width, **where) for width in self._widths]
        if before:
            count, ranks = self._adapters.slots, self._adapters.rank
            down[:, :count, :ranks] = self.down.view(-1, count, ranks, columns)
            for new, old in zip(up, before, strict=True):
                new[:count, :ranks] = old.view(count, ranks, -1)
        self.down, self.up = down.flatten(0, 2), [one.flatten(0, 1) for one in up]

    def write(self, slot: int, weights: Mapping[str, Tensor]) -> None:
        """An adapter into a slot; zeros where it has no part."""
        if not self.up:
            return
        slots, rank = self._adapters.slots, self._adapters.rank
        down = self.down.view(len(self.layers), slots, rank, -1)
        for number, (layer, up) in enumerate(zip(self.layers, self.up, strict=True)):
            # Zeros first: the slot may have been another's, and of a higher rank than this one.
            room, a_room = up.view(slots, rank, -1)[slot].zero_(), down[number, slot].zero_()
            a, b = tensors_of(layer + WEIGHT)
            if a in weights:
                a_room[: len(weights[a])].copy_(weights[a])
                room[: len(weights[a])].copy_(weights[b].T)

    def add(self, out: Tensor, x: Tensor) -> Tensor:
        """`out` [B, T, out], of the base, with each row's adapter; x: [B, T, in]."""
        if not self.up:
            return out
        others, slots, rank = self._adapters.others, self._adapters.slots, self._adapters.rank
        low = linear(x, self.down).unflatten(-1, (len(self.layers), slots, rank))
        # Set to zero and not multiplied by it: another policy's may be infinite.
        low = low.masked_fill_(others[:, None, None, :, None], 0).flatten(-2).flatten(0, 1)
        # A view of `out`, so that what is added is there.
        whole, at = out.flatten(0, 1), 0
        for number, up in enumerate(self.up):
            whole[:, at : at + up.shape[1]].addmm_(low[:, number], up)
            at += up.shape[1]
        return out


class Adapters:
    """Of one transformer, by name. chosen, others: of the rows of the next passes their slots, int64[B], and which are
    not theirs, bool[B, slots]; version: grows when what a captured step reads is made anew."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self._sites: dict[str, Site] = {}
        self._names: list[bytes | None] = []
        self.slots = self.rank = self.version = 0
        self.chosen = np.empty(0, dtype=np.int64)
        self.others = torch.empty(0)

    def site(self, layers: Sequence[str], widths: Sequence[int]) -> Site:
        made = Site(self, layers, widths)
        self._sites |= dict.fromkeys(layers, made)
        return made

    @property
    def names(self) -> list[bytes]:
        return [name for name in self._names if name is not None]

    def hold(self, name: bytes, weights: Mapping[str, Tensor]) -> None:
        """Beside the others, or in the place of the one of this name. Raises EngineError, ModelError."""
        layers = {adapted_weight(tensor).removesuffix(WEIGHT) for tensor in weights}
        self._check(layers, weights)
        if name not in self._names and len(self.names) == MOST_ADAPTERS:
            raise EngineError("too many adapters", f"{MOST_ADAPTERS} are held", "drop those that are not needed")
        if name not in self._names and None not in self._names:
            self._names.append(None)
        self._provide(layers, weights)
        slot = self._names.index(name if name in self._names else None)
        self._names[slot] = name
        for site in dict.fromkeys(self._sites.values()):
            site.write(slot, weights)

    def _check(self, layers: set[str], weights: Mapping[str, Tensor]) -> None:
        """One that is not finite would reach the rows of all others: zero times infinity is no number."""
        if strange := sorted(layers - set(self._sites)):
            raise _unusable(f"it belongs to {strange[0][:100]!r}, which is kept whole")
        if bad := [tensor for tensor in weights if not weights[tensor].isfinite().all()]:
            raise _unusable(f"{bad[0][:100]!r} is not finite")

    def _provide(self, layers: set[str], weights: Mapping[str, Tensor]) -> None:
        ranks = [len(weights[tensors_of(layer + WEIGHT)[0]]) for layer in layers]
        # Doubled, as node.inference.room reckons: growth moves all tensors, and steps are captured anew.
        rank, slots = max([self.rank, *ranks]), 1 << (len(self._names) - 1).bit_length()
        slots = max(slots, self.slots)
        grown = (slots, rank) != (self.slots, self.rank)
        sites = dict.fromkeys(self._sites[layer] for layer in layers)
        due = [one for one in dict.fromkeys(self._sites.values()) if one in sites or one.up]
        for site in [one for one in due if grown or not one.up]:
            columns = [
                weights[a].shape[1] for a in (tensors_of(layer + WEIGHT)[0] for layer in site.layers) if a in weights
            ]
            site.provide(slots, rank, site.down.shape[1] if site.up else columns[0])
            self.version += 1
        self.slots, self.rank = slots, rank

    @property
    def size(self) -> int:
        """Bytes that all slots take now."""
        return sum(t.nbytes for site in dict.fromkeys(self._sites.values()) if site.up for t in (site.down, *site.up))

    def drop(self, name: bytes) -> None:
        """Its slot is another's from now on; unknown names are ignored."""
        self._names = [None if one == name else one for one in self._names]

    def choose(self, names: Sequence[bytes]) -> None:
        """By whose adapters the rows of the next passes are computed; b"" is the base alone where nothing is called so.
        Raises EngineError."""
        known = {name: slot for slot, name in enumerate(self._names) if name is not None}
        if strange := set(names) - set(known) - {b""}:
            why = f"{min(strange).hex()[:16]} is not among the {len(known)} that are held"
            raise EngineError("an adapter is not loaded", why, "load the policy first")
        self.chosen = np.array([known.get(name, NOBODY) for name in names], dtype=np.int64)
        self.use(sent(self.chosen, self.device))

    def use(self, slots: Tensor) -> None:
        """The same by slots, int64[B], on the device."""
        self.others = slots[:, None] != torch.arange(self.slots, device=slots.device)


def _unusable(why: str) -> ModelError:
    return ModelError(
        "the adapter cannot be kept apart", why, "use another --attention, which merges it, or tell the run's trainer"
    )
