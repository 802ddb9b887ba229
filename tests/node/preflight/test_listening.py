"""Where a node listens by itself, and that it comes back to the same port."""

import socket
from pathlib import Path

from node.chain.profile import NetworkProfile
from node.preflight.reach import announced, choose_listen, parse, remember_port

LOCAL = NetworkProfile(name="local", chain_id=31337, rpc_urls=("http://127.0.0.1:8545",))
BASE = NetworkProfile(name="base", chain_id=8453, rpc_urls=("https://mainnet.base.org",))


def test_the_owners_word_is_taken_as_it_is(tmp_path: Path) -> None:
    assert choose_listen("/ip4/10.0.0.1/tcp/1", BASE, tmp_path) == ("/ip4/10.0.0.1/tcp/1",)


def test_a_devnet_is_loopback_and_a_public_network_is_every_interface(tmp_path: Path) -> None:
    assert choose_listen(None, LOCAL, tmp_path) == ("/ip4/127.0.0.1/tcp/0",)
    host, port = parse(choose_listen(None, BASE, tmp_path)[0])
    assert host == "0.0.0.0" and 4001 <= port < 4065  # noqa: S104 - what it says


def test_the_port_of_before_is_taken_again_unless_somebody_else_has_it(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        remember_port(tmp_path, f"/ip4/127.0.0.1/tcp/{port}/p2p/16Uiu2")
        other.listen()
        assert choose_listen(None, LOCAL, tmp_path) == ("/ip4/127.0.0.1/tcp/0",)
        assert choose_listen(None, LOCAL, tmp_path, running=True) == (f"/ip4/127.0.0.1/tcp/{port}",)
    assert choose_listen(None, LOCAL, tmp_path) == (f"/ip4/127.0.0.1/tcp/{port}",)


def test_a_damaged_memory_is_no_memory(tmp_path: Path) -> None:
    for text in ("99999999", "-1", "x", ""):
        (tmp_path / "port").write_text(text)
        assert choose_listen(None, LOCAL, tmp_path) == ("/ip4/127.0.0.1/tcp/0",)


def test_what_is_announced_has_no_wildcard_and_no_peer() -> None:
    assert announced(["/ip4/0.0.0.0/tcp/4001"], "/ip4/8.8.8.8/tcp/1/p2p/16Uiu2, /ip6/::1/tcp/2") == (
        "/ip4/8.8.8.8/tcp/1",
        "/ip6/::1/tcp/2",
    )
    host, port = parse(announced(["/ip4/0.0.0.0/tcp/4001"], None)[0])
    assert host != "0.0.0.0" and port == 4001  # noqa: S104 - what it says
