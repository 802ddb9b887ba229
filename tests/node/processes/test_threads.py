"""Programs that fork, and threads that the system still has when Python no longer counts them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.processes.threads import POOLS, TASKS

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(not TASKS.exists(), reason="where threads are not files nothing is forked")

LINGERING = """
import ctypes, os, sys, threading
from node.processes.threads import alone, running

def linger(seconds):
    # A destructor of a thread's own data runs after Python has let the thread go, as OpenSSL's does.
    libc, key = ctypes.CDLL(None), ctypes.c_uint()
    libc.pthread_key_create(ctypes.byref(key), libc.usleep)
    thread = threading.Thread(target=libc.pthread_setspecific, args=(key, ctypes.c_void_p(int(seconds * 1e6))))
    thread.start()
    thread.join()
    assert threading.active_count() == 1 and running() == 2
"""


def said(program: str, environment: dict[str, str] | None = None) -> tuple[str, str]:
    """What it prints and what it complains of. Of this process it does not have POOLS, which whoever imports the fork
    server's module has from then on."""
    inherited = {name: value for name, value in os.environ.items() if name not in POOLS}
    command, given = [sys.executable, "-c", program], inherited | (environment or {})
    ran = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip(), ran.stderr


def test_a_thread_that_is_about_to_end_is_waited_for_and_one_that_stays_is_not_for_ever() -> None:
    assert said(LINGERING + "linger(0.2); print(alone(30.0), running())")[0] == "True 1"
    assert said(LINGERING + "linger(30); print(alone(0.1), running()); os._exit(0)")[0] == "False 2"


def test_nothing_is_left_of_threads_that_have_used_openssl() -> None:
    program = """
import hashlib, threading
from concurrent.futures import ThreadPoolExecutor
from node.processes.threads import TASKS, alone

def work(at):
    hashlib.sha256(b"as OpenSSL keeps something for each thread").digest()
    return threading.get_native_id()

left = 0
for _ in range(64):
    with ThreadPoolExecutor(8) as pool:
        threads = list(pool.map(work, range(8)))
    assert alone(30.0)
    left += sum((TASKS / str(thread)).exists() for thread in threads)
print(left)
"""
    assert said(program)[0] == "0"


@pytest.mark.parametrize(("seconds", "kind"), [(0.2, "_Forked"), (30, "Popen")])
def test_a_fork_server_is_launched_where_a_fork_could_inherit_a_held_lock(seconds: float, kind: str) -> None:
    program = f"""
from node.processes.launch import fork_or_launch
linger({seconds})
server = fork_or_launch(("threading",))
print(type(server.process).__name__)
sys.stdout.flush()
server.socket.close()
server.process.wait()
os._exit(0)
"""
    assert said(LINGERING + program)[0] == kind


@pytest.mark.parametrize("seconds", [0.2, 30])
def test_a_daemon_without_a_guardian_is_told(seconds: float) -> None:
    program = f"""
from node.processes.guardian import become_guarded
before = os.getpid()
linger({seconds})
become_guarded()
print(os.getpid() == before)
sys.stdout.flush()
os._exit(0)
"""
    unguarded, complaint = said(LINGERING + program)
    assert unguarded == str(seconds == 30)
    assert ("nothing starts this daemon again if it is killed: 1 thread" in complaint) == (seconds == 30)


def test_what_a_daemon_imports_begins_no_thread() -> None:
    """OpenBLAS begins one a core, pyarrow's allocator one: no guardian could be forked."""
    program = """
from node.processes.threads import POOLS, running, without_pools
import os
before = [os.environ.get(name) for name in POOLS]
with without_pools():
    from node.daemon import import_for
    import_for("trainer")
assert [os.environ.get(name) for name in POOLS] == before
import sys
print({"numpy", "pyarrow"} <= set(sys.modules), running())
"""
    assert said(program, {"OMP_NUM_THREADS": "2"})[0] == "True 1"
    control = "import numpy\nfrom node.processes.threads import running\nprint(running())"
    assert int(said(control, {"OMP_NUM_THREADS": "2"})[0]) > 1
