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
    bytes32 private constant SILENT = keccak256("TermSilent(uint256 pool,uint32 term,uint64 until,uint64 step)");

    Chair private chair;
    address private b = address(0xB0B);
    address private c = address(0xCA1);

    function setUp() public override {
        super.setUp();
        chair = Chair(_create("Chair", abi.encode(court)));
        vm.prank(manager);
        chair.seat(pool, _three(), TERM, GRACE);
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

    /// Two validators' words, of which one knows of a policy more.
    function _silence(uint32 term, uint64 until) private view returns (bytes[] memory words) {
        words = new bytes[](2);
        for (uint64 i = 0; i < 2; ++i) {
            words[i] = _sign(judgeKeys[i], keccak256(abi.encode(SILENT, pool, term, until, STEP + i)));
        }
    }

    function _steps() private pure returns (uint64[] memory steps) {
        steps = new uint64[](2);
        (steps[0], steps[1]) = (STEP, STEP + 1);
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

    function test_only_the_manager_seats_and_names() public {
        uint256 other = _open(_params());
        vm.expectPartialRevert(Chair.OnlyManager.selector);
        chair.seat(other, _three(), TERM, GRACE);
        vm.expectPartialRevert(Chair.OnlyManager.selector);
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
        vm.warp(block.timestamp + 5 * TERM); // nobody took
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
        emit Chair.TermEnded(pool, 0, uint64(block.timestamp));
        chair.endTerm(pool, 0, until, _steps(), _silence(0, until));
        eq(_now().until, block.timestamp);
        vm.prank(node);
        vm.expectPartialRevert(Chair.TermIsOver.selector);
        chair.hold(pool, 1, PARENT);
        bytes[] memory again = _silence(0, _now().until);
        until = _now().until;
        vm.expectPartialRevert(Chair.TermIsOver.selector);
        chair.endTerm(pool, 0, until, _steps(), again);
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

    // ---- verdicts

    function test_a_quorums_verdicts_against_a_step_end_the_term() public {
        (Judgement[] memory said, bytes[] memory signed) = _against(_step(0));
        _reach(5000);
        vm.expectEmit(address(chair));
        emit Chair.TermEnded(pool, 0, uint64(block.timestamp));
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
        emit Chair.TermEnded(pool, 0, uint64(block.timestamp));
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
