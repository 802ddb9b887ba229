// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {MessageHashUtils} from "@openzeppelin/contracts/utils/cryptography/MessageHashUtils.sol";

error WrongSigner(address signer, address expected);

/// @notice A worker's signed promise: submission `index` for this policy is exactly this file.
struct WorkCommitment {
    uint256 pool;
    address node;
    bytes32 policyRoot;
    uint64 index;
    bytes32 fileRoot;
    uint32 units;
    /// in which it counts, and in no other
    uint64 epoch;
}

/// @notice What a validator says of one work. values binds all that it said besides.
struct Judgement {
    uint8 outcome;
    uint8 reason;
    bytes32 values;
}

/// @notice A validator's certificate: these units of the node count in this epoch.
struct Accepted {
    uint256 pool;
    address node;
    uint64 epoch;
    bytes32 work;
    uint32 units;
}

/// @title Statements
/// @notice EIP-712 struct hashes of what nodes, managers and validators sign off chain, and the Merkle leaf of
/// a table of earnings. `protocol/statements.py` and `protocol/earnings.py` hold the same definitions for Python.
library Statements {
    uint8 internal constant OUTCOME_ACCEPT = 0;
    uint8 internal constant OUTCOME_REJECT = 1;
    uint8 internal constant OUTCOME_SLASH = 2;

    bytes32 internal constant WORK_COMMITMENT_TYPEHASH = keccak256(
        "WorkCommitment(uint256 pool,address node,bytes32 policyRoot,uint64 index,bytes32 fileRoot,uint32 units,uint64 epoch)"
    );
    bytes32 internal constant VERDICT_TYPEHASH = keccak256(
        "Verdict(uint256 pool,bytes32 work,uint8 outcome,uint8 reason,bytes32 values)"
    );
    bytes32 internal constant RECHECKED_TYPEHASH = keccak256(
        "Rechecked(uint256 pool,bytes32 work,uint8 outcome,uint8 reason,bytes32 values)"
    );
    bytes32 internal constant ACCEPTED_TYPEHASH = keccak256(
        "Accepted(uint256 pool,address node,uint64 epoch,bytes32 work,uint32 units)"
    );
    bytes32 internal constant EARNINGS_TYPEHASH = keccak256(
        "Earnings(uint256 pool,uint64 epoch,bytes32 root,uint64 total)"
    );
    bytes32 internal constant NODE_REGISTRATION_TYPEHASH = keccak256(
        "NodeRegistration(address provider,address node,uint32 units,uint256 nonce,uint256 deadline)"
    );
    bytes32 internal constant INVITATION_TYPEHASH = keccak256(
        "Invitation(uint256 pool,address invitee,uint32 places,uint64 deadline)"
    );
    bytes32 internal constant TICKET_TYPEHASH = keccak256("Ticket(uint256 pool,address node)");
    bytes32 internal constant ATTESTATION_TYPEHASH = keccak256(
        "Attestation(uint256 pool,address node,uint32 units,uint64 madeAt,uint64 until)"
    );
    bytes32 internal constant TERM_SILENT_TYPEHASH = keccak256("TermSilent(uint256 pool,uint32 term,uint64 until,uint64 step)");

    function hashCommitment(WorkCommitment calldata c) internal pure returns (bytes32) {
        return keccak256(
            abi.encode(WORK_COMMITMENT_TYPEHASH, c.pool, c.node, c.policyRoot, c.index, c.fileRoot, c.units, c.epoch)
        );
    }

    /// kind: VERDICT_TYPEHASH or RECHECKED_TYPEHASH
    function hashJudgement(bytes32 kind, uint256 pool, bytes32 work, uint8 outcome, uint8 reason, bytes32 values)
        internal
        pure
        returns (bytes32)
    {
        return keccak256(abi.encode(kind, pool, work, outcome, reason, values));
    }

    /// A validator's one word, as it is shown to contradict itself or to end a term.
    function hashVerdict(uint256 pool, bytes32 work, Judgement calldata v) internal pure returns (bytes32) {
        return hashJudgement(VERDICT_TYPEHASH, pool, work, v.outcome, v.reason, v.values);
    }

    function hashAccepted(Accepted calldata a) internal pure returns (bytes32) {
        return keccak256(abi.encode(ACCEPTED_TYPEHASH, a.pool, a.node, a.epoch, a.work, a.units));
    }

    function hashEarnings(uint256 pool, uint64 epoch, bytes32 root, uint64 total) internal pure returns (bytes32) {
        return keccak256(abi.encode(EARNINGS_TYPEHASH, pool, epoch, root, total));
    }

    function hashRegistration(address provider, address node, uint32 units, uint256 nonce, uint256 deadline)
        internal
        pure
        returns (bytes32)
    {
        return keccak256(abi.encode(NODE_REGISTRATION_TYPEHASH, provider, node, units, nonce, deadline));
    }

    function hashInvitation(uint256 pool, address invitee, uint32 places, uint64 deadline)
        internal
        pure
        returns (bytes32)
    {
        return keccak256(abi.encode(INVITATION_TYPEHASH, pool, invitee, places, deadline));
    }

    function hashTicket(uint256 pool, address node) internal pure returns (bytes32) {
        return keccak256(abi.encode(TICKET_TYPEHASH, pool, node));
    }

    function hashAttestation(uint256 pool, address node, uint32 units, uint64 madeAt, uint64 until)
        internal
        pure
        returns (bytes32)
    {
        return keccak256(abi.encode(ATTESTATION_TYPEHASH, pool, node, units, madeAt, until));
    }

    function hashTermSilent(uint256 pool, uint32 term, uint64 until, uint64 step) internal pure returns (bytes32) {
        return keccak256(abi.encode(TERM_SILENT_TYPEHASH, pool, term, until, step));
    }

    /// @notice The policy root in the commitment that a trainer signs by stating a step of this term.
    function slotOf(uint32 term) internal pure returns (bytes32) {
        return keccak256(abi.encodePacked("intellect-node policy statement v1", term));
    }

    function signerOf(bytes32 domain, bytes32 statement, bytes calldata signature) internal pure returns (address) {
        return ECDSA.recover(MessageHashUtils.toTypedDataHash(domain, statement), signature);
    }

    function requireSigner(bytes32 domain, bytes32 statement, bytes calldata signature, address expected) internal pure {
        address signer = signerOf(domain, statement, signature);
        if (signer != expected) revert WrongSigner(signer, expected);
    }

    /// @notice The leaf of one node's line: its units since the pool began.
    function leaf(address node, uint64 units) internal pure returns (bytes32) {
        return keccak256(abi.encodePacked(bytes1(0x00), node, units));
    }

    /// @notice The root that `proof` leads to from `node`; siblings are hashed in sorted order under prefix 0x01.
    function climb(bytes32 node, bytes32[] calldata proof) internal pure returns (bytes32) {
        for (uint256 i = 0; i < proof.length; ++i) {
            bytes32 sibling = proof[i];
            node = node < sibling
                ? keccak256(abi.encodePacked(bytes1(0x01), node, sibling))
                : keccak256(abi.encodePacked(bytes1(0x01), sibling, node));
        }
        return node;
    }
}
