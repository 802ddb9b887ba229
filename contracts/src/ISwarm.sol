// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @notice What the vault asks the Swarm, and tells it.
interface ISwarm {
    /// @notice How much a provider must leave bonded.
    function requiredStake(address provider) external view returns (uint256);
}
