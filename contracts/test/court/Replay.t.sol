// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {Base, Sign} from "../Base.sol";
import {Court} from "../../src/Court.sol";
import {Nodes} from "../../src/Nodes.sol";
import {WorkCommitment, WrongSigner} from "../../src/Statements.sol";

/// Signatures mean what they say, here, once.
contract ReplayTest is Base {
    function _carry(bytes memory own, bytes[] memory verdicts, bytes4 error_) private {
        WorkCommitment memory c = _file(0, 1);
        vm.expectPartialRevert(error_);
        court.slash(c, own, 5, verdicts, _blank(verdicts), 0);
    }

    function _two(bytes memory one, bytes memory two) private pure returns (bytes[] memory both) {
        both = new bytes[](2);
        (both[0], both[1]) = (one, two);
    }

    function test_not_on_another_chain() public {
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        vm.chainId(block.chainid + 1); // a fork of this chain, with the same contracts
        _carry(own, verdicts, WrongSigner.selector);
        own = _sign(nodeKey, Sign.commitment(c));
        _carry(own, verdicts, Court.NotAValidator.selector);
    }

    function test_not_at_another_contract() public {
        WorkCommitment memory c = _file(0, 1);
        bytes32 elsewhere = Sign.domain(block.chainid, address(vault));
        bytes memory own = _signFor(nodeKey, elsewhere, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        _carry(own, verdicts, WrongSigner.selector);
        own = _sign(nodeKey, Sign.commitment(c));
        bytes32 statement = Sign.verdict(c, 2, 5);
        verdicts = _two(_signFor(judgeKeys[0], elsewhere, statement), _signFor(judgeKeys[1], elsewhere, statement));
        _carry(own, verdicts, Court.NotAValidator.selector);
    }

    function test_a_registration_not_at_another_contract_or_chain() public {
        uint256 key = 0xD00D;
        bytes32 statement =
            keccak256(abi.encode(Sign.REGISTRATION, provider, vm.addr(key), 1, 0, block.timestamp));
        bytes memory elsewhere = _signFor(key, Sign.domain(block.chainid, address(vault)), statement);
        bytes memory otherwhere = _signFor(key, Sign.domain(1, address(swarm)), statement);
        address fresh = vm.addr(key);
        vm.prank(provider);
        vm.expectPartialRevert(WrongSigner.selector);
        swarm.registerNode(fresh, 1, block.timestamp, elsewhere);
        vm.prank(provider);
        vm.expectPartialRevert(WrongSigner.selector);
        swarm.registerNode(fresh, 1, block.timestamp, otherwhere);
    }

    function test_not_twice_in_whatever_order() public {
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        _carry(own, _two(verdicts[0], verdicts[0]), Court.DuplicateVerdict.selector);
        _carry(own, _two(verdicts[1], verdicts[1]), Court.DuplicateVerdict.selector);
        bytes[] memory one = new bytes[](1);
        one[0] = verdicts[0];
        _carry(own, one, Court.QuorumMissing.selector);
        _carry(own, new bytes[](0), Court.QuorumMissing.selector);
        bytes[] memory crowd = new bytes[](17);
        for (uint256 i = 0; i < 17; ++i) crowd[i] = verdicts[i % 2];
        _carry(own, crowd, Court.QuorumMissing.selector);
        court.slash(c, own, 5, _two(verdicts[1], verdicts[0]), _blank(verdicts), 0); // any order will do
        eq(_stake().frozen, SLASH);
        _carry(own, verdicts, Court.AlreadyJudged.selector);
    }

    function test_not_for_another_reason_outcome_file_or_by_anybody_else() public {
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        _carry(own, _quorum(Sign.verdict(c, 2, 6)), Court.NotAValidator.selector);
        _carry(own, _quorum(Sign.verdict(c, 1, 5)), Court.NotAValidator.selector);
        _carry(own, _quorum(Sign.verdict(_file(1, 1), 2, 5)), Court.NotAValidator.selector);
        bytes32 statement = Sign.verdict(c, 2, 5);
        bytes memory mine = _sign(nodeKey, statement);
        _carry(own, _two(_sign(judgeKeys[0], statement), mine), Court.NotAValidator.selector);
        _carry(mine, _quorum(statement), WrongSigner.selector);
    }

    function test_not_in_its_second_encoding() public {
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        bytes memory high = _high(own);
        vm.expectPartialRevert(ECDSA.ECDSAInvalidSignatureS.selector);
        court.slash(c, high, 5, verdicts, _blank(verdicts), 0);
        verdicts = _two(verdicts[0], _high(verdicts[0]));
        vm.expectPartialRevert(ECDSA.ECDSAInvalidSignatureS.selector);
        court.slash(c, own, 5, verdicts, _blank(verdicts), 0);
    }

    function test_not_of_a_validator_without_a_stake() public {
        address judge = vm.addr(judgeKeys[1]);
        vm.prank(address(0x5005));
        swarm.removeNode(judge);
        WorkCommitment memory c = _file(0, 1);
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        _carry(own, _quorum(Sign.verdict(c, 2, 5)), Court.ValidatorUnfit.selector);
    }

    function test_not_for_a_pool_that_nobody_opened() public {
        WorkCommitment memory c = _file(0, 1);
        c.pool = 99;
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = new bytes[](0);
        vm.expectPartialRevert(Court.QuorumMissing.selector);
        court.slash(c, own, 5, verdicts, _blank(verdicts), 0);
    }

    function _high(bytes memory signature) private pure returns (bytes memory) {
        bytes32 r;
        uint256 s;
        assembly {
            r := mload(add(signature, 32))
            s := mload(add(signature, 64))
        }
        return abi.encodePacked(r, CURVE_ORDER - s, uint8(signature[64]) == 27 ? uint8(28) : uint8(27));
    }
}
