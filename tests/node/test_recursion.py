"""Brackets without end from a stranger end no process, whatever the libraries think of Python's limit of recursion."""

import subprocess
import sys

READ = """
import json, sys, threading
import msgspec
ended = []
def read():
    for decode in (json.loads, msgspec.json.decode):
        try:
            decode(b"[" * 99_000 + b"]" * 99_000)
        except RecursionError:
            ended.append(True)
for thread in (threading.Thread(target=read), threading.Thread(target=read)):
    thread.start()
    thread.join()
read()
print(len(ended), sys.getrecursionlimit())
"""


def test_brackets_without_end_are_an_error_in_a_command_and_in_a_daemon() -> None:
    """One process for both: a daemon is a command that has imported more."""
    program = f"import cli.main, eth_account\n{READ}\nimport node.daemon\n{READ}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["6", "1000"] * 2, (done.returncode, done.stderr[-500:])


def test_without_the_limit_put_back_the_process_ends() -> None:
    """The control: a library alone, at half the depth of what it allows."""
    done = subprocess.run(
        [sys.executable, "-c", f"import eth_account\n{READ}"], capture_output=True, timeout=120, check=False
    )
    assert done.returncode < 0 or sys.version_info >= (3, 12)
