"""Every way in which a contract says no has words and a remedy."""

import pytest

from contracts.bindings import artifact
from node.chain.errors import InsufficientStake, Reverted

CONTRACTS = ("TestToken", "StakeVault", "Swarm", "Court", "Payroll", "Chair")
# raised at birth, between our own contracts, or by OpenZeppelin for what our callers cannot bring about
INTERNAL = {
    "CourtAlreadySet",
    "SwarmAlreadySet",
    "OnlyCourt",
    "OnlyVault",
    "OnlyDeployer",
    "OnlyPayroll",
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


@pytest.mark.parametrize("contract", CONTRACTS)
def test_points_in_time_are_told_as_times(contract: str) -> None:
    """Whoever withdraws too early is told when, and not a number of seconds since 1970."""
    noon = 1_795_348_800
    for entry in artifact(contract)["abi"]:
        for one in entry["inputs"] if entry["type"] == "error" else ():
            if one["name"].lower().endswith(("at", "until", "from", "deadline")) and one["type"].startswith("uint"):
                why = Reverted("act", entry["name"], {one["name"]: noon}).why
                assert f"{one['name']} 2026-11-22 12:00:00 UTC" in why


def test_a_time_that_no_calendar_has_is_told_as_it_is() -> None:
    assert f"withdrawableAt second {2**64 - 1}" in Reverted("act", "StillUnbonding", {"withdrawableAt": 2**64 - 1}).why


def test_a_stake_that_is_too_low_names_the_command_with_its_amount() -> None:
    low = InsufficientStake("0x" + "1" * 40, 5 * 10**18, 20 * 10**18)
    assert low.remedy.endswith("intellect-node contract stake 15")
