"""What a daemon imports before it knows its role is memory of every daemon, and must not change what a hostile text
does to a process: brackets without end are an error, whatever the libraries think of Python's limit of recursion."""

import subprocess
import sys

import eth_keyfile
import pytest

import node

FOR_NOBODY = {"py_ecc.optimized_bls12_381", "py_ecc.bls.ciphersuites"}
FOR_CHILDREN = {"torch", "transformers", "pyarrow", "tokenizers", "safetensors", "pandas", "matplotlib"} | {
    *("sympy", "scipy", "networkx", "PIL", "huggingface_hub", "tensorboard", "wandb", "IPython", "pytest")
}
READ = """
def brackets():
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
    print("brackets", len(ended), sys.getrecursionlimit())
"""
DAEMON = f"""
{READ}
import sys, cli.main, eth_account
brackets()
import cli.join, cli.joinview, node.daemon
brackets()
for role in ("worker", "validator", "auto", "trainer"):
    node.daemon.import_for(role)
    print(role, *sys.modules)
"""


@pytest.fixture(scope="module")
def told() -> list[list[str]]:
    """The words of each line of one process, started anew: a command, which becomes a daemon of each role in turn."""
    done = subprocess.run([sys.executable, "-c", DAEMON], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-500:])
    return [line.split() for line in done.stdout.splitlines()]


def test_brackets_without_end_are_an_error_in_a_command_and_in_a_daemon(told: list[list[str]]) -> None:
    assert [line[1:] for line in told if line[0] == "brackets"] == [["6", "1000"]] * 2


def test_without_the_limit_put_back_the_process_ends() -> None:
    """The control: a library alone, at half the depth of what it allows."""
    program = f"{READ}\nimport eth_account\nbrackets()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120, check=False)
    assert done.returncode < 0 or sys.version_info >= (3, 12)


def test_a_daemon_imports_what_its_role_computes_with_and_not_what_its_children_do(told: list[list[str]]) -> None:
    """A trainer has its own before its guardian forks: to look through its run, and to write batches."""
    found = {line[0]: (FOR_CHILDREN | FOR_NOBODY) & set(line[1:]) for line in told if line[0] != "brackets"}
    assert [found[role] for role in ("worker", "validator", "auto")] == [set()] * 3
    assert {"pyarrow", "tokenizers"} <= found["trainer"] and not {"torch", *FOR_NOBODY} & found["trainer"]


def test_a_curve_that_is_not_imported_is_there_for_whoever_uses_it() -> None:
    """A program of somebody else's, around `node.sdk`. The public key of 1 is the curve's generator."""
    made = eth_keyfile.create_keyfile_json((1).to_bytes(32, "big"), b"password", version=4, iterations=2)
    assert made["pubkey"].startswith("97f1d3a73197d7942695638c4fa9ac0f")
    from py_ecc.bls import G2Basic
    from py_ecc.bls12_381 import G1, curve_order, multiply

    assert multiply(G1, curve_order) is None and node._Later.curve_order == curve_order
    assert G2Basic.SkToPk(1).hex() == made["pubkey"]
