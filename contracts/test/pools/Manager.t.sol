// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base} from "../Base.sol";
import {Court} from "../../src/Court.sol";
import {Pools} from "../../src/Pools.sol";
import {Swarm} from "../../src/Swarm.sol";

contract ManagerTest is Base {
    function test_only_the_manager_or_the_opener() public {
        vm.expectPartialRevert(Pools.OnlyManager.selector);
        swarm.setPoolRun(pool, ROOT);
        vm.expectPartialRevert(Pools.OnlyManager.selector);
        swarm.setBootnodes(pool, "/ip4/1.2.3.4");
        vm.expectPartialRevert(Pools.OnlyManager.selector);
        swarm.pausePool(pool);
        vm.expectPartialRevert(Pools.OnlyManager.selector);
        swarm.resumePool(pool);
        vm.expectPartialRevert(Pools.OnlyOpener.selector);
        swarm.endPool(pool);
        vm.expectPartialRevert(Court.OnlyOpener.selector);
        court.proposeValidators(pool, _params().validators, 1);
    }

    function test_the_run_is_named_until_somebody_has_joined() public {
        uint256 id = _open(_params());
        vm.prank(manager);
        swarm.setPoolRun(id, ROOT);
        yes(_poolInfo(id).runRoot == ROOT, "named");
        yes(!_poolInfo(id).hasMembers, "nobody yet");
        vm.prank(node);
        swarm.join(id, "");
        yes(_poolInfo(id).hasMembers, "somebody");
        vm.prank(manager);
        vm.expectRevert(abi.encodeWithSelector(Pools.RunAlreadyJoined.selector, id));
        swarm.setPoolRun(id, bytes32(uint256(5)));
        vm.prank(node);
        swarm.leavePool(id);
        vm.prank(manager);
        vm.expectPartialRevert(Pools.RunAlreadyJoined.selector);
        swarm.setPoolRun(id, bytes32(uint256(5)));
    }

    function test_a_pause_stops_joins_and_an_end_is_for_ever() public {
        vm.prank(manager);
        swarm.pausePool(pool);
        vm.prank(manager);
        vm.expectPartialRevert(Pools.PoolIsPaused.selector);
        swarm.pausePool(pool);
        vm.prank(node);
        vm.expectPartialRevert(Pools.PoolIsPaused.selector);
        swarm.join(pool, "");
        vm.prank(manager);
        swarm.resumePool(pool);
        vm.prank(manager);
        vm.expectPartialRevert(Pools.PoolNotPaused.selector);
        swarm.resumePool(pool);
        vm.prank(manager);
        swarm.endPool(pool);
        vm.prank(manager);
        vm.expectPartialRevert(Pools.PoolOver.selector);
        swarm.resumePool(pool);
        vm.prank(node);
        vm.expectPartialRevert(Pools.PoolOver.selector);
        swarm.join(pool, "");
    }

    function test_bootnodes_are_kept_within_their_length_and_until_the_end() public {
        vm.prank(manager);
        swarm.setBootnodes(pool, "/ip4/1.2.3.4/tcp/1");
        yes(_same(_info().bootnodes, "/ip4/1.2.3.4/tcp/1"), "kept");
        vm.prank(manager);
        vm.expectRevert(abi.encodeWithSelector(Pools.TextTooLong.selector, 1025, 1024));
        swarm.setBootnodes(pool, string(new bytes(1025)));
        vm.prank(manager);
        swarm.setBootnodes(pool, string(new bytes(1024)));
        vm.prank(manager);
        swarm.endPool(pool);
        vm.prank(manager);
        vm.expectRevert(abi.encodeWithSelector(Pools.PoolOver.selector, pool));
        swarm.setBootnodes(pool, "");
    }

    function test_a_pool_says_since_when_it_stands_still() public {
        uint256 paused = block.timestamp + 7;
        vm.warp(paused);
        vm.prank(manager);
        swarm.pausePool(pool);
        yes(_info().paused, "paused");
        eq(_info().stoppedAt, paused);
        vm.warp(paused + 5);
        vm.prank(manager);
        swarm.resumePool(pool);
        yes(!_info().paused, "resumed");
        eq(_info().stoppedAt, 0);
        vm.prank(manager);
        swarm.endPool(pool);
        yes(_info().ended, "ended");
        eq(_info().stoppedAt, paused + 5);
    }

    function test_other_validators_take_office_all_at_once_after_a_window() public {
        address[] memory others = new address[](1);
        others[0] = vm.addr(judgeKeys[1]);
        vm.prank(manager);
        court.proposeValidators(pool, others, 1);
        uint256 from = block.timestamp + WINDOW;
        vm.warp(from - 1);
        vm.expectPartialRevert(Court.TooEarly.selector);
        court.applyValidators(pool);
        vm.warp(from);
        court.applyValidators(pool);
        Court.Bench memory bench = court.benchOf(pool);
        eq(bench.validators.length, 1);
        eq(bench.threshold, 1);
        eq(bench.proposed.length, 0);
        vm.expectPartialRevert(Court.NoProposal.selector);
        court.applyValidators(pool);
    }

    function test_a_proposal_lapses() public {
        address[] memory others = new address[](1);
        others[0] = vm.addr(judgeKeys[1]);
        vm.prank(manager);
        court.proposeValidators(pool, others, 1);
        uint256 until = block.timestamp + WINDOW + 7 days;
        vm.warp(until);
        vm.expectRevert(abi.encodeWithSelector(Court.ProposalLapsed.selector, until));
        court.applyValidators(pool);
        vm.warp(until - 1);
        court.applyValidators(pool);
        eq(court.benchOf(pool).validators.length, 1);
    }

    function test_senseless_benches_are_refused() public {
        address[] memory list = new address[](17);
        for (uint256 i = 0; i < 17; ++i) list[i] = address(uint160(i + 1));
        vm.prank(manager);
        vm.expectPartialRevert(Court.BadQuorum.selector);
        court.proposeValidators(pool, list, 1);
        list = new address[](2);
        (list[0], list[1]) = (anybody, anybody);
        vm.prank(manager);
        vm.expectPartialRevert(Court.BadValidator.selector);
        court.proposeValidators(pool, list, 1);
        list[1] = address(0);
        vm.prank(manager);
        vm.expectPartialRevert(Court.BadValidator.selector);
        court.proposeValidators(pool, list, 1);
        list[1] = provider;
        vm.prank(manager);
        vm.expectPartialRevert(Court.BadQuorum.selector);
        court.proposeValidators(pool, list, 0);
        vm.prank(manager);
        vm.expectPartialRevert(Court.BadQuorum.selector);
        court.proposeValidators(pool, list, 3);
    }

    function test_nobody_else_speaks_for_the_court_and_nobody_sets_it_twice() public {
        vm.expectPartialRevert(Pools.OnlyCourt.selector);
        swarm.punishByEvidence(pool, node, 1, ROOT);
        vm.expectPartialRevert(Pools.OnlyCourt.selector);
        swarm.punishByJudgement(pool, node, 1, ROOT, address(this));
        vm.expectPartialRevert(Pools.CourtAlreadySet.selector);
        swarm.setCourt(court, address(payroll));
        Swarm made = Swarm(_create("Swarm", abi.encode(vault, BASE, PER_UNIT, MIN_WINDOW)));
        vm.expectPartialRevert(Pools.ZeroAddress.selector);
        made.setCourt(Court(address(0)), address(payroll));
        vm.expectPartialRevert(Pools.ZeroAddress.selector);
        made.setCourt(court, address(0));
        vm.prank(anybody);
        vm.expectPartialRevert(Pools.OnlyDeployer.selector);
        swarm.setCourt(court, address(payroll));
        vm.expectPartialRevert(Court.OnlySwarm.selector);
        court.seat(pool, _params().validators, 1);
        vm.expectPartialRevert(Court.OnlyPayroll.selector);
        court.punishTable(pool, _signers(), ROOT);
    }
}
