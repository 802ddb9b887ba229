// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {ReentrancyGuard} from "@openzeppelin/contracts/utils/ReentrancyGuard.sol";
import {Counters, ENDED} from "./Counters.sol";
import {Court} from "./Court.sol";
import {StakeVault} from "./StakeVault.sol";
import {Statements, Tally} from "./Statements.sol";
import {Swarm} from "./Swarm.sol";

/// @title Payroll
/// @notice The money of all pools, and what nodes have earned of it. A quorum signs, per epochs, the root of a table of
/// everybody's units since the pool began; a node shows its line of the newest table that counts, and is paid what it
/// has not been paid yet. Nothing is reserved before a table says that it was earned. A line never falls from table to
/// table, nor does the total.
///
/// A posted table waits for the pool's `delay` in one place, and counts then. While it waits the pool's guardian may hold
/// it, once: then it waits for `appealSeconds`, in which the vault's arbiter may drop it, and whoever signed it is
/// slashed. Silence pays: nobody who holds or decides gets anything, and none of them can keep pay back for longer.
///
/// Money is counted in work units: a unit is worth `rewardPerUnit` of the pool, for ever.
contract Payroll is ReentrancyGuard {
    using SafeERC20 for IERC20;

    /// What of a pool is free and owed, and the table that counts.
    struct Book {
        /// funded units that no table has promised
        uint64 free;
        /// units that a table has promised and nobody was paid
        uint64 owed;
        /// of all nodes, since the pool began
        uint64 total;
        /// the first epoch that is in no table; zero before the first table
        uint64 epochs;
        bytes32 root;
        /// what the last table added, and for how many epochs: how long the escrow lasts
        uint64 lastUnits;
        uint64 lastEpochs;
    }

    /// A table that does not count yet.
    struct Waiting {
        bytes32 root;
        uint64 total;
        uint64 epochs;
        /// from when it counts; zero where none waits
        uint64 countsAt;
        bool held;
        /// hash of those who signed it, in the order of their signatures
        bytes32 signers;
    }

    struct Paid {
        /// units that were paid, or went back to the pool
        uint64 claimed;
        /// the first epoch whose pay it has not used up, if that is later than the one in which it joined
        uint64 unusedFrom;
    }

    uint256 private constant MAX_PROOF_LENGTH = 32;
    uint256 private constant MAX_ESCROW_UNITS = type(uint56).max;

    Court public immutable court;
    Swarm public immutable swarm;
    StakeVault public immutable vault;
    IERC20 public immutable token;

    mapping(uint256 pool => Book) private _books;
    mapping(uint256 pool => Waiting) private _waiting;
    mapping(uint256 pool => mapping(address node => Paid)) private _paid;

    event PoolFunded(uint256 indexed pool, address indexed payer, uint256 amount, uint256 escrow);
    event PoolSwept(uint256 indexed pool, address indexed opener, uint256 amount);
    /// @param blob names the file of the lines' files
    event EarningsPosted(
        uint256 indexed pool,
        uint64 indexed epoch,
        uint64 number,
        bytes32 root,
        uint64 total,
        bytes32 blob,
        uint64 countsAt,
        address[] signers
    );
    event EarningsHeld(uint256 indexed pool, uint64 indexed epoch, uint64 countsAt);
    event EarningsDropped(uint256 indexed pool, uint64 indexed epoch, bytes32 root);
    event Claimed(
        uint256 indexed pool, address indexed node, address indexed provider, uint64 units, uint256 amount
    );
    event GivenBack(uint256 indexed pool, address indexed node, uint64 units);

    error ZeroAmount();
    error TokenTakesFee(uint256 sent, uint256 received);
    error EscrowTooLarge(uint256 units);
    error PoolOver(uint256 pool);
    error PoolWithoutPay(uint256 pool);
    error PoolStillOpen(uint256 pool, uint256 until);
    error OnlyGuardian(address caller);
    error OnlyArbiter(address caller);
    error TableWaits(uint256 pool, uint64 countsAt);
    error NoTableWaits(uint256 pool);
    error AlreadyHeld(uint256 pool);
    error NotHeld(uint256 pool);
    error OtherSigners(uint256 pool);
    error EpochNotLater(uint64 epoch, uint64 next);
    error NotMature(uint64 epoch, uint256 matureAt);
    error TooFewEpochs(uint256 secondsCovered, uint256 least);
    error TotalFalls(uint64 total, uint64 last);
    error EscrowTooSmall(uint256 units, uint256 free);
    error TooMuchForEpochs(uint256 units, uint256 max);
    error BadProof();
    error NothingToClaim(uint64 units, uint64 claimed);
    error CapacityUsed(uint256 pool, address node, uint64 epoch);
    error CaseNotFinal(uint256 caseId);
    error NotMember(uint256 pool, address node);

    constructor(Court court_) {
        court = court_;
        swarm = court_.swarm();
        vault = swarm.vault();
        token = swarm.token();
    }

    // ------------------------------------------------------------------ money

    /// @notice Adds the caller's tokens to the pool's escrow: the most whole units that `amount` pays for.
    function fund(uint256 id, uint256 amount) external nonReentrant {
        // slither-disable-next-line unused-return -- whose pool it is does not matter to who pays
        (Counters times, uint256 rate,) = swarm.moneyOf(id);
        if (times.has(ENDED)) revert PoolOver(id);
        if (rate == 0) revert PoolWithoutPay(id);
        // slither-disable-next-line divide-before-multiply -- whole units are what is meant
        uint256 units = amount / rate;
        if (units == 0) revert ZeroAmount();
        Book storage book = _books[id];
        (uint256 free, uint256 owed) = (book.free, book.owed);
        if (units > MAX_ESCROW_UNITS - free - owed) revert EscrowTooLarge(units);
        book.free = uint64(free + units);
        emit PoolFunded(id, msg.sender, units * rate, (free + units) * rate);
        _pull(units * rate);
    }

    /// @notice Pays whoever opened the pool what no table has promised, once no table may come and none waits any more. What
    /// is owed stays; what goes back to the pool later can be swept later. Not the manager: its key signs policies on a
    /// machine of the swarm.
    function sweep(uint256 id) external nonReentrant {
        Book storage book = _count(id);
        // slither-disable-next-line unused-return -- what is left is no table's
        (Counters times,, uint256 stoppedAt, uint256 delay) = swarm.tableTerms(id);
        uint256 until = times.has(ENDED) ? _closesAt(times, stoppedAt) + delay : type(uint256).max;
        if (block.timestamp < until) revert PoolStillOpen(id, until);
        _requireNoneWaits(id);
        // slither-disable-next-line unused-return -- its times are known
        (, uint256 rate, address opener) = swarm.moneyOf(id);
        uint256 amount = book.free * rate;
        if (amount == 0) revert ZeroAmount();
        book.free = 0;
        emit PoolSwept(id, opener, amount);
        token.safeTransfer(opener, amount);
    }

    // ----------------------------------------------------------------- tables

    /// @notice A quorum signed this table of everything through its epoch. It waits; nobody restarts its clock or pushes it
    /// away by another one. It covers at least `delay` of epochs, or whoever carries small ones makes pay fall behind: of
    /// a pool that has ended the last one may cover less.
    function post(Tally calldata table, bytes[] calldata signatures) external {
        uint256 id = table.pool;
        bytes32 statement = Statements.hashTally(Statements.EARNINGS_TYPEHASH, table);
        address[] memory signers = court.signersOf(id, statement, signatures);
        Book storage book = _count(id);
        _requireNoneWaits(id);
        uint256 delay = _checkTable(book, table);
        uint64 countsAt = uint64(block.timestamp + delay);
        _waiting[id] =
            Waiting(table.root, table.total, table.epoch + 1, countsAt, false, keccak256(abi.encode(signers)));
        emit EarningsPosted(
            id, table.epoch, table.number, table.root, table.total, table.blob, countsAt, signers
        );
    }

    /// @notice The pool's guardian doubts the table that waits: it waits for the vault's `appealSeconds` from now, and counts
    /// unless the arbiter drops it. Once a table.
    function hold(uint256 id) external {
        address guardian = swarm.guardianOf(id);
        if (msg.sender != guardian) revert OnlyGuardian(msg.sender);
        Waiting storage waiting = _requireWaits(id);
        if (waiting.held) revert AlreadyHeld(id);
        uint64 countsAt = uint64(block.timestamp) + vault.appealSeconds();
        (waiting.held, waiting.countsAt) = (true, countsAt);
        emit EarningsHeld(id, waiting.epochs - 1, countsAt);
    }

    /// @notice The vault's arbiter finds a table that is held false. It never counts, and whoever signed it loses its slash,
    /// its seat and its membership. The pool's money stays where it is, and the next table may come at once.
    /// @param signers as `EarningsPosted` told them
    function drop(uint256 id, address[] calldata signers) external nonReentrant {
        if (msg.sender != vault.arbiter()) revert OnlyArbiter(msg.sender);
        Waiting storage waiting = _requireWaits(id);
        if (!waiting.held) revert NotHeld(id);
        if (keccak256(abi.encode(signers)) != waiting.signers) revert OtherSigners(id);
        bytes32 root = waiting.root;
        emit EarningsDropped(id, waiting.epochs - 1, root);
        waiting.countsAt = 0;
        court.punishTable(id, signers, root);
    }

    /// @notice Pays the node's provider what its line of the newest table says and was not paid yet; anybody may carry
    /// it. At most what the node's size allows for the epochs since it first joined that no pay has used up; the rest
    /// can be claimed later. What an evicted node would have got goes back to the pool, once nothing can undo that.
    function claim(uint256 id, address node, uint64 units, bytes32[] calldata proof) external nonReentrant {
        Book storage book = _count(id);
        Swarm.Payee memory payee = swarm.payeeOf(id, node);
        if (payee.joinedAt == 0) revert NotMember(id, node);
        if (proof.length > MAX_PROOF_LENGTH) revert BadProof();
        if (Statements.climb(Statements.leaf(node, units), proof) != book.root) revert BadProof();
        Paid storage paid = _paid[id][node];
        uint64 claimed = paid.claimed;
        // a table whose lines are more than its total pays no more than that
        uint256 due = units > claimed ? units - claimed : 0;
        if (due > book.owed) due = book.owed;
        if (due == 0) revert NothingToClaim(units, claimed);
        if (payee.evicted) {
            // its own signatures leave nothing to appeal against; a case that is being opened has no number yet
            bool open = payee.caseId == 0 || !vault.isFinal(payee.caseId);
            if (!payee.convicted && open) revert CaseNotFinal(payee.caseId);
            paid.claimed = claimed + uint64(due);
            book.owed -= uint64(due);
            book.free += uint64(due);
            emit GivenBack(id, node, uint64(due));
        } else {
            _pay(id, node, payee, due);
        }
    }

    // ------------------------------------------------------------------ views

    /// @notice What is free and owed, and the newest table that counts: of everything through epoch `epochs` - 1; no table
    /// yet if `epochs` is zero.
    function bookOf(uint256 id) public view returns (Book memory book) {
        book = _books[id];
        Waiting storage waiting = _waiting[id];
        if (!_counts(waiting)) return book;
        uint64 more = waiting.total - book.total;
        book = Book(
            book.free - more,
            book.owed + more,
            waiting.total,
            waiting.epochs,
            waiting.root,
            more,
            waiting.epochs - book.epochs
        );
    }

    /// @notice The table that does not count yet; all zeros where none waits.
    function waitingOf(uint256 id) external view returns (Waiting memory waiting) {
        if (_waiting[id].countsAt != 0 && !_counts(_waiting[id])) waiting = _waiting[id];
    }

    /// @notice Units of the node that were paid, or went back to the pool.
    function claimedOf(uint256 id, address node) external view returns (uint64) {
        return _paid[id][node].claimed;
    }

    /// @notice How many units the node's size allows to be paid now, whatever it has earned.
    function allowanceOf(uint256 id, address node) external view returns (uint256) {
        Swarm.Payee memory payee = swarm.payeeOf(id, node);
        (uint256 epochs,) = _unused(payee, _paid[id][node]);
        return epochs * payee.capacity;
    }

    // --------------------------------------------------------------- internal

    /// Moves over the table that has waited long enough.
    function _count(uint256 id) private returns (Book storage book) {
        book = _books[id];
        if (_counts(_waiting[id])) {
            _books[id] = bookOf(id);
            _waiting[id].countsAt = 0; // the rest is written over by the next one
        }
    }

    function _counts(Waiting storage waiting) private view returns (bool) {
        uint64 countsAt = waiting.countsAt;
        return countsAt != 0 && block.timestamp >= countsAt;
    }

    function _requireNoneWaits(uint256 id) private view {
        uint64 countsAt = _waiting[id].countsAt;
        if (countsAt != 0) revert TableWaits(id, countsAt);
    }

    function _requireWaits(uint256 id) private view returns (Waiting storage waiting) {
        waiting = _waiting[id];
        if (waiting.countsAt == 0 || _counts(waiting)) revert NoTableWaits(id);
    }

    /// @return delay how long it waits
    function _checkTable(Book storage book, Tally calldata table) private view returns (uint256 delay) {
        Counters times;
        uint256 perEpoch;
        uint256 stoppedAt;
        (times, perEpoch, stoppedAt, delay) = swarm.tableTerms(table.pool);
        (uint64 epoch, uint64 next) = (table.epoch, book.epochs);
        if (epoch < next) revert EpochNotLater(epoch, next);
        uint256 matureAt = times.maturity(epoch);
        if (block.timestamp < matureAt) revert NotMature(epoch, matureAt);
        bool ended = times.has(ENDED);
        if (ended && block.timestamp >= _closesAt(times, stoppedAt)) revert PoolOver(table.pool);
        uint256 epochs = uint256(epoch) + 1 - next;
        bool last = ended && epoch >= times.epochAt(stoppedAt);
        if (!last && epochs * times.epochSeconds() < delay) revert TooFewEpochs(epochs * times.epochSeconds(), delay);
        if (table.total < book.total) revert TotalFalls(table.total, book.total);
        uint256 more = table.total - book.total;
        if (more > epochs * perEpoch) revert TooMuchForEpochs(more, epochs * perEpoch);
        if (more > book.free) revert EscrowTooSmall(more, book.free);
    }

    /// Until when tables of a pool that has ended may come: a window after its last epoch is mature.
    function _closesAt(Counters times, uint256 stoppedAt) private pure returns (uint256) {
        return times.maturity(times.epochAt(stoppedAt)) + times.window();
    }

    function _pay(uint256 id, address node, Swarm.Payee memory payee, uint256 units) private {
        Paid storage paid = _paid[id][node];
        (uint256 epochs, uint64 from) = _unused(payee, paid);
        uint256 capacity = payee.capacity;
        uint256 most = epochs * capacity;
        // slither-disable-next-line incorrect-equality -- a product of counts, no balance; nothing is divided below it
        if (most == 0) revert CapacityUsed(id, node, from);
        if (units > most) units = most;
        // only as many epochs as this pay takes: whoever carries an early claim costs the node nothing
        paid.unusedFrom = from + uint64((units + capacity - 1) / capacity);
        paid.claimed += uint64(units);
        _books[id].owed -= uint64(units);
        uint256 amount = units * payee.rewardPerUnit;
        emit Claimed(id, node, payee.provider, uint64(units), amount);
        token.safeTransfer(payee.provider, amount);
    }

    /// How many epochs no pay has used up, and the first of them.
    function _unused(Swarm.Payee memory payee, Paid storage paid) private view returns (uint256 epochs, uint64 from) {
        if (payee.joinedAt == 0) return (0, 0);
        from = payee.times.epochAt(payee.joinedAt);
        if (paid.unusedFrom > from) from = paid.unusedFrom;
        uint256 next = uint256(payee.times.epochAt(block.timestamp)) + 1;
        epochs = next > from ? next - from : 0;
    }

    /// Takes tokens from the caller; refuses a token that delivers less than it takes.
    function _pull(uint256 amount) private {
        uint256 before = token.balanceOf(address(this));
        token.safeTransferFrom(msg.sender, address(this), amount);
        uint256 received = token.balanceOf(address(this)) - before;
        if (received != amount) revert TokenTakesFee(amount, received);
    }
}
