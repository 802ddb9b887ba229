"""Counters within a process, in a file of its own that others may read at any instant.

`begin` puts them around trio's loop and threads, `os.fsync` and a few functions of ours. A count is a number in mapped
memory: whoever asks costs the process nothing. A fork goes on in another file, from zero. Loop and jobs are told by
*kind*: the module whose coroutine a task runs, or whose function a thread is given, and its processor time in
microseconds. The clock of a thread is asked twice for each turn of a task, which costs about a microsecond.
"""

import contextlib
import functools
import importlib.abc
import importlib.machinery
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

FOLDER = "COUNTED_IN"
"""The environment variable that names where the files go; without it nothing is counted."""
SLOT, NUMBER, SLOTS = struct.Struct("<88sq"), struct.Struct("<q"), 2048


class Counters:
    """name -> number, in `folder`/PID."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._slots: dict[str, list[int]] = {}
        """Of each name, where its number stands, and the number."""
        self._open()

    def _open(self) -> None:
        with (self._folder / str(os.getpid())).open("wb+") as file:
            file.truncate(SLOT.size * SLOTS)
            self._memory = mmap.mmap(file.fileno(), SLOT.size * SLOTS)
        self._slots.clear()

    def forked(self) -> None:
        self._lock = threading.Lock()  # another thread may have held it
        self._open()

    def add(self, name: str, number: int = 1) -> None:
        with self._lock:
            slot = self._slots.get(name) or self._named(name)
            slot[1] += number
            NUMBER.pack_into(self._memory, slot[0], slot[1])

    def put(self, name: str, number: int) -> None:
        with self._lock:
            slot = self._slots.get(name) or self._named(name)
            slot[1] = number
            NUMBER.pack_into(self._memory, slot[0], number)

    def _named(self, name: str) -> list[int]:
        """A slot of its own, as long as there are any; names that come later share the last one."""
        if len(self._slots) >= SLOTS:
            slot = next(reversed(self._slots.values()))
        else:
            place = len(self._slots) * SLOT.size
            SLOT.pack_into(self._memory, place, name.encode(), 0)
            slot = [place + SLOT.size - NUMBER.size, 0]
        self._slots[name] = slot
        return slot


def read(path: Path) -> dict[str, int]:
    """What a process has counted so far."""
    found = (SLOT.unpack(data) for data in _slots(path.read_bytes()))
    return {name.rstrip(b"\0").decode(): number for name, number in found if name.strip(b"\0")}


def _slots(data: bytes) -> Iterator[bytes]:
    return (data[at : at + SLOT.size] for at in range(0, len(data) - SLOT.size + 1, SLOT.size))


def begin() -> None:
    """Count from now on, here and in whatever is forked from here."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    counters = Counters(Path(folder))
    os.register_at_fork(after_in_child=counters.forked)
    loop = Loop(counters)
    os.fsync = _fsync(counters, loop)
    sys.meta_path.insert(0, Patches(counters, loop))


@functools.lru_cache(4096)
def kind_of(code: CodeType) -> str:
    """The module that a function stands in, and its name."""
    parts = Path(code.co_filename).with_suffix("").parts
    tops = [at for at, part in enumerate(parts) if part in ("node", "protocol", "cli", "libp2p", "trio")]
    module = ".".join(parts[tops[-1] if tops else -1 :])
    return f"{module}:{code.co_qualname.replace('.<locals>', '')}"[:72]


def _code_of(function: Any) -> CodeType | None:
    while isinstance(function, functools.partial):
        function = function.func
    if getattr(function, "__name__", "") == "<lambda>":  # the journal's and others': what it calls
        called = (cell.cell_contents for cell in function.__closure__ or ())
        function = next(filter(callable, called), function)
    function = getattr(function, "__func__", function)
    return getattr(getattr(function, "__wrapped__", function), "__code__", None)


def _fsync(counters: Counters, loop: "Loop") -> Callable[[Any], None]:
    original = os.fsync

    def fsync(descriptor: Any) -> None:
        counters.add("fsyncs")
        if threading.get_ident() == loop.thread:
            counters.add("fsyncs on the loop")
        where = " on the loop" if threading.get_ident() == loop.thread else ""
        counters.add(f"fsync{where} {kind_of(sys._getframe(1).f_code)}")
        original(descriptor)

    return fsync


class Loop:
    """trio's instrument: its turns, and what its tasks take of the processor. thread: the loop's."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._tells_at = 0.0
        self.thread = 0
        self._woken = self._began = 0
        self._turns, self._busy = 0, 0
        self._tasks: dict[CodeType | None, list[int]] = {}
        """Of each kind of task, by its code: nanoseconds and turns that are not told yet."""

    def before_run(self) -> None:
        self.thread, self._woken = threading.get_ident(), time.thread_time_ns()

    def after_run(self) -> None:
        self.thread = 0

    def before_io_wait(self, timeout: float) -> None:
        self._busy += time.thread_time_ns() - self._woken
        if time.monotonic() >= self._tells_at:
            self._tell()

    def after_io_wait(self, timeout: float) -> None:
        self._woken = time.thread_time_ns()
        self._turns += 1

    def _tell(self) -> None:
        """Now and then: to do it each time was half of what counting took."""
        every = 0.5  # seconds
        self._tells_at = time.monotonic() + every
        self._counters.add("loop us", self._busy // 1000)
        self._counters.add("turns", self._turns)
        self._counters.put("modules", len(sys.modules))
        self._busy = self._turns = 0
        for code, spent in self._tasks.items():
            if spent[1]:
                name = kind_of(code) if code is not None else "?"
                self._counters.add(f"task {name}", spent[0] // 1000)
                self._counters.add(f"woke {name}", spent[1])
                spent[:] = 0, 0

    def before_task_step(self, task: Any) -> None:
        self._began = time.thread_time_ns()

    def after_task_step(self, task: Any) -> None:
        code = getattr(task.coro, "cr_code", None)
        spent = self._tasks.get(code)
        if spent is None:
            spent = self._tasks[code] = [0, 0]
        spent[0] += time.thread_time_ns() - self._began
        spent[1] += 1


class Patches(importlib.abc.MetaPathFinder):
    """Puts counters into modules as they are imported, before anybody takes a name of them."""

    def __init__(self, counters: Counters, loop: Loop) -> None:
        self._counters, self._loop = counters, loop
        self._of: dict[str, Callable[[ModuleType], None]] = {
            "trio": self._trio,
            "protocol.rollout": self._rollout,
            "node.network.requests": lambda module: self._called(module.Requests, "ask", "requests"),
            "node.chain.connection": lambda module: self._called(module.Connection, "_guarded", "asked"),
            "node.chain.endpoints": self._endpoints,
        }

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        patch = self._of.pop(name, None)
        spec = importlib.machinery.PathFinder.find_spec(name, path) if patch is not None else None
        if patch is None or spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            patch(module)

        spec.loader.exec_module = exec_module
        return spec

    def _called(self, owner: Any, name: str, counted: str) -> None:
        """Count the calls of a method or function, also where they wait."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **named: Any) -> Any:
            self._counters.add(counted)
            if counted == "questions":
                one = isinstance(args[3], str)
                self._counters.add(f"question {args[3] if one else f'{len(args[3])} in one'}")
                for method in [] if one else args[3]:
                    self._counters.add(f"in one {method}")
            if counted == "asked":  # without whom it is about
                self._counters.add(f"asked {args[1].partition(' 0x')[0]}"[:80])
            return original(*args, **named)

        setattr(owner, name, call)

    def _endpoints(self, module: Any) -> None:
        for name in ("post", "post_all"):
            self._called(module.SerialConnection, name, "questions")

    def _rollout(self, module: Any) -> None:
        self._called(module, "decode", "files read")

    def _trio(self, trio: Any) -> None:
        run, to_thread, counters = trio.run, trio.to_thread.run_sync, self._counters
        start = trio._threads.start_thread_soon

        def counted_run(*args: Any, **named: Any) -> Any:
            named["instruments"] = [*named.get("instruments", ()), self._loop]
            return run(*args, **named)

        def started(*args: Any, **named: Any) -> Any:
            counters.add("thread jobs")
            return start(*args, **named)

        async def in_thread(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
            code = _code_of(function)
            kind = kind_of(code) if code is not None else getattr(function, "__qualname__", "?")[:60]
            counters.add(f"jobs {kind}")

            def job(*given: Any) -> Any:
                began = time.thread_time_ns()
                try:
                    return function(*given)
                finally:
                    counters.add(f"job {kind}", (time.thread_time_ns() - began) // 1000)

            return await to_thread(job, *args, **named)

        trio.run, trio.to_thread.run_sync, trio._threads.start_thread_soon = counted_run, in_thread, started


@contextlib.contextmanager
def counted_children(folder: Path) -> Iterator[None]:
    """What is started within it counts itself, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), str(root), os.environ.get("PYTHONPATH", "")]))
    before = {name: os.environ.get(name) for name in (FOLDER, "PYTHONPATH")}
    os.environ |= {FOLDER: str(folder), "PYTHONPATH": path}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
