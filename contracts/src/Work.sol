// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {Counters, ENDED, PAUSED, WORKED} from "./Counters.sol";
import {Members} from "./Members.sol";

/// @title Work
/// @notice What nodes did and are owed. One clock: the work of epoch e matures `window` seconds after the epoch's end.
/// Until that second it can be voided and not settled; from that second on it can be settled and not voided.
abstract contract Work is Members {
    using SafeERC20 for IERC20;

    /// One slot per (pool, node, epoch); all zero again once the work is settled or voided as a whole. 20 bytes of a
    /// Merkle root leave a second preimage as far away as an address's.
    struct Commitment {
        bytes20 root;
        /// what still counts
        uint32 units;
        /// what of it the escrow had money for
        uint32 reserved;
    }

    struct WorkInfo {
        bytes20 root;
        uint32 units;
        uint32 reservedUnits;
        /// token wei
        uint256 reserved;
        uint64 maturesAt;
        /// whether a slash took its pay
        bool voided;
    }

    /// by node (20 bytes), pool (4 bytes) and epoch (8 bytes)
    mapping(uint256 key => Commitment) private _work;

    event WorkCommitted(
        uint256 indexed pool, address indexed node, uint64 epoch, bytes32 root, uint32 units, uint32 reservedUnits
    );
    event WorkToppedUp(uint256 indexed pool, address indexed node, uint64 epoch, uint32 units);
    event WorkInvalidated(
        uint256 indexed pool, address indexed node, uint64 indexed epoch, bytes32 fileRoot, uint32 units, uint8 reason
    );
    event EpochInvalidated(
        uint256 indexed pool, address indexed node, uint64 indexed epoch, uint32 units, uint8 reason
    );
    event WorkReleased(uint256 indexed pool, address indexed node, uint64 indexed epoch, uint32 units);
    event Settled(
        uint256 indexed pool, address indexed node, uint64 indexed epoch, address provider, uint32 units, uint256 amount
    );

    error LeaseLapsed(uint256 pool, address node, uint64 leaseUntil);
    error EpochNotStarted(uint64 epoch, uint64 current);
    error CommitTooLate(uint64 epoch, uint256 closedAt);
    error AlreadyCommitted(uint256 pool, address node, uint64 epoch);
    error EmptyRoot();
    error CapacityUsed(uint64 epoch, uint256 freeFrom);
    error NothingCommitted(uint256 pool, address node, uint64 epoch);
    error NotMature(uint64 epoch, uint256 matureAt);
    error AlreadyMature(uint64 epoch, uint256 matureAt);
    error WorkIsVoided(uint64 epoch);
    error NotVoided(uint64 epoch);

    /// @notice Commits the calling node to the Merkle root of its accepted files of one epoch and renews its lease.
    /// Possible from the epoch's start until half of the window is over, so that there is always time to object.
    /// Reserves pay for `units`, or for as many as there is escrow for.
    function commitWork(uint256 id, uint64 epoch, bytes32 root, uint32 units) external {
        Counters pool = _pool(id);
        Node storage node = _nodes[msg.sender];
        uint32 member = node.pool;
        (uint32 leaseUntil, uint24 size, uint40 freeFrom) = (node.leaseUntil, node.units, node.freeFrom);
        if (member != id) revert NotMember(id, msg.sender);
        if (block.timestamp > leaseUntil) revert LeaseLapsed(id, msg.sender, leaseUntil);
        if (bytes20(root) == bytes20(0)) revert EmptyRoot();
        if (_requireCommittable(id, pool, epoch) < freeFrom) revert CapacityUsed(epoch, freeFrom);
        uint32 capacity = _capacity(id, pool, msg.sender, size);
        if (units == 0 || units > capacity) revert UnitsOutOfRange(units, capacity);
        Commitment storage work = _work[_workKey(id, msg.sender, epoch)];
        if (work.root != bytes20(0)) revert AlreadyCommitted(id, msg.sender, epoch);
        uint32 reserved = units < pool.free() ? units : uint32(pool.free());
        _counters[id] = pool.reserve(reserved).with(WORKED);
        node.leaseUntil = uint32(block.timestamp + pool.leaseSeconds());
        _write(work, Commitment(bytes20(root), units, reserved));
        emit WorkCommitted(id, msg.sender, epoch, root, units, reserved);
    }

    /// @notice Reserves what committed work lacks and the escrow has by now. Anybody may call it.
    function topUp(uint256 id, address node, uint64 epoch) external {
        Counters pool = _pool(id);
        Commitment storage work = _committed(id, node, epoch);
        if (_isVoided(_members[id][node], _maturity(pool, epoch))) revert WorkIsVoided(epoch);
        uint256 more = work.units - work.reserved;
        if (more > pool.free()) more = pool.free();
        if (more == 0) revert ZeroAmount();
        work.reserved += uint32(more);
        _counters[id] = pool.reserve(more);
        emit WorkToppedUp(id, node, epoch, uint32(more));
    }

    /// @notice Pays the provider for mature epochs of one node. Anybody may call it.
    function settle(uint256 id, address node, uint64[] calldata epochs) external nonReentrant {
        Counters pool = _pool(id);
        uint256 rate = _terms[id].rewardPerUnit;
        address provider = _nodes[node].provider;
        uint256 total = 0;
        for (uint256 i = 0; i < epochs.length; ++i) {
            total += _close(id, pool, node, epochs[i], provider, rate);
        }
        if (total == 0) revert ZeroAmount();
        _counters[id] = pool.pay(total);
        token.safeTransfer(provider, total * rate);
    }

    /// @notice Returns the pay of voided work to the pool, once the slash that voided it is final.
    function release(uint256 id, address node, uint64 epoch) external {
        Counters pool = _pool(id);
        Commitment storage work = _committed(id, node, epoch);
        Member storage member = _members[id][node];
        uint256 matureAt = _maturity(pool, epoch);
        bool judged = _isAfter(matureAt, member.slashedAt) && vault.isFinal(member.caseId);
        if (!judged && !_isAfter(matureAt, member.convictedAt)) revert NotVoided(epoch);
        uint32 units = work.reserved;
        delete _work[_workKey(id, node, epoch)];
        _counters[id] = pool.unreserve(units);
        emit WorkReleased(id, node, epoch, units);
    }

    /// @notice The Court takes one leaf's units out of an epoch that is not mature.
    function takeLeaf(uint256 id, address node, uint64 epoch, bytes32 fileRoot, uint32 units, uint8 reason)
        external
        onlyCourt
    {
        _lower(id, node, epoch, units);
        emit WorkInvalidated(id, node, epoch, fileRoot, units, reason);
    }

    /// @notice The Court takes all pay of an epoch that is not mature. Its root stays: it cannot be committed again.
    function takeEpoch(uint256 id, address node, uint64 epoch, uint8 reason) external onlyCourt {
        uint32 units = _lower(id, node, epoch, type(uint32).max);
        emit EpochInvalidated(id, node, epoch, units, reason);
    }

    /// @notice The root of a commitment that can still be voided.
    function openRoot(uint256 id, address node, uint64 epoch) external view returns (bytes20) {
        _requireImmature(_pool(id), epoch);
        return _committed(id, node, epoch).root;
    }

    function workInfo(uint256 id, address node, uint64 epoch) external view returns (WorkInfo memory info) {
        Counters pool = _pool(id);
        Commitment memory work = _work[_workKey(id, node, epoch)];
        uint256 maturesAt = _maturity(pool, epoch);
        info.root = work.root;
        info.units = work.units;
        info.reservedUnits = work.reserved;
        info.reserved = uint256(work.reserved) * _terms[id].rewardPerUnit;
        info.maturesAt = uint64(maturesAt);
        info.voided = work.root != bytes20(0) && _isVoided(_members[id][node], maturesAt);
    }

    // --------------------------------------------------------------- internal

    /// In one write: the compiler makes three of them, which costs more than commitments have left to spend.
    function _write(Commitment storage work, Commitment memory made) private {
        uint256 word = uint160(made.root) | (uint256(made.units) << 160) | (uint256(made.reserved) << 192);
        assembly ("memory-safe") {
            sstore(work.slot, word)
        }
    }

    /// Takes up to `units` out of an epoch that is not mature, first those that nothing is reserved for.
    function _lower(uint256 id, address node, uint64 epoch, uint32 units) private returns (uint32 had) {
        Counters pool = _pool(id);
        _requireImmature(pool, epoch);
        Commitment storage work = _committed(id, node, epoch);
        had = work.units;
        // leaves that claim more than the epoch did take no more than that
        uint32 left = units < had ? had - units : 0;
        work.units = left;
        uint32 reserved = work.reserved;
        if (reserved > left) {
            work.reserved = left;
            _counters[id] = pool.unreserve(reserved - left);
        }
    }

    function _close(uint256 id, Counters pool, address node, uint64 epoch, address provider, uint256 rate)
        private
        returns (uint256 reserved)
    {
        uint256 key = _workKey(id, node, epoch);
        Commitment memory work = _work[key];
        reserved = work.reserved;
        if (reserved == 0) revert NothingCommitted(id, node, epoch);
        uint256 matureAt = _maturity(pool, epoch);
        if (block.timestamp < matureAt) revert NotMature(epoch, matureAt);
        if (_isVoided(_members[id][node], matureAt)) revert WorkIsVoided(epoch);
        delete _work[key];
        emit Settled(id, node, epoch, provider, work.units, reserved * rate);
    }

    /// A slash takes the pay of every epoch that was not mature in that second.
    function _isVoided(Member storage member, uint256 matureAt) private view returns (bool) {
        return _isAfter(matureAt, member.slashedAt) || _isAfter(matureAt, member.convictedAt);
    }

    function _isAfter(uint256 matureAt, uint256 slashedAt) private pure returns (bool) {
        return slashedAt != 0 && matureAt > slashedAt;
    }

    /// The second in which the epoch began.
    function _requireCommittable(uint256 id, Counters pool, uint64 epoch) private view returns (uint256 start) {
        start = _epochStart(pool, epoch);
        if (block.timestamp < start) revert EpochNotStarted(epoch, _epochAt(pool, block.timestamp));
        uint256 closedAt = start + pool.epochSeconds() + pool.window() / 2;
        if (block.timestamp >= closedAt) revert CommitTooLate(epoch, closedAt);
        if (pool.has(PAUSED | ENDED) && start > _terms[id].stoppedAt) {
            if (pool.has(ENDED)) revert PoolOver(id);
            revert PoolIsPaused(id);
        }
    }

    function _requireImmature(Counters pool, uint64 epoch) private view {
        uint256 matureAt = _maturity(pool, epoch);
        if (block.timestamp >= matureAt) revert AlreadyMature(epoch, matureAt);
    }

    function _committed(uint256 id, address node, uint64 epoch) private view returns (Commitment storage work) {
        work = _work[_workKey(id, node, epoch)];
        if (work.root == bytes20(0)) revert NothingCommitted(id, node, epoch);
    }

    /// Pools have numbers below 2^32: `poolCount` grows by one a transaction.
    function _workKey(uint256 id, address node, uint64 epoch) private pure returns (uint256) {
        return (uint256(uint160(node)) << 96) | (id << 64) | epoch;
    }
}
