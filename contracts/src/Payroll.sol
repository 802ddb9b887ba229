// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {ReentrancyGuard} from "@openzeppelin/contracts/utils/ReentrancyGuard.sol";
import {Counters, ENDED} from "./Counters.sol";
import {Court} from "./Court.sol";
import {StakeVault} from "./StakeVault.sol";
import {Filing, Statements, Tally} from "./Statements.sol";
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
/// When a pool has ended and no table may come any more, nodes file what validators named of the epochs that no table has,
/// for a window. A delay later all that was filed shares what is free, and the rest goes back to the opener.
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
        /// from when it counts, or when it was dropped
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
        /// units that it filed, and that were neither redeemed nor dropped
        uint64 filed;
    }

    /// What all nodes filed of a pool that has ended.
    struct Filings {
        /// units that were neither redeemed nor dropped
        uint128 filed;
        /// what is left of the free units that the first `redeem` or `sweep` set aside for them
        uint64 aside;
        /// until when the guardian holds them; zero if it does not
        uint40 heldUntil;
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
    mapping(uint256 pool => Filings) private _filings;
    /// @notice Units of an epoch that a node has filed, redeemed and dropped ones too.
    mapping(uint256 pool => mapping(address node => mapping(uint64 epoch => uint64))) public filedOf;

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
    event Claimed(uint256 indexed pool, address indexed node, address indexed provider, uint64 units, uint256 amount);
    event GivenBack(uint256 indexed pool, address indexed node, uint64 units);
    event Filed(uint256 indexed pool, address indexed node, uint64 indexed epoch, uint64 units);
    event FilingsHeld(uint256 indexed pool, uint64 until);
    event FilingDropped(uint256 indexed pool, address indexed node, uint64 units);
    /// @param units of the `filed` ones that were free
    event Redeemed(
        uint256 indexed pool, address indexed node, address indexed provider, uint64 filed, uint64 units, uint256 amount
    );

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
    error NotNow(uint256 from, uint256 until);
    error NotYourNode(address node, address provider);
    error EpochNotToFile(uint64 epoch, uint64 first, uint64 last);
    error NothingToFile(uint64 epoch, uint256 units, uint64 filed);
    error NothingFiled(uint256 pool, address node);

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

    /// @notice Pays whoever opened the pool what no table has promised and nobody has filed, once neither may come any more.
    /// What is owed stays; what goes back to the pool later can be swept later. Not the manager: its key signs policies on a
    /// machine of the swarm.
    function sweep(uint256 id) external nonReentrant {
        Book storage book = _count(id);
        (Filings memory filings,, uint256 until, uint256 redeemable) = filingsOf(id);
        if (filings.filed != 0) until = redeemable;
        if (block.timestamp < until) revert PoolStillOpen(id, until);
        _setAside(id);
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
        if (block.timestamp < _waiting[id].countsAt) revert TableWaits(id, _waiting[id].countsAt);
        uint256 delay = _checkTable(book, table);
        uint64 countsAt = uint64(block.timestamp + delay);
        _waiting[id] =
            Waiting(table.root, table.total, table.epoch + 1, countsAt, false, keccak256(abi.encode(signers)));
        emit EarningsPosted(id, table.epoch, table.number, table.root, table.total, table.blob, countsAt, signers);
    }

    /// @notice The pool's guardian doubts the table that waits: it waits for the vault's `appealSeconds` from now, and counts
    /// unless the arbiter drops it. Once a table. Or, where no table may come any more, what nodes file: all of it waits as
    /// long from the end of filing, or from now if that is later, and is redeemed but for what the arbiter drops. Once.
    function hold(uint256 id) external {
        if (msg.sender != swarm.guardianOf(id)) revert OnlyGuardian(msg.sender);
        Waiting storage waiting = _waiting[id];
        uint256 until = block.timestamp;
        if (until < waiting.countsAt) {
            if (waiting.held) revert AlreadyHeld(id);
            until += vault.appealSeconds();
            (waiting.held, waiting.countsAt) = (true, uint64(until));
            emit EarningsHeld(id, waiting.epochs - 1, uint64(until));
            return;
        }
        (Filings memory filings, uint256 from, uint256 ends, uint256 redeemable) = filingsOf(id);
        if (until < from || until >= redeemable) revert NoTableWaits(id);
        if (filings.heldUntil != 0) revert AlreadyHeld(id);
        until = (until < ends ? ends : until) + vault.appealSeconds();
        _filings[id].heldUntil = uint40(until);
        emit FilingsHeld(id, uint64(until));
    }

    /// @notice The vault's arbiter finds a table that is held false. It never counts, and whoever signed it loses its slash,
    /// its seat and its membership. The pool's money stays where it is, and the next table may come at once. Or it finds
    /// false what nodes filed, once filing is over: they are paid none of it, and nobody is punished.
    /// @param who of a table the signers as `EarningsPosted` told them; else the nodes
    function drop(uint256 id, address[] calldata who) external nonReentrant {
        if (msg.sender != vault.arbiter()) revert OnlyArbiter(msg.sender);
        Waiting storage waiting = _waiting[id];
        if (block.timestamp < waiting.countsAt) {
            if (!waiting.held) revert NotHeld(id);
            if (keccak256(abi.encode(who)) != waiting.signers) revert OtherSigners(id);
            emit EarningsDropped(id, waiting.epochs - 1, waiting.root);
            (waiting.countsAt, waiting.epochs) = (uint64(block.timestamp), 0);
            return court.punishTable(id, who, waiting.root);
        }
        (Filings memory filings,, uint256 until, uint256 redeemable) = filingsOf(id);
        if (block.timestamp < until || block.timestamp >= redeemable) revert NoTableWaits(id);
        if (filings.heldUntil == 0) revert NotHeld(id);
        for (uint256 i = 0; i < who.length; ++i) {
            emit FilingDropped(id, who[i], _takeFiled(id, who[i]));
        }
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
            if (!_isLost(payee)) revert CaseNotFinal(payee.caseId);
            paid.claimed = claimed + uint64(due);
            book.owed -= uint64(due);
            book.free += uint64(due);
            emit GivenBack(id, node, uint64(due));
        } else {
            _pay(id, node, payee, due);
        }
    }

    // ------------------------------------------------------- after a pool's end

    /// @notice A node, or its provider, files what quorums named of it in epochs that no table has, at most what its size
    /// allows; of an epoch again only what is more.
    function file(uint256 id, address node, Filing[] calldata filings) external {
        _count(id);
        (, uint256 from, uint256 until,) = filingsOf(id);
        if (block.timestamp < from || block.timestamp >= until) revert NotNow(from, until);
        Swarm.Payee memory payee = swarm.payeeOf(id, node);
        if (msg.sender != node && msg.sender != payee.provider) revert NotYourNode(node, payee.provider);
        if (payee.joinedAt == 0 || _isLost(payee)) revert NotMember(id, node);
        for (uint256 i = 0; i < filings.length; ++i) {
            _file(id, node, payee, filings[i]);
        }
    }

    /// @notice Pays the node's provider what it filed, or its share of what is free; anybody may carry it. What an evicted
    /// node would have got goes back to the pool, as in `claim`.
    function redeem(uint256 id, address node) external nonReentrant {
        Book storage book = _count(id);
        (,,, uint256 from) = filingsOf(id);
        if (block.timestamp < from) revert NotNow(from, type(uint256).max);
        _setAside(id);
        Swarm.Payee memory payee = swarm.payeeOf(id, node);
        if (payee.evicted && !_isLost(payee)) revert CaseNotFinal(payee.caseId);
        (uint256 aside, uint256 all) = (_filings[id].aside, _filings[id].filed);
        uint64 filed = _takeFiled(id, node);
        // rounded down, and what that leaves is the others'
        uint64 units = uint64(filed * aside / all);
        _filings[id].aside = uint64(aside) - units;
        if (payee.evicted) (book.free, payee.rewardPerUnit) = (book.free + units, 0);
        emit Redeemed(id, node, payee.provider, filed, units, units * payee.rewardPerUnit);
        token.safeTransfer(payee.provider, units * payee.rewardPerUnit);
    }

    // ------------------------------------------------------------------ views

    /// @notice What was filed; when filing begins and ends, and from when it is redeemed: never in a pool that goes on. A
    /// table that is posted late or held puts it off.
    function filingsOf(uint256 id)
        public
        view
        returns (Filings memory filings, uint256 from, uint256 until, uint256 redeemable)
    {
        filings = _filings[id];
        // slither-disable-next-line unused-return -- what is filed is no table's
        (Counters times,, uint256 stoppedAt, uint256 delay) = swarm.tableTerms(id);
        if (!times.has(ENDED)) return (filings, type(uint256).max, type(uint256).max, type(uint256).max);
        (from, until) = (_closesAt(times, stoppedAt), _waiting[id].countsAt);
        if (until > from) from = until;
        until = from + times.window();
        redeemable = until + delay;
        if (filings.heldUntil > redeemable) redeemable = filings.heldUntil;
    }

    /// @notice What is free and owed, and the newest table that counts: of everything through epoch `epochs` - 1; no table
    /// yet if `epochs` is zero.
    function bookOf(uint256 id) public view returns (Book memory book) {
        book = _books[id];
        Waiting storage waiting = _waiting[id];
        if (!_counts(id)) return book;
        uint64 more = waiting.total - book.total;
        (book.free, book.owed, book.total, book.root) =
        (book.free - more, book.owed + more, waiting.total, waiting.root);
        (book.lastUnits, book.lastEpochs, book.epochs) = (more, waiting.epochs - book.epochs, waiting.epochs);
    }

    /// @notice The table that does not count yet; all zeros where none waits.
    function waitingOf(uint256 id) external view returns (Waiting memory waiting) {
        if (block.timestamp < _waiting[id].countsAt) waiting = _waiting[id];
    }

    /// @notice What the node was paid, and what it filed.
    function paidOf(uint256 id, address node) external view returns (Paid memory) {
        return _paid[id][node];
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
        if (_counts(id)) _books[id] = bookOf(id);
    }

    /// Whether a table has waited long enough, and was not moved over.
    function _counts(uint256 id) private view returns (bool) {
        return block.timestamp >= _waiting[id].countsAt && _waiting[id].epochs > _books[id].epochs;
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

    /// The last epoch of a pool that has ended.
    function _lastOf(uint256 id) private view returns (uint64) {
        // slither-disable-next-line unused-return -- when it is is all that is asked
        (Counters times,, uint256 stoppedAt,) = swarm.tableTerms(id);
        return times.epochAt(stoppedAt);
    }

    /// Until when tables of a pool that has ended may come: a window after its last epoch is mature.
    function _closesAt(Counters times, uint256 stoppedAt) private pure returns (uint256) {
        return times.maturity(times.epochAt(stoppedAt)) + times.window();
    }

    function _file(uint256 id, address node, Swarm.Payee memory payee, Filing calldata filing) private {
        (uint64 epoch, uint64 first, uint64 last) = (filing.epoch, _books[id].epochs, _lastOf(id));
        if (epoch < first || epoch > last) revert EpochNotToFile(epoch, first, last);
        uint256 units = court.leastOf(id, node, payee.times.beginning(epoch), filing);
        uint64 before = filedOf[id][node][epoch];
        if (units <= before) revert NothingToFile(epoch, units, before);
        uint64 more = _fit(id, node, payee, units - before);
        filedOf[id][node][epoch] = before + more;
        _paid[id][node].filed += more;
        _filings[id].filed += more;
        emit Filed(id, node, epoch, more);
    }

    /// Fixes what of the free units is for whoever filed: no more than all nodes can be paid for the epochs that no table has.
    function _setAside(uint256 id) private {
        Filings storage filings = _filings[id];
        uint256 units = filings.filed;
        if (units == 0 || filings.aside != 0) return;
        Book storage book = _books[id];
        // slither-disable-next-line unused-return -- `_lastOf` has asked for its times
        (, uint256 perEpoch,,) = swarm.tableTerms(id);
        uint256 most = perEpoch * (uint256(_lastOf(id)) + 1 - book.epochs);
        if (book.free < most) most = book.free;
        if (units > most) units = most;
        book.free -= uint64(units);
        filings.aside = uint64(units);
    }

    /// @return units that the node had filed: it has no more
    function _takeFiled(uint256 id, address node) private returns (uint64 units) {
        units = _paid[id][node].filed;
        if (units == 0) revert NothingFiled(id, node);
        _paid[id][node].filed = 0;
        _filings[id].filed -= units;
    }

    /// Whether nothing can undo that the node is evicted: its own signatures leave nothing to appeal against; a case that is
    /// being opened has no number yet.
    function _isLost(Swarm.Payee memory payee) private view returns (bool) {
        return payee.convicted || (payee.caseId != 0 && vault.isFinal(payee.caseId));
    }

    function _pay(uint256 id, address node, Swarm.Payee memory payee, uint256 due) private {
        uint64 units = _fit(id, node, payee, due);
        _paid[id][node].claimed += units;
        _books[id].owed -= units;
        uint256 amount = units * payee.rewardPerUnit;
        emit Claimed(id, node, payee.provider, units, amount);
        token.safeTransfer(payee.provider, amount);
    }

    /// As many of the units as the node's size allows, which uses up epochs of it.
    function _fit(uint256 id, address node, Swarm.Payee memory payee, uint256 units) private returns (uint64) {
        Paid storage paid = _paid[id][node];
        (uint256 epochs, uint64 from) = _unused(payee, paid);
        uint256 capacity = payee.capacity;
        uint256 most = epochs * capacity;
        // slither-disable-next-line incorrect-equality -- a product of counts, no balance; nothing is divided below it
        if (most == 0) revert CapacityUsed(id, node, from);
        if (units > most) units = most;
        // only as many epochs as this takes: whoever carries an early claim costs the node nothing
        paid.unusedFrom = from + uint64((units + capacity - 1) / capacity);
        return uint64(units);
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
