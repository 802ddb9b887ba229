"""Nothing that the environment can say ends a command as a bug."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.surroundings import COMMANDS, SECRET, surroundings


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each command said in each of the surroundings."""
    root = tmp_path_factory.mktemp("surroundings")
    for parent in root.parents[:2]:  # so that a user without a name comes in
        parent.chmod(0o755)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
    words = [sys.executable, "-m", "tests.cli.surroundings", str(root), str(port)]
    done = subprocess.run(words, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_no_surrounding_ends_a_command_as_a_bug(said: list[dict[str, Any]], tmp_path: Path) -> None:
    assert len(said) == len(COMMANDS) * len(surroundings(tmp_path, "1"))
    wrong = [
        (one["surrounding"], one["command"], one["said"][-600:])
        for one in said
        if not isinstance(one["code"], int) or one["code"] == 1 or "unexpected error" in one["said"]
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_no_secret_of_an_endpoint_is_told(said: list[dict[str, Any]]) -> None:
    asked = [one for one in said if "127.0.0.1" in one["said"]]
    assert asked, "the control: endpoints are told of"
    assert not [one for one in said if SECRET in one["said"]]


def test_what_is_wrong_with_the_surroundings_is_named(said: list[dict[str, Any]]) -> None:
    told = {(one["surrounding"], one["command"]): one["said"] for one in said}
    assert "INTELLECT_NODE_HOME" in told["a user without a name or a place", "keys list"]
    assert (
        "TMPDIR" in told["no temporary directory", "status"] or "no daemon" in told["no temporary directory", "status"]
    )
    assert "no UTF-8" in told["a name that is no UTF-8", "status"]
    assert "INTELLECT_NODE_PAGE_HOSTS" in told["a list that ends nowhere", "config show"]
    assert "b.example" in told["a list with commas", "config show"]
