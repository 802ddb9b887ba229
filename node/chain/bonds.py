"""The bond that whoever carries a slash puts up: how much it is, and where a node's daemon has it from.

The vault takes it from the account that sends the case, and that is the node's own: it has coin for gas, and no tokens
by itself. Its provider may let it take some (an allowance of the token, `contract node lend`): they stay the
provider's until a case needs them. What is won comes back to the node's account, and is put up first the next time.
"""

import msgspec

from contracts.bindings import Contracts
from node.chain.errors import InsufficientFunds, tokens
from protocol.identity import Address


class Bond(msgspec.Struct, frozen=True):
    """Token wei. needed: for a case; own: what the node's account has; allowed: what it may take of its provider's,
    provided: what that has."""

    node: Address
    provider: Address | None
    needed: int
    own: int
    allowed: int = 0
    provided: int = 0

    @property
    def borrowed(self) -> int:
        """What is to be taken of the provider's."""
        return max(self.needed - self.own, 0)

    @property
    def is_there(self) -> bool:
        return self.borrowed <= min(self.allowed, self.provided)

    @property
    def why(self) -> str:
        """What is there, and what is needed."""
        lent = f", and may take {tokens(min(self.allowed, self.provided))} of its provider's" if self.provider else ""
        return f"{self.node} has {tokens(self.own)} tokens{lent}, and needs {tokens(self.needed)}"

    def steps(self, common: str = "") -> list[str]:
        """What its provider types. common: how a command names the network and the key."""
        send = f"send {tokens(self.borrowed - self.provided)} of the network's tokens to {self.provider} (the provider)"
        lend = f"intellect-node contract node lend {self.node} {tokens(self.borrowed)}"
        return [*([send] if self.provided < self.borrowed else []), f"{lend} {common}".strip()]


def read_bond(contracts: Contracts, node: Address, provider: Address | None, slash: int) -> Bond:
    """Of a case that takes `slash` token wei. Blocks on the network."""
    needed, own = contracts.case_bond(slash), contracts.token_balance(node)
    if provider is None:
        return Bond(node, None, needed, own)
    return Bond(node, provider, needed, own, contracts.allowance(provider, node), contracts.token_balance(provider))


def require(bond: Bond) -> None:
    """Raises InsufficientFunds where it is not there."""
    if not bond.is_there:
        remedy = "; then ".join(bond.steps()) if bond.provider else "send the account some tokens"
        raise InsufficientFunds("there is no bond for the slash", bond.why, remedy)
