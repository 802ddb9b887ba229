// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Counters} from "./Counters.sol";
import {Members} from "./Members.sol";
import {Nodes} from "./Nodes.sol";
import {Pools} from "./Pools.sol";
import {StakeVault} from "./StakeVault.sol";

/// @title Swarm
/// @notice Who works for whom, in which pool, for what pay (Nodes, Pools, Members), and here: what a fault costs, which is
/// the pool's amount for each unit that the node answers for. Whether there was a fault is for the Court to find. Holds no
/// money: stakes are the vault's, pay is the Payroll's.
///
/// What judges say freezes a stake, which the vault's arbiter may have given back; what a key's own signatures prove is
/// final. Either way the node leaves the pool for ever and is paid nothing more. A key is slashed once per pool by
/// each of the two. Judges reach it until the last work that it can have done as a member is mature.
contract Swarm is Members {
    /// What the Payroll asks of a node.
    struct Payee {
        /// for life; zero if it was never registered
        address provider;
        /// when it joined for the first time; zero if it never did
        uint40 joinedAt;
        bool evicted;
        /// by its own signatures
        bool convicted;
        /// the vault's number of the slash by judges; zero without
        uint64 caseId;
        /// work units that it can be paid for in an epoch, by its size
        uint256 capacity;
        uint256 rewardPerUnit;
        Counters times;
    }

    event Slashed(
        uint256 indexed pool,
        address indexed node,
        address indexed provider,
        uint8 reason,
        uint256 amount,
        bytes32 fileRoot,
        uint256 caseId
    );
    event SlashOverturned(uint256 indexed pool, address indexed node, uint256 caseId, uint256 compensation);

    error NotSlashed(uint256 pool, address node);
    error OnlyArbiter(address caller);

    constructor(StakeVault vault_, uint256 baseStake_, uint256 stakePerUnit_, uint256 minWindow_)
        Nodes(vault_, baseStake_, stakePerUnit_)
        Pools(minWindow_)
    {}

    /// @notice The Court has judged a file: evicts the node, freezes the stake.
    /// @param carrier who brought it to the Court, and answers for it with a bond
    // slither-disable-next-line reentrancy-no-eth -- guarded: all that reads the case's number waits
    function punishByJudgement(uint256 id, address node, uint8 reason, bytes32 fileRoot, address carrier)
        external
        nonReentrant
    {
        _requireCourt();
        Member storage member = _members[id][node];
        if (member.slashedAt != 0) revert NodeEvicted(id, node);
        _requireReached(id, node);
        member.slashedAt = uint40(block.timestamp);
        _evict(id, node);
        (uint256 caseId, uint256 claimed) = vault.freeze(_nodes[node].provider, _priceOf(id, node), uint32(id), carrier);
        member.caseId = uint64(caseId);
        _tell(id, node, reason, claimed, fileRoot, caseId);
    }

    /// @notice The Court has seen a proof that needs no judges: the same, and the stake is gone at once.
    function punishByEvidence(uint256 id, address node, uint8 reason, bytes32 fileRoot) external nonReentrant {
        _requireCourt();
        address provider = _nodes[node].provider;
        if (provider == address(0)) revert NodeUnknown(node);
        Member storage member = _members[id][node];
        if (member.convictedAt != 0) revert NodeEvicted(id, node);
        member.convictedAt = uint40(block.timestamp);
        _evict(id, node);
        _tell(id, node, reason, vault.slash(provider, _priceOf(id, node)), fileRoot, 0);
    }

    /// @notice The vault's arbiter undoes a slash by judgement before it is final: the stake goes back, the node may
    /// join again and be paid, and its provider gets the bond of whoever carried the slash.
    function overturn(uint256 id, address node) external nonReentrant {
        if (msg.sender != vault.arbiter()) revert OnlyArbiter(msg.sender);
        Member storage member = _members[id][node];
        uint256 caseId = member.caseId;
        if (caseId == 0) revert NotSlashed(id, node);
        member.slashedAt = 0;
        member.caseId = 0;
        emit SlashOverturned(id, node, caseId, vault.overturn(caseId));
    }

    function payeeOf(uint256 id, address node) external view returns (Payee memory payee) {
        Member storage member = _members[id][node];
        payee.times = _pool(id);
        payee.provider = _nodes[node].provider;
        payee.joinedAt = member.joinedAt;
        payee.evicted = _isEvicted(member);
        payee.convicted = member.convictedAt != 0;
        payee.caseId = member.caseId;
        payee.capacity = _capacity(id, payee.times, node);
        payee.rewardPerUnit = _terms[id].rewardPerUnit;
    }

    /// Nothing for a node that was released: what is bonded now stands behind others. Judges come no later than that,
    /// because no pool's epoch and window are longer than the unbonding.
    function _priceOf(uint256 id, address node) private view returns (uint256) {
        return uint256(_terms[id].slashAmount) * _nodes[node].units;
    }

    function _tell(uint256 id, address node, uint8 reason, uint256 amount, bytes32 fileRoot, uint256 caseId) private {
        emit Slashed(id, node, _nodes[node].provider, reason, amount, fileRoot, caseId);
    }

    function _requireReached(uint256 id, address node) private view {
        Counters pool = _pool(id);
        if (block.timestamp >= _overAt(id, pool)) revert PoolOver(id);
        uint256 until = _memberUntil(id, node);
        bool reached = until != 0 && block.timestamp < pool.maturity(pool.epochAt(until));
        if (!reached) revert NotMember(id, node);
    }

    /// Ends the membership, if it is of this pool, without a word: `Slashed` says it.
    function _evict(uint256 id, address node) private {
        // slither-disable-next-line incorrect-equality -- a number of a pool, not an amount
        if (_nodes[node].pool == id) _depart(id, node);
    }
}
