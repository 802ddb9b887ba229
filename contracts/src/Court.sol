// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ICourt} from "./Pools.sol";
import {Nodes} from "./Nodes.sol";
import {Filing, Judgement, RootLine, Statements, Tally, WorkCommitment, WorkLeaf} from "./Statements.sol";
import {Swarm} from "./Swarm.sol";

/// @title Court
/// @notice Who may judge in a pool, and what signatures prove. Holds no money and decides no amount: it hands what it
/// found to the Swarm. Anybody may carry signatures here. All of them are made for the Swarm's EIP-712 domain.
///
/// Two kinds of proof: a quorum of the pool's validators, each of them a registered node with a stake; or two
/// statements of one key that contradict each other, which need no judge.
contract Court is ICourt {
    /// The validators of one pool. A new number ends every earlier seat at once.
    struct Bench {
        uint32 number;
        uint8 threshold;
        uint8 proposedThreshold;
        /// from when the proposed ones may take office; zero without a proposal
        uint40 proposedFrom;
        /// since when these are in office; zero for a pool's first ones
        uint40 since;
        address[] validators;
        address[] proposed;
    }

    /// A validator's place on the bench of a number.
    struct Seat {
        uint32 bench;
        uint8 place;
    }

    /// A bench that took office, for what its validators signed: since when, and a hash of its list and threshold.
    struct Sat {
        uint40 since;
        bytes27 list;
    }

    /// An Invitation, as it is shown.
    struct Invited {
        /// a node, its provider, or a key that signs a Ticket for the node that its holder likes
        address invitee;
        /// how many nodes it lets in
        uint32 places;
        uint64 deadline;
        /// the manager's
        bytes signature;
        /// the invitee's, of a Ticket; not looked at where the node or its provider is the invitee
        bytes ticket;
    }

    uint256 public constant MAX_VALIDATORS = 16;
    /// @notice An attestation is worth nothing later than this: hardware changes hands.
    uint256 public constant MAX_ATTESTATION_SECONDS = 90 days;
    /// @notice So long the proposed validators may take office; after that somebody must propose them anew.
    uint256 public constant PROPOSAL_SECONDS = 7 days;
    /// @notice The reason in `Slashed` when two commitments of one node contradict each other (Reason.DUPLICATE).
    uint8 public constant REASON_EQUIVOCATION = 4;
    /// @notice The reason in `Slashed` when two verdicts of one validator contradict each other.
    uint8 public constant REASON_DOUBLE_VERDICT = 200;
    /// @notice The reason in `Slashed` when a validator's root of an epoch contradicts another one, or its verdict.
    uint8 public constant REASON_FALSE_ROOT = 201;
    /// @notice The reason in `Slashed` when a validator's table was dropped, or contradicts another one.
    uint8 public constant REASON_FALSE_TABLE = 202;

    Swarm public immutable swarm;

    mapping(uint256 pool => Bench) private _benches;
    mapping(uint256 pool => mapping(address validator => Seat)) private _seats;
    mapping(uint256 pool => mapping(uint256 bench => Sat)) private _sat;
    /// what a quorum has had somebody slashed for: overturned or not, it is not judged again
    mapping(bytes32 work => bool) private _judged;

    /// @notice When a quorum attested a node's units last; `NodeAttested` says how many, and until when.
    mapping(uint256 pool => mapping(address node => uint64)) public attestedAt;
    mapping(uint256 pool => mapping(address node => bool)) private _admitted;
    /// @notice How many places of an invitation are taken: all that there can be, if the manager took it back.
    mapping(uint256 pool => mapping(address invitee => uint32)) public placesTaken;

    event NodeAttested(uint256 indexed pool, address indexed node, uint32 units, uint64 madeAt, uint64 until);
    event Admitted(uint256 indexed pool, address indexed node, address indexed invitee);
    event ValidatorsProposed(uint256 indexed pool, address[] validators, uint8 threshold, uint64 from);
    event InvitationsRevoked(uint256 indexed pool, address[] invitees);
    event ValidatorsSet(uint256 indexed pool, uint32 indexed number, address[] validators, uint8 threshold);
    event ValidatorStruck(uint256 indexed pool, address indexed validator);

    error OnlySwarm(address caller);
    error OnlyPayroll(address caller);
    error OnlyManager(address caller);
    error OnlyOpener(address caller);
    error InvitationExpired(uint256 deadline);
    error InvitationSpent(uint256 pool, address invitee);
    error BadQuorum(uint256 validators, uint256 threshold);
    error BadValidator(address validator);
    error NoProposal(uint256 pool);
    error TooEarly(uint256 from);
    error ProposalLapsed(uint256 until);
    error BadAttestation(uint64 madeAt, uint64 until);
    error NotItsJudges(uint256 pool, address node);
    error NotMember(uint256 pool, address node);
    error NotAValidator(address signer);
    error ValidatorUnfit(address validator);
    error DuplicateVerdict(address validator);
    error QuorumMissing(uint256 verdicts, uint256 threshold);
    error BadValues(uint256 values, uint256 signatures);
    error AlreadyJudged(bytes32 root);
    error NoContradiction();
    error OtherBench(uint256 pool, uint32 bench);
    error BadLine(uint256 line);

    constructor(Swarm swarm_) {
        swarm = swarm_;
    }

    // ------------------------------------------------------------- validators

    function seat(uint256 id, address[] calldata validators, uint8 threshold) external {
        if (msg.sender != address(swarm)) revert OnlySwarm(msg.sender);
        _checkValidators(validators, threshold);
        _seat(id, validators, threshold);
    }

    /// @notice Who opened the pool names other validators. They take office by `applyValidators`, a window from now or
    /// later, so that nobody who works today is judged by somebody he could not know. Naming anew undoes what was named.
    function proposeValidators(uint256 id, address[] calldata validators, uint8 threshold) external {
        (address opener, uint256 window) = swarm.openerOf(id);
        if (msg.sender != opener) revert OnlyOpener(msg.sender);
        _checkValidators(validators, threshold);
        Bench storage bench = _benches[id];
        uint40 from = uint40(block.timestamp + window);
        bench.proposed = validators;
        bench.proposedThreshold = threshold;
        bench.proposedFrom = from;
        emit ValidatorsProposed(id, validators, threshold, from);
    }

    /// @notice Puts the proposed validators into office, all at once; the former ones have none any more. Not in a pool that
    /// has ended: nobody takes the last table from those who saw the work.
    function applyValidators(uint256 id) external {
        // slither-disable-next-line unused-return -- asked because it refuses a pool that is over
        swarm.openerOf(id);
        Bench storage bench = _benches[id];
        uint40 from = bench.proposedFrom;
        if (from == 0) revert NoProposal(id);
        if (block.timestamp < from) revert TooEarly(from);
        if (block.timestamp >= from + PROPOSAL_SECONDS) revert ProposalLapsed(from + PROPOSAL_SECONDS);
        address[] memory validators = bench.proposed;
        bench.proposedFrom = 0;
        bench.since = uint40(block.timestamp);
        delete bench.proposed;
        _seat(id, validators, bench.proposedThreshold);
    }

    function benchOf(uint256 id) external view returns (Bench memory) {
        return _benches[id];
    }

    // ------------------------------------------------------------ invitations

    /// @notice Lets a node into a pool by the manager's Invitation. Anybody may carry it, once.
    function admit(uint256 id, address node, Invited calldata by) external {
        // what is shown twice takes one place
        if (_admitted[id][node]) return;
        address manager = swarm.managerOf(id);
        if (block.timestamp > by.deadline) revert InvitationExpired(by.deadline);
        if (placesTaken[id][by.invitee] >= by.places) revert InvitationSpent(id, by.invitee);
        _requireSigner(Statements.hashInvitation(id, by.invitee, by.places, by.deadline), by.signature, manager);
        if (by.invitee != node && by.invitee != swarm.nodeInfo(node).provider) {
            _requireSigner(Statements.hashTicket(id, node), by.ticket, by.invitee);
        }
        placesTaken[id][by.invitee] += 1;
        _admitted[id][node] = true;
        emit Admitted(id, node, by.invitee);
    }

    /// @notice The manager takes invitations back. Who came by them stays.
    function revokeInvitations(uint256 id, address[] calldata invitees) external {
        address manager = swarm.managerOf(id);
        if (msg.sender != manager) revert OnlyManager(msg.sender);
        for (uint256 i = 0; i < invitees.length; ++i) {
            placesTaken[id][invitees[i]] = type(uint32).max;
        }
        emit InvitationsRevoked(id, invitees);
    }

    function admits(uint256 id, address node) external view returns (bool) {
        return _admitted[id][node] || _sits(id, node);
    }

    // ----------------------------------------------------------- by judgement

    /// @notice How big a quorum found the node to be (Attestation), when, and until when that counts. Of no units, it
    /// takes back whatever was attested before, shown or not.
    function attest(uint256 id, address node, uint32 units, uint64 madeAt, uint64 until, bytes[] calldata signatures)
        external
    {
        // slither-disable-next-line unused-return -- asked because it refuses a pool that is over
        swarm.managerOf(id);
        bytes32 statement = Statements.hashAttestation(id, node, units, madeAt, until);
        _requireQuorum(id, _repeat(statement, signatures.length), signatures);
        // made later than the last one: what was signed before it, sent or not, is over
        bool stale = madeAt <= attestedAt[id][node] || until <= block.timestamp;
        if (stale || madeAt > block.timestamp || until > madeAt + MAX_ATTESTATION_SECONDS) {
            revert BadAttestation(madeAt, until);
        }
        attestedAt[id][node] = madeAt;
        emit NodeAttested(id, node, units, madeAt, until);
    }

    /// @notice The arbiter has dropped a table (Payroll): whoever signed it loses seat, membership and slash.
    function punishTable(uint256 id, address[] calldata signers, bytes32 root) external {
        if (msg.sender != swarm.payroll()) revert OnlyPayroll(msg.sender);
        for (uint256 i = 0; i < signers.length; ++i) {
            if (_seats[id][signers[i]].bench != 0) _strike(id, signers[i]);
        }
        for (uint256 i = 0; i < signers.length; ++i) {
            // what it signed besides may have convicted it meanwhile
            if (!swarm.payeeOf(id, signers[i]).convicted) {
                swarm.punishByEvidence(id, signers[i], REASON_FALSE_TABLE, root);
            }
        }
    }

    /// @notice Punishes an objective fault in a file. Needs the node's own signature on the commitment and a quorum of
    /// the pool's validators for outcome 2 and this reason. Whoever carries it puts up a bond (StakeVault).
    /// @param values what each of them found besides, in the order of the signatures
    /// @param rechecked bit i: signature i is of a Rechecked, not of a Verdict
    function slash(
        WorkCommitment calldata c,
        bytes calldata nodeSignature,
        uint8 reason,
        bytes[] calldata signatures,
        bytes32[] calldata values,
        uint256 rechecked
    ) external {
        bytes32 work = Statements.hashCommitment(c);
        _requireSigner(work, nodeSignature, c.node);
        if (values.length != signatures.length) revert BadValues(values.length, signatures.length);
        _requireQuorum(c.pool, _slashVerdicts(c.pool, work, reason, values, rechecked), signatures);
        _punish(c, work, reason);
    }

    // ------------------------------------------------------------- by evidence

    /// @notice Punishes a node that signed two commitments for one (pool, policy, index) which differ in anything.
    function evidence(WorkCommitment[2] calldata said, bytes[2] calldata signatures) external {
        (WorkCommitment calldata first, WorkCommitment calldata second) = (said[0], said[1]);
        (bytes32 one, bytes32 two) = (Statements.hashCommitment(first), Statements.hashCommitment(second));
        if (
            first.pool != second.pool || first.node != second.node || first.policyRoot != second.policyRoot
                || first.index != second.index || one == two
        ) revert NoContradiction();
        _requireSigner(one, signatures[0], first.node);
        _requireSigner(two, signatures[1], first.node);
        if (swarm.memberInfo(first.pool, first.node).provider == address(0)) revert NotMember(first.pool, first.node);
        swarm.punishByEvidence(first.pool, first.node, REASON_EQUIVOCATION, first.fileRoot);
    }

    /// @notice Punishes a validator that signed two verdicts on one work which differ in anything. Its seat goes, and
    /// its stake if it is a node. `Slashed` names the work where it names a file otherwise.
    function verdictEvidence(uint256 id, bytes32 work, Judgement[2] calldata said, bytes[2] calldata signatures)
        external
    {
        (bytes32 one, bytes32 two) =
            (Statements.hashVerdict(id, work, said[0]), Statements.hashVerdict(id, work, said[1]));
        _convict(id, work, REASON_DOUBLE_VERDICT, one, two, signatures);
    }

    /// @notice The same for two tables of earnings, or two roots, of one epoch with one number which differ in anything.
    function tallyEvidence(bool tables, Tally[2] calldata said, bytes[2] calldata signatures) external {
        (Tally calldata first, Tally calldata second) = (said[0], said[1]);
        bool same = first.pool == second.pool && first.epoch == second.epoch && first.number == second.number;
        if (!same) revert NoContradiction();
        bytes32 kind = tables ? Statements.EARNINGS_TYPEHASH : Statements.EPOCH_ROOT_TYPEHASH;
        (bytes32 one, bytes32 two) = (Statements.hashTally(kind, first), Statements.hashTally(kind, second));
        _convict(first.pool, first.root, tables ? REASON_FALSE_TABLE : REASON_FALSE_ROOT, one, two, signatures);
    }

    /// @notice The same for a root that has a work among its leaves, and a verdict against that.
    /// @param signatures of the root, and of the verdict
    function leafEvidence(
        Tally calldata root,
        WorkLeaf calldata leaf,
        Judgement calldata verdict,
        bytes[2] calldata signatures
    ) external {
        if (verdict.outcome == Statements.OUTCOME_ACCEPT) revert NoContradiction();
        bytes32 top = Statements.climb(Statements.workLeaf(leaf.node, leaf.work, leaf.units), leaf.proof);
        if (top != root.root) revert NoContradiction();
        bytes32 one = Statements.hashTally(Statements.EPOCH_ROOT_TYPEHASH, root);
        bytes32 two = Statements.hashVerdict(root.pool, leaf.work, verdict);
        _convict(root.pool, leaf.work, REASON_FALSE_ROOT, one, two, signatures);
    }

    /// @notice Reverts unless these are the signatures of a quorum of the pool's validators, each over a statement of its
    /// own.
    /// @return how many a quorum has
    function requireQuorum(uint256 id, bytes32[] calldata statements, bytes[] calldata signatures)
        external
        view
        returns (uint256)
    {
        if (statements.length != signatures.length) revert BadValues(statements.length, signatures.length);
        _requireQuorum(id, statements, signatures);
        return _benches[id].threshold;
    }

    /// @notice What a quorum's roots of an epoch come to for a node: the least of what each of them named, in roots of
    /// different numbers. Of the bench that sat in the second `began`: neither its seats nor its stakes now are asked, so
    /// that who is convicted, unbonds or is replaced voids nobody's work.
    function leastOf(uint256 id, address node, uint256 began, Filing calldata filing)
        external
        view
        returns (uint256 least)
    {
        Sat memory sat = _sat[id][filing.bench];
        uint256 until = _sat[id][uint256(filing.bench) + 1].since;
        bool sits = sat.since != 0 && sat.since <= began && (until == 0 || began < until);
        if (!sits || sat.list != _hashOf(filing.validators, filing.threshold)) revert OtherBench(id, filing.bench);
        (uint256 seats, uint256 sum, uint256 last) = (0, type(uint256).max, 0);
        least = type(uint256).max;
        for (uint256 i = 0; i < filing.lines.length; ++i) {
            uint256 place = _placeOf(id, node, filing, i);
            if (place <= last) revert BadLine(i);
            if (place >> 64 != last >> 64) (least, seats, sum) = (sum < least ? sum : least, seats + 1, 0);
            (last, sum) = (place, sum + filing.lines[i].units);
        }
        if (seats < filing.threshold) revert QuorumMissing(seats, filing.threshold);
        if (sum < least) least = sum;
    }

    /// @notice Who signed a statement; reverts unless they are a quorum.
    function signersOf(uint256 id, bytes32 statement, bytes[] calldata signatures)
        external
        view
        returns (address[] memory)
    {
        return _requireQuorum(id, _repeat(statement, signatures.length), signatures);
    }

    /// @notice Whether the node may hold an office in the pool: it is registered, has something to lose, and was not
    /// found to be a cheat here. What is frozen counts until its case is final: judges of one pool silence nobody in
    /// another.
    function fit(uint256 id, address holder) public view returns (bool) {
        Nodes.Node memory node = swarm.nodeInfo(holder);
        if (!node.registered || swarm.memberInfo(id, holder).evicted) return false;
        return swarm.vault().backingOf(node.provider) >= swarm.requiredStake(node.provider);
    }

    // --------------------------------------------------------------- internal

    /// What each of the judges must have signed.
    function _slashVerdicts(uint256 id, bytes32 work, uint8 reason, bytes32[] calldata values, uint256 rechecked)
        private
        pure
        returns (bytes32[] memory statements)
    {
        statements = new bytes32[](values.length);
        for (uint256 i = 0; i < values.length; ++i) {
            bytes32 kind = rechecked >> i & 1 == 0 ? Statements.VERDICT_TYPEHASH : Statements.RECHECKED_TYPEHASH;
            statements[i] = Statements.hashJudgement(kind, id, work, Statements.OUTCOME_SLASH, reason, values[i]);
        }
    }

    /// New judges reach nobody who has left before they took office.
    function _punish(WorkCommitment calldata c, bytes32 work, uint8 reason) private {
        uint256 since = _benches[c.pool].since;
        if (since != 0 && swarm.memberInfo(c.pool, c.node).memberUntil <= since) revert NotItsJudges(c.pool, c.node);
        if (_judged[work]) revert AlreadyJudged(c.fileRoot);
        _judged[work] = true;
        swarm.punishByJudgement(c.pool, c.node, reason, c.fileRoot, msg.sender);
    }

    /// Strikes whoever signed both statements, if they differ.
    function _convict(
        uint256 id,
        bytes32 work,
        uint8 reason,
        bytes32 first,
        bytes32 second,
        bytes[2] calldata signatures
    ) private {
        if (first == second) revert NoContradiction();
        address validator = _signerOf(first, signatures[0]);
        _requireSigner(second, signatures[1], validator);
        _strike(id, validator);
        if (swarm.nodeInfo(validator).provider != address(0)) {
            swarm.punishByEvidence(id, validator, reason, work);
        }
    }

    /// One statement that so many are asked for.
    function _repeat(bytes32 statement, uint256 times) private pure returns (bytes32[] memory statements) {
        statements = new bytes32[](times);
        for (uint256 i = 0; i < times; ++i) {
            statements[i] = statement;
        }
    }

    /// Signatures of `threshold` different validators of the pool, each of them over a statement of its own.
    function _requireQuorum(uint256 id, bytes32[] memory statements, bytes[] calldata signatures)
        private
        view
        returns (address[] memory signers)
    {
        Bench storage bench = _benches[id];
        uint256 threshold = bench.threshold;
        // a pool that nobody opened has no number, and every seat on it has one
        if (signatures.length < threshold || signatures.length > MAX_VALIDATORS || threshold == 0) {
            revert QuorumMissing(signatures.length, threshold);
        }
        uint32 number = bench.number;
        uint256 heard = 0;
        signers = new address[](signatures.length);
        for (uint256 i = 0; i < signatures.length; ++i) {
            address signer = _signerOf(statements[i], signatures[i]);
            Seat memory place = _seats[id][signer];
            if (place.bench != number) revert NotAValidator(signer);
            if (!fit(id, signer)) revert ValidatorUnfit(signer);
            uint256 bit = 1 << place.place;
            if (heard & bit != 0) revert DuplicateVerdict(signer);
            heard |= bit;
            signers[i] = signer;
        }
    }

    function _sits(uint256 id, address node) private view returns (bool) {
        uint32 bench = _seats[id][node].bench;
        // slither-disable-next-line incorrect-equality -- a number of a bench, not an amount
        return bench != 0 && bench == _benches[id].number;
    }

    function _requireSigner(bytes32 statement, bytes calldata signature, address expected) private view {
        Statements.requireSigner(swarm.domainSeparator(), statement, signature, expected);
    }

    function _signerOf(bytes32 statement, bytes calldata signature) private view returns (address) {
        return Statements.signerOf(swarm.domainSeparator(), statement, signature);
    }

    function _checkValidators(address[] calldata validators, uint8 threshold) private pure {
        if (validators.length > MAX_VALIDATORS || threshold == 0 || threshold > validators.length) {
            revert BadQuorum(validators.length, threshold);
        }
        for (uint256 i = 0; i < validators.length; ++i) {
            if (validators[i] == address(0)) revert BadValidator(validators[i]);
            for (uint256 j = 0; j < i; ++j) {
                if (validators[i] == validators[j]) revert BadValidator(validators[i]);
            }
        }
    }

    /// Of a line that its signer's root leads to: the signer's seat, then the root's number.
    function _placeOf(uint256 id, address node, Filing calldata filing, uint256 i) private view returns (uint256) {
        RootLine calldata line = filing.lines[i];
        Tally calldata root = line.root;
        _requireSigner(
            Statements.hashTally(Statements.EPOCH_ROOT_TYPEHASH, root), line.signature, filing.validators[line.seat]
        );
        bool fits = root.pool == id && root.epoch == filing.epoch && line.proof.length <= 32;
        if (!fits || Statements.climb(Statements.leaf(node, line.units), line.proof) != root.root) revert BadLine(i);
        return (uint256(line.seat) + 1) << 64 | root.number;
    }

    function _hashOf(address[] memory validators, uint8 threshold) private pure returns (bytes27) {
        return bytes27(keccak256(abi.encode(validators, threshold)));
    }

    function _seat(uint256 id, address[] memory validators, uint8 threshold) private {
        Bench storage bench = _benches[id];
        uint32 number = ++bench.number;
        _sat[id][number] = Sat(uint40(block.timestamp), _hashOf(validators, threshold));
        bench.threshold = threshold;
        bench.validators = validators;
        for (uint256 i = 0; i < validators.length; ++i) {
            _seats[id][validators[i]] = Seat(number, uint8(i));
        }
        emit ValidatorsSet(id, number, validators, threshold);
    }

    function _strike(uint256 id, address validator) private {
        if (_seats[id][validator].bench == 0) revert NotAValidator(validator);
        delete _seats[id][validator];
        address[] storage validators = _benches[id].validators;
        for (uint256 i = 0; i < validators.length; ++i) {
            if (validators[i] == validator) {
                validators[i] = validators[validators.length - 1];
                validators.pop();
                break;
            }
        }
        emit ValidatorStruck(id, validator);
    }
}
