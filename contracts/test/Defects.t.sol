// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base, Sign} from "./Base.sol";
import {Court} from "../src/Court.sol";
import {Members} from "../src/Members.sol";
import {Nodes} from "../src/Nodes.sol";
import {WorkCommitment, WrongSigner} from "../src/Statements.sol";

/// The fifteen defects that were reproduced in Prime Intellect's contracts, and that these do not have.
contract DefectsTest is Base {
    /// 1. A slash between two unbondings made the first, matured one unreachable for ever, and never slashable.
    function test_01_a_slash_between_two_unbondings_strands_nothing() public {
        address staker = address(0xABC);
        _bond(staker, 1000 ether);
        vm.prank(staker);
        vault.unbond(400 ether);
        vm.warp(block.timestamp + UNBONDING - 1);
        vm.prank(staker);
        vault.unbond(500 ether);
        vm.warp(block.timestamp + 2);
        vm.prank(address(swarm));
        eq(vault.slash(staker, 60 ether), 60 ether); // matured or not
        vm.warp(block.timestamp + UNBONDING);
        vm.prank(staker);
        vault.withdraw();
        eq(token.balanceOf(staker), 840 ether);
        eq(vault.bondedOf(staker), 100 ether);
        eq(_stakeOf(staker).unbonding, 0);
    }

    /// 2. Dead entries piled up after unbonding and withdrawing.
    function test_02_twelve_rounds_of_unbonding_leave_nothing_behind() public {
        address staker = address(0xABC);
        _bond(staker, 12 ether);
        for (uint256 i = 0; i < 12; ++i) {
            vm.prank(staker);
            vault.unbond(1 ether);
            vm.warp(block.timestamp + UNBONDING);
            vm.prank(staker);
            vault.withdraw();
        }
        eq(token.balanceOf(staker), 12 ether);
        eq(_stakeOf(staker).unbonding, 0);
    }

    /// 4. A provider could block its own removal by removing a node first.
    function test_04_removing_a_node_does_not_shield_from_punishment() public {
        vm.prank(provider);
        swarm.removeNode(node);
        _slash(_file(0, 1));
        eq(_stake().frozen, SLASH);
        yes(swarm.memberInfo(pool, node).evicted, "evicted");
    }

    /// 6. Leaving as a provider left ghost nodes and ghost units behind.
    function test_06_a_provider_that_went_and_came_back_needs_no_more_stake_than_a_new_one() public {
        address[] memory nodes = new address[](1);
        nodes[0] = node;
        vm.prank(provider);
        swarm.removeProvider(nodes);
        eq(swarm.requiredStake(provider), 0);
        _units(provider, 0, 1);
        _register(provider, nodeKey, 1);
        _units(provider, 1, 0);
        eq(swarm.requiredStake(provider), BASE + PER_UNIT);
    }

    /// 7. Nodes of no units, and of 2^32 units that were stored as none.
    function test_07_units_are_neither_none_nor_cut_off() public {
        uint256 deadline = block.timestamp;
        bytes memory nothing = _registration(provider, 0xD00D, 0, deadline);
        address fresh = vm.addr(0xD00D);
        vm.prank(provider);
        vm.expectPartialRevert(Nodes.UnitsOutOfRange.selector);
        swarm.registerNode(fresh, 0, deadline, nothing);
        bytes memory data = abi.encodeWithSelector(swarm.registerNode.selector, fresh, uint256(1) << 32, deadline, nothing);
        vm.prank(provider);
        (bool done,) = address(swarm).call(data);
        yes(!done, "2^32 units do not fit the type");
    }

    /// 10. One invitation was good at two deployments.
    function test_10_an_invitation_is_for_one_deployment() public {
        address other = _create("Swarm", abi.encode(vault, BASE, PER_UNIT, MIN_WINDOW));
        uint64 deadline = uint64(block.timestamp + 5);
        bytes32 statement = keccak256(abi.encode(Sign.INVITATION, pool, node, uint32(1), deadline));
        bytes memory elsewhere = _signFor(managerKey, Sign.domain(block.chainid, other), statement);
        vm.expectPartialRevert(WrongSigner.selector);
        court.admit(pool, node, Court.Invited(node, 1, deadline, elsewhere, ""));
    }

    /// 11. A new validator left the old one in office.
    function test_11_a_new_bench_ends_the_old_one() public {
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        address[] memory others = new address[](1);
        others[0] = vm.addr(judgeKeys[1]);
        vm.prank(manager);
        court.proposeValidators(pool, others, 1);
        vm.warp(block.timestamp + WINDOW);
        court.applyValidators(pool);
        vm.expectPartialRevert(Court.NotAValidator.selector);
        court.slash(c, own, 5, verdicts, _blank(verdicts), 0); // the first of the two is out of office
    }

    /// 12. The quorum contract could never start a vote.
    function test_12_a_quorum_reaches_a_judgement_in_one_transaction() public {
        _slash(_file(0, 1));
        eq(_stake().frozen, SLASH);
    }

    /// 14. After a pool's end nobody got away before every node had left by hand.
    function test_14_nobody_is_held_by_a_pool_that_ended() public {
        vm.prank(manager);
        swarm.endPool(pool);
        address[] memory nodes = new address[](1);
        nodes[0] = node;
        vm.prank(provider);
        swarm.removeProvider(nodes);
        vm.prank(provider);
        vault.unbond(100 ether);
        vm.warp(block.timestamp + UNBONDING);
        vm.prank(provider);
        vault.withdraw();
        eq(token.balanceOf(provider), 100 ether);
    }

    /// 15. One judge could take everything, and was paid what it took.
    function test_15_no_judge_takes_everything_and_who_carries_gets_a_fiftieth() public {
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        address judge = vm.addr(judgeKeys[0]);
        _give(judge, PUT, address(vault));
        vm.prank(judge);
        court.slash(c, own, 5, verdicts, _blank(verdicts), 0);
        eq(_stake().bonded, 100 ether - SLASH);
        vm.warp(block.timestamp + APPEAL);
        vm.prank(judge);
        vault.finalize(1);
        eq(_worth(judge), PUT + SLASH / 50);
    }
}
