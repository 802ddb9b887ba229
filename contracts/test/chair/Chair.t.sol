// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base, Sign} from "../Base.sol";
import {Chair} from "../../src/Chair.sol";
import {Court} from "../../src/Court.sol";
import {Judgement, WorkCommitment} from "../../src/Statements.sol";

/// Three trainers: the node of Base, which leads, and two that stand by.
contract ChairTest is Base {
    uint32 private constant TERM = 200;
    uint32 private constant GRACE = 30;
    uint64 private constant STEP = 500;
    bytes32 private constant PARENT = bytes32(uint256(0x55));

    Chair private chair;
    uint256 private constant B = 0xB0B;
    uint256 private constant C = 0xCA1;
    address private constant STANDBYS = address(0x8008);
    address private b = vm.addr(B);
    address private c = vm.addr(C);

    function setUp() public override {
        super.setUp();
        chair = Chair(_create("Chair", abi.encode(court)));
        vm.prank(manager);
        chair.seat(pool, _three(), TERM, GRACE);
        _bond(STANDBYS, 30 ether);
        _register(STANDBYS, B, 1);
        _register(STANDBYS, C, 1);
        _joins(b);
        _joins(c);
    }

    function _joins(address who) private {
        vm.prank(who);
        swarm.join(pool, "");
    }

    function _three() private view returns (address[] memory all) {
        all = new address[](3);
        (all[0], all[1], all[2]) = (node, b, c);
    }

    function _two(address one, address other) private pure returns (address[] memory both) {
        both = new address[](2);
        (both[0], both[1]) = (one, other);
    }

    function _now() private view returns (Chair.Term memory) {
        return chair.termOf(pool);
    }

    function _holder() private view returns (address) {
        return chair.seatingOf(pool).trainers[_now().place];
    }

    function _take(address by, uint32 term) private {
        vm.prank(by);
        chair.take(pool, term, 7, PARENT);
    }

    function _hold() private {
        vm.prank(node);
        chair.hold(pool, 9, PARENT);
    }

    /// Two validators' words, of which the first knows of a policy more.
    function _silence(uint32 term, uint64 until) private view returns (bytes[] memory words) {
        words = new bytes[](2);
        for (uint64 i = 0; i < 2; ++i) {
            words[i] = _sign(judgeKeys[i], keccak256(abi.encode(Sign.TERM_SILENT, pool, term, until, STEP + 1 - i)));
        }
    }

    function _steps() private pure returns (uint64[] memory steps) {
        steps = new uint64[](2);
        (steps[0], steps[1]) = (STEP + 1, STEP);
    }

    function _end() private {
        chair.endTerm(pool, _now().number, _now().until, _steps(), _silence(_now().number, _now().until));
    }

    /// What the node signed by stating a step of a term.
    function _step(uint32 term) private view returns (WorkCommitment memory w) {
        w = _file(7, 0);
        w.policyRoot = keccak256(abi.encodePacked("intellect-node policy statement v1", term));
    }

    /// Two verdicts that differ in everything but that they are against it.
    function _against(WorkCommitment memory w) private view returns (Judgement[] memory said, bytes[] memory signed) {
        said = new Judgement[](2);
        (said[0], said[1]) = (Judgement(1, 32, 0), Judgement(2, 30, bytes32(uint256(1))));
        signed = new bytes[](2);
        for (uint256 i = 0; i < 2; ++i) {
            signed[i] =
                _sign(judgeKeys[i], Sign.said(Sign.VERDICT, w, said[i].outcome, said[i].reason, said[i].values));
        }
    }

    // ---- seating

    function test_the_first_leads_from_the_start() public {
        uint256 other = _open(_params());
        vm.expectEmit(address(chair));
        emit Chair.TrainersSeated(other, _three(), TERM, GRACE);
        vm.expectEmit(address(chair));
        emit Chair.TermTaken(other, node, 0, 0, 0, uint64(block.timestamp) + TERM);
        vm.prank(manager);
        chair.seat(other, _three(), TERM, GRACE);
        eq(chair.termOf(other).until, block.timestamp + TERM);
        vm.prank(manager);
        vm.expectPartialRevert(Chair.AlreadySeated.selector);
        chair.seat(other, _three(), TERM, GRACE);
    }

    function test_only_the_opener_names_and_it_or_the_manager_seats() public {
        uint256 other = _open(_params());
        vm.expectPartialRevert(Chair.OnlyOpener.selector);
        chair.seat(other, _three(), TERM, GRACE);
        vm.expectPartialRevert(Chair.OnlyOpener.selector);
        chair.propose(pool, _three());
        vm.prank(manager);
        vm.expectPartialRevert(Chair.NotSeated.selector);
        chair.propose(other, _three());
        vm.expectPartialRevert(Chair.NotSeated.selector);
        chair.applyTrainers(other);
        vm.expectPartialRevert(Chair.NotSeated.selector);
        chair.hold(other, 0, 0);
        vm.expectPartialRevert(Chair.NotSeated.selector);
        chair.take(other, 1, 0, 0);
    }

    function test_the_bounds_of_lease_and_grace() public {
        uint256 other = _open(_params());
        uint32[2][3] memory bad = [[uint32(0), 0], [uint32(7 days) + 1, 0], [TERM, TERM + 1]];
        for (uint256 i = 0; i < 3; ++i) {
            vm.prank(manager);
            vm.expectPartialRevert(Chair.BadLease.selector);
            chair.seat(other, _three(), bad[i][0], bad[i][1]);
        }
        vm.prank(manager);
        chair.seat(other, _three(), 7 days, 7 days);
    }

    function test_the_bounds_of_trainers() public {
        uint256 other = _open(_params());
        address[] memory eight = new address[](8);
        for (uint160 i = 0; i < 8; ++i) {
            eight[i] = address(i + 1);
        }
        address[][2] memory counts = [new address[](0), new address[](9)];
        for (uint256 i = 0; i < 2; ++i) {
            vm.prank(manager);
            vm.expectPartialRevert(Chair.BadTrainers.selector);
            chair.seat(other, counts[i], TERM, GRACE);
        }
        address[][3] memory bad = [_two(b, b), _two(address(0), b), _two(b, address(0))];
        for (uint256 i = 0; i < 3; ++i) {
            vm.prank(manager);
            vm.expectPartialRevert(Chair.NotATrainer.selector);
            chair.seat(other, bad[i], TERM, GRACE);
            vm.prank(manager);
            vm.expectPartialRevert(Chair.NotATrainer.selector);
            chair.propose(pool, bad[i]);
        }
        vm.prank(manager);
        chair.seat(other, eight, TERM, GRACE);
    }

    // ---- holding, taking

    function test_holding_begins_another_lease_and_moves_nothing_else(uint64 step) public {
        vm.warp(block.timestamp + 4 * TERM); // nobody took
        vm.expectEmit(address(chair));
        emit Chair.TermHeld(pool, node, 0, step, PARENT, uint64(block.timestamp) + TERM);
        vm.prank(node);
        chair.hold(pool, step, PARENT);
        eq(_now().until, block.timestamp + TERM);
        eq(_now().fromStep + _now().number, 0);
        vm.prank(b);
        vm.expectPartialRevert(Chair.NotTheHolder.selector);
        chair.hold(pool, step, PARENT);
    }

    function test_each_standby_waits_for_its_turn_and_no_longer() public {
        uint256 until = _now().until;
        address[3] memory order = [b, c, node];
        for (uint256 i = 0; i < 3; ++i) {
            vm.warp(until + i * GRACE - 1);
            vm.expectRevert(abi.encodeWithSelector(Chair.TooEarly.selector, until + i * GRACE));
            _take(order[i], 1);
        }
        vm.warp(until + GRACE);
        vm.expectEmit(address(chair));
        emit Chair.TermTaken(pool, c, 1, 7, PARENT, uint64(block.timestamp) + TERM);
        _take(c, 1);
        eq(_now().place, 2);
        yes(_now().parent == PARENT, "parent");
        vm.expectPartialRevert(Chair.OtherTerm.selector);
        _take(b, 1); // it lost
        uint256 end = _now().until;
        vm.warp(end + GRACE - 1);
        vm.expectRevert(abi.encodeWithSelector(Chair.TooEarly.selector, end + GRACE));
        _take(b, 2);
        _take(node, 2); // comes after c
        eq(_holder(), node);
    }

    function _reach(uint64 step) private {
        vm.prank(node);
        chair.hold(pool, step, PARENT);
    }

    function _takeFrom(address by, uint32 term, uint64 step) private {
        vm.prank(by);
        chair.take(pool, term, step, PARENT);
    }

    function test_a_term_takes_back_a_few_policies_of_those_before_it_together() public {
        _reach(5000);
        _reach(9); // who says less takes nothing back
        vm.warp(_now().until);
        vm.expectRevert(abi.encodeWithSelector(Chair.BadStep.selector, 4935, 4936));
        _takeFrom(b, 1, 4935);
        _takeFrom(b, 1, 4936);
        eq(_now().reached, 5000);
        vm.warp(_now().until);
        vm.expectRevert(abi.encodeWithSelector(Chair.BadStep.selector, 4935, 4936));
        _takeFrom(c, 2, 4935);
        _takeFrom(c, 2, 4936);
    }

    function test_a_short_run_may_be_taken_back_to_its_start() public {
        _reach(64);
        vm.warp(_now().until);
        _takeFrom(b, 1, 0);
    }

    function test_a_term_that_begins_far_ahead_is_not_the_end() public {
        _reach(5000);
        vm.warp(_now().until);
        _takeFrom(b, 1, type(uint64).max);
        vm.warp(_now().until);
        _takeFrom(c, 2, 5001);
        eq(_holder(), c);
    }

    function test_a_quorum_corrects_a_holder_that_said_too_much() public {
        _reach(type(uint64).max);
        vm.warp(block.timestamp + 20);
        _end();
        eq(_now().reached, STEP + 1); // the greatest that one of them knows
        vm.expectRevert(abi.encodeWithSelector(Chair.BadStep.selector, STEP - 64, STEP - 63));
        _takeFrom(b, 1, STEP - 64);
        _takeFrom(b, 1, STEP - 63);
    }

    function test_the_steps_are_what_was_signed() public {
        bytes[] memory words = _silence(0, _now().until);
        uint64[] memory steps = _steps();
        steps[1] = 0;
        uint64 until = _now().until;
        vm.expectPartialRevert(Court.NotAValidator.selector);
        chair.endTerm(pool, 0, until, steps, words);
    }

    function test_a_run_whose_trainers_are_gone_goes_on_from_anywhere_once_others_are_seated() public {
        _reach(5000);
        vm.prank(manager);
        chair.propose(pool, _two(node, b));
        vm.warp(block.timestamp + WINDOW);
        chair.applyTrainers(pool);
        eq(_now().reached, 5000); // the holder is one of them
        vm.prank(manager);
        chair.propose(pool, _two(b, c));
        vm.warp(block.timestamp + WINDOW);
        chair.applyTrainers(pool);
        _takeFrom(b, 1, 3);
    }

    function test_only_trainers_take_and_of_a_pool_that_lives() public {
        vm.warp(_now().until + 10 * GRACE);
        vm.expectPartialRevert(Chair.NotATrainer.selector);
        _take(anybody, 1);
        vm.prank(manager);
        swarm.endPool(pool);
        vm.expectRevert();
        _take(b, 1);
    }

    function test_who_was_thrown_out_has_no_chair_and_nobody_waits_for_it() public {
        _contradict();
        vm.prank(node);
        vm.expectPartialRevert(Chair.TermIsOver.selector);
        chair.hold(pool, 1, PARENT);
        _take(c, 1); // at once, whoever it is
        vm.warp(_now().until + 10 * GRACE);
        vm.expectPartialRevert(Chair.NotATrainer.selector);
        _take(node, 2);
    }

    // ---- silence

    function test_a_quorum_ends_a_silent_term() public {
        uint64 until = _now().until;
        vm.warp(block.timestamp + 20);
        vm.expectEmit(address(chair));
        emit Chair.TermEnded(pool, 0, uint64(block.timestamp), STEP);
        chair.endTerm(pool, 0, until, _steps(), _silence(0, until));
        eq(_now().until, block.timestamp);
        vm.prank(node);
        vm.expectPartialRevert(Chair.TermIsOver.selector);
        chair.hold(pool, 1, PARENT);
        bytes[] memory again = _silence(0, _now().until);
        until = _now().until;
        vm.expectPartialRevert(Chair.OtherTerm.selector);
        chair.endTerm(pool, 0, until, _steps(), again); // words about no lease that there was
        _takeFrom(b, 1, STEP);
        yes(!_now().ended, "another term");
    }

    function test_words_of_silence_count_for_one_lease_of_one_term() public {
        uint64 until = _now().until;
        bytes[] memory words = _silence(0, until);
        vm.expectPartialRevert(Chair.OtherTerm.selector);
        chair.endTerm(pool, 1, until, _steps(), _silence(1, until));
        vm.expectPartialRevert(Court.NotAValidator.selector);
        chair.endTerm(pool, 0, until, _steps(), _silence(0, until + 1));
        vm.expectPartialRevert(Chair.NotSeated.selector);
        chair.endTerm(pool + 1, 0, until, _steps(), words);
        vm.warp(block.timestamp + 1);
        _hold();
        vm.expectPartialRevert(Chair.OtherTerm.selector);
        chair.endTerm(pool, 0, until, _steps(), words);
        bytes[] memory one = new bytes[](1);
        one[0] = _silence(0, _now().until)[0];
        until = _now().until;
        vm.expectPartialRevert(Court.QuorumMissing.selector);
        chair.endTerm(pool, 0, until, new uint64[](1), one);
    }

    // ---- who of the quorum lies

    function _word(uint256 judge, uint64 until, uint64 step) private view returns (bytes memory) {
        return _sign(judgeKeys[judge], keccak256(abi.encode(Sign.TERM_SILENT, pool, uint32(0), until, step)));
    }

    /// The words of two judges about the first lease, the greater one first.
    function _endBy(uint64 until, uint64 great, uint64 small) private {
        uint64[] memory steps = new uint64[](2);
        (steps[0], steps[1]) = (great, small);
        bytes[] memory words = new bytes[](2);
        (words[0], words[1]) = (_word(0, until, great), _word(1, until, small));
        chair.endTerm(pool, 0, until, steps, words);
    }

    function test_one_liar_moves_nothing_where_the_holder_was_honest(uint64 said, bool greater) public {
        _reach(5000);
        uint64 until = uint64(_now().until);
        if (greater) _endBy(until, uint64(_bounded(said, 5000, type(uint64).max)), 5000);
        else _endBy(until, 5000, said % 5001);
        eq(_now().reached, 5000);
        vm.expectRevert(abi.encodeWithSelector(Chair.BadStep.selector, 4935, 4936));
        _takeFrom(b, 1, 4935);
        _takeFrom(b, 1, 4936);
    }

    /// The control: without anybody's lie, and with the holder's alone, two honest words say how far the run is.
    function test_what_the_holder_said_is_kept_within_the_words_of_a_quorum(uint64 held, uint64 one, uint64 other) public {
        _reach(held);
        (uint64 great, uint64 small) = one > other ? (one, other) : (other, one);
        _endBy(uint64(_now().until), great, small);
        eq(_now().reached, held > great ? great : held < small ? small : held);
    }

    function test_a_lie_of_holder_and_judge_is_corrected_until_somebody_takes() public {
        _reach(type(uint64).max);
        uint64 until = uint64(_now().until);
        vm.warp(block.timestamp + 20);
        uint64 ended = uint64(block.timestamp);
        _endBy(until, type(uint64).max, 7);
        vm.expectPartialRevert(Chair.BadStep.selector);
        _takeFrom(b, 1, 500);
        vm.warp(block.timestamp + 20);
        vm.expectEmit(address(chair));
        emit Chair.TermEnded(pool, 0, ended, 501);
        _endBy(until, 501, 500);
        eq(_now().until, ended);
        _takeFrom(b, 1, 500);
        uint64 later = uint64(_now().until);
        vm.expectRevert(abi.encodeWithSelector(Chair.OtherTerm.selector, 1, later));
        this.endBy(until, 501, 500);
    }

    function endBy(uint64 until, uint64 great, uint64 small) external {
        _endBy(until, great, small);
    }

    function test_words_stand_in_falling_order() public {
        uint64 until = uint64(_now().until);
        vm.expectRevert(abi.encodeWithSelector(Chair.NotInOrder.selector, 8, 7));
        this.endBy(until, 7, 8);
        _endBy(until, 8, 8);
    }

    function test_words_of_before_say_nothing_once_other_trainers_are_seated() public {
        _reach(5000);
        uint64 until = uint64(_now().until);
        _endBy(until, 5000, 5000);
        vm.prank(manager);
        chair.propose(pool, _two(b, c));
        vm.warp(block.timestamp + WINDOW);
        chair.applyTrainers(pool);
        vm.expectPartialRevert(Chair.TermIsOver.selector);
        this.endBy(until, 5000, 5000);
        _takeFrom(b, 1, 3);
    }

    /// Nor with the lease of an earlier term that ended by silence.
    function test_words_about_an_earlier_terms_lease_end_nothing_again() public {
        uint64 until = uint64(_now().until);
        _endBy(until, 501, 500);
        _takeFrom(b, 1, 501);
        WorkCommitment memory w = _step(1);
        w.node = b;
        (Judgement[] memory said, bytes[] memory signed) = _against(w);
        chair.endTermByVerdicts(1, w, said, signed);
        vm.expectRevert(abi.encodeWithSelector(Chair.TermIsOver.selector, 1));
        chair.endTerm(pool, 1, until, _steps(), _silence(1, until));
    }

    function test_nobody_ends_by_silence_again_what_verdicts_ended() public {
        (Judgement[] memory said, bytes[] memory signed) = _against(_step(0));
        uint64 until = uint64(_now().until);
        chair.endTermByVerdicts(0, _step(0), said, signed);
        vm.expectRevert(abi.encodeWithSelector(Chair.TermIsOver.selector, 0));
        this.endBy(until, 9, 9);
    }

    // ---- who is fit

    /// b leads; then it leaves, or is removed, or its provider's stake is gone, or its lease is over.
    function test_a_holder_that_is_not_fit_any_more_holds_nothing_and_nobody_waits_for_it() public {
        for (uint256 i = 0; i < 4; ++i) {
            chair = Chair(_create("Chair", abi.encode(court)));
            vm.prank(manager);
            chair.seat(pool, _three(), TERM, GRACE);
            vm.warp(_now().until);
            _take(b, 1);
            vm.expectPartialRevert(Chair.TooEarly.selector);
            _take(node, 2);
            if (i == 0) _frozenStake(); // what is frozen counts until its case is final
            if (i == 0) continue;
            if (i == 1) _leave(b);
            if (i == 2) _remove(b);
            if (i == 3) _lose();
            vm.prank(b);
            vm.expectPartialRevert(Chair.TermIsOver.selector);
            chair.hold(pool, 9, PARENT);
            _take(node, 2); // the last in turn, at once
            if (i == 2) _register(STANDBYS, B, 1);
            if (i < 3) _joins(b);
        }
    }

    function _leave(address who) private {
        vm.prank(who);
        swarm.leavePool(pool);
    }

    function _remove(address who) private {
        vm.prank(STANDBYS);
        swarm.removeNode(who);
    }

    function _lose() private {
        vm.prank(address(swarm));
        vault.slash(STANDBYS, 1);
    }

    function _frozenStake() private {
        vm.prank(address(swarm));
        vault.freeze(STANDBYS, 1 ether, 1, address(this));
        vm.prank(b);
        chair.hold(pool, 9, PARENT);
        uint256 caseId = vault.caseCount();
        vm.prank(address(swarm));
        vault.overturn(caseId);
    }

    /// It may not have joined yet: it is given its first lease, and holds nothing before.
    function test_the_first_holder_has_its_first_lease_to_join() public {
        _leave(node);
        vm.prank(node);
        vm.expectPartialRevert(Chair.TermIsOver.selector);
        chair.hold(pool, 9, PARENT);
        vm.expectPartialRevert(Chair.TooEarly.selector);
        _take(b, 1);
        vm.warp(_now().until);
        _take(b, 1);
    }

    function test_who_never_joined_or_has_left_takes_nothing() public {
        vm.prank(b);
        swarm.leavePool(pool);
        vm.warp(_now().until);
        vm.prank(b);
        vm.expectRevert(abi.encodeWithSelector(Chair.NotATrainer.selector, b));
        chair.take(pool, 1, 7, PARENT);
        _joins(b);
        _take(b, 1);
    }

    // ---- verdicts

    function test_a_quorums_verdicts_against_a_step_end_the_term() public {
        (Judgement[] memory said, bytes[] memory signed) = _against(_step(0));
        _reach(5000);
        vm.expectEmit(address(chair));
        emit Chair.TermEnded(pool, 0, uint64(block.timestamp), 7);
        chair.endTermByVerdicts(0, _step(0), said, signed);
        eq(_now().reached, 7); // the next one may begin at the bad step
        eq(_now().until, block.timestamp);
        vm.expectPartialRevert(Chair.TermIsOver.selector);
        chair.endTermByVerdicts(0, _step(0), said, signed);
        _take(b, 1);
        eq(_holder(), b);
    }

    function test_verdicts_end_no_other_term_and_nobody_elses() public {
        (Judgement[] memory said, bytes[] memory signed) = _against(_step(0));
        vm.expectPartialRevert(Chair.OtherTerm.selector);
        chair.endTermByVerdicts(1, _step(1), said, signed);
        WorkCommitment memory file = _file(7, 0);
        (said, signed) = _against(file); // bad work of the leader's is no step
        vm.expectPartialRevert(Chair.OtherTerm.selector);
        chair.endTermByVerdicts(0, file, said, signed);
        WorkCommitment memory other = _step(0);
        other.node = b;
        (said, signed) = _against(other);
        vm.expectRevert(abi.encodeWithSelector(Chair.NotTheHolder.selector, b, node));
        chair.endTermByVerdicts(0, other, said, signed);
        other = _step(0);
        other.pool = pool + 1;
        vm.expectPartialRevert(Chair.NotSeated.selector);
        chair.endTermByVerdicts(0, other, said, signed);
    }

    function test_verdicts_that_are_no_quorums_or_say_something_else_end_nothing() public {
        (Judgement[] memory said, bytes[] memory signed) = _against(_step(0));
        said[1].values = 0;
        vm.expectPartialRevert(Court.NotAValidator.selector);
        chair.endTermByVerdicts(0, _step(0), said, signed);
        (said, signed) = _against(_step(0));
        (said[0], said[1]) = (said[1], said[0]);
        vm.expectPartialRevert(Court.NotAValidator.selector);
        chair.endTermByVerdicts(0, _step(0), said, signed);
        (said, signed) = _against(_step(0));
        Judgement[] memory three = new Judgement[](3);
        (three[0], three[1], three[2]) = (said[0], said[1], said[1]);
        vm.expectRevert(abi.encodeWithSelector(Court.BadValues.selector, 3, 2));
        chair.endTermByVerdicts(0, _step(0), three, signed);
        said[0].outcome = 0;
        signed[0] = _sign(judgeKeys[0], Sign.said(Sign.VERDICT, _step(0), 0, 32, 0));
        vm.expectPartialRevert(Chair.NothingFound.selector);
        chair.endTermByVerdicts(0, _step(0), said, signed);
        yes(!_now().ended, "nothing ended");
    }

    function test_who_answers_for_a_wrong_verdict_on_a_step_is_as_with_a_file() public {
        WorkCommitment memory w = _step(0);
        bytes[] memory said = _quorum(Sign.verdict(w, 2, 30));
        court.slash(w, _sign(nodeKey, Sign.commitment(w)), 30, said, _blank(said), 0);
        eq(_stake().frozen, SLASH);
        vm.prank(node);
        vm.expectPartialRevert(Chair.TermIsOver.selector);
        chair.hold(pool, 1, PARENT);
        vm.prank(arbiter);
        swarm.overturn(pool, node);
        _joins(node);
        eq(_stake().bonded, 100 ether);
        eq(vault.creditOf(provider), PUT - PUT / 10);
        eq(vault.bondedOf(address(0x5005)), 30 ether);
        _hold(); // it leads on
    }

    // ---- others

    function test_named_trainers_come_a_window_later_and_for_a_week() public {
        vm.expectPartialRevert(Chair.NoProposal.selector);
        chair.applyTrainers(pool);
        uint256 from = block.timestamp + WINDOW;
        vm.expectEmit(address(chair));
        emit Chair.TrainersProposed(pool, _two(c, node), uint64(from));
        vm.prank(manager);
        chair.propose(pool, _two(c, node));
        vm.warp(from - 1);
        vm.expectPartialRevert(Chair.TooEarly.selector);
        chair.applyTrainers(pool);
        vm.warp(from + 7 days);
        vm.expectRevert(abi.encodeWithSelector(Chair.ProposalLapsed.selector, from + 7 days));
        chair.applyTrainers(pool);
        vm.warp(from + 7 days - 1);
        vm.expectEmit(address(chair));
        emit Chair.TrainersSeated(pool, _two(c, node), TERM, GRACE);
        chair.applyTrainers(pool);
        eq(_holder(), node); // leads on, from another place
        eq(_now().place, 1);
        yes(!_now().ended, "the same term");
        eq(chair.seatingOf(pool).proposed.length, 0);
        vm.expectPartialRevert(Chair.NoProposal.selector);
        chair.applyTrainers(pool);
    }

    function test_a_proposal_may_be_applied_in_the_second_in_which_it_may() public {
        vm.prank(manager);
        chair.propose(pool, _two(b, c));
        vm.warp(block.timestamp + WINDOW);
        vm.expectEmit(address(chair));
        emit Chair.TermEnded(pool, 0, uint64(block.timestamp), 0);
        chair.applyTrainers(pool);
        yes(_now().ended, "its holder is not named any more");
        eq(_now().until, block.timestamp);
        vm.expectPartialRevert(Chair.TooEarly.selector);
        _take(c, 1);
        _take(b, 1); // the first of them comes first
    }

    function test_a_term_that_was_over_already_does_not_end_again() public {
        _end();
        uint40 until = _now().until;
        vm.prank(manager);
        chair.propose(pool, _two(b, c));
        vm.warp(block.timestamp + WINDOW);
        chair.applyTrainers(pool);
        eq(_now().until, until);
    }
}
