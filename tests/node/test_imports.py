"""What a daemon imports before it knows its role is memory of every daemon."""

import subprocess
import sys

FOR_CHILDREN = {"torch", "transformers", "pyarrow", "tokenizers", "safetensors", "pandas", "matplotlib"}
PROGRAM = """
import sys, cli.main, cli.join, cli.joinview, node.daemon
for role in ("worker", "validator", "auto", "trainer"):
    node.daemon.import_for(role)
    print(role, *sys.modules)
"""


def test_a_daemon_imports_what_its_role_computes_with_and_not_what_its_children_do() -> None:
    """A trainer has its own before its guardian forks: to look through its run, and to write batches."""
    shown = subprocess.run([sys.executable, "-c", PROGRAM], check=True, stdout=subprocess.PIPE, text=True)
    found = {line.split()[0]: FOR_CHILDREN & set(line.split()[1:]) for line in shown.stdout.splitlines()}
    assert [found[role] for role in ("worker", "validator", "auto")] == [set()] * 3
    assert {"pyarrow", "tokenizers"} <= found["trainer"] and "torch" not in found["trainer"]
