// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base, Sign} from "../Base.sol";
import {Court} from "../../src/Court.sol";
import {Members} from "../../src/Members.sol";
import {Nodes} from "../../src/Nodes.sol";
import {Pools} from "../../src/Pools.sol";
import {StakeVault} from "../../src/StakeVault.sol";
import {Verdict, WorkCommitment} from "../../src/Statements.sol";
import {Swarm} from "../../src/Swarm.sol";
import {Work} from "../../src/Work.sol";

contract SlashTest is Base {
    function test_mature_work_is_spared_and_the_rest_is_released_once_the_slash_is_final() public {
        _commit(0, ROOT, 1000);
        vm.warp(block.timestamp + EPOCH);
        _commit(1, ROOT, 2000);
        vm.warp(_matures(0));
        _slash(_file(0, 1));
        _settle(0);
        eq(token.balanceOf(provider), 1 ether);
        vm.warp(_matures(1));
        vm.expectPartialRevert(Work.WorkIsVoided.selector);
        this.settleOne(1);
        vm.expectPartialRevert(Work.NotVoided.selector);
        swarm.release(pool, node, 1);
        vm.warp(block.timestamp + APPEAL);
        vault.finalize(1);
        swarm.release(pool, node, 1);
        eq(_info().reserved, 0);
        eq(_info().escrow, ESCROW - 1 ether);
        vm.expectPartialRevert(Work.NothingCommitted.selector);
        swarm.release(pool, node, 1);
    }

    function settleOne(uint64 epoch) external {
        _settle(epoch);
    }

    function test_only_voided_work_is_released() public {
        _commit(0, ROOT, 1000);
        vm.expectPartialRevert(Work.NotVoided.selector);
        swarm.release(pool, node, 0);
        vm.warp(_matures(0));
        vm.expectPartialRevert(Work.NotVoided.selector);
        swarm.release(pool, node, 0);
    }

    function test_an_overturned_slash_leaves_no_trace_and_costs_the_pool_its_bond() public {
        _commit(0, ROOT, 1000);
        _slash(_file(0, 1));
        vm.expectPartialRevert(Swarm.OnlyArbiter.selector);
        swarm.overturn(pool, node);
        vm.warp(block.timestamp + APPEAL - 1);
        vm.prank(arbiter);
        swarm.overturn(pool, node);
        eq(_stake().bonded, 100 ether);
        eq(token.balanceOf(provider), POOL_BOND);
        eq(_info().bond, 0);
        vm.prank(node);
        swarm.join(pool, "");
        vm.warp(_matures(0));
        _settle(0);
        eq(token.balanceOf(provider), POOL_BOND + 1 ether);
        vm.prank(arbiter);
        vm.expectPartialRevert(Swarm.NotSlashed.selector);
        swarm.overturn(pool, node);
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        vm.expectPartialRevert(Court.AlreadyJudged.selector);
        court.slash(c, own, 5, verdicts);
    }

    function test_a_case_that_was_overturned_keeps_no_bond_ready() public {
        _slash(_file(0, 1));
        vm.prank(arbiter);
        swarm.overturn(pool, node);
        _slash(_file(1, 1));
        eq(_info().bond, POOL_BOND);
        eq(_info().escrow, ESCROW - POOL_BOND);
    }

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
        eq(swarm.memberInfo(pool, node).leaseUntil, 0);
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
        eq(_stake().bonded, 0);
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
        court.slash(c, own, 5, verdicts);
    }

    function test_what_judges_voided_and_its_own_signatures_too_stays_void_if_the_judges_were_wrong() public {
        _commit(0, ROOT, 1000);
        _slash(_file(0, 1));
        vm.warp(block.timestamp + EPOCH);
        _contradict();
        vm.prank(arbiter);
        swarm.overturn(pool, node);
        yes(_work(0).voided, "voided");
        vm.prank(node);
        vm.expectPartialRevert(Members.NodeEvicted.selector);
        swarm.join(pool, "");
        swarm.release(pool, node, 0);
        eq(_info().escrow, ESCROW);
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
        court.slash(c, own, 5, verdicts);
        _contradict(); // but the node's own signatures do
    }

    function test_evidence_is_final() public {
        _commit(0, ROOT, 1000);
        _contradict();
        eq(_stake().bonded, 50 ether);
        eq(_stake().frozen, 0);
        swarm.release(pool, node, 0);
        eq(_info().escrow, ESCROW);
        vm.prank(arbiter);
        vm.expectPartialRevert(Swarm.NotSlashed.selector);
        swarm.overturn(pool, node);
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
            court.evidence(first, one, second, two);
        }
    }

    function test_two_claims_of_units_for_one_file_contradict_each_other() public {
        WorkCommitment memory first = _file(0, 10);
        WorkCommitment memory second = _file(0, 11);
        eq(uint256(first.fileRoot), uint256(second.fileRoot));
        bytes memory one = _sign(nodeKey, Sign.commitment(first));
        bytes memory two = _sign(nodeKey, Sign.commitment(second));
        court.evidence(first, one, second, two);
        eq(_stake().bonded, 50 ether);
        yes(swarm.memberInfo(pool, node).evicted, "evicted");
    }

    function test_whatever_differs_the_key_convicts_itself(bytes32 fileRoot, uint32 units) public {
        WorkCommitment memory first = _file(0, 10);
        WorkCommitment memory second = _file(0, units);
        second.fileRoot = fileRoot;
        vm.assume(first.fileRoot != fileRoot || first.units != units);
        bytes memory one = _sign(nodeKey, Sign.commitment(first));
        bytes memory two = _sign(nodeKey, Sign.commitment(second));
        court.evidence(first, one, second, two);
        yes(swarm.memberInfo(pool, node).evicted, "evicted");
    }

    function test_evidence_needs_both_signatures_of_the_node() public {
        WorkCommitment memory first = _file(0, 10);
        WorkCommitment memory second = _file(0, 11);
        bytes memory one = _sign(nodeKey, Sign.commitment(first));
        bytes memory two = _sign(nodeKey, Sign.commitment(second));
        bytes memory forged = _sign(judgeKeys[0], Sign.commitment(first));
        vm.expectPartialRevert(Court.WrongSigner.selector);
        court.evidence(first, forged, second, two);
        vm.expectPartialRevert(Court.WrongSigner.selector);
        court.evidence(first, one, second, one);
    }

    function test_a_verdict_over_other_units_counts_for_nothing() public {
        WorkCommitment memory c = _file(0, 10);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        verdicts[1] = _sign(judgeKeys[1], Sign.verdict(_file(0, 11), 2, 5));
        vm.expectPartialRevert(Court.NotAValidator.selector);
        court.slash(c, own, 5, verdicts);
        eq(_stake().bonded, 100 ether);
    }

    function test_who_never_joined_is_not_slashed() public {
        _register(provider, 0xD00D, 1);
        WorkCommitment memory c = _file(0, 1);
        c.node = vm.addr(0xD00D);
        bytes memory own = _sign(0xD00D, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        vm.expectPartialRevert(Members.NotMember.selector);
        court.slash(c, own, 5, verdicts);
        WorkCommitment memory other = _file(0, 1);
        other.node = c.node;
        other.fileRoot = bytes32(uint256(1));
        bytes memory second = _sign(0xD00D, Sign.commitment(other));
        vm.expectPartialRevert(Court.NotMember.selector);
        court.evidence(c, own, other, second);
    }

    function test_a_validator_that_says_both_loses_stake_and_seat() public {
        (Verdict memory good, Verdict memory bad) = _both();
        address judge = vm.addr(judgeKeys[0]);
        bytes memory one = _sign(judgeKeys[0], _hash(good));
        bytes memory two = _sign(judgeKeys[0], _hash(bad));
        court.verdictEvidence(good, one, bad, two);
        eq(vault.bondedOf(address(0x5005)), 0);
        eq(court.benchOf(pool).validators.length, 1);
        eq(court.benchOf(pool).validators[0], vm.addr(judgeKeys[1]));
        yes(swarm.memberInfo(pool, judge).evicted, "evicted");
        vm.expectPartialRevert(Court.NotAValidator.selector);
        court.verdictEvidence(good, one, bad, two);
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        vm.expectPartialRevert(Court.NotAValidator.selector);
        court.slash(c, own, 5, verdicts);
    }

    function test_verdicts_that_do_not_contradict_cost_nothing() public {
        for (uint256 i = 0; i < 8; ++i) {
            (Verdict memory good, Verdict memory bad) = _both();
            if (i == 0) bad.pool = 9;
            if (i == 1) bad.node = anybody;
            if (i == 2) bad.policyRoot = bytes32(uint256(9));
            if (i == 3) bad.index = 9;
            if (i == 4) bad.fileRoot = bytes32(uint256(9));
            if (i == 5) bad.outcome = 0;
            if (i == 6) good.outcome = 1; // first rejected, then slashed: a judge may learn more
            if (i == 7) bad.units = good.units + 1; // of two claims about one file one may be right
            bytes memory one = _sign(judgeKeys[0], _hash(good));
            bytes memory two = _sign(judgeKeys[0], _hash(bad));
            vm.expectPartialRevert(Court.NoContradiction.selector);
            court.verdictEvidence(good, one, bad, two);
        }
        (Verdict memory yes_, Verdict memory no) = _both();
        bytes memory first = _sign(judgeKeys[0], _hash(yes_));
        bytes memory second = _sign(judgeKeys[1], _hash(no));
        vm.expectPartialRevert(Court.WrongSigner.selector);
        court.verdictEvidence(yes_, first, no, second);
    }

    function _both() private view returns (Verdict memory good, Verdict memory bad) {
        WorkCommitment memory c = _file(0, 1);
        good = Verdict(c.pool, c.node, c.policyRoot, c.index, c.fileRoot, c.units, 0, 0);
        bad = Verdict(c.pool, c.node, c.policyRoot, c.index, c.fileRoot, c.units, 2, 5);
    }

    function _hash(Verdict memory v) private pure returns (bytes32) {
        return keccak256(
            abi.encode(Sign.VERDICT, v.pool, v.node, v.policyRoot, v.index, v.fileRoot, v.units, v.outcome, v.reason)
        );
    }
}
