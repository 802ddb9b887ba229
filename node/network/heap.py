"""How the C library keeps freed memory for what comes next. Knows nothing of networks."""

BLOCK = 32 * 1024**2 - 64 * 1024
"""The largest that glibc learns from (mallopt(3), M_MMAP_THRESHOLD): 32 MiB with its own header."""


def keep_freed_blocks() -> None:
    """Let blocks of up to 32 MiB be cut from the heap, and up to 64 MiB of it stay when they are freed.

    The bytes of a blob pass through blocks of 64 KiB to 4 MiB. As a process starts, the C library maps and unmaps each
    of 128 KiB, and hands the heap's end back with each that is freed: a page fault for every 4 KiB that arrive, a
    quarter of what a transfer costs. glibc raises both bounds once it has freed a mapped block of that size; other
    libraries have other rules, and to them this is a block that nobody wrote to.
    """
    bytes(BLOCK)  # zeroed by the kernel where it is touched, which it is not; a bytearray would be zeroed by hand
