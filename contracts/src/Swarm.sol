// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {Counters} from "./Counters.sol";
import {Nodes} from "./Nodes.sol";
import {Pools} from "./Pools.sol";
import {StakeVault} from "./StakeVault.sol";
import {Work} from "./Work.sol";

/// @title Swarm
/// @notice Who works for whom, in which pool, for what pay (Nodes, Pools, Members, Work), and here: what a fault costs.
/// Whether there was a fault is for the Court to find; the Swarm moves the money.
///
/// What judges say freezes a stake, which the vault's arbiter may have given back; what a key's own signatures prove is
/// final. Either way the node leaves the pool for ever and its unmatured pay is void. A key is slashed once per pool by
/// each of the two. Judges reach it until the last work that it can have done as a member is mature.
contract Swarm is Work {
    using SafeERC20 for IERC20;

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

    constructor(StakeVault vault_, uint256 baseStake_, uint256 stakePerUnit_, uint96 poolBond_)
        Nodes(vault_, baseStake_, stakePerUnit_)
        Pools(poolBond_)
    {}

    /// @notice The Court has judged a file: evicts the node, voids what is not mature, freezes the stake. A pool that
    /// could not pay a bond for a wrong slash does not slash.
    // slither-disable-next-line reentrancy-no-eth -- guarded, and the vault calls nobody while it freezes
    function punishByJudgement(uint256 id, address node, uint8 reason, bytes32 fileRoot)
        external
        onlyCourt
        nonReentrant
    {
        Member storage member = _members[id][node];
        if (member.slashedAt != 0) revert NodeEvicted(id, node);
        _requireReached(id, node);
        member.slashedAt = uint40(block.timestamp);
        _evict(id, node);
        _pledge(id);
        address provider = _nodes[node].provider;
        (uint256 caseId, uint256 claimed) = vault.freeze(provider, _terms[id].slashAmount, uint32(id));
        member.caseId = uint64(caseId);
        emit Slashed(id, node, provider, reason, claimed, fileRoot, caseId);
    }

    /// @notice The Court has seen a proof that needs no judges: the same, and the stake is gone at once.
    function punishByEvidence(uint256 id, address node, uint8 reason, bytes32 fileRoot)
        external
        onlyCourt
        nonReentrant
    {
        address provider = _nodes[node].provider;
        if (provider == address(0)) revert NodeUnknown(node);
        Member storage member = _members[id][node];
        if (member.convictedAt != 0) revert NodeEvicted(id, node);
        member.convictedAt = uint40(block.timestamp);
        _evict(id, node);
        uint256 taken = vault.slash(provider, _terms[id].slashAmount);
        emit Slashed(id, node, provider, reason, taken, fileRoot, 0);
    }

    /// @notice The vault's arbiter undoes a slash by judgement before it is final: the stake goes back, the node may
    /// join again, its work is due again, and the pool whose judges were wrong pays a bond to the provider.
    function overturn(uint256 id, address node) external nonReentrant {
        if (msg.sender != vault.arbiter()) revert OnlyArbiter(msg.sender);
        Member storage member = _members[id][node];
        uint256 caseId = member.caseId;
        if (caseId == 0) revert NotSlashed(id, node);
        member.slashedAt = 0;
        member.caseId = 0;
        Terms storage terms = _terms[id];
        --terms.openCases;
        terms.bond -= poolBond;
        emit SlashOverturned(id, node, caseId, poolBond);
        address provider = vault.overturn(caseId);
        if (poolBond > 0) token.safeTransfer(provider, poolBond);
    }

    function _requireReached(uint256 id, address node) private view {
        Counters pool = _pool(id);
        if (block.timestamp >= _overAt(id, pool)) revert PoolOver(id);
        uint256 until = _memberUntil(id, node);
        bool reached = until != 0 && block.timestamp < _maturity(pool, _epochAt(pool, until));
        if (!reached) revert NotMember(id, node);
    }

    /// Ends the membership, if it is of this pool, without a word: `Slashed` says it.
    function _evict(uint256 id, address node) private {
        // slither-disable-next-line incorrect-equality -- a number of a pool, not an amount
        if (_nodes[node].pool == id) _depart(id, node);
    }
}
