// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @notice A worker's signed promise: submission `index` for this policy is exactly this file.
struct WorkCommitment {
    uint256 pool;
    address node;
    bytes32 policyRoot;
    uint64 index;
    bytes32 fileRoot;
    uint32 units;
}

/// @notice A validator's signed judgement of one commitment, all of whose fields it repeats.
struct Verdict {
    uint256 pool;
    address node;
    bytes32 policyRoot;
    uint64 index;
    bytes32 fileRoot;
    uint32 units;
    uint8 outcome;
    uint8 reason;
}

/// @title Statements
/// @notice EIP-712 struct hashes of what nodes, managers and validators sign off chain, and the Merkle leaf of
/// accepted work. `protocol/statements.py` and `protocol/work.py` hold the same definitions for Python.
library Statements {
    uint8 internal constant OUTCOME_ACCEPT = 0;
    uint8 internal constant OUTCOME_REJECT = 1;
    uint8 internal constant OUTCOME_SLASH = 2;

    bytes32 internal constant WORK_COMMITMENT_TYPEHASH = keccak256(
        "WorkCommitment(uint256 pool,address node,bytes32 policyRoot,uint64 index,bytes32 fileRoot,uint32 units)"
    );
    bytes32 internal constant VERDICT_TYPEHASH = keccak256(
        "Verdict(uint256 pool,address node,bytes32 policyRoot,uint64 index,bytes32 fileRoot,uint32 units,uint8 outcome,uint8 reason)"
    );
    bytes32 internal constant NODE_REGISTRATION_TYPEHASH = keccak256(
        "NodeRegistration(address provider,address node,uint32 units,uint256 nonce,uint256 deadline)"
    );
    bytes32 internal constant INVITATION_TYPEHASH = keccak256(
        "Invitation(uint256 pool,address node,uint256 deadline)"
    );
    bytes32 internal constant ATTESTATION_TYPEHASH = keccak256(
        "Attestation(uint256 pool,address node,uint32 units,uint64 madeAt,uint64 until)"
    );
    bytes32 internal constant EPOCH_VERDICT_TYPEHASH = keccak256(
        "EpochVerdict(uint256 pool,address node,uint64 epoch,bytes20 root,uint8 outcome,uint8 reason)"
    );

    function hashCommitment(WorkCommitment calldata c) internal pure returns (bytes32) {
        return keccak256(
            abi.encode(WORK_COMMITMENT_TYPEHASH, c.pool, c.node, c.policyRoot, c.index, c.fileRoot, c.units)
        );
    }

    function hashVerdict(WorkCommitment calldata c, uint8 outcome, uint8 reason) internal pure returns (bytes32) {
        return keccak256(
            abi.encode(VERDICT_TYPEHASH, c.pool, c.node, c.policyRoot, c.index, c.fileRoot, c.units, outcome, reason)
        );
    }

    function hashVerdict(Verdict calldata v) internal pure returns (bytes32) {
        return keccak256(
            abi.encode(
                VERDICT_TYPEHASH, v.pool, v.node, v.policyRoot, v.index, v.fileRoot, v.units, v.outcome, v.reason
            )
        );
    }

    function hashRegistration(address provider, address node, uint32 units, uint256 nonce, uint256 deadline)
        internal
        pure
        returns (bytes32)
    {
        return keccak256(abi.encode(NODE_REGISTRATION_TYPEHASH, provider, node, units, nonce, deadline));
    }

    function hashInvitation(uint256 pool, address node, uint256 deadline) internal pure returns (bytes32) {
        return keccak256(abi.encode(INVITATION_TYPEHASH, pool, node, deadline));
    }

    function hashAttestation(uint256 pool, address node, uint32 units, uint64 madeAt, uint64 until)
        internal
        pure
        returns (bytes32)
    {
        return keccak256(abi.encode(ATTESTATION_TYPEHASH, pool, node, units, madeAt, until));
    }

    function hashEpochVerdict(
        uint256 pool,
        address node,
        uint64 epoch,
        bytes20 root,
        uint8 outcome,
        uint8 reason
    ) internal pure returns (bytes32) {
        return keccak256(abi.encode(EPOCH_VERDICT_TYPEHASH, pool, node, epoch, root, outcome, reason));
    }

    /// @notice The leaf of one work in its node's tree of one epoch: it names all that was signed, the pool included.
    function leaf(WorkCommitment calldata c) internal pure returns (bytes32) {
        return keccak256(abi.encodePacked(bytes1(0x00), hashCommitment(c)));
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
