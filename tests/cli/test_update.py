"""What an index offers, through programs that answer like pip."""

import json
import sys
from pathlib import Path

import pytest

from cli import update
from cli.errors import CommandError
from cli.main import main


def pip(said: str, errors: str = "", code: int = 0) -> list[str]:
    """A program that answers like pip, whatever it is asked."""
    text = f"import sys; print({said!r}); print({errors!r}, file=sys.stderr); sys.exit({code})"
    return [sys.executable, "-S", "-c", text]


def test_the_versions_of_an_index_are_read_from_pip() -> None:
    assert update.index_versions(
        pip("intellect-node (0.3.0)\nAvailable versions: 0.3.0, 0.2.0\n  INSTALLED: 0.1.0")
    ) == [
        "0.3.0",
        "0.2.0",
    ]


@pytest.mark.parametrize(
    ("errors", "what"),
    [
        ("ERROR: No matching distribution found for intellect-node", "does not know"),
        ("WARNING: Retrying (Retry(total=0)) after\nERROR: No matching distribution found", "cannot be reached"),
        ("/usr/bin/python: No module named pip", "no pip"),
    ],
)
def test_an_index_that_is_away_and_one_that_knows_nothing_are_told_apart(errors: str, what: str) -> None:
    with pytest.raises(CommandError, match=what) as refused:
        update.index_versions(pip("", errors, 1))
    assert refused.value.code == 5


def test_only_a_newer_release_counts() -> None:
    assert update.newest("0.1.0", ["0.10.0", "0.9.0", "0.1.0", "1.0.0rc1", "nonsense"]) == "0.10.0"
    assert update.newest("0.10.0", ["0.9.0", "0.10.0"]) is None
    assert update.newest("1.0.0rc1", ["1.0.0rc2", "0.9"]) == "1.0.0rc2"
    assert update.newest("0.1.0", []) is None


def test_the_exit_code_tells_whether_something_newer_is_offered(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(update, "index_versions", lambda: ["999.0"])
    assert main(["update", "--check", "--json"]) == 100
    assert json.loads(capsys.readouterr().out)["offered"] == "999.0"
    monkeypatch.setattr(update, "index_versions", lambda: ["0.0.1"])
    assert main(["update", "--check"]) == 0
    assert main(["update"]) == 2 and "does not update itself" in capsys.readouterr().err
