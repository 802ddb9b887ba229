// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Court} from "../src/Court.sol";
import {Nodes} from "../src/Nodes.sol";
import {Pools} from "../src/Pools.sol";
import {WorkCommitment} from "../src/Statements.sol";
import {Swarm} from "../src/Swarm.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {TestToken} from "../src/TestToken.sol";
import {Base, Sign} from "./Base.sol";

/// Answers false and moves nothing, while it lies.
contract FalseToken is TestToken {
    bool private _lies;

    function lie(bool lies) external {
        _lies = lies;
    }

    function transfer(address to, uint256 amount) public override returns (bool) {
        return !_lies && super.transfer(to, amount);
    }

    function transferFrom(address from, address to, uint256 amount) public override returns (bool) {
        return !_lies && super.transferFrom(from, to, amount);
    }
}

/// Moves what it should and answers nothing, as some old tokens do.
contract MuteToken is TestToken {
    function transfer(address to, uint256 amount) public override returns (bool) {
        super.transfer(to, amount);
        assembly ("memory-safe") {
            return(0, 0)
        }
    }

    function transferFrom(address from, address to, uint256 amount) public override returns (bool) {
        super.transferFrom(from, to, amount);
        assembly ("memory-safe") {
            return(0, 0)
        }
    }
}

/// What mutants lived on: changes that no story of a pool would have noticed.
contract EdgesTest is Base {
    // ---- one quorum, one judgement

    function test_a_quorum_of_one_two_one_is_none() public {
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory both = _quorum(Sign.verdict(c, 2, 5));
        bytes[] memory three = new bytes[](3);
        (three[0], three[1], three[2]) = (both[0], both[1], both[0]);
        vm.expectRevert(abi.encodeWithSelector(Court.DuplicateVerdict.selector, vm.addr(judgeKeys[0])));
        court.slash(c, own, 5, three, _blank(three), 0);
    }

    function test_a_full_bench_is_heard() public {
        _bond(address(0x5006), 170 ether);
        delete judgeKeys;
        for (uint256 i = 0; i < 16; ++i) {
            judgeKeys.push(0xE100 + i);
            _register(address(0x5006), 0xE100 + i, 1);
        }
        Pools.PoolParams memory params = _params();
        params.threshold = 16;
        _startIn(_open(params));
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory all = new bytes[](16);
        for (uint256 i = 0; i < 16; ++i) all[i] = _sign(judgeKeys[i], Sign.verdict(c, 2, 5));
        court.slash(c, own, 5, all, _blank(all), 0);
        eq(_stake().frozen, SLASH);
    }

    function test_two_works_about_one_file_are_judged_each() public {
        WorkCommitment memory first = _file(0, 1);
        _slash(first);
        vm.prank(arbiter);
        swarm.overturn(pool, node);
        first.index = 1;
        _slash(first);
        eq(_stake().frozen, SLASH);
    }

    // ---- what is said

    function test_a_slash_names_its_reason_and_its_file() public {
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        vm.expectEmit(address(swarm));
        emit Swarm.Slashed(pool, node, provider, 5, SLASH, c.fileRoot, 1);
        court.slash(c, own, 5, verdicts, _blank(verdicts), 0);
    }

    function test_evidence_names_its_reason_and_its_file() public {
        bytes32 root = _file(0, 10).fileRoot;
        vm.expectEmit(address(swarm));
        emit Swarm.Slashed(pool, node, provider, 4, SLASH, root, 0);
        _contradict();
    }

    function test_a_false_table_names_its_reason_and_its_root() public {
        vm.warp(_matures(0));
        _offer(0, ROOT, 5);
        vm.prank(guardian);
        payroll.hold(pool);
        vm.expectEmit(address(swarm));
        emit Swarm.Slashed(pool, vm.addr(judgeKeys[0]), address(0x5005), 202, SLASH, ROOT, 0);
        vm.prank(arbiter);
        payroll.drop(pool, _signers());
    }

    function test_benches_are_announced_and_told() public {
        address[] memory others = new address[](1);
        others[0] = vm.addr(judgeKeys[1]);
        vm.expectEmit(address(court));
        emit Court.ValidatorsProposed(pool, others, 1, uint64(block.timestamp + WINDOW));
        vm.prank(manager);
        court.proposeValidators(pool, others, 1);
        vm.warp(block.timestamp + WINDOW);
        vm.expectEmit(address(court));
        emit Court.ValidatorsSet(pool, 2, others, 1);
        court.applyValidators(pool);
    }

    function test_a_removal_is_told() public {
        vm.expectEmit(address(swarm));
        emit Nodes.NodeRemoved(provider, node, 1, uint64(block.timestamp) + UNBONDING);
        vm.prank(provider);
        swarm.removeNode(node);
    }

    // ---- limits

    function test_a_token_that_answers_false_moves_nothing_and_loses_nothing() public {
        FalseToken false_ = new FalseToken();
        uint256 id = _openWith(address(false_));
        vm.prank(manager);
        payroll.fund(id, 4 ether);
        false_.lie(true);
        vm.prank(manager);
        vm.expectPartialRevert(SafeERC20.SafeERC20FailedOperation.selector);
        payroll.fund(id, 1 ether);
        vm.prank(manager);
        swarm.endPool(id);
        vm.warp(block.timestamp + 1000 days);
        vm.expectPartialRevert(SafeERC20.SafeERC20FailedOperation.selector);
        payroll.sweep(id);
        false_.lie(false);
        payroll.sweep(id);
        eq(token.balanceOf(manager), 5 ether);
    }

    function test_a_token_that_answers_nothing_is_as_good_as_another() public {
        uint256 id = _openWith(address(new MuteToken()));
        vm.prank(manager);
        payroll.fund(id, 5 ether);
        eq(token.balanceOf(manager), 0);
        vm.prank(manager);
        swarm.endPool(id);
        vm.warp(block.timestamp + 1000 days);
        payroll.sweep(id);
        eq(token.balanceOf(manager), 5 ether);
    }

    /// A pool of this token; its manager has 5 tokens more.
    function _openWith(address other) private returns (uint256) {
        token = TestToken(other);
        _deploy(other);
        _give(manager, 5 ether, address(payroll));
        Pools.PoolParams memory params = _params();
        vm.prank(manager);
        return swarm.createPool(params);
    }
}
