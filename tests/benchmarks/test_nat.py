"""Two nodes behind translating routers meet through a third, over the kernel's own address translation."""

import os
from pathlib import Path

import pytest

from benchmarks.nat import measure, opened, why_not


async def test_its_nodes_are_what_the_product_opens(tmp_path: Path) -> None:
    """Everywhere, since the rest needs root and iptables: for months nobody saw that it could not start."""
    async with opened("/ip4/127.0.0.1/tcp/0", tmp_path) as member:
        assert member.network.contacts()


@pytest.mark.skipif("INTELLECT_NODE_NAT" not in os.environ, reason="50 s: set INTELLECT_NODE_NAT=1")
@pytest.mark.parametrize("random_ports", [False, True])
def test_two_hidden_nodes_find_out_meet_hear_each_other_and_exchange_a_blob(random_ports: bool) -> None:
    if reason := why_not():
        pytest.skip(reason)
    found = measure(2, random_ports)
    assert f"seconds_to_{'unpunched' if random_ports else 'punched'}" in found
    assert found["ways"] == ["direct", "relayed", "relayed"]
    assert [host for host, _ in found["seen"]] == ["11.77.0.100", "11.77.0.101"]
