// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base} from "../Base.sol";
import {Pools} from "../../src/Pools.sol";
import {Work} from "../../src/Work.sol";
import {WorkCommitment} from "../../src/Statements.sol";

contract SettleTest is Base {
    function test_from_the_second_of_maturity_on_and_once() public {
        _commit(0, ROOT, 1000);
        vm.warp(_matures(0) - 1);
        vm.expectPartialRevert(Work.NotMature.selector);
        this.settleOne(0);
        vm.warp(_matures(0));
        vm.prank(anybody);
        this.settleOne(0);
        eq(token.balanceOf(provider), 1 ether);
        eq(_info().reserved, 0);
        eq(_info().escrow, 499 ether);
        vm.expectPartialRevert(Work.NothingCommitted.selector);
        this.settleOne(0);
    }

    /// At every second of an epoch's life exactly one of the two can succeed.
    function testFuzz_invalidate_xor_settle(uint256 when) public {
        (WorkCommitment[2] memory files, bytes32[2] memory leaves) = _pair(400, 600);
        _commit(0, _rootOf(leaves), 1000);
        vm.warp(_bounded(when, block.timestamp, _matures(0) + 1000));
        bool voidable = this.tryInvalidate(files[0], leaves[1]);
        bool payable_ = this.trySettle(0);
        yes(voidable != payable_, "exactly one");
        yes(voidable == (block.timestamp < _matures(0)), "by the clock");
    }

    function tryInvalidate(WorkCommitment memory c, bytes32 sibling) external returns (bool) {
        try this.invalidateOne(c, sibling) {
            return true;
        } catch {
            return false;
        }
    }

    function invalidateOne(WorkCommitment memory c, bytes32 sibling) external {
        _invalidate(c, sibling, 0, 1);
    }

    function trySettle(uint64 epoch) external returns (bool) {
        try this.settleOne(epoch) {
            return true;
        } catch {
            return false;
        }
    }

    function settleOne(uint64 epoch) external {
        _settle(epoch);
    }

    function test_many_epochs_in_one_payment_and_none_twice() public {
        uint64[] memory epochs = new uint64[](3);
        for (uint64 e = 0; e < 3; ++e) {
            _commit(e, ROOT, uint32(1000 * (e + 1)));
            epochs[e] = e;
            vm.warp(block.timestamp + EPOCH);
        }
        vm.warp(_matures(2));
        swarm.settle(pool, node, epochs);
        eq(token.balanceOf(provider), 6 ether);
        uint64[] memory none = new uint64[](0);
        vm.expectPartialRevert(Pools.ZeroAmount.selector);
        swarm.settle(pool, node, none);
    }

    function test_the_same_epoch_twice_in_one_call_is_refused() public {
        _commit(0, ROOT, 1000);
        vm.warp(_matures(0));
        uint64[] memory twice = new uint64[](2);
        vm.expectPartialRevert(Work.NothingCommitted.selector);
        swarm.settle(pool, node, twice);
    }
}
