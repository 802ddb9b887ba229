"""A real chain with the contracts, shared by the tests and put back after each; and bad RPC endpoints."""

import copy
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from node.chain.client import ChainClient
from node.chain.endpoints import rpc
from node.chain.http import certificates
from node.chain.profile import NetworkProfile
from node.chain.sender import SendLimits
from protocol.identity import NodeKey
from tests.node.chain.chains import Participants, deployed_chain
from tests.node.chain.meddler import Meddler, meddling

LIMITS = SendLimits(poll=0.02, bump_after=0.3, give_up=10.0)


class Settled:
    """A pool and its people on a chain, to which it can be put back."""

    def __init__(self, profile: NetworkProfile) -> None:
        self.profile = profile
        self._snapshot = ""
        client = ChainClient(profile, NodeKey.generate(), limits=LIMITS)
        self.people = Participants(client)
        trio.run(self.people.prepare)
        client.close()

    def go_back(self, chain_rpc: Callable[..., Any]) -> None:
        """At a test's beginning, for it puts the chain's clock back too."""
        assert not self._snapshot or chain_rpc("evm_revert", self._snapshot)
        self._snapshot = chain_rpc("evm_snapshot")


@pytest.fixture(scope="session")
def anvil_cache(request: pytest.FixtureRequest) -> Path:
    return Path(request.config.cache.mkdir("anvil"))  # type: ignore[union-attr]


@pytest.fixture(scope="session")
def deployed(anvil_cache: Path) -> Iterator[NetworkProfile]:
    """A chain that makes a block per transaction; its profile."""
    with deployed_chain(anvil_cache) as profile:
        yield profile


@pytest.fixture(scope="session")
def settled(deployed: NetworkProfile) -> Settled:
    """A pool and its people, on that chain before each test."""
    return Settled(deployed)


@pytest.fixture
def chain_rpc(deployed: NetworkProfile) -> Iterator[Callable[..., Any]]:
    """Bare requests to the chain."""
    with httpx.Client(verify=certificates()) as http:
        yield lambda method, *params: rpc(http, deployed.rpc_urls[0], method, *params)


@pytest.fixture
def profile(settled: Settled, chain_rpc: Callable[..., Any]) -> NetworkProfile:
    """The profile of the chain, which is as it was with nothing but `settled` on it."""
    settled.go_back(chain_rpc)
    return settled.profile


@pytest.fixture
def connect() -> Iterator[Callable[..., ChainClient]]:
    """Makes clients that look often and are closed at the end."""
    clients: list[ChainClient] = []

    def make(profile: NetworkProfile, key: NodeKey | None = None, **options: Any) -> ChainClient:
        limits = options.pop("limits", LIMITS)
        clients.append(ChainClient(profile, key, limits=limits, **options))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def people(profile: NetworkProfile, settled: Settled, connect: Callable[..., ChainClient]) -> Participants:
    people = copy.copy(settled.people)
    people.client = connect(profile, people.node)
    return people


@pytest.fixture
def bad_endpoint() -> Iterator[Callable[..., str]]:
    """Starts an endpoint that answers everything with the given status, body and headers; returns its URL."""
    servers: list[ThreadingHTTPServer] = []

    def start(status: int, body: bytes, **headers: str) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def trickling_url() -> Iterator[str]:
    """An endpoint whose answer comes a byte at a time, and never ends."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "1000000")
            self.end_headers()
            try:
                while not over.wait(0.05):
                    self.wfile.write(b" ")
            except ConnectionError:  # who asked has left
                self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    over.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def meddler(deployed: NetworkProfile) -> Iterator[Meddler]:
    with meddling(deployed.rpc_urls[0]) as meddler:
        yield meddler


@pytest.fixture
def dead_url() -> str:
    """An endpoint where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
