// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @notice What the Swarm asks of the Court: to seat the first validators of a new pool.
interface ICourt {
    function seat(uint256 pool, address[] calldata validators, uint8 threshold) external;
}
