"""Others' modules that stand in their places until something is asked of them: a library's `__init__` imports whatever
it offers, and a daemon has a third of that in memory for nothing.

What imports such a module by itself (`from multiaddr.resolvers import DNSResolver`) gets stand-ins for the names that
it takes. One that is called, or asked for anything, imports the module and is its name from then on. A name that has
no stand-in imports it at once, so a table that is wrong costs time and nothing else. What others inherit from, or name
behind `except`, must have none.
"""

import sys
import threading
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, cast

BLS = {"curve_order": 0x73EDA753299D7D483339D80809A1D80553BDA402FFFE5BFEFFFFFFFF00000001}
"""What eth_keyfile reads when it is imported."""
LATER: Mapping[str, Sequence[str] | Mapping[str, Any]] = {
    # Curves of keys that Ethereum's own validators have. Their tables take half as long as all of web3.
    "py_ecc.bls": ("G2ProofOfPossession",),
    "py_ecc.bls12_381": BLS,
    # We take TCP, Noise and streams from libp2p, by their places. QUIC, certificates, names by DNS, neighbours and
    # routers that are asked for a port come with its aggregates.
    "libp2p": (),
    "libp2p.transport": (),
    "libp2p.transport.quic.stream": ("QUICStream",),
    "libp2p.transport.quic.config": ("QUICTransportConfig",),
    "libp2p.discovery.mdns": (),
    "libp2p.discovery.mdns.mdns": ("MDNSDiscovery", "create_mdns_discovery"),
    "libp2p.discovery.upnp.upnp": ("UpnpManager",),
    "libp2p.discovery.bootstrap.bootstrap": ("BootstrapDiscovery",),
    "libp2p.rcmgr.prometheus_exporter": ("PrometheusExporter", "create_prometheus_exporter"),
    "libp2p.relay": (),
    "libp2p.relay.circuit_v2": (),
    "libp2p.security.tls.autotls.acme": ("ACMEClient", "compute_b36_peer_id"),
    "libp2p.security.tls.autotls.broker": ("BrokerClient",),
    "multiaddr.resolvers": ("DNSResolver",),
    "prometheus_client": ("Counter", "Gauge", "Histogram"),
    # Our provider asks by httpx, and our contracts know no names.
    "ens": ("AsyncENS", "BaseENS", "ENS", "abis"),
    "web3.providers.auto": ("AutoProvider",),
    "web3.providers.eth_tester": ("AsyncEthereumTesterProvider", "EthereumTesterProvider"),
    "web3.providers.ipc": ("IPCProvider",),
    "web3.providers.persistent": (
        *("AsyncIPCProvider", "PersistentConnection", "PersistentConnectionProvider", "WebSocketProvider"),
    ),
    "web3.providers.rpc": ("AsyncHTTPProvider", "HTTPProvider"),
    "web3.utils.exception_handling": ("handle_offchain_lookup",),
    "web3.utils.async_exception_handling": ("async_handle_offchain_lookup",),
    # HTTP/2 is not spoken here.
    "hypercorn.protocol.h2": ("H2Protocol",),
    # Commands of theirs, and tracebacks in colour.
    "httpx._main": ("main",),
    "rich.traceback": ("Traceback",),
}
"""Module -> the names that others take of it as they are imported."""


class _Name(type):
    """A class or function of a module whose code has not run."""

    _place: tuple[str, str]

    def __new__(mcs, name: str, bases: tuple[type, ...], given: dict[str, Any]) -> "_Name":
        if bases:
            raise TypeError(f"{name} inherits from {bases[0].__name__}, a stand-in of {__name__}")
        return super().__new__(mcs, name, bases, given)

    def __call__(cls, *args: Any, **named: Any) -> Any:
        return cls._real()(*args, **named)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(cls._real(), name)

    def __instancecheck__(cls, instance: Any) -> bool:
        """Before the module is imported nothing is one."""
        return not isinstance(sys.modules[cls._place[0]], Later) and isinstance(instance, cls._real())

    def _real(cls) -> Any:
        module, name = cls._place
        return getattr(_imported(module), name)


class Later(ModuleType):
    """A module whose own code has not run."""

    def __getattr__(self, name: str) -> Any:
        # What Python itself looks for in every module.
        if name.startswith("__") and name not in ("__version__", "__all__"):
            raise AttributeError(name)
        return getattr(_imported(self.__name__), name)


_LOCKS: dict[str, threading.RLock] = {}
"""One for each module of the table: a lock for all would stand against Python's own ones, of which a thread that
imports another module holds some."""
_RUNNING: set[str] = set()
"""Modules whose code runs: what asks them for more is itself run by them."""


def _imported(name: str) -> ModuleType:
    """The module, after its own code; as before where that runs just now."""
    with _LOCKS[name]:
        module = sys.modules[name]
        if isinstance(module, Later) and name not in _RUNNING:
            _RUNNING.add(name)
            try:
                for given in LATER[name]:
                    vars(module).pop(given, None)
                assert module.__spec__ is not None and module.__spec__.loader is not None
                module.__spec__.loader.exec_module(module)
                cast(Any, module).__class__ = ModuleType
            finally:
                _RUNNING.discard(name)
        if isinstance(module, Later):
            raise AttributeError(name)
        return module


class _Loader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        names, module.__class__ = LATER[module.__name__], Later
        _LOCKS.setdefault(module.__name__, threading.RLock())
        for name in names:
            place = {"_place": (module.__name__, name)}
            setattr(module, name, names[name] if isinstance(names, Mapping) else _Name(name, (), place))


class Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name in LATER else None
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader)
        return spec


def put_off() -> None:
    """From now on the modules of the table run when they are asked for something."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
