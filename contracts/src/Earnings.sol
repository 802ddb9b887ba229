// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {Counters, SWEPT} from "./Counters.sol";
import {Members} from "./Members.sol";
import {Statements} from "./Statements.sol";

/// @title Earnings
/// @notice What nodes have earned, and what of it was paid. A quorum signs, per epoch, the root of a table of everybody's
/// units since the pool began; a node shows its line of the newest table and is paid what it has not been paid yet.
///
/// Nothing can be reserved before a table says that it was earned. Without a quorum nobody is paid, and the next table
/// catches up. A line never falls from table to table, nor does the total.
abstract contract Earnings is Members {
    using SafeERC20 for IERC20;

    struct Posted {
        bytes32 root;
        /// of all nodes, since the pool began
        uint64 total;
        /// the first epoch that is in no table; zero before the first table
        uint64 epochs;
        /// what the last table added, and for how many epochs: how long the escrow lasts
        uint64 lastUnits;
        uint64 lastEpochs;
    }

    uint256 private constant MAX_PROOF_LENGTH = 32;

    mapping(uint256 pool => Posted) private _posted;

    event EarningsPosted(uint256 indexed pool, uint64 indexed epoch, bytes32 root, uint64 total);
    event Claimed(
        uint256 indexed pool, address indexed node, address indexed provider, uint64 units, uint256 amount
    );
    event GivenBack(uint256 indexed pool, address indexed node, uint64 units);

    error EpochNotLater(uint64 epoch, uint64 next);
    error NotMature(uint64 epoch, uint256 matureAt);
    error TotalFalls(uint64 total, uint64 last);
    error EscrowTooSmall(uint256 units, uint256 free);
    error TooMuchForEpochs(uint256 units, uint256 max);
    error BadProof();
    error NothingToClaim(uint64 units, uint64 claimed);
    error CapacityUsed(uint256 pool, address node, uint64 epoch);
    error CaseNotFinal(uint256 caseId);

    /// @notice The Court has seen a quorum for this table of everything through `epoch`.
    function recordEarnings(uint256 id, uint64 epoch, bytes32 root, uint64 total) external onlyCourt {
        Counters pool = _pool(id);
        if (pool.has(SWEPT)) revert PoolOver(id);
        Posted storage posted = _posted[id];
        (uint64 last, uint64 next) = (posted.total, posted.epochs);
        if (epoch < next) revert EpochNotLater(epoch, next);
        uint256 matureAt = _maturity(pool, epoch);
        if (block.timestamp < matureAt) revert NotMature(epoch, matureAt);
        if (total < last) revert TotalFalls(total, last);
        uint256 more = total - last;
        uint256 most = (uint256(epoch) + 1 - next) * _terms[id].unitsPerEpoch;
        if (more > most) revert TooMuchForEpochs(more, most);
        if (more > pool.free()) revert EscrowTooSmall(more, pool.free());
        _posted[id] = Posted(root, total, epoch + 1, uint64(more), epoch + 1 - next);
        _counters[id] = pool.owe(more);
        emit EarningsPosted(id, epoch, root, total);
    }

    /// @notice Pays the node's provider what its line of the newest table says and was not paid yet; anybody may carry
    /// it. At most what the node's size allows for the epochs since it first joined that no pay has used up; the rest
    /// can be claimed later. What an evicted node would have got goes back to the pool, once nothing can undo that.
    function claim(uint256 id, address node, uint64 units, bytes32[] calldata proof) external nonReentrant {
        Counters pool = _pool(id);
        Member storage member = _members[id][node];
        if (member.joinedAt == 0) revert NotMember(id, node);
        if (proof.length > MAX_PROOF_LENGTH) revert BadProof();
        if (Statements.climb(Statements.leaf(node, units), proof) != _posted[id].root) revert BadProof();
        uint64 claimed = member.claimed;
        // a table whose lines are more than its total pays no more than that
        uint256 due = units > claimed ? units - claimed : 0;
        if (due > pool.owed()) due = pool.owed();
        if (due == 0) revert NothingToClaim(units, claimed);
        if (_isEvicted(member)) {
            _giveBack(id, pool, node, uint64(due));
        } else {
            _pay(id, pool, node, due);
        }
    }

    // ------------------------------------------------------------------ views

    /// @notice The newest table, of everything through epoch `epochs` - 1; no table yet if `epochs` is zero.
    function earningsOf(uint256 id) external view returns (Posted memory) {
        return _posted[id];
    }

    /// @notice Units of the node that were paid, or went back to the pool.
    function claimedOf(uint256 id, address node) external view returns (uint64) {
        return _members[id][node].claimed;
    }

    /// @notice How many units the node's size allows to be paid now, whatever it has earned.
    function allowanceOf(uint256 id, address node) external view returns (uint256) {
        Counters pool = _pool(id);
        return _epochsUnused(pool, _members[id][node]) * _capacity(id, pool, node);
    }

    // --------------------------------------------------------------- internal

    function _pay(uint256 id, Counters pool, address node, uint256 units) private {
        Member storage member = _members[id][node];
        uint256 epochs = _epochsUnused(pool, member);
        uint256 capacity = _capacity(id, pool, node);
        uint256 most = epochs * capacity;
        // slither-disable-next-line incorrect-equality -- a product of counts, no balance; nothing is divided below it
        if (most == 0) revert CapacityUsed(id, node, member.unusedFrom);
        if (units > most) units = most;
        // only as many epochs as this pay takes: whoever carries an early claim costs the node nothing
        member.unusedFrom += uint40((units + capacity - 1) / capacity);
        member.claimed += uint64(units);
        _counters[id] = pool.pay(units);
        address provider = _nodes[node].provider;
        uint256 amount = units * _terms[id].rewardPerUnit;
        emit Claimed(id, node, provider, uint64(units), amount);
        token.safeTransfer(provider, amount);
    }

    function _giveBack(uint256 id, Counters pool, address node, uint64 units) private {
        Member storage member = _members[id][node];
        // its own signatures leave nothing to appeal against
        if (member.convictedAt == 0 && !vault.isFinal(member.caseId)) revert CaseNotFinal(member.caseId);
        member.claimed += units;
        _counters[id] = pool.forgive(units);
        emit GivenBack(id, node, units);
    }

    function _epochsUnused(Counters pool, Member storage member) private view returns (uint256) {
        uint256 next = uint256(_epochAt(pool, block.timestamp)) + 1;
        return member.joinedAt != 0 && next > member.unusedFrom ? next - member.unusedFrom : 0;
    }
}
