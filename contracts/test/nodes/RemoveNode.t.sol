// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base} from "../Base.sol";
import {Nodes} from "../../src/Nodes.sol";

contract RemoveNodeTest is Base {
    function test_it_ends_units_and_membership_but_not_what_is_due() public {
        vm.prank(provider);
        swarm.removeNode(node);
        _units(provider, 0, 1);
        eq(swarm.nodeInfo(node).pool, 0);
        eq(swarm.nodeInfo(node).provider, provider);
        _earn(0, 1000);
        _claim(1000);
        eq(token.balanceOf(provider), 1 ether);
    }

    /// Of pool 0, which nobody opened, nobody ever hears.
    function test_who_is_in_no_pool_leaves_none() public {
        _register(provider, 0xD00D, 1);
        vm.recordLogs();
        vm.prank(provider);
        swarm.removeNode(vm.addr(0xD00D));
        eq(vm.getRecordedLogs().length, 1);
        vm.prank(provider);
        swarm.removeNode(node);
        eq(vm.getRecordedLogs().length, 2);
    }

    function test_only_its_provider_and_only_once() public {
        vm.prank(anybody);
        vm.expectPartialRevert(Nodes.NotYourNode.selector);
        swarm.removeNode(node);
        vm.prank(provider);
        swarm.removeNode(node);
        vm.prank(provider);
        vm.expectPartialRevert(Nodes.NodeUnknown.selector);
        swarm.removeNode(node);
        _units(provider, 0, 1);
    }

    function test_a_provider_goes_with_all_of_its_nodes_or_not_at_all() public {
        _register(provider, 0xD00D, 3);
        address[] memory one = new address[](1);
        one[0] = node;
        vm.prank(provider);
        vm.expectPartialRevert(Nodes.ProviderHasNodes.selector);
        swarm.removeProvider(one);
        address[] memory both = new address[](2);
        (both[0], both[1]) = (node, vm.addr(0xD00D));
        vm.prank(provider);
        swarm.removeProvider(both);
        _units(provider, 0, 4);
        vm.prank(provider);
        vault.unbond(100 ether);
    }
}
