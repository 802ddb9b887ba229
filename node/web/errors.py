"""What can go wrong before anything is served."""

from node.errors import ConfigError


class AddressUnusable(ConfigError):
    """An address cannot be listened on. what: who wants it, as a person says it; flag: where it was given."""

    def __init__(self, what: str, address: str, why: str, flag: str) -> None:
        super().__init__(
            f"{what} cannot be served at {address[:120]}",
            why,
            f"give {flag} HOST:PORT with a free port, for example 127.0.0.1:9464; port 0 lets the system choose",
        )
