"""What a SHARDCAST 0.3 client expects below a base URL. Pure.

    /distribution.txt        one line per version, oldest first: v<N>: <BLAKE3 of the whole file>|<number of shards>
    /v<N>/shard_00001.bin    the file in shards of 50,000,000 bytes, the last one shorter
    /data1.bin               something to measure the bandwidth with

Version N is step N of the run and its file the canonical safetensors image, so shards are byte ranges of a
file that is there anyway.
"""

import re
from collections.abc import Sequence

import msgspec

SHARD_BYTES = 50_000_000
MAX_VERSIONS = 5
PROBE_BYTES = 1_000_000
_SHARD = re.compile(r"shard_([0-9]{5,6})\.bin")


class Version(msgspec.Struct, frozen=True):
    """step: >= 0; digest: 32 bytes, plain BLAKE3 of the file; size: bytes."""

    step: int
    digest: bytes
    size: int


def distribution(versions: Sequence[Version]) -> str:
    """The text of distribution.txt: the newest versions, oldest first."""
    newest = sorted(versions, key=lambda version: version.step)[-MAX_VERSIONS:]
    return "".join(f"v{each.step}: {each.digest.hex()}|{shard_count(each.size)}\n" for each in newest)


def shard_count(size: int) -> int:
    """Shards of a file of `size` bytes."""
    return -(-size // SHARD_BYTES)


def shard_span(name: str, size: int) -> tuple[int, int] | None:
    """(offset, length) of the shard with this file name, None if there is no such shard."""
    match = _SHARD.fullmatch(name)
    index = int(match[1]) - 1 if match else -1
    if not 0 <= index < shard_count(size):
        return None
    offset = index * SHARD_BYTES
    return offset, min(SHARD_BYTES, size - offset)
