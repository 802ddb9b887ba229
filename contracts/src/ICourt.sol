// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @notice What the Swarm asks of the Court.
interface ICourt {
    /// @notice Whether a pool by invitation takes the node: an invitation was shown for it, or it is a validator there.
    function admits(uint256 pool, address node) external view returns (bool);

    /// @notice Seats the first validators of a new pool.
    function seat(uint256 pool, address[] calldata validators, uint8 threshold) external;
}
