// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {ISwarm, StakeVault} from "./StakeVault.sol";
import {Statements} from "./Statements.sol";

/// @title Nodes
/// @notice Who answers for which node key, and how much stake that takes. A node key has one provider for life, so that
/// what it earned can only ever be paid there; the provider may remove it at any time and register it again.
///
/// A removed node answers for what it did until it is released, which it can be once the unbonding is over. So long its
/// units bind stake: no two nodes lean on one, however fast a provider takes one away and brings the next.
abstract contract Nodes is ISwarm {
    struct Node {
        /// for life; zero if it was never registered
        address provider;
        bool registered;
        /// what its next registration must carry
        uint88 nonce;
        /// what it answers for; zero once it is released
        uint24 units;
        /// the one that it is a member of
        uint32 pool;
        uint32 leaseUntil;
        /// from when on it may be released; zero while it is registered
        uint64 freeAt;
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

    /// of all nodes of a provider: in the low half of those that it has, in the high half of those that it removed and
    /// that answer still; no node is in both, and no sum of them comes near a half
    mapping(address provider => uint256) private _units;

    mapping(address node => Node) internal _nodes;

    event NodeRegistered(address indexed provider, address indexed node, uint32 units);
    event NodeRemoved(address indexed provider, address indexed node, uint32 units, uint64 freeAt);
    event NodeReleased(address indexed provider, address indexed node, uint32 units);
    event Left(uint256 indexed pool, address indexed node, address indexed provider);

    error NodeIsProvider(address node);
    error NodeTaken(address node, address provider);
    error NodeUnknown(address node);
    error NotYourNode(address node, address provider);
    error ProviderHasNodes(uint256 units);
    error UnitsOutOfRange(uint256 units, uint256 max);
    error NodeStillAnswers(address node, uint256 freeAt);
    error SignatureExpired(uint256 deadline);
    error StakeTooLow(address provider, uint256 bonded, uint256 required);
    error StakeEnough(address provider);

    constructor(StakeVault vault_, uint256 baseStake_, uint256 stakePerUnit_) {
        vault = vault_;
        token = vault_.token();
        baseStake = baseStake_;
        stakePerUnit = stakePerUnit_;
    }

    /// @notice Makes the caller the provider of `node`, which consents by signing a NodeRegistration. Bonded must be what
    /// all units of the caller need, those of removed nodes that answer still among them.
    /// @param units the size of the node, 1 .. MAX_NODE_UNITS; stake, slashes and the work it may be paid for grow with
    /// it. While it still answers for an earlier registration, at least as many as that had.
    function registerNode(address node, uint32 units, uint256 deadline, bytes calldata nodeSignature) external {
        if (node == msg.sender) revert NodeIsProvider(node);
        Node storage entry = _nodes[node];
        address owner = entry.provider;
        if (entry.registered || (owner != address(0) && owner != msg.sender)) revert NodeTaken(node, owner);
        if (units == 0 || units > MAX_NODE_UNITS) revert UnitsOutOfRange(units, MAX_NODE_UNITS);
        uint24 left = entry.units;
        if (units < left && block.timestamp < entry.freeAt) revert NodeStillAnswers(node, entry.freeAt);
        if (block.timestamp > deadline) revert SignatureExpired(deadline);
        bytes32 statement = Statements.hashRegistration(msg.sender, node, units, entry.nonce++, deadline);
        _requireSigner(statement, nodeSignature, node);
        (entry.provider, entry.registered, entry.units, entry.freeAt) = (msg.sender, true, uint24(units), 0);
        uint256 all = _units[msg.sender] + units - (uint256(left) << 128);
        _units[msg.sender] = all;
        _requireStake(msg.sender, uint128(all) + (all >> 128));
        emit NodeRegistered(msg.sender, node, units);
    }

    /// @notice Ends the caller's responsibility for a node's future, and the node's membership; for what it did its
    /// units answer until the unbonding is over, and what it earned stays due.
    function removeNode(address node) external {
        _removeOwn(node);
    }

    /// @notice Removes the last nodes of the caller, whatever pools they are in: afterwards all of its stake may go.
    function removeProvider(address[] calldata nodes) external {
        for (uint256 i = 0; i < nodes.length; ++i) {
            _removeOwn(nodes[i]);
        }
        uint256 units = _unitsOf(msg.sender);
        if (units != 0) revert ProviderHasNodes(units);
    }

    /// @notice Frees the stake that removed nodes bind, once each of them has answered long enough. Anybody may.
    function release(address[] calldata nodes) external {
        for (uint256 i = 0; i < nodes.length; ++i) {
            Node storage entry = _nodes[nodes[i]];
            (address provider, uint24 units) = (entry.provider, entry.units);
            if (entry.registered || units == 0) revert NodeUnknown(nodes[i]);
            if (block.timestamp < entry.freeAt) revert NodeStillAnswers(nodes[i], entry.freeAt);
            (entry.units, entry.freeAt) = (0, 0);
            _units[provider] -= uint256(units) << 128;
            emit NodeReleased(provider, nodes[i], units);
        }
    }

    /// @notice Removes a node whose provider's stake, after a slash, no longer covers its nodes: one after the other,
    /// and none once the rest is covered. What is frozen counts until its case is final: judges of one pool drive
    /// nobody out of another.
    function expel(address node) external {
        address provider = _nodes[node].provider;
        if (vault.backingOf(provider) >= requiredStake(provider)) revert StakeEnough(provider);
        _remove(node, provider);
    }

    /// @notice provider: for life, also after a removal.
    function nodeInfo(address node) external view returns (Node memory) {
        return _nodes[node];
    }

    /// @notice The stake that `provider` needs for the nodes it has; zero without nodes. Those that it removed bind
    /// what is unbonding as well: it stays as long as they answer.
    function requiredStake(address provider) public view returns (uint256) {
        return _stakeFor(_unitsOf(provider));
    }

    /// @notice Units of the nodes that `provider` has, and of those that it removed and that answer still.
    function unitsOf(address provider) external view returns (uint256 registered, uint256 leaving) {
        return (_unitsOf(provider), _units[provider] >> 128);
    }

    /// @notice EIP-5267: which fields the domain has, their values, and no extensions, for whatever shows what one signs.
    function eip712Domain()
        external
        view
        returns (bytes1, string memory, string memory, uint256, address, bytes32, uint256[] memory)
    {
        return (0x0f, "intellect-node", "1", block.chainid, address(this), 0, new uint256[](0));
    }

    /// @notice The EIP-712 domain of all that nodes, managers and validators sign.
    function domainSeparator() public view returns (bytes32) {
        return keccak256(
            abi.encode(_DOMAIN_TYPEHASH, keccak256("intellect-node"), keccak256("1"), block.chainid, address(this))
        );
    }

    function _removeOwn(address node) private {
        address provider = _nodes[node].provider;
        if (provider != msg.sender) revert NotYourNode(node, provider);
        _remove(node, msg.sender);
    }

    function _remove(address node, address provider) private {
        Node storage entry = _nodes[node];
        if (!entry.registered) revert NodeUnknown(node);
        _endMembership(node);
        uint24 units = entry.units;
        uint64 freeAt = uint64(block.timestamp) + vault.unbondingPeriod();
        (entry.registered, entry.freeAt) = (false, freeAt);
        _units[provider] = _units[provider] - units + (uint256(units) << 128);
        emit NodeRemoved(provider, node, units, freeAt);
    }

    /// Does nothing if the node is in no pool.
    function _endMembership(address node) internal virtual;

    function _unitsOf(address provider) internal view returns (uint256) {
        return uint128(_units[provider]);
    }

    function _stakeFor(uint256 units) private view returns (uint256) {
        return units == 0 ? 0 : baseStake + stakePerUnit * units;
    }

    function _requireStake(address provider, uint256 units) internal view {
        uint256 required = _stakeFor(units);
        uint256 bonded = vault.bondedOf(provider);
        if (bonded < required) revert StakeTooLow(provider, bonded, required);
    }

    function _requireSigner(bytes32 statement, bytes calldata signature, address expected) internal view {
        Statements.requireSigner(domainSeparator(), statement, signature, expected);
    }
}
