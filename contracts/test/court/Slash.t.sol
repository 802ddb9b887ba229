// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base, Sign} from "../Base.sol";
import {Court} from "../../src/Court.sol";
import {Members} from "../../src/Members.sol";
import {Nodes} from "../../src/Nodes.sol";
import {Pools} from "../../src/Pools.sol";
import {StakeVault} from "../../src/StakeVault.sol";
import {WorkCommitment, WrongSigner} from "../../src/Statements.sol";
import {Swarm} from "../../src/Swarm.sol";

contract SlashTest is Base {
    function test_once_final_the_arbiter_cannot_help() public {
        _slash(_file(0, 1));
        vm.warp(block.timestamp + APPEAL);
        vm.prank(arbiter);
        vm.expectPartialRevert(StakeVault.AppealOver.selector);
        swarm.overturn(pool, node);
    }

    function test_whoever_is_slashed_is_in_no_pool_and_has_no_lease() public {
        _slash(_file(0, 1));
        eq(swarm.nodeInfo(node).pool, 0);
        eq(swarm.nodeInfo(node).leaseUntil, 0);
        yes(swarm.memberInfo(pool, node).left, "no member");
        eq(swarm.memberInfo(pool, node).slashedAt, block.timestamp);
        eq(swarm.memberInfo(pool, node).caseId, 1);
    }

    function test_whoever_convicted_itself_is_in_no_pool_either() public {
        _contradict();
        eq(swarm.nodeInfo(node).pool, 0);
        eq(swarm.nodeInfo(node).leaseUntil, 0);
    }

    function test_a_slash_in_one_pool_leaves_the_membership_in_another() public {
        uint256 id = _open(_params());
        vm.prank(node);
        swarm.join(id, "");
        _slash(_file(0, 1));
        eq(swarm.nodeInfo(node).pool, id);
        eq(swarm.nodeInfo(node).leaseUntil, block.timestamp + LEASE);
        yes(!swarm.memberInfo(id, node).evicted, "not there");
    }

    /// The Court asks first, and the Swarm does not rely on it.
    function test_nobody_stands_behind_an_unknown_key_so_nothing_is_taken() public {
        vm.prank(address(court));
        vm.expectRevert(abi.encodeWithSelector(Nodes.NodeUnknown.selector, anybody));
        swarm.punishByEvidence(pool, anybody, 4, ROOT);
        yes(!swarm.memberInfo(pool, anybody).evicted, "no trace");
    }

    function test_a_key_is_slashed_once_per_pool_by_judges_and_once_by_its_own_signatures() public {
        _slash(_file(0, 1));
        this.tryAgain();
        _contradict();
        eq(_stake().bonded, 100 ether - 2 * uint256(SLASH));
        eq(_stake().frozen, SLASH);
        vm.expectPartialRevert(Members.NodeEvicted.selector);
        this.contradict();
        this.tryAgain();
    }

    function tryAgain() external {
        WorkCommitment memory c = _file(1, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        vm.expectPartialRevert(Members.NodeEvicted.selector);
        court.slash(c, own, 5, verdicts, _blank(verdicts), 0);
    }

    function contradict() external {
        _contradict();
    }

    function test_judges_do_not_slash_in_a_pool_that_is_over() public {
        vm.prank(manager);
        swarm.endPool(pool);
        vm.warp(_matures(0));
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        vm.expectPartialRevert(Pools.PoolOver.selector);
        court.slash(c, own, 5, verdicts, _blank(verdicts), 0);
        _contradict(); // but the node's own signatures do
    }

    function test_commitments_that_do_not_contradict_are_no_evidence() public {
        for (uint256 i = 0; i < 5; ++i) {
            WorkCommitment memory first = _file(0, 10);
            WorkCommitment memory second = _file(0, 10);
            second.fileRoot = bytes32(uint256(1));
            if (i == 0) second.pool = pool + 1;
            if (i == 1) second.node = anybody;
            if (i == 2) second.policyRoot = bytes32(uint256(9));
            if (i == 3) second.index = 1;
            if (i == 4) second.fileRoot = first.fileRoot;
            bytes memory one = _sign(nodeKey, Sign.commitment(first));
            bytes memory two = _sign(nodeKey, Sign.commitment(second));
            vm.expectPartialRevert(Court.NoContradiction.selector);
            court.evidence([first, second], [one, two]);
        }
    }

    function test_evidence_needs_both_signatures_of_the_node() public {
        WorkCommitment memory first = _file(0, 10);
        WorkCommitment memory second = _file(0, 11);
        bytes memory one = _sign(nodeKey, Sign.commitment(first));
        bytes memory two = _sign(nodeKey, Sign.commitment(second));
        bytes memory forged = _sign(judgeKeys[0], Sign.commitment(first));
        vm.expectPartialRevert(WrongSigner.selector);
        court.evidence([first, second], [forged, two]);
        vm.expectPartialRevert(WrongSigner.selector);
        court.evidence([first, second], [one, one]);
    }

    function test_a_verdict_over_other_units_counts_for_nothing() public {
        WorkCommitment memory c = _file(0, 10);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        verdicts[1] = _sign(judgeKeys[1], Sign.verdict(_file(0, 11), 2, 5));
        vm.expectPartialRevert(Court.NotAValidator.selector);
        court.slash(c, own, 5, verdicts, _blank(verdicts), 0);
        eq(_stake().bonded, 100 ether);
    }

    function test_who_never_joined_is_not_slashed() public {
        _register(provider, 0xD00D, 1);
        WorkCommitment memory c = _file(0, 1);
        c.node = vm.addr(0xD00D);
        bytes memory own = _sign(0xD00D, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        vm.expectPartialRevert(Members.NotMember.selector);
        court.slash(c, own, 5, verdicts, _blank(verdicts), 0);
        WorkCommitment memory other = _file(0, 1);
        other.node = c.node;
        other.fileRoot = bytes32(uint256(1));
        bytes memory second = _sign(0xD00D, Sign.commitment(other));
        vm.expectPartialRevert(Court.NotMember.selector);
        court.evidence([c, other], [own, second]);
    }

    // ---- verdicts of which each says its own

    function test_judges_may_have_found_different_values_and_some_on_looking_again() public {
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes32[] memory values = new bytes32[](2);
        (values[0], values[1]) = (bytes32(uint256(7)), bytes32(uint256(8)));
        bytes[] memory signatures = new bytes[](2);
        signatures[0] = _sign(judgeKeys[0], Sign.said(Sign.VERDICT, c, 2, 5, values[0]));
        signatures[1] = _sign(judgeKeys[1], Sign.said(Sign.RECHECKED, c, 2, 5, values[1]));
        for (uint256 bits = 0; bits < 4; ++bits) {
            if (bits == 2) continue;
            vm.expectPartialRevert(Court.NotAValidator.selector);
            court.slash(c, own, 5, signatures, values, bits);
        }
        (values[0], values[1]) = (values[1], values[0]);
        vm.expectPartialRevert(Court.NotAValidator.selector);
        court.slash(c, own, 5, signatures, values, 2);
        (values[0], values[1]) = (values[1], values[0]);
        vm.expectPartialRevert(Court.NotAValidator.selector);
        court.slash(c, own, 6, signatures, values, 2);
        court.slash(c, own, 5, signatures, values, 2);
        eq(_stake().frozen, SLASH);
    }

    function test_one_judge_that_said_both_is_counted_once() public {
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory signatures = new bytes[](2);
        signatures[0] = _sign(judgeKeys[0], Sign.verdict(c, 2, 5));
        signatures[1] = _sign(judgeKeys[0], Sign.said(Sign.RECHECKED, c, 2, 5, 0));
        bytes32[] memory values = new bytes32[](2);
        vm.expectRevert(abi.encodeWithSelector(Court.DuplicateVerdict.selector, vm.addr(judgeKeys[0])));
        court.slash(c, own, 5, signatures, values, 2);
        vm.expectRevert(abi.encodeWithSelector(Court.BadValues.selector, 1, 2));
        court.slash(c, own, 5, signatures, new bytes32[](1), 2);
    }

    function test_a_rejection_does_not_slash() public {
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 1, 5));
        vm.expectPartialRevert(Court.NotAValidator.selector);
        court.slash(c, own, 5, verdicts, _blank(verdicts), 0);
    }

    // ---- judges who were wrong

    function test_an_overturned_slash_gives_back_what_it_took_and_moves_no_other_stake() public {
        _slash(_file(0, 1));
        vm.expectPartialRevert(Swarm.OnlyArbiter.selector);
        swarm.overturn(pool, node);
        vm.warp(block.timestamp + APPEAL - 1);
        vm.prank(arbiter);
        swarm.overturn(pool, node);
        eq(_stake().bonded, 100 ether);
        eq(vault.creditOf(provider), PUT - PUT / 10);
        eq(vault.creditOf(vault.BURNED()), PUT / 10);
        eq(vault.bondedOf(address(0x5005)), 30 ether);
        eq(_info().escrow, ESCROW); // none of it is the pool's
        vm.prank(node);
        swarm.join(pool, "");
        vm.prank(arbiter);
        vm.expectPartialRevert(Swarm.NotSlashed.selector);
        swarm.overturn(pool, node);
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        vm.expectPartialRevert(Court.AlreadyJudged.selector);
        court.slash(c, own, 5, verdicts, _blank(verdicts), 0);
    }

    function test_who_carries_a_slash_puts_up_a_quarter_of_it_and_without_that_carries_nothing() public {
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        _give(anybody, PUT - 1, address(vault));
        vm.prank(anybody);
        vm.expectRevert();
        court.slash(c, own, 5, verdicts, _blank(verdicts), 0);
        eq(_stake().bonded, 100 ether);
        _give(anybody, 1, address(vault));
        vm.prank(anybody);
        token.approve(address(vault), PUT);
        vm.prank(anybody);
        court.slash(c, own, 5, verdicts, _blank(verdicts), 0);
        eq(token.balanceOf(anybody), 0);
        eq(vault.caseInfo(1).carrier, anybody);
        vm.warp(block.timestamp + APPEAL);
        vault.finalize(1);
        vault.collect(anybody);
        eq(token.balanceOf(anybody), PUT + SLASH / 50);
        vm.expectRevert(abi.encodeWithSelector(StakeVault.NothingToCollect.selector, anybody));
        vault.collect(anybody);
    }

    function test_a_case_against_who_has_nothing_still_costs_the_least_bond() public {
        vm.prank(address(swarm));
        vault.slash(provider, 100 ether);
        _slash(_file(0, 1));
        eq(vault.caseInfo(1).amount, 0);
        eq(vault.caseInfo(1).bond, 1 ether);
    }

    function test_who_is_right_gets_both_bonds_less_a_tenth_of_the_losers() public {
        for (uint256 i = 0; i < 2; ++i) {
            _startIn(_open(_params()));
            _slash(_file(0, 1));
            _give(provider, PUT, address(vault));
            vm.prank(provider);
            vault.appeal(i + 1);
            uint256 burned = vault.creditOf(vault.BURNED());
            if (i == 0) {
                vm.prank(arbiter);
                swarm.overturn(pool, node);
                eq(vault.creditOf(provider), 2 * PUT - PUT / 10);
                eq(vault.creditOf(address(this)), 0);
                eq(vault.creditOf(vault.BURNED()), PUT / 10);
            } else {
                vm.warp(block.timestamp + APPEAL);
                vault.finalize(2);
                eq(vault.creditOf(provider), 2 * PUT - PUT / 10); // of the first one
                eq(vault.creditOf(address(this)), 2 * PUT - PUT / 10 + SLASH / 50);
                eq(vault.creditOf(vault.BURNED()), burned + PUT / 10 + SLASH * 49 / 100);
            }
        }
    }
}
