// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";

/// @title StakeVault
/// @notice Custody of stakes, and nothing else. A stake is bonded, then unbonding for a fixed period, then withdrawn;
/// until it is withdrawn the Swarm may slash it. Nothing here can be paused and no one can move another's stake
/// except by `slash`, which splits it between the reporter (a share fixed for ever) and the treasury.
contract StakeVault {
    using SafeERC20 for IERC20;

    struct Stake {
        uint128 bonded;
        uint128 unbonding;
        uint64 withdrawableAt;
    }

    /// @notice The reporter never gets more than this share: a judge must not live off the judged.
    uint16 public constant MAX_REPORTER_BPS = 2_000;
    uint16 private constant BPS = 10_000;

    IERC20 public immutable token;
    /// @notice Seconds between `unbond` and `withdraw`.
    uint64 public immutable unbondingPeriod;
    /// @notice Receives what a slash leaves after the reporter's share.
    address public immutable treasury;
    /// @notice The reporter's share of a slash, in 1/10,000.
    uint16 public immutable reporterBps;
    address private immutable deployer;

    /// @notice The one contract that may slash; zero until set.
    address public swarm;

    mapping(address provider => Stake) private _stakes;

    event SwarmSet(address indexed swarm);
    event Bonded(address indexed provider, address indexed payer, uint256 amount, uint256 bonded);
    event Unbonding(address indexed provider, uint256 amount, uint256 unbonding, uint64 withdrawableAt);
    event Rebonded(address indexed provider, uint256 amount, uint256 bonded);
    event Withdrawn(address indexed provider, uint256 amount);
    event StakeSlashed(address indexed provider, address indexed reporter, uint256 amount, uint256 reporterShare);

    error ZeroAddress();
    error ZeroAmount();
    error ReporterShareTooHigh(uint16 bps, uint16 cap);
    error OnlyDeployer(address caller);
    error OnlySwarm(address caller);
    error SwarmAlreadySet(address swarm);
    error StakeTooSmall(uint256 available, uint256 wanted);
    error NothingToWithdraw();
    error StillUnbonding(uint64 withdrawableAt);
    error AmountTooLarge(uint256 amount);

    constructor(IERC20 token_, uint64 unbondingPeriod_, address treasury_, uint16 reporterBps_) {
        if (address(token_) == address(0) || treasury_ == address(0)) revert ZeroAddress();
        if (reporterBps_ > MAX_REPORTER_BPS) revert ReporterShareTooHigh(reporterBps_, MAX_REPORTER_BPS);
        if (unbondingPeriod_ == 0) revert ZeroAmount();
        token = token_;
        unbondingPeriod = unbondingPeriod_;
        treasury = treasury_;
        reporterBps = reporterBps_;
        deployer = msg.sender;
    }

    /// @notice Names the contract that may slash. Once, by the deployer.
    function setSwarm(address swarm_) external {
        if (msg.sender != deployer) revert OnlyDeployer(msg.sender);
        if (swarm != address(0)) revert SwarmAlreadySet(swarm);
        if (swarm_ == address(0)) revert ZeroAddress();
        swarm = swarm_;
        emit SwarmSet(swarm_);
    }

    /// @notice Adds `amount` of the caller's tokens to the stake of `provider`.
    function bond(address provider, uint256 amount) external {
        if (provider == address(0)) revert ZeroAddress();
        if (amount == 0) revert ZeroAmount();
        Stake storage stake = _stakes[provider];
        stake.bonded += _narrow(amount);
        emit Bonded(provider, msg.sender, amount, stake.bonded);
        token.safeTransferFrom(msg.sender, address(this), amount);
    }

    /// @notice Starts to take `amount` out. All that is unbonding shares one clock, which starts again here.
    function unbond(uint256 amount) external {
        if (amount == 0) revert ZeroAmount();
        Stake storage stake = _stakes[msg.sender];
        if (amount > stake.bonded) revert StakeTooSmall(stake.bonded, amount);
        uint128 part = _narrow(amount);
        stake.bonded -= part;
        stake.unbonding += part;
        stake.withdrawableAt = uint64(block.timestamp) + unbondingPeriod;
        emit Unbonding(msg.sender, amount, stake.unbonding, stake.withdrawableAt);
    }

    /// @notice Bonds again whatever the caller has unbonding.
    function rebond() external {
        Stake storage stake = _stakes[msg.sender];
        uint128 amount = stake.unbonding;
        if (amount == 0) revert ZeroAmount();
        stake.unbonding = 0;
        stake.bonded += amount;
        emit Rebonded(msg.sender, amount, stake.bonded);
    }

    /// @notice Pays out what the caller has unbonding, once its period is over.
    function withdraw() external {
        Stake storage stake = _stakes[msg.sender];
        uint128 amount = stake.unbonding;
        if (amount == 0) revert NothingToWithdraw();
        if (block.timestamp < stake.withdrawableAt) revert StillUnbonding(stake.withdrawableAt);
        stake.unbonding = 0;
        emit Withdrawn(msg.sender, amount);
        token.safeTransfer(msg.sender, amount);
    }

    /// @notice Takes up to `amount` of the stake, what is unbonding first: who is on the way out pays before the
    /// bond that the provider's other nodes stand on.
    /// @return taken what was there to take
    function slash(address provider, uint256 amount, address reporter) external returns (uint256 taken) {
        if (msg.sender != swarm) revert OnlySwarm(msg.sender);
        Stake storage stake = _stakes[provider];
        uint256 fromUnbonding = amount < stake.unbonding ? amount : stake.unbonding;
        uint256 rest = amount - fromUnbonding;
        uint256 fromBonded = rest < stake.bonded ? rest : stake.bonded;
        stake.unbonding -= uint128(fromUnbonding);
        stake.bonded -= uint128(fromBonded);
        taken = fromUnbonding + fromBonded;
        uint256 share = (taken * reporterBps) / BPS;
        emit StakeSlashed(provider, reporter, taken, share);
        if (share > 0) token.safeTransfer(reporter, share);
        if (taken > share) token.safeTransfer(treasury, taken - share);
    }

    /// @notice The whole record of one provider.
    function stakeOf(address provider) external view returns (Stake memory) {
        return _stakes[provider];
    }

    /// @notice What counts as stake when a node registers, joins or commits: bonded, not unbonding.
    function bondedOf(address provider) external view returns (uint256) {
        return _stakes[provider].bonded;
    }

    function _narrow(uint256 amount) private pure returns (uint128) {
        if (amount > type(uint128).max) revert AmountTooLarge(amount);
        return uint128(amount);
    }
}
