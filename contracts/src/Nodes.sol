// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {ISwarm} from "./ISwarm.sol";
import {StakeVault} from "./StakeVault.sol";
import {Statements} from "./Statements.sol";

/// @title Nodes
/// @notice Who answers for which node key, and how much stake that takes. A node key has one provider for life, so that
/// what it earned can only ever be paid there; the provider may remove it at any time and register it again.
abstract contract Nodes is ISwarm {
    struct Node {
        /// for life; zero if it was never registered
        address provider;
        bool registered;
        /// what its next registration must carry
        uint88 nonce;
        /// zero while it is not registered
        uint24 units;
        /// the one that it is a member of
        uint32 pool;
        uint32 leaseUntil;
    }

    uint32 internal constant MAX_NODE_UNITS = 1_000_000;
    bytes32 private constant _DOMAIN_TYPEHASH =
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");

    IERC20 public immutable token;
    StakeVault public immutable vault;
    /// @notice Stake that a provider with any node needs, token wei.
    uint256 public immutable baseStake;
    /// @notice Stake that each unit of each node needs on top, token wei.
    uint256 public immutable stakePerUnit;

    /// @notice Units of all registered nodes of a provider.
    mapping(address provider => uint256) public unitsOf;

    mapping(address node => Node) internal _nodes;

    event NodeRegistered(address indexed provider, address indexed node, uint32 units);
    event NodeRemoved(address indexed provider, address indexed node, uint32 units);
    event ProviderRemoved(address indexed provider);
    event Left(uint256 indexed pool, address indexed node, address indexed provider);

    error NodeIsProvider(address node);
    error NodeTaken(address node, address provider);
    error NodeUnknown(address node);
    error NotYourNode(address node, address provider);
    error ProviderHasNodes(uint256 units);
    error UnitsOutOfRange(uint256 units, uint256 max);
    error SignatureExpired(uint256 deadline);
    error StakeTooLow(address provider, uint256 bonded, uint256 required);
    error StakeEnough(address provider);

    constructor(StakeVault vault_, uint256 baseStake_, uint256 stakePerUnit_) {
        vault = vault_;
        token = vault_.token();
        baseStake = baseStake_;
        stakePerUnit = stakePerUnit_;
    }

    /// @notice Makes the caller the provider of `node`, which consents by signing a NodeRegistration.
    /// @param units the size of the node, 1 .. MAX_NODE_UNITS; stake and the work it may be paid for grow with it
    function registerNode(address node, uint32 units, uint256 deadline, bytes calldata nodeSignature) external {
        if (node == msg.sender) revert NodeIsProvider(node);
        Node storage entry = _nodes[node];
        address owner = entry.provider;
        if (entry.registered || (owner != address(0) && owner != msg.sender)) revert NodeTaken(node, owner);
        if (units == 0 || units > MAX_NODE_UNITS) revert UnitsOutOfRange(units, MAX_NODE_UNITS);
        if (block.timestamp > deadline) revert SignatureExpired(deadline);
        bytes32 statement = Statements.hashRegistration(msg.sender, node, units, entry.nonce++, deadline);
        _requireSigner(statement, nodeSignature, node);
        (entry.provider, entry.registered, entry.units) = (msg.sender, true, uint24(units));
        unitsOf[msg.sender] += units;
        _requireStake(msg.sender);
        emit NodeRegistered(msg.sender, node, units);
    }

    /// @notice Ends the caller's responsibility for a node's future, and the node's membership; what it did stays
    /// slashable, and what it earned stays due.
    function removeNode(address node) external {
        _removeNode(node);
    }

    /// @notice Removes the last nodes of the caller, whatever pools they are in: afterwards all of its stake may go.
    function removeProvider(address[] calldata nodes) external {
        for (uint256 i = 0; i < nodes.length; ++i) {
            _removeNode(nodes[i]);
        }
        if (unitsOf[msg.sender] != 0) revert ProviderHasNodes(unitsOf[msg.sender]);
        emit ProviderRemoved(msg.sender);
    }

    /// @notice Ends the membership of a node whose provider's stake, after a slash, no longer covers its nodes. What
    /// is frozen counts until its case is final: judges of one pool drive nobody out of another.
    function expel(address node) external {
        Node storage entry = _nodes[node];
        address provider = entry.provider;
        if (!entry.registered) revert NodeUnknown(node);
        if (vault.backingOf(provider) >= requiredStake(provider)) revert StakeEnough(provider);
        _endMembership(node);
    }

    /// @notice provider: for life, also after a removal.
    function nodeInfo(address node) external view returns (Node memory) {
        return _nodes[node];
    }

    /// @notice The stake that `provider` needs for the nodes it has; zero without nodes.
    function requiredStake(address provider) public view returns (uint256) {
        uint256 units = unitsOf[provider];
        return units == 0 ? 0 : baseStake + stakePerUnit * units;
    }

    /// @notice EIP-5267: the fields of the domain, for whatever shows somebody what it signs.
    function eip712Domain()
        external
        view
        returns (
            bytes1 fields,
            string memory name,
            string memory version,
            uint256 chainId,
            address verifyingContract,
            bytes32 salt,
            uint256[] memory extensions
        )
    {
        return (0x0f, "intellect-node", "1", block.chainid, address(this), 0, new uint256[](0));
    }

    /// @notice The EIP-712 domain of all that nodes, managers and validators sign.
    function domainSeparator() public view returns (bytes32) {
        return keccak256(
            abi.encode(_DOMAIN_TYPEHASH, keccak256("intellect-node"), keccak256("1"), block.chainid, address(this))
        );
    }

    function _removeNode(address node) private {
        Node storage entry = _nodes[node];
        if (entry.provider != msg.sender) revert NotYourNode(node, entry.provider);
        if (!entry.registered) revert NodeUnknown(node);
        _endMembership(node);
        uint24 units = entry.units;
        entry.units = 0;
        entry.registered = false;
        unitsOf[msg.sender] -= units;
        emit NodeRemoved(msg.sender, node, units);
    }

    /// Does nothing if the node is in no pool.
    function _endMembership(address node) internal virtual;

    function _requireStake(address provider) internal view {
        uint256 required = requiredStake(provider);
        uint256 bonded = vault.bondedOf(provider);
        if (bonded < required) revert StakeTooLow(provider, bonded, required);
    }

    function _requireSigner(bytes32 statement, bytes calldata signature, address expected) internal view {
        Statements.requireSigner(domainSeparator(), statement, signature, expected);
    }
}
