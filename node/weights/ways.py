"""The ways to a policy, cheapest first. Pure: what a node holds goes in, plans come out."""

from collections.abc import Callable, Set

import msgspec

from protocol.policy import PolicyManifest, PolicyPatch

SOON = 64 * 1024**2
"""Bytes of an image that is fetched whole; a bigger one may be superseded before it has arrived, an anchor stays."""


class Way(msgspec.Struct, frozen=True):
    """Fetch `image` unless it is empty, take the image of `base` otherwise, then apply `patches` in order.

    base: a policy root; image: the blob of that policy's image; cost: bytes to fetch.
    """

    base: bytes
    image: bytes
    patches: tuple[PolicyPatch, ...]
    cost: int

    @property
    def whole(self) -> bool:
        """Whether the policy's own image is fetched."""
        return bool(self.image) and not self.patches

    @property
    def name(self) -> str:
        """What the way leads over, as it is counted; "here": nothing has to be fetched or built."""
        if self.whole:
            return "image" if self.cost else "here"
        return "anchor" if self.image else "patches"


def ways_to(manifest: PolicyManifest, held: Set[bytes], present: Callable[[bytes], int]) -> list[Way]:
    """held: policy roots whose images are here or about to be; present: bytes of a blob that are here already."""
    ways: list[Way] = []
    for place in range(len(manifest.patches) - 1, -1, -1):
        patches = manifest.patches[place:]
        if patches[0].base_root in held:
            ways.append(Way(patches[0].base_root, b"", patches, _missing(patches, present)))
    anchor = manifest.anchor
    if anchor is not None:
        patches = manifest.patches_from(anchor.policy_root) or ()
        cost = manifest.image_size - present(anchor.image_root) + _missing(patches, present)
        if manifest.image_size > SOON:
            cost = max(0, cost - manifest.image_size // 3)  # of two long ways the one whose goal stays where it is
        ways.append(Way(anchor.policy_root, anchor.image_root, patches, cost))
    whole = manifest.image_size - present(manifest.image_root)
    ways.append(Way(manifest.policy_root, manifest.image_root, (), whole))
    return sorted(ways, key=lambda way: (way.cost, len(way.patches)))


def _missing(patches: tuple[PolicyPatch, ...], present: Callable[[bytes], int]) -> int:
    return sum(patch.size - present(patch.root) for patch in patches)


def next_chain(
    previous: PolicyManifest | None, patch: PolicyPatch | None, image_size: int, most: int
) -> tuple[PolicyPatch, ...]:
    """The newest patches, `patch` last, that together have at most `most` bytes."""
    chain = (*(previous.patches if previous else ()), patch) if patch else ()
    while chain and sum(each.size for each in chain) > most:
        chain = chain[1:]
    return chain
