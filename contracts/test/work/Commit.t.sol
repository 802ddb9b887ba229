// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base} from "../Base.sol";
import {Nodes} from "../../src/Nodes.sol";
import {Pools} from "../../src/Pools.sol";
import {Work} from "../../src/Work.sol";

contract CommitTest is Base {
    function testFuzz_work_reserves_what_the_escrow_has(uint32 units, uint32 funded) public {
        Pools.PoolParams memory params = _params();
        params.maxUnitsPerEpoch = type(uint32).max;
        pool = _open(params);
        funded = uint32(_bounded(funded, 1, 1e6));
        _fund(pool, uint256(funded) * RATE);
        _startIn(pool);
        units = uint32(_bounded(units, 1, type(uint32).max));
        _commit(0, ROOT, units);
        uint256 reserved = units < funded ? units : funded;
        eq(_work(0).units, units);
        eq(_work(0).reservedUnits, reserved);
        eq(_info().reserved, reserved * RATE);
        eq(_info().escrow, (funded - reserved) * RATE);
        yes(_work(0).root == bytes20(ROOT), "root");
        yes(_info().hasWork, "worked");
        yes(!_info().paused && !_info().ended && !_info().invited && !_info().attested, "no other flag");
        eq(_info().maxUnitsPerEpoch, type(uint32).max);
    }

    function test_the_hours_of_commitment() public {
        uint256 start = block.timestamp;
        vm.warp(start + EPOCH - 1);
        vm.prank(node);
        vm.expectPartialRevert(Work.EpochNotStarted.selector);
        swarm.commitWork(pool, 1, ROOT, 1);
        vm.warp(start + EPOCH);
        _commit(1, ROOT, 1);
        vm.warp(start + EPOCH + WINDOW / 2 - 1);
        _commit(0, ROOT, 1);
        vm.warp(start + 3 * EPOCH + WINDOW / 2);
        vm.prank(node);
        vm.expectPartialRevert(Work.CommitTooLate.selector);
        swarm.commitWork(pool, 2, ROOT, 1);
    }

    function test_one_root_per_epoch_and_none_that_is_nothing() public {
        _commit(0, ROOT, 1);
        vm.prank(node);
        vm.expectPartialRevert(Work.AlreadyCommitted.selector);
        swarm.commitWork(pool, 0, bytes32(uint256(5) << 200), 1);
        vm.warp(block.timestamp + EPOCH);
        vm.prank(node);
        vm.expectPartialRevert(Work.EmptyRoot.selector);
        swarm.commitWork(pool, 1, bytes32(uint256(1)), 1); // its first 20 bytes are zeros
    }

    function test_units_within_the_nodes_capacity() public {
        vm.prank(node);
        vm.expectPartialRevert(Nodes.UnitsOutOfRange.selector);
        swarm.commitWork(pool, 0, ROOT, 0);
        vm.prank(node);
        vm.expectPartialRevert(Nodes.UnitsOutOfRange.selector);
        swarm.commitWork(pool, 0, ROOT, 100_001);
        _commit(0, ROOT, 100_000);
    }

    function test_a_pool_without_pay_takes_work_of_volunteers() public {
        Pools.PoolParams memory params = _params();
        params.rewardPerUnit = 0;
        pool = _open(params);
        _startIn(pool);
        _commit(0, ROOT, 1000);
        eq(_work(0).units, 1000);
        eq(_work(0).reserved, 0);
    }

    function test_an_epoch_costs_less_than_sixty_thousand_gas() public {
        _commit(0, ROOT, 1000);
        vm.warp(block.timestamp + EPOCH);
        bytes memory data = abi.encodeCall(swarm.commitWork, (pool, 1, keccak256("a root"), 99_999));
        uint256 intrinsic = 21_000;
        for (uint256 i = 0; i < data.length; ++i) intrinsic += data[i] == 0 ? 4 : 16;
        vm.prank(node);
        uint256 before = gasleft();
        (bool done,) = address(swarm).call(data);
        uint256 used = before - gasleft();
        yes(done, "committed");
        // the slots are warm here, since this is one transaction; cold access adds 2,600 + 3 * 2,000
        yes(used + intrinsic < 60_000, "gas");
    }
}
