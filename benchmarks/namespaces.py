"""Hosts behind routers that translate addresses: network namespaces, one public net, private nets behind it.

Needs root, `ip` and `iptables`. Everything that was made is removed at the end.
"""

import argparse
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

SKIPPED = 77
"""Exit code where nothing could be measured."""

PUBLIC = "11.77.0"
"""Addresses of the internet by their number, so that nobody takes them for private ones; they never leave."""


class Host:
    """A namespace. prefix: what commands in it start with; address: its own."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.prefix = ("ip", "netns", "exec", name)

    def do(self, *command: str) -> None:
        _do(*self.prefix, *command)


def why_not() -> str | None:
    """What keeps this machine from making namespaces with translating routers, None if nothing does."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing := [tool for tool in ("ip", "iptables") if not shutil.which(tool)]:
        return f"{' and '.join(missing)} is not installed"
    name = f"nat{os.getpid()}t"
    try:
        _do("ip", "netns", "add", name)
        _do("ip", "netns", "exec", name, "iptables", "-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE")
    except subprocess.CalledProcessError as error:
        return f"no namespace with a translating router can be made here: {error.stderr.decode().strip()[:200]}"
    finally:
        _try("ip", "netns", "del", name)
    return None


def conclude(parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace], dict[str, Any]]) -> int:
    """Read the command line, measure if this machine can, print what was found. The exit code."""
    parser.add_argument("--json", action="store_true", help="one object on the last line")
    options = parser.parse_args()
    if reason := why_not():
        print(json.dumps({"skipped": reason}) if options.json else f"skipped: {reason}")
        return SKIPPED
    found = measure(options)
    print(json.dumps(found) if options.json else "\n".join(f"{name:32} {value}" for name, value in found.items()))
    return 0


@contextmanager
def world(public: int, hidden: int, *, random_ports: bool = False) -> Iterator[tuple[list[Host], list[Host]]]:
    """(hosts that everybody can dial, hosts each behind a router of its own that lets only answers in).

    random_ports: the routers give each connection another port, whichever it was made from.
    """
    serial = f"n{os.getpid() % 100_000}"
    with ExitStack() as stack:
        net = _host(stack, f"{serial}net", "")
        net.do("ip", "link", "add", "br0", "type", "bridge")
        net.do("ip", "link", "set", "br0", "up")
        open_hosts = [_attach(stack, net, f"{serial}p{n}", f"{PUBLIC}.{10 + n}") for n in range(public)]
        routers = [_attach(stack, net, f"{serial}r{n}", f"{PUBLIC}.{100 + n}") for n in range(hidden)]
        yield open_hosts, [_behind(stack, router, f"{serial}h{n}", n, random_ports) for n, router in enumerate(routers)]


@contextmanager
def lan(hosts: int) -> Iterator[list[Host]]:
    """Hosts of one private network without a way out."""
    serial = f"l{os.getpid() % 100_000}"
    with ExitStack() as stack:
        net = _host(stack, f"{serial}net", "")
        net.do("ip", "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
        net.do("ip", "link", "set", "br0", "up")
        yield [_attach(stack, net, f"{serial}p{n}", f"192.168.77.{10 + n}") for n in range(hosts)]


def _host(stack: ExitStack, name: str, address: str) -> Host:
    _do("ip", "netns", "add", name)
    stack.callback(_try, "ip", "netns", "del", name)
    host = Host(name, address)
    host.do("ip", "link", "set", "lo", "up")
    return host


def _attach(stack: ExitStack, net: Host, name: str, address: str) -> Host:
    """A host on the public net."""
    host = _host(stack, name, address)
    _link(net, f"{name}b", host, "wan")
    net.do("ip", "link", "set", f"{name}b", "master", "br0", "up")
    host.do("ip", "addr", "add", f"{address}/24", "dev", "wan")
    host.do("ip", "link", "set", "wan", "up")
    return host


def _behind(stack: ExitStack, router: Host, name: str, number: int, random_ports: bool) -> Host:
    """A host on a private net of its own, whose router gives its own address to what goes out."""
    inside = f"10.{200 + number}.0"
    host = _host(stack, name, f"{inside}.2")
    _link(router, "lan", host, "eth")
    router.do("ip", "addr", "add", f"{inside}.1/24", "dev", "lan")
    router.do("ip", "link", "set", "lan", "up")
    router.do("sysctl", "-qw", "net.ipv4.ip_forward=1")
    ports = ("--random-fully",) if random_ports else ()
    router.do("iptables", "-t", "nat", "-A", "POSTROUTING", "-o", "wan", "-j", "MASQUERADE", *ports)
    answers = ("-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED")
    router.do("iptables", "-A", "FORWARD", "-i", "wan", *answers, "-j", "ACCEPT")
    router.do("iptables", "-A", "FORWARD", "-i", "wan", "-j", "DROP")
    router.do("iptables", "-A", "INPUT", "-i", "wan", *answers, "-j", "ACCEPT")
    router.do("iptables", "-A", "INPUT", "-i", "wan", "-j", "DROP")
    host.do("ip", "addr", "add", f"{host.address}/24", "dev", "eth")
    host.do("ip", "link", "set", "eth", "up")
    host.do("ip", "route", "add", "default", "via", f"{inside}.1")
    return host


def _link(one: Host, at_one: str, other: Host, at_other: str) -> None:
    _do("ip", "link", "add", at_one, "netns", one.name, "type", "veth", "peer", "name", at_other, "netns", other.name)


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _try(*command: str) -> None:
    subprocess.run(command, check=False, capture_output=True)
