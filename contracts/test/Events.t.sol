// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Court} from "../src/Court.sol";
import {Members} from "../src/Members.sol";
import {Nodes} from "../src/Nodes.sol";
import {Payroll} from "../src/Payroll.sol";
import {Pools} from "../src/Pools.sol";
import {StakeVault} from "../src/StakeVault.sol";
import {WorkCommitment} from "../src/Statements.sol";
import {Swarm} from "../src/Swarm.sol";
import {Base, Sign} from "./Base.sol";

/// What nodes follow is told in events, each with all that it says. Those of slashes and benches stand in Edges.t.sol.
contract EventsTest is Base {
    function test_a_vault_tells_its_arbiter_and_swarm() public {
        StakeVault.Params memory params = StakeVault.Params(2, 1, treasury, arbiter, 0, 0, 1);
        vm.expectEmit();
        emit StakeVault.ArbiterSet(arbiter);
        StakeVault made = StakeVault(_create("StakeVault", abi.encode(token, params)));
        vm.expectEmit(address(made));
        emit StakeVault.SwarmSet(anybody);
        made.setSwarm(anybody);
        vm.expectEmit(address(made));
        emit StakeVault.SuccessorNamed(provider, uint64(block.timestamp) + 2);
        vm.prank(arbiter);
        made.nameSuccessor(provider);
        vm.warp(block.timestamp + 2);
        vm.expectEmit(address(made));
        emit StakeVault.ArbiterSet(provider);
        vm.prank(provider);
        made.acceptArbiter();
    }

    function test_a_stake_tells_its_way_in_and_out() public {
        _give(anybody, 5 ether, address(vault));
        vm.expectEmit(address(vault));
        emit StakeVault.Bonded(provider, anybody, 5 ether, 105 ether);
        vm.prank(anybody);
        vault.bond(provider, 5 ether);
        uint64 until = uint64(block.timestamp) + UNBONDING;
        vm.expectEmit(address(vault));
        emit StakeVault.Unbonding(provider, 40 ether, 40 ether, until);
        vm.prank(provider);
        vault.unbond(40 ether);
        vm.expectEmit(address(vault));
        emit StakeVault.Rebonded(provider, 10 ether, 75 ether);
        vm.prank(provider);
        vault.rebond(10 ether);
        vm.warp(until);
        vm.expectEmit(address(vault));
        emit StakeVault.Withdrawn(provider, 30 ether);
        vm.prank(provider);
        vault.withdraw();
    }

    function test_a_case_tells_its_way() public {
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        uint64 finalAt = uint64(block.timestamp) + APPEAL;
        _give(provider, PUT, address(vault));
        vm.expectEmit(address(vault));
        emit StakeVault.StakeFrozen(1, provider, SLASH, finalAt, uint32(pool), address(this), PUT);
        court.slash(c, own, 5, verdicts, _blank(verdicts), 0);
        vm.warp(block.timestamp + 1);
        vm.expectEmit(address(vault));
        emit StakeVault.Appealed(1, provider, finalAt + 1);
        vm.prank(provider);
        vault.appeal(1);
        vm.expectEmit(address(vault));
        emit StakeVault.Overturned(1, provider, SLASH);
        vm.expectEmit(address(vault));
        emit StakeVault.Credited(vault.BURNED(), PUT / 10);
        vm.expectEmit(address(vault));
        emit StakeVault.Credited(provider, 2 * PUT - PUT / 10);
        vm.expectEmit(address(swarm));
        emit Swarm.SlashOverturned(pool, node, 1, PUT - PUT / 10);
        vm.prank(arbiter);
        swarm.overturn(pool, node);
        vm.expectEmit(address(vault));
        emit StakeVault.Collected(provider, 2 * PUT - PUT / 10);
        vault.collect(provider);
    }

    function test_what_is_gone_for_ever_is_told() public {
        _slash(_file(0, 1));
        vm.warp(block.timestamp + APPEAL);
        vm.expectEmit(address(vault));
        emit StakeVault.Finalized(1, provider, SLASH);
        vm.expectEmit(address(vault));
        emit StakeVault.StakeSlashed(provider, 1, SLASH, SLASH * 49 / 100);
        vm.expectEmit(address(vault));
        emit StakeVault.Credited(vault.BURNED(), SLASH * 49 / 100);
        vm.expectEmit(address(vault));
        emit StakeVault.Credited(treasury, SLASH * 49 / 100);
        vm.expectEmit(address(vault));
        emit StakeVault.Credited(address(this), SLASH / 50 + PUT);
        vault.finalize(1);
    }

    function test_a_provider_tells_its_nodes() public {
        uint256 deadline = block.timestamp;
        bytes memory consent = _registration(provider, 0xD00D, 2, deadline);
        vm.expectEmit(address(swarm));
        emit Nodes.NodeRegistered(provider, vm.addr(0xD00D), 2);
        vm.prank(provider);
        swarm.registerNode(vm.addr(0xD00D), 2, deadline, consent);
        address[] memory all = new address[](2);
        (all[0], all[1]) = (node, vm.addr(0xD00D));
        vm.expectEmit(address(swarm));
        emit Nodes.Left(pool, node, provider);
        vm.prank(provider);
        swarm.removeProvider(all);
        vm.warp(block.timestamp + UNBONDING);
        vm.expectEmit(address(swarm));
        emit Nodes.NodeReleased(provider, node, 1);
        vm.expectEmit(address(swarm));
        emit Nodes.NodeReleased(provider, vm.addr(0xD00D), 2);
        swarm.release(all);
    }

    function test_a_pool_tells_its_life() public {
        Pools.PoolParams memory params = _params();
        params.runURI = "ipfs://run";
        _give(manager, 3 ether, address(payroll));
        uint256 id = pool + 1;
        vm.expectEmit(address(swarm));
        emit Pools.PoolCreated(id, manager, manager, params);
        vm.prank(manager);
        swarm.createPool(params);
        vm.expectEmit(address(payroll));
        emit Payroll.PoolFunded(id, manager, 2 ether, 2 ether);
        vm.prank(manager);
        payroll.fund(id, 2 ether + 1);
        vm.expectEmit(address(payroll));
        emit Payroll.PoolFunded(id, manager, 1 ether, 3 ether);
        vm.prank(manager);
        payroll.fund(id, 1 ether);
    }

    function test_a_manager_tells_what_it_does() public {
        uint256 id = _open(_params());
        vm.expectEmit(address(swarm));
        emit Pools.PoolRunSet(id, ROOT);
        vm.prank(manager);
        swarm.setPoolRun(id, ROOT);
        vm.expectEmit(address(swarm));
        emit Pools.BootnodesSet(pool, "/ip4/1.2.3.4/tcp/1");
        vm.prank(manager);
        swarm.setBootnodes(pool, "/ip4/1.2.3.4/tcp/1");
        vm.expectEmit(address(swarm));
        emit Pools.PoolPaused(pool);
        vm.prank(manager);
        swarm.pausePool(pool);
        vm.expectEmit(address(swarm));
        emit Pools.PoolResumed(pool);
        vm.prank(manager);
        swarm.resumePool(pool);
        vm.expectEmit(address(swarm));
        emit Pools.PoolEnded(pool);
        vm.prank(manager);
        swarm.endPool(pool);
        vm.warp(_matures(0) + 2 * WINDOW);
        vm.expectEmit(address(payroll));
        emit Payroll.PoolSwept(pool, manager, ESCROW);
        payroll.sweep(pool);
    }

    function test_invitations_that_are_taken_back_are_told() public {
        address[] memory invitees = new address[](2);
        (invitees[0], invitees[1]) = (anybody, node);
        vm.expectEmit(address(court));
        emit Court.InvitationsRevoked(pool, invitees);
        vm.prank(manager);
        court.revokeInvitations(pool, invitees);
    }

    function test_a_swarm_tells_its_court() public {
        Swarm made = Swarm(_create("Swarm", abi.encode(vault, BASE, PER_UNIT, MIN_WINDOW)));
        vm.expectEmit(address(made));
        emit Pools.CourtSet(address(court), address(payroll));
        made.setCourt(court, address(payroll));
    }

    function test_an_attestation_is_told() public {
        (uint64 madeAt, uint64 until) = (uint64(block.timestamp), uint64(block.timestamp + 9));
        bytes32 statement = keccak256(abi.encode(Sign.ATTESTATION, pool, node, 3, madeAt, until));
        bytes[] memory signatures = _quorum(statement);
        vm.expectEmit(address(court));
        emit Court.NodeAttested(pool, node, 3, madeAt, until);
        court.attest(pool, node, 3, madeAt, until, signatures);
    }
}
