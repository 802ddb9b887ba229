// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base, Sign} from "../Base.sol";
import {Members} from "../../src/Members.sol";
import {Nodes} from "../../src/Nodes.sol";
import {Pools} from "../../src/Pools.sol";

contract AttestTest is Base {
    uint256 private id;

    function setUp() public override {
        super.setUp();
        _register(provider, 0xD00D, 5);
        Pools.PoolParams memory params = _params();
        params.attested = true;
        id = _open(params);
    }

    function _attest(uint32 units, uint64 until) private {
        bytes32 statement = keccak256(abi.encode(Sign.ATTESTATION, id, vm.addr(0xD00D), units, until));
        court.attest(id, vm.addr(0xD00D), units, until, _quorum(statement));
    }

    function _capacity() private view returns (uint256) {
        return swarm.capacityOf(id, vm.addr(0xD00D));
    }

    function test_only_attested_units_count_and_only_as_long() public {
        eq(_capacity(), 0);
        uint64 until = uint64(block.timestamp + 50);
        _attest(3, until);
        eq(_capacity(), 300_000);
        vm.warp(until - 1);
        eq(_capacity(), 300_000);
        vm.warp(until);
        eq(_capacity(), 0);
        _attest(9, until + 10);
        eq(_capacity(), 500_000); // not more than it declared
    }

    function test_an_old_attestation_is_not_shown_again() public {
        uint64 until = uint64(block.timestamp + 50);
        _attest(3, until);
        bytes32 statement = keccak256(abi.encode(Sign.ATTESTATION, id, vm.addr(0xD00D), uint32(3), until));
        bytes[] memory signatures = _quorum(statement);
        vm.expectPartialRevert(Members.BadAttestation.selector);
        court.attest(id, vm.addr(0xD00D), 3, until, signatures);
        _attest(0, until + 1);
        eq(_capacity(), 0);
    }

    function test_it_is_neither_over_nor_endless_nor_larger_than_a_node() public {
        uint64 limit = uint64(block.timestamp + 90 days);
        _expectBad(1, uint64(block.timestamp), Members.BadAttestation.selector);
        _expectBad(1, limit + 1, Members.BadAttestation.selector);
        _expectBad(1_000_001, limit, Nodes.UnitsOutOfRange.selector);
        _attest(1_000_000, limit);
    }

    function _expectBad(uint32 units, uint64 until, bytes4 error_) private {
        bytes32 statement = keccak256(abi.encode(Sign.ATTESTATION, id, vm.addr(0xD00D), units, until));
        bytes[] memory signatures = _quorum(statement);
        vm.expectPartialRevert(error_);
        court.attest(id, vm.addr(0xD00D), units, until, signatures);
    }
}
