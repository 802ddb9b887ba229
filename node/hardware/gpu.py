"""A graphics processor, whoever made it."""

import msgspec


class Gpu(msgspec.Struct, frozen=True):
    """memory, free: bytes, free -1 where nobody says; vendor: nvidia or amd; capability: CUDA's compute capability or
    the name of AMD's instruction set (gfx942), empty where nobody says."""

    name: str
    memory: int
    free: int = -1
    vendor: str = "nvidia"
    capability: str = ""
