// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @notice What the Swarm asks of the Court.
interface ICourt {
    /// @notice How big validators found the node to be; zero if nobody says so any more.
    function attestedUnits(uint256 pool, address node) external view returns (uint256);

    /// @notice The same, however long ago they said it.
    function lastAttested(uint256 pool, address node) external view returns (uint256);

    /// @notice Whether a pool by invitation takes the node: an invitation was shown for it, or it is a validator there.
    function admits(uint256 pool, address node) external view returns (bool);

    /// @notice Seats the first validators of a new pool.
    function seat(uint256 pool, address[] calldata validators, uint8 threshold) external;
}
