"""`python -m node.processes.server FD MODULE...`: imports the modules, then forks a child for every order.

Starting an engine or a learner anew takes seconds, nearly all of it imports; a fork of a process that has them takes
milliseconds. Loads no model and touches no GPU, so that a child begins like a program that was just started. The
server ends when its socket does; the kernel kills its children with it.
"""

import gc
import importlib
import os
import runpy
import select
import signal
import socket
import sys

from node.processes.threads import POOLS

# One thread while importing: thread pools do not survive a fork, and a child that has its own number sets it.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.update(POOLS)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from node.processes.guardian import die_with_parent  # noqa: E402 - as below
from node.processes.wire import (  # noqa: E402 - the environment must be set before torch loads
    MAX_DESCRIPTORS,
    MAX_PACKET,
    ChildEnded,
    ChildStarted,
    ServerReady,
    StartChild,
    decode,
    encode,
)


def serve(orders: socket.socket) -> StartChild | None:
    """Fork a child for each order, until the orders end. Returns the child's order in the child, None in the server."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    # A full pipe is as good as one byte: all the dead are asked for at once.
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    orders.send(encode(ServerReady()))
    while True:
        ready, _, _ = select.select([orders, woken], [], [])
        if woken in ready:
            # How many bytes there are says nothing: two deaths may have left one.
            os.read(woken, 512)
            _tell_of_the_dead(orders)
        if orders in ready:
            data, descriptors, _, _ = socket.recv_fds(orders, MAX_PACKET, MAX_DESCRIPTORS)
            if not data:
                return None
            order = decode(data)
            if isinstance(order, StartChild) and _fork(orders, order, descriptors):
                os.close(woken)
                os.close(wake)
                return order


def _fork(orders: socket.socket, order: StartChild, descriptors: list[int]) -> bool:
    """Whether this is the child now."""
    server = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        pid = -1
    if pid == 0:
        # The pipe belongs to the server: a signal of the child's must not wake it.
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        orders.close()
        _become(order, descriptors, server)
        return True
    for descriptor in descriptors:
        os.close(descriptor)
    # Zero says that there was no room: the daemon then starts the program anew instead of waiting for it.
    orders.send(encode(ChildStarted(order.number, max(pid, 0))))
    return False


def _become(order: StartChild, descriptors: list[int], server: int) -> None:
    """Take the place of a program that was just started, which dies with the server."""
    # First of all: a server that dies now would leave an engine that nobody knows.
    die_with_parent(server, order.farewell)
    os.setsid()
    if order.directory:
        os.chdir(order.directory)
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
        os.close(descriptor)
    # A program that is started anew has just what it was given; the server's own settings are none of it.
    os.environ.clear()
    os.environ.update(order.environment)
    sys.argv = [order.module, *order.arguments]


def _tell_of_the_dead(orders: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        # There are no children at all any more: the signal was of one that was asked for in an earlier round.
        except ChildProcessError:
            return
        if not pid:
            return
        orders.send(encode(ChildEnded(pid, os.waitstatus_to_exitcode(status))))


def work(orders: socket.socket) -> None:
    """Serve; in a child, be the program that was ordered. Returns in the server when nobody orders any more."""
    gc.collect()
    gc.freeze()  # or the child's first collection would copy every page
    gc.enable()
    try:
        order = serve(orders)
    except (BrokenPipeError, ConnectionResetError):  # the daemon is gone
        order = None
    if order is not None:
        runpy.run_module(order.module, run_name="__main__", alter_sys=True)


def main() -> None:
    orders = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()  # a seventh of what follows would be looking for garbage among what stays
    for module in sys.argv[2:]:
        importlib.import_module(module)
    work(orders)


if __name__ == "__main__":
    main()
