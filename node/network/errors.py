"""Everything that can go wrong between nodes, as values with a cause and a remedy."""

from protocol.errors import IntellectError


class NetworkError(IntellectError):
    """Root of this package's errors."""


class PortInUse(NetworkError):
    """The address we were told to listen on is taken."""

    def __init__(self, listen: str) -> None:
        super().__init__(
            f"cannot listen on {listen}",
            "another program, perhaps another node, holds that port",
            "stop it, or choose a free port (port 0 lets the system choose)",
        )


class ListenFailed(NetworkError):
    """The address we were told to listen on is not one this machine can use."""

    def __init__(self, listen: str, why: str) -> None:
        super().__init__(
            f"cannot listen on {listen}", why, "use an address of this machine, such as /ip4/0.0.0.0/tcp/4001"
        )


class BadContact(NetworkError):
    """A multiaddr of a peer that cannot be read."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"cannot dial {text[:200]!r}",
            "it is not of the form /ip4/ADDRESS/tcp/PORT/p2p/PEER",
            "copy it from `intellect-node status` of the node that it is",
        )


class NotRunning(NetworkError):
    """The network was used before it ran, or after it stopped."""

    def __init__(self) -> None:
        super().__init__("the network is not running", "the node is starting or stopping", "try again shortly")


class MessageTooLarge(NetworkError):
    """Something of ours exceeds what peers would accept."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            "message too large", f"{size} bytes, and peers accept at most {limit}", "send it as a blob instead"
        )


class PeerUnavailable(NetworkError):
    """The peer could not be reached, or went away in the middle. Worth trying again later."""

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(f"peer {peer} is unavailable", why, "nothing to do; it is tried again by itself")
        self.peer = peer


class RequestTimedOut(PeerUnavailable):
    """No complete answer before the deadline."""

    def __init__(self, peer: str, seconds: float) -> None:
        super().__init__(peer, f"no complete answer within {seconds:g} s")


class RequestRefused(PeerUnavailable):
    """The peer answered that it will not serve this request (now)."""


class PeerMisbehaved(NetworkError):
    """The peer broke the protocol: what it sent is not an answer to what we asked."""

    def __init__(self, peer: str, why: str) -> None:
        super().__init__(f"peer {peer} misbehaved", why, "nothing to do; it is avoided for a while")
        self.peer = peer
