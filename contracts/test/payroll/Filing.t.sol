// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base, Sign} from "../Base.sol";
import {Court} from "../../src/Court.sol";
import {Payroll} from "../../src/Payroll.sol";
import {Pools} from "../../src/Pools.sol";
import {StakeVault} from "../../src/StakeVault.sol";
import {Filing, RootLine, Tally, WrongSigner} from "../../src/Statements.sol";
import {TestToken} from "../../src/TestToken.sol";

/// Takes a hundredth of what is moved, from some day on.
contract LateFeeToken is TestToken {
    bool private _takes;

    function take() external {
        _takes = true;
    }

    function _update(address from, address to, uint256 amount) internal override {
        if (_takes && from != address(0)) super._update(from, address(0xFEE), amount / 100);
        super._update(from, to, _takes && from != address(0) ? amount - amount / 100 : amount);
    }
}

/// What validators named of works that no table has, filed and redeemed after a pool's end.
contract FilingTest is Base {
    address private constant OTHER = address(0x2003);
    uint256 private constant OTHER_KEY = 0x3004;
    address private other;

    function setUp() public override {
        super.setUp();
        other = vm.addr(OTHER_KEY);
        _bond(OTHER, 100 ether);
        _register(OTHER, OTHER_KEY, 1);
        vm.prank(other);
        swarm.join(pool, "");
    }

    // ---- words

    /// A seat's root of one line, of this number.
    function _said(uint8 seat, uint64 epoch, uint64 number, address who, uint64 units) private view returns (RootLine memory) {
        return _under(seat, Tally(pool, epoch, number, _line(who, units), units, keccak256("leaves")), units, new bytes32[](0));
    }

    function _under(uint8 seat, Tally memory root, uint64 units, bytes32[] memory proof) private view returns (RootLine memory) {
        return RootLine(seat, root, _sign(judgeKeys[seat], Sign.tally(Sign.EPOCH_ROOT, root)), units, proof);
    }

    /// By the pool's first bench.
    function _filing(uint64 epoch, RootLine[] memory lines) private view returns (Filing memory) {
        return Filing(epoch, 1, 2, _signers(), lines);
    }

    /// What both seats named of somebody.
    function _both(uint64 epoch, address who, uint64 first, uint64 second) private view returns (Filing memory) {
        RootLine[] memory lines = new RootLine[](2);
        (lines[0], lines[1]) = (_said(0, epoch, 1, who, first), _said(1, epoch, 1, who, second));
        return _filing(epoch, lines);
    }

    function file(address who, Filing memory filing) public {
        Filing[] memory filings = new Filing[](1);
        filings[0] = filing;
        vm.prank(who);
        payroll.file(pool, who, filings);
    }

    function _fileBoth(uint64 epoch, address who, uint64 units) private {
        file(who, _both(epoch, who, units, units));
    }

    function _refused(address who, Filing memory filing, bytes memory why) private {
        Filing[] memory filings = new Filing[](1);
        filings[0] = filing;
        vm.prank(who);
        vm.expectRevert(why);
        payroll.file(pool, who, filings);
    }

    // ---- times

    function _end() private {
        vm.prank(manager);
        swarm.endPool(pool);
    }

    function _from() private view returns (uint256 from) {
        (, from,,) = payroll.filingsOf(pool);
    }

    function _until() private view returns (uint256 until) {
        (,, until,) = payroll.filingsOf(pool);
    }

    function _redeemable() private view returns (uint256 from) {
        (,,, from) = payroll.filingsOf(pool);
    }

    function _filed() private view returns (uint256) {
        (Payroll.Filings memory filings,,,) = payroll.filingsOf(pool);
        return filings.filed;
    }

    /// It ends in epoch 2, and no table may come any more.
    function _over() private {
        vm.warp(block.timestamp + 2 * EPOCH);
        _end();
        vm.warp(_from());
    }

    // ---- A8, A22: a quorum that is silent, or late

    function test_A8_a_quorum_that_falls_silent_sends_the_opener_nothing_that_is_filed() public {
        _earn(0, 1000); // it tables the first epoch, and no other
        _end();
        uint64 last = _epochAt(pool, block.timestamp);
        eq(_from(), _matures(last) + WINDOW);
        eq(_until(), _from() + WINDOW);
        eq(_redeemable(), _until() + DELAY);
        vm.warp(_from());
        Filing[] memory filings = new Filing[](2);
        (filings[0], filings[1]) = (_both(1, node, 300, 320), _both(last, node, 500, 410));
        vm.expectEmit(address(payroll));
        emit Payroll.Filed(pool, node, 1, 300);
        vm.expectEmit(address(payroll));
        emit Payroll.Filed(pool, node, last, 410);
        vm.prank(provider); // a provider may, too
        payroll.file(pool, node, filings);
        eq(_filed(), 710);
        eq(payroll.filedOf(pool, node, last), 410);
        vm.warp(_redeemable());
        payroll.sweep(pool);
        eq(token.balanceOf(manager), ESCROW - 1710 * uint256(RATE));
        vm.expectEmit(address(payroll));
        emit Payroll.Redeemed(pool, node, provider, 710, 710, 710 * uint256(RATE));
        vm.prank(anybody);
        payroll.redeem(pool, node);
        _claim(1000);
        eq(token.balanceOf(provider), 1710 * uint256(RATE));
        eq(token.balanceOf(address(payroll)), 0);
        vm.expectRevert(abi.encodeWithSelector(Payroll.NothingFiled.selector, pool, node));
        payroll.redeem(pool, node);
    }

    function test_A22_a_quorum_that_is_late_takes_nobodys_leaves() public {
        _over();
        bytes[] memory signatures = _quorum(Sign.earnings(pool, 0, ROOT, 10));
        vm.expectRevert(abi.encodeWithSelector(Payroll.PoolOver.selector, pool));
        payroll.post(_tally(pool, 0, ROOT, 10), signatures);
        _fileBoth(0, node, 10);
        vm.warp(_redeemable());
        payroll.redeem(pool, node);
        eq(token.balanceOf(provider), 10 * uint256(RATE));
    }

    function test_A8_control_where_nobody_files_all_goes_to_the_opener_when_filing_is_over() public {
        _over();
        vm.warp(_until() - 1);
        vm.expectRevert(abi.encodeWithSelector(Payroll.PoolStillOpen.selector, pool, block.timestamp + 1));
        payroll.sweep(pool);
        vm.warp(_until());
        payroll.sweep(pool);
        eq(token.balanceOf(manager), ESCROW);
        _refused(node, _both(0, node, 1, 1), abi.encodeWithSelector(Payroll.NotNow.selector, _from(), _until()));
    }

    function test_what_is_filed_is_not_swept_before_it_is_redeemed() public {
        _over();
        _fileBoth(0, node, 10);
        vm.warp(_redeemable() - 1);
        vm.expectRevert(abi.encodeWithSelector(Payroll.PoolStillOpen.selector, pool, block.timestamp + 1));
        payroll.sweep(pool);
        vm.expectRevert(abi.encodeWithSelector(Payroll.NotNow.selector, block.timestamp + 1, type(uint256).max));
        payroll.redeem(pool, node);
        vm.warp(_redeemable());
        payroll.sweep(pool);
        eq(token.balanceOf(address(payroll)), 10 * uint256(RATE));
        vm.warp(block.timestamp + 1000 days);
        payroll.redeem(pool, node);
        eq(token.balanceOf(address(payroll)), 0);
    }

    function test_nobody_files_while_tables_may_come() public {
        vm.expectRevert(abi.encodeWithSelector(Payroll.NotNow.selector, type(uint256).max, type(uint256).max));
        this.file(node, _both(0, node, 1, 1));
        _end();
        vm.warp(_from() - 1);
        _refused(node, _both(0, node, 1, 1), abi.encodeWithSelector(Payroll.NotNow.selector, _from(), _until()));
        vm.warp(_from());
        _fileBoth(0, node, 1);
        vm.warp(_until() - 1);
        _fileBoth(0, other, 1);
        eq(_filed(), 2);
    }

    function fund(uint256 amount) external {
        _fund(pool, amount);
    }

    function test_nobody_pays_into_a_pool_that_has_ended() public {
        _end();
        vm.expectRevert(abi.encodeWithSelector(Payroll.PoolOver.selector, pool));
        this.fund(1 ether);
    }

    /// Else a pool that its manager had paused for long would be over in the second in which it ends.
    function test_a_pool_that_was_paused_before_its_end_leaves_the_same_time() public {
        vm.prank(manager);
        swarm.pausePool(pool);
        vm.warp(block.timestamp + 10 * EPOCH);
        _end();
        eq(_info().stoppedAt, block.timestamp);
        eq(_from(), _matures(10) + WINDOW);
        vm.warp(_from());
        _fileBoth(10, node, 5);
        eq(_filed(), 5);
    }

    // ---- whose word counts

    function test_the_least_of_what_the_seats_named_counts_and_roots_of_one_seat_add_up() public {
        _over();
        RootLine[] memory lines = new RootLine[](5);
        (lines[0], lines[1]) = (_said(0, 1, 7, node, 100), _said(0, 1, 8, node, 20));
        (lines[2], lines[3], lines[4]) = (_said(1, 1, 1, node, 50), _said(1, 1, 2, node, 30), _said(1, 1, 9, node, 39));
        file(node, _filing(1, lines));
        eq(payroll.filedOf(pool, node, 1), 119);
    }

    function test_a_seat_or_a_root_is_not_counted_twice() public {
        _over();
        RootLine[] memory lines = new RootLine[](2);
        (lines[0], lines[1]) = (_said(0, 1, 1, node, 100), _said(0, 1, 2, node, 100));
        _refused(node, _filing(1, lines), abi.encodeWithSelector(Court.QuorumMissing.selector, 1, 2));
        lines[1] = lines[0];
        _refused(node, _filing(1, lines), abi.encodeWithSelector(Court.BadLine.selector, 1));
        lines[0] = _said(1, 1, 1, node, 100); // seats out of order, so that one could come again
        _refused(node, _filing(1, lines), abi.encodeWithSelector(Court.BadLine.selector, 1));
        lines[0] = _said(0, 1, 1, node, 100);
        lines[1] = lines[0];
        lines[1].seat = 1; // the same root in another's name
        _refused(
            node,
            _filing(1, lines),
            abi.encodeWithSelector(WrongSigner.selector, vm.addr(judgeKeys[0]), vm.addr(judgeKeys[1]))
        );
        _refused(node, _filing(1, new RootLine[](0)), abi.encodeWithSelector(Court.QuorumMissing.selector, 0, 2));
    }

    function test_a_root_of_another_tree_pool_epoch_or_node_is_refused() public {
        _over();
        for (uint256 i = 0; i < 6; ++i) {
            Filing memory filing = _both(1, node, 100, 100);
            Tally memory root = filing.lines[1].root;
            if (i == 0) root.epoch = 2;
            if (i == 1) root.pool = 99;
            if (i == 2) root.root = ROOT;
            filing.lines[1] = _under(1, root, 100, new bytes32[](0));
            if (i == 3) filing.lines[1].units = 101;
            if (i == 4) filing.lines[1] = _said(1, 1, 1, other, 100);
            if (i == 5) filing.lines[1] = _under(1, root, 100, new bytes32[](33));
            _refused(node, filing, abi.encodeWithSelector(Court.BadLine.selector, 1));
        }
        // a table is signed as something else
        Filing memory table = _both(1, node, 100, 100);
        table.lines[1].signature = _sign(judgeKeys[1], Sign.tally(Sign.EARNINGS, table.lines[1].root));
        vm.prank(node);
        vm.expectPartialRevert(WrongSigner.selector);
        this.file(node, table);
        _fileBoth(1, node, 100);
    }

    function test_a_line_is_proven_by_its_way_up() public {
        _over();
        RootLine[] memory lines = new RootLine[](2);
        bytes32 root = Base._both(_line(node, 70), _line(other, 30));
        bytes32[] memory proof = new bytes32[](1);
        proof[0] = _line(other, 30);
        for (uint8 i = 0; i < 2; ++i) lines[i] = _under(i, Tally(pool, 1, 1, root, 100, ROOT), 70, proof);
        file(node, _filing(1, lines));
        eq(payroll.filedOf(pool, node, 1), 70);
    }

    function test_a_way_up_has_32_siblings_at_most() public {
        _over();
        bytes32[] memory proof = new bytes32[](32);
        bytes32 root = _line(node, 70);
        for (uint256 i = 0; i < 32; ++i) root = Base._both(root, proof[i] = keccak256(abi.encode(i)));
        RootLine[] memory lines = new RootLine[](2);
        for (uint8 i = 0; i < 2; ++i) lines[i] = _under(i, Tally(pool, 1, 1, root, 100, ROOT), 70, proof);
        file(node, _filing(1, lines));
        eq(payroll.filedOf(pool, node, 1), 70);
    }

    /// A14b of tables: nothing waits for lines that are not there.
    function test_a_total_above_its_lines_locks_nothing() public {
        _over();
        RootLine[] memory lines = new RootLine[](2);
        for (uint8 i = 0; i < 2; ++i) {
            lines[i] = _under(i, Tally(pool, 1, 1, _line(node, 100), 400_000, ROOT), 100, new bytes32[](0));
        }
        file(node, _filing(1, lines));
        vm.warp(_redeemable());
        payroll.sweep(pool);
        eq(token.balanceOf(manager), ESCROW - 100 * uint256(RATE));
    }

    function test_a_bench_that_halves_in_mid_epoch_counts_from_the_next_epoch_on() public {
        address[] memory one = new address[](1);
        one[0] = vm.addr(judgeKeys[0]);
        vm.prank(manager);
        court.proposeValidators(pool, one, 1);
        vm.warp(block.timestamp + WINDOW + EPOCH / 2); // in epoch 3
        court.applyValidators(pool);
        vm.warp(block.timestamp + EPOCH); // in epoch 4
        _end();
        vm.warp(_from());
        RootLine[] memory lines = new RootLine[](1);
        lines[0] = _said(0, 3, 1, node, 100);
        Filing memory filing = Filing(3, 2, 1, one, lines);
        _refused(node, filing, abi.encodeWithSelector(Court.OtherBench.selector, pool, 2));
        lines[0] = _said(0, 4, 1, node, 100);
        filing = _both(4, node, 50, 50); // who sat before does not any more
        _refused(node, filing, abi.encodeWithSelector(Court.OtherBench.selector, pool, 1));
        filing = Filing(4, 2, 1, one, lines);
        for (uint256 i = 0; i < 4; ++i) {
            Filing memory false_ = Filing(4, 2, 1, one, lines);
            if (i == 0) false_.threshold = 0;
            if (i == 1) false_.validators = _signers();
            if (i == 2) false_.bench = 3;
            if (i == 3) false_.bench = 0;
            _refused(node, false_, abi.encodeWithSelector(Court.OtherBench.selector, pool, false_.bench));
        }
        file(node, filing);
        _fileBoth(3, node, 70);
        eq(_filed(), 170);
    }

    function test_a_bench_that_takes_office_as_an_epoch_begins_has_that_epoch() public {
        address[] memory one = new address[](1);
        one[0] = vm.addr(judgeKeys[1]);
        vm.prank(manager);
        court.proposeValidators(pool, one, 1);
        vm.warp(block.timestamp + WINDOW); // the first second of epoch 3
        court.applyValidators(pool);
        _end();
        vm.warp(_from());
        Filing memory filing = _both(3, node, 50, 50);
        _refused(node, filing, abi.encodeWithSelector(Court.OtherBench.selector, pool, 1));
        RootLine[] memory lines = new RootLine[](1);
        lines[0] = _said(1, 3, 1, node, 100);
        lines[0].seat = 0;
        file(node, Filing(3, 2, 1, one, lines));
        eq(_filed(), 100);
    }

    /// Neither a seat now nor a stake is asked of who signed: nobody voids a debt by convicting itself.
    function test_who_convicted_itself_or_left_voids_no_debt() public {
        vm.warp(block.timestamp + 2 * EPOCH);
        Tally memory one = _tally(pool, 0, ROOT, 1000);
        Tally memory two = _tally(pool, 0, ROOT, 1001);
        bytes memory first = _sign(judgeKeys[0], Sign.tally(Sign.EPOCH_ROOT, one));
        bytes memory second = _sign(judgeKeys[0], Sign.tally(Sign.EPOCH_ROOT, two));
        court.tallyEvidence(false, [one, two], [first, second]);
        vm.prank(address(0x5005));
        swarm.removeNode(vm.addr(judgeKeys[1]));
        yes(!court.fit(pool, vm.addr(judgeKeys[0])) && !court.fit(pool, vm.addr(judgeKeys[1])), "none is fit");
        _end();
        vm.warp(_from());
        _fileBoth(1, node, 100);
        vm.warp(_redeemable());
        payroll.redeem(pool, node);
        eq(token.balanceOf(provider), 100 * uint256(RATE));
    }

    // ---- who files, and what

    function test_only_a_node_or_its_provider_files() public {
        _over();
        Filing[] memory filings = new Filing[](1);
        filings[0] = _both(1, node, 1, 1);
        vm.prank(anybody);
        vm.expectRevert(abi.encodeWithSelector(Payroll.NotYourNode.selector, node, provider));
        payroll.file(pool, node, filings);
        uint256 stranger = 0x4004;
        _refused(vm.addr(stranger), _both(1, vm.addr(stranger), 1, 1), abi.encodeWithSelector(Payroll.NotMember.selector, pool, vm.addr(stranger)));
    }

    function test_filing_twice_adds_only_what_is_more() public {
        _over();
        _fileBoth(1, node, 100);
        _refused(node, _both(1, node, 100, 100), abi.encodeWithSelector(Payroll.NothingToFile.selector, 1, 100, 100));
        _refused(node, _both(1, node, 99, 300), abi.encodeWithSelector(Payroll.NothingToFile.selector, 1, 99, 100));
        _fileBoth(1, node, 130);
        eq(_filed(), 130);
        vm.warp(_redeemable());
        payroll.redeem(pool, node);
        eq(token.balanceOf(provider), 130 * uint256(RATE));
    }

    function test_what_a_table_has_and_what_came_after_the_end_is_not_filed() public {
        _earn(1, 1000);
        _end();
        uint64 last = _epochAt(pool, block.timestamp);
        vm.warp(_from());
        _refused(node, _both(1, node, 10, 10), abi.encodeWithSelector(Payroll.EpochNotToFile.selector, 1, 2, last));
        _refused(node, _both(last + 1, node, 10, 10), abi.encodeWithSelector(Payroll.EpochNotToFile.selector, last + 1, 2, last));
        _fileBoth(2, node, 10);
        _fileBoth(last, node, 10);
        _claim(1000);
        eq(_filed(), 20);
    }

    /// A table in the last second, held to the last second of its delay: whatever becomes of it, there is a window after it.
    function test_filing_waits_for_the_last_table_and_has_its_whole_window() public {
        vm.warp(block.timestamp + EPOCH);
        _end();
        vm.warp(_from() - 1);
        _offer(0, _line(node, 1000), 1000);
        eq(_from(), block.timestamp + DELAY);
        vm.warp(block.timestamp + DELAY - 1);
        vm.prank(guardian);
        payroll.hold(pool);
        uint256 countsAt = block.timestamp + APPEAL;
        eq(_from(), countsAt);
        eq(_until(), countsAt + WINDOW);
        _refused(node, _both(0, node, 1, 1), abi.encodeWithSelector(Payroll.NotNow.selector, countsAt, countsAt + WINDOW));
        vm.warp(countsAt);
        _refused(node, _both(0, node, 1, 1), abi.encodeWithSelector(Payroll.EpochNotToFile.selector, 0, 1, 1));
        _fileBoth(1, node, 30);
        vm.warp(_redeemable());
        payroll.sweep(pool);
        eq(token.balanceOf(manager), ESCROW - 1030 * uint256(RATE));
    }

    function test_filing_begins_when_the_last_table_is_dropped() public {
        vm.warp(block.timestamp + EPOCH);
        _end();
        uint256 closes = _from();
        vm.warp(closes - 1);
        _offer(0, _line(other, 400_000), 400_000);
        vm.prank(guardian);
        payroll.hold(pool);
        vm.warp(closes + 200);
        address[] memory signers = _signers();
        vm.prank(arbiter);
        payroll.drop(pool, signers);
        eq(_from(), closes + 200);
        _fileBoth(0, node, 30); // by the roots of those that signed it
        eq(_filed(), 30);
    }

    function test_no_more_is_filed_than_the_nodes_size_allows() public {
        _over(); // in epoch 8 by now
        uint256 epochs = _epochAt(pool, block.timestamp) + 1;
        _fileBoth(0, node, type(uint64).max);
        eq(_filed(), epochs * 100_000);
        _refused(node, _both(1, node, 1, 1), abi.encodeWithSelector(Payroll.CapacityUsed.selector, pool, node, epochs));
        _fileBoth(0, other, 100_001); // uses up two epochs
        eq(payroll.allowanceOf(pool, other), (epochs - 2) * 100_000);
        vm.warp(block.timestamp + EPOCH);
        _fileBoth(1, node, 7);
        eq(_filed(), epochs * 100_000 + 100_008);
    }

    // ---- evicted nodes

    function test_who_convicted_itself_files_nothing_and_gets_nothing_of_what_it_filed() public {
        _over();
        _fileBoth(0, node, 100);
        _fileBoth(0, other, 50);
        _contradict();
        _refused(node, _both(1, node, 1, 1), abi.encodeWithSelector(Payroll.NotMember.selector, pool, node));
        vm.warp(_redeemable());
        payroll.sweep(pool);
        vm.expectEmit(address(payroll));
        emit Payroll.Redeemed(pool, node, provider, 100, 100, 0);
        payroll.redeem(pool, node);
        eq(token.balanceOf(provider), 0);
        payroll.sweep(pool); // what went back
        eq(token.balanceOf(manager), ESCROW - 50 * uint256(RATE));
        payroll.redeem(pool, other);
        eq(token.balanceOf(address(payroll)), 0);
    }

    function test_who_was_slashed_files_and_is_paid_once_that_is_overturned() public {
        vm.warp(block.timestamp + 2 * EPOCH);
        _end();
        vm.warp(_matures(_epochAt(pool, block.timestamp)) - 1);
        _slash(_file(0, 10));
        vm.warp(_from());
        _fileBoth(1, node, 100);
        vm.prank(arbiter);
        swarm.overturn(pool, node);
        vm.warp(_redeemable());
        uint256 before = token.balanceOf(provider);
        payroll.redeem(pool, node);
        eq(token.balanceOf(provider) - before, 100 * uint256(RATE));
    }

    function test_a_case_that_is_open_keeps_back_what_was_filed() public {
        Pools.PoolParams memory params = _params();
        (params.window, params.delay) = (100, 25); // so that a case is open longer than filing
        _startIn(_open(params));
        _fund(pool, ESCROW);
        _end();
        vm.warp(_matures(0) - 1);
        _slash(_file(0, 10));
        vm.warp(_from());
        Filing memory filing = _both(0, node, 100, 100);
        file(node, filing);
        vm.warp(_redeemable());
        vm.expectRevert(abi.encodeWithSelector(Payroll.CaseNotFinal.selector, 1));
        payroll.redeem(pool, node);
        vm.warp(block.timestamp + APPEAL);
        vault.finalize(1);
        payroll.redeem(pool, node);
        payroll.sweep(pool);
        eq(token.balanceOf(manager), ESCROW);
    }

    // ---- the guardian and the arbiter

    function _hold() private {
        vm.prank(guardian);
        payroll.hold(pool);
    }

    function _drop(address who) private {
        address[] memory nodes = new address[](1);
        nodes[0] = who;
        vm.prank(arbiter);
        payroll.drop(pool, nodes);
    }

    function test_what_is_filed_by_false_roots_is_held_and_dropped_and_the_others_are_paid() public {
        _over();
        _fileBoth(0, other, 500_000);
        _fileBoth(0, node, 100);
        uint256 heldUntil = _until() + APPEAL;
        vm.expectEmit(address(payroll));
        emit Payroll.FilingsHeld(pool, uint64(heldUntil));
        _hold();
        eq(_redeemable(), heldUntil);
        vm.prank(guardian);
        vm.expectRevert(abi.encodeWithSelector(Payroll.AlreadyHeld.selector, pool));
        payroll.hold(pool);
        vm.warp(_until() - 1);
        address[] memory nodes = new address[](1);
        nodes[0] = other;
        vm.prank(arbiter);
        vm.expectRevert(abi.encodeWithSelector(Payroll.NoTableWaits.selector, pool));
        payroll.drop(pool, nodes);
        vm.warp(heldUntil - 1);
        vm.expectPartialRevert(Payroll.PoolStillOpen.selector);
        payroll.sweep(pool);
        vm.prank(guardian);
        vm.expectPartialRevert(Payroll.OnlyArbiter.selector);
        payroll.drop(pool, nodes);
        uint256 bonded = vault.bondedOf(address(0x5005));
        vm.expectEmit(address(payroll));
        emit Payroll.FilingDropped(pool, other, 500_000);
        _drop(other);
        eq(vault.bondedOf(address(0x5005)), bonded); // nobody is punished
        vm.warp(heldUntil);
        vm.expectRevert(abi.encodeWithSelector(Payroll.NothingFiled.selector, pool, other));
        payroll.redeem(pool, other);
        payroll.redeem(pool, node);
        payroll.sweep(pool);
        eq(token.balanceOf(provider), 100 * uint256(RATE));
        eq(token.balanceOf(manager), ESCROW - 100 * uint256(RATE));
    }

    function test_silence_pays_what_is_filed_and_held() public {
        _over();
        _fileBoth(0, node, 100);
        vm.warp(_redeemable() - 1);
        _hold();
        eq(_redeemable(), block.timestamp + APPEAL);
        vm.warp(_redeemable());
        vm.prank(arbiter);
        vm.expectRevert(abi.encodeWithSelector(Payroll.NoTableWaits.selector, pool));
        payroll.drop(pool, new address[](0));
        vm.prank(guardian);
        vm.expectRevert(abi.encodeWithSelector(Payroll.NoTableWaits.selector, pool));
        payroll.hold(pool);
        payroll.redeem(pool, node);
        eq(token.balanceOf(provider), 100 * uint256(RATE));
    }

    function test_what_nobody_holds_is_not_dropped_and_holding_has_its_time() public {
        vm.warp(block.timestamp + EPOCH);
        _end();
        vm.warp(_from() - 1);
        vm.prank(guardian);
        vm.expectRevert(abi.encodeWithSelector(Payroll.NoTableWaits.selector, pool));
        payroll.hold(pool);
        vm.warp(_from());
        _fileBoth(0, node, 100);
        vm.prank(manager);
        vm.expectPartialRevert(Payroll.OnlyGuardian.selector);
        payroll.hold(pool);
        vm.warp(_until());
        address[] memory nodes = new address[](1);
        nodes[0] = node;
        vm.prank(arbiter);
        vm.expectRevert(abi.encodeWithSelector(Payroll.NotHeld.selector, pool));
        payroll.drop(pool, nodes);
        vm.warp(_redeemable());
        vm.prank(guardian);
        vm.expectRevert(abi.encodeWithSelector(Payroll.NoTableWaits.selector, pool));
        payroll.hold(pool);
    }

    /// An appeal that is shorter than the delay brings nothing forward.
    function test_holding_brings_nothing_forward() public {
        Pools.PoolParams memory params = _params();
        (params.window, params.delay) = (1000, 1000);
        _startIn(_open(params));
        _end();
        vm.warp(_from());
        uint256 redeemable = _redeemable();
        _hold();
        eq(_redeemable(), redeemable);
        eq(redeemable, _until() + 1000);
    }

    // ---- more than there is

    function test_more_filed_than_free_is_shared_and_no_dust_stays() public {
        Pools.PoolParams memory params = _params();
        _startIn(_open(params));
        vm.prank(other);
        swarm.join(pool, "");
        _fund(pool, 10 * RATE);
        _over();
        _fileBoth(0, node, 3);
        _fileBoth(0, other, 20);
        vm.warp(_redeemable());
        payroll.redeem(pool, node);
        eq(token.balanceOf(provider), uint256(RATE)); // 3 x 10 / 23, rounded down
        payroll.redeem(pool, other);
        eq(token.balanceOf(OTHER), 9 * uint256(RATE));
        eq(token.balanceOf(address(payroll)), ESCROW); // of the other pool
        vm.expectPartialRevert(Payroll.ZeroAmount.selector);
        payroll.sweep(pool);
    }

    function test_of_nothing_free_nothing_is_redeemed() public {
        _startIn(_open(_params()));
        _over();
        _fileBoth(0, node, 3);
        vm.warp(_redeemable());
        payroll.redeem(pool, node);
        eq(token.balanceOf(provider), 0);
        eq(_filed(), 0);
    }

    /// Whoever redeems in whatever order gets at least its share and at most what it filed, and all that is set aside goes.
    function test_shares_in_any_order(uint32[5] calldata filed, uint32 free, uint8 first) public {
        uint256 all = 0;
        Pools.PoolParams memory params = _params();
        params.maxUnitsPerEpoch = type(uint32).max;
        (params.unitsPerEpoch, params.rewardPerUnit) = (type(uint64).max, 1e9);
        _startIn(_open(params));
        _fund(pool, (uint256(free) + 1) * 1e9);
        address[5] memory nodes;
        for (uint256 i = 0; i < 5; ++i) {
            address owner = address(uint160(0x7000 + i));
            _bond(owner, 20 ether);
            _register(owner, 0x7100 + i, 1);
            nodes[i] = vm.addr(0x7100 + i);
            vm.prank(nodes[i]);
            swarm.join(pool, "");
            all += uint256(filed[i]) + 1;
        }
        _over();
        for (uint256 i = 0; i < 5; ++i) _fileBoth(0, nodes[i], uint64(filed[i]) + 1);
        vm.warp(_redeemable());
        uint256 there = uint256(free) + 1 < all ? uint256(free) + 1 : all;
        uint256 paid = 0;
        for (uint256 j = 0; j < 5; ++j) {
            uint256 i = (j + first) % 5;
            payroll.redeem(pool, nodes[i]);
            uint256 got = token.balanceOf(address(uint160(0x7000 + i))) / 1e9;
            uint256 own = uint256(filed[i]) + 1;
            yes(got >= own * there / all && got <= own, "not its share");
            paid += got;
        }
        eq(paid, there);
    }

    /// What all nodes can be paid for an epoch is the pool's, whoever signs.
    function test_no_more_is_redeemed_than_the_pool_pays_of_the_epochs_that_no_table_has() public {
        Pools.PoolParams memory params = _params();
        params.unitsPerEpoch = 40;
        _startIn(_open(params));
        _fund(pool, ESCROW);
        _earn(0, 40);
        _end();
        uint256 epochs = _epochAt(pool, block.timestamp); // all but the first one
        vm.warp(_from());
        _fileBoth(1, node, 50_000);
        vm.warp(_redeemable());
        payroll.redeem(pool, node);
        eq(token.balanceOf(provider), epochs * 40 * uint256(RATE));
        payroll.sweep(pool);
        eq(token.balanceOf(manager), ESCROW - (epochs + 1) * 40 * uint256(RATE));
    }

    // ---- tokens

    function test_a_token_that_begins_to_take_a_fee_takes_it_from_who_is_paid_and_from_no_other() public {
        LateFeeToken late = new LateFeeToken();
        token = TestToken(address(late));
        _deploy(address(late));
        _bond(address(0x5005), 30 ether);
        _register(address(0x5005), judgeKeys[0], 1);
        _register(address(0x5005), judgeKeys[1], 1);
        _bond(provider, 100 ether);
        pool = _open(_params());
        _fund(pool, 1000 * RATE);
        _startIn(pool);
        vm.prank(manager);
        swarm.endPool(pool);
        vm.warp(_from());
        _fileBoth(0, node, 400);
        late.take();
        vm.warp(_redeemable());
        payroll.redeem(pool, node);
        eq(token.balanceOf(provider), 396 * uint256(RATE));
        eq(token.balanceOf(address(payroll)), 600 * uint256(RATE));
        payroll.sweep(pool);
        eq(token.balanceOf(address(payroll)), 0);
    }
}
