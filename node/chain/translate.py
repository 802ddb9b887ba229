"""From web3's exceptions to this package's errors."""

from web3.exceptions import BadFunctionCallOutput, ContractLogicError, Web3Exception, Web3RPCError

from contracts.bindings import Revert, parse_revert
from node.chain.errors import ChainError, InsufficientFunds, InsufficientStake, Reverted, RpcRefused, tokens


def translate(error: Exception, action: str) -> ChainError:
    """The error to raise instead of `error`; action completes "cannot ..."."""
    if isinstance(error, ChainError):
        return error
    if isinstance(error, ContractLogicError):
        return from_revert(_revert_of(error), action)
    if isinstance(error, BadFunctionCallOutput):
        return RpcRefused(action, "the answer does not have the form of the contract's ABI")
    if isinstance(error, Web3RPCError):
        return _from_rpc(str(error.message or error), action)
    return RpcRefused(action, f"{type(error).__name__}: {str(error)[:300]}")


def from_revert(revert: Revert, action: str, transaction: str | None = None) -> ChainError:
    """The error that says why a contract refused."""
    args = revert.args
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
    return Reverted(action, revert.name, args, transaction)


def _revert_of(error: ContractLogicError) -> Revert:
    data = error.data
    if isinstance(data, str) and data.startswith("0x"):
        try:
            revert = parse_revert(bytes.fromhex(data[2:]))
        except ValueError:
            revert = None
        if revert is not None:
            return revert
    return Revert("unknown", {"message": str(error.message or data or "")[:200]})


def _from_rpc(message: str, action: str) -> ChainError:
    if "insufficient funds" in message.lower():
        return InsufficientFunds(f"cannot {action}", message[:300], "send the account some of the chain's coin for gas")
    return RpcRefused(action, message[:300])


EXPECTED: tuple[type[Exception], ...] = (Web3Exception, ValueError, TypeError, KeyError)
"""What web3 raises for bad answers, besides what our provider raises."""
