// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base} from "../Base.sol";
import {Court} from "../../src/Court.sol";
import {Pools} from "../../src/Pools.sol";
import {Swarm} from "../../src/Swarm.sol";

contract CreatePoolTest is Base {
    function test_every_term_is_kept_as_it_was_told() public {
        Pools.PoolParams memory params = _params();
        params.requirementRoot = bytes32(uint256(0x44));
        params.runURI = "https://example.org/run.toml";
        params.bootnodes = "/ip4/1.2.3.4/tcp/1\n/ip4/1.2.3.4/tcp/2";
        params.invited = true;
        PoolInfo memory info = _poolInfo(_open(params));
        yes(info.runRoot == params.runRoot, "run");
        yes(info.requirementRoot == params.requirementRoot, "requirement");
        yes(_same(info.runURI, params.runURI), "URI");
        yes(_same(info.bootnodes, params.bootnodes), "bootnodes");
        yes(info.invited && !info.attested, "flags");
        yes(!info.paused && !info.ended && !info.hasMembers, "fresh");
        eq(info.manager, manager);
        eq(info.rewardPerUnit, RATE);
        eq(info.slashAmount, SLASH);
        eq(info.maxUnitsPerEpoch, 100_000);
        eq(info.unitsPerEpoch, PER_EPOCH);
        eq(info.stoppedAt, 0);
        (params.invited, params.attested) = (false, true);
        info = _poolInfo(_open(params));
        yes(!info.invited && info.attested, "the other flag");
    }

    function test_the_clock_is_kept_as_it_was_told() public view {
        eq(_epochAt(pool, 1_700_000_000 - 1), 0);
        eq(_epochAt(pool, 1_700_000_000 + EPOCH), 1);
        eq(_info().startedAt, 1_700_000_000);
        eq(_info().window, WINDOW);
        eq(_info().epochSeconds, EPOCH);
        eq(_info().leaseSeconds, LEASE);
    }

    function test_a_pool_without_a_manager_or_without_work_is_refused() public {
        Pools.PoolParams memory params = _params();
        params.manager = address(0);
        _refused(params, abi.encodeWithSelector(Pools.ZeroAddress.selector));
        params = _params();
        params.maxUnitsPerEpoch = 0;
        _refused(params, abi.encodeWithSelector(Pools.ZeroAmount.selector));
        params = _params();
        params.unitsPerEpoch = 0;
        _refused(params, abi.encodeWithSelector(Pools.ZeroAmount.selector));
    }

    function test_a_pool_without_a_sensible_bench_is_refused() public {
        Pools.PoolParams memory params = _params();
        params.threshold = 3;
        _refused(params, abi.encodeWithSelector(Court.BadQuorum.selector, 2, 3));
        params.threshold = 2;
        params.validators[1] = params.validators[0];
        _refused(params, abi.encodeWithSelector(Court.BadValidator.selector, params.validators[0]));
    }

    function test_texts_may_be_as_long_as_said_and_no_longer() public {
        Pools.PoolParams memory params = _params();
        params.runURI = string(new bytes(256));
        params.bootnodes = string(new bytes(1024));
        _open(params);
        params.runURI = string(new bytes(257));
        _refused(params, abi.encodeWithSelector(Pools.TextTooLong.selector, 257, 256));
        params.runURI = "";
        params.bootnodes = string(new bytes(1025));
        _refused(params, abi.encodeWithSelector(Pools.TextTooLong.selector, 1025, 1024));
    }

    function test_no_slash_takes_more_than_a_node_bonds_for_itself() public {
        Pools.PoolParams memory params = _params();
        params.slashAmount = uint96(PER_UNIT);
        _open(params);
        params.slashAmount += 1;
        _refused(params, abi.encodeWithSelector(Pools.SlashTooHigh.selector, PER_UNIT + 1, PER_UNIT));
    }

    function test_a_stake_that_leaves_outlasts_the_window_by_no_second_less() public {
        Pools.PoolParams memory params = _params();
        params.window = uint32(UNBONDING) - EPOCH;
        params.delay = params.window / 4;
        _open(params);
        params.window += 4;
        params.delay += 1;
        _refused(params, abi.encodeWithSelector(Pools.WindowExceedsUnbonding.selector, UNBONDING + 4, UNBONDING));
    }

    function test_senseless_times_are_refused_and_the_last_sensible_ones_are_not() public {
        _openWith(uint32(MIN_WINDOW), EPOCH, EPOCH);
        _openWith(uint32(MIN_WINDOW), 1, type(uint24).max);
        uint256 least = MIN_WINDOW;
        bytes memory short = abi.encodeWithSelector(Pools.WindowTooShort.selector, least - 1, least);
        _refused(_timed(uint32(least) - 1, EPOCH, EPOCH), short);
        _refusedTimes(WINDOW, 0, LEASE);
        _refusedTimes(WINDOW, EPOCH, EPOCH - 1);
        _refusedTimes(WINDOW, EPOCH, uint32(type(uint24).max) + 1);
        _refusedTimes(uint32(type(uint24).max) + 1, EPOCH, LEASE);
        _refusedTimes(WINDOW, uint32(type(uint24).max) + 1, uint32(type(uint24).max) + 1);
    }

    function test_a_window_of_nothing_is_refused_also_where_any_window_is_long_enough() public {
        swarm = Swarm(_create("Swarm", abi.encode(vault, BASE, PER_UNIT, 0)));
        swarm.setCourt(Court(_create("Court", abi.encode(swarm))), address(payroll));
        _refusedTimes(0, EPOCH, LEASE);
    }

    function _openWith(uint32 window, uint32 epoch, uint32 lease) private {
        PoolInfo memory info = _poolInfo(_open(_timed(window, epoch, lease)));
        eq(info.window, window);
        eq(info.epochSeconds, epoch);
        eq(info.leaseSeconds, lease);
    }

    function _refusedTimes(uint32 window, uint32 epoch, uint32 lease) private {
        _refused(_timed(window, epoch, lease), abi.encodeWithSelector(Pools.BadTimes.selector, window, epoch, lease));
    }

    function _timed(uint32 window, uint32 epoch, uint32 lease) private view returns (Pools.PoolParams memory params) {
        params = _params();
        (params.window, params.epochSeconds, params.leaseSeconds) = (window, epoch, lease);
        params.delay = window;
    }

    function _refused(Pools.PoolParams memory params, bytes memory error_) private {
        vm.prank(manager);
        vm.expectRevert(error_);
        swarm.createPool(params);
    }
}
