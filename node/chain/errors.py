"""Everything that can go wrong between a node and its chain, each with a remedy."""

from collections.abc import Mapping
from typing import Any

from protocol.errors import IntellectError


class ChainError(IntellectError):
    """The root of this package's errors."""


class ProfileError(ChainError):
    """A network profile that is missing, malformed or contradicts itself."""


class RpcUnreachable(ChainError):
    """None of the profile's RPC endpoints answers."""

    def __init__(self, causes: Mapping[str, str]) -> None:
        tried = "; ".join(f"{url}: {cause}" for url, cause in causes.items())
        super().__init__(
            "the chain cannot be reached",
            tried or "no RPC endpoint is configured",
            "check the connection and rpc_urls in the network profile; for a local chain run: intellect-node devnet up",
        )


class RpcRefused(ChainError):
    """An RPC endpoint answers with an error that is not a contract's."""

    def __init__(self, action: str, why: str) -> None:
        super().__init__(f"the chain's RPC endpoint refused to {action}", why, "try again, or use another endpoint")


class WrongChain(ChainError):
    """An endpoint speaks for another chain than the profile names."""

    def __init__(self, url: str, expected: int, found: int | str) -> None:
        super().__init__(
            "this is another chain",
            f"{url} answers for chain id {found}, the network profile says {expected}",
            "correct rpc_urls or chain_id in the network profile",
        )


class NotDeployed(ChainError):
    """There is no contract where the profile says that there is one."""

    def __init__(self, missing: list[str], chain_id: int) -> None:
        super().__init__(
            "the contracts are not on this chain",
            f"there is no code at the address of: {', '.join(missing)} (chain {chain_id})",
            "use the profile that was written when they were deployed",
        )


class InsufficientFunds(ChainError):
    """Too little of the chain's coin for gas, or too few tokens."""


class InsufficientStake(ChainError):
    """The provider's bond does not cover its nodes. bonded, required: token wei."""

    def __init__(self, provider: str, bonded: int, required: int) -> None:
        super().__init__(
            "the stake is too low",
            f"{provider} has {tokens(bonded)} tokens bonded and needs {tokens(required)}",
            f"bond {tokens(required - bonded)} more: intellect-node contract stake",
        )
        self.provider = provider
        self.bonded = bonded
        self.required = required


class Reverted(ChainError):
    """A contract said no. name, args_: its custom error, e.g. NodeEvicted and its arguments."""

    def __init__(self, action: str, name: str, args: Mapping[str, Any], transaction: str | None = None) -> None:
        sentence, remedy = _EXPLANATIONS.get(name, ("the contract refused it", "read the contract's error"))
        detail = ", ".join(f"{key} {value}" for key, value in args.items())
        where = f", transaction {transaction}" if transaction else ""
        super().__init__(f"cannot {action}", f"{sentence} ({name}{': ' + detail if detail else ''}{where})", remedy)
        self.name = name
        self.args_ = dict(args)


class TransactionUnconfirmed(ChainError):
    """A transaction was sent and no block has it yet; it is kept and sent again at the next start."""

    def __init__(self, action: str, transaction: str, seconds: float) -> None:
        super().__init__(
            f"no confirmation to {action}",
            f"transaction {transaction} is in no block after {seconds:.0f} s",
            "wait: it is kept and sent again; if the chain is congested, try later",
        )
        self.transaction = transaction


class TransactionReplaced(ChainError):
    """Another transaction used the number of ours: the wallet's owner, or another program with the same key."""

    def __init__(self, action: str, transaction: str, nonce: int) -> None:
        super().__init__(
            f"it was not done: {action}",
            f"another transaction of the account used number {nonce} instead of {transaction}",
            "look at the account's transactions, then run the command again; use a key in one program only",
        )
        self.transaction = transaction


class DevnetError(ChainError):
    """The local chain: its program, its port, its state."""


def tokens(wei: int) -> str:
    """Wei as a decimal number of tokens, without rounding."""
    text = f"{wei // 10**18}.{wei % 10**18:018d}".rstrip("0").rstrip(".")
    return text or "0"


_EXPLANATIONS: dict[str, tuple[str, str]] = {
    "NodeIsProvider": ("a node and its provider must be two keys", "use another key for the provider"),
    "NodeTaken": ("the node already has a provider", "that provider must remove it first"),
    "NodeUnknown": ("the node is not registered", "register it: intellect-node contract register"),
    "NotYourNode": ("the node belongs to another provider", "use the key of its provider"),
    "UnitsOutOfRange": ("the number of units is out of range", "give a number within the limit"),
    "SignatureExpired": ("the node's signature is too old", "sign the registration again"),
    "WrongSigner": (
        "the signature is by another key, or for another chain or contract",
        "sign again with the right key",
    ),
    "PoolUnknown": ("there is no such pool", "check the pool's number"),
    "PoolOver": ("the pool has ended", "choose another pool"),
    "PoolStillOpen": ("the pool's last epoch is not over", "wait until its window is over"),
    "OnlyManager": ("only the pool's manager may do that", "use the manager's key"),
    "RunAlreadyWorkedOn": ("work was already committed to the run", "open a new pool for another run"),
    "TextTooLong": ("a text is too long", "shorten it"),
    "BadTimes": ("the pool's times do not fit together", "window <= 48 epochs, lease >= epoch, none zero"),
    "WindowExceedsUnbonding": ("stakes could leave before the window is over", "shorten the window or the epochs"),
    "BadQuorum": ("threshold and validators do not fit together", "1 <= threshold <= validators <= 16"),
    "BadValidator": ("a validator is listed twice, or is nobody", "correct the list of validators"),
    "NotMember": ("the node is not a member of the pool", "join the pool first"),
    "NodeEvicted": ("the node was evicted from the pool for good", "join another pool, or use another node key"),
    "LeaseLapsed": ("the membership has lapsed", "join the pool again"),
    "EpochNotStarted": ("the epoch has not begun", "wait for it"),
    "CommitTooLate": ("the epoch no longer takes work", "nothing to do: commit within half a window after its end"),
    "AlreadyCommitted": ("work of this epoch is already committed", "nothing to do"),
    "NothingCommitted": ("nothing is due for this epoch", "nothing to do: it was never committed, paid or voided"),
    "NotMature": ("the epoch's window is not over", "settle it later"),
    "AlreadyMature": ("the epoch's window is over", "nothing to do: mature work stands"),
    "BadProof": ("the file is not in the committed tree", "check epoch, file and proof"),
    "AlreadyInvalidated": ("the file was already taken out", "nothing to do"),
    "NotAValidator": ("a verdict is not by a validator of the pool, or not about this work", "leave that verdict out"),
    "DuplicateVerdict": ("a validator appears twice", "leave one of its verdicts out"),
    "QuorumMissing": ("too few verdicts", "wait for more validators"),
    "NoContradiction": ("the two commitments do not contradict each other", "nothing to do"),
    "StakeTooSmall": ("less than that is bonded", "give a smaller amount"),
    "NothingToWithdraw": ("nothing is unbonding", "unbond first"),
    "StillUnbonding": ("the unbonding period is not over", "wait"),
    "FaucetCapExceeded": ("the faucet gives less at once", "ask for less"),
    "ECDSAInvalidSignature": ("a signature is malformed", "sign again"),
    "ECDSAInvalidSignatureLength": ("a signature is malformed", "sign again"),
    "ECDSAInvalidSignatureS": ("a signature is malleable (high s)", "sign again"),
}
