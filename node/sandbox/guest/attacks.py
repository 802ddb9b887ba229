"""Inside the sandbox: what a stranger's program may try. Standard library only.

A function returns a text where it got what it wanted, and None where it noticed that it did not; most raise or are
stopped. Those that shall leave something behind are looked for by `traces` in a later call.
"""

import os
import sys

MARK: list[str] = []


def hello(name: str) -> str:
    return f"hello {name}"


def traces() -> str | None:
    """Whether a call before this one left anything here."""
    import json

    return "an earlier call left its mark" if MARK or json.dumps(1) != "1" else None


# processes


def fork_bomb() -> str | None:
    for _ in range(50):
        if os.fork() == 0:
            os._exit(0)
    return "50 forks"


def thread_bomb() -> str | None:
    import threading

    for _ in range(1000):
        threading.Thread(target=print).start()
    return "1000 threads"


def subprocess_run() -> str | None:
    import subprocess

    return subprocess.run(["/bin/sh", "-c", "id"], capture_output=True, text=True, check=True).stdout


def execute() -> str | None:
    os.execv("/bin/sh", ["sh", "-c", "echo breach"])  # noqa: S606 - what must not work


def posix_spawn() -> str | None:
    return str(os.posix_spawn("/bin/true", ["true"], {}))


def kill_others() -> str | None:
    """Signal 0: whether it could."""
    os.kill(os.getppid(), 0)
    return "the parent can be killed"


def kill_everybody() -> str | None:
    os.kill(-1, 0)
    return "everybody can be killed"


def trace_parent() -> str | None:
    import ctypes

    return "the parent is traced" if ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0 else None


def read_parents_memory() -> str | None:
    with open(f"/proc/{os.getppid()}/mem", "rb") as file:
        return str(file.read(1))


# time and space


def endless_loop() -> str | None:
    while True:
        pass


def endless_in_c() -> str | None:
    import re

    return str(re.match(r"(a+)+$", "a" * 60 + "b"))


def endless_and_deaf() -> str | None:
    import signal

    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    while True:
        pass


def giant_power() -> str | None:
    return str(9**9**9)[:1]


def sleep_for_ever() -> str | None:
    """Sleeping may be refused or cost nothing; what counts is that the call ends."""
    import time

    time.sleep(10**7)


def ten_gigabytes() -> str | None:
    return f"{len(bytearray(10 << 30))} bytes"


def all_memory() -> str | None:
    kept = []
    while True:
        kept.append(bytearray(1 << 22))


def hidden_memory() -> str | None:
    """Memory that no limit of the process counts."""
    file = os.memfd_create("hidden")
    for _ in range(1024):
        os.write(file, bytes(1 << 20))
    return "1 GiB in a memory file"


def zip_bomb() -> str | None:
    import zlib

    packed = zlib.compress(bytes(1 << 24), 9)
    kept = [zlib.decompress(packed) for _ in range(1024)]
    return f"{len(kept) << 24} bytes"


def deep_recursion() -> str | None:
    sys.setrecursionlimit(10**9)

    def down(depth: int) -> int:
        return down(depth + 1)

    return str(down(0))


def deep_objects() -> str | None:
    nested: tuple[object, ...] = ()
    for _ in range(50_000):
        nested = (nested,)
    return str(hash(nested) or repr(nested)) and None


def raise_limits() -> str | None:
    import resource

    most = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    resource.setrlimit(resource.RLIMIT_CPU, most)
    return "no CPU limit"


# files


def secrets_in_environment() -> str | None:
    kept = {name for name in os.environ if name not in ("LC_CTYPE",)}
    return f"environment: {sorted(kept)}" if kept else None


def read_secrets() -> str | None:
    for path in ("/etc/passwd", "/etc/shadow", "/root/.ssh/id_rsa", "/etc/hostname", "/app/../../../../etc/passwd"):
        try:
            with open(path, "rb") as file:
                return f"{path}: {file.read(20)!r}"
        except OSError:
            continue
    return None


def read_proc() -> str | None:
    for path in ("/proc/self/environ", "/proc/1/environ", "/proc/self/maps", "/proc/self/mem", "/proc/cpuinfo"):
        try:
            with open(path, "rb") as file:
                return f"{path}: {file.read(20)!r}"
        except OSError:
            continue
    return None


def read_devices() -> str | None:
    for path in ("/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/shm", "/sys/kernel/notes"):
        try:
            return f"{path}: {os.open(path, os.O_RDONLY)}"
        except OSError:
            continue
    return None


def look_around() -> str | None:
    for path in ("/", "/etc", "/home", "/root", "/tmp", "/var", ".."):
        try:
            found = set(os.listdir(path))
        except OSError:
            continue
        if found & {"etc", "passwd", "home", "root", "tmp"} or path == "/tmp":
            return f"{path}: {sorted(found)[:5]}"
    return None


def write_files() -> str | None:
    for folder in ("/tmp", "/app", "/", ".", os.path.dirname(__file__), "/dev/shm", "/usr/local/lib"):
        try:
            with open(f"{folder}/breach", "w") as file:
                file.write("x")
            return f"wrote {folder}/breach"
        except OSError:
            continue
    return None


def change_own_module() -> str | None:
    with open(__file__, "a") as file:
        file.write("# breach")
    return "the module was changed for later calls"


def symlinks() -> str | None:
    os.symlink("/etc/passwd", os.path.join(os.path.dirname(__file__), "link"))
    return "made a link"


def hard_links() -> str | None:
    os.link(__file__, os.path.join(os.path.dirname(__file__), "link"))
    return "made a link"


def remove_files() -> str | None:
    os.unlink(__file__)
    return "removed its own module"


def rename_files() -> str | None:
    os.rename(__file__, __file__ + "x")
    return "renamed its own module"


def many_descriptors() -> str | None:
    kept = [os.open(__file__, os.O_RDONLY) for _ in range(10_000)]
    return f"{len(kept)} descriptors"


# network


def tcp() -> str | None:
    import socket

    with socket.create_connection(("127.0.0.1", 22), timeout=1):
        return "connected"


def udp() -> str | None:
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        return f"sent {one.sendto(b'x', ('127.0.0.1', 53))}"


def names() -> str | None:
    import socket

    return str(socket.getaddrinfo("example.org", 80))


def abstract_socket() -> str | None:
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
        one.bind("\0breach")
        return "bound"


# the kernel


def system_calls() -> str | None:
    """bpf, userfaultfd, io_uring_setup, unshare, mount, setns, keyctl, add_key, perf_event_open, memfd_create."""
    import ctypes

    call = ctypes.CDLL(None, use_errno=True).syscall
    for number in (321, 323, 425, 272, 165, 308, 250, 248, 298, 319):
        if call(number, 0, 0, 0, 0, 0) >= 0 or ctypes.get_errno() != 1:
            return f"system call {number} was made"
    return None


def other_words() -> str | None:
    """The calls of x32, which have other numbers."""
    import ctypes

    return "x32 works" if ctypes.CDLL(None).syscall(0x40000000 + 39) > 0 else None


def become_somebody() -> str | None:
    os.setuid(0)
    return "setuid"


def change_root() -> str | None:
    os.chroot("/")
    return "chroot"


def bad_pointer() -> str | None:
    import ctypes

    return str(ctypes.string_at(8))


def abort() -> str | None:
    os.abort()


# the host's ears


def flood_output() -> str | None:
    for _ in range(200):
        sys.stdout.write("x" * (1 << 20))
    return "200 MB printed"


def flood_errors() -> str | None:
    for _ in range(200):
        sys.stderr.write("x" * (1 << 20))
    return "200 MB printed"


def flood_reply() -> str:
    return "breach" * (1 << 17)


def no_number() -> float:
    return float("nan")


def half_a_character() -> str:
    return "\ud800"


def deep_reply() -> list[object]:
    nested: list[object] = []
    for _ in range(300):
        nested = [nested]
    return nested


def exit_well() -> str | None:
    print("all tests passed")
    os._exit(0)


def forge_replies() -> str | None:
    """Whatever is open gets a reply for the calls to come."""
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b"v1.0")
        except OSError:
            continue
    os._exit(0)


def leave_marks() -> str | None:
    import json

    MARK.append("x")
    json.dumps = lambda *_, **__: "1.0"  # type: ignore[assignment]
    sys.modules["json"] = None  # type: ignore[assignment]
    return None
