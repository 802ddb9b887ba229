// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base} from "../Base.sol";
import {StakeVault} from "../../src/StakeVault.sol";
import {TestToken} from "../../src/TestToken.sol";

/// A token of which there can be as much as the vault counts.
contract RichToken is TestToken {
    function mintAny(address to, uint256 amount) external {
        _mint(to, amount);
    }
}

contract BondTest is Base {
    function testFuzz_bonding_moves_exactly_the_tokens(uint96 amount) public {
        amount = uint96(_bounded(amount, 1, 1e24));
        uint256 before = token.balanceOf(address(vault));
        _bond(address(0xABC), amount);
        eq(vault.bondedOf(address(0xABC)), amount);
        eq(token.balanceOf(address(vault)), before + amount);
        eq(token.balanceOf(address(0xABC)), 0);
    }

    function test_anybody_bonds_for_a_provider() public {
        _give(anybody, 5 ether, address(vault));
        vm.prank(anybody);
        vault.bond(provider, 5 ether);
        eq(vault.bondedOf(provider), 105 ether);
        eq(vault.bondedOf(anybody), 0);
    }

    function test_nothing_for_nobody_and_too_much_are_refused() public {
        vm.expectPartialRevert(StakeVault.ZeroAmount.selector);
        vault.bond(provider, 0);
        vm.expectPartialRevert(StakeVault.ZeroAddress.selector);
        vault.bond(address(0), 1);
        vm.expectPartialRevert(StakeVault.AmountTooLarge.selector);
        vault.bond(provider, uint256(type(uint96).max) + 1);
    }

    function test_a_stake_holds_up_to_the_last_wei_that_its_type_counts() public {
        RichToken rich = new RichToken();
        _deploy(address(rich));
        rich.mintAny(anybody, type(uint256).max);
        vm.prank(anybody);
        rich.approve(address(vault), type(uint256).max);
        vm.prank(anybody);
        vault.bond(provider, type(uint96).max);
        eq(vault.bondedOf(provider), type(uint96).max);
        vm.prank(anybody);
        vm.expectRevert();
        vault.bond(provider, 1);
    }
}
