"""What a daemon imports before it knows its role is memory of every daemon."""

import subprocess
import sys

FOR_CHILDREN = ("torch", "transformers", "pyarrow", "tokenizers", "safetensors", "pandas", "matplotlib")


def test_a_daemon_does_not_import_what_its_children_compute_with() -> None:
    program = "import sys, cli.main, cli.join, cli.joinview, node.daemon; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True)
    assert set(FOR_CHILDREN) & set(shown.stdout.split()) == set()


def test_a_trainer_has_what_it_writes_batches_with_before_its_guardian_forks() -> None:
    program = "import sys, node.daemon as d; d.import_for(sys.argv[1]); print(*sys.modules)"
    for role, there in (("worker", False), ("auto", False), ("trainer", True)):
        shown = subprocess.run([sys.executable, "-c", program, role], check=True, stdout=subprocess.PIPE, text=True)
        assert ({"pyarrow", "tokenizers"} <= set(shown.stdout.split())) is there, role
