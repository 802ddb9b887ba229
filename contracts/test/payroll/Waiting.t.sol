// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base, Sign} from "../Base.sol";
import {Court} from "../../src/Court.sol";
import {Members} from "../../src/Members.sol";
import {Payroll} from "../../src/Payroll.sol";
import {Pools} from "../../src/Pools.sol";
import {StakeVault} from "../../src/StakeVault.sol";
import {Tally} from "../../src/Statements.sol";

/// What happens to a table between its posting and its counting.
contract WaitingTest is Base {
    function offer(uint64 epoch, uint64 total) external {
        _offer(epoch, ROOT, total);
    }

    function claim(uint64 units) external {
        _claim(units);
    }

    function _hold() private {
        vm.prank(guardian);
        payroll.hold(pool);
    }

    function _drop() private {
        address[] memory signers = _signers();
        vm.prank(arbiter);
        payroll.drop(pool, signers);
    }

    // ---- waiting

    function test_a_table_counts_in_the_second_in_which_its_delay_is_over() public {
        vm.warp(_matures(0));
        _offer(0, _line(node, 1000), 1000);
        uint256 countsAt = block.timestamp + DELAY;
        eq(payroll.waitingOf(pool).countsAt, countsAt);
        vm.warp(countsAt - 1);
        eq(payroll.bookOf(pool).total, 0);
        eq(_info().escrow, ESCROW);
        vm.expectPartialRevert(Payroll.BadProof.selector);
        this.claim(1000);
        vm.warp(countsAt);
        eq(payroll.bookOf(pool).total, 1000);
        eq(payroll.waitingOf(pool).countsAt, 0);
        _claim(1000);
        eq(token.balanceOf(provider), 1 ether);
        eq(payroll.bookOf(pool).total, 1000);
        eq(payroll.bookOf(pool).lastUnits, 1000);
        eq(payroll.bookOf(pool).lastEpochs, 1);
    }

    function test_nobody_pushes_a_table_away_or_starts_its_clock_again() public {
        vm.warp(_matures(2));
        _offer(0, ROOT, 10);
        uint64 countsAt = payroll.waitingOf(pool).countsAt;
        vm.warp(countsAt - 1);
        vm.expectRevert(abi.encodeWithSelector(Payroll.TableWaits.selector, pool, countsAt));
        this.offer(1, 20);
        vm.warp(countsAt);
        _offer(1, ROOT, 20); // moves the former over
        eq(payroll.bookOf(pool).total, 10);
        eq(payroll.waitingOf(pool).total, 20);
        eq(payroll.waitingOf(pool).countsAt, countsAt + DELAY);
    }

    /// Whoever carries tables of single short epochs in their order would make pay fall behind for ever.
    function test_a_table_covers_the_time_that_it_waits_but_for_the_last_of_a_pool_that_has_ended() public {
        Pools.PoolParams memory params = _params();
        params.epochSeconds = 30;
        _startIn(_open(params));
        _fund(pool, 100 * RATE);
        vm.warp(_matures(2));
        vm.expectRevert(abi.encodeWithSelector(Payroll.TooFewEpochs.selector, 60, DELAY));
        this.offer(1, 10);
        _post(2, ROOT, 10);
        vm.prank(manager);
        swarm.endPool(pool);
        uint64 last = _epochAt(pool, block.timestamp);
        vm.warp(_matures(last - 2));
        _post(last - 2, ROOT, 20);
        vm.expectRevert(abi.encodeWithSelector(Payroll.TooFewEpochs.selector, 30, DELAY));
        this.offer(last - 1, 30);
        _post(last, ROOT, 30); // sixty seconds
        eq(payroll.bookOf(pool).total, 30);
    }

    function test_a_table_may_cover_exactly_as_long_as_it_waits() public {
        Pools.PoolParams memory params = _params();
        (params.epochSeconds, params.delay) = (30, 90);
        _startIn(_open(params));
        _fund(pool, 100 * RATE);
        vm.warp(_matures(2));
        vm.expectRevert(abi.encodeWithSelector(Payroll.TooFewEpochs.selector, 60, 90));
        this.offer(1, 10);
        _offer(2, ROOT, 10);
        eq(payroll.waitingOf(pool).total, 10);
    }

    /// The bad input of a day: the pool ends in the second in which its table is posted.
    function test_a_pool_that_ends_in_the_second_in_which_a_table_is_posted_pays_it() public {
        vm.warp(_matures(0));
        _offer(0, _line(node, 1000), 1000);
        vm.prank(manager);
        swarm.endPool(pool);
        vm.warp(block.timestamp + DELAY);
        _claim(1000);
        eq(token.balanceOf(provider), 1 ether);
        vm.warp(block.timestamp + 1000 days);
        payroll.sweep(pool);
        eq(token.balanceOf(manager), ESCROW - 1 ether);
    }

    function test_money_that_waits_for_a_table_is_not_swept() public {
        vm.prank(manager);
        swarm.endPool(pool);
        uint256 closes = _matures(0) + WINDOW;
        vm.warp(closes - 1);
        _offer(0, _line(node, 1000), 1000);
        _hold();
        uint64 countsAt = payroll.waitingOf(pool).countsAt;
        vm.warp(countsAt + WINDOW - 1);
        vm.expectRevert(abi.encodeWithSelector(Payroll.PoolStillOpen.selector, pool, countsAt + WINDOW));
        payroll.sweep(pool);
        vm.warp(countsAt + WINDOW);
        payroll.sweep(pool); // moves it over first
        eq(token.balanceOf(manager), ESCROW - 1 ether);
        _claim(1000);
        eq(token.balanceOf(address(payroll)), 0);
    }

    // ---- A7: a quorum's false table was paid in its block, and cost nothing

    function test_A7_a_false_table_that_is_held_and_dropped_pays_nothing_and_costs_each_signer_its_slash() public {
        address judge = vm.addr(judgeKeys[0]);
        vm.prank(judge);
        swarm.join(pool, "");
        vm.warp(_matures(4));
        _offer(4, _line(node, uint64(ESCROW / RATE)), uint64(ESCROW / RATE)); // all of it
        vm.warp(block.timestamp + DELAY - 1);
        _hold();
        uint256 before = vault.bondedOf(address(0x5005));
        vm.expectEmit(address(payroll));
        emit Payroll.EarningsDropped(pool, 4, _line(node, uint64(ESCROW / RATE)));
        _drop();
        eq(before - vault.bondedOf(address(0x5005)), 2 * uint256(SLASH));
        eq(_info().escrow, ESCROW);
        eq(court.benchOf(pool).validators.length, 0);
        yes(swarm.memberInfo(pool, judge).evicted, "membership");
        eq(swarm.nodeInfo(judge).pool, 0);
        eq(payroll.bookOf(pool).epochs, 0);
        vm.warp(block.timestamp + 1000 days);
        vm.expectPartialRevert(Payroll.BadProof.selector);
        this.claim(uint64(ESCROW / RATE));
    }

    function test_A7_control_nobody_holds_it_and_it_is_paid() public {
        _earn(4, uint64(ESCROW / RATE));
        _claim(uint64(ESCROW / RATE));
        eq(token.balanceOf(provider), ESCROW);
        eq(vault.bondedOf(address(0x5005)), 30 ether);
    }

    /// A guardian that holds whatever comes delays each payment by one appeal, and gets nothing.
    function test_silence_pays_what_is_held() public {
        vm.warp(_matures(0));
        _offer(0, _line(node, 1000), 1000);
        vm.warp(block.timestamp + DELAY - 1);
        uint64 countsAt = uint64(block.timestamp) + APPEAL;
        vm.expectEmit(address(payroll));
        emit Payroll.EarningsHeld(pool, 0, countsAt);
        _hold();
        vm.prank(guardian);
        vm.expectRevert(abi.encodeWithSelector(Payroll.AlreadyHeld.selector, pool));
        payroll.hold(pool);
        vm.warp(countsAt - 1);
        vm.expectPartialRevert(Payroll.BadProof.selector);
        this.claim(1000);
        vm.warp(countsAt);
        vm.prank(guardian);
        vm.expectRevert(abi.encodeWithSelector(Payroll.NoTableWaits.selector, pool));
        payroll.hold(pool);
        _refusedDrop(arbiter, Payroll.NoTableWaits.selector);
        _claim(1000);
        eq(token.balanceOf(provider), 1 ether);
        eq(token.balanceOf(guardian), 0);
        vm.warp(_matures(9));
        _offer(9, ROOT, 2000); // the next one may be held again
        _hold();
        eq(payroll.waitingOf(pool).countsAt, block.timestamp + APPEAL);
    }

    function test_only_the_guardian_holds_and_only_the_arbiter_drops_what_is_held() public {
        vm.warp(_matures(0));
        vm.prank(guardian);
        vm.expectRevert(abi.encodeWithSelector(Payroll.NoTableWaits.selector, pool));
        payroll.hold(pool);
        _offer(0, ROOT, 1000);
        vm.prank(manager);
        vm.expectPartialRevert(Payroll.OnlyGuardian.selector);
        payroll.hold(pool);
        _refusedDrop(arbiter, Payroll.NotHeld.selector);
        _hold();
        _refusedDrop(guardian, Payroll.OnlyArbiter.selector);
        address[] memory others = new address[](1);
        others[0] = vm.addr(judgeKeys[0]);
        vm.prank(arbiter);
        vm.expectRevert(abi.encodeWithSelector(Payroll.OtherSigners.selector, pool));
        payroll.drop(pool, others);
        _drop();
        _refusedDrop(arbiter, Payroll.NoTableWaits.selector);
    }

    function _refusedDrop(address who, bytes4 why) private {
        address[] memory signers = _signers();
        vm.prank(who);
        vm.expectPartialRevert(why);
        payroll.drop(pool, signers);
    }

    /// Who convicted itself, or has lost its seat, while its table was held does not save the others.
    function test_a_signer_that_is_punished_already_saves_no_other() public {
        vm.warp(_matures(0));
        _offer(0, ROOT, 1000);
        _hold();
        Tally memory one = _tally(pool, 0, ROOT, 1000);
        Tally memory two = _tally(pool, 0, ROOT, 1001);
        bytes memory first = _sign(judgeKeys[0], Sign.tally(Sign.EARNINGS, one));
        bytes memory second = _sign(judgeKeys[0], Sign.tally(Sign.EARNINGS, two));
        court.tallyEvidence(true, [one, two], [first, second]);
        eq(vault.bondedOf(address(0x5005)), 20 ether);
        eq(court.benchOf(pool).validators.length, 1);
        _drop();
        eq(vault.bondedOf(address(0x5005)), 10 ether);
        eq(court.benchOf(pool).validators.length, 0);
    }

    function test_the_next_table_may_come_in_the_second_in_which_one_was_dropped() public {
        judgeKeys.push(0xB003);
        judgeKeys.push(0xB004);
        _bond(address(0x5006), 30 ether);
        _register(address(0x5006), judgeKeys[2], 1);
        _register(address(0x5006), judgeKeys[3], 1);
        _startIn(_open(_params()));
        _fund(pool, ESCROW);
        vm.warp(_matures(0));
        _offer(0, _line(node, 5000), 5000);
        _hold();
        _drop();
        bytes32 root = _line(node, 1000);
        bytes[] memory signatures = new bytes[](2);
        for (uint256 i = 0; i < 2; ++i) signatures[i] = _sign(judgeKeys[2 + i], Sign.earnings(pool, 0, root, 1000));
        payroll.post(_tally(pool, 0, root, 1000), signatures);
        vm.warp(block.timestamp + DELAY);
        _claim(1000);
        eq(token.balanceOf(provider), 1 ether);
        eq(_info().escrow, ESCROW - 1 ether);
    }

    // ---- two tables of one number

    function test_two_tables_of_one_number_convict_and_two_of_other_numbers_do_not() public {
        Tally memory one = _tally(pool, 0, ROOT, 1000);
        bytes memory first = _sign(judgeKeys[0], Sign.tally(Sign.EARNINGS, one));
        for (uint256 i = 0; i < 6; ++i) {
            Tally memory two = _tally(pool, 0, ROOT, 1000);
            bytes32 kind = Sign.EARNINGS;
            if (i == 0) two.number = 2;
            if (i == 1) two.epoch = 1;
            if (i == 2) two.pool = 99;
            if (i == 3) two.blob = ROOT; // shown below as a root of an epoch, which it is not
            if (i == 3) kind = Sign.EPOCH_ROOT;
            if (i == 5) two.blob = ROOT;
            bytes memory second = _sign(judgeKeys[0], Sign.tally(kind, two));
            if (i < 3 || i == 4) vm.expectPartialRevert(Court.NoContradiction.selector);
            else if (i == 3) vm.expectRevert();
            court.tallyEvidence(true, [one, two], [first, second]);
        }
        eq(vault.bondedOf(address(0x5005)), 20 ether);
        yes(swarm.memberInfo(pool, vm.addr(judgeKeys[0])).evicted, "convicted");
    }

    // ---- terms

    function test_a_delay_is_a_quarter_to_all_of_the_window_and_an_opener_is_its_own_guardian() public {
        Pools.PoolParams memory params = _params();
        for (uint32 i = 0; i < 4; ++i) {
            params.delay = [DELAY - 1, DELAY, WINDOW, WINDOW + 1][i];
            bool bad = i % 3 == 0;
            if (bad) vm.expectRevert(abi.encodeWithSelector(Pools.BadDelay.selector, params.delay, WINDOW));
            swarm.createPool(params);
        }
        params.guardian = address(0);
        params.delay = DELAY;
        uint256 id = _open(params);
        eq(swarm.guardianOf(id), manager);
        eq(swarm.guardianOf(pool), guardian);
    }

    /// Whoever signs a table answers for it until it can be dropped no more.
    function test_a_stake_outlasts_the_table_that_its_judge_signed() public {
        Pools.PoolParams memory params = _params();
        (params.epochSeconds, params.leaseSeconds) = (1, LEASE);
        params.window = uint32(UNBONDING - APPEAL);
        params.delay = params.window;
        _open(params);
        params.window += 1;
        params.delay += 1;
        vm.expectRevert(
            abi.encodeWithSelector(Pools.WindowExceedsUnbonding.selector, UNBONDING + 1, UNBONDING)
        );
        swarm.createPool(params);
    }
}
