"""Programs of others against ours: `make clients` installs them, and here they run wherever they are installed."""

from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.javascript import JavaScriptError, node_command
from tests.node.chain.conftest import anvil_cache, chain_rpc, connect, deployed, people, profile, settled

__all__ = ["anvil_cache", "chain_rpc", "connect", "deployed", "people", "profile", "settled"]
ROOT = Path(__file__).resolve().parents[2]
MEMBER = ROOT / "examples" / "member"
INSTALLED = ".package-lock.json"


@pytest.fixture(scope="session")
def javascript() -> Callable[..., list[str]]:
    """The command that runs one of the modules of examples/member."""
    try:
        # Only what is there: 35 MB are fetched by `make clients`.
        if not (MEMBER / "node_modules" / INSTALLED).is_file():
            pytest.skip("the JavaScript packages are not installed: make clients")
        node = node_command()
    except JavaScriptError as error:
        pytest.skip(f"{error.what}: {error.remedy}")
    return lambda module, *arguments: [*node, str(MEMBER / module), *arguments]
