// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Counters, INVITED, JOINED, PAUSED} from "./Counters.sol";
import {Pools} from "./Pools.sol";
import {Statements} from "./Statements.sol";

/// @title Members
/// @notice Which node works in which pool. A membership is a lease that `join` renews; nobody but its own provider, a
/// quorum or the node's own signatures can end it early.
abstract contract Members is Pools {
    /// Two slots per (pool, node).
    struct Member {
        /// when it joined for the first time; zero if it never did
        uint40 joinedAt;
        /// when judges had it slashed in this pool; zero if they did not, or if that was overturned
        uint40 slashedAt;
        /// the vault's number of that slash
        uint64 caseId;
        /// when its own signatures convicted it
        uint40 convictedAt;
        /// when its last membership ended; nothing as long as it is a member
        uint40 leftAt;
        /// its size then
        uint24 leftUnits;
        /// the block of its last `Joined`
        uint64 joinedBlock;
    }

    struct MemberInfo {
        /// who stands behind the node; zero if it never joined
        address provider;
        bool evicted;
        bool left;
        uint64 slashedAt;
        uint256 caseId;
        /// when its membership ends or ended; zero if it never joined
        uint64 memberUntil;
        /// where its last `Joined` can be read, with its contact
        uint64 joinedBlock;
    }

    uint256 private constant MAX_CONTACT_BYTES = 160;

    mapping(uint256 pool => mapping(address node => Member)) internal _members;
    /// everybody who ever joined, in that order
    mapping(uint256 pool => address[]) private _joined;

    event Joined(
        uint256 indexed pool, address indexed node, address indexed provider, string contact, uint64 leaseUntil
    );

    error NotMember(uint256 pool, address node);
    error NodeEvicted(uint256 pool, address node);
    error NotInvited(uint256 pool, address node);

    /// @notice The calling node joins, renews its lease or tells a new contact (a multiaddr; not stored, only logged).
    /// Joining one pool leaves another.
    function join(uint256 id, string calldata contact) external {
        Counters pool = _openPool(id);
        if (pool.has(INVITED) && msg.sender != _terms[id].manager && !court.admits(id, msg.sender)) {
            revert NotInvited(id, msg.sender);
        }
        _join(id, pool, contact);
    }

    /// @notice The calling node leaves; it stays answerable for what it signed, and what it earned stays due.
    function leavePool(uint256 id) external {
        if (id == 0 || _nodes[msg.sender].pool != id) revert NotMember(id, msg.sender);
        _endMembership(msg.sender);
    }

    // ------------------------------------------------------------------ views

    function memberInfo(uint256 id, address node) public view returns (MemberInfo memory info) {
        Member storage member = _members[id][node];
        info.provider = member.joinedAt != 0 ? _nodes[node].provider : address(0);
        info.evicted = _isEvicted(member);
        info.left = member.joinedAt != 0 && _nodes[node].pool != id;
        info.slashedAt = member.slashedAt;
        info.caseId = member.caseId;
        info.memberUntil = _memberUntil(id, node);
        info.joinedBlock = member.joinedBlock;
    }

    /// @notice How many nodes ever joined.
    function memberCount(uint256 id) external view returns (uint256) {
        return _joined[id].length;
    }

    /// @notice Up to `most` of those who ever joined, from number `first` on, in the order in which they did.
    function membersOf(uint256 id, uint256 first, uint256 most)
        external
        view
        returns (address[] memory nodes, MemberInfo[] memory infos)
    {
        address[] storage joined = _joined[id];
        uint256 left = first < joined.length ? joined.length - first : 0;
        uint256 count = most < left ? most : left;
        nodes = new address[](count);
        infos = new MemberInfo[](count);
        for (uint256 i = 0; i < count; ++i) {
            nodes[i] = joined[first + i];
            infos[i] = memberInfo(id, nodes[i]);
        }
    }

    // --------------------------------------------------------------- internal

    function _join(uint256 id, Counters pool, string calldata contact) private {
        if (pool.has(PAUSED)) revert PoolIsPaused(id);
        _requireShort(contact, MAX_CONTACT_BYTES);
        Node storage node = _nodes[msg.sender];
        if (!node.registered) revert NodeUnknown(msg.sender);
        Member storage member = _members[id][msg.sender];
        if (_isEvicted(member)) revert NodeEvicted(id, msg.sender);
        _requireStake(node.provider, _unitsOf(node.provider));
        if (node.pool != id) {
            _endMembership(msg.sender);
            node.pool = uint32(id);
        }
        if (member.joinedAt == 0) {
            member.joinedAt = uint40(block.timestamp);
            _joined[id].push(msg.sender);
            if (!pool.has(JOINED)) _counters[id] = pool.with(JOINED);
        }
        member.joinedBlock = uint64(block.number);
        uint32 leaseUntil = uint32(block.timestamp + pool.leaseSeconds());
        node.leaseUntil = leaseUntil;
        emit Joined(id, msg.sender, node.provider, contact, leaseUntil);
    }

    function _endMembership(address node) internal override {
        uint256 pool = _nodes[node].pool;
        // slither-disable-next-line incorrect-equality -- a number of a pool, not an amount
        if (pool == 0) return;
        _depart(pool, node);
        emit Left(pool, node, _nodes[node].provider);
    }

    function _depart(uint256 id, address node) internal {
        Node storage entry = _nodes[node];
        uint32 leaseUntil = entry.leaseUntil;
        Member storage member = _members[id][node];
        member.leftAt = block.timestamp < leaseUntil ? uint40(block.timestamp) : leaseUntil;
        member.leftUnits = entry.units;
        entry.pool = 0;
        entry.leaseUntil = 0;
    }

    function _memberUntil(uint256 id, address node) internal view returns (uint64) {
        // slither-disable-next-line incorrect-equality -- a number of a pool, not an amount
        return _nodes[node].pool == id ? _nodes[node].leaseUntil : _members[id][node].leftAt;
    }

    function _isEvicted(Member storage member) internal view returns (bool) {
        return member.slashedAt | member.convictedAt != 0;
    }

    /// Of a node that has left, by its size then. What was attested limits what validators certify, and nothing that a table
    /// has promised already: no later word on a node's hardware keeps back its pay.
    function _capacity(uint256 id, Counters pool, address node) internal view returns (uint256) {
        Node storage entry = _nodes[node];
        return (entry.pool == id ? entry.units : _members[id][node].leftUnits) * pool.maxUnits();
    }
}
