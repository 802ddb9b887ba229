// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {Base, Sign} from "../Base.sol";
import {Court} from "../../src/Court.sol";
import {Members} from "../../src/Members.sol";
import {Nodes} from "../../src/Nodes.sol";
import {Pools} from "../../src/Pools.sol";
import {WrongSigner} from "../../src/Statements.sol";

contract JoinTest is Base {
    uint256 private constant TICKET_KEY = 0x71C4;

    function _byInvitation() private returns (uint256) {
        Pools.PoolParams memory params = _params();
        params.invited = true;
        return _open(params);
    }

    function _soon() private view returns (uint64) {
        return uint64(block.timestamp + 5);
    }

    /// The revert of an invitation that is shown for this node.
    function _refused(uint256 id, address who, Court.Invited memory by, bytes4 why) private {
        vm.expectPartialRevert(why);
        court.admit(id, who, by);
    }

    function _admit(uint256 id, address who, Court.Invited memory by) private {
        court.admit(id, who, by);
        vm.prank(who);
        swarm.join(id, "");
        eq(swarm.nodeInfo(who).pool, id);
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
        uint256 id = _byInvitation();
        vm.prank(node);
        vm.expectPartialRevert(Members.NotInvited.selector);
        swarm.join(id, "");
        uint64 deadline = _soon();
        Court.Invited memory right = _invited(managerKey, id, node, 1, deadline, 0, node);
        _refused(id, node, _invited(nodeKey, id, node, 1, deadline, 0, node), WrongSigner.selector);
        _refused(id, node, _invited(managerKey, pool, node, 1, deadline, 0, node), WrongSigner.selector);
        Court.Invited memory widened = _invited(managerKey, id, node, 1, deadline, 0, node);
        widened.places = 2;
        _refused(id, node, widened, WrongSigner.selector);
        vm.warp(deadline + 1);
        _refused(id, node, right, Court.InvitationExpired.selector);
        vm.warp(deadline);
        _admit(id, node, right);
        yes(court.admits(id, node) && !court.admits(pool, node), "in that pool");
        vm.prank(node);
        swarm.join(id, "again, without it");
        court.admit(id, node, right);
        eq(court.placesTaken(id, node), 1);
    }

    function test_an_invitation_of_a_provider_is_for_as_many_of_its_nodes_as_it_says() public {
        uint256 id = _byInvitation();
        _register(provider, 0xD00D, 1);
        Court.Invited memory by = _invited(managerKey, id, provider, 1, _soon(), 0, node);
        _admit(id, node, by);
        _refused(id, vm.addr(0xD00D), by, Court.InvitationSpent.selector);
        by = _invited(managerKey, id, provider, 2, _soon(), 0, node);
        _admit(id, vm.addr(0xD00D), by);
        eq(court.placesTaken(id, provider), 2);
        by = _invited(managerKey, id, provider, 3, _soon(), 0, node);
        _bond(address(0x5005), 10 ether);
        _register(address(0x5005), 0xD00E, 1);
        _refused(id, vm.addr(0xD00E), by, ECDSA.ECDSAInvalidSignatureLength.selector);
    }

    function test_a_ticket_lets_in_the_node_that_it_names_and_takes_a_place() public {
        uint256 id = _byInvitation();
        _register(provider, 0xD00D, 1);
        address other = vm.addr(0xD00D);
        address key = vm.addr(TICKET_KEY);
        Court.Invited memory mine = _invited(managerKey, id, key, 2, _soon(), TICKET_KEY, node);
        _refused(id, other, mine, WrongSigner.selector);
        _refused(id, node, _invited(managerKey, id, key, 2, _soon(), nodeKey, node), WrongSigner.selector);
        Court.Invited memory elsewhere = mine;
        elsewhere.ticket = _sign(TICKET_KEY, keccak256(abi.encode(Sign.TICKET, pool, node)));
        _refused(id, node, elsewhere, WrongSigner.selector);
        eq(court.placesTaken(id, key), 0);
        mine = _invited(managerKey, id, key, 2, _soon(), TICKET_KEY, node);
        _admit(id, node, mine);
        Court.Invited memory theirs = _invited(managerKey, id, key, 2, _soon(), TICKET_KEY, other);
        _admit(id, other, theirs);
        eq(court.placesTaken(id, key), 2);
        _register(provider, 0xD00F, 1);
        address third = vm.addr(0xD00F);
        _refused(id, third, _invited(managerKey, id, key, 2, _soon(), TICKET_KEY, third), Court.InvitationSpent.selector);
    }

    function test_an_invitation_that_was_taken_back_lets_nobody_in_and_nobody_out() public {
        uint256 id = _byInvitation();
        _register(provider, 0xD00D, 1);
        Court.Invited memory by = _invited(managerKey, id, provider, 9, _soon(), 0, node);
        _admit(id, node, by);
        address[] memory invitees = new address[](1);
        invitees[0] = provider;
        vm.prank(provider);
        vm.expectPartialRevert(Court.OnlyManager.selector);
        court.revokeInvitations(id, invitees);
        vm.prank(manager);
        court.revokeInvitations(id, invitees);
        _refused(id, vm.addr(0xD00D), by, Court.InvitationSpent.selector);
        by = _invited(managerKey, id, provider, type(uint32).max, _soon(), 0, node);
        _refused(id, vm.addr(0xD00D), by, Court.InvitationSpent.selector);
        vm.prank(node);
        swarm.join(id, "it stays");
        eq(swarm.nodeInfo(node).pool, id);
    }

    function test_whom_the_pool_names_needs_no_invitation_as_long_as_it_names_him() public {
        Pools.PoolParams memory params = _params();
        (params.invited, params.manager) = (true, node);
        uint256 id = _open(params);
        vm.prank(node);
        swarm.join(id, "the manager");
        address judge = vm.addr(judgeKeys[0]);
        vm.prank(judge);
        swarm.join(id, "a validator");
        address[] memory others = new address[](1);
        others[0] = vm.addr(judgeKeys[1]);
        vm.prank(manager);
        court.proposeValidators(id, others, 1);
        vm.warp(block.timestamp + WINDOW);
        court.applyValidators(id);
        vm.prank(judge);
        vm.expectPartialRevert(Members.NotInvited.selector);
        swarm.join(id, "not any more");
        vm.prank(others[0]);
        swarm.join(id, "its successor");
        yes(!court.admits(pool + 100, judge), "of no pool");
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

    function test_who_has_too_little_bonded_joins_nowhere() public {
        (address poor, uint256 other) = (address(0x2009), _open(_params()));
        _bond(poor, BASE + PER_UNIT);
        nodeKey = 0xD00D;
        node = vm.addr(nodeKey);
        _register(poor, nodeKey, 1);
        vm.prank(node);
        swarm.join(pool, "");
        _contradict();
        vm.prank(node);
        vm.expectRevert(abi.encodeWithSelector(Nodes.StakeTooLow.selector, poor, BASE, BASE + PER_UNIT));
        swarm.join(other, "");
        _bond(poor, PER_UNIT);
        vm.prank(node);
        swarm.join(other, "");
    }
}
