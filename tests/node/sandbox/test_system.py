"""The guest's operating system: whatever numbers it is called with, it answers with a number or ends the guest."""

import inspect
import random
import struct
from collections.abc import Callable

import pytest
from wasmtime import Instance, Memory, Module, Store

from node.sandbox import wire
from node.sandbox.wasi.abi import Errno, WasiError
from node.sandbox.wasi.channel import Channel, GuestEnd, GuestFinished, TooLong
from node.sandbox.wasi.descriptors import CHANNEL, ROOT, STDIN, STDOUT
from node.sandbox.wasi.engine import make_engine
from node.sandbox.wasi.files import ENTRY_BYTES, Disk, GuestFile, find, make_tree
from node.sandbox.wasi.meter import CALL_FUEL
from node.sandbox.wasi.paths import Paths
from node.sandbox.wasi.streams import Streams
from node.sandbox.wasi.surroundings import Surroundings
from node.sandbox.wasi.system import FIXED, System

FUNCTIONS = [
    name
    for group in (Surroundings, Streams, Paths)
    for name, _ in inspect.getmembers(group, inspect.isfunction)
    if not name.startswith("_")
]
WIDE = {
    ("fd_pread", 3),
    ("fd_readdir", 3),
    ("fd_seek", 1),
    ("fd_pwrite", 3),
    ("fd_filestat_set_size", 1),
    ("clock_time_get", 1),
    ("path_open", 5),
    ("path_open", 6),
}
"""Arguments of 64 bits."""
PAGES = 2
REQUEST = wire.SandboxRequest(b'["f", []]', b"input", 10**9)


@pytest.fixture
def channel() -> Channel:
    return Channel(lambda: REQUEST, _no_other, limit=1000)


@pytest.fixture
def system(channel: Channel) -> System:
    engine = make_engine()
    store = Store(engine)
    root = make_tree({"a/b.txt": b"text", "c.py": b""})
    made = System(store, root, channel, ["python", "-c"], Disk(root, "work", 4096))
    made.fill(10**12)
    instance = Module(engine, f'(module (memory (export "memory") {PAGES}))')
    memory = Instance(store, instance, []).exports(store)["memory"]
    assert isinstance(memory, Memory)
    made.attach(memory)
    return made


def test_all_that_may_be_imported_is_there() -> None:
    assert len(FUNCTIONS) + len(FIXED) == 43
    assert {name.split("_")[0] for name in FUNCTIONS} == {*"args environ clock fd path poll proc random".split()}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_numbers_are_answered(system: System, name: str) -> None:
    source = random.Random(name)
    count = len(inspect.signature(system.handler(name)).parameters)
    narrow = [(name, place) not in WIDE for place in range(count)]
    call = system.function(name, narrow)
    system.handler("path_open")(ROOT, 0, 0, 0, 0, 0, 0, 0, 8)
    for _ in range(300):
        try:
            answer = call(*(_number(source, short) for short in narrow))
        except GuestEnd:
            continue
        assert isinstance(answer, int) and 0 <= answer < 77


def test_every_call_costs_fuel(system: System) -> None:
    before = system.used
    system.function("sched_yield", [])()
    assert system.used - before == CALL_FUEL


def test_more_than_may_be_said_ends_the_guest_and_what_fits_is_kept(system: System, channel: Channel) -> None:
    memory = system._memory
    memory.write(0, struct.pack("<II", 100, 2000))
    memory.write(100, b"x" * 2000)
    with pytest.raises(TooLong):
        system.handler("fd_write")(CHANNEL, 0, 1, 8)
    with pytest.raises(TooLong):
        system.handler("fd_write")(STDOUT, 0, 1, 8)
    assert channel.printed == b"x" * 1000


def test_the_channel_gives_a_request_once_and_ends_after_the_reply(channel: Channel) -> None:
    assert (channel.read(5), channel.read(100), channel.read(5)) == (b'["f",', b" []]", b"")
    channel.write(b"v1")
    with pytest.raises(GuestFinished):
        channel.read(1)


def test_standard_input_is_that_of_the_request(system: System, channel: Channel) -> None:
    memory = system._memory
    memory.write(0, struct.pack("<II", 100, 3))
    channel.read(1)
    for expected in (b"inp", b"ut", b""):
        system.handler("fd_read")(STDIN, 0, 1, 8)
        assert memory.read(100, int.from_bytes(memory.read(8, 4), "little")) == expected


@pytest.mark.parametrize("path", [b"..", b"../c.py", b"a/../../etc", b"c.py/x", b"A", b"\xff", b"a\0"])
def test_there_is_nothing_outside_of_the_tree(path: bytes) -> None:
    with pytest.raises(Exception, match="NOENT|NOTDIR"):
        find(make_tree({"a/b.txt": b"text", "c.py": b""}), path)


def test_a_tree_is_numbered_by_its_names_alone() -> None:
    first, second = make_tree({"b": b"1", "a/x": b"2"}), make_tree({"a/x": b"2", "b": b"1"})
    assert all(find(first, path).inode == find(second, path).inode for path in (b"", b"a", b"./a//x", b"b"))
    assert isinstance(find(first, b"./a//x"), GuestFile)


def test_a_disk_gives_room_back_only_when_nobody_holds_the_file() -> None:
    root = make_tree({"c.py": b""})
    disk = Disk(root, "work", ENTRY_BYTES + 100)
    work = find(root, b"work")
    file = disk.create(work, "a", directory=False)
    disk.write(file, b"x" * 100, 0)
    file.opened = 1
    disk.remove(work, "a", directory=False)
    assert _refused(lambda: disk.create(work, "b", directory=False)) is Errno.NOSPC
    disk.closed(file)
    assert disk.left == ENTRY_BYTES + 100
    assert disk.create(work, "b", directory=False).inode != file.inode


def test_a_disk_is_a_tree_and_only_it_can_be_changed() -> None:
    root = make_tree({"c.py": b"code"})
    disk = Disk(root, "work", 1 << 16)
    work = find(root, b"work")
    outer = disk.create(work, "outer", directory=True)
    inner = disk.create(outer, "inner", directory=True)
    assert _refused(lambda: disk.rename(work, "outer", inner, "again")) is Errno.INVAL
    assert _refused(lambda: disk.remove(work, "outer", directory=True)) is Errno.NOTEMPTY
    assert _refused(lambda: disk.rename(root, "c.py", work, "c.py")) is Errno.ROFS
    assert _refused(lambda: disk.write(find(root, b"c.py"), b"x", 0)) is Errno.ROFS
    disk.rename(outer, "inner", work, "moved")
    assert [(depth, name) for depth, name, _ in disk.content()] == [(0, ""), (1, "outer"), (1, "moved")]


def _refused(change: Callable[[], object]) -> Errno:
    with pytest.raises(WasiError) as refused:
        change()
    return refused.value.errno


def _no_other() -> wire.SandboxRequest:
    raise GuestFinished


def _number(source: random.Random, narrow: bool) -> int:
    size = PAGES << 16
    value = source.choice((0, 1, 3, 4, 5, 8, size - 1, size, 2**31, 2**32 - 1, source.randrange(size)))
    return (
        value - 2**32
        if narrow and value >= 2**31
        else source.choice((value, -value, 2**63 - 1))
        if not narrow
        else value
    )
