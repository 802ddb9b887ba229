"""How the machines of one trainer find each other: torchrun's static rendezvous, and what to say when it fails.

Machine 0 listens at `rendezvous`; the others look for it there. Everything here happens before torch is loaded. Nothing
that goes over these connections is encrypted or authenticated: docs/training.md says what follows from that.
"""

import errno
import socket
from collections.abc import Callable

import psutil

from node.looked import looked
from node.training.errors import TrainingError
from node.training.settings import TrainerSettings, endpoint

RENDEZVOUS_ID = "intellect-node"


def arguments(settings: TrainerSettings, *, patience_seconds: int = 30 * 86_400) -> list[str]:
    """torchrun's, up to the program: processes of this machine alone, or of several."""
    processes = f"--nproc-per-node={settings.world_size}"
    if settings.nodes == 1:
        return ["--standalone", processes]
    return [
        processes,
        f"--nnodes={settings.nodes}",
        f"--node-rank={settings.node_rank}",
        "--rdzv-backend=static",  # c10d deals ranks by address, and rank 0 must be where the spool is
        f"--rdzv-endpoint={settings.rendezvous}",
        f"--rdzv-id={RENDEZVOUS_ID}",
        # How long machine 0 waits for the others, who may be switched on tomorrow.
        f"--rdzv-conf=timeout={patience_seconds}",
    ]


def prepare(settings: TrainerSettings, on_progress: Callable[[str], None] = lambda _: None) -> dict[str, str]:
    """What torch's libraries need in the environment, once machine 0 can listen or the others have found it.

    told: is given a sentence when it has to wait. Raises TrainingError. Blocks.
    """
    found = endpoint(settings.rendezvous)
    assert found is not None  # TrainerSettings.check
    host, port = found
    address = _resolve(settings, host, port)
    if settings.node_rank == 0:
        _must_be_free(settings, port)
        on_progress(f"waits for {settings.nodes - 1} more at {settings.rendezvous}")
    else:
        _find(settings, address, on_progress)
    # Without these gloo takes the address that the host's own name resolves to, which is often a loopback one.
    interface = settings.interface or _interface_towards(settings, address)
    return {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}


def _resolve(settings: TrainerSettings, host: str, port: int) -> tuple[int, tuple[str, int]]:
    """(family, (address, port))."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise TrainingError(
            f"there is no machine called {host!r}",
            f"trainer.rendezvous is {settings.rendezvous}: {error.strerror or error}",
            "give the address of machine 0 (the one with node_rank 0) that the others reach",
        ) from error
    return family, (str(address[0]), port)


def _must_be_free(settings: TrainerSettings, port: int) -> None:
    """Or torch would say it in a page of its own."""
    with socket.socket(socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET) as listener:
        # Without it a port whose connections have just ended would count as in use.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
            listener.listen()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                return  # no IPv6 here, perhaps: torch tries the other way
            raise TrainingError(
                f"cannot listen at {settings.rendezvous}",
                f"port {port} is in use on this machine",
                "name another port in trainer.rendezvous, on every machine, or stop what uses it",
            ) from error


def _find(
    settings: TrainerSettings,
    address: tuple[int, tuple[str, int]],
    on_progress: Callable[[str], None],
    *,
    dial_seconds: float = 5.0,
) -> None:
    """Until somebody listens there."""
    family, place = address
    failed = list[OSError]()

    def listens() -> bool:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as connection:
                connection.settimeout(dial_seconds)
                connection.connect(place)
                return True
        except OSError as error:
            if not failed:
                on_progress(f"looks for machine 0 at {settings.rendezvous}")
            failed.append(error)
            return False

    if not looked(listens, 0.5, settings.rendezvous_seconds):
        raise _unreachable(settings, failed[-1].strerror or str(failed[-1])) from failed[-1]


def _unreachable(settings: TrainerSettings, why: str) -> TrainingError:
    return TrainingError(
        f"machine 0 cannot be reached at {settings.rendezvous}",
        f"{why}, for {settings.rendezvous_seconds:g} s",
        "start it, or see that trainer.rendezvous is its address and that its firewall lets this machine in on every "
        "port; if the training has ended there, nothing is lost",
    )


def _interface_towards(settings: TrainerSettings, address: tuple[int, tuple[str, int]]) -> str:
    """The name of the interface that has the address from which this machine would speak to machine 0."""
    family, place = address
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(place)  # sends nothing
            own = str(probe.getsockname()[0])
        except OSError as error:
            raise _unreachable(settings, error.strerror or str(error)) from error
    for name, known in psutil.net_if_addrs().items():
        # psutil writes link-local addresses with their interface behind a %.
        if any(one.address.partition("%")[0] == own for one in known):
            return name
    raise TrainingError(
        "no network interface leads to machine 0",
        f"{own} is the address of none of {', '.join(psutil.net_if_addrs())}",
        "name the interface in trainer.interface",
    )
