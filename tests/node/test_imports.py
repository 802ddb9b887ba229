"""What a daemon imports before it knows its role is memory of every daemon, and must not change what a hostile text
does to a process: brackets without end are an error, whatever the libraries think of Python's limit of recursion."""

import subprocess
import sys

import pytest

from node.later import BLS, LATER

MOST = 2_100
"""Modules of a worker or validator; they were 2,670 with all that libraries bring."""
FOR_NOBODY = {"py_ecc.optimized_bls12_381", "py_ecc.bls.ciphersuites"} | {
    # What libp2p, web3, multiaddr, httpx and structlog import for programs that want all of them.
    *("aiohttp", "requests", "websockets", "aioquic", "zeroconf", "dns", "httpcore2", "httpx2", "trio_websocket"),
    *("netaddr", "miniupnpc", "fastecdsa", "pygments", "click", "prometheus_client.core", "ens.ens", "h2.connection"),
}
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
    print(role, *(name for name, module in sys.modules.items() if not isinstance(module, node.later.Later)))
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
    modules = {line[0]: set(line[1:]) for line in told if line[0] != "brackets"}
    found = {role: (FOR_CHILDREN | FOR_NOBODY) & names for role, names in modules.items()}
    assert [found[role] for role in ("worker", "validator", "auto")] == [set()] * 3
    assert {"pyarrow", "tokenizers"} <= found["trainer"] and not {"torch", *FOR_NOBODY} & found["trainer"]
    assert max(len(modules[role]) for role in ("worker", "validator", "auto")) <= MOST


def test_a_curve_that_is_not_imported_is_there_for_whoever_uses_it() -> None:
    """A program of somebody else's, around `node.sdk`. The public key of 1 is the curve's generator."""
    import eth_keyfile  # here: alone it lifts the limit of recursion of this process

    made = eth_keyfile.create_keyfile_json((1).to_bytes(32, "big"), b"password", version=4, iterations=2)
    assert made["pubkey"].startswith("97f1d3a73197d7942695638c4fa9ac0f")
    from py_ecc.bls import G2Basic
    from py_ecc.bls12_381 import G1, curve_order, multiply

    assert multiply(G1, curve_order) is None and BLS["curve_order"] == curve_order
    assert G2Basic.SkToPk(1).hex() == made["pubkey"]


def ran(program: str) -> str:
    """What it prints, in a process started anew."""
    command = [sys.executable, "-c", "import sys, node\nfrom node.later import LATER, Later\n" + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-1500:]
    return done.stdout.strip()


def test_each_name_that_has_a_stand_in_is_one_of_its_module() -> None:
    """Else it would be missed by whoever uses it first, long after the start."""
    program = """
import importlib
for module, names in LATER.items():
    found = importlib.import_module(module)
    getattr(found, "what it has not", None)
    assert not isinstance(found, Later), module
    for name in names:
        print(module, name, type(vars(found)[name]).__name__ != "_Name")
"""
    rows = ran(program).splitlines()
    assert len(rows) == sum(map(len, LATER.values())) and all(row.endswith("True") for row in rows)


def test_a_stand_in_is_what_it_stands_for_once_it_is_used() -> None:
    program = """
from multiaddr.resolvers import DNSResolver
from web3.providers.persistent import PersistentConnectionProvider
import multiaddr.resolvers
print(isinstance(3, DNSResolver), isinstance(multiaddr.resolvers, Later), "dns" in sys.modules)
made = DNSResolver()
print(type(made).__module__, isinstance(made, DNSResolver), isinstance(3, DNSResolver), "dns" in sys.modules)
import libp2p.peer.id
print(callable(libp2p.new_host), libp2p.peer.id.ID is libp2p.ID, type(libp2p).__name__)
"""
    assert ran(program).splitlines() == [
        "False True False",
        "multiaddr.resolvers.dns True False True",
        "True True module",
    ]


def test_threads_that_ask_for_one_module_at_once_all_get_it() -> None:
    program = """
import threading
import web3.providers.rpc as rpc
assert isinstance(rpc, Later)
got, start = [], threading.Barrier(8)
def ask():
    start.wait()
    got.append(callable(rpc.HTTPProvider.make_request))
threads = [threading.Thread(target=ask) for _ in range(8)]
for one in threads:
    one.start()
for one in threads:
    one.join()
print(got == [True] * 8, isinstance(rpc, Later))
"""
    assert ran(program) == "True False"


def test_nothing_inherits_from_a_stand_in() -> None:
    program = """
from multiaddr.resolvers import DNSResolver
try:
    class Mine(DNSResolver): ...
except TypeError as error:
    print(error)
"""
    assert "a stand-in of node.later" in ran(program)
