// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Chair} from "../src/Chair.sol";
import {Court} from "../src/Court.sol";
import {Pools} from "../src/Pools.sol";
import {Base, Sign} from "./Base.sol";
import {Reader} from "./Reader.sol";

/// A16: terms and cases stood in storage only. One story, told to somebody who has nothing but its logs; what people may
/// do besides is in Invariants.t.sol.
contract LogsTest is Base {
    Reader private reader;
    Chair private chair;

    /// The deployment is part of the story.
    function setUp() public override {}

    function test_A16_whoever_has_the_logs_alone_knows_every_state() public {
        vm.recordLogs();
        super.setUp();
        chair = Chair(_create("Chair", abi.encode(court)));
        reader = new Reader(vault, swarm, court, payroll, chair);
        _seatTrainers();
        _tell();
        _openOfOwnTerms();
        _judge();
        _earn();
        _leave();
        _end();
    }

    /// What was told since, in this second.
    function _tell() private {
        reader.read(vm.getRecordedLogs());
        reader.check();
    }

    function _after(uint256 seconds_) private {
        _tell();
        vm.warp(block.timestamp + seconds_);
        reader.check();
    }

    function _seatTrainers() private {
        address[] memory trainers = new address[](2);
        (trainers[0], trainers[1]) = (node, anybody);
        vm.prank(manager);
        chair.seat(pool, trainers, 100, 10);
        vm.prank(node);
        chair.hold(pool, 7, ROOT);
    }

    function _openOfOwnTerms() private {
        Pools.PoolParams memory params = _params();
        (params.invited, params.attested, params.guardian) = (true, true, address(0));
        (params.runURI, params.bootnodes, params.requirementRoot) = ("ipfs://run", "/ip4/1.2.3.4/tcp/1", ROOT);
        uint256 id = _open(params);
        vm.prank(manager);
        swarm.setPoolRun(id, ROOT);
        Court.Invited memory by = _invited(managerKey, id, anybody, 2, uint64(block.timestamp), 0xF001, node);
        by.invitee = vm.addr(0xF001);
        by.signature = _sign(managerKey, keccak256(abi.encode(Sign.INVITATION, id, by.invitee, 2, by.deadline)));
        court.admit(id, node, by);
        address[] memory taken = new address[](2);
        (taken[0], taken[1]) = (by.invitee, anybody);
        vm.prank(manager);
        court.revokeInvitations(id, taken);
        bytes32 found = keccak256(abi.encode(Sign.ATTESTATION, id, node, 3, block.timestamp, block.timestamp + 9));
        court.attest(id, node, 3, uint64(block.timestamp), uint64(block.timestamp + 9), _quorum(found));
        _after(9);
    }

    /// Overturned; final, while another case waits; and by evidence.
    function _judge() private {
        _slash(_file(0, 1));
        _give(provider, PUT, address(vault));
        vm.prank(provider);
        vault.appeal(1);
        vm.prank(arbiter);
        swarm.overturn(pool, node);
        vm.prank(node);
        swarm.join(pool, "back");
        vm.prank(provider);
        vault.unbond(15 ether);
        _slash(_file(1, 1));
        _after(APPEAL);
        vault.finalize(2);
        vault.collect(provider);
        _contradict();
        vm.prank(arbiter);
        vault.nameSuccessor(anybody);
        _after(2 * APPEAL);
        vm.prank(anybody);
        vault.acceptArbiter();
        arbiter = anybody;
    }

    /// What an evicted node has coming goes back; another one is paid; a table is dropped.
    function _earn() private {
        (address first, bytes32 old) = (node, _line(node, 900));
        _startIn(pool);
        bytes32 root = _both(old, _line(node, 100));
        bytes32[] memory proof = new bytes32[](1);
        _after(_matures(20) > block.timestamp ? _matures(20) - block.timestamp : 0);
        _offer(20, root, 1000);
        _after(DELAY);
        proof[0] = _line(node, 100);
        payroll.claim(pool, first, 900, proof);
        proof[0] = old;
        payroll.claim(pool, node, 100, proof);
        _after(EPOCH);
        _offer(21, root, 1001);
        vm.prank(guardian);
        payroll.hold(pool);
        _after(APPEAL - 1);
        vm.prank(arbiter);
        payroll.drop(pool, _signers());
    }

    function _leave() private {
        address[] memory one = new address[](1);
        one[0] = node;
        vm.prank(provider);
        swarm.removeNode(node);
        vm.prank(provider);
        vault.unbond(30 ether);
        _after(UNBONDING);
        swarm.release(one);
        vm.prank(provider);
        vault.rebond(1 ether);
        vm.prank(provider);
        vault.withdraw();
        _register(provider, nodeKey, 2);
    }

    function _end() private {
        address[] memory others = new address[](1);
        others[0] = node;
        vm.prank(manager);
        court.proposeValidators(pool, others, 1);
        vm.prank(manager);
        chair.propose(pool, others);
        vm.prank(manager);
        swarm.pausePool(pool);
        _after(WINDOW);
        court.applyValidators(pool);
        chair.applyTrainers(pool);
        vm.prank(node);
        vm.expectRevert();
        chair.take(pool, 1, 3, ROOT);
        vm.prank(manager);
        swarm.resumePool(pool);
        vm.prank(node);
        swarm.join(pool, "");
        vm.prank(node);
        chair.take(pool, 1, 3, ROOT);
        _tell();
        vm.prank(manager);
        swarm.endPool(pool);
        _after(10 * WINDOW);
        payroll.sweep(pool);
        _tell();
    }
}
