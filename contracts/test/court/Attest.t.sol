// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base, Sign} from "../Base.sol";
import {Court} from "../../src/Court.sol";
import {Pools} from "../../src/Pools.sol";

contract AttestTest is Base {
    uint256 private id;

    function setUp() public override {
        super.setUp();
        _register(provider, 0xD00D, 5);
        Pools.PoolParams memory params = _params();
        params.attested = true;
        id = _open(params);
        vm.prank(vm.addr(0xD00D));
        swarm.join(id, "");
    }

    function _attest(uint32 units, uint64 until) private {
        court.attest(id, vm.addr(0xD00D), units, _now(), until, _signed(units, _now(), until));
    }

    function _signed(uint32 units, uint64 madeAt, uint64 until) private view returns (bytes[] memory) {
        return _quorum(keccak256(abi.encode(Sign.ATTESTATION, id, vm.addr(0xD00D), units, madeAt, until)));
    }

    function _now() private view returns (uint64) {
        return uint64(block.timestamp);
    }

    function _last() private view returns (uint256) {
        return court.attestedAt(id, vm.addr(0xD00D));
    }

    function test_what_is_attested_is_told_with_its_time() public {
        eq(_last(), 0);
        bytes[] memory signatures = _signed(3, _now(), _now() + 50);
        vm.expectEmit(address(court));
        emit Court.NodeAttested(id, vm.addr(0xD00D), 3, _now(), _now() + 50);
        court.attest(id, vm.addr(0xD00D), 3, _now(), _now() + 50, signatures);
        eq(_last(), _now());
    }

    function test_an_old_attestation_is_not_shown_again() public {
        uint64 madeAt = _now();
        bytes[] memory signatures = _signed(3, madeAt, madeAt + 50);
        _attest(3, madeAt + 50);
        _refused(3, madeAt, madeAt + 50, signatures);
    }

    /// What judges signed and nobody sent dies with the revocation, however long it was to count.
    function test_an_attestation_that_nobody_sent_does_not_revive_after_its_revocation() public {
        uint64 madeAt = _now();
        bytes[] memory unsent = _signed(5, madeAt, madeAt + 80 days);
        vm.warp(madeAt + 1);
        _attest(0, madeAt + 10);
        _refused(5, madeAt, madeAt + 80 days, unsent);
        eq(_last(), madeAt + 1);
        vm.warp(madeAt + 2);
        _attest(2, madeAt + 10); // a newer one counts, although that one was to last longer
        eq(_last(), madeAt + 2);
    }

    function test_it_is_neither_over_nor_endless_nor_of_the_future() public {
        uint64 limit = _now() + 90 days;
        _refused(1, _now(), _now(), _signed(1, _now(), _now()));
        _refused(1, _now(), limit + 1, _signed(1, _now(), limit + 1));
        _refused(1, _now() + 1, limit, _signed(1, _now() + 1, limit));
        _attest(1, limit);
    }

    function test_one_judge_does_not_attest_and_nobody_does_in_a_pool_that_is_over() public {
        bytes[] memory both = _signed(3, _now(), _now() + 50);
        bytes[] memory one = new bytes[](1);
        one[0] = both[0];
        address worker = vm.addr(0xD00D);
        vm.expectPartialRevert(Court.QuorumMissing.selector);
        court.attest(id, worker, 3, _now(), _now() + 50, one);
        vm.expectPartialRevert(Court.NotAValidator.selector);
        court.attest(id, worker, 4, _now(), _now() + 50, both);
        vm.prank(manager);
        swarm.endPool(id);
        vm.expectPartialRevert(Pools.PoolOver.selector);
        court.attest(id, worker, 3, _now(), _now() + 50, both);
    }

    function _refused(uint32 units, uint64 madeAt, uint64 until, bytes[] memory signatures) private {
        address worker = vm.addr(0xD00D);
        vm.expectRevert(abi.encodeWithSelector(Court.BadAttestation.selector, madeAt, until));
        court.attest(id, worker, units, madeAt, until, signatures);
    }
}
