// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {ReentrancyGuard} from "@openzeppelin/contracts/utils/ReentrancyGuard.sol";
import {ATTESTED, Counters, ENDED, INVITED, JOINED, PAUSED, SWEPT, newCounters} from "./Counters.sol";
import {ICourt} from "./ICourt.sol";
import {Nodes} from "./Nodes.sol";

/// @title Pools
/// @notice A pool: one run, its terms, its money and its judges. Terms of pay and punishment are fixed for ever when it
/// is opened; the manager can only name the run before anybody joins, tell bootnodes, pause and end it, and propose other
/// validators to the Court.
///
/// Money is counted in work units: a unit is worth `rewardPerUnit` as long as the pool lives. Epoch e begins at
/// startedAt + e * epochSeconds and matures `window` seconds after its end.
abstract contract Pools is Nodes, ReentrancyGuard {
    using SafeERC20 for IERC20;

    struct PoolParams {
        /// BLAKE3 root of the run file; may be zero and set later by the manager
        bytes32 runRoot;
        /// where the run file may be had besides the swarm
        string runURI;
        /// hash of what a node must have to take part
        bytes32 requirementRoot;
        /// multiaddrs, one a line
        string bootnodes;
        address manager;
        /// token wei per work unit
        uint96 rewardPerUnit;
        /// seconds after an epoch's end before anybody is paid for it
        uint32 window;
        uint32 epochSeconds;
        /// seconds that a membership lasts without `join`
        uint32 leaseSeconds;
        /// work units that a node can be paid for in one epoch, per unit of its size
        uint32 maxUnitsPerEpoch;
        /// work units that all nodes together can be paid for, per epoch
        uint64 unitsPerEpoch;
        /// token wei that a fault costs, per unit of the node
        uint96 slashAmount;
        /// whether a node needs the manager's invitation
        bool invited;
        /// whether only those units of a node count that validators have attested
        bool attested;
        /// nodes whose verdicts count
        address[] validators;
        uint8 threshold;
    }

    struct Terms {
        address manager;
        uint96 rewardPerUnit;
        uint96 slashAmount;
        uint64 unitsPerEpoch;
        /// since when it is paused or over; zero while it runs
        uint40 stoppedAt;
        /// who opened it: what is left comes back here
        address opener;
        bytes32 runRoot;
        bytes32 requirementRoot;
        string runURI;
        string bootnodes;
    }

    uint256 private constant MAX_URI_BYTES = 256;
    uint256 private constant MAX_BOOTNODES_BYTES = 1024;

    /// @notice No pool's window is shorter: so long everybody has to look before anything is paid.
    uint256 public immutable minWindow;
    address private immutable _deployer;
    /// @notice The one contract whose word says what was earned and takes stakes; zero until set.
    ICourt public court;
    /// @notice The number of pools; ids start at 1.
    uint256 public poolCount;

    mapping(uint256 pool => Counters) internal _counters;
    mapping(uint256 pool => Terms) internal _terms;

    event PoolCreated(uint256 indexed pool, address indexed manager, bytes32 runRoot, string runURI);
    event PoolFunded(uint256 indexed pool, address indexed payer, uint256 amount, uint256 escrow);
    event PoolRunSet(uint256 indexed pool, bytes32 runRoot);
    event BootnodesSet(uint256 indexed pool, string bootnodes);
    event PoolPaused(uint256 indexed pool);
    event PoolResumed(uint256 indexed pool);
    event PoolEnded(uint256 indexed pool);
    event PoolSwept(uint256 indexed pool, address indexed opener, uint256 amount);
    event CourtSet(address indexed court);

    error ZeroAddress();
    error ZeroAmount();
    error TokenTakesFee(uint256 sent, uint256 received);
    error PoolUnknown(uint256 pool);
    error PoolOver(uint256 pool);
    error PoolIsPaused(uint256 pool);
    error PoolNotPaused(uint256 pool);
    error PoolStillOpen(uint256 pool, uint256 until);
    error OnlyManager(address caller);
    error RunAlreadyJoined(uint256 pool);
    error PoolWithoutPay(uint256 pool);
    error TextTooLong(uint256 length, uint256 max);
    error BadTimes(uint256 window, uint256 epochSeconds, uint256 leaseSeconds);
    error WindowTooShort(uint256 window, uint256 min);
    error WindowExceedsUnbonding(uint256 needed, uint256 unbondingPeriod);
    error SlashTooHigh(uint256 amount, uint256 max);
    error OnlyDeployer(address caller);
    error OnlyCourt(address caller);
    error CourtAlreadySet(address court);

    constructor(uint256 minWindow_) {
        minWindow = minWindow_;
        _deployer = msg.sender;
    }

    modifier onlyManager(uint256 id) {
        _requireManager(id);
        _;
    }

    modifier onlyCourt() {
        _requireCourt();
        _;
    }

    /// @notice Names the Court. Once, by the deployer.
    function setCourt(ICourt court_) external {
        if (msg.sender != _deployer) revert OnlyDeployer(msg.sender);
        if (address(court) != address(0)) revert CourtAlreadySet(address(court));
        if (address(court_) == address(0)) revert ZeroAddress();
        court = court_;
        emit CourtSet(address(court_));
    }

    // ------------------------------------------------------- opening, funding

    /// @notice Opens a pool; epoch 0 starts now.
    function createPool(PoolParams calldata params) external returns (uint256 id) {
        _checkParams(params);
        id = ++poolCount;
        _counters[id] = newCounters(
            uint32(block.timestamp),
            params.epochSeconds,
            params.window,
            params.leaseSeconds,
            params.maxUnitsPerEpoch,
            (params.invited ? INVITED : 0) | (params.attested ? ATTESTED : 0)
        );
        Terms storage terms = _terms[id];
        terms.manager = params.manager;
        terms.opener = msg.sender;
        terms.rewardPerUnit = params.rewardPerUnit;
        terms.slashAmount = params.slashAmount;
        terms.unitsPerEpoch = params.unitsPerEpoch;
        terms.runRoot = params.runRoot;
        terms.requirementRoot = params.requirementRoot;
        terms.runURI = params.runURI;
        terms.bootnodes = params.bootnodes;
        emit PoolCreated(id, params.manager, params.runRoot, params.runURI);
        court.seat(id, params.validators, params.threshold);
    }

    /// @notice Adds the caller's tokens to the pool's escrow: the most whole units that `amount` pays for.
    function fundPool(uint256 id, uint256 amount) external nonReentrant {
        Counters pool = _openPool(id);
        uint256 rate = _terms[id].rewardPerUnit;
        if (rate == 0) revert PoolWithoutPay(id);
        // slither-disable-next-line divide-before-multiply -- whole units are what is meant
        uint256 units = amount / rate;
        if (units == 0) revert ZeroAmount();
        pool = pool.fund(units);
        _counters[id] = pool;
        emit PoolFunded(id, msg.sender, units * rate, pool.free() * rate);
        _pull(units * rate);
    }

    // ------------------------------------------------------- manager's rights

    /// @notice Names the run; only before the first node has joined: nobody's run is changed under it.
    function setPoolRun(uint256 id, bytes32 runRoot) external onlyManager(id) {
        if (_openPool(id).has(JOINED)) revert RunAlreadyJoined(id);
        _terms[id].runRoot = runRoot;
        emit PoolRunSet(id, runRoot);
    }

    /// @notice Tells where newcomers find the swarm: multiaddrs, one a line.
    function setBootnodes(uint256 id, string calldata bootnodes) external onlyManager(id) {
        _openPool(id);
        _requireShort(bootnodes, MAX_BOOTNODES_BYTES);
        _terms[id].bootnodes = bootnodes;
        emit BootnodesSet(id, bootnodes);
    }

    /// @notice Stops joins. Never stops pay, verdicts or withdrawals.
    function pausePool(uint256 id) external onlyManager(id) {
        Counters pool = _openPool(id);
        if (pool.has(PAUSED)) revert PoolIsPaused(id);
        _counters[id] = pool.with(PAUSED);
        _terms[id].stoppedAt = uint40(block.timestamp);
        emit PoolPaused(id);
    }

    function resumePool(uint256 id) external onlyManager(id) {
        Counters pool = _openPool(id);
        if (!pool.has(PAUSED)) revert PoolNotPaused(id);
        _counters[id] = pool.without(PAUSED);
        _terms[id].stoppedAt = 0;
        emit PoolResumed(id);
    }

    /// @notice Closes the pool for ever: nobody joins; what was done is paid. Whoever
    /// opened it may do so, too, if its manager's key is lost or in wrong hands.
    function endPool(uint256 id) external {
        if (msg.sender != _terms[id].opener) _requireManager(id);
        Counters pool = _openPool(id);
        if (!pool.has(PAUSED)) _terms[id].stoppedAt = uint40(block.timestamp);
        _counters[id] = pool.with(ENDED);
        emit PoolEnded(id);
    }

    /// @notice Pays whoever opened the pool what no table has promised, a window after its last epoch is mature: so long
    /// a last table may still come. What is owed stays; what goes back to the pool later can be swept later. Not the
    /// manager: its key signs policies on a machine of the swarm.
    function sweep(uint256 id) external nonReentrant {
        Counters pool = _pool(id);
        uint256 until = _overAt(id, pool);
        if (until != type(uint256).max) until += pool.window();
        if (block.timestamp < until) revert PoolStillOpen(id, until);
        Terms storage terms = _terms[id];
        uint256 amount = pool.free() * terms.rewardPerUnit;
        if (amount == 0) revert ZeroAmount();
        _counters[id] = pool.emptied().with(SWEPT);
        address opener = terms.opener;
        emit PoolSwept(id, opener, amount);
        token.safeTransfer(opener, amount);
    }

    // ------------------------------------------------------------------ views

    /// @notice Who may propose validators, and how long they must wait; reverts for a pool that is over.
    function managerOf(uint256 id) external view returns (address manager, uint256 window) {
        return (_terms[id].manager, _openPool(id).window());
    }

    /// @notice What was agreed, and what is read and written most: `Counters` says where in the word each part stands.
    function poolInfo(uint256 id) external view returns (Terms memory, Counters) {
        return (_terms[id], _pool(id));
    }

    // --------------------------------------------------------------- internal

    function _requireManager(uint256 id) private view {
        if (msg.sender != _terms[id].manager) revert OnlyManager(msg.sender);
    }

    function _requireCourt() private view {
        if (msg.sender != address(court)) revert OnlyCourt(msg.sender);
    }

    function _pool(uint256 id) internal view returns (Counters pool) {
        pool = _counters[id];
        if (Counters.unwrap(pool) == 0) revert PoolUnknown(id);
    }

    function _openPool(uint256 id) internal view returns (Counters pool) {
        pool = _pool(id);
        if (pool.has(ENDED)) revert PoolOver(id);
    }

    /// The second in which the last epoch before the end is mature; never for a pool that was not ended.
    function _overAt(uint256 id, Counters pool) internal view returns (uint256) {
        if (!pool.has(ENDED)) return type(uint256).max;
        return _maturity(pool, _epochAt(pool, _terms[id].stoppedAt));
    }

    function _epochAt(Counters pool, uint256 timestamp) internal pure returns (uint64) {
        return uint64((timestamp - pool.startedAt()) / pool.epochSeconds());
    }

    function _epochStart(Counters pool, uint64 epoch) internal pure returns (uint256) {
        return pool.startedAt() + epoch * pool.epochSeconds();
    }

    function _maturity(Counters pool, uint64 epoch) internal pure returns (uint256) {
        return _epochStart(pool, epoch) + pool.epochSeconds() + pool.window();
    }

    function _requireShort(string calldata text, uint256 max) internal pure {
        if (bytes(text).length > max) revert TextTooLong(bytes(text).length, max);
    }

    /// Takes tokens from the caller; refuses a token that delivers less than it takes.
    function _pull(uint256 amount) private {
        uint256 before = token.balanceOf(address(this));
        token.safeTransferFrom(msg.sender, address(this), amount);
        uint256 received = token.balanceOf(address(this)) - before;
        if (received != amount) revert TokenTakesFee(amount, received);
    }

    function _checkParams(PoolParams calldata params) private view {
        if (params.manager == address(0)) revert ZeroAddress();
        if (params.maxUnitsPerEpoch == 0 || params.unitsPerEpoch == 0) revert ZeroAmount();
        _requireShort(params.runURI, MAX_URI_BYTES);
        _requireShort(params.bootnodes, MAX_BOOTNODES_BYTES);
        // no slash takes more than the node's own registration bonds: two nodes never lean on one stake
        if (params.slashAmount > stakePerUnit) revert SlashTooHigh(params.slashAmount, stakePerUnit);
        _checkTimes(params.window, params.epochSeconds, params.leaseSeconds);
    }

    function _checkTimes(uint256 window, uint256 epochSeconds, uint256 leaseSeconds) private view {
        if (window < minWindow) revert WindowTooShort(window, minWindow);
        bool bad = epochSeconds == 0 || window == 0 || leaseSeconds < epochSeconds;
        if (bad || (window | epochSeconds | leaseSeconds) > type(uint24).max) {
            revert BadTimes(window, epochSeconds, leaseSeconds);
        }
        // a stake that starts to leave when an epoch starts must outlast that epoch's window
        uint256 needed = window + epochSeconds;
        uint256 unbonding = vault.unbondingPeriod();
        if (needed > unbonding) revert WindowExceedsUnbonding(needed, unbonding);
    }
}
