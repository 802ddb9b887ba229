// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base} from "../Base.sol";
import {StakeVault} from "../../src/StakeVault.sol";

contract WithdrawTest is Base {
    function test_from_the_exact_second_on() public {
        vm.prank(provider);
        vault.unbond(10 ether);
        uint256 ready = block.timestamp + UNBONDING;
        vm.warp(ready - 1);
        vm.prank(provider);
        vm.expectPartialRevert(StakeVault.StillUnbonding.selector);
        vault.withdraw();
        vm.warp(ready);
        vm.prank(provider);
        vault.withdraw();
        eq(token.balanceOf(provider), 10 ether);
        eq(_stake().unbonding, 0);
        eq(_stake().bonded, 90 ether);
        vm.prank(provider);
        vm.expectPartialRevert(StakeVault.NothingToWithdraw.selector);
        vault.withdraw();
    }

    function test_neither_a_pause_nor_an_end_stops_it() public {
        vm.prank(provider);
        vault.unbond(10 ether);
        vm.prank(manager);
        swarm.pausePool(pool);
        vm.prank(manager);
        swarm.endPool(pool);
        vm.warp(block.timestamp + UNBONDING);
        vm.prank(provider);
        vault.withdraw();
        eq(token.balanceOf(provider), 10 ether);
    }
}
