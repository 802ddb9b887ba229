// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base, Sign} from "../Base.sol";
import {Members} from "../../src/Members.sol";
import {Nodes} from "../../src/Nodes.sol";
import {Pools} from "../../src/Pools.sol";
import {WrongSigner} from "../../src/Statements.sol";

contract JoinTest is Base {
    function _invited() private returns (uint256) {
        Pools.PoolParams memory params = _params();
        params.invited = true;
        return _open(params);
    }

    function _invitation(uint256 key, uint256 id, uint256 deadline) private view returns (bytes memory) {
        return _sign(key, keccak256(abi.encode(Sign.INVITATION, id, node, deadline)));
    }

    function test_joining_another_pool_leaves_the_former() public {
        uint256 id = _open(_params());
        vm.prank(node);
        swarm.join(id, "");
        eq(swarm.nodeInfo(node).pool, id);
        yes(swarm.memberInfo(pool, node).left, "left");
        vm.prank(node);
        vm.expectPartialRevert(Members.NotMember.selector);
        swarm.leavePool(pool);
        vm.prank(node);
        swarm.leavePool(id);
        eq(swarm.nodeInfo(node).pool, 0);
    }

    function test_an_invited_pool_takes_only_whom_its_manager_invited() public {
        uint256 id = _invited();
        vm.prank(node);
        vm.expectPartialRevert(Members.NotInvited.selector);
        swarm.join(id, "");
        uint256 deadline = block.timestamp + 5;
        bytes memory forged = _invitation(nodeKey, id, deadline);
        bytes memory foreign = _invitation(managerKey, pool, deadline);
        bytes memory right = _invitation(managerKey, id, deadline);
        vm.prank(node);
        vm.expectPartialRevert(WrongSigner.selector);
        swarm.joinInvited(id, "", deadline, forged);
        vm.prank(node);
        vm.expectPartialRevert(WrongSigner.selector);
        swarm.joinInvited(id, "", deadline, foreign);
        vm.warp(deadline + 1);
        vm.prank(node);
        vm.expectPartialRevert(Nodes.SignatureExpired.selector);
        swarm.joinInvited(id, "", deadline, right);
        vm.warp(deadline);
        vm.prank(node);
        swarm.joinInvited(id, "", deadline, right);
        eq(swarm.nodeInfo(node).pool, id);
        yes(swarm.memberInfo(id, node).admitted, "admitted");
        vm.prank(node);
        swarm.join(id, "again, without it");
    }

    function test_a_contact_is_as_long_as_said_and_no_longer() public {
        vm.prank(node);
        swarm.join(pool, string(new bytes(160)));
        vm.prank(node);
        vm.expectRevert(abi.encodeWithSelector(Pools.TextTooLong.selector, 161, 160));
        swarm.join(pool, string(new bytes(161)));
    }

    function test_a_renewed_lease_is_one_lease_from_then_on() public {
        vm.warp(block.timestamp + 7);
        vm.prank(node);
        swarm.join(pool, "");
        eq(swarm.nodeInfo(node).leaseUntil, block.timestamp + LEASE);
        eq(swarm.memberInfo(pool, node).memberUntil, block.timestamp + LEASE);
    }

    function test_a_lease_that_lapsed_ended_the_membership_when_it_lapsed() public {
        uint256 until = swarm.nodeInfo(node).leaseUntil;
        vm.warp(until + 500);
        vm.prank(node);
        swarm.leavePool(pool);
        eq(swarm.memberInfo(pool, node).memberUntil, until);
        vm.prank(node);
        swarm.join(pool, "");
        vm.warp(block.timestamp + 5);
        vm.prank(node);
        swarm.leavePool(pool);
        eq(swarm.memberInfo(pool, node).memberUntil, block.timestamp);
    }

    function test_everybody_who_ever_joined_is_listed_once() public {
        _register(provider, 0xD00D, 2);
        address second = vm.addr(0xD00D);
        vm.prank(second);
        swarm.join(pool, "");
        vm.roll(block.number + 9);
        vm.prank(node);
        swarm.join(pool, "again");
        vm.prank(second);
        swarm.leavePool(pool);
        eq(swarm.memberCount(pool), 2);
        (address[] memory nodes, Members.MemberInfo[] memory infos) = swarm.membersOf(pool, 0, 10);
        eq(nodes.length, 2);
        eq(nodes[0], node);
        eq(nodes[1], second);
        eq(infos[0].joinedBlock, block.number);
        eq(infos[1].joinedBlock, block.number - 9);
        yes(!infos[0].left && infos[1].left, "left or not");
        (nodes, infos) = swarm.membersOf(pool, 1, 1);
        eq(nodes[0], second);
        eq(infos.length, 1);
        (nodes,) = swarm.membersOf(pool, 2, 1);
        eq(nodes.length, 0);
        (nodes,) = swarm.membersOf(pool, type(uint256).max, type(uint256).max);
        eq(nodes.length, 0);
        (nodes,) = swarm.membersOf(pool, 1, type(uint256).max);
        eq(nodes.length, 1);
    }

    function test_strangers_do_not_join() public {
        vm.prank(anybody);
        vm.expectPartialRevert(Nodes.NodeUnknown.selector);
        swarm.join(pool, "");
        vm.prank(anybody);
        vm.expectPartialRevert(Members.NotMember.selector);
        swarm.leavePool(0);
    }
}
