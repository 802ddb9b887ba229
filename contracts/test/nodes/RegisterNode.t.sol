// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base, Sign} from "../Base.sol";
import {Nodes} from "../../src/Nodes.sol";
import {WrongSigner} from "../../src/Statements.sol";

contract RegisterNodeTest is Base {
    uint256 private constant KEY = 0xD00D;

    function _tryRegister(address who, uint32 units, uint256 deadline, bytes memory signature, bytes4 error_) private {
        vm.prank(who);
        if (error_ != 0) vm.expectPartialRevert(error_);
        swarm.registerNode(vm.addr(KEY), units, deadline, signature);
    }

    function testFuzz_units_are_bounded_and_paid_for(uint32 units) public {
        bytes memory signature = _registration(provider, KEY, units, block.timestamp);
        bytes4 error_ = units == 0 || units > 1_000_000
            ? Nodes.UnitsOutOfRange.selector
            : units > 8 ? Nodes.StakeTooLow.selector : bytes4(0);
        _tryRegister(provider, units, block.timestamp, signature, error_);
        _units(provider, error_ == 0 ? 1 + units : 1, 0);
    }

    function test_the_last_affordable_unit_and_the_first_that_is_not() public {
        bytes memory nine = _registration(provider, KEY, 9, block.timestamp);
        _tryRegister(provider, 9, block.timestamp, nine, Nodes.StakeTooLow.selector);
        bytes memory eight = _registration(provider, KEY, 8, block.timestamp);
        _tryRegister(provider, 8, block.timestamp, eight, 0);
        eq(swarm.requiredStake(provider), 100 ether);
    }

    function test_the_biggest_node_and_the_first_that_is_too_big() public {
        bytes memory biggest = _registration(provider, KEY, 1_000_000, block.timestamp);
        _tryRegister(provider, 1_000_000, block.timestamp, biggest, Nodes.StakeTooLow.selector);
        bytes memory bigger = _registration(provider, KEY, 1_000_001, block.timestamp);
        _tryRegister(provider, 1_000_001, block.timestamp, bigger, Nodes.UnitsOutOfRange.selector);
    }

    function test_a_consent_holds_until_its_deadline() public {
        uint256 deadline = block.timestamp + 5;
        bytes memory signature = _registration(provider, KEY, 1, deadline);
        vm.warp(deadline + 1);
        _tryRegister(provider, 1, deadline, signature, Nodes.SignatureExpired.selector);
        vm.warp(deadline);
        _tryRegister(provider, 1, deadline, signature, 0);
        eq(swarm.nodeInfo(vm.addr(KEY)).nonce, 1);
    }

    function test_a_consent_is_good_once() public {
        bytes memory signature = _registration(provider, KEY, 1, block.timestamp);
        _tryRegister(provider, 1, block.timestamp, signature, 0);
        _tryRegister(provider, 1, block.timestamp, signature, Nodes.NodeTaken.selector);
        vm.prank(provider);
        swarm.removeNode(vm.addr(KEY));
        _tryRegister(provider, 1, block.timestamp, signature, WrongSigner.selector);
    }

    function test_a_node_has_one_provider_for_life() public {
        vm.prank(provider);
        swarm.removeNode(node);
        _bond(anybody, 20 ether);
        bytes memory signature = _registration(anybody, nodeKey, 1, block.timestamp);
        vm.prank(anybody);
        vm.expectPartialRevert(Nodes.NodeTaken.selector);
        swarm.registerNode(node, 1, block.timestamp, signature);
        _register(provider, nodeKey, 2);
        eq(swarm.nodeInfo(node).units, 2);
    }

    /// EIP-5267, for wallets: the fields make the very domain under which a consent is checked.
    function test_the_domain_says_of_what_it_is_made() public view {
        (bytes1 fields, string memory name, string memory version, uint256 chain, address where, bytes32 salt, uint256[] memory more)
        = swarm.eip712Domain();
        yes(fields == 0x0f && salt == 0 && more.length == 0, "name, version, chain and contract, nothing else");
        bytes32 kind = keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
        bytes32 made =
            keccak256(abi.encode(kind, keccak256(bytes(name)), keccak256(bytes(version)), chain, where));
        yes(made == Sign.domain(block.chainid, address(swarm)) && made == swarm.domainSeparator(), "the domain");
    }

    function test_a_node_is_not_its_own_provider() public {
        bytes memory signature = _registration(node, nodeKey, 1, block.timestamp);
        vm.prank(node);
        vm.expectPartialRevert(Nodes.NodeIsProvider.selector);
        swarm.registerNode(node, 1, block.timestamp, signature);
    }
}
