// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base, Sign} from "../Base.sol";
import {Court} from "../../src/Court.sol";
import {Payroll} from "../../src/Payroll.sol";
import {Members} from "../../src/Members.sol";
import {Pools} from "../../src/Pools.sol";
import {WorkCommitment} from "../../src/Statements.sol";

contract PayTest is Base {
    function post(uint64 epoch, uint64 total) external {
        _post(epoch, ROOT, total);
    }

    function claim(uint64 units) external {
        _claim(units);
    }

    function earn(uint64 epoch, uint64 units) external {
        _earn(epoch, units);
    }

    // ---- posting

    function test_a_table_is_posted_in_the_second_in_which_its_epoch_is_mature_and_never_again() public {
        vm.warp(_matures(2) - 1);
        vm.expectRevert(abi.encodeWithSelector(Payroll.NotMature.selector, 2, _matures(2)));
        this.post(2, 1000);
        vm.warp(_matures(2));
        bytes[] memory signatures = _quorum(Sign.earnings(pool, 2, ROOT, 1000));
        uint64 countsAt = uint64(block.timestamp + DELAY);
        vm.expectEmit(address(payroll));
        emit Payroll.EarningsPosted(pool, 2, 1, ROOT, 1000, keccak256("lines"), countsAt, _signers());
        vm.prank(anybody);
        payroll.post(_tally(pool, 2, ROOT, 1000), signatures);
        vm.warp(countsAt);
        Payroll.Book memory posted = payroll.bookOf(pool);
        yes(posted.root == ROOT, "root");
        eq(posted.total, 1000);
        eq(posted.epochs, 3);
        eq(posted.lastUnits, 1000);
        eq(posted.lastEpochs, 3);
        eq(_info().owed, 1 ether);
        eq(_info().escrow, ESCROW - 1 ether);
        for (uint64 epoch = 0; epoch < 3; ++epoch) {
            vm.expectRevert(abi.encodeWithSelector(Payroll.EpochNotLater.selector, epoch, 3));
            this.post(epoch, 2000);
        }
    }

    function test_epochs_that_were_left_out_count_for_what_may_be_posted() public {
        vm.warp(_matures(9));
        this.post(2, 0);
        vm.expectRevert(abi.encodeWithSelector(Payroll.TooMuchForEpochs.selector, uint256(PER_EPOCH) * 4 + 1, uint256(PER_EPOCH) * 4));
        this.post(6, PER_EPOCH * 4 + 1);
        _fund(pool, 4000 ether);
        this.post(6, PER_EPOCH * 4);
        eq(_info().owed, 4000 ether);
        eq(payroll.bookOf(pool).lastEpochs, 4);
        this.post(7, PER_EPOCH * 4); // nothing more was earned
        eq(payroll.bookOf(pool).lastUnits, 0);
    }

    function test_a_total_neither_falls_nor_passes_the_escrow() public {
        vm.warp(_matures(5));
        this.post(0, 500);
        vm.expectRevert(abi.encodeWithSelector(Payroll.TotalFalls.selector, 499, 500));
        this.post(1, 499);
        vm.expectRevert(abi.encodeWithSelector(Payroll.EscrowTooSmall.selector, 499_501, 499_500));
        this.post(1, 500_001);
        this.post(1, 500_000);
        eq(_info().escrow, 0);
        eq(_info().owed, ESCROW);
    }

    function test_nobody_but_a_quorum_posts() public {
        vm.warp(_matures(0));
        bytes[] memory signatures = _quorum(Sign.earnings(pool, 0, ROOT, 10));
        vm.expectPartialRevert(Court.NotAValidator.selector);
        payroll.post(_tally(pool, 0, ROOT, 11), signatures);
        vm.expectPartialRevert(Court.NotAValidator.selector);
        payroll.post(_tally(pool, 1, ROOT, 10), signatures);
        vm.expectPartialRevert(Court.NotAValidator.selector);
        payroll.post(_tally(pool, 0, bytes32(0), 10), signatures);
        uint256 id = _open(_params());
        vm.expectPartialRevert(Court.NotAValidator.selector);
        payroll.post(_tally(id, 0, ROOT, 10), signatures);
        bytes[] memory one = new bytes[](1);
        one[0] = signatures[0];
        vm.expectPartialRevert(Court.QuorumMissing.selector);
        payroll.post(_tally(pool, 0, ROOT, 10), one);
        signatures[1] = signatures[0];
        vm.expectPartialRevert(Court.DuplicateVerdict.selector);
        payroll.post(_tally(pool, 0, ROOT, 10), signatures);
        vm.expectPartialRevert(Court.QuorumMissing.selector);
        payroll.post(_tally(99, 0, ROOT, 10), signatures);
    }

    function test_a_pool_that_is_paused_or_over_posts_and_pays_until_its_time_is_over() public {
        vm.prank(manager);
        swarm.pausePool(pool);
        _earn(0, 100);
        _claim(100);
        vm.prank(manager);
        swarm.endPool(pool);
        uint64 last = _epochAt(pool, block.timestamp);
        _earn(1, 300);
        uint256 closes = _matures(last) + WINDOW;
        vm.warp(closes);
        vm.expectRevert(abi.encodeWithSelector(Payroll.PoolOver.selector, pool));
        this.post(3, 300);
        vm.warp(closes + WINDOW);
        vm.prank(anybody);
        payroll.sweep(pool);
        eq(token.balanceOf(manager), ESCROW - 300 * uint256(RATE));
        _claim(300);
        eq(token.balanceOf(provider), 300 * uint256(RATE));
        eq(token.balanceOf(address(payroll)), 0);
    }

    function test_sweeping_waits_until_nothing_can_be_tabled_or_filed_and_takes_nothing_owed() public {
        _earn(0, 1000);
        vm.expectPartialRevert(Payroll.PoolStillOpen.selector);
        payroll.sweep(pool);
        vm.prank(manager);
        swarm.endPool(pool);
        uint256 until = _matures(_epochAt(pool, block.timestamp)) + 2 * WINDOW;
        vm.warp(until - 1);
        vm.expectRevert(abi.encodeWithSelector(Payroll.PoolStillOpen.selector, pool, until));
        payroll.sweep(pool);
        vm.warp(until);
        payroll.sweep(pool);
        eq(token.balanceOf(manager), ESCROW - 1 ether);
        vm.expectPartialRevert(Payroll.ZeroAmount.selector);
        payroll.sweep(pool);
        vm.warp(until + 1000 days);
        _claim(1000); // for ever
        eq(token.balanceOf(provider), 1 ether);
    }

    function fund(uint256 amount) external {
        _fund(pool, amount);
    }

    /// Also once the table has been moved over.
    function test_what_is_owed_counts_for_the_most_that_a_pool_holds() public {
        Pools.PoolParams memory params = _params();
        (params.rewardPerUnit, params.unitsPerEpoch) = (1, type(uint64).max);
        _startIn(_open(params));
        _fund(pool, type(uint56).max);
        vm.warp(_matures(0));
        _post(0, _line(node, 400), 1000);
        _claim(400);
        eq(_info().owed, 600);
        vm.expectRevert(abi.encodeWithSelector(Payroll.EscrowTooLarge.selector, 401));
        this.fund(401);
        _fund(pool, 400);
    }

    // ---- claiming

    function test_a_claim_pays_the_difference_once() public {
        _earn(0, 1000);
        vm.expectEmit(address(payroll));
        emit Payroll.Claimed(pool, node, provider, 1000, 1 ether);
        vm.prank(anybody);
        payroll.claim(pool, node, 1000, new bytes32[](0));
        vm.expectRevert(abi.encodeWithSelector(Payroll.NothingToClaim.selector, 1000, 1000));
        this.claim(1000);
        vm.warp(_matures(1));
        _post(1, _line(node, 1700), 9000); // others have earned, too
        vm.expectPartialRevert(Payroll.BadProof.selector);
        this.claim(1000); // the table before
        _claim(1700);
        eq(token.balanceOf(provider), 1.7 ether);
        eq(payroll.paidOf(pool, node).claimed, 1700);
        eq(_info().owed, 7.3 ether);
    }

    function test_both_lines_of_a_table_are_paid_and_no_other(uint64 units, uint64 forged, uint256 noise) public {
        units = uint64(_bounded(units, 1, 400));
        vm.assume(forged != units);
        _register(provider, 0xD00D, 1);
        address other = vm.addr(0xD00D);
        vm.prank(other);
        swarm.join(pool, "");
        (bytes32 one, bytes32 two) = (_line(node, units), _line(other, 100));
        vm.warp(_matures(0));
        _post(0, _both(one, two), units + 100);
        bytes32[] memory proof = new bytes32[](1);
        proof[0] = two;
        vm.expectPartialRevert(Payroll.BadProof.selector);
        payroll.claim(pool, node, forged, proof);
        vm.expectPartialRevert(Payroll.BadProof.selector);
        payroll.claim(pool, other, units, proof);
        bytes32[] memory long = new bytes32[](2);
        (long[0], long[1]) = (two, bytes32(noise));
        vm.expectPartialRevert(Payroll.BadProof.selector);
        payroll.claim(pool, node, units, long);
        payroll.claim(pool, node, units, proof);
        proof[0] = one;
        payroll.claim(pool, other, 100, proof);
        eq(_info().owed, 0);
    }

    function test_a_proof_is_as_long_as_said_and_no_longer() public {
        bytes32[] memory proof = new bytes32[](32);
        bytes32 root = _line(node, 5);
        for (uint256 i = 0; i < 32; ++i) {
            proof[i] = bytes32(i);
            root = _both(root, proof[i]);
        }
        vm.warp(_matures(0));
        _post(0, root, 5);
        payroll.claim(pool, node, 5, proof);
        bytes32[] memory longer = new bytes32[](33);
        for (uint256 i = 0; i < 32; ++i) longer[i] = proof[i];
        _post_(1, _both(root, longer[32]), 6);
        vm.expectPartialRevert(Payroll.BadProof.selector);
        payroll.claim(pool, node, 5, longer);
    }

    function _post_(uint64 epoch, bytes32 root, uint64 total) private {
        vm.warp(_matures(epoch));
        _post(epoch, root, total);
    }

    function test_pay_is_bounded_by_size_and_time_and_the_rest_comes_later() public {
        uint256 start = _poolInfo(pool).startedAt;
        _earn(0, 450_000); // in epoch 4, so five epochs of 100,000 units
        eq(_epochAt(pool, block.timestamp), 4);
        eq(payroll.allowanceOf(pool, node), 500_000);
        _claim(450_000);
        eq(token.balanceOf(provider), 450 ether);
        eq(payroll.allowanceOf(pool, node), 0); // the fifth epoch is begun
        _earn(1, 480_000);
        eq(payroll.allowanceOf(pool, node), 100_000);
        _claim(480_000);
        _fund(pool, 500 ether);
        _earn(2, 780_000);
        vm.expectEmit(address(payroll));
        emit Payroll.Claimed(pool, node, provider, 100_000, 100 ether);
        _claim(780_000);
        vm.expectRevert(abi.encodeWithSelector(Payroll.CapacityUsed.selector, pool, node, 7));
        this.claim(780_000);
        vm.warp(start + 7 * EPOCH - 1);
        vm.expectPartialRevert(Payroll.CapacityUsed.selector);
        this.claim(780_000);
        vm.warp(start + 7 * EPOCH);
        _claim(780_000);
        vm.warp(start + 20 * EPOCH);
        _claim(780_000);
        eq(payroll.paidOf(pool, node).claimed, 780_000);
        eq(token.balanceOf(provider), 780 ether);
    }

    /// Whoever carries claims for others takes nothing from them: epochs are used up by pay only.
    function test_a_strangers_early_claims_cost_the_node_nothing() public {
        for (uint64 epoch = 0; epoch < 3; ++epoch) {
            _earn(epoch, epoch + 1);
            vm.prank(anybody);
            payroll.claim(pool, node, epoch + 1, new bytes32[](0));
        }
        _earn(3, 400_000); // four epochs' worth that came late
        _claim(400_000);
        eq(payroll.paidOf(pool, node).claimed, 400_000);
    }

    function test_time_counts_from_the_first_joining_on() public {
        vm.warp(block.timestamp + 50 * EPOCH);
        _startIn(pool);
        eq(payroll.allowanceOf(pool, node), 100_000);
        vm.prank(node);
        swarm.leavePool(pool);
        vm.warp(block.timestamp + EPOCH);
        vm.prank(node);
        swarm.join(pool, "");
        eq(payroll.allowanceOf(pool, node), 200_000);
        eq(payroll.allowanceOf(pool, anybody), 0);
        _register(provider, 0xD00D, 1);
        eq(payroll.allowanceOf(pool, vm.addr(0xD00D)), 0); // it has a size, and was never in the pool
    }

    function test_who_has_left_is_paid_by_the_size_it_had() public {
        _register(provider, 0xD00D, 4);
        address big = vm.addr(0xD00D);
        vm.prank(big);
        swarm.join(pool, "");
        vm.prank(provider);
        swarm.removeNode(big);
        vm.warp(_matures(0));
        _post(0, _line(big, 300_000), 300_000);
        payroll.claim(pool, big, 300_000, new bytes32[](0));
        eq(token.balanceOf(provider), 300 ether);
    }

    /// A5. Judges took back what they had attested, and locked in what a table had promised.
    function test_A5_what_is_attested_later_keeps_back_no_pay() public {
        Pools.PoolParams memory params = _params();
        params.attested = true;
        _startIn(_open(params));
        _fund(pool, ESCROW);
        uint64 madeAt = uint64(block.timestamp);
        bytes32 statement = keccak256(abi.encode(Sign.ATTESTATION, pool, node, 1, madeAt, madeAt + EPOCH));
        court.attest(pool, node, 1, madeAt, madeAt + EPOCH, _quorum(statement));
        _earn(0, 1000);
        madeAt = uint64(block.timestamp);
        statement = keccak256(abi.encode(Sign.ATTESTATION, pool, node, 0, madeAt, madeAt + EPOCH));
        court.attest(pool, node, 0, madeAt, madeAt + EPOCH, _quorum(statement));
        eq(court.attestedAt(pool, node), madeAt);
        _claim(1000);
        eq(token.balanceOf(provider), 1 ether);
    }

    function test_who_never_joined_is_paid_nothing() public {
        vm.warp(_matures(0));
        _post(0, _line(anybody, 10), 10);
        vm.expectRevert(abi.encodeWithSelector(Members.NotMember.selector, pool, anybody));
        payroll.claim(pool, anybody, 10, new bytes32[](0));
    }

    /// Judges that sign nonsense pay no more than their total.
    function test_lines_that_are_more_than_their_total_are_paid_no_more_than_that() public {
        vm.warp(_matures(0));
        _post(0, _line(node, 900), 400);
        _claim(900);
        eq(token.balanceOf(provider), 400 * uint256(RATE));
        eq(_info().owed, 0);
        vm.expectPartialRevert(Payroll.NothingToClaim.selector);
        this.claim(900);
    }

    // ---- who was slashed

    function test_a_slashed_node_is_paid_nothing_until_it_is_acquitted() public {
        _earn(0, 1000);
        _slash(_file(0, 1));
        vm.expectRevert(abi.encodeWithSelector(Payroll.CaseNotFinal.selector, 1));
        this.claim(1000);
        vm.prank(arbiter);
        swarm.overturn(pool, node);
        _claim(1000);
        eq(token.balanceOf(provider), 1 ether);
    }

    function test_what_a_slashed_node_had_coming_goes_back_once_nothing_can_undo_that() public {
        _earn(0, 1000);
        _slash(_file(0, 1));
        vm.warp(block.timestamp + APPEAL);
        vm.expectPartialRevert(Payroll.CaseNotFinal.selector);
        this.claim(1000);
        vault.finalize(1);
        vm.expectEmit(address(payroll));
        emit Payroll.GivenBack(pool, node, 1000);
        _claim(1000);
        eq(_info().escrow, ESCROW);
        eq(_info().owed, 0);
        eq(token.balanceOf(provider), 0);
        vm.expectPartialRevert(Payroll.NothingToClaim.selector);
        this.claim(1000);
    }

    function test_what_a_key_that_convicted_itself_had_coming_goes_back_at_once() public {
        _earn(0, 1000);
        _slash(_file(0, 1));
        _contradict();
        _claim(1000);
        eq(_info().escrow, ESCROW);
        vm.prank(arbiter);
        swarm.overturn(pool, node);
        vm.expectPartialRevert(Payroll.NothingToClaim.selector);
        this.claim(1000);
    }

    function test_what_was_given_back_pays_others() public {
        pool = _open(_params());
        _startIn(pool);
        _fund(pool, 1 ether);
        _earn(0, 1000);
        _contradict();
        _claim(1000);
        address first = node;
        _startIn(pool);
        vm.warp(_matures(1));
        bytes32 rest = _line(first, 1000);
        _post(1, _both(_line(node, 1000), rest), 2000);
        bytes32[] memory proof = new bytes32[](1);
        proof[0] = rest;
        bytes32[] memory again = new bytes32[](1);
        again[0] = _line(node, 1000);
        vm.expectRevert(abi.encodeWithSelector(Payroll.NothingToClaim.selector, 1000, 1000));
        payroll.claim(pool, first, 1000, again); // what is owed to the other is not its own a second time
        payroll.claim(pool, node, 1000, proof);
        eq(token.balanceOf(provider), 1 ether);
        eq(_info().owed, 0);
    }
}
