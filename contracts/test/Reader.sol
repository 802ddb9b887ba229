// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Chair} from "../src/Chair.sol";
import {ATTESTED, Counters, ENDED, INVITED, JOINED, PAUSED, newCounters} from "../src/Counters.sol";
import {Court} from "../src/Court.sol";
import {Members} from "../src/Members.sol";
import {Nodes} from "../src/Nodes.sol";
import {Payroll} from "../src/Payroll.sol";
import {Pools} from "../src/Pools.sol";
import {StakeVault} from "../src/StakeVault.sol";
import {Swarm} from "../src/Swarm.sol";
import {Vm} from "./Base.sol";

/// What somebody knows who has read nothing but the contracts' logs, each with its block's time: every state that a view
/// shows. Knows the rules and what a deployment was born with, and asks the contracts nothing but to compare (`check`).
contract Reader {
    /// What is counted of a pool, beside its terms.
    struct Times {
        uint32 startedAt;
        uint24 epochSeconds;
        uint24 window;
        uint24 leaseSeconds;
        uint32 maxUnits;
        uint8 flags;
    }

    StakeVault private immutable vault;
    Swarm private immutable swarm;
    Court private immutable court;
    Payroll private immutable payroll;
    Chair private immutable chair;

    // of the vault
    address private _slasher;
    address private _arbiter;
    address private _successor;
    uint64 private _successorFrom;
    uint256 private _caseCount;
    mapping(address provider => StakeVault.Stake) private _stakes;
    mapping(address provider => StakeVault.Stake) private _frozen;
    mapping(uint256 id => StakeVault.Case) private _cases;
    mapping(address who => uint256) private _credits;
    // of the Swarm
    address private _court;
    address private _payroll;
    uint256 private _poolCount;
    mapping(uint256 pool => Pools.Terms) private _terms;
    mapping(uint256 pool => Times) private _times;
    mapping(address node => Nodes.Node) private _nodes;
    mapping(address provider => uint256) private _registered;
    mapping(address provider => uint256) private _leaving;
    mapping(uint256 pool => mapping(address node => Members.Member)) private _members;
    mapping(uint256 pool => address[]) private _joined;
    // of the Court
    mapping(uint256 pool => Court.Bench) private _benches;
    mapping(uint256 pool => mapping(address node => bool)) private _admitted;
    mapping(uint256 pool => mapping(address invitee => uint32)) private _places;
    mapping(uint256 pool => mapping(address node => uint64)) private _attestedAt;
    // of the Payroll
    mapping(uint256 pool => Payroll.Book) private _books;
    mapping(uint256 pool => Payroll.Waiting) private _waiting;
    mapping(uint256 pool => mapping(address node => Payroll.Paid)) private _paid;
    mapping(uint256 pool => Payroll.Filings) private _filings;
    mapping(uint256 pool => mapping(address node => mapping(uint64 epoch => uint64))) private _filedOf;
    mapping(uint256 pool => mapping(address node => uint64[])) private _filedEpochs;
    // of the Chair
    mapping(uint256 pool => Chair.Term) private _terms_;
    mapping(uint256 pool => Chair.Seating) private _seatings;
    // who was named in any of it
    mapping(address who => bool) private _isKnown;
    address[] private _known;

    error Unknown(bytes32 topic);
    error Otherwise(string what, bytes told, bytes seen);

    constructor(StakeVault vault_, Swarm swarm_, Court court_, Payroll payroll_, Chair chair_) {
        (vault, swarm, court, payroll, chair) = (vault_, swarm_, court_, payroll_, chair_);
    }

    /// The logs of one block, in their order.
    function read(Vm.Log[] calldata logs) external {
        for (uint256 i = 0; i < logs.length; ++i) {
            address by = logs[i].emitter;
            bool known = true;
            if (by == address(vault)) known = _ofStake(logs[i]) || _ofCase(logs[i]);
            if (by == address(swarm)) known = _ofNode(logs[i]) || _ofMember(logs[i]) || _ofPool(logs[i]);
            if (by == address(court)) known = _ofCourt(logs[i]);
            if (by == address(payroll)) known = _ofTable(logs[i]) || _ofPay(logs[i]) || _ofFiling(logs[i]);
            if (by == address(chair)) known = _ofChair(logs[i]);
            if (!known) revert Unknown(logs[i].topics[0]);
        }
    }

    // ---- the vault

    function _ofStake(Vm.Log calldata log) private returns (bool) {
        bytes32 kind = log.topics[0];
        StakeVault.Stake storage stake = _stakes[address(uint160(_id(log)))];
        if (kind == StakeVault.Bonded.selector) {
            (uint256 amount,) = abi.decode(log.data, (uint256, uint256));
            _stakes[_who(log, 1)].bonded += uint96(amount);
        } else if (kind == StakeVault.Unbonding.selector) {
            (uint256 amount,, uint64 from) = abi.decode(log.data, (uint256, uint256, uint64));
            stake.bonded -= uint96(amount);
            stake.unbonding += uint96(amount);
            stake.withdrawableAt = from;
        } else if (kind == StakeVault.Rebonded.selector) {
            (uint256 amount,) = abi.decode(log.data, (uint256, uint256));
            stake.bonded += uint96(amount);
            stake.unbonding -= uint96(amount);
        } else if (kind == StakeVault.Withdrawn.selector) {
            stake.unbonding -= uint96(abi.decode(log.data, (uint256)));
        } else if (kind == StakeVault.Credited.selector) {
            _credits[_who(log, 1)] += abi.decode(log.data, (uint256));
        } else if (kind == StakeVault.Collected.selector) {
            _credits[_who(log, 1)] -= abi.decode(log.data, (uint256));
        } else {
            return false;
        }
        return true;
    }

    function _ofCase(Vm.Log calldata log) private returns (bool) {
        bytes32 kind = log.topics[0];
        if (kind == StakeVault.StakeFrozen.selector) {
            _open(log);
        } else if (kind == StakeVault.Appealed.selector) {
            StakeVault.Case storage case_ = _cases[_id(log)];
            (case_.appealed, case_.finalAt) = (true, abi.decode(log.data, (uint64)));
        } else if (kind == StakeVault.Overturned.selector) {
            _cases[_id(log)].state = StakeVault.State.Overturned;
            address provider = _who(log, 2);
            _move(_frozen[provider], _stakes[provider], abi.decode(log.data, (uint256)));
        } else if (kind == StakeVault.Finalized.selector) {
            _cases[_id(log)].state = StakeVault.State.Final;
            _take(_frozen[_who(log, 2)], abi.decode(log.data, (uint256)));
        } else if (kind == StakeVault.StakeSlashed.selector) {
            (uint256 amount,) = abi.decode(log.data, (uint256, uint256));
            if (log.topics[2] != 0) return true; // `Finalized` has said it
            StakeVault.Stake memory taken = _take(_stakes[_who(log, 1)], amount);
            _take(_frozen[_who(log, 1)], amount - taken.bonded - taken.unbonding);
        } else if (kind == StakeVault.SwarmSet.selector) {
            _slasher = _who(log, 1);
        } else if (kind == StakeVault.ArbiterSet.selector) {
            (_arbiter, _successor) = (_who(log, 1), address(0));
        } else if (kind == StakeVault.SuccessorNamed.selector) {
            (_successor, _successorFrom) = (_who(log, 1), abi.decode(log.data, (uint64)));
        } else {
            return false;
        }
        return true;
    }

    function _open(Vm.Log calldata log) private {
        (uint256 amount, uint64 finalAt, uint32 pool, uint256 bond) =
            abi.decode(log.data, (uint256, uint64, uint32, uint256));
        address provider = _who(log, 2);
        // what a case claims beyond the stake is frozen already
        _move(_stakes[provider], _frozen[provider], amount);
        _caseCount = _id(log);
        _cases[_caseCount] = StakeVault.Case(
            provider, finalAt, StakeVault.State.Frozen, false, uint96(amount), pool, uint96(bond), _who(log, 3)
        );
    }

    /// What is unbonding goes first.
    function _take(StakeVault.Stake storage from, uint256 amount) private returns (StakeVault.Stake memory taken) {
        taken.unbonding = uint96(amount < from.unbonding ? amount : from.unbonding);
        amount -= taken.unbonding;
        taken.bonded = uint96(amount < from.bonded ? amount : from.bonded);
        from.unbonding -= taken.unbonding;
        from.bonded -= taken.bonded;
    }

    function _move(StakeVault.Stake storage from, StakeVault.Stake storage to, uint256 amount) private {
        StakeVault.Stake memory taken = _take(from, amount);
        to.unbonding += taken.unbonding;
        to.bonded += taken.bonded;
    }

    // ---- nodes and members

    function _ofNode(Vm.Log calldata log) private returns (bool) {
        bytes32 kind = log.topics[0];
        address provider = address(uint160(_id(log)));
        Nodes.Node storage node = _nodes[address(uint160(uint256(log.topics[log.topics.length - 1])))];
        if (kind == Nodes.NodeRegistered.selector) {
            _who(log, 2);
            _leaving[provider] -= node.units;
            uint32 units = abi.decode(log.data, (uint32));
            _registered[provider] += units;
            (node.provider, node.registered, node.units, node.freeAt) = (provider, true, uint24(units), 0);
            node.nonce += 1;
        } else if (kind == Nodes.NodeRemoved.selector) {
            (uint32 units, uint64 freeAt) = abi.decode(log.data, (uint32, uint64));
            _registered[provider] -= units;
            _leaving[provider] += units;
            (node.registered, node.freeAt) = (false, freeAt);
        } else if (kind == Nodes.NodeReleased.selector) {
            _leaving[provider] -= abi.decode(log.data, (uint32));
            (node.units, node.freeAt) = (0, 0);
        } else {
            return false;
        }
        return true;
    }

    function _ofMember(Vm.Log calldata log) private returns (bool) {
        bytes32 kind = log.topics[0];
        (uint256 id, address who) = (_id(log), address(uint160(uint256(log.topics[log.topics.length > 2 ? 2 : 1]))));
        Members.Member storage member = _members[id][who];
        if (kind == Members.Joined.selector) {
            (, uint64 until) = abi.decode(log.data, (string, uint64));
            if (member.joinedAt == 0) {
                member.joinedAt = uint40(block.timestamp);
                _joined[id].push(who);
                _times[id].flags |= JOINED;
            }
            member.joinedBlock = uint64(block.number);
            (_nodes[who].pool, _nodes[who].leaseUntil) = (uint32(id), uint32(until));
        } else if (kind == Nodes.Left.selector) {
            _depart(id, who);
        } else if (kind == Swarm.Slashed.selector) {
            (,,, uint256 caseId) = abi.decode(log.data, (uint8, uint256, bytes32, uint256));
            if (caseId == 0) member.convictedAt = uint40(block.timestamp);
            else (member.slashedAt, member.caseId) = (uint40(block.timestamp), uint64(caseId));
            if (_nodes[who].pool == id) _depart(id, who);
        } else if (kind == Swarm.SlashOverturned.selector) {
            (member.slashedAt, member.caseId) = (0, 0);
        } else {
            return false;
        }
        return true;
    }

    function _depart(uint256 id, address who) private {
        Nodes.Node storage node = _nodes[who];
        Members.Member storage member = _members[id][who];
        member.leftAt = uint40(block.timestamp < node.leaseUntil ? block.timestamp : node.leaseUntil);
        member.leftUnits = node.units;
        (node.pool, node.leaseUntil) = (0, 0);
    }

    // ---- pools

    function _ofPool(Vm.Log calldata log) private returns (bool) {
        bytes32 kind = log.topics[0];
        uint256 id = _id(log);
        Pools.Terms storage terms = _terms[id];
        if (kind == Pools.PoolCreated.selector) {
            _openPool(id, _who(log, 3), abi.decode(log.data, (Pools.PoolParams)));
        } else if (kind == Pools.PoolRunSet.selector) {
            terms.runRoot = abi.decode(log.data, (bytes32));
        } else if (kind == Pools.BootnodesSet.selector) {
            terms.bootnodes = abi.decode(log.data, (string));
        } else if (kind == Pools.PoolPaused.selector) {
            _times[id].flags |= PAUSED;
            terms.stoppedAt = uint40(block.timestamp);
        } else if (kind == Pools.PoolResumed.selector) {
            _times[id].flags &= ~PAUSED;
            terms.stoppedAt = 0;
        } else if (kind == Pools.PoolEnded.selector) {
            terms.stoppedAt = uint40(block.timestamp);
            _times[id].flags |= ENDED;
        } else if (kind == Pools.CourtSet.selector) {
            (_court, _payroll) = (_who(log, 1), _who(log, 2));
        } else {
            return false;
        }
        return true;
    }

    function _openPool(uint256 id, address opener, Pools.PoolParams memory params) private {
        _poolCount = id;
        _terms[id] = Pools.Terms({
            manager: params.manager,
            rewardPerUnit: params.rewardPerUnit,
            slashAmount: params.slashAmount,
            unitsPerEpoch: params.unitsPerEpoch,
            stoppedAt: 0,
            delay: uint24(params.delay),
            opener: opener,
            guardian: params.guardian == address(0) ? opener : params.guardian,
            runRoot: params.runRoot,
            requirementRoot: params.requirementRoot,
            runURI: params.runURI,
            bootnodes: params.bootnodes
        });
        _times[id] = Times(
            uint32(block.timestamp),
            uint24(params.epochSeconds),
            uint24(params.window),
            uint24(params.leaseSeconds),
            params.maxUnitsPerEpoch,
            (params.invited ? INVITED : 0) | (params.attested ? ATTESTED : 0)
        );
    }

    // ---- the Court

    function _ofCourt(Vm.Log calldata log) private returns (bool) {
        bytes32 kind = log.topics[0];
        uint256 id = _id(log);
        Court.Bench storage bench = _benches[id];
        if (kind == Court.NodeAttested.selector) {
            (, _attestedAt[id][_who(log, 2)],) = abi.decode(log.data, (uint32, uint64, uint64));
        } else if (kind == Court.Admitted.selector) {
            _admitted[id][_who(log, 2)] = true;
            _places[id][_who(log, 3)] += 1;
        } else if (kind == Court.InvitationsRevoked.selector) {
            address[] memory invitees = abi.decode(log.data, (address[]));
            for (uint256 i = 0; i < invitees.length; ++i) {
                _meet(invitees[i]);
                _places[id][invitees[i]] = type(uint32).max;
            }
        } else if (kind == Court.ValidatorsProposed.selector) {
            uint64 from;
            (bench.proposed, bench.proposedThreshold, from) = abi.decode(log.data, (address[], uint8, uint64));
            bench.proposedFrom = uint40(from);
        } else if (kind == Court.ValidatorsSet.selector) {
            bench.number = uint32(uint256(log.topics[2]));
            (bench.validators, bench.threshold) = abi.decode(log.data, (address[], uint8));
            bench.since = bench.number == 1 ? 0 : uint40(block.timestamp);
            bench.proposedFrom = 0;
            delete bench.proposed;
        } else if (kind == Court.ValidatorStruck.selector) {
            _strike(bench.validators, _who(log, 2));
        } else {
            return false;
        }
        return true;
    }

    /// The last one takes its place.
    function _strike(address[] storage validators, address struck) private {
        for (uint256 i = 0; i < validators.length; ++i) {
            if (validators[i] != struck) continue;
            validators[i] = validators[validators.length - 1];
            validators.pop();
        }
    }

    // ---- the Payroll

    function _ofTable(Vm.Log calldata log) private returns (bool) {
        bytes32 kind = log.topics[0];
        uint256 id = _id(log);
        if (kind == Payroll.EarningsPosted.selector) {
            _count(id);
            (, bytes32 root, uint64 total,, uint64 countsAt, address[] memory signers) =
                abi.decode(log.data, (uint64, bytes32, uint64, bytes32, uint64, address[]));
            uint64 epochs = uint64(uint256(log.topics[2])) + 1;
            _waiting[id] = Payroll.Waiting(root, total, epochs, countsAt, false, keccak256(abi.encode(signers)));
        } else if (kind == Payroll.EarningsHeld.selector) {
            (_waiting[id].held, _waiting[id].countsAt) = (true, abi.decode(log.data, (uint64)));
        } else if (kind == Payroll.EarningsDropped.selector) {
            (_waiting[id].countsAt, _waiting[id].epochs) = (uint64(block.timestamp), 0);
        } else {
            return false;
        }
        return true;
    }

    function _ofPay(Vm.Log calldata log) private returns (bool) {
        bytes32 kind = log.topics[0];
        uint256 id = _id(log);
        _count(id);
        Payroll.Book storage book = _books[id];
        if (kind == Payroll.PoolFunded.selector) {
            (uint256 amount,) = abi.decode(log.data, (uint256, uint256));
            book.free += uint64(amount / _terms[id].rewardPerUnit);
        } else if (kind == Payroll.PoolSwept.selector) {
            _setAside(id);
            book.free -= uint64(abi.decode(log.data, (uint256)) / _terms[id].rewardPerUnit);
        } else if (kind == Payroll.Claimed.selector) {
            address who = _who(log, 2);
            (uint64 units,) = abi.decode(log.data, (uint64, uint256));
            _use(id, who, units);
            _paid[id][who].claimed += units;
            book.owed -= units;
        } else if (kind == Payroll.GivenBack.selector) {
            uint64 units = abi.decode(log.data, (uint64));
            _paid[id][_who(log, 2)].claimed += units;
            book.owed -= units;
            book.free += units;
        } else {
            return false;
        }
        return true;
    }

    function _ofFiling(Vm.Log calldata log) private returns (bool) {
        bytes32 kind = log.topics[0];
        uint256 id = _id(log);
        Payroll.Filings storage filings = _filings[id];
        if (kind == Payroll.FilingsHeld.selector) {
            filings.heldUntil = uint40(abi.decode(log.data, (uint64)));
            return true;
        }
        address who = address(uint160(uint256(log.topics[2])));
        if (kind == Payroll.Filed.selector) {
            uint64 units = abi.decode(log.data, (uint64));
            _use(id, who, units);
            uint64 epoch = uint64(uint256(log.topics[3]));
            _filedEpochs[id][who].push(epoch);
            _filedOf[id][who][epoch] += units;
            _paid[id][who].filed += units;
            filings.filed += units;
        } else if (kind == Payroll.FilingDropped.selector) {
            filings.filed -= _paid[id][who].filed;
            _paid[id][who].filed = 0;
        } else if (kind == Payroll.Redeemed.selector) {
            _setAside(id);
            (, uint64 units, uint256 amount) = abi.decode(log.data, (uint64, uint64, uint256));
            filings.filed -= _paid[id][who].filed;
            _paid[id][who].filed = 0;
            filings.aside -= units;
            if (amount == 0) _books[id].free += units; // an evicted node's
        } else {
            return false;
        }
        return true;
    }

    /// Once: the least of what was filed, what is free, and what the pool pays of the epochs that no table has.
    function _setAside(uint256 id) private {
        Payroll.Filings storage filings = _filings[id];
        if (filings.filed == 0 || filings.aside != 0) return;
        uint256 epochs = uint256(_epochAt(id, _terms[id].stoppedAt)) + 1 - _books[id].epochs;
        uint256 units = epochs * _terms[id].unitsPerEpoch;
        if (_books[id].free < units) units = _books[id].free;
        if (filings.filed < units) units = filings.filed;
        _books[id].free -= uint64(units);
        filings.aside = uint64(units);
    }

    /// Units use up epochs of their node.
    function _use(uint256 id, address who, uint64 units) private {
        uint256 capacity = _capacity(id, who);
        (, uint64 from) = _unused(id, who);
        _paid[id][who].unusedFrom = from + uint64((units + capacity - 1) / capacity);
    }

    /// A table that has waited long enough counts.
    function _count(uint256 id) private {
        if (_counts(id)) _books[id] = _bookOf(id);
    }

    function _counts(uint256 id) private view returns (bool) {
        return block.timestamp >= _waiting[id].countsAt && _waiting[id].epochs > _books[id].epochs;
    }

    function _bookOf(uint256 id) private view returns (Payroll.Book memory book) {
        book = _books[id];
        if (!_counts(id)) return book;
        Payroll.Waiting memory waiting = _waiting[id];
        book.lastUnits = waiting.total - book.total;
        book.lastEpochs = waiting.epochs - book.epochs;
        book.free -= book.lastUnits;
        book.owed += book.lastUnits;
        (book.total, book.epochs, book.root) = (waiting.total, waiting.epochs, waiting.root);
    }

    function _waitingOf(uint256 id) private view returns (Payroll.Waiting memory waiting) {
        if (block.timestamp < _waiting[id].countsAt) waiting = _waiting[id];
    }

    /// When filing begins and ends, and from when it is redeemed.
    function _filingTimes(uint256 id) private view returns (uint256 from, uint256 until, uint256 redeemable) {
        uint256 never = type(uint256).max;
        if (_times[id].flags & ENDED == 0) return (never, never, never);
        Times memory times = _times[id];
        uint256 last = _epochAt(id, _terms[id].stoppedAt);
        from = times.startedAt + (last + 1) * times.epochSeconds + 2 * uint256(times.window);
        if (_waiting[id].countsAt > from) from = _waiting[id].countsAt;
        until = from + times.window;
        redeemable = until + _terms[id].delay;
        if (_filings[id].heldUntil > redeemable) redeemable = _filings[id].heldUntil;
    }

    function _capacity(uint256 id, address who) private view returns (uint256) {
        uint256 units = _nodes[who].pool == id ? _nodes[who].units : _members[id][who].leftUnits;
        return units * _times[id].maxUnits;
    }

    function _unused(uint256 id, address who) private view returns (uint256 epochs, uint64 from) {
        uint40 joinedAt = _members[id][who].joinedAt;
        if (joinedAt == 0) return (0, 0);
        from = _epochAt(id, joinedAt);
        if (_paid[id][who].unusedFrom > from) from = _paid[id][who].unusedFrom;
        uint64 next = _epochAt(id, block.timestamp) + 1;
        epochs = next > from ? next - from : 0;
    }

    function _epochAt(uint256 id, uint256 time) private view returns (uint64) {
        return uint64((time - _times[id].startedAt) / _times[id].epochSeconds);
    }

    // ---- the Chair

    function _ofChair(Vm.Log calldata log) private returns (bool) {
        bytes32 kind = log.topics[0];
        Chair.Term storage term = _terms_[_id(log)];
        Chair.Seating storage seating = _seatings[_id(log)];
        if (kind == Chair.TrainersSeated.selector) {
            _seat(term, seating, log.data);
        } else if (kind == Chair.TrainersProposed.selector) {
            uint64 from;
            (seating.proposed, from) = abi.decode(log.data, (address[], uint64));
            seating.proposedFrom = uint40(from);
        } else if (kind == Chair.TermTaken.selector) {
            uint64 until;
            (term.number, term.fromStep, term.parent, until) = abi.decode(log.data, (uint32, uint64, bytes32, uint64));
            (term.place, term.ended, term.until) = (_placeOf(seating.trainers, _who(log, 2)), false, uint40(until));
        } else if (kind == Chair.TermHeld.selector) {
            (, uint64 step,, uint64 until) = abi.decode(log.data, (uint32, uint64, bytes32, uint64));
            if (step > term.reached) term.reached = step;
            term.until = uint40(until);
        } else if (kind == Chair.TermEnded.selector) {
            uint64 endedAt;
            (, endedAt, term.reached) = abi.decode(log.data, (uint32, uint64, uint64));
            (term.ended, term.until) = (true, uint40(endedAt));
        } else {
            return false;
        }
        return true;
    }

    /// The term goes on if its holder is one of those who are seated; if not, the next one may begin anywhere.
    function _seat(Chair.Term storage term, Chair.Seating storage seating, bytes calldata data) private {
        address holder = seating.trainers.length == 0 ? address(0) : seating.trainers[term.place];
        (seating.trainers, seating.leaseSeconds, seating.graceSeconds) = abi.decode(data, (address[], uint32, uint32));
        seating.proposedFrom = 0;
        delete seating.proposed;
        uint8 place = _placeOf(seating.trainers, holder);
        if (place == seating.trainers.length) (place, term.reached) = (place - 1, 0);
        term.place = place;
    }

    function _placeOf(address[] storage trainers, address who) private view returns (uint8 place) {
        while (place < trainers.length && trainers[place] != who) ++place;
    }

    // ---- what is compared

    /// Reverts where a view shows another state than the logs told.
    function check() external view {
        _same("the vault", abi.encode(_slasher, _arbiter, _successor, _successorFrom, _caseCount),
            abi.encode(vault.swarm(), vault.arbiter(), vault.successor(), vault.successorFrom(), vault.caseCount()));
        _same("the Swarm", abi.encode(_court, _payroll, _poolCount),
            abi.encode(swarm.court(), swarm.payroll(), swarm.poolCount()));
        for (uint256 id = 1; id <= _caseCount; ++id) {
            _same("a case", abi.encode(_cases[id]), abi.encode(vault.caseInfo(id)));
        }
        for (uint256 i = 0; i < _known.length; ++i) {
            _checkOne(_known[i]);
        }
        for (uint256 id = 1; id <= _poolCount; ++id) {
            _checkPool(id);
            for (uint256 i = 0; i < _known.length; ++i) {
                _checkMember(id, _known[i]);
            }
        }
    }

    function _checkOne(address who) private view {
        StakeVault.Stake memory stake = _stakes[who];
        StakeVault.Stake memory frozen = _frozen[who];
        (StakeVault.Stake memory seen, uint256 held) = vault.stakeOf(who);
        _same("a stake", abi.encode(stake, frozen.bonded + frozen.unbonding), abi.encode(seen, held));
        _same("a backing", abi.encode(stake.bonded + frozen.bonded), abi.encode(vault.backingOf(who)));
        _same("a credit", abi.encode(_credits[who]), abi.encode(vault.creditOf(who)));
        _same("a node", abi.encode(_nodes[who]), abi.encode(swarm.nodeInfo(who)));
        (uint256 registered, uint256 leaving) = swarm.unitsOf(who);
        _same("units", abi.encode(_registered[who], _leaving[who]), abi.encode(registered, leaving));
    }

    function _checkPool(uint256 id) private view {
        (Pools.Terms memory terms, Counters times) = swarm.poolInfo(id);
        _same("terms", abi.encode(_terms[id]), abi.encode(terms));
        Times memory t = _times[id];
        Counters told = newCounters(t.startedAt, t.epochSeconds, t.window, t.leaseSeconds, t.maxUnits, t.flags);
        _same("times", abi.encode(told), abi.encode(times));
        (address[] memory joined,) = swarm.membersOf(id, 0, type(uint256).max);
        _same("members", abi.encode(_joined[id]), abi.encode(joined));
        _same("a bench", abi.encode(_benches[id]), abi.encode(court.benchOf(id)));
        _same("a book", abi.encode(_bookOf(id)), abi.encode(payroll.bookOf(id)));
        _same("what waits", abi.encode(_waitingOf(id)), abi.encode(payroll.waitingOf(id)));
        (uint256 from, uint256 until, uint256 redeemable) = _filingTimes(id);
        _same("what was filed", abi.encode(_filings[id], from, until, redeemable), _filingsOf(id));
        _same("a term", abi.encode(_terms_[id]), abi.encode(chair.termOf(id)));
        _same("trainers", abi.encode(_seatings[id]), abi.encode(chair.seatingOf(id)));
    }

    function _filingsOf(uint256 id) private view returns (bytes memory) {
        (Payroll.Filings memory filings, uint256 from, uint256 until, uint256 redeemable) = payroll.filingsOf(id);
        return abi.encode(filings, from, until, redeemable);
    }

    function _checkMember(uint256 id, address who) private view {
        bool sits = _benches[id].validators.length != _placeOf(_benches[id].validators, who);
        _same("who is let in", abi.encode(_admitted[id][who] || sits, _attestedAt[id][who], _places[id][who]),
            abi.encode(court.admits(id, who), court.attestedAt(id, who), court.placesTaken(id, who)));
        if (_members[id][who].joinedAt == 0) return;
        _same("a member", abi.encode(_memberInfo(id, who)), abi.encode(swarm.memberInfo(id, who)));
        _same("a payee", abi.encode(_members[id][who].joinedAt, _members[id][who].convictedAt != 0),
            abi.encode(swarm.payeeOf(id, who).joinedAt, swarm.payeeOf(id, who).convicted));
        (uint256 epochs,) = _unused(id, who);
        _same("pay", abi.encode(_capacity(id, who), _paid[id][who], epochs * _capacity(id, who)),
            abi.encode(swarm.payeeOf(id, who).capacity, payroll.paidOf(id, who), payroll.allowanceOf(id, who)));
        for (uint256 i = 0; i < _filedEpochs[id][who].length; ++i) {
            uint64 epoch = _filedEpochs[id][who][i];
            _same("an epoch's filing", abi.encode(_filedOf[id][who][epoch]), abi.encode(payroll.filedOf(id, who, epoch)));
        }
    }

    function _memberInfo(uint256 id, address who) private view returns (Members.MemberInfo memory info) {
        Members.Member memory member = _members[id][who];
        bool present = _nodes[who].pool == id;
        info.provider = _nodes[who].provider;
        info.evicted = member.slashedAt != 0 || member.convictedAt != 0;
        info.left = !present;
        (info.slashedAt, info.caseId, info.joinedBlock) = (member.slashedAt, member.caseId, member.joinedBlock);
        info.memberUntil = present ? _nodes[who].leaseUntil : member.leftAt;
    }

    function _same(string memory what, bytes memory told, bytes memory seen) private pure {
        if (keccak256(told) != keccak256(seen)) revert Otherwise(what, told, seen);
    }

    // ---- what a log says

    function _id(Vm.Log calldata log) private pure returns (uint256) {
        return uint256(log.topics[1]);
    }

    function _who(Vm.Log calldata log, uint256 topic) private returns (address who) {
        who = address(uint160(uint256(log.topics[topic])));
        _meet(who);
    }

    function _meet(address who) private {
        if (_isKnown[who]) return;
        _isKnown[who] = true;
        _known.push(who);
    }
}
