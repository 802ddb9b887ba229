"""The table of built-in environments: what it says is so."""

import subprocess
import sys

import pytest

from node.environments.builtin import BUILTIN


@pytest.mark.parametrize("name", BUILTIN)
def test_every_row_names_a_module_that_offers_an_environment(name: str) -> None:
    row = BUILTIN[name]
    module = row.offered
    assert callable(module.load) and row.name == name and row.about
    assert module.Arguments.__struct_config__.forbid_unknown_fields
    assert not row.data or row.data in module.Arguments.__struct_fields__


def test_the_names_alone_import_no_environment() -> None:
    heavy = "{'pyarrow', 'node.environments.sort', 'node.environments.dataset'}"
    code = f"import sys, node.environments.builtin; print({heavy} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
