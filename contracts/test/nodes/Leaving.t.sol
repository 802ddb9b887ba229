// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base, Sign} from "../Base.sol";
import {Nodes} from "../../src/Nodes.sol";
import {Pools} from "../../src/Pools.sol";
import {StakeVault} from "../../src/StakeVault.sol";
import {WorkCommitment} from "../../src/Statements.sol";

/// What a node did is answered for with the units that it had, until the unbonding is over; a slash grows with them.
contract LeavingTest is Base {
    address private constant OWNER = address(0x6006);
    uint256 private constant KEY = 0xE001;

    function _joins(uint256 key) private {
        vm.prank(vm.addr(key));
        swarm.join(pool, "");
    }

    function _starts(uint256 key, uint32 units) private {
        _register(OWNER, key, units);
        _joins(key);
    }

    function _removes(uint256 key) private {
        vm.prank(OWNER);
        swarm.removeNode(vm.addr(key));
    }

    function _releases(uint256 key) private {
        address[] memory one = new address[](1);
        one[0] = vm.addr(key);
        vm.prank(anybody);
        swarm.release(one);
    }

    function _contradicts(uint256 key) private {
        (uint256 ownKey, address own) = (nodeKey, node);
        (nodeKey, node) = (key, vm.addr(key));
        _contradict();
        (nodeKey, node) = (ownKey, own);
    }

    function _judges(uint256 key) private {
        (uint256 ownKey, address own) = (nodeKey, node);
        (nodeKey, node) = (key, vm.addr(key));
        _slash(_file(0, 10));
        (nodeKey, node) = (ownKey, own);
    }

    function _sum(address who) private view returns (uint256) {
        StakeInfo memory stake = _stakeOf(who);
        return uint256(stake.bonded) + stake.unbonding + stake.frozen;
    }

    /// The second registration, with what was enough for the first.
    function tryRegister(uint256 key, uint32 units) external {
        _register(OWNER, key, units);
    }

    // ---- one node after the other on one stake

    /// Each worked and was taken away before the next one came. All five lost 20 of 50. The control is five at a time.
    function test_five_nodes_in_turn_need_as_much_as_five_at_a_time() public {
        for (uint256 together = 0; together < 2; ++together) {
            uint256 first = KEY + 0x10 * together;
            _bond(OWNER, 20 ether - _sum(OWNER));
            for (uint256 i = 0; i < 5; ++i) {
                if (i > 0) {
                    bytes memory said =
                        abi.encodeWithSelector(Nodes.StakeTooLow.selector, OWNER, 10 ether * (i + 1), 10 ether * (i + 2));
                    vm.expectRevert(said);
                    this.tryRegister(first + i, 1);
                    _bond(OWNER, 10 ether);
                }
                _starts(first + i, 1);
                if (together == 0) _removes(first + i);
            }
            for (uint256 i = 0; i < 5; ++i) {
                _contradicts(first + i);
            }
            eq(_sum(OWNER), 10 ether); // fifty of sixty
            vm.warp(block.timestamp + UNBONDING);
            if (together == 0) for (uint256 i = 0; i < 5; ++i) _releases(first + i);
        }
    }

    function test_what_a_removed_node_binds_is_free_in_the_second_in_which_it_need_not_answer_any_more() public {
        _bond(OWNER, 20 ether);
        _starts(KEY, 1);
        _removes(KEY);
        uint64 freeAt = uint64(block.timestamp) + UNBONDING;
        eq(swarm.nodeInfo(vm.addr(KEY)).freeAt, freeAt);
        _units(OWNER, 0, 1);
        eq(swarm.requiredStake(OWNER), 0);
        vm.prank(OWNER);
        vault.unbond(20 ether); // what is unbonding stays as long
        eq(_stakeOf(OWNER).withdrawableAt, freeAt);
        vm.warp(freeAt - 1);
        vm.expectRevert(abi.encodeWithSelector(Nodes.NodeStillAnswers.selector, vm.addr(KEY), freeAt));
        this.release(KEY);
        vm.warp(freeAt);
        _releases(KEY);
        _units(OWNER, 0, 0);
        eq(swarm.nodeInfo(vm.addr(KEY)).units, 0);
        eq(swarm.nodeInfo(vm.addr(KEY)).freeAt, 0);
        eq(swarm.nodeInfo(vm.addr(KEY)).provider, OWNER);
        _bond(OWNER, 20 ether);
        _register(OWNER, KEY + 1, 1);
    }

    function release(uint256 key) external {
        _releases(key);
    }

    function test_only_what_was_removed_and_not_yet_released_is_released() public {
        vm.expectRevert(abi.encodeWithSelector(Nodes.NodeUnknown.selector, anybody));
        _release(anybody);
        vm.warp(block.timestamp + 2 * UNBONDING);
        vm.expectRevert(abi.encodeWithSelector(Nodes.NodeUnknown.selector, node));
        _release(node); // it is registered
        vm.prank(provider);
        swarm.removeNode(node);
        vm.warp(block.timestamp + UNBONDING);
        _release(node);
        _units(provider, 0, 0);
        vm.expectRevert(abi.encodeWithSelector(Nodes.NodeUnknown.selector, node));
        _release(node);
    }

    function _release(address who) private {
        address[] memory one = new address[](1);
        one[0] = who;
        swarm.release(one);
    }

    // ---- back again

    function test_while_it_answers_a_node_comes_back_at_its_old_size_or_more() public {
        _bond(OWNER, 50 ether);
        _starts(KEY, 3);
        _removes(KEY);
        uint64 freeAt = uint64(block.timestamp) + UNBONDING;
        vm.warp(freeAt - 1);
        vm.expectRevert(abi.encodeWithSelector(Nodes.NodeStillAnswers.selector, vm.addr(KEY), freeAt));
        this.tryRegister(KEY, 2);
        _starts(KEY, 3); // its units are counted once
        _units(OWNER, 3, 0);
        eq(swarm.nodeInfo(vm.addr(KEY)).freeAt, 0);
        _removes(KEY);
        _starts(KEY, 4);
        _units(OWNER, 4, 0);
        _removes(KEY);
        _units(OWNER, 0, 4);
        _contradicts(KEY);
        eq(vault.bondedOf(OWNER), 10 ether);
    }

    function test_once_it_need_not_answer_it_comes_back_as_small_as_it_likes_released_or_not() public {
        _bond(OWNER, 50 ether);
        for (uint256 released = 0; released < 2; ++released) {
            _register(OWNER, KEY + released, 3);
            _removes(KEY + released);
            vm.warp(block.timestamp + UNBONDING);
            if (released == 1) _releases(KEY + released);
            _register(OWNER, KEY + released, 1);
            _units(OWNER, 1 + released, 0);
            eq(swarm.nodeInfo(vm.addr(KEY + released)).units, 1);
        }
    }

    // ---- what a slash takes

    /// The amount of a pool is of one unit: a node of three lost as little as one of one.
    function test_a_slash_grows_with_the_node() public {
        for (uint256 i = 0; i < 4; ++i) {
            uint32 units = i < 2 ? 1 : 3;
            _bond(OWNER, 40 ether - vault.bondedOf(OWNER));
            _starts(KEY + i, units);
            if (i % 2 == 0) _contradicts(KEY + i);
            else _judges(KEY + i);
            eq(vault.bondedOf(OWNER), 40 ether - units * SLASH);
            _removes(KEY + i);
            vm.warp(block.timestamp + UNBONDING);
            _releases(KEY + i);
        }
        eq(vault.caseInfo(2).amount, 3 * SLASH);
        eq(vault.caseInfo(2).bond, 3 * PUT);
    }

    /// What is bonded then stands behind others.
    function test_signatures_from_before_take_nothing_once_the_node_is_released() public {
        for (uint256 i = 0; i < 2; ++i) {
            _bond(OWNER, 20 ether - vault.bondedOf(OWNER));
            _starts(KEY + i, 1);
            _removes(KEY + i);
            vm.warp(block.timestamp + UNBONDING);
            if (i == 1) _releases(KEY + i);
            _contradicts(KEY + i);
            eq(vault.bondedOf(OWNER), i == 0 ? 10 ether : 20 ether);
            yes(swarm.memberInfo(pool, vm.addr(KEY + i)).evicted, "and it is paid nothing");
            if (i == 0) _releases(KEY + i);
        }
    }

    /// The longest window that a pool may have, and a node that goes as its first epoch begins.
    function test_judges_find_all_units_to_their_last_second() public {
        Pools.PoolParams memory params = _params();
        params.window = uint32(UNBONDING) - EPOCH;
        params.delay = params.window / 4;
        _startIn(_open(params));
        vm.prank(provider);
        swarm.removeNode(node);
        vm.prank(provider);
        vault.unbond(80 ether); // all but what the first node needs
        vm.warp(_matures(0) - 1);
        eq(block.timestamp + 1, swarm.nodeInfo(node).freeAt);
        _slash(_file(0, 10));
        eq(_stake().frozen, SLASH);
        eq(_stake().unbonding, 70 ether);
    }

    // ---- who is expelled

    function _fleet() private {
        _bond(OWNER, 40 ether);
        for (uint256 i = 0; i < 3; ++i) _starts(KEY + i, 1);
    }

    /// One slash let anybody expel them all.
    function test_a_fleet_is_expelled_one_by_one_until_the_rest_is_covered() public {
        _fleet();
        vm.expectRevert(abi.encodeWithSelector(Nodes.StakeEnough.selector, OWNER));
        this.expel(KEY);
        _contradicts(KEY);
        vm.expectEmit(address(swarm));
        emit Nodes.Left(pool, vm.addr(KEY + 1), OWNER);
        vm.expectEmit(address(swarm));
        emit Nodes.NodeRemoved(OWNER, vm.addr(KEY + 1), 1, uint64(block.timestamp) + UNBONDING);
        _expel(vm.addr(KEY + 1));
        _units(OWNER, 2, 1);
        eq(swarm.nodeInfo(vm.addr(KEY + 1)).pool, 0);
        eq(swarm.nodeInfo(vm.addr(KEY + 1)).leaseUntil, 0);
        vm.expectRevert(abi.encodeWithSelector(Nodes.StakeEnough.selector, OWNER));
        this.expel(KEY + 2);
        vm.prank(vm.addr(KEY + 1));
        vm.expectPartialRevert(Nodes.NodeUnknown.selector);
        swarm.join(pool, "");
        vm.expectPartialRevert(Nodes.StakeTooLow.selector);
        this.tryRegister(KEY + 1, 1);
        _bond(OWNER, SLASH);
        _starts(KEY + 1, 1);
        _units(OWNER, 3, 0);
    }

    /// Who removes the one that was slashed keeps the others.
    function test_nobody_is_expelled_where_the_one_that_was_slashed_was_removed() public {
        _fleet();
        _contradicts(KEY);
        _removes(KEY);
        for (uint256 i = 1; i < 3; ++i) {
            vm.expectRevert(abi.encodeWithSelector(Nodes.StakeEnough.selector, OWNER));
            this.expel(KEY + i);
        }
    }

    function test_the_last_token_of_what_the_rest_needs_decides() public {
        _fleet();
        vm.prank(address(swarm));
        vault.slash(OWNER, SLASH + 1);
        _expel(vm.addr(KEY));
        _expel(vm.addr(KEY + 1));
        _units(OWNER, 1, 2);
        vm.expectRevert(abi.encodeWithSelector(Nodes.StakeEnough.selector, OWNER));
        this.expel(KEY + 2);
        vm.prank(address(swarm));
        vault.slash(OWNER, 20 ether);
        vm.expectRevert(abi.encodeWithSelector(Nodes.NodeUnknown.selector, vm.addr(KEY)));
        this.expel(KEY);
    }

    function expel(uint256 key) external {
        _expel(vm.addr(key));
    }
}
