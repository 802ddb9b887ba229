"""What a node tells others of where it is."""

import errno
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from node.network.announcing import reachable


def _card(address: str, *, up: bool = True, family: int = socket.AF_INET) -> tuple[Any, Any]:
    return SimpleNamespace(address=address, family=family), SimpleNamespace(isup=up)


@pytest.mark.parametrize(
    ("cards", "told"),
    [
        ({"lo": _card("127.0.0.1"), "eth0": _card("192.168.7.4")}, "192.168.7.4"),
        ({"lo": _card("127.0.0.1"), "eth0": _card("169.254.3.3"), "eth1": _card("10.0.0.9")}, "10.0.0.9"),
        ({"lo": _card("127.0.0.1"), "eth0": _card("10.0.0.9", up=False)}, "127.0.0.1"),
        ({"lo": _card("127.0.0.1"), "eth0": _card("fe80::1%eth0", family=socket.AF_INET6)}, "127.0.0.1"),
    ],
)
def test_without_a_way_to_the_internet_a_node_is_reached_in_its_own_network(
    monkeypatch: pytest.MonkeyPatch, cards: dict[str, tuple[Any, Any]], told: str
) -> None:
    """A LAN without a router was told of 127.0.0.1."""

    def no_route(self: socket.socket, place: Any) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr("node.network.announcing.socket.socket", type("Probe", (socket.socket,), {"connect": no_route}))
    monkeypatch.setattr("psutil.net_if_addrs", lambda: {name: [card] for name, (card, _) in cards.items()})
    monkeypatch.setattr("psutil.net_if_stats", lambda: {name: stats for name, (_, stats) in cards.items()})
    assert reachable("/ip4/0.0.0.0/tcp/4001") == f"/ip4/{told}/tcp/4001"


@pytest.mark.parametrize(
    ("cards", "told"),
    [
        ({"tun0": _card("10.8.0.2"), "eth0": _card("93.184.216.34")}, "93.184.216.34"),
        ({"tun0": _card("10.8.0.2"), "eth0": _card("192.168.7.4")}, "10.8.0.2"),
        ({"tun0": _card("10.8.0.2"), "eth0": _card("93.184.216.34", up=False)}, "10.8.0.2"),
    ],
)
def test_a_vpn_that_leads_to_the_internet_hides_no_public_address(
    monkeypatch: pytest.MonkeyPatch, cards: dict[str, tuple[Any, Any]], told: str
) -> None:
    probe = {"connect": lambda self, place: None, "getsockname": lambda self: ("10.8.0.2", 5)}
    monkeypatch.setattr("node.network.announcing.socket.socket", type("Probe", (socket.socket,), probe))
    monkeypatch.setattr("psutil.net_if_addrs", lambda: {name: [card] for name, (card, _) in cards.items()})
    monkeypatch.setattr("psutil.net_if_stats", lambda: {name: stats for name, (_, stats) in cards.items()})
    assert reachable("/ip4/0.0.0.0/tcp/4001") == f"/ip4/{told}/tcp/4001"


def test_where_no_more_files_may_be_open_a_node_is_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each heartbeat says it, and one that could not ended the daemon."""
    known = reachable("/ip4/0.0.0.0/tcp/4001")

    def none_left(*_: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("node.network.announcing.socket.socket", none_left)
    assert reachable("/ip4/0.0.0.0/tcp/4001") == known
