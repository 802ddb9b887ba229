// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base, Sign} from "../Base.sol";
import {Court} from "../../src/Court.sol";
import {Members} from "../../src/Members.sol";
import {WorkCommitment} from "../../src/Statements.sol";
import {Work} from "../../src/Work.sol";

contract InvalidateTest is Base {
    function testFuzz_a_leaf_loses_its_own_units_and_never_more_than_the_epoch_has(uint32 a, uint32 b, uint32 units)
        public
    {
        a = uint32(_bounded(a, 0, 200_000));
        b = uint32(_bounded(b, 0, 200_000));
        units = uint32(_bounded(units, 1, 100_000));
        (WorkCommitment[2] memory files, bytes32[2] memory leaves) = _pair(a, b);
        _commit(0, _rootOf(leaves), units);
        _invalidate(files[0], leaves[1], 0, 1);
        uint256 left = a < units ? units - a : 0;
        eq(_work(0).units, left);
        eq(_work(0).reserved, left * RATE);
        _invalidate(files[1], leaves[0], 0, 1);
        left = b < left ? left - b : 0;
        eq(_work(0).units, left);
        eq(_info().reserved, left * RATE);
        eq(_info().escrow, ESCROW - left * RATE);
    }

    function test_what_the_escrow_could_not_pay_is_lost_first() public {
        _commit(0, ROOT, 100_000);
        for (uint64 e = 1; e < 5; ++e) {
            vm.warp(block.timestamp + EPOCH);
            _commit(e, ROOT, e == 4 ? 99_600 : 100_000);
        }
        vm.warp(block.timestamp + EPOCH);
        (WorkCommitment[2] memory files, bytes32[2] memory leaves) = _pair(500, 700);
        _commit(5, _rootOf(leaves), 1200); // 400 units of escrow are left
        eq(_work(5).reservedUnits, 400);
        _invalidate(files[1], leaves[0], 5, 1);
        eq(_work(5).units, 500);
        eq(_work(5).reservedUnits, 400);
        _invalidate(files[0], leaves[1], 5, 1);
        eq(_work(5).reservedUnits, 0);
        eq(_info().escrow, 400 * uint256(RATE));
    }

    function test_each_leaf_once() public {
        (WorkCommitment[2] memory files, bytes32[2] memory leaves) = _pair(400, 600);
        _commit(0, _rootOf(leaves), 1000);
        _invalidate(files[0], leaves[1], 0, 1);
        bytes32[] memory proof = new bytes32[](1);
        proof[0] = leaves[1];
        bytes[] memory verdicts = _quorum(Sign.verdict(files[0], 1, 8));
        vm.expectPartialRevert(Court.AlreadyInvalidated.selector);
        court.invalidate(files[0], 0, proof, 1, 8, verdicts);
    }

    function test_each_leaf_once_in_a_later_epoch_too() public {
        (WorkCommitment[2] memory files, bytes32[2] memory leaves) = _pair(400, 600);
        vm.warp(block.timestamp + EPOCH);
        _commit(1, _rootOf(leaves), 1000);
        _invalidate(files[0], leaves[1], 1, 1);
        bytes32[] memory proof = new bytes32[](1);
        proof[0] = leaves[1];
        bytes[] memory verdicts = _quorum(Sign.verdict(files[0], 1, 8));
        vm.expectPartialRevert(Court.AlreadyInvalidated.selector);
        court.invalidate(files[0], 1, proof, 1, 8, verdicts);
    }

    function test_a_leaf_is_taken_by_no_single_judge() public {
        (WorkCommitment[2] memory files, bytes32[2] memory leaves) = _pair(400, 600);
        _commit(0, _rootOf(leaves), 1000);
        bytes32[] memory proof = new bytes32[](1);
        proof[0] = leaves[1];
        bytes[] memory one = new bytes[](1);
        one[0] = _quorum(Sign.verdict(files[0], 1, 8))[0];
        vm.expectRevert(abi.encodeWithSelector(Court.QuorumMissing.selector, 1, 2));
        court.invalidate(files[0], 0, proof, 1, 8, one);
    }

    function test_a_proof_is_as_long_as_said_and_no_longer() public {
        WorkCommitment memory c = _file(0, 400);
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 1, 8));
        for (uint64 epoch = 0; epoch < 2; ++epoch) {
            bytes32[] memory proof = new bytes32[](33 - epoch);
            _commit(epoch, _climb(keccak256(abi.encodePacked(bytes1(0), Sign.commitment(c))), proof), 1000);
            if (epoch == 0) vm.expectPartialRevert(Court.BadProof.selector);
            court.invalidate(c, epoch, proof, 1, 8, verdicts);
            vm.warp(block.timestamp + EPOCH);
        }
        eq(_work(1).units, 600);
    }

    /// Beside siblings of zeros, which sort before any hash.
    function _climb(bytes32 hash, bytes32[] memory proof) private pure returns (bytes32) {
        for (uint256 i = 0; i < proof.length; ++i) {
            hash = keccak256(abi.encodePacked(bytes1(0x01), proof[i], hash));
        }
        return hash;
    }

    function test_neither_an_inner_node_nor_other_units_nor_a_long_proof_pass() public {
        (WorkCommitment[2] memory files, bytes32[2] memory leaves) = _pair(400, 600);
        _commit(0, _rootOf(leaves), 1000);
        bytes32[] memory proof = new bytes32[](1);
        proof[0] = leaves[1];
        files[0].units = 401;
        bytes[] memory verdicts = _quorum(Sign.verdict(files[0], 1, 8));
        vm.expectPartialRevert(Court.BadProof.selector);
        court.invalidate(files[0], 0, proof, 1, 8, verdicts);
        vm.expectPartialRevert(Court.BadProof.selector);
        court.invalidate(files[0], 0, new bytes32[](33), 1, 8, verdicts);
    }

    function test_only_the_outcomes_that_mean_something() public {
        (WorkCommitment[2] memory files, bytes32[2] memory leaves) = _pair(400, 600);
        _commit(0, _rootOf(leaves), 1000);
        bytes32[] memory proof = new bytes32[](1);
        proof[0] = leaves[1];
        for (uint8 outcome = 0; outcome < 4; outcome += 3) {
            bytes[] memory verdicts = _quorum(Sign.verdict(files[0], outcome, 8));
            vm.expectPartialRevert(Court.BadOutcome.selector);
            court.invalidate(files[0], 0, proof, outcome, 8, verdicts);
        }
    }

    function test_hard_voids_what_is_not_mature_freezes_and_evicts() public {
        (WorkCommitment[2] memory files, bytes32[2] memory leaves) = _pair(400, 600);
        _commit(0, _rootOf(leaves), 1000);
        vm.warp(block.timestamp + EPOCH);
        _commit(1, ROOT, 2000);
        _invalidate(files[0], leaves[1], 0, 2);
        yes(_work(0).voided && _work(1).voided, "voided");
        eq(_stake().frozen, SLASH);
        yes(swarm.memberInfo(pool, node).evicted, "evicted");
        vm.prank(node);
        vm.expectPartialRevert(Members.NodeEvicted.selector);
        swarm.join(pool, "");
    }

    function test_an_epoch_whose_tree_nobody_has_is_refused_as_a_whole() public {
        _commit(0, ROOT, 1000);
        bytes[] memory verdicts = _quorum(Sign.epochVerdict(pool, node, 0, bytes20(ROOT), 1, 23));
        vm.warp(_matures(0) - 1);
        court.invalidateEpoch(pool, node, 0, 1, 23, verdicts);
        eq(_info().escrow, ESCROW);
        eq(_info().reserved, 0);
        eq(_work(0).units, 0);
        eq(_stake().bonded, 100 ether);
        vm.warp(_matures(0));
        vm.expectPartialRevert(Work.NothingCommitted.selector);
        this.settleOne(0);
        vm.expectPartialRevert(Work.AlreadyMature.selector);
        court.invalidateEpoch(pool, node, 0, 1, 23, verdicts);
    }

    function test_an_epoch_of_invented_work_costs_the_stake_and_all_that_is_not_mature() public {
        _commit(0, ROOT, 1000);
        vm.warp(block.timestamp + EPOCH);
        _commit(1, ROOT, 2000);
        _invalidateEpoch(1, 2, 20);
        yes(_work(0).voided && _work(1).voided, "voided");
        eq(_stake().frozen, SLASH);
        yes(swarm.memberInfo(pool, node).evicted, "evicted");
    }

    function test_an_epochs_verdict_is_for_its_outcome_reason_root_epoch_and_node_only() public {
        _commit(0, ROOT, 1000);
        vm.warp(block.timestamp + EPOCH);
        _commit(1, ROOT, 1000);
        bytes[] memory verdicts = _quorum(Sign.epochVerdict(pool, node, 0, bytes20(ROOT), 1, 23));
        _refused(0, 2, 23, verdicts);
        _refused(0, 1, 20, verdicts);
        _refused(1, 1, 23, verdicts);
        _refused(0, 1, 23, _quorum(Sign.epochVerdict(pool, node, 0, bytes20(~ROOT), 1, 23)));
        _refused(0, 1, 23, _quorum(Sign.epochVerdict(pool, anybody, 0, bytes20(ROOT), 1, 23)));
        _refused(0, 1, 23, _quorum(Sign.epochVerdict(pool + 1, node, 0, bytes20(ROOT), 1, 23)));
    }

    function _refused(uint64 epoch, uint8 outcome, uint8 reason, bytes[] memory verdicts) private {
        vm.expectPartialRevert(Court.NotAValidator.selector);
        court.invalidateEpoch(pool, node, epoch, outcome, reason, verdicts);
    }

    function test_an_epoch_takes_no_outcome_that_means_nothing_and_no_single_judge() public {
        _commit(0, ROOT, 1000);
        for (uint8 outcome = 0; outcome < 4; outcome += 3) {
            bytes[] memory both = _quorum(Sign.epochVerdict(pool, node, 0, bytes20(ROOT), outcome, 20));
            vm.expectPartialRevert(Court.BadOutcome.selector);
            court.invalidateEpoch(pool, node, 0, outcome, 20, both);
        }
        bytes[] memory one = new bytes[](1);
        one[0] = _quorum(Sign.epochVerdict(pool, node, 0, bytes20(ROOT), 1, 23))[0];
        vm.expectPartialRevert(Court.QuorumMissing.selector);
        court.invalidateEpoch(pool, node, 0, 1, 23, one);
    }

    function test_an_epoch_is_judged_once_even_if_that_was_overturned() public {
        _commit(0, ROOT, 1000);
        _invalidateEpoch(0, 2, 20);
        vm.prank(arbiter);
        swarm.overturn(pool, node);
        bytes[] memory verdicts = _quorum(Sign.epochVerdict(pool, node, 0, bytes20(ROOT), 2, 21));
        vm.expectRevert(abi.encodeWithSelector(Court.AlreadyJudged.selector, bytes32(bytes20(ROOT))));
        court.invalidateEpoch(pool, node, 0, 2, 21, verdicts);
    }

    function test_that_an_epoch_was_judged_spares_no_other_epoch_node_or_pool() public {
        _commit(0, ROOT, 1000);
        vm.warp(block.timestamp + EPOCH);
        _commit(1, ROOT, 1000);
        _invalidateEpoch(0, 2, 20);
        _overturn();
        _invalidateEpoch(1, 2, 20); // the same root of the same node
        _overturn();
        _startIn(pool);
        _commit(1, ROOT, 1000);
        _invalidateEpoch(1, 2, 20); // of another node
        _overturn();
        vm.prank(node);
        swarm.leavePool(pool);
        uint256 id = _open(_params());
        vm.prank(node);
        swarm.join(id, "");
        pool = id;
        vm.warp(block.timestamp + EPOCH);
        _commit(1, ROOT, 1000);
        _invalidateEpoch(1, 2, 20); // in another pool
        eq(_stake().frozen, SLASH);
    }

    function test_two_works_about_one_file_are_judged_each() public {
        (WorkCommitment[2] memory files, bytes32[2] memory leaves) = _pair(400, 600);
        files[1].fileRoot = files[0].fileRoot;
        leaves[1] = keccak256(abi.encodePacked(bytes1(0), Sign.commitment(files[1])));
        _commit(0, _rootOf(leaves), 1000);
        _invalidate(files[0], leaves[1], 0, 2);
        _overturn();
        _invalidate(files[1], leaves[0], 0, 2);
        eq(_stake().frozen, SLASH);
    }

    /// Wrongly judged, and the pool has the money for another bond.
    function _overturn() private {
        vm.prank(arbiter);
        swarm.overturn(pool, node);
        _fund(pool, POOL_BOND);
        vm.prank(node);
        swarm.join(pool, "");
    }

    /// The Court asks first, and the Swarm does not rely on it.
    function test_what_is_mature_is_taken_by_none_of_the_ways() public {
        _commit(0, ROOT, 1000);
        vm.warp(_matures(0) - 1);
        yes(swarm.openRoot(pool, node, 0) == bytes20(ROOT), "open");
        vm.warp(_matures(0));
        bytes memory mature = abi.encodeWithSelector(Work.AlreadyMature.selector, uint64(0), _matures(0));
        vm.expectRevert(mature);
        swarm.openRoot(pool, node, 0);
        vm.prank(address(court));
        vm.expectRevert(mature);
        swarm.takeLeaf(pool, node, 0, ROOT, 1, 8);
        vm.prank(address(court));
        vm.expectRevert(mature);
        swarm.takeEpoch(pool, node, 0, 8);
        eq(_work(0).units, 1000);
    }

    function settleOne(uint64 epoch) external {
        _settle(epoch);
    }
}
