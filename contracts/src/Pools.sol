// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ReentrancyGuard} from "@openzeppelin/contracts/utils/ReentrancyGuard.sol";
import {ATTESTED, Counters, ENDED, INVITED, JOINED, PAUSED, newCounters} from "./Counters.sol";
import {Nodes} from "./Nodes.sol";

/// @notice What the Swarm asks of the Court.
interface ICourt {
    /// @notice Whether a pool by invitation takes the node: an invitation was shown for it, or it is a validator there.
    function admits(uint256 pool, address node) external view returns (bool);

    /// @notice Seats the first validators of a new pool.
    function seat(uint256 pool, address[] calldata validators, uint8 threshold) external;
}

/// @title Pools
/// @notice A pool: one run, its terms and its judges. Terms of pay and punishment are fixed for ever when it is opened;
/// the manager, a hot key, can only name the run before anybody joins, tell bootnodes, pause it and invite. Who opened it,
/// a cold one, ends it, and proposes other validators to the Court and trainers to the Chair. Its money is the Payroll's.
abstract contract Pools is Nodes, ReentrancyGuard {
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
        /// who may hold a table that waits; the opener if nobody
        address guardian;
        /// seconds after an epoch's end before a table may have it
        uint32 window;
        /// seconds that a table waits before it counts; a quarter to all of the window
        uint32 delay;
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
        uint24 delay;
        /// who opened it: what is left comes back here
        address opener;
        address guardian;
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
    /// @notice The one contract that has the money of pools; zero until set.
    address public payroll;
    /// @notice The number of pools; ids start at 1.
    uint256 public poolCount;

    mapping(uint256 pool => Counters) internal _counters;
    mapping(uint256 pool => Terms) internal _terms;

    event PoolCreated(uint256 indexed pool, address indexed manager, address indexed opener, PoolParams params);
    event PoolRunSet(uint256 indexed pool, bytes32 runRoot);
    event BootnodesSet(uint256 indexed pool, string bootnodes);
    event PoolPaused(uint256 indexed pool);
    event PoolResumed(uint256 indexed pool);
    event PoolEnded(uint256 indexed pool);
    event CourtSet(address indexed court, address indexed payroll);

    error ZeroAddress();
    error ZeroAmount();
    error PoolUnknown(uint256 pool);
    error PoolOver(uint256 pool);
    error PoolIsPaused(uint256 pool);
    error PoolNotPaused(uint256 pool);
    error OnlyManager(address caller);
    error OnlyOpener(address caller);
    error RunAlreadyJoined(uint256 pool);
    error TextTooLong(uint256 length, uint256 max);
    error BadTimes(uint256 window, uint256 epochSeconds, uint256 leaseSeconds);
    error WindowTooShort(uint256 window, uint256 min);
    error BadDelay(uint256 delay, uint256 window);
    error WindowExceedsUnbonding(uint256 needed, uint256 unbondingPeriod);
    error SlashTooHigh(uint256 amount, uint256 max);
    error OnlyDeployer(address caller);
    error OnlyCourt(address caller);
    error CourtAlreadySet(address court);

    constructor(uint256 minWindow_) {
        minWindow = minWindow_;
        _deployer = msg.sender;
    }

    /// @notice Names the Court and the Payroll. Once, by the deployer.
    function setCourt(ICourt court_, address payroll_) external {
        if (msg.sender != _deployer) revert OnlyDeployer(msg.sender);
        if (address(court) != address(0)) revert CourtAlreadySet(address(court));
        if (address(court_) == address(0) || payroll_ == address(0)) revert ZeroAddress();
        (court, payroll) = (court_, payroll_);
        emit CourtSet(address(court_), payroll_);
    }

    // ---------------------------------------------------------------- opening

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
        terms.guardian = params.guardian == address(0) ? msg.sender : params.guardian;
        terms.delay = uint24(params.delay);
        terms.rewardPerUnit = params.rewardPerUnit;
        terms.slashAmount = params.slashAmount;
        terms.unitsPerEpoch = params.unitsPerEpoch;
        terms.runRoot = params.runRoot;
        terms.requirementRoot = params.requirementRoot;
        terms.runURI = params.runURI;
        terms.bootnodes = params.bootnodes;
        emit PoolCreated(id, params.manager, msg.sender, params);
        court.seat(id, params.validators, params.threshold);
    }

    // ------------------------------------------------------- manager's rights

    /// @notice Names the run; only before the first node has joined: nobody's run is changed under it.
    function setPoolRun(uint256 id, bytes32 runRoot) external {
        if (_managed(id).has(JOINED)) revert RunAlreadyJoined(id);
        _terms[id].runRoot = runRoot;
        emit PoolRunSet(id, runRoot);
    }

    /// @notice Tells where newcomers find the swarm: multiaddrs, one a line.
    function setBootnodes(uint256 id, string calldata bootnodes) external {
        _managed(id);
        _requireShort(bootnodes, MAX_BOOTNODES_BYTES);
        _terms[id].bootnodes = bootnodes;
        emit BootnodesSet(id, bootnodes);
    }

    /// @notice Stops joins. Never stops pay, verdicts or withdrawals.
    function pausePool(uint256 id) external {
        Counters pool = _managed(id);
        if (pool.has(PAUSED)) revert PoolIsPaused(id);
        _counters[id] = pool.with(PAUSED);
        _terms[id].stoppedAt = uint40(block.timestamp);
        emit PoolPaused(id);
    }

    function resumePool(uint256 id) external {
        Counters pool = _managed(id);
        if (!pool.has(PAUSED)) revert PoolNotPaused(id);
        _counters[id] = pool.without(PAUSED);
        _terms[id].stoppedAt = 0;
        emit PoolResumed(id);
    }

    /// @notice Closes the pool for ever: nobody joins; what was done is paid.
    function endPool(uint256 id) external {
        if (msg.sender != _terms[id].opener) revert OnlyOpener(msg.sender);
        Counters pool = _openPool(id);
        // also where it was paused before: whoever was a member still has worked since
        _terms[id].stoppedAt = uint40(block.timestamp);
        _counters[id] = pool.with(ENDED);
        emit PoolEnded(id);
    }

    // ------------------------------------------------------------------ views

    /// @notice Who manages it; reverts for a pool that is over.
    function managerOf(uint256 id) external view returns (address) {
        _openPool(id);
        return _terms[id].manager;
    }

    /// @notice Who may propose validators and trainers, and how long these must wait; reverts for a pool that is over.
    function openerOf(uint256 id) external view returns (address opener, uint256 window) {
        return (_terms[id].opener, _openPool(id).window());
    }

    /// @notice What was agreed, and what is read and written most: `Counters` says where in the word each part stands.
    function poolInfo(uint256 id) external view returns (Terms memory, Counters) {
        return (_terms[id], _pool(id));
    }

    /// @notice When its epochs are, what tables may say of each, since when it is over, and how long a table waits.
    function tableTerms(uint256 id)
        external
        view
        returns (Counters times, uint256 unitsPerEpoch, uint256 stoppedAt, uint256 delay)
    {
        Terms storage terms = _terms[id];
        return (_pool(id), terms.unitsPerEpoch, terms.stoppedAt, terms.delay);
    }

    /// @notice What a unit is worth, and to whom what is left goes.
    function moneyOf(uint256 id) external view returns (Counters times, uint256 rewardPerUnit, address opener) {
        Terms storage terms = _terms[id];
        return (_pool(id), terms.rewardPerUnit, terms.opener);
    }

    /// @notice Who may hold a table.
    function guardianOf(uint256 id) external view returns (address) {
        return _terms[id].guardian;
    }

    // --------------------------------------------------------------- internal

    /// A pool that is open, for its manager.
    function _managed(uint256 id) private view returns (Counters) {
        if (msg.sender != _terms[id].manager) revert OnlyManager(msg.sender);
        return _openPool(id);
    }

    function _requireCourt() internal view {
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
        return pool.maturity(pool.epochAt(_terms[id].stoppedAt));
    }

    function _requireShort(string calldata text, uint256 max) internal pure {
        if (bytes(text).length > max) revert TextTooLong(bytes(text).length, max);
    }

    function _checkParams(PoolParams calldata params) private view {
        if (params.manager == address(0)) revert ZeroAddress();
        if (params.maxUnitsPerEpoch == 0 || params.unitsPerEpoch == 0) revert ZeroAmount();
        _requireShort(params.runURI, MAX_URI_BYTES);
        _requireShort(params.bootnodes, MAX_BOOTNODES_BYTES);
        // no slash takes more than the node's own registration bonds: two nodes never lean on one stake
        if (params.slashAmount > stakePerUnit) revert SlashTooHigh(params.slashAmount, stakePerUnit);
        _checkTimes(params);
    }

    function _checkTimes(PoolParams calldata params) private view {
        (uint256 window, uint256 epochSeconds, uint256 leaseSeconds) =
            (params.window, params.epochSeconds, params.leaseSeconds);
        if (window < minWindow) revert WindowTooShort(window, minWindow);
        bool bad = epochSeconds == 0 || window == 0 || leaseSeconds < epochSeconds;
        if (bad || (window | epochSeconds | leaseSeconds) > type(uint24).max) {
            revert BadTimes(window, epochSeconds, leaseSeconds);
        }
        uint256 delay = params.delay;
        if (delay * 4 < window || delay > window) revert BadDelay(delay, window);
        // a stake that starts to leave when an epoch starts must outlast that epoch's window, and one whose judge signs a
        // table, until that is dropped
        uint256 needed = window + epochSeconds;
        uint256 answerable = delay + vault.appealSeconds();
        if (answerable > needed) needed = answerable;
        uint256 unbonding = vault.unbondingPeriod();
        if (needed > unbonding) revert WindowExceedsUnbonding(needed, unbonding);
    }
}
