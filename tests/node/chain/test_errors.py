"""Every way in which a contract says no has words and a remedy."""

import pytest

from contracts.bindings import artifact
from node.chain.errors import Reverted

CONTRACTS = ("TestToken", "StakeVault", "Swarm", "Court")
# raised at birth, between our own contracts, or by OpenZeppelin for what our callers cannot bring about
INTERNAL = {
    "BadShare",
    "CourtAlreadySet",
    "SwarmAlreadySet",
    "OnlyCourt",
    "OnlyVault",
    "OnlyDeployer",
    "OnlySwarm",
    "ZeroAddress",
    "InvalidShortString",
    "StringTooLong",
    "ReentrancyGuardReentrantCall",
    "SafeERC20FailedOperation",
    "InvalidAccountNonce",
    "ERC20InvalidApprover",
    "ERC20InvalidReceiver",
    "ERC20InvalidSender",
    "ERC20InvalidSpender",
    "ERC20InsufficientAllowance",
    "ERC2612ExpiredSignature",
    "ERC2612InvalidSigner",
}
TOLD_APART = {"StakeTooLow", "ERC20InsufficientBalance"}


@pytest.mark.parametrize("contract", CONTRACTS)
def test_every_error_of_a_contract_is_explained(contract: str) -> None:
    names = {entry["name"] for entry in artifact(contract)["abi"] if entry["type"] == "error"}
    unexplained = {name for name in names if Reverted("act", name, {}).remedy == "read the contract's error"}
    assert unexplained <= INTERNAL | TOLD_APART
