// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base} from "../Base.sol";
import {Chair} from "../../src/Chair.sol";
import {Court} from "../../src/Court.sol";
import {Pools} from "../../src/Pools.sol";

/// The cold key that opened a pool, and the hot one that manages it.
contract OfficesTest is Base {
    address private opener = address(0x0FE2);
    Chair private chair;

    function setUp() public override {
        super.setUp();
        chair = Chair(_create("Chair", abi.encode(court)));
        vm.prank(opener);
        pool = swarm.createPool(_params());
        _fund(pool, ESCROW);
    }

    function _puppets() private pure returns (address[] memory puppets) {
        puppets = new address[](1);
        puppets[0] = address(0xBAD);
    }

    /// A6. The manager's key, by default the trainer's, named its own judges and took the free escrow.
    function test_A6_the_hot_key_names_no_judges_and_no_trainers_and_ends_nothing() public {
        address[] memory puppets = _puppets();
        vm.prank(manager);
        chair.seat(pool, puppets, LEASE, 100); // it leads without that
        vm.prank(manager);
        vm.expectRevert(abi.encodeWithSelector(Court.OnlyOpener.selector, manager));
        court.proposeValidators(pool, puppets, 1);
        vm.prank(manager);
        vm.expectRevert(abi.encodeWithSelector(Chair.OnlyOpener.selector, manager));
        chair.propose(pool, puppets);
        vm.prank(manager);
        vm.expectRevert(abi.encodeWithSelector(Pools.OnlyOpener.selector, manager));
        swarm.endPool(pool);
    }

    function test_A6_control_the_cold_key_does_all_of_it_a_window_ahead() public {
        address[] memory puppets = _puppets();
        vm.prank(opener);
        chair.seat(pool, _signers(), LEASE, 100);
        vm.prank(opener);
        court.proposeValidators(pool, puppets, 1);
        vm.prank(opener);
        chair.propose(pool, puppets);
        vm.warp(block.timestamp + WINDOW - 1);
        vm.expectPartialRevert(Court.TooEarly.selector);
        court.applyValidators(pool);
        vm.warp(block.timestamp + 1);
        court.applyValidators(pool);
        chair.applyTrainers(pool);
        eq(court.benchOf(pool).validators[0], puppets[0]);
        eq(chair.seatingOf(pool).trainers[0], puppets[0]);
        vm.prank(opener);
        swarm.endPool(pool);
        yes(_info().ended, "ended");
    }

    /// A21. `pool end` did not stop the judges that a thief had named: they blocked the last honest table, too.
    function test_A21_nobody_takes_office_in_a_pool_that_has_ended() public {
        vm.prank(opener);
        chair.seat(pool, _signers(), LEASE, 100);
        vm.prank(opener);
        court.proposeValidators(pool, _puppets(), 1);
        vm.prank(opener);
        chair.propose(pool, _puppets());
        vm.prank(opener);
        swarm.endPool(pool);
        vm.warp(block.timestamp + WINDOW);
        vm.expectRevert(abi.encodeWithSelector(Pools.PoolOver.selector, pool));
        court.applyValidators(pool);
        vm.expectRevert(abi.encodeWithSelector(Pools.PoolOver.selector, pool));
        chair.applyTrainers(pool);
        vm.warp(_matures(0));
        _post(0, _line(node, 1000), 1000); // by those who saw the work
        eq(payroll.bookOf(pool).total, 1000);
    }

    function test_naming_anew_undoes_what_was_named_and_waits_a_window_itself() public {
        vm.prank(opener);
        court.proposeValidators(pool, _puppets(), 1);
        vm.warp(block.timestamp + WINDOW - 1);
        vm.prank(opener);
        court.proposeValidators(pool, _signers(), 2);
        vm.warp(block.timestamp + 1);
        vm.expectPartialRevert(Court.TooEarly.selector);
        court.applyValidators(pool);
        vm.warp(block.timestamp + WINDOW);
        court.applyValidators(pool);
        eq(court.benchOf(pool).validators[0], vm.addr(judgeKeys[0]));
    }
}
