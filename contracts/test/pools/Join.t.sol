// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base, Sign} from "../Base.sol";
import {Members} from "../../src/Members.sol";
import {Nodes} from "../../src/Nodes.sol";
import {Pools} from "../../src/Pools.sol";
import {Work} from "../../src/Work.sol";

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
        vm.expectPartialRevert(Nodes.WrongSigner.selector);
        swarm.joinInvited(id, "", deadline, forged);
        vm.prank(node);
        vm.expectPartialRevert(Nodes.WrongSigner.selector);
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

    function test_work_renews_the_lease_until_its_last_second() public {
        uint256 until = swarm.nodeInfo(node).leaseUntil;
        eq(until, block.timestamp + LEASE);
        vm.warp(until);
        _commit(swarm.epochAt(pool, until), ROOT, 1);
        eq(swarm.nodeInfo(node).leaseUntil, until + LEASE);
        vm.warp(until + LEASE + 1);
        uint64 epoch = swarm.epochAt(pool, block.timestamp);
        vm.prank(node);
        vm.expectPartialRevert(Work.LeaseLapsed.selector);
        swarm.commitWork(pool, epoch, ROOT, 1);
        vm.prank(node);
        swarm.join(pool, "");
        _commit(epoch, ROOT, 1);
    }

    function test_leaving_and_coming_back_costs_no_time() public {
        vm.prank(node);
        swarm.leavePool(pool);
        vm.prank(node);
        swarm.join(pool, "");
        _commit(0, ROOT, 1);
    }

    function test_a_contact_is_as_long_as_said_and_no_longer() public {
        vm.prank(node);
        swarm.join(pool, string(new bytes(160)));
        vm.prank(node);
        vm.expectRevert(abi.encodeWithSelector(Pools.TextTooLong.selector, 161, 160));
        swarm.join(pool, string(new bytes(161)));
    }

    function test_what_is_known_of_members_is_told_in_the_order_asked() public {
        uint64 until = uint64(block.timestamp + LEASE);
        address[] memory nodes = new address[](2);
        (nodes[0], nodes[1]) = (anybody, node);
        _told(swarm.memberInfos(pool, nodes), provider, until, false);
        vm.warp(block.timestamp + 1);
        vm.prank(node);
        swarm.leavePool(pool);
        _told(swarm.memberInfos(pool, nodes), provider, 0, true);
    }

    function _told(Members.MemberInfo[] memory infos, address who, uint64 until, bool left) private pure {
        eq(infos.length, 2);
        eq(infos[0].provider, address(0));
        yes(!infos[0].left && !infos[0].evicted && infos[0].leaseUntil == 0, "who never joined never left");
        eq(infos[1].provider, who);
        eq(infos[1].leaseUntil, until);
        yes(infos[1].left == left && !infos[1].evicted && !infos[1].admitted, "left or not");
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
