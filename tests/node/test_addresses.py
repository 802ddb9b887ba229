"""Which addresses that a stranger names are called, and that whatever calls one asks here."""

import ast
import ipaddress
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.addresses import NEVER, PRIVATE, Network, is_public, may_call, refusal, resolve

ROOT = Path(__file__).resolve().parents[2]
PUBLIC = "1.1.1.1 8.8.8.8 100.63.255.255 100.128.0.1 172.32.0.1 2a00:1450::1 2001:4860:4860::8888 2600::1"
OWN = "10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 127.0.0.1 127.1.2.3 ::1 fd12::1 fc00::1 100.64.0.1"
TRAPS = {
    "metadata": "169.254.169.254 169.254.170.2 fd00:ec2::254 fd20:ce::254 168.63.129.16 100.100.100.200",
    "no address": "0.0.0.0 0.0.0.1 ::",
    "link local": "169.254.0.1 fe80::1 fe80::a9fe:a9fe fe80::1%eth0 2a00::1%eth0",
    "multicast": "224.0.0.1 239.255.255.250 ff02::1 ff05::2",
    "broadcast|reserved": "255.255.255.255 240.0.0.1 192.0.0.192 192.88.99.1 4000::1 100::1",
    "site local": "fec0::1",
    "IPv4 in IPv6": "::ffff:127.0.0.1 ::ffff:8.8.8.8 ::ffff:0:127.0.0.1 ::127.0.0.1 ::10.0.0.1 ::2",
    "NAT64": "64:ff9b::7f00:1 64:ff9b::a9fe:a9fe 64:ff9b:1::1",
    "6to4": "2002:7f00:1:: 2002:a9fe:a9fe::1",
    "Teredo": "2001::1",
    "is no address": "localhost example.org 127.1 0x7f.1 2130706433 1.1.1.1:80",
}


@pytest.mark.parametrize("address", PUBLIC.split())
def test_the_internet_is_called(address: str) -> None:
    assert may_call(address, private=False) and may_call(address, private=True)


@pytest.mark.parametrize("address", OWN.split())
def test_networks_of_ones_own_are_called_where_somebody_says_so(address: str) -> None:
    assert not may_call(address, private=False) and may_call(address, private=True)


@pytest.mark.parametrize(("what", "address"), [(what, one) for what, some in TRAPS.items() for one in some.split()])
def test_what_leads_elsewhere_is_never_called(what: str, address: str) -> None:
    for private in (False, True):
        assert re.search(what, refusal(address, private=private))


@given(st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)))
def test_what_python_takes_for_private_is_not_of_the_internet(address: ipaddress.IPv4Address) -> None:
    """The other way round it is wrong, and in each version otherwise: for that there is the table."""
    if is_public(address):
        assert address.is_global and not (address.is_private or address.is_multicast or address.is_link_local)


@given(st.sampled_from([*NEVER, *PRIVATE]), st.data())
def test_every_network_of_the_tables_is_refused_to_its_ends(row: tuple[Network, str], data: st.DataObject) -> None:
    network = row[0]
    for ip in (network[0], network[-1], network[data.draw(st.integers(0, network.num_addresses - 1))]):
        assert not is_public(ip)


@pytest.mark.parametrize("written", ["127.0.0.1", "127.1", "0x7f.0.0.1", "2130706433", "0177.0.0.1", "localhost"])
def test_a_host_is_looked_at_after_it_is_resolved(written: str) -> None:
    with pytest.raises(OSError, match="this machine"):
        resolve(written, 80, private=False)
    assert resolve(written, 80, private=True)[1] == 80


def test_of_several_addresses_the_first_that_may_be_called_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(0, 0, 0, "", (one, 80)) for one in ("64:ff9b::7f00:1", "10.0.0.1", "1.1.1.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert resolve("name", 80, private=False) == ("1.1.1.1", 80)
    assert resolve("name", 80, private=True) == ("10.0.0.1", 80)


# Whoever calls: a module that opens connections asks `node.addresses`, or stands here with the reason

CALLS = {
    *("create_connection", "open_tcp_stream", "getaddrinfo", "connection_from_url", "connect_from"),
    *("open_ssl_over_tcp_stream", "urlopen", "client_for"),
    *("PoolManager", "AsyncClient", "HTTPConnection", "HTTPSConnection", "ClientSession", "_dial_resolved"),
}  # fmt: skip
LIBRARIES = {
    *("httpx", "requests", "aiohttp", "websockets", "paramiko", "ftplib", "smtplib", "telnetlib", "grpc"),
    *("huggingface_hub", "zeroconf"),
}
NOBODY_ELSES = {
    "node/addresses.py": "the filter",
    "node/chain/endpoints.py": "the owner's RPC endpoints, of the profile and the configuration",
    "node/chain/devnet.py": "this machine's devnet",
    "node/chain/faucet.py": "the owner's network profile",
    "node/training/rendezvous.py": "the trainer's own machines, by its configuration",
    "node/environments/server/openenv.py": "is given the connection that `dial` made",
    "node/chain/http.py": "makes clients for those who name a place",
    "node/hub.py": "the hub's own client, at the hub or the mirror that the user names: a run names repositories only",
    "node/sdk.py": "the daemon's unix socket",
    "node/sandbox/guest/attacks.py": "runs in the sandbox, and is to fail",
    "node/environments/server/mcp.py": "is given the connection that `dial` made",
    "node/environments/verifiers/driver.py": "listens on this machine, for the engine beside it",
    "node/environments/verifiers/serve.py": "listens; started by the owner of a server",
    "node/run/package_fetch.py": "the user's --from, and no redirect of it",
    "cli/api.py": "the daemon's unix socket",
    "cli/serve_node.py": "the daemon's unix socket",
    "cli/demo/story.py": "what it started on this machine",
}


def calls(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in CALLS:
                yield name
        if isinstance(node, ast.ImportFrom | ast.Import):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
            yield from {name.partition(".")[0] for name in names} & LIBRARIES


def test_whatever_calls_an_address_asks_whether_it_may() -> None:
    callers = {}
    for path in sorted(path for room in ("node", "protocol", "cli") for path in (ROOT / room).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if found := set(calls(source)):
            callers[str(path.relative_to(ROOT))] = (found, "node.addresses import" in source)
    unasked = {path: found for path, (found, asks) in callers.items() if not asks}
    assert unasked.keys() == {path for path in NOBODY_ELSES if (ROOT / path).exists()}
    assert sum(asks for _, asks in callers.values()) >= 4


def test_nobody_else_asks_python_what_is_of_the_internet() -> None:
    pattern = re.compile(r"\.is_(global|private|multicast|reserved|site_local)\b")
    paths = sorted((ROOT / "node").rglob("*.py"))
    assert [str(path) for path in paths if pattern.search(path.read_text(encoding="utf-8"))] == []
