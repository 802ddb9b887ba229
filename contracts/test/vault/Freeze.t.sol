// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base} from "../Base.sol";
import {StakeVault} from "../../src/StakeVault.sol";

contract FreezeTest is Base {
    uint64 private finalAt;

    function setUp() public override {
        super.setUp();
        vm.prank(provider);
        vault.unbond(10 ether);
        _freeze(25 ether);
        eq(vault.caseCount(), 1);
        eq(vault.caseInfo(1).amount, 25 ether);
        eq(vault.caseInfo(1).pool, pool);
        eq(vault.caseInfo(1).finalAt, block.timestamp + APPEAL);
        finalAt = vault.caseInfo(1).finalAt;
    }

    function _freeze(uint256 amount) private returns (uint256 id, uint256 claimed) {
        vm.prank(address(swarm));
        return vault.freeze(provider, amount, uint32(pool), address(this));
    }

    function test_what_is_frozen_leaves_the_stake_at_once() public view {
        eq(_stake().unbonding, 0);
        eq(_stake().bonded, 75 ether);
        eq(_stake().frozen, 25 ether);
        yes(!vault.isFinal(1), "not final");
        yes(vault.isFinal(0), "no case is final");
    }

    function test_it_is_final_from_the_exact_second_on_and_pays_nobody_who_asks() public {
        vm.warp(finalAt - 1);
        vm.expectPartialRevert(StakeVault.AppealOpen.selector);
        vault.finalize(1);
        vm.warp(finalAt);
        vm.prank(anybody);
        vault.finalize(1);
        eq(_worth(anybody), 0);
        eq(vault.creditOf(address(this)), 6.25 ether + 0.5 ether);
        eq(_worth(vault.BURNED()), 12.25 ether);
        eq(_worth(treasury), 12.25 ether);
        eq(_stake().frozen, 0);
        yes(vault.isFinal(1), "final");
        vm.expectPartialRevert(StakeVault.CaseClosed.selector);
        vault.finalize(1);
    }

    function test_overturning_puts_everything_where_it_was() public {
        vm.warp(finalAt - 1);
        vm.prank(address(swarm));
        eq(vault.overturn(1), 6.25 ether * 9 / 10);
        eq(_stake().unbonding, 10 ether);
        eq(_stake().bonded, 90 ether);
        eq(_stake().frozen, 0);
        yes(!vault.isFinal(1), "overturned is not final");
        vm.prank(address(swarm));
        vm.expectPartialRevert(StakeVault.CaseClosed.selector);
        vault.overturn(1);
        vm.warp(finalAt);
        vm.expectPartialRevert(StakeVault.CaseClosed.selector);
        vault.finalize(1);
    }

    function test_a_case_that_is_over_claims_nothing_of_the_next_one() public {
        for (uint256 i = 0; i < 2; ++i) {
            if (i == 0) vm.warp(finalAt);
            if (i == 0) vault.finalize(1);
            (uint256 id,) = _freeze(25 ether);
            vm.prank(address(swarm));
            vault.overturn(id);
            eq(_stake().bonded, 75 ether);
            eq(_stake().frozen, 0);
        }
    }

    function test_no_case_takes_more_than_there_is() public {
        (uint256 id, uint256 claimed) = _freeze(100 ether + 1);
        eq(vault.caseInfo(id).bond, 25 ether);
        eq(claimed, 100 ether);
        eq(_stake().bonded, 0);
    }

    function test_what_is_final_is_not_overturned() public {
        vm.warp(finalAt);
        vm.prank(address(swarm));
        vm.expectPartialRevert(StakeVault.AppealOver.selector);
        vault.overturn(1);
    }

    function test_the_provider_appeals_once_and_in_time() public {
        vm.expectPartialRevert(StakeVault.OnlyProvider.selector);
        vault.appeal(1);
        vm.warp(finalAt - 1);
        _give(provider, 6.25 ether, address(vault));
        vm.prank(provider);
        vault.appeal(1);
        eq(token.balanceOf(provider), 0);
        eq(vault.caseInfo(1).finalAt, finalAt - 1 + APPEAL);
        vm.warp(finalAt);
        vm.expectPartialRevert(StakeVault.AppealOpen.selector);
        vault.finalize(1);
        vm.prank(provider);
        vm.expectPartialRevert(StakeVault.AlreadyAppealed.selector);
        vault.appeal(1);
        vm.warp(finalAt - 1 + APPEAL);
        vault.finalize(1);
        vm.prank(provider);
        vm.expectPartialRevert(StakeVault.CaseClosed.selector);
        vault.appeal(1);
    }

    function test_a_late_appeal_is_refused() public {
        vm.warp(finalAt);
        vm.prank(provider);
        vm.expectPartialRevert(StakeVault.AppealOver.selector);
        vault.appeal(1);
    }

    function test_the_arbiters_successor_accepts_after_two_appeals() public {
        vm.expectPartialRevert(StakeVault.OnlyArbiter.selector);
        vault.nameSuccessor(anybody);
        vm.prank(arbiter);
        vm.expectPartialRevert(StakeVault.ArbiterIsTreasury.selector);
        vault.nameSuccessor(treasury);
        vm.prank(arbiter);
        vault.nameSuccessor(anybody);
        uint256 from = block.timestamp + 2 * APPEAL;
        vm.warp(from - 1);
        vm.prank(anybody);
        vm.expectRevert(abi.encodeWithSelector(StakeVault.SuccessorTooEarly.selector, from));
        vault.acceptArbiter();
        vm.warp(from);
        vm.expectPartialRevert(StakeVault.OnlySuccessor.selector);
        vault.acceptArbiter();
        eq(vault.arbiter(), arbiter);
        vm.prank(anybody);
        vault.acceptArbiter();
        eq(vault.arbiter(), anybody);
        eq(vault.successor(), address(0));
        vm.prank(anybody);
        vm.expectPartialRevert(StakeVault.OnlySuccessor.selector);
        vault.acceptArbiter();
    }

    /// Whoever has the arbiter's key for a while names itself; the arbiter, who sees it, names nobody.
    function test_naming_anew_undoes_what_a_thief_named() public {
        vm.prank(arbiter);
        vault.nameSuccessor(anybody);
        vm.warp(block.timestamp + 2 * APPEAL);
        vm.prank(arbiter);
        vault.nameSuccessor(address(0));
        vm.prank(anybody);
        vm.expectPartialRevert(StakeVault.OnlySuccessor.selector);
        vault.acceptArbiter();
        vm.prank(arbiter);
        vault.nameSuccessor(provider); // and the clock starts again
        vm.prank(provider);
        vm.expectPartialRevert(StakeVault.SuccessorTooEarly.selector);
        vault.acceptArbiter();
    }
}
