// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Court} from "../src/Court.sol";
import {Nodes} from "../src/Nodes.sol";
import {Pools} from "../src/Pools.sol";
import {StakeVault} from "../src/StakeVault.sol";
import {Verdict, WorkCommitment} from "../src/Statements.sol";
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
        eq(token.balanceOf(vault.BURNED()) + token.balanceOf(treasury) + token.balanceOf(anybody), SLASH);
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
        vault.slash(address(0x5005), 1, anybody);
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
}
