// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IERC20} from "@openzeppelin/contracts/token/ERC20/IERC20.sol";
import {SafeERC20} from "@openzeppelin/contracts/token/ERC20/utils/SafeERC20.sol";
import {ReentrancyGuard} from "@openzeppelin/contracts/utils/ReentrancyGuard.sol";

/// @notice What the vault asks of the Swarm.
interface ISwarm {
    /// @notice How much a provider must leave bonded.
    function requiredStake(address provider) external view returns (uint256);
}

/// @title StakeVault
/// @notice Custody of stakes, and nothing else. A stake is bonded, then unbonding for a fixed period, then withdrawn;
/// until it is withdrawn the Swarm may slash it. Nothing here can be paused and no one can move another's stake
/// except by a slash, of which there are two kinds:
///
/// `slash` follows from signatures that prove the fault by themselves. It is final at once.
///
/// `freeze` follows from judges. The amount leaves the stake at once and stays here for `appealSeconds` (as long
/// again once the provider appeals). Until then the arbiter can have it given back; from then on anybody may
/// `finalize` it. The arbiter can do nothing else.
///
/// Who carries a case puts up a bond, and who appeals as much. Who is right gets both, less what of the other's is
/// burned: so a wrong case costs who brought it, and no decision of the arbiter's moves another stake. A case that is
/// final pays its carrier a small share; of what evidence takes nobody gets any, so no copy of a report pays.
///
/// Whatever is taken is burned or the treasury's. All that this contract owes is credited, and paid to whom it is owed
/// by `collect`: nobody who refuses tokens holds up a slash.
///
/// What is frozen answers for all open cases of its provider, and for a slash. So nobody can put its own stake out of
/// reach by a case of its own: what such a case gives back goes to the other cases first.
contract StakeVault is ReentrancyGuard {
    using SafeERC20 for IERC20;

    struct Params {
        /// seconds between `unbond` and `withdraw`
        uint64 unbondingPeriod;
        /// seconds that a frozen amount waits; again so long after an appeal
        uint64 appealSeconds;
        /// receives what of a slash is not burned
        address treasury;
        /// may have a frozen amount given back
        address arbiter;
        /// the share that is burned, in 1/10,000
        uint16 burnBps;
        /// the share of a case's amount that each side puts up, in 1/10,000
        uint16 bondBps;
        /// what each side puts up at least, token wei
        uint96 minBond;
    }

    struct Stake {
        uint96 bonded;
        uint96 unbonding;
        uint64 withdrawableAt;
    }

    enum State {
        None,
        Frozen,
        Final,
        Overturned
    }

    struct Case {
        address provider;
        uint64 finalAt;
        State state;
        bool appealed;
        /// what it takes when it is final, if other cases have left so much; token wei
        uint96 amount;
        /// whose judges it is from
        uint32 pool;
        /// what each side puts up, token wei
        uint96 bond;
        /// who brought it here, and put up the first bond
        address carrier;
    }

    /// @notice Where burned tokens go: an address whose key nobody has.
    address public constant BURNED = 0x000000000000000000000000000000000000dEaD;
    /// @notice The share of what a final case takes that its carrier gets, in 1/10,000.
    uint256 public constant CARRIER_BPS = 200;
    /// @notice The share of the loser's bond that is burned, in 1/10,000: no two sides pass a bond to and fro for nothing.
    uint256 public constant LOST_BPS = 1_000;
    uint16 private constant BPS = 10_000;

    IERC20 public immutable token;
    uint64 public immutable unbondingPeriod;
    uint64 public immutable appealSeconds;
    address public immutable treasury;
    uint16 public immutable burnBps;
    uint16 public immutable bondBps;
    uint96 public immutable minBond;
    address private immutable deployer;

    /// @notice The one contract that may slash; zero until set.
    address public swarm;
    address public arbiter;
    /// @notice Who may accept the arbiter's office, and from when; nobody if zero.
    address public successor;
    uint64 public successorFrom;
    uint256 public caseCount;

    mapping(address provider => Stake) private _stakes;
    /// what open cases took out of each stake, and from where
    mapping(address provider => Stake) private _frozen;
    /// the sum of the amounts of a provider's open cases; never less than what is frozen
    mapping(address provider => uint256) private _claimed;
    mapping(uint256 id => Case) private _cases;
    /// @notice What `collect` pays, token wei.
    mapping(address who => uint256) public creditOf;

    event SwarmSet(address indexed swarm);
    event ArbiterSet(address indexed arbiter);
    event SuccessorNamed(address indexed successor, uint64 from);
    event Bonded(address indexed provider, address indexed payer, uint256 amount, uint256 bonded);
    event Unbonding(address indexed provider, uint256 amount, uint256 unbonding, uint64 withdrawableAt);
    event Rebonded(address indexed provider, uint256 amount, uint256 bonded);
    event Withdrawn(address indexed provider, uint256 amount);
    /// @param caseId the case that is final; zero where evidence took it
    event StakeSlashed(address indexed provider, uint256 indexed caseId, uint256 amount, uint256 burned);
    event StakeFrozen(
        uint256 indexed caseId,
        address indexed provider,
        uint256 amount,
        uint64 finalAt,
        uint32 pool,
        address indexed carrier,
        uint256 bond
    );
    event Appealed(uint256 indexed caseId, address indexed provider, uint64 finalAt);
    event Overturned(uint256 indexed caseId, address indexed provider, uint256 amount);
    event Finalized(uint256 indexed caseId, address indexed provider, uint256 amount);
    event Credited(address indexed who, uint256 amount);
    event Collected(address indexed who, uint256 amount);

    error ZeroAddress();
    error ZeroAmount();
    error AmountTooLarge(uint256 amount);
    error ArbiterIsTreasury(address both);
    error BadShare(uint16 share);
    error UnbondingTooShort(uint64 unbondingPeriod, uint64 least);
    error OnlyDeployer(address caller);
    error OnlySwarm(address caller);
    error OnlyArbiter(address caller);
    error OnlySuccessor(address caller);
    error SuccessorTooEarly(uint64 from);
    error OnlyProvider(address caller);
    error SwarmAlreadySet(address swarm);
    error StakeTooSmall(uint256 available, uint256 wanted);
    error StakeTooLow(address provider, uint256 bonded, uint256 required);
    error NothingToWithdraw();
    error NothingToCollect(address who);
    error StillUnbonding(uint64 withdrawableAt);
    error CaseClosed(uint256 caseId);
    error AlreadyAppealed(uint256 caseId);
    error AppealOpen(uint256 caseId, uint64 finalAt);
    error AppealOver(uint256 caseId, uint64 finalAt);
    error TokenTakesFee(uint256 sent, uint256 received);

    modifier onlySwarm() {
        if (msg.sender != swarm) revert OnlySwarm(msg.sender);
        _;
    }

    constructor(IERC20 token_, Params memory params) {
        if (address(token_) == address(0) || params.treasury == address(0) || params.arbiter == address(0)) {
            revert ZeroAddress();
        }
        // who gets what is taken does not decide whether it is
        if (params.arbiter == params.treasury) revert ArbiterIsTreasury(params.arbiter);
        if (params.burnBps > BPS) revert BadShare(params.burnBps);
        if (params.bondBps > BPS) revert BadShare(params.bondBps);
        if (params.appealSeconds == 0 || params.minBond == 0) revert ZeroAmount();
        // what is frozen and given back, or slashed besides, is still here when its case is over
        uint64 least = 2 * params.appealSeconds;
        if (params.unbondingPeriod < least) revert UnbondingTooShort(params.unbondingPeriod, least);
        token = token_;
        unbondingPeriod = params.unbondingPeriod;
        appealSeconds = params.appealSeconds;
        treasury = params.treasury;
        burnBps = params.burnBps;
        bondBps = params.bondBps;
        minBond = params.minBond;
        arbiter = params.arbiter;
        deployer = msg.sender;
        emit ArbiterSet(params.arbiter);
    }

    /// @notice Names the contract that may slash. Once, by the deployer.
    function setSwarm(address swarm_) external {
        if (msg.sender != deployer) revert OnlyDeployer(msg.sender);
        if (swarm != address(0)) revert SwarmAlreadySet(swarm);
        if (swarm_ == address(0)) revert ZeroAddress();
        swarm = swarm_;
        emit SwarmSet(swarm_);
    }

    /// @notice The arbiter names who comes after it, or nobody. Naming anew undoes what a thief of its key named: whoever
    /// was named accepts after two appeals at the soonest, so that no open case changes hands unseen.
    function nameSuccessor(address successor_) external {
        if (msg.sender != arbiter) revert OnlyArbiter(msg.sender);
        if (successor_ == treasury) revert ArbiterIsTreasury(successor_);
        successor = successor_;
        successorFrom = uint64(block.timestamp) + 2 * appealSeconds;
        emit SuccessorNamed(successor_, successorFrom);
    }

    /// @notice The successor takes the office: a key that nobody has gets it never.
    function acceptArbiter() external {
        if (msg.sender != successor) revert OnlySuccessor(msg.sender);
        if (block.timestamp < successorFrom) revert SuccessorTooEarly(successorFrom);
        arbiter = msg.sender;
        successor = address(0);
        emit ArbiterSet(msg.sender);
    }

    // ------------------------------------------------------------------ stake

    /// @notice Adds `amount` of the caller's tokens to the stake of `provider`.
    function bond(address provider, uint256 amount) external nonReentrant {
        if (provider == address(0)) revert ZeroAddress();
        if (amount == 0) revert ZeroAmount();
        if (amount > type(uint96).max) revert AmountTooLarge(amount);
        Stake storage stake = _stakes[provider];
        stake.bonded += uint96(amount);
        emit Bonded(provider, msg.sender, amount, stake.bonded);
        _pull(msg.sender, amount);
    }

    /// @notice Starts to take `amount` out, down to what the provider's nodes need; remove nodes to take out more. All
    /// that is unbonding shares one clock, which starts again here.
    function unbond(uint256 amount) external {
        if (amount == 0) revert ZeroAmount();
        Stake storage stake = _stakes[msg.sender];
        uint96 bonded = stake.bonded;
        if (amount > bonded) revert StakeTooSmall(bonded, amount);
        uint256 required = swarm == address(0) ? 0 : ISwarm(swarm).requiredStake(msg.sender);
        if (bonded - amount < required) revert StakeTooLow(msg.sender, bonded - amount, required);
        stake.bonded = bonded - uint96(amount);
        stake.unbonding += uint96(amount);
        stake.withdrawableAt = uint64(block.timestamp) + unbondingPeriod;
        emit Unbonding(msg.sender, amount, stake.unbonding, stake.withdrawableAt);
    }

    /// @notice Bonds again `amount` of what the caller has unbonding.
    function rebond(uint256 amount) external {
        if (amount == 0) revert ZeroAmount();
        Stake storage stake = _stakes[msg.sender];
        if (amount > stake.unbonding) revert StakeTooSmall(stake.unbonding, amount);
        stake.unbonding -= uint96(amount);
        stake.bonded += uint96(amount);
        emit Rebonded(msg.sender, amount, stake.bonded);
    }

    /// @notice Pays out what the caller has unbonding, once its period is over.
    function withdraw() external nonReentrant {
        Stake storage stake = _stakes[msg.sender];
        uint96 amount = stake.unbonding;
        if (amount == 0) revert NothingToWithdraw();
        if (block.timestamp < stake.withdrawableAt) revert StillUnbonding(stake.withdrawableAt);
        stake.unbonding = 0;
        emit Withdrawn(msg.sender, amount);
        token.safeTransfer(msg.sender, amount);
    }

    /// @notice Pays `who` what it is owed here: bonds of cases that it won, shares, what was slashed. Anybody may ask.
    function collect(address who) external nonReentrant {
        uint256 amount = creditOf[who];
        if (amount == 0) revert NothingToCollect(who);
        creditOf[who] = 0;
        emit Collected(who, amount);
        token.safeTransfer(who, amount);
    }

    // --------------------------------------------------------------- slashing

    /// @notice Takes up to `amount` for ever, of the stake and then of what is frozen.
    /// @return taken what was there to take
    function slash(address provider, uint256 amount) external onlySwarm returns (uint256 taken) {
        taken = _sum(_take(_stakes[provider], amount));
        taken += _sum(_take(_frozen[provider], amount - taken));
        _spend(provider, 0, taken, 0);
    }

    /// @notice Takes up to `amount` out of the stake and keeps it until the case is final or overturned. What is
    /// frozen already answers for what the stake has not.
    /// @param carrier who brings the case and puts up its bond
    /// @return caseId the new case's number
    /// @return claimed what the case takes when it is final
    function freeze(address provider, uint256 amount, uint32 pool, address carrier)
        external
        onlySwarm
        nonReentrant
        returns (uint256 caseId, uint256 claimed)
    {
        _move(_stakes[provider], _frozen[provider], amount);
        uint256 there = _sum(_frozen[provider]);
        claimed = amount < there ? amount : there;
        _claimed[provider] += claimed;
        caseId = ++caseCount;
        uint64 finalAt = uint64(block.timestamp) + appealSeconds;
        uint96 put = uint96(claimed * bondBps / BPS);
        if (put < minBond) put = minBond;
        _cases[caseId] = Case(provider, finalAt, State.Frozen, false, uint96(claimed), pool, put, carrier);
        emit StakeFrozen(caseId, provider, claimed, finalAt, pool, carrier, put);
        _pull(carrier, put);
    }

    /// @notice The provider of a frozen stake asks the arbiter for a decision, which gives it `appealSeconds` from now.
    /// It puts up as much as the carrier did.
    function appeal(uint256 caseId) external nonReentrant {
        Case storage case_ = _openCase(caseId);
        if (msg.sender != case_.provider) revert OnlyProvider(msg.sender);
        if (case_.appealed) revert AlreadyAppealed(caseId);
        if (block.timestamp >= case_.finalAt) revert AppealOver(caseId, case_.finalAt);
        case_.appealed = true;
        case_.finalAt = uint64(block.timestamp) + appealSeconds;
        emit Appealed(caseId, msg.sender, case_.finalAt);
        _pull(msg.sender, case_.bond);
    }

    /// @notice Gives back to where it was what no other open case has a claim on, and the carrier's bond to the
    /// provider. The Swarm asks for it on the arbiter's word.
    /// @return won what the provider gets of the carrier's bond
    function overturn(uint256 caseId) external onlySwarm returns (uint256 won) {
        Case storage case_ = _openCase(caseId);
        if (block.timestamp >= case_.finalAt) revert AppealOver(caseId, case_.finalAt);
        case_.state = State.Overturned;
        address provider = case_.provider;
        uint256 claimed = _claimed[provider] - case_.amount;
        _claimed[provider] = claimed;
        uint256 there = _sum(_frozen[provider]);
        uint256 amount = there > claimed ? there - claimed : 0;
        _move(_frozen[provider], _stakes[provider], amount);
        emit Overturned(caseId, provider, amount);
        won = _lose(case_.bond);
        _credit(provider, case_.appealed ? won + case_.bond : won);
    }

    /// @notice Ends a case that nobody overturned: what was frozen is burned or goes to the treasury, but for the
    /// carrier's share. The carrier has its bond back, and what an appeal lost.
    function finalize(uint256 caseId) external {
        Case storage case_ = _openCase(caseId);
        if (block.timestamp < case_.finalAt) revert AppealOpen(caseId, case_.finalAt);
        case_.state = State.Final;
        (address provider, uint256 put) = (case_.provider, case_.bond);
        _claimed[provider] -= case_.amount;
        uint256 taken = _sum(_take(_frozen[provider], case_.amount));
        emit Finalized(caseId, provider, taken);
        uint256 share = taken * CARRIER_BPS / BPS;
        _spend(provider, caseId, taken, share);
        _credit(case_.carrier, share + (case_.appealed ? put + _lose(put) : put));
    }

    // ------------------------------------------------------------------ views

    /// @notice The whole record of one provider, and what cases have taken that are not final.
    function stakeOf(address provider) external view returns (Stake memory stake, uint256 frozen) {
        return (_stakes[provider], _sum(_frozen[provider]));
    }

    /// @notice What counts as stake: bonded; neither unbonding nor frozen.
    function bondedOf(address provider) external view returns (uint256) {
        return _stakes[provider].bonded;
    }

    /// @notice What stands behind nodes that work or judge already: bonded, or bonded before a case that is not final.
    function backingOf(address provider) external view returns (uint256) {
        return uint256(_stakes[provider].bonded) + _frozen[provider].bonded;
    }

    function caseInfo(uint256 caseId) external view returns (Case memory) {
        return _cases[caseId];
    }

    /// @notice Whether nothing can undo the case any more; a slash without a case (0) is final.
    function isFinal(uint256 caseId) external view returns (bool) {
        // slither-disable-next-line incorrect-equality,timestamp -- a state, not an amount
        return caseId == 0 || _cases[caseId].state == State.Final;
    }

    // --------------------------------------------------------------- internal

    /// Up to `amount` out of `from`. What is unbonding goes first: who is on the way out pays before the bond that the
    /// provider's other nodes stand on.
    function _take(Stake storage from, uint256 amount) private returns (Stake memory taken) {
        taken.unbonding = uint96(amount < from.unbonding ? amount : from.unbonding);
        amount -= taken.unbonding;
        taken.bonded = uint96(amount < from.bonded ? amount : from.bonded);
        from.unbonding -= taken.unbonding;
        from.bonded -= taken.bonded;
    }

    function _move(Stake storage from, Stake storage to, uint256 amount) private {
        Stake memory taken = _take(from, amount);
        to.unbonding += taken.unbonding;
        to.bonded += taken.bonded;
    }

    function _sum(Stake memory stake) private pure returns (uint256) {
        return uint256(stake.bonded) + stake.unbonding;
    }

    /// Burns what is taken or gives it to the treasury, but for `share`.
    function _spend(address provider, uint256 caseId, uint256 amount, uint256 share) private {
        uint256 rest = amount - share;
        uint256 burned = rest * burnBps / BPS;
        emit StakeSlashed(provider, caseId, amount, burned);
        _credit(BURNED, burned);
        _credit(treasury, rest - burned);
    }

    /// A bond that was lost: what the winner gets of it.
    function _lose(uint256 put) private returns (uint256 won) {
        uint256 burned = put * LOST_BPS / BPS;
        _credit(BURNED, burned);
        won = put - burned;
    }

    function _credit(address who, uint256 amount) private {
        if (amount == 0) return;
        creditOf[who] += amount;
        emit Credited(who, amount);
    }

    /// Takes tokens; refuses a token that delivers less than it takes.
    function _pull(address from, uint256 amount) private {
        uint256 before = token.balanceOf(address(this));
        // slither-disable-next-line arbitrary-send-erc20 -- who calls, or who called the Court
        token.safeTransferFrom(from, address(this), amount);
        uint256 received = token.balanceOf(address(this)) - before;
        if (received != amount) revert TokenTakesFee(amount, received);
    }

    function _openCase(uint256 caseId) private view returns (Case storage case_) {
        case_ = _cases[caseId];
        if (case_.state != State.Frozen) revert CaseClosed(caseId);
    }
}
