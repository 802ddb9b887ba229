// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Court} from "./Court.sol";
import {Judgement, Statements, WorkCommitment} from "./Statements.sol";
import {Swarm} from "./Swarm.sol";

/// @title Chair
/// @notice Which of a pool's trainers leads, and since which step. Holds no money. A pool that nobody seated here is led
/// by its manager, in term 0 for ever.
///
/// A term is one trainer's: one transaction wins it, and everybody can read from which step and which policy on its
/// word counts. So two trainers never lead at once, however they hear of each other.
///
/// Who holds or takes the chair is a member of the pool with a stake that answers for it (`Court.fit`). Who is not any
/// more holds nothing, and nobody waits for it; the first holder has its first lease to join.
contract Chair {
    /// fromStep, parent: the first policy that is the holder's, and the one before it; until: the lease's end; reached:
    /// how far the run has come, as holders said, within what the quorum that ended the last term knew
    struct Term {
        uint32 number;
        uint8 place;
        bool ended;
        uint40 until;
        uint64 fromStep;
        uint64 reached;
        bytes32 parent;
    }

    /// What the words of a quorum that ended a term were about: the lease, and how far holders had said to be.
    struct Silence {
        uint32 number;
        uint40 lease;
        uint64 held;
    }

    struct Seating {
        uint32 leaseSeconds;
        uint32 graceSeconds;
        /// from when the proposed ones may take their places; zero without a proposal
        uint40 proposedFrom;
        address[] trainers;
        address[] proposed;
    }

    uint256 public constant MAX_TRAINERS = 8;
    uint256 public constant MAX_LEASE_SECONDS = 7 days;
    /// @notice So many policies a new term may take back, at most: nobody takes the run back to its start.
    uint64 public constant MAX_TAKEN_BACK = 64;
    /// @notice So long the proposed trainers may take their places; after that somebody must propose them anew.
    uint256 public constant PROPOSAL_SECONDS = 7 days;

    Swarm public immutable swarm;
    Court public immutable court;

    mapping(uint256 pool => Term) private _terms;
    mapping(uint256 pool => Seating) private _seatings;
    mapping(uint256 pool => Silence) private _silences;

    event TrainersSeated(uint256 indexed pool, address[] trainers, uint32 leaseSeconds, uint32 graceSeconds);
    event TrainersProposed(uint256 indexed pool, address[] trainers, uint64 from);
    event TermTaken(
        uint256 indexed pool, address indexed holder, uint32 term, uint64 fromStep, bytes32 parent, uint64 until
    );
    event TermHeld(
        uint256 indexed pool, address indexed holder, uint32 term, uint64 step, bytes32 policyRoot, uint64 until
    );
    event TermEnded(uint256 indexed pool, uint32 term, uint64 endedAt, uint64 reached);

    error OnlyOpener(address caller);
    error AlreadySeated(uint256 pool);
    error NotSeated(uint256 pool);
    error BadTrainers(uint256 trainers);
    error BadLease(uint256 leaseSeconds, uint256 graceSeconds);
    error NoProposal(uint256 pool);
    error TooEarly(uint256 from);
    error ProposalLapsed(uint256 until);
    error NotTheHolder(address caller, address holder);
    error NotATrainer(address caller);
    error OtherTerm(uint32 term, uint64 until);
    error TermIsOver(uint32 term);
    error BadStep(uint64 step, uint64 least);
    error NothingFound();
    error NotInOrder(uint64 step, uint64 before);

    constructor(Court court_) {
        court = court_;
        swarm = court_.swarm();
    }

    /// @notice The pool's trainers in the order of their turn, once, by who opened it or its manager, who leads without them.
    /// The first of them leads from the start.
    function seat(uint256 id, address[] calldata trainers, uint32 leaseSeconds, uint32 graceSeconds) external {
        // slither-disable-next-line unused-return -- nobody waits for the first ones
        (address opener,) = swarm.openerOf(id);
        if (msg.sender != opener && msg.sender != swarm.managerOf(id)) revert OnlyOpener(msg.sender);
        if (_seatings[id].trainers.length != 0) revert AlreadySeated(id);
        if (leaseSeconds == 0 || leaseSeconds > MAX_LEASE_SECONDS || graceSeconds > leaseSeconds) {
            revert BadLease(leaseSeconds, graceSeconds);
        }
        _checkTrainers(trainers);
        _seatings[id] = Seating(leaseSeconds, graceSeconds, 0, trainers, new address[](0));
        emit TrainersSeated(id, trainers, leaseSeconds, graceSeconds);
        _begin(id, 0, 0, 0, bytes32(0), 0);
    }

    /// @notice The holder says that it lives, and how far it is: once in the last third of a lease. A lease that has run out is held
    /// until somebody takes; a term that was ended is not.
    function hold(uint256 id, uint64 step, bytes32 policyRoot) external {
        Seating storage seating = _seated(id);
        Term storage term = _terms[id];
        address holder = seating.trainers[term.place];
        if (msg.sender != holder) revert NotTheHolder(msg.sender, holder);
        if (term.ended || !_mayLead(id, holder)) revert TermIsOver(term.number);
        uint40 until = uint40(block.timestamp + seating.leaseSeconds);
        term.until = until;
        // a holder that says less than it said takes nothing back; one that says too much is corrected by a quorum
        if (step > term.reached) term.reached = step;
        emit TermHeld(id, holder, term.number, step, policyRoot, until);
    }

    /// @notice The next term is the caller's, if the last one is over and it is its turn. Who stands `i` places behind
    /// the last holder waits `i - 1` graces longer, so the former holder comes last. It begins at most `MAX_TAKEN_BACK`
    /// policies before the newest; where the last term began does not matter, or one too far ahead would be the end.
    /// @param term that the caller takes: one more than the last, so that of two who take at once one loses
    function take(uint256 id, uint32 term, uint64 fromStep, bytes32 parent) external {
        // slither-disable-next-line unused-return -- asked because it refuses a pool that is over
        swarm.managerOf(id);
        Seating storage seating = _seated(id);
        Term storage last = _terms[id];
        if (term != last.number + 1) revert OtherTerm(last.number, last.until);
        uint256 count = seating.trainers.length;
        uint256 place = _placeOf(seating.trainers, msg.sender);
        if (place == count || !_mayLead(id, msg.sender)) revert NotATrainer(msg.sender);
        uint64 least = last.reached > MAX_TAKEN_BACK ? last.reached - MAX_TAKEN_BACK : 0;
        if (fromStep < least) revert BadStep(fromStep, least);
        if (!_isOut(id, last, seating.trainers[last.place])) {
            uint256 turn = (place + 2 * count - last.place - 1) % count;
            uint256 from = last.until + turn * seating.graceSeconds;
            if (block.timestamp < from) revert TooEarly(from);
        }
        _begin(id, term, uint8(place), fromStep, parent, last.reached);
    }

    /// @notice A quorum of the pool's validators did not hear the holder. The lease names which silence they mean: one
    /// that has held since then is not silent any more.
    /// @param steps the newest policy that each of them knows, the greatest first. The run has come as far as holders
    /// said, but at least to the word that a quorum reaches, and at most to the greatest: fewer liars than a quorum can
    /// have nothing taken back, and move nothing where the holder was honest. Until somebody takes, other words about
    /// the same lease correct it.
    function endTerm(uint256 id, uint32 number, uint64 until, uint64[] calldata steps, bytes[] calldata signatures)
        external
    {
        // slither-disable-next-line unused-return -- that it is seated is what is asked
        _seated(id);
        Term storage term = _terms[id];
        if (term.number != number) revert OtherTerm(term.number, term.until);
        Silence memory silence = _silences[id];
        bool again = term.ended && silence.lease != 0 && silence.number == number;
        if (term.ended && !again) revert TermIsOver(number);
        if ((again ? silence.lease : term.until) != until) revert OtherTerm(number, term.until);
        uint256 quorum = court.requireQuorum(id, _words(id, number, until, steps), signatures);
        uint64 reached = again ? silence.held : term.reached;
        if (!again) _silences[id] = Silence(number, uint40(until), reached);
        if (reached < steps[quorum - 1]) reached = steps[quorum - 1];
        if (reached > steps[0]) reached = steps[0];
        term.reached = reached;
        if (again) emit TermEnded(id, number, term.until, reached);
        else _end(id, term);
    }

    /// @notice A quorum found a step of the holder's bad, whatever each of them saw in it. What proves the fault besides
    /// costs the stake, too: the same verdicts go to `Court.slash`.
    /// @param c what the holder signed by stating the step; its slot names the term, so that no other term ends by it
    function endTermByVerdicts(
        uint32 number,
        WorkCommitment calldata c,
        Judgement[] calldata verdicts,
        bytes[] calldata signatures
    ) external {
        Term storage term = _terms[c.pool];
        address holder = _seated(c.pool).trainers[term.place];
        if (term.number != number) revert OtherTerm(term.number, term.until);
        if (term.ended) revert TermIsOver(number);
        if (c.node != holder) revert NotTheHolder(c.node, holder);
        if (c.policyRoot != Statements.slotOf(number)) revert OtherTerm(number, term.until);
        bytes32 work = Statements.hashCommitment(c);
        bytes32[] memory statements = new bytes32[](verdicts.length);
        for (uint256 i = 0; i < verdicts.length; ++i) {
            if (verdicts[i].outcome == Statements.OUTCOME_ACCEPT) revert NothingFound();
            statements[i] = Statements.hashVerdict(c.pool, work, verdicts[i]);
        }
        // slither-disable-next-line unused-return -- asked because it refuses what is no quorum
        court.requireQuorum(c.pool, statements, signatures);
        // the next term may begin at the bad step, however long ago that was
        if (c.index < term.reached) term.reached = c.index;
        _end(c.pool, term);
    }

    /// @notice Who opened the pool names other trainers. They take their places by `applyTrainers`, a window from now or
    /// later. Naming anew undoes what was named.
    function propose(uint256 id, address[] calldata trainers) external {
        (address opener, uint256 window) = swarm.openerOf(id);
        if (msg.sender != opener) revert OnlyOpener(msg.sender);
        Seating storage seating = _seated(id);
        _checkTrainers(trainers);
        uint40 from = uint40(block.timestamp + window);
        seating.proposed = trainers;
        seating.proposedFrom = from;
        emit TrainersProposed(id, trainers, from);
    }

    /// @notice Puts the proposed trainers in their places. The term goes on if its holder is one of them. If not, the next
    /// one may begin anywhere: a run whose trainers are all lost goes on from what somebody kept.
    function applyTrainers(uint256 id) external {
        // slither-disable-next-line unused-return -- asked because it refuses a pool that is over
        swarm.openerOf(id);
        Seating storage seating = _seated(id);
        Term storage term = _terms[id];
        uint256 from = seating.proposedFrom;
        if (from == 0) revert NoProposal(id);
        if (block.timestamp < from) revert TooEarly(from);
        if (block.timestamp >= from + PROPOSAL_SECONDS) revert ProposalLapsed(from + PROPOSAL_SECONDS);
        address[] memory trainers = seating.proposed;
        uint256 place = _placeOf(trainers, seating.trainers[term.place]);
        seating.trainers = trainers;
        seating.proposedFrom = 0;
        delete seating.proposed;
        emit TrainersSeated(id, trainers, seating.leaseSeconds, seating.graceSeconds);
        if (place == trainers.length) {
            term.place = uint8(place - 1);
            term.reached = 0;
            delete _silences[id]; // nobody corrects that
            if (!term.ended) _end(id, term);
        } else {
            term.place = uint8(place);
        }
    }

    function termOf(uint256 id) external view returns (Term memory) {
        return _terms[id];
    }

    function seatingOf(uint256 id) external view returns (Seating memory) {
        return _seatings[id];
    }

    // --------------------------------------------------------------- internal

    function _begin(uint256 id, uint32 number, uint8 place, uint64 fromStep, bytes32 parent, uint64 reached) private {
        Seating storage seating = _seatings[id];
        uint40 until = uint40(block.timestamp + seating.leaseSeconds);
        _terms[id] = Term(number, place, false, until, fromStep, reached, parent);
        emit TermTaken(id, seating.trainers[place], number, fromStep, parent, until);
    }

    /// What those must have signed who know of these steps, the greatest first.
    function _words(uint256 id, uint32 number, uint64 until, uint64[] calldata steps)
        private
        pure
        returns (bytes32[] memory statements)
    {
        statements = new bytes32[](steps.length);
        for (uint256 i = 0; i < steps.length; ++i) {
            statements[i] = Statements.hashTermSilent(id, number, until, steps[i]);
            if (i > 0 && steps[i] > steps[i - 1]) revert NotInOrder(steps[i], steps[i - 1]);
        }
    }

    function _end(uint256 id, Term storage term) private {
        term.ended = true;
        term.until = uint40(block.timestamp);
        emit TermEnded(id, term.number, uint64(block.timestamp), term.reached);
    }

    function _seated(uint256 id) private view returns (Seating storage seating) {
        seating = _seatings[id];
        if (seating.trainers.length == 0) revert NotSeated(id);
    }

    /// A member of the pool whose lease runs, and fit for an office.
    function _mayLead(uint256 id, address trainer) private view returns (bool) {
        return block.timestamp < swarm.memberInfo(id, trainer).memberUntil && court.fit(id, trainer);
    }

    /// Whether nobody need wait for the last holder. The first one may not have joined yet: until its first lease is over
    /// only an eviction takes the chair from it.
    function _isOut(uint256 id, Term storage last, address holder) private view returns (bool) {
        if (last.number == 0) return swarm.memberInfo(id, holder).evicted;
        return !_mayLead(id, holder);
    }

    /// As many as there are, if it is none of them.
    function _placeOf(address[] memory trainers, address trainer) private pure returns (uint256 place) {
        while (place < trainers.length && trainers[place] != trainer) ++place;
    }

    function _checkTrainers(address[] calldata trainers) private pure {
        if (trainers.length == 0 || trainers.length > MAX_TRAINERS) revert BadTrainers(trainers.length);
        for (uint256 i = 0; i < trainers.length; ++i) {
            if (trainers[i] == address(0)) revert NotATrainer(trainers[i]);
            for (uint256 j = 0; j < i; ++j) {
                if (trainers[i] == trainers[j]) revert NotATrainer(trainers[i]);
            }
        }
    }
}
