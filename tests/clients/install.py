"""`python -m tests.clients.install`: puts the packages of examples/member where its lock file wants them."""

from contracts.javascript import find_installed
from tests.clients.conftest import INSTALLED, MEMBER

if __name__ == "__main__":
    print(find_installed(MEMBER, MEMBER, INSTALLED))
