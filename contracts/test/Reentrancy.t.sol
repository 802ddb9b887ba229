// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ReentrancyGuard} from "@openzeppelin/contracts/utils/ReentrancyGuard.sol";
import {TestToken} from "../src/TestToken.sol";
import {Payroll} from "../src/Payroll.sol";
import {StakeVault} from "../src/StakeVault.sol";
import {Filing, RootLine, Tally, WorkCommitment} from "../src/Statements.sol";
import {Base, Sign} from "./Base.sol";

/// A token that calls whom it moves money to and from, in the middle of the move.
contract HookToken is TestToken {
    mapping(address => bool) public hooked;

    function hook() external {
        hooked[msg.sender] = true;
    }

    function _update(address from, address to, uint256 amount) internal override {
        if (hooked[from]) Attacker(from).called();
        super._update(from, to, amount);
        if (hooked[to]) Attacker(to).called();
    }
}

/// A token that keeps a part of what it moves.
contract FeeToken is TestToken {
    function _update(address from, address to, uint256 amount) internal override {
        if (from != address(0) && to != address(0)) {
            super._update(from, address(0xFEE), amount / 100);
            amount -= amount / 100;
        }
        super._update(from, to, amount);
    }
}

/// Does again whatever it was told to do, when the token calls.
contract Attacker {
    address public target;
    bytes public again;
    uint256 public calls;
    bytes public answer;

    function arm(address target_, bytes calldata again_) external {
        (target, again, calls) = (target_, again_, 0);
    }

    function act(address to, bytes calldata data) external returns (bool done) {
        (done,) = to.call(data);
    }

    function called() external {
        if (target == address(0) || calls > 0) return;
        ++calls;
        (bool done, bytes memory data) = target.call(again);
        answer = data;
        require(!done, "the second call went through");
    }
}

contract ReentrancyTest is Base {
    Attacker private attacker;

    function setUp() public override {
        vm.warp(1_700_000_000);
        token = TestToken(address(new HookToken()));
        attacker = new Attacker();
        (provider, treasury) = (address(attacker), address(attacker));
        _deploy(address(token));
        manager = vm.addr(managerKey);
        node = vm.addr(nodeKey);
        judgeKeys.push(0xB001);
        judgeKeys.push(0xB002);
        _bond(address(0x5005), 30 ether);
        _register(address(0x5005), judgeKeys[0], 1);
        _register(address(0x5005), judgeKeys[1], 1);
        pool = _open(_params());
        _fund(pool, ESCROW);
        _bond(provider, 100 ether);
        _register(provider, nodeKey, 1);
        vm.prank(node);
        swarm.join(pool, "");
        vm.prank(provider);
        HookToken(address(token)).hook();
    }

    function _blocked() private view {
        eq(attacker.calls(), 1);
        yes(bytes4(attacker.answer()) == ReentrancyGuard.ReentrancyGuardReentrantCall.selector, "the guard");
    }

    function test_withdrawing_while_withdrawing() public {
        vm.prank(provider);
        vault.unbond(40 ether);
        vm.warp(block.timestamp + UNBONDING);
        attacker.arm(address(vault), abi.encodeCall(vault.withdraw, ()));
        yes(attacker.act(address(vault), abi.encodeCall(vault.withdraw, ())), "once");
        _blocked();
        eq(token.balanceOf(provider), 40 ether);
    }

    function test_claiming_while_claiming() public {
        _earn(0, 1000);
        bytes memory again = abi.encodeCall(payroll.claim, (pool, node, 1000, new bytes32[](0)));
        attacker.arm(address(payroll), again);
        yes(attacker.act(address(payroll), again), "once");
        _blocked();
        eq(token.balanceOf(provider), 1 ether);
        eq(_info().owed, 0);
    }

    /// Who carries a case, who appeals and who collects: the token calls them in the middle of it.
    function test_nobody_withdraws_while_bonds_and_credits_are_on_their_way() public {
        vm.prank(provider);
        vault.unbond(40 ether);
        vm.warp(block.timestamp + UNBONDING);
        vm.prank(node);
        swarm.join(pool, "");
        token.mint(provider, 2 * PUT);
        attacker.act(address(token), abi.encodeCall(token.approve, (address(vault), 2 * PUT)));
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        bytes memory withdraw = abi.encodeCall(vault.withdraw, ());
        attacker.arm(address(vault), withdraw);
        bytes memory slash = abi.encodeCall(court.slash, (c, own, 5, verdicts, _blank(verdicts), 0));
        yes(attacker.act(address(court), slash), "carried");
        _blocked();
        attacker.arm(address(vault), withdraw);
        yes(attacker.act(address(vault), abi.encodeCall(vault.appeal, (1))), "appealed");
        _blocked();
        vm.prank(arbiter);
        swarm.overturn(pool, node);
        attacker.arm(address(vault), withdraw);
        vault.collect(provider);
        _blocked();
        eq(token.balanceOf(provider), 2 * PUT - PUT / 10);
    }

    /// The Payroll does not know that the Swarm is busy. A case without a number would be taken for one that is final.
    function test_nobody_claims_or_is_acquitted_while_its_case_is_opened() public {
        _earn(0, 1000);
        token.mint(provider, 2 * PUT);
        attacker.act(address(token), abi.encodeCall(token.approve, (address(vault), 2 * PUT)));
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        attacker.arm(address(payroll), abi.encodeCall(payroll.claim, (pool, node, 1000, new bytes32[](0))));
        bytes memory slash = abi.encodeCall(court.slash, (c, own, 5, verdicts, _blank(verdicts), 0));
        yes(attacker.act(address(court), slash), "carried");
        yes(bytes4(attacker.answer()) == Payroll.CaseNotFinal.selector, "open");
        eq(_info().owed, 1 ether);
    }

    function test_bonding_while_bonding() public {
        token.mint(provider, 20 ether);
        attacker.act(address(token), abi.encodeCall(token.approve, (address(vault), 20 ether)));
        attacker.arm(address(vault), abi.encodeCall(vault.bond, (provider, 10 ether)));
        yes(attacker.act(address(vault), abi.encodeCall(vault.bond, (provider, 10 ether))), "once");
        _blocked();
        eq(vault.bondedOf(provider), 110 ether);
    }

    function test_funding_while_funding() public {
        token.mint(provider, 20 ether);
        attacker.act(address(token), abi.encodeCall(token.approve, (address(payroll), 20 ether)));
        attacker.arm(address(payroll), abi.encodeCall(payroll.fund, (pool, 10 ether)));
        yes(attacker.act(address(payroll), abi.encodeCall(payroll.fund, (pool, 10 ether))), "once");
        _blocked();
        eq(_info().escrow, ESCROW + 10 ether);
    }

    function test_withdrawing_while_bonding() public {
        vm.prank(provider);
        vault.unbond(40 ether);
        vm.warp(block.timestamp + UNBONDING);
        token.mint(provider, 20 ether);
        attacker.act(address(token), abi.encodeCall(token.approve, (address(vault), 20 ether)));
        attacker.arm(address(vault), abi.encodeCall(vault.withdraw, ()));
        yes(attacker.act(address(vault), abi.encodeCall(vault.bond, (provider, 10 ether))), "once");
        _blocked();
    }

    function test_sweeping_while_sweeping() public {
        manager = provider;
        pool = _open(_params());
        _fund(pool, ESCROW);
        vm.prank(manager);
        swarm.endPool(pool);
        vm.warp(_matures(0) + 2 * WINDOW);
        attacker.arm(address(payroll), abi.encodeCall(payroll.sweep, (pool)));
        payroll.sweep(pool);
        _blocked();
        eq(token.balanceOf(manager), ESCROW);
    }

    function test_redeeming_while_redeeming() public {
        vm.prank(manager);
        swarm.endPool(pool);
        vm.warp(_matures(0) + WINDOW);
        RootLine[] memory lines = new RootLine[](2);
        for (uint8 i = 0; i < 2; ++i) {
            Tally memory root = Tally(pool, 0, 1, _line(node, 1000), 1000, ROOT);
            bytes memory signature = _sign(judgeKeys[i], Sign.tally(Sign.EPOCH_ROOT, root));
            lines[i] = RootLine(i, root, signature, 1000, new bytes32[](0));
        }
        Filing[] memory filings = new Filing[](1);
        filings[0] = Filing(0, 1, 2, _signers(), lines);
        vm.prank(node);
        payroll.file(pool, node, filings);
        vm.warp(_matures(0) + 2 * WINDOW + DELAY);
        attacker.arm(address(payroll), abi.encodeCall(payroll.sweep, (pool)));
        payroll.redeem(pool, node);
        _blocked();
        eq(token.balanceOf(provider), 1 ether);
        eq(_info().escrow, ESCROW - 1 ether);
    }

    function test_a_token_that_keeps_a_fee_is_refused() public {
        token = TestToken(address(new FeeToken()));
        _deploy(address(token));
        _give(anybody, 100 ether, address(vault));
        vm.prank(anybody);
        vm.expectPartialRevert(StakeVault.TokenTakesFee.selector);
        vault.bond(anybody, 100 ether);
    }

    function test_an_escrow_that_would_hold_less_than_it_counts_is_refused() public {
        _give(anybody, 100 ether, address(payroll));
        bytes memory taker = address(new FeeToken()).code;
        vm.etch(address(token), taker);
        vm.prank(anybody);
        vm.expectRevert(abi.encodeWithSelector(Payroll.TokenTakesFee.selector, 100 ether, 99 ether));
        payroll.fund(pool, 100 ether);
    }
}
