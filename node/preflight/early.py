"""What `join` is refused for at once: looked at before torch is imported, and before anything is written.

Cheap things come first: arguments, profile, lock. Then the chain is asked for its id and the pool. Last, a node that
would put up a stake asks the pool's members whether their run is over. Leaves no threads: the program forks afterwards.
"""

import os
import signal
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from node.chain.profile import NetworkProfile, load_profile
from node.config import NodeConfig
from node.errors import ConfigError, StateError
from node.state.directory import JOURNAL_NAME, check_place
from node.state.locks import holder_of
from protocol.errors import IntellectError
from protocol.identity import Address
from protocol.statements import Domain

if TYPE_CHECKING:
    from contracts.bindings import Contracts, PoolInfo
    from node.chain.endpoints import Endpoints

OVER = 3
"""Exit status of the child where the run is over."""


def refuse_early(config: NodeConfig) -> None:
    """Return if nothing is known that keeps this node from joining. Raises IntellectError."""
    _check_arguments(config)
    profile = load_profile(config.network, home=config.home)
    check_place(config.directory)
    _check_lock(config.directory)
    number = chosen_pool(config, profile)
    _check_password(config)
    if not _only_leaves(config.directory, profile, number):
        _check_pool(config, profile, number)


def check_metrics_log(config: NodeConfig, role: str) -> None:
    """Raises ConfigError where a role has no records that could be sent: only a trainer has a step's."""
    if config.metrics_log and role != "trainer":
        what = f"--metrics-log {config.metrics_log} cannot be heeded"
        why = f"a {role} makes no records of steps; only a trainer does"
        raise ConfigError(what, why, "leave it out; what this node does is served by --metrics-address HOST:PORT")


def chosen_pool(config: NodeConfig, profile: NetworkProfile) -> int:
    """The pool's number. Raises ConfigError where nobody says it."""
    number = config.pool if config.pool is not None else profile.pool
    if number is None:
        raise ConfigError("no pool to join", "neither --pool nor the network profile names one", "give --pool N")
    return number


def _check_arguments(config: NodeConfig) -> None:
    """Each kind imports its parser only where it was given."""
    if config.role in ("worker", "validator"):
        check_metrics_log(config, config.role)
    if config.run_file is not None:
        from node.run.file import load_run_file

        load_run_file(config.run_file, config.run_sets)
    if config.listen or config.announce or config.bootnodes:
        _check_addresses(config)
    if config.http_sources:
        from node.blobs.http.sources import parse_source

        for source in config.http_sources:
            parse_source(source, private=True)
    doors = (("the page", config.page, "--page"), ("metrics", config.metrics_address, "--metrics-address"))
    for what, address, flag in (*doors, ("the gateway", config.gateway, "--gateway")):
        if address:
            from node.web.host import bind

            # Bound and let go: the daemon binds it again, and says so itself if somebody was faster.
            bind(address, what, flag).close()


def _check_addresses(config: NodeConfig) -> None:
    from multiaddr import Multiaddr

    from node.network.contacts import parse_bootnode

    for flag, text in (("--listen", config.listen), ("--announce", config.announce)):
        for one in filter(None, (part.strip() for part in (text or "").split(","))):
            try:
                Multiaddr(one)
            except ValueError as error:
                why = str(error)[:200]
                raise ConfigError(
                    f"{flag} {one[:120]} is no multiaddr", why, f"write {flag} /ip4/0.0.0.0/tcp/4001"
                ) from None
    for text in config.bootnodes:
        parse_bootnode(text)


def _check_lock(directory: Path) -> None:
    holder = holder_of(directory / "lock")
    if holder is not None:
        raise StateError(
            f"the state directory {directory} is in use",
            f"another daemon (pid {holder}) holds its lock",
            "stop that daemon, or give this one its own --state-dir (and so its own key)",
        )


def _only_leaves(directory: Path, profile: NetworkProfile, number: int) -> bool:
    """Whether this node comes for its pay alone: then its pool may be paused or over."""
    if not (directory / JOURNAL_NAME).exists():
        return False
    from node.state.leave import LEAVING, label_of
    from node.state.reader import StateFiles

    label = label_of(Domain(profile.chain_id, profile.contracts.swarm), number)
    return StateFiles(directory).fact(LEAVING) == label


def _check_password(config: NodeConfig) -> None:
    """Only one that a person chose can be wrong, and opening a key takes most of a second; another can be lost."""
    key = config.directory / "node-key.json"
    chosen = bool(config.password) or config.password_file is not None
    if not chosen and not key.exists():
        return  # the daemon makes both
    from node.state.keystore import load_key, read_password

    password = read_password(config.password, config.password_file, config.directory)
    if chosen and key.exists():
        load_key(key, password)


def _check_pool(config: NodeConfig, profile: NetworkProfile, number: int) -> None:
    """A node that was in its pool may come back while no endpoint answers: its daemon knows how."""
    from contracts.bindings import Contracts
    from node.chain.endpoints import Asker, Endpoints
    from node.chain.errors import RpcUnreachable, translate

    # For one endpoint's answer: a slow one is asked again by the daemon, with more patience.
    endpoints = Endpoints(profile.rpc_urls, profile.chain_id, 4.0)
    action = f"read pool {number} of {profile.name}"
    try:
        contracts = Contracts(Asker(endpoints, action), profile.contracts)
        pool = contracts.pool(number)
        _check_state(config, pool)
        _check_invitation(config, profile, endpoints, contracts, pool)
        if _puts_up_a_stake(config, profile, contracts):
            _check_run(profile, pool)
    except RpcUnreachable:
        if not (config.directory / JOURNAL_NAME).exists():
            raise
    except IntellectError:
        raise
    except Exception as error:  # an answer that is none: what web3 raises for it has no name before it is imported
        raise translate(error, action) from error
    finally:
        endpoints.close()


def _check_state(config: NodeConfig, pool: "PoolInfo") -> None:
    from node.preflight.chain import check_pool
    from node.preflight.finding import PreflightFailed

    finding = check_pool(pool)
    if config.preflight and finding.level == "failure":
        raise PreflightFailed([finding])


def _check_invitation(
    config: NodeConfig, profile: NetworkProfile, endpoints: "Endpoints", contracts: "Contracts", pool: "PoolInfo"
) -> None:
    """Before a stake is put up: a pool that takes nobody uninvited takes none of those either."""
    from contracts.bindings import NOBODY
    from node.chain.endpoints import encoded
    from node.chain.invitations import look
    from node.preflight.chain import check_invitation, provider_address
    from node.preflight.finding import PreflightFailed

    if not pool.invited:
        return
    answer = endpoints.request("eth_getBlockByNumber", encoded("eth_getBlockByNumber", ["latest", False]))
    now, domain = int((answer.get("result") or {})["timestamp"], 16), Domain(profile.chain_id, profile.contracts.swarm)
    who = (_own_address(config) or NOBODY, provider_address(config))
    finding = check_invitation(look(contracts, domain, pool, profile.invitations, *who, now))
    if config.preflight and finding.level == "failure":
        raise PreflightFailed([finding])


def _own_address(config: NodeConfig) -> Address | None:
    """None for a node that has no key yet."""
    from node.state.keystore import claimed_address, read_keystore

    path = config.directory / "node-key.json"
    return claimed_address(read_keystore(path)) if path.exists() else None


def _puts_up_a_stake(config: NodeConfig, profile: NetworkProfile, contracts: "Contracts") -> bool:
    """Whether this node is not registered yet, and nobody gives it play money."""
    from node.chain.faucet import is_devnet

    # A pool's trainer starts its run, so it cannot be asked whether it is over; play money needs no warning.
    if config.role == "trainer" or not config.preflight or (config.auto_setup and is_devnet(profile)):
        return False
    node = _own_address(config)
    return node is None or not contracts.node_info(node).registered


def _check_run(profile: NetworkProfile, pool: "PoolInfo") -> None:
    """Ask in a process of its own: the network's threads would keep this one from forking."""
    from node.preflight.finding import PreflightFailed, failure
    from node.processes.threads import alone

    if not alone(5.0):  # for threads that asked the chain and are about to end
        return  # as after every other outcome than one: the daemon meets an ended run again, and says it
    child = os.fork()
    if child == 0:
        # The alarm's default action ends the process: nothing in it has to cooperate for that.
        signal.alarm(20)  # for the look at the members, its imports included
        # Not sys.exit: the exit handlers belong to the parent, and would run twice.
        os._exit(_look(profile, pool))
    _, status = os.waitpid(child, 0)
    # Every other outcome, an alarm included, lets the node go on.
    if os.waitstatus_to_exitcode(status) == OVER:
        what = f"the run of pool {pool.id} is over, by its trainer's word: there is no work in it"
        remedy = "choose another pool; the trained model is had with: intellect-node weights fetch"
        raise PreflightFailed([failure("run", what, remedy, pool=pool.id)])


def _look(profile: NetworkProfile, pool: "PoolInfo") -> int:
    """The exit status. What goes wrong here is no reason to refuse: the daemon meets it again, and says it."""
    import structlog
    import trio

    from node.chain.client import ChainClient
    from node.preflight.reach import is_over

    # What this process would log is no news of the node's, and the terminal belongs to the parent.
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())

    async def look() -> bool:
        with closing(ChainClient(profile)) as chain:
            with tempfile.TemporaryDirectory(prefix="intellect-preflight-") as folder:
                return await is_over(chain, pool, Path(folder))

    try:
        return OVER if trio.run(look) else 0
    except BaseException:
        return 1
