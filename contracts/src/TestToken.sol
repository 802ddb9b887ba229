// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";

/// @title TestToken
/// @notice Worthless tokens for devnets and test networks: anybody may mint some.
contract TestToken is ERC20 {
    /// @notice The most that one call of `mint` creates.
    uint256 public constant FAUCET_CAP = 1_000_000 ether;

    /// @notice `amount` is above FAUCET_CAP.
    error FaucetCapExceeded(uint256 amount, uint256 cap);

    constructor() ERC20("intellect-node test token", "INT") {}

    /// @notice Creates `amount` tokens for `to`.
    function mint(address to, uint256 amount) external {
        if (amount > FAUCET_CAP) revert FaucetCapExceeded(amount, FAUCET_CAP);
        _mint(to, amount);
    }
}
