// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {StakeVault} from "./StakeVault.sol";
import {Statements, WorkCommitment} from "./Statements.sol";

/// @title Swarm
/// @notice Who works for whom, in which pool, for what pay. A provider stakes for node keys; nodes join pools, commit
/// one Merkle root of accepted work per epoch and are paid after a window in which a quorum of the pool's validators,
/// or the node's own contradicting signatures, can void the pay and take the stake.
///
/// One clock: the work of epoch e matures at end(e) + window. Until that second it can be voided and not settled; from
/// that second on it can be settled and not voided. All times are block timestamps in seconds.
contract Swarm is EIP712 {
    using SafeERC20 for IERC20;

    // ------------------------------------------------------------------ types

    struct Node {
        address provider;
        uint32 units;
    }

    struct PoolParams {
        /// BLAKE3 root of the run file; may be zero and set later by the manager.
        bytes32 runRoot;
        /// where the run file may be had besides the swarm, at most 256 bytes
        string runURI;
        address manager;
        /// token wei per work unit
        uint128 rewardPerUnit;
        /// seconds after an epoch's end in which its work can be voided
        uint32 window;
        uint32 epochSeconds;
        /// seconds that a membership lasts without `join` or `commitWork`
        uint32 leaseSeconds;
        /// the most units that one node can be paid for in one epoch
        uint64 maxUnitsPerEpoch;
        /// token wei
        uint128 slashAmount;
        /// keys whose verdicts count, at most 16
        address[] validators;
        uint8 threshold;
    }

    struct Pool {
        bytes32 runRoot;
        address manager;
        uint32 window;
        uint32 epochSeconds;
        uint32 leaseSeconds;
        uint64 startedAt;
        /// zero while the pool is open
        uint64 endedAt;
        uint64 maxUnitsPerEpoch;
        uint8 threshold;
        bool hasWork;
        uint128 rewardPerUnit;
        uint128 slashAmount;
        /// token wei that no work has a claim on
        uint128 escrow;
        /// token wei promised to committed work
        uint128 reserved;
        string runURI;
        address[] validators;
    }

    struct Member {
        /// who stood behind the node when it last joined; zero if it never did
        address provider;
        uint64 leaseUntil;
        bool evicted;
        bool left;
    }

    struct Work {
        bytes32 root;
        address provider;
        uint64 units;
        uint128 reserved;
    }

    // -------------------------------------------------------------- constants

    uint32 public constant MAX_NODE_UNITS = 1_000_000;
    uint256 public constant MAX_VALIDATORS = 16;
    uint256 public constant MAX_URI_BYTES = 256;
    uint256 public constant MAX_CONTACT_BYTES = 160;
    /// @notice Bounds the loop of a slash: so many epochs may be unmatured at once.
    uint256 public constant MAX_EPOCHS_PER_WINDOW = 48;
    uint256 public constant MAX_PROOF_LENGTH = 32;
    /// @notice The reason in `Slashed` when two commitments of one node contradict each other (Reason.DUPLICATE).
    uint8 public constant REASON_EQUIVOCATION = 4;

    // ---------------------------------------------------------------- storage

    IERC20 public immutable token;
    StakeVault public immutable vault;
    /// @notice Stake that a provider with any node needs, token wei.
    uint256 public immutable baseStake;
    /// @notice Stake that each unit of each node needs on top, token wei.
    uint256 public immutable stakePerUnit;

    /// @notice The number of pools; ids start at 1.
    uint256 public poolCount;
    /// @notice The nonce that a node's next registration must carry.
    mapping(address node => uint256) public nonces;
    /// @notice Units of all nodes of a provider.
    mapping(address provider => uint256) public unitsOf;

    mapping(address node => Node) private _nodes;
    mapping(uint256 pool => Pool) private _pools;
    /// place in the validator list, from 1; zero for everybody else
    mapping(uint256 pool => mapping(address validator => uint256)) private _validatorPlace;
    mapping(uint256 pool => mapping(address node => Member)) private _members;
    mapping(uint256 pool => mapping(address node => mapping(uint64 epoch => Work))) private _work;
    mapping(uint256 pool => mapping(address node => mapping(uint64 epoch => mapping(bytes32 leaf => bool)))) private
        _invalidated;

    // ----------------------------------------------------------------- events

    event NodeRegistered(address indexed provider, address indexed node, uint32 units);
    event NodeRemoved(address indexed provider, address indexed node, uint32 units);
    event PoolCreated(uint256 indexed pool, address indexed manager, bytes32 runRoot, string runURI);
    event PoolFunded(uint256 indexed pool, address indexed payer, uint256 amount, uint256 escrow);
    event PoolRunSet(uint256 indexed pool, bytes32 runRoot);
    event PoolEnded(uint256 indexed pool);
    event PoolSwept(uint256 indexed pool, address indexed manager, uint256 amount);
    event Joined(uint256 indexed pool, address indexed node, address indexed provider, string contact, uint64 leaseUntil);
    event Left(uint256 indexed pool, address indexed node, address indexed provider);
    event WorkCommitted(
        uint256 indexed pool, address indexed node, uint64 indexed epoch, bytes32 root, uint64 units, uint128 reserved
    );
    event WorkInvalidated(
        uint256 indexed pool, address indexed node, uint64 indexed epoch, bytes32 fileRoot, uint32 units, uint8 reason
    );
    event WorkVoided(uint256 indexed pool, address indexed node, uint64 indexed epoch, uint128 returned);
    event Settled(
        uint256 indexed pool, address indexed node, uint64 indexed epoch, address provider, uint64 units, uint128 amount
    );
    event Slashed(
        uint256 indexed pool,
        address indexed node,
        address indexed provider,
        uint8 reason,
        uint256 amount,
        address reporter,
        bytes32 fileRoot
    );

    // ----------------------------------------------------------------- errors

    error ZeroAddress();
    error ZeroAmount();
    error AmountTooLarge(uint256 amount);
    error NodeIsProvider(address node);
    error NodeTaken(address node, address provider);
    error NodeUnknown(address node);
    error NotYourNode(address node, address provider);
    error UnitsOutOfRange(uint256 units, uint256 max);
    error SignatureExpired(uint256 deadline);
    error WrongSigner(address signer, address expected);
    error StakeTooLow(address provider, uint256 bonded, uint256 required);
    error PoolUnknown(uint256 pool);
    error PoolOver(uint256 pool);
    error PoolStillOpen(uint256 pool, uint256 until);
    error OnlyManager(address caller);
    error RunAlreadyWorkedOn(uint256 pool);
    error TextTooLong(uint256 length, uint256 max);
    error BadTimes(uint256 window, uint256 epochSeconds, uint256 leaseSeconds);
    error WindowExceedsUnbonding(uint256 needed, uint256 unbondingPeriod);
    error BadQuorum(uint256 validators, uint256 threshold);
    error BadValidator(address validator);
    error NotMember(uint256 pool, address node);
    error NodeEvicted(uint256 pool, address node);
    error LeaseLapsed(uint256 pool, address node, uint64 leaseUntil);
    error EpochNotStarted(uint64 epoch, uint64 current);
    error CommitTooLate(uint64 epoch, uint256 closedAt);
    error AlreadyCommitted(uint256 pool, address node, uint64 epoch);
    error EmptyRoot();
    error NothingCommitted(uint256 pool, address node, uint64 epoch);
    error NotMature(uint64 epoch, uint256 matureAt);
    error AlreadyMature(uint64 epoch, uint256 matureAt);
    error AlreadyInvalidated(bytes32 leaf);
    error BadProof();
    error NotAValidator(address signer);
    error DuplicateVerdict(address validator);
    error QuorumMissing(uint256 verdicts, uint256 threshold);
    error NoContradiction();

    constructor(StakeVault vault_, uint256 baseStake_, uint256 stakePerUnit_) EIP712("intellect-node", "1") {
        vault = vault_;
        token = vault_.token();
        baseStake = baseStake_;
        stakePerUnit = stakePerUnit_;
    }

    // ------------------------------------------------------------------ nodes

    /// @notice Makes the caller the provider of `node`, which consents by signing a NodeRegistration.
    /// @param units the size of the node, 1 .. MAX_NODE_UNITS; stake grows with it
    function registerNode(address node, uint32 units, uint256 deadline, bytes calldata nodeSignature) external {
        if (node == msg.sender) revert NodeIsProvider(node);
        if (_nodes[node].provider != address(0)) revert NodeTaken(node, _nodes[node].provider);
        if (units == 0 || units > MAX_NODE_UNITS) revert UnitsOutOfRange(units, MAX_NODE_UNITS);
        if (block.timestamp > deadline) revert SignatureExpired(deadline);
        bytes32 statement = Statements.hashRegistration(msg.sender, node, units, nonces[node]++, deadline);
        _requireSigner(statement, nodeSignature, node);
        _nodes[node] = Node(msg.sender, units);
        unitsOf[msg.sender] += units;
        _requireStake(msg.sender);
        emit NodeRegistered(msg.sender, node, units);
    }

    /// @notice Ends the caller's responsibility for a node's future; what it did in a pool stays slashable.
    function removeNode(address node) external {
        Node memory entry = _nodes[node];
        if (entry.provider != msg.sender) revert NotYourNode(node, entry.provider);
        delete _nodes[node];
        unitsOf[msg.sender] -= entry.units;
        emit NodeRemoved(msg.sender, node, entry.units);
    }

    // ------------------------------------------------------------------ pools

    /// @notice Opens a pool; epoch 0 starts now. Everything but the run root is fixed for ever.
    function createPool(PoolParams calldata params) external returns (uint256 id) {
        if (params.manager == address(0)) revert ZeroAddress();
        if (bytes(params.runURI).length > MAX_URI_BYTES) {
            revert TextTooLong(bytes(params.runURI).length, MAX_URI_BYTES);
        }
        if (params.maxUnitsPerEpoch == 0) revert ZeroAmount();
        _checkTimes(params);
        id = ++poolCount;
        _setValidators(id, params.validators, params.threshold);
        Pool storage pool = _pools[id];
        pool.runRoot = params.runRoot;
        pool.manager = params.manager;
        pool.window = params.window;
        pool.epochSeconds = params.epochSeconds;
        pool.leaseSeconds = params.leaseSeconds;
        pool.startedAt = uint64(block.timestamp);
        pool.maxUnitsPerEpoch = params.maxUnitsPerEpoch;
        pool.threshold = params.threshold;
        pool.rewardPerUnit = params.rewardPerUnit;
        pool.slashAmount = params.slashAmount;
        pool.runURI = params.runURI;
        pool.validators = params.validators;
        emit PoolCreated(id, params.manager, params.runRoot, params.runURI);
    }

    /// @notice Adds the caller's tokens to the pool's escrow.
    function fundPool(uint256 id, uint256 amount) external {
        Pool storage pool = _openPool(id);
        if (amount == 0) revert ZeroAmount();
        if (amount > type(uint128).max) revert AmountTooLarge(amount);
        pool.escrow += uint128(amount);
        emit PoolFunded(id, msg.sender, amount, pool.escrow);
        token.safeTransferFrom(msg.sender, address(this), amount);
    }

    /// @notice Names the run; only while no work was committed.
    function setPoolRun(uint256 id, bytes32 runRoot) external {
        Pool storage pool = _openPool(id);
        if (msg.sender != pool.manager) revert OnlyManager(msg.sender);
        if (pool.hasWork) revert RunAlreadyWorkedOn(id);
        pool.runRoot = runRoot;
        emit PoolRunSet(id, runRoot);
    }

    /// @notice Closes the pool: nobody joins, no later epoch begins; committed work runs its course.
    function endPool(uint256 id) external {
        Pool storage pool = _openPool(id);
        if (msg.sender != pool.manager) revert OnlyManager(msg.sender);
        pool.endedAt = uint64(block.timestamp);
        emit PoolEnded(id);
    }

    /// @notice Returns what no work has a claim on to the manager, once the last epoch is mature.
    function sweep(uint256 id) external {
        Pool storage pool = _pool(id);
        if (pool.endedAt == 0) revert PoolStillOpen(id, type(uint256).max);
        uint256 over = _maturity(pool, _epochAt(pool, pool.endedAt));
        if (block.timestamp < over) revert PoolStillOpen(id, over);
        uint128 amount = pool.escrow;
        if (amount == 0) revert ZeroAmount();
        pool.escrow = 0;
        emit PoolSwept(id, pool.manager, amount);
        token.safeTransfer(pool.manager, amount);
    }

    // ------------------------------------------------------------- membership

    /// @notice The calling node joins, renews its lease or tells a new contact (a multiaddr; not stored, only logged).
    function join(uint256 id, string calldata contact) external {
        Pool storage pool = _openPool(id);
        if (bytes(contact).length > MAX_CONTACT_BYTES) revert TextTooLong(bytes(contact).length, MAX_CONTACT_BYTES);
        address provider = _nodes[msg.sender].provider;
        if (provider == address(0)) revert NodeUnknown(msg.sender);
        if (_members[id][msg.sender].evicted) revert NodeEvicted(id, msg.sender);
        _requireStake(provider);
        uint64 leaseUntil = uint64(block.timestamp) + pool.leaseSeconds;
        _members[id][msg.sender] = Member(provider, leaseUntil, false, false);
        emit Joined(id, msg.sender, provider, contact, leaseUntil);
    }

    /// @notice The calling node leaves; it stays answerable for what it signed.
    function leavePool(uint256 id) external {
        Member storage member = _members[id][msg.sender];
        if (member.provider == address(0) || member.left) revert NotMember(id, msg.sender);
        member.left = true;
        member.leaseUntil = 0;
        emit Left(id, msg.sender, member.provider);
    }

    // ------------------------------------------------------------------- work

    /// @notice Commits the calling node to the Merkle root of its accepted files of one epoch and renews its lease.
    /// Possible from the epoch's start until half of the window is over, so that there is always time to object.
    /// Reserves units * rewardPerUnit, or what is left of the escrow.
    function commitWork(uint256 id, uint64 epoch, bytes32 root, uint64 units) external {
        Pool storage pool = _pool(id);
        address provider = _requireActive(id, pool);
        if (root == bytes32(0)) revert EmptyRoot();
        if (units == 0 || units > pool.maxUnitsPerEpoch) revert UnitsOutOfRange(units, pool.maxUnitsPerEpoch);
        _requireCommittable(id, pool, epoch);
        Work storage work = _work[id][msg.sender][epoch];
        if (work.root != bytes32(0)) revert AlreadyCommitted(id, msg.sender, epoch);
        uint256 due = uint256(units) * pool.rewardPerUnit;
        uint128 reserved = due < pool.escrow ? uint128(due) : pool.escrow;
        pool.escrow -= reserved;
        pool.reserved += reserved;
        if (!pool.hasWork) pool.hasWork = true;
        work.root = root;
        work.provider = provider;
        work.units = units;
        work.reserved = reserved;
        emit WorkCommitted(id, msg.sender, epoch, root, units, reserved);
    }

    /// @notice Pays the provider for one mature epoch. Anybody may call it.
    function settle(uint256 id, address node, uint64 epoch) external {
        Pool storage pool = _pool(id);
        Work storage work = _work[id][node][epoch];
        uint128 amount = work.reserved;
        if (amount == 0) revert NothingCommitted(id, node, epoch);
        uint256 matureAt = _maturity(pool, epoch);
        if (block.timestamp < matureAt) revert NotMature(epoch, matureAt);
        work.reserved = 0;
        pool.reserved -= amount;
        emit Settled(id, node, epoch, work.provider, work.units, amount);
        token.safeTransfer(work.provider, amount);
    }

    /// @notice Takes the pay of one rejected file out of an unmatured epoch: its leaf's own units, never a number
    /// that a caller gives. Anybody may carry the validators' signatures (Verdict, outcome 1).
    function invalidate(
        WorkCommitment calldata c,
        uint64 epoch,
        bytes32[] calldata proof,
        uint8 reason,
        bytes[] calldata verdictSignatures
    ) external {
        Pool storage pool = _pool(c.pool);
        _requireVoidable(c, pool, epoch);
        bytes32 leaf = Statements.leaf(c);
        if (proof.length > MAX_PROOF_LENGTH) revert BadProof();
        if (!Statements.verifyPath(_work[c.pool][c.node][epoch].root, leaf, proof)) revert BadProof();
        if (_invalidated[c.pool][c.node][epoch][leaf]) revert AlreadyInvalidated(leaf);
        _requireQuorum(c, pool, Statements.OUTCOME_REJECT, reason, verdictSignatures);
        _invalidated[c.pool][c.node][epoch][leaf] = true;
        _takeUnits(c, pool, epoch);
        emit WorkInvalidated(c.pool, c.node, epoch, c.fileRoot, c.units, reason);
    }

    // --------------------------------------------------------------- slashing

    /// @notice Punishes an objective fault. Needs the node's own signature on the commitment and a quorum of the
    /// pool's validators (Verdict, outcome 2, this reason). Anybody may carry it, and is the reporter.
    function slash(
        WorkCommitment calldata c,
        bytes calldata nodeSignature,
        uint8 reason,
        bytes[] calldata verdictSignatures
    ) external {
        Pool storage pool = _pool(c.pool);
        _requireSigner(Statements.hashCommitment(c), nodeSignature, c.node);
        _requireQuorum(c, pool, Statements.OUTCOME_SLASH, reason, verdictSignatures);
        _punish(c, pool, reason);
    }

    /// @notice Punishes a node that signed two different files for one (pool, policy, index). Needs no quorum.
    function evidence(
        WorkCommitment calldata first,
        bytes calldata firstSignature,
        WorkCommitment calldata second,
        bytes calldata secondSignature
    ) external {
        if (
            first.pool != second.pool || first.node != second.node || first.policyRoot != second.policyRoot
                || first.index != second.index || first.fileRoot == second.fileRoot
        ) revert NoContradiction();
        Pool storage pool = _pool(first.pool);
        _requireSigner(Statements.hashCommitment(first), firstSignature, first.node);
        _requireSigner(Statements.hashCommitment(second), secondSignature, first.node);
        _punish(first, pool, REASON_EQUIVOCATION);
    }

    // ------------------------------------------------------------------ views

    function nodeInfo(address node) external view returns (Node memory) {
        return _nodes[node];
    }

    function poolInfo(uint256 id) external view returns (Pool memory) {
        return _pool(id);
    }

    function memberInfo(uint256 id, address node) external view returns (Member memory) {
        return _members[id][node];
    }

    /// @notice The records of the given nodes, in their order.
    function memberInfos(uint256 id, address[] calldata nodes) external view returns (Member[] memory members) {
        members = new Member[](nodes.length);
        for (uint256 i = 0; i < nodes.length; ++i) {
            members[i] = _members[id][nodes[i]];
        }
    }

    function workInfo(uint256 id, address node, uint64 epoch) external view returns (Work memory) {
        return _work[id][node][epoch];
    }

    /// @notice The stake that `provider` needs for the nodes it has; zero without nodes.
    function requiredStake(address provider) public view returns (uint256) {
        uint256 units = unitsOf[provider];
        return units == 0 ? 0 : baseStake + stakePerUnit * units;
    }

    /// @notice The epoch that `timestamp` falls into (0 before the pool's start).
    function epochAt(uint256 id, uint256 timestamp) external view returns (uint64) {
        return _epochAt(_pool(id), timestamp);
    }

    /// @notice From this second on the epoch's work can be settled, and no longer be voided.
    function maturityOf(uint256 id, uint64 epoch) external view returns (uint256) {
        return _maturity(_pool(id), epoch);
    }

    function domainSeparator() external view returns (bytes32) {
        return _domainSeparatorV4();
    }

    // --------------------------------------------------------------- internal

    function _pool(uint256 id) private view returns (Pool storage pool) {
        pool = _pools[id];
        if (pool.manager == address(0)) revert PoolUnknown(id);
    }

    function _openPool(uint256 id) private view returns (Pool storage pool) {
        pool = _pool(id);
        if (pool.endedAt != 0) revert PoolOver(id);
    }

    function _epochAt(Pool storage pool, uint256 timestamp) private view returns (uint64) {
        if (timestamp <= pool.startedAt) return 0;
        return uint64((timestamp - pool.startedAt) / pool.epochSeconds);
    }

    function _epochEnd(Pool storage pool, uint64 epoch) private view returns (uint256) {
        return pool.startedAt + (uint256(epoch) + 1) * pool.epochSeconds;
    }

    function _maturity(Pool storage pool, uint64 epoch) private view returns (uint256) {
        return _epochEnd(pool, epoch) + pool.window;
    }

    function _checkTimes(PoolParams calldata params) private view {
        bool bad = params.epochSeconds == 0 || params.window < 2 || params.leaseSeconds < params.epochSeconds
            || params.window > MAX_EPOCHS_PER_WINDOW * params.epochSeconds;
        if (bad) revert BadTimes(params.window, params.epochSeconds, params.leaseSeconds);
        // a stake that starts to leave when an epoch starts must outlast that epoch's window
        uint256 needed = uint256(params.window) + params.epochSeconds;
        if (needed > vault.unbondingPeriod()) revert WindowExceedsUnbonding(needed, vault.unbondingPeriod());
    }

    function _setValidators(uint256 id, address[] calldata validators, uint8 threshold) private {
        if (validators.length > MAX_VALIDATORS || threshold == 0 || threshold > validators.length) {
            revert BadQuorum(validators.length, threshold);
        }
        for (uint256 i = 0; i < validators.length; ++i) {
            address validator = validators[i];
            if (validator == address(0) || _validatorPlace[id][validator] != 0) revert BadValidator(validator);
            _validatorPlace[id][validator] = i + 1;
        }
    }

    function _requireStake(address provider) private view {
        uint256 required = requiredStake(provider);
        uint256 bonded = vault.bondedOf(provider);
        if (bonded < required) revert StakeTooLow(provider, bonded, required);
    }

    function _requireSigner(bytes32 statement, bytes calldata signature, address expected) private view {
        address signer = ECDSA.recover(_hashTypedDataV4(statement), signature);
        if (signer != expected) revert WrongSigner(signer, expected);
    }

    /// Renews the lease of the calling node; returns who stands behind it.
    function _requireActive(uint256 id, Pool storage pool) private returns (address provider) {
        Member storage member = _members[id][msg.sender];
        provider = member.provider;
        if (provider == address(0) || member.left) revert NotMember(id, msg.sender);
        if (member.evicted) revert NodeEvicted(id, msg.sender);
        if (block.timestamp > member.leaseUntil) revert LeaseLapsed(id, msg.sender, member.leaseUntil);
        if (_nodes[msg.sender].provider != provider) revert NodeUnknown(msg.sender);
        _requireStake(provider);
        member.leaseUntil = uint64(block.timestamp) + pool.leaseSeconds;
    }

    function _requireCommittable(uint256 id, Pool storage pool, uint64 epoch) private view {
        uint64 current = _epochAt(pool, block.timestamp);
        if (epoch > current) revert EpochNotStarted(epoch, current);
        if (pool.endedAt != 0 && epoch > _epochAt(pool, pool.endedAt)) revert PoolOver(id);
        uint256 closedAt = _epochEnd(pool, epoch) + pool.window / 2;
        if (block.timestamp >= closedAt) revert CommitTooLate(epoch, closedAt);
    }

    function _requireQuorum(
        WorkCommitment calldata c,
        Pool storage pool,
        uint8 outcome,
        uint8 reason,
        bytes[] calldata signatures
    ) private view {
        if (signatures.length < pool.threshold || signatures.length > MAX_VALIDATORS) {
            revert QuorumMissing(signatures.length, pool.threshold);
        }
        bytes32 digest = _hashTypedDataV4(Statements.hashVerdict(c, outcome, reason));
        uint256 seen = 0;
        for (uint256 i = 0; i < signatures.length; ++i) {
            address signer = ECDSA.recover(digest, signatures[i]);
            uint256 place = _validatorPlace[c.pool][signer];
            if (place == 0) revert NotAValidator(signer);
            if (seen & (1 << place) != 0) revert DuplicateVerdict(signer);
            seen |= 1 << place;
        }
    }

    function _requireVoidable(WorkCommitment calldata c, Pool storage pool, uint64 epoch) private view {
        if (_work[c.pool][c.node][epoch].reserved == 0) revert NothingCommitted(c.pool, c.node, epoch);
        uint256 matureAt = _maturity(pool, epoch);
        if (block.timestamp >= matureAt) revert AlreadyMature(epoch, matureAt);
    }

    /// Returns the share of one file to the escrow; a short reservation shrinks in proportion.
    function _takeUnits(WorkCommitment calldata c, Pool storage pool, uint64 epoch) private {
        Work storage work = _work[c.pool][c.node][epoch];
        uint64 units = c.units < work.units ? c.units : work.units;
        uint128 returned = uint128((uint256(work.reserved) * units) / work.units);
        work.units -= units;
        work.reserved -= returned;
        pool.reserved -= returned;
        pool.escrow += returned;
    }

    /// Evicts for ever, voids what is not mature, takes the stake. A node is slashed once per pool at most.
    function _punish(WorkCommitment calldata c, Pool storage pool, uint8 reason) private {
        Member storage member = _members[c.pool][c.node];
        address provider = member.provider;
        if (provider == address(0)) revert NotMember(c.pool, c.node);
        if (member.evicted) revert NodeEvicted(c.pool, c.node);
        member.evicted = true;
        member.leaseUntil = 0;
        _voidUnmatured(c.pool, c.node, pool);
        uint256 taken = vault.slash(provider, pool.slashAmount, msg.sender);
        emit Slashed(c.pool, c.node, provider, reason, taken, msg.sender, c.fileRoot);
    }

    /// At most MAX_EPOCHS_PER_WINDOW + 2 turns: epochs that have begun and are not mature.
    function _voidUnmatured(uint256 id, address node, Pool storage pool) private {
        uint64 epoch = _epochAt(pool, block.timestamp);
        uint128 returned = 0;
        while (_maturity(pool, epoch) > block.timestamp) {
            uint128 reserved = _work[id][node][epoch].reserved;
            if (reserved > 0) {
                _work[id][node][epoch].reserved = 0;
                returned += reserved;
                emit WorkVoided(id, node, epoch, reserved);
            }
            if (epoch == 0) break;
            --epoch;
        }
        pool.reserved -= returned;
        pool.escrow += returned;
    }
}
