// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Court} from "../src/Court.sol";
import {Members} from "../src/Members.sol";
import {Nodes} from "../src/Nodes.sol";
import {Pools} from "../src/Pools.sol";
import {StakeVault} from "../src/StakeVault.sol";
import {Verdict, WorkCommitment} from "../src/Statements.sol";
import {Work} from "../src/Work.sol";
import {Base, Sign} from "./Base.sol";

/// Attacks on the money that once succeeded. Each plays its attacker to the end, and shows that it gains nothing.
contract AttacksTest is Base {
    address private constant PUPPETEER = address(0x6006);
    uint256 private constant PUPPET = 0xE001;

    /// A pool whose two judges are the attacker's, which slashes as much as it may.
    function _ownPool() private returns (uint256 id) {
        _bond(PUPPETEER, 30 ether);
        _register(PUPPETEER, PUPPET, 1);
        _register(PUPPETEER, PUPPET + 1, 1);
        Pools.PoolParams memory params = _params();
        params.slashAmount = 60 ether;
        params.validators[0] = vm.addr(PUPPET);
        params.validators[1] = vm.addr(PUPPET + 1);
        id = _open(params);
    }

    function _in(uint256 id, uint256 worker, uint64 index) private view returns (WorkCommitment memory c) {
        c = _file(index, 10);
        c.pool = id;
        c.node = vm.addr(worker);
    }

    function _judge(uint256 worker, WorkCommitment memory c, uint256 first) private {
        (bytes memory own, bytes[] memory verdicts) = _case(worker, c, first);
        court.slash(c, own, 5, verdicts);
    }

    function _case(uint256 worker, WorkCommitment memory c, uint256 first)
        private
        view
        returns (bytes memory own, bytes[] memory verdicts)
    {
        bytes32 statement = Sign.verdict(c, 2, 5);
        own = _sign(worker, Sign.commitment(c));
        verdicts = new bytes[](2);
        verdicts[0] = _sign(first, statement);
        verdicts[1] = _sign(first + 1, statement);
    }

    function _join(uint256 worker, uint256 id) private {
        vm.prank(vm.addr(worker));
        swarm.join(id, "");
    }

    // ---- 1: a cheat freezes its own stake in a pool of its own

    function test_what_a_cheat_froze_itself_still_answers_for_its_fault() public {
        uint256 own = _ownPool();
        _join(nodeKey, own);
        _join(nodeKey, pool);
        _judge(nodeKey, _in(own, nodeKey, 0), PUPPET);
        eq(_stake().bonded, 40 ether);
        _slash(_file(0, 10));
        vm.prank(arbiter);
        swarm.overturn(own, node); // nobody can tell it from an honest overturning
        eq(_stake().bonded, 50 ether);
        eq(_stake().frozen, SLASH);
        vm.warp(block.timestamp + APPEAL);
        vault.finalize(2);
        eq(_stake().frozen, 0);
        eq(token.balanceOf(vault.BURNED()) + token.balanceOf(treasury), SLASH);
    }

    function test_evidence_reaches_what_a_cheat_froze_itself() public {
        uint256 own = _ownPool();
        _join(nodeKey, own);
        _join(nodeKey, pool);
        _judge(nodeKey, _in(own, nodeKey, 0), PUPPET);
        _contradict();
        eq(_stake().bonded, 0);
        eq(_stake().frozen, 50 ether);
        eq(token.balanceOf(vault.BURNED()) + token.balanceOf(treasury), SLASH);
    }

    function test_two_pools_never_take_more_than_there_is_and_leave_nothing_behind() public {
        uint256 own = _ownPool();
        _join(nodeKey, own);
        _join(nodeKey, pool);
        _judge(nodeKey, _in(own, nodeKey, 0), PUPPET);
        _slash(_file(0, 10));
        eq(_stake().frozen, 100 ether);
        vm.warp(block.timestamp + APPEAL);
        vault.finalize(1);
        vault.finalize(2);
        eq(_stake().frozen, 0);
        eq(_stake().bonded, 0);
        eq(token.balanceOf(vault.BURNED()) + token.balanceOf(treasury), 100 ether);
    }

    // ---- 2: judging with nothing to lose

    function test_a_validator_whose_stake_is_gone_judges_no_more() public {
        vm.prank(address(swarm));
        vault.slash(address(0x5005), 1);
        WorkCommitment memory c = _file(0, 10);
        (bytes memory own, bytes[] memory verdicts) = _case(nodeKey, c, judgeKeys[0]);
        vm.expectRevert(abi.encodeWithSelector(Court.ValidatorUnfit.selector, vm.addr(judgeKeys[0])));
        court.slash(c, own, 5, verdicts);
        _bond(address(0x5005), 1);
        court.slash(c, own, 5, verdicts);
        eq(_stake().frozen, SLASH);
    }

    function test_judges_of_another_pool_silence_no_validator_before_their_case_is_final() public {
        uint256 own = _ownPool();
        _join(judgeKeys[0], own);
        _judge(judgeKeys[0], _in(own, judgeKeys[0], 0), PUPPET);
        eq(vault.bondedOf(address(0x5005)), 0);
        _slash(_file(0, 10));
        eq(_stake().frozen, SLASH);
        vm.warp(block.timestamp + APPEAL);
        vault.finalize(1);
        (bytes memory mine, bytes[] memory verdicts) = _case(nodeKey, _file(1, 10), judgeKeys[0]);
        vm.expectPartialRevert(Court.ValidatorUnfit.selector);
        court.slash(_file(1, 10), mine, 5, verdicts);
    }

    // ---- 5, 6: wrong judges that judge again

    function test_one_leaf_is_judged_once_whatever_index_or_policy_it_is_said_to_have() public {
        (WorkCommitment[2] memory files, bytes32[2] memory leaves) = _pair(400, 600);
        _commit(0, _rootOf(leaves), 1000);
        _invalidate(files[0], leaves[1], 0, 2);
        vm.prank(arbiter);
        swarm.overturn(pool, node);
        bytes32[] memory proof = new bytes32[](1);
        proof[0] = leaves[1];
        for (uint64 i = 2; i < 4; ++i) {
            WorkCommitment memory c = files[0];
            if (i == 2) c.index = i;
            else c.policyRoot = bytes32(uint256(i));
            bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 8));
            vm.expectPartialRevert(Court.BadProof.selector);
            court.invalidate(c, 0, proof, 2, 8, verdicts);
        }
    }

    function test_every_wrong_freeze_pays_its_own_bond() public {
        for (uint256 i = 0; i < 3; ++i) {
            uint256 worker = nodeKey + i;
            address owner = address(uint160(0x8000 + i));
            if (i > 0) {
                _bond(owner, 100 ether);
                _register(owner, worker, 1);
                _join(worker, pool);
            }
            _judge(worker, _in(pool, worker, 0), judgeKeys[0]);
        }
        eq(_info().bond, 3 * uint256(POOL_BOND));
        eq(_info().escrow, ESCROW - 2 * uint256(POOL_BOND));
        for (uint256 i = 0; i < 3; ++i) {
            vm.prank(arbiter);
            swarm.overturn(pool, vm.addr(nodeKey + i));
            eq(token.balanceOf(i == 0 ? provider : address(uint160(0x8000 + i))), POOL_BOND);
        }
        eq(_info().bond, 0);
    }

    function test_a_pool_that_could_not_pay_for_a_wrong_slash_does_not_slash() public {
        Pools.PoolParams memory params = _params();
        params.rewardPerUnit = 0;
        uint256 id = _open(params);
        _register(provider, 0xD00D, 1);
        _join(nodeKey, id);
        _join(0xD00D, id);
        _judge(nodeKey, _in(id, nodeKey, 0), judgeKeys[0]);
        WorkCommitment memory c = _in(id, 0xD00D, 0);
        (bytes memory own, bytes[] memory verdicts) = _case(0xD00D, c, judgeKeys[0]);
        vm.expectRevert(abi.encodeWithSelector(Pools.BondTooLow.selector, id, POOL_BOND, 2 * uint256(POOL_BOND)));
        court.slash(c, own, 5, verdicts);
        _fund(id, POOL_BOND); // a pool without pay takes money to its bond
        court.slash(c, own, 5, verdicts);
        eq(swarm.poolInfo(id).bond, 2 * uint256(POOL_BOND));
    }

    function test_the_bond_of_a_case_that_is_final_serves_the_next() public {
        _slash(_file(0, 10));
        vm.warp(block.timestamp + APPEAL);
        vault.finalize(1);
        _register(provider, 0xD00D, 1);
        _join(0xD00D, pool);
        _judge(0xD00D, _in(pool, 0xD00D, 0), judgeKeys[0]);
        eq(_info().bond, POOL_BOND);
        eq(_info().escrow, ESCROW);
        vm.expectRevert(abi.encodeWithSelector(Pools.OnlyVault.selector, address(this)));
        swarm.caseFinal(pool);
    }

    // ---- 7: a freeze in one pool drives the provider's nodes out of another

    function test_nobody_is_expelled_for_a_case_that_is_not_final() public {
        uint256 own = _ownPool();
        _register(provider, 0xD00D, 4);
        _join(0xD00D, own);
        _judge(0xD00D, _in(own, 0xD00D, 0), PUPPET); // 40 of 100 tokens are left, 60 are needed
        vm.expectRevert(abi.encodeWithSelector(Nodes.StakeEnough.selector, provider));
        swarm.expel(node);
        vm.warp(block.timestamp + APPEAL);
        vault.finalize(1);
        swarm.expel(node);
        eq(swarm.nodeInfo(node).pool, 0);
    }

    // ---- 3: a validator that was evicted in its pool

    function _both() private view returns (Verdict memory good, Verdict memory bad) {
        WorkCommitment memory c = _file(7, 1);
        good = Verdict(c.pool, c.node, c.policyRoot, c.index, c.fileRoot, c.units, 0, 0);
        bad = Verdict(c.pool, c.node, c.policyRoot, c.index, c.fileRoot, c.units, 2, 5);
    }

    function _hash(Verdict memory v) private pure returns (bytes32) {
        return keccak256(
            abi.encode(Sign.VERDICT, v.pool, v.node, v.policyRoot, v.index, v.fileRoot, v.units, v.outcome, v.reason)
        );
    }

    function test_an_evicted_validator_judges_no_more_and_evidence_still_reaches_it() public {
        _bond(address(0x5005), 100 ether);
        _join(judgeKeys[0], pool);
        _judge(judgeKeys[0], _in(pool, judgeKeys[0], 0), judgeKeys[0]);
        (bytes memory own, bytes[] memory verdicts) = _case(nodeKey, _file(0, 10), judgeKeys[0]);
        vm.expectRevert(abi.encodeWithSelector(Court.ValidatorUnfit.selector, vm.addr(judgeKeys[0])));
        court.slash(_file(0, 10), own, 5, verdicts);
        (Verdict memory good, Verdict memory bad) = _both();
        bytes memory one = _sign(judgeKeys[0], _hash(good));
        bytes memory two = _sign(judgeKeys[0], _hash(bad));
        court.verdictEvidence(good, one, bad, two);
        eq(court.benchOf(pool).validators.length, 1);
        eq(vault.bondedOf(address(0x5005)), 30 ether);
        vm.prank(arbiter);
        swarm.overturn(pool, vm.addr(judgeKeys[0]));
        yes(swarm.memberInfo(pool, vm.addr(judgeKeys[0])).evicted, "its own signatures are final");
    }

    // ---- 4: judges whom nobody could know

    function _newJudges() private {
        address[] memory others = new address[](2);
        (others[0], others[1]) = (vm.addr(PUPPET), vm.addr(PUPPET + 1));
        vm.prank(manager);
        court.proposeValidators(pool, others, 2);
        vm.warp(block.timestamp + WINDOW);
        court.applyValidators(pool);
    }

    function test_new_judges_do_not_reach_who_leaves_in_the_second_in_which_they_come() public {
        _ownPool();
        _newJudges();
        vm.prank(provider);
        swarm.removeNode(node);
        vm.prank(provider);
        vault.unbond(100 ether);
        (bytes memory own, bytes[] memory verdicts) = _case(nodeKey, _file(0, 10), PUPPET);
        vm.expectRevert(abi.encodeWithSelector(Court.NotItsJudges.selector, pool, node));
        court.slash(_file(0, 10), own, 5, verdicts);
        eq(_stake().unbonding, 100 ether);
    }

    function test_new_judges_reach_who_works_on_under_them() public {
        _ownPool();
        _newJudges();
        _judge(nodeKey, _file(0, 10), PUPPET);
        eq(_stake().frozen, SLASH);
    }

    function test_nobody_is_judged_for_work_that_was_mature_when_it_had_left() public {
        vm.prank(node);
        swarm.leavePool(pool);
        (bytes memory own, bytes[] memory verdicts) = _case(nodeKey, _file(0, 10), judgeKeys[0]);
        vm.warp(_matures(0));
        vm.expectPartialRevert(Members.NotMember.selector);
        court.slash(_file(0, 10), own, 5, verdicts);
        vm.warp(_matures(0) - 1);
        court.slash(_file(0, 10), own, 5, verdicts);
        eq(_stake().frozen, SLASH);
    }

    function test_a_lease_that_lapsed_long_ago_is_no_membership() public {
        (bytes memory own, bytes[] memory verdicts) = _case(nodeKey, _file(0, 10), judgeKeys[0]);
        vm.warp(block.timestamp + 300 days);
        vm.expectPartialRevert(Members.NotMember.selector);
        court.slash(_file(0, 10), own, 5, verdicts);
    }

    // ---- 9: one capacity, two pools

    function test_no_time_is_paid_for_in_two_pools() public {
        uint256 id = _open(_params());
        _fund(id, ESCROW);
        _commit(0, ROOT, 100_000);
        _join(nodeKey, id);
        _tooEarly(id, 0);
        vm.prank(provider);
        swarm.removeNode(node);
        _register(provider, nodeKey, 1);
        _join(nodeKey, id);
        _tooEarly(id, 0); // nor by another registration
        vm.warp(block.timestamp + EPOCH);
        vm.prank(node);
        swarm.commitWork(id, 1, ROOT, 100_000);
        _join(nodeKey, pool);
        _tooEarly(pool, 1);
    }

    function _tooEarly(uint256 id, uint64 epoch) private {
        vm.prank(node);
        vm.expectPartialRevert(Work.CapacityUsed.selector);
        swarm.commitWork(id, epoch, ROOT, 1);
    }

    // ---- a report is copied, or made by the cheat itself

    function test_who_reports_a_fault_gets_nothing_so_a_copy_of_the_report_takes_nothing() public {
        _reportedBy(anybody);
        vm.expectPartialRevert(Members.NodeEvicted.selector);
        this.contradict(); // who had found it comes too late, and has lost nothing
    }

    function test_a_cheat_that_reports_itself_loses_as_much() public {
        _reportedBy(provider);
    }

    function test_a_judge_that_reports_a_fault_earns_nothing() public {
        _reportedBy(vm.addr(judgeKeys[0]));
    }

    function _reportedBy(address reporter) private {
        vm.prank(reporter);
        _contradict();
        eq(token.balanceOf(reporter), 0);
        eq(_stake().bonded, 100 ether - SLASH);
        eq(token.balanceOf(vault.BURNED()), SLASH / 2);
        eq(token.balanceOf(treasury), SLASH / 2);
    }

    function contradict() external {
        _contradict();
    }

    // ---- and money that comes back reaches who got none

    function test_an_epoch_that_got_nothing_is_topped_up_when_a_false_one_is_taken_back() public {
        Pools.PoolParams memory params = _params();
        pool = _open(params);
        _fund(pool, 1000 * uint256(RATE));
        _register(provider, 0xD00D, 1);
        _join(0xD00D, pool);
        _startIn(pool);
        vm.prank(vm.addr(0xD00D));
        swarm.commitWork(pool, 0, keccak256("nothing"), 900);
        _commit(0, ROOT, 400);
        eq(_work(0).reservedUnits, 100);
        vm.expectPartialRevert(Pools.ZeroAmount.selector);
        swarm.topUp(pool, node, 0);
        address honest = node;
        node = vm.addr(0xD00D);
        _invalidateEpoch(0, 1, 23);
        vm.expectPartialRevert(Pools.ZeroAmount.selector);
        swarm.topUp(pool, node, 0); // what was refused stays refused
        node = honest;
        swarm.topUp(pool, node, 0);
        eq(_work(0).reservedUnits, 400);
        eq(_info().reserved, 400 * uint256(RATE));
        eq(_info().escrow, 600 * uint256(RATE));
        vm.warp(_matures(0));
        _settle(0);
        eq(token.balanceOf(provider), 400 * uint256(RATE));
        vm.expectPartialRevert(Work.NothingCommitted.selector);
        swarm.topUp(pool, node, 0);
    }

    function test_voided_work_is_not_topped_up() public {
        _startIn(_open(_params()));
        _commit(0, ROOT, 400);
        _contradict();
        _fund(pool, 1 ether);
        vm.expectPartialRevert(Work.WorkIsVoided.selector);
        swarm.topUp(pool, node, 0);
    }
}
