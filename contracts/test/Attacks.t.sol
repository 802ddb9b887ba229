// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Court} from "../src/Court.sol";
import {Payroll} from "../src/Payroll.sol";
import {Members} from "../src/Members.sol";
import {Nodes} from "../src/Nodes.sol";
import {Pools} from "../src/Pools.sol";
import {StakeVault} from "../src/StakeVault.sol";
import {Judgement, WorkCommitment} from "../src/Statements.sol";
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
        params.slashAmount = SLASH;
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
        court.slash(c, own, 5, verdicts, _blank(verdicts), 0);
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

    // ---- 1: a cheat freezes its own stake in pools of its own

    /// All that the cheat has is frozen by two cases of its own; then it comes to work.
    function _frozenByItself() private returns (uint256 first, uint256 second) {
        vm.prank(provider);
        vault.unbond(80 ether);
        vm.warp(block.timestamp + UNBONDING);
        vm.prank(provider);
        vault.withdraw();
        first = _ownPool();
        Pools.PoolParams memory params = _params();
        (params.validators[0], params.validators[1]) = (vm.addr(PUPPET), vm.addr(PUPPET + 1));
        second = _open(params);
        _join(nodeKey, first);
        _join(nodeKey, second);
        _join(nodeKey, pool);
        _judge(nodeKey, _in(first, nodeKey, 0), PUPPET);
        _judge(nodeKey, _in(second, nodeKey, 0), PUPPET);
        eq(_stake().bonded, 0);
        eq(_stake().frozen, 20 ether);
    }

    function test_what_a_cheat_froze_itself_still_answers_for_its_fault() public {
        (uint256 first, uint256 second) = _frozenByItself();
        _slash(_file(0, 10));
        vm.prank(arbiter);
        swarm.overturn(first, node); // nobody can tell it from an honest overturning
        vm.prank(arbiter);
        swarm.overturn(second, node);
        eq(_stake().bonded, 10 ether);
        eq(_stake().frozen, SLASH);
        eq(vault.bondedOf(PUPPETEER), 30 ether);
        eq(_worth(provider), 80 ether + 2 * (PUT - PUT / 10)); // what those who carried its own cases put up
        vm.warp(block.timestamp + APPEAL);
        vault.finalize(3);
        eq(_stake().frozen, 0);
        eq(_worth(vault.BURNED()) + _worth(treasury), SLASH * 98 / 100 + 2 * PUT / 10);
    }

    /// Its own judges slash two accounts of its own wrongly, while another pool's case waits for its stake. The arbiter,
    /// who is right each time, moved 20 of the 30 to those accounts. The control: nothing but the honest case.
    function test_a_slash_is_not_walked_away_by_wrong_slashes_of_ones_own_judges() public {
        for (uint256 attack = 0; attack < 2; ++attack) {
            vm.warp(block.timestamp + 10);
            uint256 own = attack == 0 ? _ownPool() : pool + 1;
            if (attack == 1) _bond(PUPPETEER, SLASH); // as at first
            uint256 puppet = PUPPET + attack;
            _join(puppet, pool);
            _judge(puppet, _in(pool, puppet, 0), judgeKeys[0]);
            uint256 honest = vault.caseCount();
            for (uint256 i = 0; i < 2 * attack; ++i) {
                _bond(address(uint160(0x7001 + i)), 20 ether);
                _register(address(uint160(0x7001 + i)), 0xE100 + i, 1);
                _join(0xE100 + i, own);
                _judge(0xE100 + i, _in(own, 0xE100 + i, 0), PUPPET);
                vm.prank(arbiter);
                swarm.overturn(own, vm.addr(0xE100 + i));
                eq(vault.bondedOf(address(uint160(0x7001 + i))), 20 ether);
            }
            StakeInfo memory stake = _stakeOf(PUPPETEER);
            eq(uint256(stake.bonded) + stake.frozen, 30 ether);
            vm.warp(block.timestamp + APPEAL);
            vm.expectEmit(address(vault));
            emit StakeVault.Finalized(honest, PUPPETEER, SLASH);
            vault.finalize(honest);
        }
    }

    /// Whoever has the arbiter's key undoes cases. It moved the judges' stakes to those whom they had found to be cheats.
    function test_the_arbiters_thief_takes_no_judges_stake_but_its_carriers_bond() public {
        _slash(_file(0, 10));
        vm.prank(arbiter);
        swarm.overturn(pool, node);
        eq(vault.bondedOf(address(0x5005)), 30 ether);
        eq(vault.creditOf(provider), PUT - PUT / 10);
        eq(_stake().bonded, 100 ether);
    }

    /// Two accounts of one owner freeze each other's stake and win or lose: it costs them each time.
    function test_cases_among_ones_own_accounts_cost_a_tenth_of_a_bond_each() public {
        uint256 own = _ownPool();
        _join(nodeKey, own);
        _give(PUPPETEER, PUT, address(vault));
        (bytes memory mine, bytes[] memory verdicts) = _case(nodeKey, _in(own, nodeKey, 0), PUPPET);
        vm.prank(PUPPETEER);
        court.slash(_in(own, nodeKey, 0), mine, 5, verdicts, _blank(verdicts), 0);
        vm.prank(arbiter);
        swarm.overturn(own, node);
        eq(_worth(PUPPETEER) + _worth(provider), PUT - PUT / 10);
    }

    function test_a_cheat_that_reports_itself_to_its_own_judges_keeps_a_fiftieth() public {
        _give(provider, PUT, address(vault));
        (bytes memory own, bytes[] memory verdicts) = _case(nodeKey, _file(0, 10), judgeKeys[0]);
        vm.prank(provider);
        court.slash(_file(0, 10), own, 5, verdicts, _blank(verdicts), 0);
        vm.warp(block.timestamp + APPEAL);
        vault.finalize(1);
        eq(_worth(provider) - PUT, SLASH / 50);
        eq(_stake().bonded, 100 ether - SLASH);
    }

    function test_evidence_reaches_what_a_cheat_froze_itself() public {
        _frozenByItself();
        _contradict();
        eq(_stake().frozen, 20 ether - SLASH);
        eq(_worth(vault.BURNED()) + _worth(treasury), SLASH);
    }

    function test_three_pools_never_take_more_than_there_is_and_leave_nothing_behind() public {
        _frozenByItself();
        _slash(_file(0, 10));
        eq(_stake().frozen, 20 ether);
        vm.warp(block.timestamp + APPEAL);
        for (uint256 id = 1; id <= 3; ++id) vault.finalize(id);
        eq(_stake().frozen, 0);
        eq(_stake().bonded, 0);
        eq(_worth(vault.BURNED()) + _worth(treasury), 20 ether * 98 / 100);
        eq(vault.creditOf(address(this)), 20 ether * 2 / 100 + 3 * PUT);
    }

    // ---- 2: judging with nothing to lose

    function test_a_validator_whose_stake_is_gone_judges_no_more() public {
        vm.prank(address(swarm));
        vault.slash(address(0x5005), 1);
        WorkCommitment memory c = _file(0, 10);
        (bytes memory own, bytes[] memory verdicts) = _case(nodeKey, c, judgeKeys[0]);
        vm.expectRevert(abi.encodeWithSelector(Court.ValidatorUnfit.selector, vm.addr(judgeKeys[0])));
        court.slash(c, own, 5, verdicts, _blank(verdicts), 0);
        _bond(address(0x5005), 1);
        court.slash(c, own, 5, verdicts, _blank(verdicts), 0);
        eq(_stake().frozen, SLASH);
    }

    function test_judges_of_another_pool_silence_no_validator_before_their_case_is_final() public {
        uint256 own = _ownPool();
        _join(judgeKeys[0], own);
        _judge(judgeKeys[0], _in(own, judgeKeys[0], 0), PUPPET);
        eq(vault.bondedOf(address(0x5005)), 30 ether - SLASH);
        _slash(_file(0, 10));
        eq(_stake().frozen, SLASH);
        vm.warp(block.timestamp + APPEAL);
        vault.finalize(1);
        (bytes memory mine, bytes[] memory verdicts) = _case(nodeKey, _file(1, 10), judgeKeys[0]);
        vm.expectPartialRevert(Court.ValidatorUnfit.selector);
        court.slash(_file(1, 10), mine, 5, verdicts, _blank(verdicts), 0);
    }

    // ---- 5, 6: wrong judges that judge again

    // ---- 7: a freeze in one pool drives the provider's nodes out of another

    function test_nobody_is_expelled_for_a_case_that_is_not_final() public {
        uint256 own = _ownPool();
        _register(provider, 0xD00D, 8);
        _join(0xD00D, own);
        _judge(0xD00D, _in(own, 0xD00D, 0), PUPPET); // 90 of 100 tokens are left, 100 are needed
        vm.expectRevert(abi.encodeWithSelector(Nodes.StakeEnough.selector, provider));
        swarm.expel(node);
        vm.warp(block.timestamp + APPEAL);
        vault.finalize(1);
        swarm.expel(node);
        eq(swarm.nodeInfo(node).pool, 0);
    }

    // ---- 3: a validator that was evicted in its pool

    function test_an_evicted_validator_judges_no_more_and_evidence_still_reaches_it() public {
        _bond(address(0x5005), 100 ether);
        _join(judgeKeys[0], pool);
        _judge(judgeKeys[0], _in(pool, judgeKeys[0], 0), judgeKeys[0]);
        (bytes memory own, bytes[] memory verdicts) = _case(nodeKey, _file(0, 10), judgeKeys[0]);
        vm.expectRevert(abi.encodeWithSelector(Court.ValidatorUnfit.selector, vm.addr(judgeKeys[0])));
        court.slash(_file(0, 10), own, 5, verdicts, _blank(verdicts), 0);
        WorkCommitment memory c = _file(7, 1);
        bytes memory one = _sign(judgeKeys[0], Sign.verdict(c, 0, 0));
        bytes memory two = _sign(judgeKeys[0], Sign.verdict(c, 2, 5));
        court.verdictEvidence(pool, Sign.commitment(c), [Judgement(0, 0, 0), Judgement(2, 5, 0)], [one, two]);
        eq(court.benchOf(pool).validators.length, 1);
        eq(vault.bondedOf(address(0x5005)), 130 ether - 2 * uint256(SLASH));
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
        court.slash(_file(0, 10), own, 5, verdicts, _blank(verdicts), 0);
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
        court.slash(_file(0, 10), own, 5, verdicts, _blank(verdicts), 0);
        vm.warp(_matures(0) - 1);
        court.slash(_file(0, 10), own, 5, verdicts, _blank(verdicts), 0);
        eq(_stake().frozen, SLASH);
    }

    function test_a_lease_that_lapsed_long_ago_is_no_membership() public {
        (bytes memory own, bytes[] memory verdicts) = _case(nodeKey, _file(0, 10), judgeKeys[0]);
        vm.warp(block.timestamp + 300 days);
        vm.expectPartialRevert(Members.NotMember.selector);
        court.slash(_file(0, 10), own, 5, verdicts, _blank(verdicts), 0);
    }

    // ---- 9: one capacity, two pools

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
        eq(_worth(vault.BURNED()), SLASH / 2);
        eq(_worth(treasury), SLASH / 2);
    }

    function contradict() external {
        _contradict();
    }

    // ---- and money that comes back reaches who got none

    // ---- shelter: the escrow is reserved by a thief while no slash has a bond to pledge

    /// Whatever a thief does, nothing of the escrow is its before a quorum has signed for it; and slashes cost the pool
    /// nothing, so that the second is as possible as the first.
    function test_shelter_nothing_is_reserved_and_every_node_of_the_thief_can_be_slashed() public {
        _bond(PUPPETEER, 40 ether);
        for (uint256 i = 0; i < 3; ++i) {
            _register(PUPPETEER, PUPPET + i, 1);
            _join(PUPPET + i, pool);
        }
        for (uint256 i = 0; i < 3; ++i) {
            _judge(PUPPET + i, _in(pool, PUPPET + i, 0), judgeKeys[0]);
            eq(_info().escrow, ESCROW);
        }
        eq(_stakeOf(PUPPETEER).frozen, 3 * uint256(SLASH));
        bytes32[] memory none = new bytes32[](0);
        vm.expectPartialRevert(Payroll.BadProof.selector);
        payroll.claim(pool, vm.addr(PUPPET), 400_000, none);
        _fund(pool, 5 ether); // what the manager adds is nobody's either
        vm.warp(_matures(0));
        bytes[] memory own = new bytes[](2);
        bytes32 root = _line(vm.addr(PUPPET), 400_000);
        for (uint256 i = 0; i < 2; ++i) own[i] = _sign(PUPPET + i, Sign.earnings(pool, 0, root, 400_000));
        vm.expectPartialRevert(Court.NotAValidator.selector);
        payroll.post(_tally(pool, 0, root, 400_000), own);
        eq(_info().escrow, ESCROW + 5 ether);
        _earn(0, 1000); // the control: who has earned something is paid
        _claim(1000);
        eq(token.balanceOf(provider), 1 ether);
    }

    // ---- drain: each honest slash moves a bond out of the escrow

    function test_drain_fifty_slashes_leave_the_escrow_as_it_was() public {
        _bond(PUPPETEER, 20 ether);
        for (uint256 i = 0; i < 50; ++i) {
            _register(PUPPETEER, PUPPET + i, 1);
            _join(PUPPET + i, pool);
            _judge(PUPPET + i, _in(pool, PUPPET + i, 0), judgeKeys[0]);
            vm.prank(PUPPETEER);
            swarm.removeNode(vm.addr(PUPPET + i));
            _bond(PUPPETEER, 2 * SLASH); // for what was taken, and for the next one's
        }
        eq(_info().escrow, ESCROW);
        eq(_stakeOf(PUPPETEER).frozen, 50 * uint256(SLASH));
    }

    // ---- two nodes on one stake

    function test_what_one_node_loses_leaves_the_next_as_much_to_lose() public {
        _bond(PUPPETEER, 30 ether); // base, and 10 for each of the two
        _register(PUPPETEER, PUPPET, 1);
        _register(PUPPETEER, PUPPET + 1, 1);
        _join(PUPPET, pool);
        _join(PUPPET + 1, pool);
        for (uint256 i = 0; i < 2; ++i) {
            _judge(PUPPET + i, _in(pool, PUPPET + i, 0), judgeKeys[0]);
            eq(vault.caseInfo(i + 1).amount, SLASH);
        }
        eq(vault.bondedOf(PUPPETEER), 10 ether);
        vm.prank(vm.addr(PUPPET + 1));
        vm.expectPartialRevert(Members.NodeEvicted.selector);
        swarm.join(pool, "");
        Pools.PoolParams memory params = _params();
        params.slashAmount = uint96(PER_UNIT) + 1;
        vm.expectPartialRevert(Pools.SlashTooHigh.selector);
        swarm.createPool(params); // no pool where they would lean on one stake
    }

    // ---- a short bench

    function test_a_bench_shorter_than_its_threshold_posts_and_slashes_nothing() public {
        WorkCommitment memory c = _file(7, 1);
        bytes memory one = _sign(judgeKeys[1], Sign.verdict(c, 0, 0));
        bytes memory two = _sign(judgeKeys[1], Sign.verdict(c, 1, 8));
        court.verdictEvidence(pool, Sign.commitment(c), [Judgement(0, 0, 0), Judgement(1, 8, 0)], [one, two]);
        _bond(address(0x5005), SLASH); // who has a seat may judge
        bytes[] memory left = new bytes[](2);
        bytes32 statement = Sign.earnings(pool, 0, ROOT, 10);
        (left[0], left[1]) = (_sign(judgeKeys[0], statement), _sign(judgeKeys[0], statement));
        vm.warp(_matures(0));
        vm.expectPartialRevert(Court.DuplicateVerdict.selector);
        payroll.post(_tally(pool, 0, ROOT, 10), left);
        (bytes memory own, bytes[] memory verdicts) = _case(nodeKey, _file(0, 10), judgeKeys[0]);
        vm.expectPartialRevert(Court.NotAValidator.selector);
        court.slash(_file(0, 10), own, 5, verdicts, _blank(verdicts), 0);
        eq(payroll.bookOf(pool).epochs, 0);
    }

    // ---- claims doubled, and of other pools

    function test_a_claim_is_paid_once_and_in_no_other_pool() public {
        uint256 first = pool;
        _earn(0, 1000);
        _claim(1000);
        bytes32[] memory none = new bytes32[](0);
        vm.expectPartialRevert(Payroll.NothingToClaim.selector);
        payroll.claim(first, node, 1000, none);
        uint256 id = _open(_params());
        _fund(id, ESCROW);
        _join(nodeKey, id);
        vm.expectPartialRevert(Payroll.BadProof.selector);
        payroll.claim(id, node, 1000, none);
        eq(token.balanceOf(provider), 1 ether);
        eq(_poolInfo(id).escrow, ESCROW);
    }

    /// A pool that nobody has signed a table for has the root zero; no proof leads there.
    function test_a_pool_without_a_table_pays_nothing(bytes32 sibling, uint64 units) public {
        bytes32[] memory proof = new bytes32[](1);
        proof[0] = sibling;
        vm.expectPartialRevert(Payroll.BadProof.selector);
        payroll.claim(pool, node, units, proof);
    }
}
