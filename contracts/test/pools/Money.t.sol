// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base} from "../Base.sol";
import {Payroll} from "../../src/Payroll.sol";
import {Pools} from "../../src/Pools.sol";
import {TestToken} from "../../src/TestToken.sol";

contract PoolMoneyTest is Base {
    function test_opening_takes_nothing() public {
        uint256 before = token.balanceOf(address(payroll));
        uint256 id = _open(_params());
        eq(token.balanceOf(address(payroll)), before);
        eq(_poolInfo(id).escrow, 0);
        eq(id, 2);
    }

    function test_less_than_a_unit_or_a_pool_without_pay_take_nothing() public {
        vm.expectPartialRevert(Payroll.ZeroAmount.selector);
        payroll.fund(pool, RATE - 1);
        Pools.PoolParams memory params = _params();
        params.rewardPerUnit = 0;
        uint256 id = _open(params);
        vm.expectRevert(abi.encodeWithSelector(Payroll.PoolWithoutPay.selector, id));
        payroll.fund(id, 1 ether);
        vm.expectPartialRevert(Pools.PoolUnknown.selector);
        payroll.fund(99, 1 ether);
    }

    function test_what_is_owed_counts_towards_the_limit_of_the_escrow() public {
        Pools.PoolParams memory params = _params();
        params.rewardPerUnit = 1;
        _startIn(_open(params));
        _fund(pool, 1000);
        _earn(0, 400);
        uint256 room = uint256(type(uint56).max) - 1000;
        _give(manager, room + 1, address(payroll));
        vm.prank(manager);
        vm.expectRevert(abi.encodeWithSelector(Payroll.EscrowTooLarge.selector, room + 1));
        payroll.fund(pool, room + 1);
        vm.prank(manager);
        payroll.fund(pool, room);
        eq(_info().escrow, room + 600);
        eq(_info().owed, 400);
    }

    function testFuzz_funding_takes_whole_units_only(uint96 rate, uint256 amount) public {
        Pools.PoolParams memory params = _params();
        params.rewardPerUnit = uint96(_bounded(rate, 1, 1e20));
        amount = _bounded(amount, params.rewardPerUnit, 1e22 > params.rewardPerUnit ? 1e22 : params.rewardPerUnit);
        uint256 id = _open(params);
        _give(anybody, amount, address(payroll));
        uint256 units = amount / params.rewardPerUnit;
        vm.prank(anybody);
        if (units > type(uint56).max) vm.expectPartialRevert(Payroll.EscrowTooLarge.selector);
        payroll.fund(id, amount);
        if (units > type(uint56).max) return;
        eq(_poolInfo(id).escrow, units * params.rewardPerUnit);
        eq(token.balanceOf(anybody), amount % params.rewardPerUnit);
    }

    function test_the_escrow_fills_up_to_its_last_unit() public {
        Pools.PoolParams memory params = _params();
        params.rewardPerUnit = 1;
        uint256 id = _open(params);
        _fund(id, 1000);
        _give(manager, type(uint56).max, address(payroll));
        vm.prank(manager);
        vm.expectPartialRevert(Payroll.EscrowTooLarge.selector);
        payroll.fund(id, uint256(type(uint56).max) - 999);
        vm.prank(manager);
        payroll.fund(id, uint256(type(uint56).max) - 1000);
        eq(_poolInfo(id).escrow, type(uint56).max);
        eq(_poolInfo(id).owed, 0);
        eq(_poolInfo(id).startedAt, block.timestamp);
    }

    /// The manager's key lies on a machine of the swarm; the money comes back to the one that paid.
    function test_what_is_left_goes_to_who_opened_the_pool_and_not_to_its_manager() public {
        address opener = address(0x0FE2);
        _give(opener, 5 ether, address(payroll));
        Pools.PoolParams memory params = _params();
        vm.prank(opener);
        uint256 id = swarm.createPool(params);
        vm.prank(opener);
        payroll.fund(id, 5 ether);
        eq(uint160(_poolInfo(id).opener), uint160(opener));
        vm.prank(anybody);
        vm.expectPartialRevert(Pools.OnlyOpener.selector);
        swarm.endPool(id);
        vm.prank(opener);
        swarm.endPool(id);
        vm.warp(block.timestamp + 1000 days);
        uint256 before = token.balanceOf(manager);
        vm.prank(manager);
        payroll.sweep(id);
        eq(token.balanceOf(opener), 5 ether);
        eq(token.balanceOf(manager), before);
    }
}
