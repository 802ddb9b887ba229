// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base, Sign} from "../Base.sol";
import {Court} from "../../src/Court.sol";
import {Judgement, Tally, WorkCommitment, WorkLeaf, WrongSigner} from "../../src/Statements.sol";
import {Swarm} from "../../src/Swarm.sol";

/// Two statements of one key that contradict each other need no judge.
contract EvidenceTest is Base {
    address private constant OWNER = address(0x5005);

    function _work() private view returns (bytes32) {
        return Sign.commitment(_file(7, 10));
    }

    function _verdict(Judgement memory v) private view returns (bytes32) {
        return keccak256(abi.encode(Sign.VERDICT, pool, _work(), v.outcome, v.reason, v.values));
    }

    /// A tree of three leaves, of which the work is the first; and the siblings on its way up.
    function _tree(uint64 units) private view returns (bytes32 root, bytes32[] memory proof) {
        bytes32 own = keccak256(abi.encodePacked(bytes1(0x04), node, _work(), units));
        proof = new bytes32[](2);
        (proof[0], proof[1]) = (keccak256("second"), keccak256("third"));
        root = _parent(_parent(own, proof[0]), proof[1]);
    }

    function _parent(bytes32 a, bytes32 b) private pure returns (bytes32) {
        return keccak256(abi.encodePacked(bytes1(0x01), a < b ? a : b, a < b ? b : a));
    }

    function _root() private view returns (Tally memory) {
        (bytes32 root,) = _tree(10);
        return Tally(pool, 3, 7, root, 30, keccak256("blob"));
    }

    function _leaf() private view returns (WorkLeaf memory) {
        (, bytes32[] memory proof) = _tree(10);
        return WorkLeaf(node, _work(), 10, proof);
    }

    function _hash(Tally memory r) private pure returns (bytes32) {
        return keccak256(abi.encode(Sign.EPOCH_ROOT, r.pool, r.epoch, r.number, r.root, r.total, r.blob));
    }

    // ---- commitments

    function test_commitments_for_one_slot_that_differ_in_anything_convict(
        bytes32 fileRoot,
        uint32 units,
        uint64 epoch,
        uint8 which
    ) public {
        WorkCommitment memory first = _file(0, 10);
        WorkCommitment memory second = _file(0, 10);
        if (which % 3 == 0) second.fileRoot = fileRoot;
        else if (which % 3 == 1) second.units = units;
        else second.epoch = epoch;
        bool differs = fileRoot != first.fileRoot && which % 3 == 0 || units != 10 && which % 3 == 1
            || epoch != 0 && which % 3 == 2;
        vm.assume(differs);
        bytes memory one = _sign(nodeKey, Sign.commitment(first));
        bytes memory two = _sign(nodeKey, Sign.commitment(second));
        court.evidence([first, second], [one, two]);
        yes(swarm.memberInfo(pool, node).evicted, "evicted");
        eq(_stake().bonded, 100 ether - SLASH);
        eq(_stake().frozen, 0);
        vm.prank(arbiter);
        vm.expectPartialRevert(Swarm.NotSlashed.selector);
        swarm.overturn(pool, node); // final
    }

    // ---- verdicts

    function test_a_second_verdict_that_differs_in_anything_costs_seat_and_stake() public {
        Judgement[3] memory others = [Judgement(1, 0, 0), Judgement(0, 1, 0), Judgement(0, 0, bytes32(uint256(1)))];
        Judgement memory said = Judgement(0, 0, 0);
        for (uint256 i = 0; i < 2; ++i) {
            bytes memory one = _sign(judgeKeys[i], _verdict(said));
            bytes memory two = _sign(judgeKeys[i], _verdict(others[i]));
            address judge = vm.addr(judgeKeys[i]);
            vm.expectEmit(address(court));
            emit Court.ValidatorStruck(pool, judge);
            vm.expectEmit(address(swarm));
            emit Swarm.Slashed(pool, judge, OWNER, 200, SLASH, _work(), 0);
            court.verdictEvidence(pool, _work(), [said, others[i]], [one, two]);
            yes(swarm.memberInfo(pool, judge).evicted, "evicted");
            eq(court.benchOf(pool).validators.length, 1 - i);
            vm.expectPartialRevert(Court.NotAValidator.selector);
            court.verdictEvidence(pool, _work(), [said, others[i]], [one, two]);
        }
        eq(vault.bondedOf(OWNER), 30 ether - 2 * uint256(SLASH));
        uint256 id = _open(_params());
        pool = id;
        bytes memory first = _sign(judgeKeys[0], _verdict(said));
        bytes memory second = _sign(judgeKeys[0], _verdict(others[2]));
        court.verdictEvidence(pool, _work(), [said, others[2]], [first, second]); // only its values differ
        eq(court.benchOf(id).validators.length, 1);
    }

    function test_verdicts_that_do_not_contradict_cost_nothing() public {
        (Judgement memory good, Judgement memory bad) = (Judgement(0, 0, 0), Judgement(2, 5, 0));
        bytes32 work = _work();
        bytes memory one = _sign(judgeKeys[0], _verdict(good));
        bytes memory two = _sign(judgeKeys[0], _verdict(bad));
        vm.expectPartialRevert(Court.NoContradiction.selector);
        court.verdictEvidence(pool, work, [good, good], [one, one]);
        // of another work, of another pool, by another judge
        vm.expectPartialRevert(WrongSigner.selector);
        court.verdictEvidence(pool, bytes32(uint256(9)), [good, bad], [one, two]);
        vm.expectPartialRevert(WrongSigner.selector);
        court.verdictEvidence(pool + 1, work, [good, bad], [one, two]);
        bytes memory others = _sign(judgeKeys[1], _verdict(bad));
        vm.expectRevert(abi.encodeWithSelector(WrongSigner.selector, vm.addr(judgeKeys[1]), vm.addr(judgeKeys[0])));
        court.verdictEvidence(pool, work, [good, bad], [one, others]);
        eq(court.benchOf(pool).validators.length, 2);
    }

    /// Looking again inside a dispute is no second word.
    function test_what_was_found_on_looking_again_is_no_contradiction() public {
        WorkCommitment memory c = _file(7, 10);
        bytes memory said = _sign(judgeKeys[0], Sign.verdict(c, 0, 0));
        bytes memory looked = _sign(judgeKeys[0], Sign.said(Sign.RECHECKED, c, 2, 5, 0));
        vm.expectPartialRevert(WrongSigner.selector);
        court.verdictEvidence(pool, Sign.commitment(c), [Judgement(0, 0, 0), Judgement(2, 5, 0)], [said, looked]);
    }

    function test_who_removed_its_validator_or_is_out_of_office_pays_all_the_same() public {
        address judge = vm.addr(judgeKeys[0]);
        vm.prank(OWNER);
        swarm.removeNode(judge);
        address[] memory others = new address[](1);
        others[0] = vm.addr(judgeKeys[1]);
        vm.prank(manager);
        court.proposeValidators(pool, others, 1);
        vm.warp(block.timestamp + WINDOW);
        court.applyValidators(pool);
        bytes memory one = _sign(judgeKeys[0], _verdict(Judgement(0, 0, 0)));
        bytes memory two = _sign(judgeKeys[0], _verdict(Judgement(2, 5, 0)));
        court.verdictEvidence(pool, _work(), [Judgement(0, 0, 0), Judgement(2, 5, 0)], [one, two]);
        eq(vault.bondedOf(OWNER), 30 ether - SLASH);
        eq(court.benchOf(pool).validators.length, 1); // the bench stays
    }

    // ---- roots

    function test_a_leaf_beside_a_rejection_costs_seat_and_stake() public {
        Tally memory r = _root();
        bytes memory one = _sign(judgeKeys[0], _hash(r));
        bytes memory good = _sign(judgeKeys[0], _verdict(Judgement(0, 0, 0)));
        bytes memory bad = _sign(judgeKeys[0], _verdict(Judgement(1, 8, 0)));
        vm.expectPartialRevert(Court.NoContradiction.selector);
        court.leafEvidence(r, _leaf(), Judgement(0, 0, 0), [one, good]);
        bytes memory others = _sign(judgeKeys[1], _verdict(Judgement(1, 8, 0)));
        vm.expectPartialRevert(WrongSigner.selector);
        court.leafEvidence(r, _leaf(), Judgement(1, 8, 0), [one, others]);
        // not under the root: of another node, of other units, of a proof cut short or of a proof of another leaf
        for (uint256 i = 0; i < 4; ++i) {
            WorkLeaf memory leaf = _leaf();
            if (i == 0) leaf.node = address(1);
            if (i == 1) leaf.units = 11;
            if (i == 2) leaf.proof = new bytes32[](1);
            if (i == 3) leaf.proof[1] = keccak256("fourth");
            vm.expectPartialRevert(Court.NoContradiction.selector);
            court.leafEvidence(r, leaf, Judgement(1, 8, 0), [one, bad]);
        }
        // a word against another work, which is not under the root
        WorkLeaf memory another = _leaf();
        another.work = bytes32(uint256(9));
        vm.expectPartialRevert(Court.NoContradiction.selector);
        court.leafEvidence(r, another, Judgement(1, 8, 0), [one, bad]);
        vm.expectEmit(address(swarm));
        emit Swarm.Slashed(pool, vm.addr(judgeKeys[0]), OWNER, 201, SLASH, _work(), 0);
        court.leafEvidence(r, _leaf(), Judgement(1, 8, 0), [one, bad]);
        eq(vault.bondedOf(OWNER), 30 ether - SLASH);
        eq(court.benchOf(pool).validators.length, 1);
    }

    function test_two_roots_of_one_number_that_differ_in_anything_cost_seat_and_stake() public {
        for (uint256 i = 0; i < 7; ++i) {
            Tally memory a = _root();
            Tally memory b = _root();
            if (i == 0) b.pool = pool + 1;
            if (i == 1) b.epoch = 4;
            if (i == 2) b.number = 8;
            if (i == 4) b.root = bytes32(uint256(9));
            if (i == 5) b.total = 31;
            if (i == 6) b.blob = bytes32(uint256(9));
            uint256 key = judgeKeys[i < 5 ? 0 : 1];
            bytes memory one = _sign(key, _hash(a));
            bytes memory two = _sign(key, _hash(b));
            if (i < 4) vm.expectPartialRevert(Court.NoContradiction.selector);
            if (i == 6) vm.expectPartialRevert(Court.NotAValidator.selector); // it is struck already
            if (i == 4) {
                vm.expectEmit(address(swarm));
                emit Swarm.Slashed(pool, vm.addr(key), OWNER, 201, SLASH, a.root, 0);
            }
            court.tallyEvidence(false, [a, b], [one, two]);
        }
        eq(vault.bondedOf(OWNER), 30 ether - 2 * uint256(SLASH));
        eq(court.benchOf(pool).validators.length, 0);
    }

    function test_two_roots_by_two_validators_or_in_two_files_only_convict_whoever_signed_both() public {
        Tally memory a = _root();
        Tally memory b = _root();
        b.blob = bytes32(uint256(9));
        bytes memory one = _sign(judgeKeys[0], _hash(a));
        bytes memory others = _sign(judgeKeys[1], _hash(b));
        vm.expectPartialRevert(WrongSigner.selector);
        court.tallyEvidence(false, [a, b], [one, others]);
        bytes memory two = _sign(judgeKeys[0], _hash(b));
        court.tallyEvidence(false, [a, b], [one, two]);
        eq(court.benchOf(pool).validators.length, 1);
    }

    function test_a_validator_that_is_gone_leaves_too_few_and_nothing_is_posted() public {
        bytes memory one = _sign(judgeKeys[0], _verdict(Judgement(0, 0, 0)));
        bytes memory two = _sign(judgeKeys[0], _verdict(Judgement(2, 5, 0)));
        court.verdictEvidence(pool, _work(), [Judgement(0, 0, 0), Judgement(2, 5, 0)], [one, two]);
        vm.warp(_matures(0));
        bytes[] memory signatures = _quorum(Sign.earnings(pool, 0, ROOT, 10));
        vm.expectPartialRevert(Court.NotAValidator.selector);
        payroll.post(_tally(pool, 0, ROOT, 10), signatures);
        bytes[] memory left = new bytes[](1);
        left[0] = signatures[1];
        vm.expectRevert(abi.encodeWithSelector(Court.QuorumMissing.selector, 1, 2));
        payroll.post(_tally(pool, 0, ROOT, 10), left);
    }
}
