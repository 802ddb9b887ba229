// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ATTESTED, Counters, INVITED, PAUSED} from "./Counters.sol";
import {Pools} from "./Pools.sol";
import {Statements} from "./Statements.sol";

/// @title Members
/// @notice Which node works in which pool. A membership is a lease that `join` and `commitWork` renew; nobody but its
/// own provider, a quorum or the node's own signatures can end it early.
abstract contract Members is Pools {
    /// One slot per (pool, node).
    struct Member {
        /// whether it ever joined
        bool joined;
        /// whether the manager invited it
        bool admitted;
        /// when judges had it slashed in this pool; zero if they did not, or if that was overturned
        uint40 slashedAt;
        /// the vault's number of that slash
        uint64 caseId;
        /// when its own signatures convicted it
        uint40 convictedAt;
        /// when its last membership ended; nothing as long as it is a member
        uint40 leftAt;
    }

    struct MemberInfo {
        /// who stands behind the node; zero if it never joined
        address provider;
        uint64 leaseUntil;
        bool evicted;
        bool left;
        bool admitted;
        uint64 slashedAt;
        uint256 caseId;
        /// when its membership ends or ended; zero if it never joined
        uint64 memberUntil;
    }

    uint256 private constant MAX_CONTACT_BYTES = 160;

    mapping(uint256 pool => mapping(address node => Member)) internal _members;

    event Joined(uint256 indexed pool, address indexed node, address indexed provider, string contact, uint64 leaseUntil);

    error NotMember(uint256 pool, address node);
    error NodeEvicted(uint256 pool, address node);
    error NotInvited(uint256 pool, address node);

    /// @notice The calling node joins, renews its lease or tells a new contact (a multiaddr; not stored, only logged).
    /// Joining one pool leaves another.
    function join(uint256 id, string calldata contact) external {
        Counters pool = _openPool(id);
        if (pool.has(INVITED) && !_members[id][msg.sender].admitted) revert NotInvited(id, msg.sender);
        _join(id, pool, contact);
    }

    /// @notice `join` with the manager's Invitation, which is needed once.
    function joinInvited(uint256 id, string calldata contact, uint256 deadline, bytes calldata invitation) external {
        Counters pool = _openPool(id);
        if (block.timestamp > deadline) revert SignatureExpired(deadline);
        _requireSigner(Statements.hashInvitation(id, msg.sender, deadline), invitation, _terms[id].manager);
        _members[id][msg.sender].admitted = true;
        _join(id, pool, contact);
    }

    /// @notice The calling node leaves; it stays answerable for what it signed, and its work stays due.
    function leavePool(uint256 id) external {
        if (id == 0 || _nodes[msg.sender].pool != id) revert NotMember(id, msg.sender);
        _endMembership(msg.sender);
    }

    // ------------------------------------------------------------------ views

    function memberInfo(uint256 id, address node) public view returns (MemberInfo memory info) {
        Member storage member = _members[id][node];
        Node storage entry = _nodes[node];
        // slither-disable-next-line incorrect-equality -- a number of a pool, not an amount
        bool present = entry.pool == id;
        info.provider = member.joined ? entry.provider : address(0);
        info.leaseUntil = present ? entry.leaseUntil : 0;
        info.evicted = _isEvicted(member);
        info.left = member.joined && !present;
        info.admitted = member.admitted;
        info.slashedAt = member.slashedAt;
        info.caseId = member.caseId;
        info.memberUntil = _memberUntil(id, node);
    }

    /// @notice The records of the given nodes, in their order.
    function memberInfos(uint256 id, address[] calldata nodes) external view returns (MemberInfo[] memory infos) {
        infos = new MemberInfo[](nodes.length);
        for (uint256 i = 0; i < nodes.length; ++i) {
            infos[i] = memberInfo(id, nodes[i]);
        }
    }

    /// @notice How many work units the node may commit per epoch.
    function capacityOf(uint256 id, address node) external view returns (uint32) {
        return _capacity(id, _pool(id), node, _nodes[node].units);
    }

    // --------------------------------------------------------------- internal

    function _join(uint256 id, Counters pool, string calldata contact) private {
        if (pool.has(PAUSED)) revert PoolIsPaused(id);
        _requireShort(contact, MAX_CONTACT_BYTES);
        Node storage node = _nodes[msg.sender];
        if (!node.registered) revert NodeUnknown(msg.sender);
        Member storage member = _members[id][msg.sender];
        if (_isEvicted(member)) revert NodeEvicted(id, msg.sender);
        _requireStake(node.provider);
        if (node.pool != id) {
            _endMembership(msg.sender);
            node.pool = uint32(id);
            // no time is paid for in two pools
            if (node.lastPool != id && node.freeFrom < node.doneAt) node.freeFrom = node.doneAt;
        }
        if (!member.joined) member.joined = true;
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
        _members[id][node].leftAt = block.timestamp < leaseUntil ? uint40(block.timestamp) : leaseUntil;
        entry.pool = 0;
        entry.leaseUntil = 0;
        entry.lastPool = uint32(id);
        Counters pool = _pool(id);
        entry.doneAt = uint40(_epochStart(pool, _epochAt(pool, block.timestamp) + 1));
    }

    function _memberUntil(uint256 id, address node) internal view returns (uint64) {
        // slither-disable-next-line incorrect-equality -- a number of a pool, not an amount
        return _nodes[node].pool == id ? _nodes[node].leaseUntil : _members[id][node].leftAt;
    }

    function _isEvicted(Member storage member) private view returns (bool) {
        return member.slashedAt | member.convictedAt != 0;
    }

    function _capacity(uint256 id, Counters pool, address node, uint256 units) internal view returns (uint32) {
        if (pool.has(ATTESTED)) {
            uint256 found = court.attestedUnits(id, node);
            if (found < units) units = found;
        }
        uint256 capacity = units * pool.maxUnits();
        return capacity > type(uint32).max ? type(uint32).max : uint32(capacity);
    }
}
