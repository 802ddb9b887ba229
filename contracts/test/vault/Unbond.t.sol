// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base} from "../Base.sol";
import {StakeVault} from "../../src/StakeVault.sol";

contract UnbondTest is Base {
    function testFuzz_down_to_what_the_nodes_need_and_no_further(uint96 amount) public {
        amount = uint96(_bounded(amount, 1, 100 ether));
        vm.prank(provider);
        if (amount > 80 ether) vm.expectPartialRevert(StakeVault.StakeTooLow.selector);
        vault.unbond(amount);
        if (amount > 80 ether) return;
        eq(_stake().bonded, 100 ether - amount);
        eq(_stake().unbonding, amount);
        eq(_stake().withdrawableAt, block.timestamp + UNBONDING);
    }

    function test_the_refusal_says_what_would_be_left_and_what_is_needed() public {
        vm.prank(provider);
        vm.expectRevert(abi.encodeWithSelector(StakeVault.StakeTooLow.selector, provider, 20 ether - 1, 20 ether));
        vault.unbond(80 ether + 1);
    }

    function test_all_of_it_once_no_node_is_left() public {
        vm.prank(provider);
        swarm.removeNode(node);
        vm.prank(provider);
        vault.unbond(100 ether);
        eq(_stake().bonded, 0);
    }

    function test_more_than_there_is_and_nothing_are_refused() public {
        vm.expectPartialRevert(StakeVault.StakeTooSmall.selector);
        vm.prank(provider);
        vault.unbond(100 ether + 1);
        vm.expectPartialRevert(StakeVault.ZeroAmount.selector);
        vault.unbond(0);
    }

    function test_a_second_unbonding_restarts_the_one_clock() public {
        vm.prank(provider);
        vault.unbond(10 ether);
        vm.warp(block.timestamp + 100);
        vm.prank(provider);
        vault.unbond(5 ether);
        eq(_stake().unbonding, 15 ether);
        eq(_stake().withdrawableAt, block.timestamp + UNBONDING);
    }

    function test_a_part_can_be_bonded_again() public {
        vm.prank(provider);
        vault.unbond(10 ether);
        vm.prank(provider);
        vault.rebond(4 ether);
        eq(_stake().bonded, 94 ether);
        eq(_stake().unbonding, 6 ether);
        vm.prank(provider);
        vm.expectPartialRevert(StakeVault.StakeTooSmall.selector);
        vault.rebond(6 ether + 1);
        vm.expectPartialRevert(StakeVault.ZeroAmount.selector);
        vault.rebond(0);
        vm.prank(provider);
        vault.rebond(6 ether);
        eq(_stake().bonded, 100 ether);
    }
}
