// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base} from "../Base.sol";
import {StakeVault} from "../../src/StakeVault.sol";

contract VaultSlashTest is Base {
    function test_only_the_swarm() public {
        vm.expectPartialRevert(StakeVault.OnlySwarm.selector);
        vault.slash(provider, 1);
        vm.expectPartialRevert(StakeVault.OnlySwarm.selector);
        vault.freeze(provider, 1, 1, address(this));
        vm.expectPartialRevert(StakeVault.OnlySwarm.selector);
        vault.overturn(1);
    }

    function test_a_slash_is_split_between_fire_and_treasury() public {
        vm.prank(address(swarm));
        eq(vault.slash(provider, 40 ether), 40 ether);
        eq(_worth(vault.BURNED()), 20 ether);
        eq(_worth(treasury), 20 ether);
        eq(_stake().bonded, 60 ether);
    }

    function testFuzz_no_slash_takes_more_than_what_is_there(uint96 unbonding, uint256 amount) public {
        unbonding = uint96(_bounded(unbonding, 1, 80 ether));
        vm.prank(provider);
        vault.unbond(unbonding);
        vm.prank(address(swarm));
        uint256 taken = vault.slash(provider, amount);
        eq(taken, amount < 100 ether ? amount : 100 ether);
        uint256 fromUnbonding = taken < unbonding ? taken : unbonding;
        eq(_stake().unbonding, unbonding - fromUnbonding);
        eq(_stake().bonded, 100 ether - unbonding - (taken - fromUnbonding));
        eq(_worth(vault.BURNED()) + _worth(treasury), taken);
    }

    function test_what_is_not_there_is_not_taken() public {
        address poor = address(0xABC);
        _bond(poor, 7 ether);
        vm.prank(address(swarm));
        eq(vault.slash(poor, 40 ether), 7 ether);
        vm.prank(address(swarm));
        eq(vault.slash(poor, 40 ether), 0);
    }
}
