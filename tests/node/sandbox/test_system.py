"""The guest's operating system: whatever numbers it is called with, it answers with a number or ends the guest."""

import inspect
import random
import struct

import pytest
from wasmtime import Instance, Memory, Module, Store

from node.sandbox import wire
from node.sandbox.wasi.channel import Channel, Finished, GuestEnd, TooLong
from node.sandbox.wasi.engine import make_engine
from node.sandbox.wasi.files import Node, find, make_tree
from node.sandbox.wasi.system import _FIXED, CALL_FUEL, CHANNEL, ROOT, STDIN, STDOUT, System

FUNCTIONS = [
    name
    for name, _ in inspect.getmembers(System, inspect.isfunction)
    if name.split("_")[0] in ("args", "environ", "clock", "fd", "path", "poll", "proc", "random")
]
WIDE = {("fd_pread", 3), ("fd_readdir", 3), ("fd_seek", 1), ("clock_time_get", 1), ("path_open", 5), ("path_open", 6)}
"""Arguments of 64 bits."""
PAGES = 2
REQUEST = wire.Request(b'["f", []]', b"input", 10**9)


@pytest.fixture
def system() -> System:
    engine = make_engine()
    store = Store(engine)
    channel = Channel(lambda: REQUEST, limit=1000)
    made = System(store, make_tree({"a/b.txt": b"text", "c.py": b""}), channel, ["python", "-c"])
    made.fill(10**12)
    instance = Module(engine, f'(module (memory (export "memory") {PAGES}))')
    memory = Instance(store, instance, []).exports(store)["memory"]
    assert isinstance(memory, Memory)
    made.attach(memory)
    return made


def test_all_that_may_be_imported_is_there() -> None:
    assert len(FUNCTIONS) + len(_FIXED) == 43


@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_numbers_are_answered(system: System, name: str) -> None:
    source = random.Random(name)
    count = len(inspect.signature(getattr(System, name)).parameters) - 1
    narrow = [(name, place) not in WIDE for place in range(count)]
    call = system._function(name, narrow)
    system.path_open(ROOT, 0, 0, 0, 0, 0, 0, 0, 8)
    for _ in range(300):
        try:
            answer = call(*(_number(source, short) for short in narrow))
        except GuestEnd:
            continue
        assert isinstance(answer, int) and 0 <= answer < 77


def test_every_call_costs_fuel(system: System) -> None:
    before = system.used
    system._function("sched_yield", [])()
    assert system.used - before == CALL_FUEL


def test_more_than_may_be_said_ends_the_guest_and_what_fits_is_kept(system: System) -> None:
    memory = system._memory
    memory.write(0, struct.pack("<II", 100, 2000))
    memory.write(100, b"x" * 2000)
    with pytest.raises(TooLong):
        system.fd_write(CHANNEL, 0, 1, 8)
    with pytest.raises(TooLong):
        system.fd_write(STDOUT, 0, 1, 8)
    assert system._channel.printed == b"x" * 1000


def test_the_channel_gives_a_request_once_and_ends_after_the_reply(system: System) -> None:
    channel = system._channel
    assert (channel.read(5), channel.read(100), channel.read(5)) == (b'["f",', b" []]", b"")
    channel.write(b"v1")
    with pytest.raises(Finished):
        channel.read(1)


def test_standard_input_is_that_of_the_request(system: System) -> None:
    memory = system._memory
    memory.write(0, struct.pack("<II", 100, 3))
    system._channel.read(1)
    for expected in (b"inp", b"ut", b""):
        system.fd_read(STDIN, 0, 1, 8)
        assert memory.read(100, int.from_bytes(memory.read(8, 4), "little")) == expected


@pytest.mark.parametrize("path", [b"..", b"../c.py", b"a/../../etc", b"c.py/x", b"A", b"\xff", b"a\0"])
def test_there_is_nothing_outside_of_the_tree(path: bytes) -> None:
    with pytest.raises(Exception, match="NOENT|NOTDIR"):
        find(make_tree({"a/b.txt": b"text", "c.py": b""}), path)


def test_a_tree_is_numbered_by_its_names_alone() -> None:
    first, second = make_tree({"b": b"1", "a/x": b"2"}), make_tree({"a/x": b"2", "b": b"1"})
    assert first == second
    assert isinstance(find(first, b"./a//x"), Node)


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
