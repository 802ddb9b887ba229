"""What can go wrong between this node and an HTTP source."""

from protocol.errors import IntellectError


class GatewayError(IntellectError):
    """Root of this package's errors."""


class BadSource(GatewayError):
    """Text that is no HTTP source."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(
            f"{text[:120]!r} is not an HTTP source",
            why,
            "write http://HOST:PORT, or https://HOST:PORT#sha256=<64 hex digits of its certificate's fingerprint>",
        )


class SourceFailed(GatewayError):
    """No source could deliver. why: what each of them did."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why, "check that the source runs and serves this run, or name another one")
