"""Hardhat's local chain, for the tests that run on it: `make test-hardhat` installs it (290 MB)."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contracts.javascript import find_installed, node_command
from node.chain.rpc import FallbackProvider
from tests.node.chain.chains import CHAIN_ID, free_url, wait_for

LOCKS = Path(__file__).with_name("hardhat")
FOLDER = Path(__file__).resolve().parents[3] / "build" / "hardhat"
PROGRAM = "hardhat/internal/cli/bootstrap.js"
needs_hardhat = pytest.mark.skipif(
    not (FOLDER / "node_modules" / PROGRAM).is_file(), reason="Hardhat is not installed: make test-hardhat"
)


@contextmanager
def hardhat_chain() -> Iterator[tuple[FallbackProvider, str]]:
    """A running one without accounts, which makes a block a second and one for each transaction; and its URL."""
    url = free_url()
    program = find_installed(LOCKS, FOLDER, PROGRAM)
    (FOLDER / "hardhat.config.js").write_bytes((LOCKS / "hardhat.config.js").read_bytes())
    host, port = url.removeprefix("http://").split(":")
    command = [*node_command(), str(program), "node", "--hostname", host, "--port", port]
    process = subprocess.Popen(command, cwd=FOLDER, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    provider = FallbackProvider([url], CHAIN_ID)
    try:
        wait_for(url, process)
        yield provider, url
    finally:
        provider.close()
        process.kill()
        process.wait()


if __name__ == "__main__":
    find_installed(LOCKS, FOLDER, PROGRAM)
