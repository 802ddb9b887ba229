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

/// @notice What work comes to. Signed as an EpochRoot it is a validator's word on all works of an epoch that count, those
/// that it has not named before; as Earnings a table of what everybody can be paid of everything through an epoch.
struct Tally {
    uint256 pool;
    uint64 epoch;
    /// no two of one validator, kind and epoch are alike
    uint64 number;
    bytes32 root;
    /// units of all its leaves; in a table of all nodes, since the pool began
    uint64 total;
    /// names the file of the leaves or lines; nothing on chain reads it
    bytes32 blob;
}

/// @notice One work of a node, as it stands under an EpochRoot.
struct WorkLeaf {
    address node;
    bytes32 work;
    uint64 units;
    bytes32[] proof;
}

/// @notice A node's line under an EpochRoot: the units of all its works there.
struct RootLine {
    /// the signer's place in the bench's list
    uint8 seat;
    Tally root;
    bytes signature;
    uint64 units;
    bytes32[] proof;
}

/// @notice What validators named of a node in one epoch, as it is filed after a pool's end.
struct Filing {
    uint64 epoch;
    /// the number of the bench that sat when the epoch began, its threshold and its list
    uint32 bench;
    uint8 threshold;
    address[] validators;
    /// by seat, then by the root's number
    RootLine[] lines;
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
    bytes32 internal constant VERDICT_TYPEHASH =
        keccak256("Verdict(uint256 pool,bytes32 work,uint8 outcome,uint8 reason,bytes32 values)");
    bytes32 internal constant RECHECKED_TYPEHASH =
        keccak256("Rechecked(uint256 pool,bytes32 work,uint8 outcome,uint8 reason,bytes32 values)");
    bytes32 internal constant EPOCH_ROOT_TYPEHASH =
        keccak256("EpochRoot(uint256 pool,uint64 epoch,uint64 number,bytes32 root,uint64 total,bytes32 blob)");
    bytes32 internal constant EARNINGS_TYPEHASH =
        keccak256("Earnings(uint256 pool,uint64 epoch,uint64 number,bytes32 root,uint64 total,bytes32 blob)");
    bytes32 internal constant NODE_REGISTRATION_TYPEHASH =
        keccak256("NodeRegistration(address provider,address node,uint32 units,uint256 nonce,uint256 deadline)");
    bytes32 internal constant INVITATION_TYPEHASH =
        keccak256("Invitation(uint256 pool,address invitee,uint32 places,uint64 deadline)");
    bytes32 internal constant TICKET_TYPEHASH = keccak256("Ticket(uint256 pool,address node)");
    bytes32 internal constant ATTESTATION_TYPEHASH =
        keccak256("Attestation(uint256 pool,address node,uint32 units,uint64 madeAt,uint64 until)");
    bytes32 internal constant TERM_SILENT_TYPEHASH =
        keccak256("TermSilent(uint256 pool,uint32 term,uint64 until,uint64 step)");

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

    /// kind: EPOCH_ROOT_TYPEHASH or EARNINGS_TYPEHASH
    function hashTally(bytes32 kind, Tally calldata t) internal pure returns (bytes32) {
        return keccak256(abi.encode(kind, t.pool, t.epoch, t.number, t.root, t.total, t.blob));
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

    function requireSigner(bytes32 domain, bytes32 statement, bytes calldata signature, address expected)
        internal
        pure
    {
        address signer = signerOf(domain, statement, signature);
        if (signer != expected) revert WrongSigner(signer, expected);
    }

    /// @notice The leaf of one node's line: its units under an EpochRoot, or in a table those since the pool began.
    function leaf(address node, uint64 units) internal pure returns (bytes32) {
        return keccak256(abi.encodePacked(bytes1(0x00), node, units));
    }

    /// @notice The leaf of one work of a node.
    function workLeaf(address node, bytes32 work, uint64 units) internal pure returns (bytes32) {
        return keccak256(abi.encodePacked(bytes1(0x04), node, work, units));
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
