"""What a daemon imports before it knows its role is memory of every daemon."""

import subprocess
import sys

FOR_CHILDREN = ("torch", "transformers", "pyarrow", "tokenizers", "safetensors", "pandas", "matplotlib")


def test_a_daemon_does_not_import_what_its_children_compute_with() -> None:
    program = "import sys, cli.main, cli.join, cli.joinview, node.daemon; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    assert set(FOR_CHILDREN) & set(shown.stdout.split()) == set()
