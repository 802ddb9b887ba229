// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @notice What the vault asks the Swarm, and tells it.
interface ISwarm {
    /// @notice How much a provider must leave bonded.
    function requiredStake(address provider) external view returns (uint256);

    /// @notice A case of this pool is final: nobody can be owed anything for it any more.
    function caseFinal(uint256 pool) external;
}
