"""Everything that can go wrong between a node and its chain, each with a remedy."""

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from contracts.bindings import Revert
from node.chain.refusals import EndpointRefused, RefusalKind, revert_of
from protocol.errors import IntellectError


class ChainError(IntellectError):
    """The root of this package's errors."""


class ProfileError(ChainError):
    """A network profile that is missing, malformed or contradicts itself."""


class RpcUnreachable(ChainError):
    """None of the profile's RPC endpoints answers. causes: URL -> why; refused: all of them said why, in an answer."""

    def __init__(self, causes: Mapping[str, str], *, refused: bool = False) -> None:
        tried = "; ".join(f"{shown(url)}: {cause}" for url, cause in causes.items())
        remedy = (
            "check the connection and rpc_urls in the network profile; for a local chain run: intellect-node devnet up"
        )
        super().__init__(
            "no RPC endpoint serves the chain now" if refused else "the chain cannot be reached",
            tried or "no RPC endpoint is configured",
            "wait; or name another endpoint in rpc_urls of the network profile" if refused else remedy,
        )
        self.refused = refused


class RpcRefused(ChainError):
    """An RPC endpoint answers with an error that is not a contract's."""

    def __init__(self, action: str, why: str, remedy: str = "try again, or use another endpoint") -> None:
        super().__init__(f"the chain's RPC endpoint refused to {action}", why, remedy)


class EndpointsDisagree(ChainError):
    """No two endpoints tell the same of what money follows from."""

    def __init__(self, action: str, places: Sequence[str]) -> None:
        super().__init__(
            f"cannot {action}",
            f"{' and '.join(places)} tell different things: one of them lies, lags or is damaged",
            "if it stays so, look it up with a block explorer, and take the wrong one out of rpc_urls of the network "
            "profile",
        )


class WrongChain(ChainError):
    """An endpoint speaks for another chain than the profile names."""

    def __init__(self, url: str, expected: int, found: int | str) -> None:
        super().__init__(
            "this is another chain",
            f"{shown(url)} answers for chain id {found}, the network profile says {expected}",
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


class OtherContracts(ChainError):
    """The contracts are not this program's, or not one deployment. slots: which of them have other code; astray: ties
    that lead to others than the profile names, as `swarm.vault`."""

    def __init__(self, slots: Sequence[str], network: str, astray: Sequence[str] = ()) -> None:
        source = f"intellect-node contract source --out source.json --verify --network {network}"
        if slots:
            super().__init__(
                "the contracts are of another version, or of somebody else's making",
                f"{', '.join(slots)} of the network {network} do not have the code of this program's contracts",
                "use the version of this program that they were deployed with, or the profile of a newer deployment; "
                f"what they are tells: {source}",
            )
        else:
            super().__init__(
                "the contracts of this profile do not belong together",
                f"of the network {network}, {', '.join(astray)} on the chain is another address than in the profile",
                "use the profile that the pool's opener gives; a stake that is put in here can be out of reach",
            )


class InsufficientFunds(ChainError):
    """Too little of the chain's coin for gas, or too few tokens."""


class FeeTooHigh(ChainError):
    """The chain, or an endpoint that says so, asks for more per gas than the network profile allows, or than is paid
    for what can still wait. wei per gas."""

    def __init__(self, asked: int, cap: int, *, waits: bool = False) -> None:
        told = f"a block asks for {asked / 1e9:g} gwei per gas"
        if waits:
            remedy = "nothing is lost yet: it is tried again, and more is paid as its time runs out"
            super().__init__("gas costs too much now", f"{told}, and {cap / 1e9:g} is paid for this now", remedy)
        else:
            why = f"{told}, max_fee_gwei of the network profile is {cap / 1e9:g}"
            super().__init__("gas costs too much now", why, "wait; or raise max_fee_gwei in the network profile")
        self.waits = waits


class InsufficientStake(ChainError):
    """The provider's bond does not cover its nodes. bonded, required: token wei."""

    def __init__(self, provider: str, bonded: int, required: int) -> None:
        super().__init__(
            "the stake is too low",
            f"{provider} has {tokens(bonded)} tokens bonded and needs {tokens(required)}",
            f"bond {tokens(required - bonded)} more: intellect-node contract stake {tokens(required - bonded)}",
        )
        self.provider = provider
        self.bonded = bonded
        self.required = required


class Reverted(ChainError):
    """A contract said no. name, args_: its custom error, e.g. NodeEvicted and its arguments."""

    def __init__(self, action: str, name: str, args: Mapping[str, Any], transaction: str | None = None) -> None:
        sentence, remedy = _EXPLANATIONS.get(name, ("the contract refused it", "read the contract's error"))
        detail = ", ".join(f"{key} {_told(key, value)}" for key, value in args.items())
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


def shown(url: str) -> str:
    """An endpoint without what its owner would not show: keys stand in paths, queries and before the host."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "an endpoint"
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    hidden = "/…" if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{host}{port}{hidden}"


def scrubbed(text: str, url: str) -> str:
    """A text of or about an endpoint, without the secrets of its URL: gateways repeat the address, and the key in
    it."""
    parts = urlsplit(url)
    words = [*parts.path.split("/"), *(value for _, value in parse_qsl(parts.query)), parts.username, parts.password]
    # Characters from which on a part of a URL may be a key.
    for word in sorted({word for word in words if word and len(word) >= 6}, key=len, reverse=True):
        text = re.sub(re.escape(word), "…", text)
    return text


_TIMES = (*("from", "until", "deadline", "madeAt", "matureAt", "finalAt", "withdrawableAt", "freeAt", "countsAt"),)
"""Arguments of the contracts' errors that are points in time, in unix seconds."""


def _told(key: str, value: Any) -> str:
    """An error's argument for people."""
    if key not in _TIMES or not isinstance(value, int):
        return str(value)
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value))
    except (OverflowError, ValueError, OSError):  # a number that no calendar has
        return f"second {value}"


_EXPLANATIONS: dict[str, tuple[str, str]] = {
    # nodes
    "NodeIsProvider": ("a node and its provider must be two keys", "use another key for the provider"),
    "NodeTaken": ("the node has a provider, and that is for life", "make a new node key: intellect-node keys new"),
    "NodeStillAnswers": (
        "a removed node answers for what it did until the unbonding is over",
        "wait until then; before that it can come back at its old size or more: see contract node show",
    ),
    "NodeUnknown": ("the node is not registered", "register it: intellect-node contract node register"),
    "NotYourNode": ("the node belongs to another provider", "use the key of its provider"),
    "UnitsOutOfRange": ("the number of units is out of range", "give a number within the limit"),
    "SignatureExpired": ("the signature is too old", "sign again"),
    "WrongSigner": (
        "the signature is by another key, or for another chain or contract",
        "sign again with the right key",
    ),
    "ProviderHasNodes": ("the provider still has nodes", "remove all of them"),
    "StakeEnough": ("the provider's stake is enough", "nothing to do"),
    # pools
    "PoolUnknown": ("there is no such pool", "check the pool's number: intellect-node contract pool list"),
    "PoolOver": ("the pool has ended", "choose another pool"),
    "PoolStillOpen": (
        "what no table has may still be tabled, filed or redeemed",
        "wait until then; see: contract pool show",
    ),
    "PoolIsPaused": ("the pool is paused", "wait, or choose another pool"),
    "PoolNotPaused": ("the pool is not paused", "nothing to do"),
    "OnlyManager": ("only the pool's manager may do that", "use the manager's key"),
    "OnlyOpener": ("only who opened the pool may do that", "use the opener's key; see: contract pool show"),
    "RunAlreadyJoined": ("a node has joined the run already", "open a new pool for another run"),
    "PoolWithoutPay": ("the pool pays nothing, so it holds no money", "open one with a --reward"),
    "TextTooLong": ("a text is too long", "shorten it"),
    "BadTimes": ("the pool's times do not fit together", "lease >= epoch, none zero, none above 194 days"),
    "WindowTooShort": (
        "the window is too short for these contracts",
        "give a longer --window; see: contract params",
    ),
    "BadDelay": ("a table waits for a quarter to all of the window", "give another --delay"),
    "WindowExceedsUnbonding": ("stakes could leave before the window is over", "shorten the window or the epochs"),
    "BadQuorum": ("threshold and validators do not fit together", "1 <= threshold <= validators <= 16"),
    "BadValidator": ("a validator is listed twice, or is nobody", "correct the list of validators"),
    "NoProposal": ("nobody was proposed", "propose some: contract pool validators, or contract chair propose"),
    "TooEarly": ("it is too early", "wait until then"),
    "EscrowTooLarge": ("the pool cannot hold that much", "fund it with less"),
    "SlashTooHigh": (
        "a slash takes no more of a unit than it bonds",
        "give a smaller --slash; see: contract params",
    ),
    # members
    "NotMember": ("the node is not a member of the pool", "join the pool first"),
    "NotInvited": ("the pool takes invited nodes only", "ask its manager for a profile with an invitation"),
    "InvitationExpired": ("the invitation is over", "ask the pool's manager for another"),
    "InvitationSpent": (
        "no place of the invitation is left, or it was taken back",
        "ask the pool's manager for another",
    ),
    "NodeEvicted": ("the node was evicted from the pool", "join another pool; or appeal, if it was wrong"),
    "ProposalLapsed": ("the proposal has lapsed", "have the opener propose them again"),
    "NotItsJudges": ("the node left before these validators took office", "nothing to do: they do not reach it"),
    "BadAttestation": ("the attestation is too old, too long, or older than the last one", "attest again"),
    # the chair
    "AlreadySeated": ("the pool has trainers already", "propose others: intellect-node contract chair propose"),
    "NotSeated": ("the pool's manager trains, for good", "seat trainers first: intellect-node contract chair seat"),
    "BadTrainers": ("a pool has 1 to 8 trainers", "name fewer, or one"),
    "BadLease": ("lease and grace do not fit together", "grace <= lease <= 7 days, and the lease is not zero"),
    "NotATrainer": (
        "a trainer is listed twice, is none of the pool's, or is no member with a stake",
        "see: contract chair show; then join the pool",
    ),
    "NotTheHolder": ("another trainer holds the chair", "wait for its turn; see: contract chair show"),
    "OtherTerm": ("the chair is in another term, or was held since", "nothing to do: see contract chair show"),
    "TermIsOver": ("the term was ended, or its holder is no member with a stake", "join, and wait for the turn"),
    "NotInOrder": ("the words do not stand in falling order", "give the greatest step first"),
    "NothingFound": ("a verdict that accepts the step ends no term", "give the verdicts against it only"),
    "BadStep": ("a term takes back 64 policies at most", "give a later policy, or have the opener propose trainers"),
    # earnings
    "EpochNotLater": ("a table of this epoch or a later one is posted", "nothing to do: post the next one"),
    "NotMature": ("the epoch's window is not over", "post it later"),
    "TotalFalls": ("a later table never says less than an earlier one", "compute the table anew"),
    "EscrowTooSmall": ("the pool has too little money for this table", "fund the pool, then post it again"),
    "TooMuchForEpochs": ("the table says more than the pool pays in so many epochs", "compute the table anew"),
    "TooFewEpochs": ("a table covers at least the time that it waits", "wait for more epochs"),
    "TableWaits": ("another table waits until it counts", "wait until then"),
    "NoTableWaits": (
        "no table waits in this pool, nor anything that was filed",
        "see: intellect-node contract earnings show",
    ),
    "OnlyGuardian": ("only the pool's guardian may hold a table, or what was filed", "use the guardian's key"),
    "AlreadyHeld": ("it is held already, and once is all", "wait for the arbiter"),
    "NotHeld": ("the arbiter drops only what the guardian holds", "have the guardian hold it first"),
    "OtherSigners": ("these are not the signers of the table that waits", "take them from its event, in order"),
    "NothingToClaim": ("all of it was paid", "nothing to do: wait for the next table"),
    "CapacityUsed": ("the node was paid all that its size allows until now", "claim the rest in later epochs"),
    "NotNow": ("that has another time", "see: intellect-node contract earnings show"),
    "EpochNotToFile": ("a table has this epoch, or it came after the pool's end", "file the others only"),
    "NothingToFile": ("as much of this epoch is filed already", "nothing to do: redeem it later"),
    "NothingFiled": ("the node filed nothing, or that was redeemed or dropped", "nothing to do"),
    "OtherBench": ("these did not sit when the epoch began", "see: intellect-node contract earnings filing"),
    "BadLine": (
        "a line is not under its root, which is another pool's or epoch's, or stands in another order",
        "write the file anew: intellect-node contract earnings filing",
    ),
    "CaseNotFinal": ("the node was slashed, and that may still be overturned", "finalize its case first, or wait"),
    # judging
    "BadProof": (
        "this is no line of the pool's newest table",
        "take units and proof from the newest table",
    ),
    "AlreadyJudged": ("the file was already judged", "nothing to do"),
    "BadValues": ("there must be values for each signature", "give as many values as signatures"),
    "NotAValidator": ("a verdict is not by a validator of the pool, or not about this work", "leave that verdict out"),
    "ValidatorUnfit": (
        "a validator is not registered, was evicted here, or its stake is gone",
        "leave its verdict out, or have its provider register it and bond more",
    ),
    "DuplicateVerdict": ("a validator appears twice", "leave one of its verdicts out"),
    "QuorumMissing": ("too few verdicts", "wait for more validators"),
    "NoContradiction": ("the two statements do not contradict each other", "nothing to do"),
    "NotSlashed": ("the node was not slashed in this pool", "check node and pool"),
    # stake and its cases
    "ArbiterIsTreasury": ("the arbiter and the treasury must be two", "name another arbiter or treasury"),
    "ZeroAmount": ("the amount is zero", "give an amount"),
    "AmountTooLarge": ("the amount is too large", "give a smaller amount"),
    "StakeTooSmall": ("less than that is there", "give a smaller amount"),
    "NothingToWithdraw": ("nothing is unbonding", "unbond first: intellect-node contract unstake"),
    "NothingToCollect": ("the vault owes nothing to that address", "nothing to do"),
    "UnbondingTooShort": (
        "the unbonding is shorter than two appeals",
        "give a longer --unbonding, or a shorter --appeal",
    ),
    "BadShare": ("a share is more than all of it", "give at most 10000"),
    "StillUnbonding": ("the unbonding period is not over", "wait until then"),
    "CaseClosed": ("the case is closed, or there is none", "see: intellect-node contract case show"),
    "AlreadyAppealed": ("the case was appealed before", "wait for the arbiter"),
    "AppealOpen": ("the time for an appeal is not over", "finish it later"),
    "AppealOver": ("the time for an appeal is over", "nothing to do"),
    "OnlyProvider": ("only the provider whose stake it is may do that", "use that provider's key"),
    "OnlySuccessor": ("only who was named as the arbiter's successor may do that", "have the arbiter name you"),
    "SuccessorTooEarly": ("two appeals have to go by before the office changes hands", "wait until then"),
    "OnlyArbiter": ("only the arbiter may do that", "use the arbiter's key; see: contract params"),
    # tokens and signatures
    "TokenTakesFee": ("the token keeps a part of what is sent", "use a token that does not"),
    "FaucetCapExceeded": ("the faucet gives less at once", "ask for less"),
    "ECDSAInvalidSignature": ("a signature is malformed", "sign again"),
    "ECDSAInvalidSignatureLength": ("a signature is malformed", "sign again"),
    "ECDSAInvalidSignatureS": ("a signature is malleable (high s)", "sign again"),
}


# From web3's exceptions to this package's errors


def translate(error: Exception, action: str) -> ChainError:
    """The error to raise instead of `error`; action completes "cannot ..."."""
    if isinstance(error, ChainError):
        return error
    if isinstance(error, EndpointRefused):
        return _from_refusal(error, action)
    # web3 takes a second to import, and whoever reads a profile needs these errors, but no chain
    from web3.exceptions import BadFunctionCallOutput

    if isinstance(error, BadFunctionCallOutput):
        return RpcRefused(
            action,
            "the answer does not have the form of the contract's ABI",
            "ask whoever deployed the contracts: they may be of another version of this program, which "
            "`intellect-node contract source --verify` tells; if not, use another endpoint",
        )
    return RpcRefused(action, f"{type(error).__name__}: {str(error)[:300]}")


_REMEDIES: Mapping[RefusalKind, str] = {
    RefusalKind.QUOTA: "wait, or name another endpoint in rpc_urls of the network profile",
    RefusalKind.BEHIND: "wait: an endpoint that lags has the block soon; or name another one in rpc_urls",
    RefusalKind.PRUNED: "name an endpoint that keeps old states (an archive) in rpc_urls of the network profile",
    RefusalKind.UNSUPPORTED: "name an endpoint with this method in rpc_urls of the network profile",
    RefusalKind.RANGE: "name an endpoint that gives logs of more blocks in rpc_urls of the network profile",
}


def _from_refusal(refusal: EndpointRefused, action: str) -> ChainError:
    if refusal.kind is RefusalKind.REVERTED:
        return from_revert(revert_of(refusal.words, refusal.data), action)
    if refusal.kind is RefusalKind.FUNDS:
        remedy = "send the account some of the chain's coin for gas"
        return InsufficientFunds(f"cannot {action}", refusal.words[:300], remedy)
    place = f"{refusal.endpoint}: " if refusal.endpoint else ""
    remedies = {} if refusal.kind not in _REMEDIES else {"remedy": _REMEDIES[refusal.kind]}
    return RpcRefused(action, f"{place}{str(refusal)[:300]}", **remedies)


def from_revert(revert: Revert, action: str) -> ChainError:
    """The error that says why a contract refused."""
    args = revert.args
    if not args and revert.name in ("StakeTooLow", "ERC20InsufficientBalance"):
        return Reverted(action, revert.name, args)  # told in words only
    if revert.name == "StakeTooLow" and action.startswith("unbond"):
        left, needed = tokens(args["bonded"]), tokens(args["required"])
        why = f"{left} tokens would be left, the nodes of {args['provider']} need {needed}"
        return ChainError(
            f"cannot {action}", why, "unbond less, or remove nodes first: intellect-node contract node remove"
        )
    if revert.name == "StakeTooLow":
        return InsufficientStake(args["provider"], args["bonded"], args["required"])
    if revert.name == "ERC20InsufficientBalance":
        why = f"{args['sender']} has {tokens(args['balance'])} tokens and needs {tokens(args['needed'])}"
        return InsufficientFunds(
            f"cannot {action}", why, "get tokens first; on a test network: intellect-node contract faucet"
        )
    return Reverted(action, revert.name, args)
