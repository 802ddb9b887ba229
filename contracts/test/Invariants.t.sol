// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Chair} from "../src/Chair.sol";
import {Court} from "../src/Court.sol";
import {Payroll} from "../src/Payroll.sol";
import {Nodes} from "../src/Nodes.sol";
import {Pools} from "../src/Pools.sol";
import {StakeVault} from "../src/StakeVault.sol";
import {Filing, Judgement, RootLine, Tally, WorkCommitment} from "../src/Statements.sol";
import {Swarm} from "../src/Swarm.sol";
import {Base, Sign} from "./Base.sol";
import {Reader} from "./Reader.sol";

/// Many people doing anything at any time, with signatures of their own: three pools of different terms, five providers,
/// six workers, four judges who sit in several pools, three of the workers trainers of the first. A refusal is fine; it must change nothing. What a call must never
/// bring about although it went through is noted in `broken`.
contract Crowd is Base {
    /// What the newest table of a pool says of each worker; by their numbers.
    struct Table {
        uint64[6] units;
        uint64 total;
        bool posted;
    }

    /// The one that waits. from: when it counts; zero where none waits.
    struct Next {
        Table table;
        uint64 epoch;
        bool held;
        uint256 postedAt;
        uint256 from;
        address[] signers;
    }

    /// Who took office in the pool that ends, and when.
    struct Sat {
        uint256 since;
        uint8 threshold;
        address[] validators;
    }

    uint256 private constant WORKERS = 6;
    uint256 private constant JUDGES = 4;
    uint8 private constant REASON = 5;

    uint256[] private _pools;
    address[] private _providers;
    address[] private _workers;
    address[] private _seats;
    mapping(uint256 pool => Table) private _tables;
    mapping(uint256 pool => Next) private _next;
    /// what workers were paid or lost, by pool: as the crowd has seen it
    mapping(uint256 pool => mapping(address worker => uint256)) private _gone;
    mapping(uint256 pool => uint256) private _funded;
    mapping(uint256 pool => uint256) private _paid;
    mapping(uint256 pool => uint256) private _swept;
    Sat[] private _sat;
    /// of the pool that ends: what each filed and neither redeemed nor lost
    mapping(address worker => uint256) private _filedBy;
    address private _stranger = address(0x57A6);
    mapping(bytes32 what => bool) private _once;
    /// of the pool with attestations: by worker, when the last one was made
    mapping(address worker => uint64) private _foundAt;
    Chair private chair;
    Reader private reader;
    /// of the term that a quorum ended: the lease that its words were about, and what its holder had said
    uint64 private _silentLease;
    uint64 private _held;
    /// what evidence and final cases took of a provider's stake since it last covered all that the provider answers for
    mapping(address provider => uint256) private _taken;
    string public broken;

    /// Whoever reads nothing but the logs hears of it.
    modifier told() {
        vm.recordLogs();
        _;
        reader.read(vm.getRecordedLogs());
    }

    /// A later second, after what was told until now has been read.
    function _until(uint256 time) private {
        if (time <= block.timestamp) return;
        reader.read(vm.getRecordedLogs());
        vm.warp(time);
    }

    function setUp() public override {
        vm.recordLogs();
        super.setUp();
        judgeKeys.push(0xB003);
        judgeKeys.push(0xB004);
        for (uint256 i = 0; i < WORKERS; ++i) {
            _workers.push(vm.addr(nodeKey + i));
        }
        for (uint256 i = 0; i < JUDGES; ++i) {
            _seats.push(vm.addr(judgeKeys[i]));
        }
        _bond(address(0x5006), 120 ether);
        _register(address(0x5006), judgeKeys[2], 1);
        _register(address(0x5006), judgeKeys[3], 1);
        _providers = [provider, address(0x2003), address(0x5005), address(0x2004), address(0x5006)];
        _bond(_providers[1], 200 ether);
        _bond(_providers[2], 200 ether);
        _bond(_providers[3], 60 ether);
        _pools.push(pool);
        _pools.push(_second());
        _noteBench();
        _pools.push(_third());
        _funded[pool] = ESCROW;
        _pay(_pools[1], 3 ether); // soon short
        _pay(_pools[2], 50 ether);
        for (uint256 i = 1; i < WORKERS; ++i) {
            _register(_owner(i), nodeKey + i, uint32(1 + i % 3));
            vm.prank(_worker(i));
            swarm.join(_pools[i % 2], "");
        }
        chair = Chair(_create("Chair", abi.encode(court)));
        address[] memory trainers = new address[](3);
        (trainers[0], trainers[1], trainers[2]) = (_workers[0], _workers[2], _workers[4]);
        vm.prank(manager);
        chair.seat(pool, trainers, 150, 30);
        reader = new Reader(vault, swarm, court, payroll, chair);
        reader.read(vm.getRecordedLogs());
    }

    /// Shorter epochs, two of three judges, less to lose.
    function _second() private returns (uint256) {
        Pools.PoolParams memory params = _params();
        params.epochSeconds = 70;
        params.window = 250;
        params.slashAmount = 6 ether;
        params.validators = _judges(13); // all but the second
        return _open(params);
    }

    /// Whom the manager invites, as big as two of three judges found it.
    function _third() private returns (uint256) {
        Pools.PoolParams memory params = _params();
        (params.invited, params.attested) = (true, true);
        params.rewardPerUnit = 3 * RATE;
        params.validators = _judges(7);
        return _open(params);
    }

    // ---- stakes and nodes

    function wait_(uint16 seconds_) external told {
        vm.warp(block.timestamp + (seconds_ % 16 == 0 ? seconds_ % 4000 : seconds_ % 120));
    }

    function bond(uint8 who, uint96 amount) external told {
        _bond(_provider(who), _bounded(amount, 1, 50 ether));
    }

    function unbond(uint8 who, uint96 amount) external told {
        address owner = _provider(who);
        // now and then all that its nodes do not need: so that a slash is felt
        uint256 most = vault.bondedOf(owner) - _needs(owner);
        vm.prank(owner);
        vault.unbond(amount % 4 == 0 ? most : _bounded(amount, 1, 80 ether));
    }

    function rebond(uint8 who, uint96 amount) external told {
        vm.prank(_provider(who));
        vault.rebond(_bounded(amount, 1, 80 ether));
    }

    /// Now and then in the second in which it may at the soonest.
    function withdraw(uint8 who) external told {
        address owner = _provider(who);
        StakeInfo memory stake = _stakeOf(owner);
        if (who % 4 == 0 && stake.unbonding > 0) _until(stake.withdrawableAt);
        vm.prank(owner);
        vault.withdraw();
        if (block.timestamp < stake.withdrawableAt) broken = "a stake was withdrawn too early";
    }

    /// A provider takes out all that its nodes do not need, and one of them convicts itself where it works: what is left
    /// does not cover the others.
    function ruin(uint8 which, uint8 seldom) external told {
        vm.assume(seldom % 8 == 3);
        (address worker, address owner) = (_worker(which), _owner(which % WORKERS));
        uint256 spare = vault.bondedOf(owner) - _needs(owner);
        if (spare > 0) {
            vm.prank(owner);
            vault.unbond(spare);
        }
        _until(block.timestamp + UNBONDING);
        if (_stakeOf(owner).unbonding > 0) {
            vm.prank(owner);
            vault.withdraw();
        }
        uint256 id = swarm.nodeInfo(worker).pool;
        _convict(worker, id, seldom);
    }

    /// One that was removed, if there is any.
    function register(uint8 which, uint32 units) external told {
        uint256 i = which;
        while (swarm.nodeInfo(_key(i)).registered && ++i < uint256(which) + WORKERS + JUDGES) {}
        i %= WORKERS + JUDGES;
        uint256 key = i < WORKERS ? nodeKey + i : judgeKeys[i - WORKERS];
        address owner = i < WORKERS ? _owner(i) : _providers[i < WORKERS + 2 ? 2 : 4];
        _register(owner, key, uint32(_bounded(units, 1, 6)));
        _taken[owner] = 0;
        (uint256 has, uint256 left) = swarm.unitsOf(owner);
        if (vault.bondedOf(owner) < BASE + PER_UNIT * (has + left)) broken = "a node came that no stake is for";
    }

    /// One that was removed, if there is any; now and then in the second in which it is free at the soonest.
    function release(uint8 which) external told {
        uint256 i = which;
        while (swarm.nodeInfo(_key(i)).freeAt == 0 && ++i < uint256(which) + WORKERS + JUDGES) {}
        address key = _key(i);
        if (which % 4 == 0) _until(swarm.nodeInfo(key).freeAt);
        bool free = !swarm.nodeInfo(key).registered && block.timestamp >= swarm.nodeInfo(key).freeAt;
        address[] memory one = new address[](1);
        one[0] = key;
        swarm.release(one);
        if (!free) broken = "a node was released that answers still";
    }

    function remove(uint8 which, uint8 seldom) external told {
        vm.assume(seldom % 4 == 1);
        address key = _key(which);
        vm.prank(swarm.nodeInfo(key).provider);
        swarm.removeNode(key);
    }

    function expel(uint8 which) external told {
        uint256 i = which;
        while (_isCovered(swarm.nodeInfo(_key(i)).provider) && ++i < uint256(which) + WORKERS + JUDGES) {}
        address key = _key(i);
        bool covered = _isCovered(swarm.nodeInfo(key).provider);
        swarm.expel(key);
        if (covered) broken = "somebody was expelled whose stake is enough";
    }

    /// Mostly to stay where it is.
    function join(uint8 which, uint8 where) external told {
        uint256 id = swarm.nodeInfo(_worker(which)).pool;
        if (id == 0 || where % 4 == 0) id = _pool(where / 4);
        vm.prank(_worker(which));
        swarm.join(id, "");
    }

    function joinByInvitation(uint8 which, uint8 seldom) external told {
        vm.assume(seldom % 4 == 1);
        address worker = _worker(which);
        Court.Invited memory by = _invited(managerKey, _pools[2], worker, 1, uint64(block.timestamp + 5), 0, worker);
        court.admit(_pools[2], worker, by);
        vm.prank(worker);
        swarm.join(_pools[2], "");
    }

    function leave(uint8 which, uint8 seldom) external told {
        vm.assume(seldom % 8 == 5);
        uint256 id = swarm.nodeInfo(_worker(which)).pool;
        vm.prank(_worker(which));
        swarm.leavePool(id);
    }

    // ---- earnings and pay

    /// Mostly what judges would sign: lines that do not fall, an epoch that is mature, no more than there is. Now and then
    /// anything.
    function post(uint8 where, uint16[6] calldata more, uint8 which, uint8 how) external told {
        uint256 id = _pool(where);
        _move(id);
        Table memory table = _tables[id];
        uint64 added = 0;
        for (uint256 i = 0; i < WORKERS; ++i) {
            if (which >> i & 1 == 0) continue;
            table.units[i] += more[i] % 3000;
            added += more[i] % 3000;
        }
        table.total += how % 16 == 7 ? added / 2 : added; // a table whose lines are more than its total
        table.posted = true;
        uint64 next = payroll.bookOf(id).epochs;
        uint64 epoch = _lastMature(id);
        if (how % 8 == 3 || epoch < next) epoch = next + how % 3;
        (bytes32 root,) = _tree(table, 0);
        _offerOf(id, _tally(id, epoch, root, table.total), how);
        if (block.timestamp < _maturityOf(id, epoch)) broken = "a table was posted too early";
        if (epoch < next) broken = "a table was posted of epochs that another one had";
        if (_tooFew(id, epoch + 1 - next)) broken = "a table covers too little";
        _note(_next[id], table, epoch);
    }

    function _offerOf(uint256 id, Tally memory tally, uint8 how) private {
        bytes32 said = Sign.tally(Sign.EARNINGS, tally);
        (bytes[] memory signatures, bool fair) = _heard(id, said, how);
        bool waits = _next[id].from != 0;
        payroll.post(tally, signatures);
        if (waits) broken = "a table was pushed away by another one";
        if (!fair) broken = "a table was posted without a quorum";
        delete _next[id].signers;
        for (uint256 i = 0; i < signatures.length; ++i) _next[id].signers.push(_signer(said, signatures[i]));
    }

    function _tooFew(uint256 id, uint256 epochs) private view returns (bool) {
        return epochs * _poolInfo(id).epochSeconds < DELAY && !_poolInfo(id).ended;
    }

    function _note(Next storage next, Table memory table, uint64 epoch) private {
        (next.table, next.epoch, next.held) = (table, epoch, false);
        (next.postedAt, next.from) = (block.timestamp, block.timestamp + DELAY);
    }

    /// By the guardian, or now and then by somebody else.
    function hold(uint8 where, uint8 how) external told {
        uint256 id = how % 8 == 5 ? _pools[1] : _whose(where, false);
        _move(id);
        bool again = _next[id].held;
        if (_next[id].from == 0) again = !_mayHold(id);
        vm.prank(how % 8 == 3 ? manager : guardian);
        payroll.hold(id);
        if (_next[id].from == 0) {
            if (again || how % 8 == 3) broken = "what was filed was held twice, at another time, or by somebody else";
            return;
        }
        if (again || how % 8 == 3) broken = "a table was held twice, or by somebody else";
        (_next[id].held, _next[id].from) = (true, block.timestamp + APPEAL);
    }

    function drop(uint8 where, uint8 how) external told {
        vm.assume(how % 2 == 1);
        uint256 id = how % 16 == 13 ? _pools[1] : _whose(where, true);
        _move(id);
        (bool held, uint256 escrow) = (_next[id].held && _next[id].from != 0, _poolInfo(id).escrow);
        address[] memory signers = _next[id].signers;
        if (_next[id].from == 0) return _dropFiled(how);
        vm.prank(how % 32 == 1 ? guardian : arbiter);
        payroll.drop(id, signers);
        if (!held || how % 32 == 1) broken = "a table was dropped that nobody held, or by somebody else";
        if (_poolInfo(id).escrow != escrow) broken = "dropping a table moved money";
        for (uint256 i = 0; i < signers.length; ++i) {
            if (!swarm.memberInfo(id, signers[i]).evicted) broken = "who signed a dropped table is in office";
        }
        _next[id].from = 0;
    }

    /// A pool in which a table waits, and is held or not, if there is any.
    function _whose(uint8 where, bool held) private returns (uint256 id) {
        for (uint256 i = 0; i < _pools.length; ++i) {
            id = _pools[(i + where) % _pools.length];
            _move(id);
            if (_next[id].from != 0 && _next[id].held == held) break;
        }
    }

    /// A table that waited long enough counts, whether or not anybody has touched it since.
    function _move(uint256 id) private {
        Next storage next = _next[id];
        bool counts = payroll.bookOf(id).epochs == next.epoch + 1;
        if (next.from == 0 || block.timestamp < next.from) return;
        if (block.timestamp < next.postedAt + DELAY || !counts) broken = "a table counts too early, or not at all";
        _tables[id] = next.table;
        next.from = 0;
    }

    function _lastMature(uint256 id) private view returns (uint64 epoch) {
        uint64 now_ = _epochAt(id, block.timestamp);
        for (epoch = now_; epoch > 0 && _maturityOf(id, epoch) > block.timestamp; --epoch) {}
    }

    /// Of the newest table, or now and then of one unit more. Carried by a stranger.
    function claim(uint8 where, uint8 which, uint8 how) external told {
        uint256 id = _pool(where);
        for (uint256 i = 0; i < _pools.length && !_tables[id].posted; ++i) {
            id = _pools[i];
            _move(id);
        }
        _move(id);
        // mostly somebody whose line says more than it was paid
        uint256 whose = which % WORKERS;
        while (how % 4 != 3 && _tables[id].units[whose % WORKERS] <= _gone[id][_worker(whose)] && ++whose < 2 * WORKERS) {}
        _claimFor(id, whose % WORKERS, how % 16 == 7 ? 1 : 0);
    }

    function _claimFor(uint256 id, uint256 which, uint64 more) private {
        address worker = _worker(which);
        uint256 before = token.balanceOf(swarm.nodeInfo(worker).provider);
        uint256 allowed = payroll.allowanceOf(id, worker);
        uint64 claimed = payroll.paidOf(id, worker).claimed;
        bool due = more == 0 && allowed > 0 && _isDue(id, worker, _tables[id].units[which]);
        if (!_carry(id, which, _tables[id].units[which] + more, due)) return;
        uint64 gone = payroll.paidOf(id, worker).claimed - claimed;
        uint256 got = token.balanceOf(swarm.nodeInfo(worker).provider) - before;
        (_gone[id][worker], _paid[id]) = (_gone[id][worker] + gone, _paid[id] + got);
        if (more > 0) broken = "a line was paid that is in no table";
        if (gone == 0 || claimed + gone > _tables[id].units[which]) broken = "not the difference was paid";
        bool evicted = swarm.memberInfo(id, worker).evicted;
        if (got != (evicted ? 0 : gone * _poolInfo(id).rewardPerUnit)) broken = "not what was claimed was paid";
        if (!evicted && gone > allowed) broken = "more was paid than its size allows";
    }

    /// By the rules: its line says more than was claimed, the pool owes some, and no case about it is open.
    function _isDue(uint256 id, address worker, uint64 units) private view returns (bool) {
        Swarm.Payee memory payee = swarm.payeeOf(id, worker);
        bool judged = payee.convicted || (payee.caseId != 0 && vault.isFinal(payee.caseId));
        bool more = units > payroll.paidOf(id, worker).claimed && payroll.bookOf(id).owed > 0;
        return more && (!payee.evicted || judged);
    }

    /// due: nothing may refuse it.
    function _carry(uint256 id, uint256 which, uint64 units, bool due) private returns (bool) {
        (, bytes32[] memory proof) = _tree(_tables[id], which);
        vm.prank(_stranger);
        if (due) {
            try payroll.claim(id, _worker(which), units, proof) {}
            catch {
                broken = "a due claim was refused";
                return false;
            }
        } else {
            payroll.claim(id, _worker(which), units, proof);
        }
        return true;
    }

    /// Root of the table, and the proof of one worker's line. Six lines: the third pair is carried up.
    function _tree(Table memory table, uint256 which) private view returns (bytes32 root, bytes32[] memory proof) {
        bytes32[6] memory leaves;
        bytes32[3] memory pairs;
        for (uint256 i = 0; i < 6; ++i) leaves[i] = _line(_workers[i], table.units[i]);
        for (uint256 i = 0; i < 3; ++i) pairs[i] = _both(leaves[2 * i], leaves[2 * i + 1]);
        root = _both(_both(pairs[0], pairs[1]), pairs[2]);
        proof = new bytes32[](which < 4 ? 3 : 2);
        proof[0] = leaves[which ^ 1];
        if (which < 4) (proof[1], proof[2]) = (pairs[which / 2 ^ 1], pairs[2]);
        else proof[1] = _both(pairs[0], pairs[1]);
    }

    // ---- after the end of the second pool

    function _noteBench() private {
        Court.Bench memory bench = court.benchOf(_pools[1]);
        _sat.push(Sat(block.timestamp, bench.threshold, bench.validators));
    }

    function _mayHold(uint256 id) private view returns (bool) {
        (Payroll.Filings memory filings, uint256 from,, uint256 redeemable) = payroll.filingsOf(id);
        return filings.heldUntil == 0 && from <= block.timestamp && block.timestamp < redeemable;
    }

    function _dropFiled(uint8 how) private {
        address[] memory nodes = new address[](1);
        nodes[0] = _worker(how / 32);
        (Payroll.Filings memory filings,, uint256 until, uint256 redeemable) = payroll.filingsOf(_pools[1]);
        if (how % 8 == 1 && filings.heldUntil != 0) _until(until);
        bool fair = filings.heldUntil != 0 && until <= block.timestamp && block.timestamp < redeemable;
        vm.prank(how % 32 == 1 ? guardian : arbiter);
        payroll.drop(_pools[1], nodes);
        if (!fair || how % 32 == 1) broken = "what was filed was dropped that nobody held, or by somebody else";
        _filedBy[nodes[0]] = 0;
    }

    /// Mostly what the bench of the epoch would have signed, in time, of who was a member. Now and then by too few, by the
    /// bench of today, of any epoch, or of what somebody else earned.
    function file(uint8 which, uint8 when, uint16[2] calldata units, uint8 how) external told {
        uint256 id = _pools[1];
        while (which < 250 && swarm.memberInfo(id, _worker(which)).provider == address(0)) ++which;
        address worker = _worker(which);
        _move(id);
        if (when % 16 == 13 && !_poolInfo(id).ended) {
            vm.prank(manager);
            swarm.endPool(id);
        }
        (, uint256 from, uint256 until,) = payroll.filingsOf(id);
        if (how % 4 != 3 && from != type(uint256).max) _until(from);
        uint64 epoch = payroll.bookOf(id).epochs + when % 4;
        uint256 number = how % 16 == 5 ? _sat.length : _benchAt(_beginning(id, epoch));
        Filing[] memory filings = new Filing[](1);
        filings[0] = _named(epoch, number, how % 16 == 9 ? _worker(which + 1) : worker, units, how % 16 == 13);
        uint64 before = payroll.filedOf(id, worker, epoch);
        vm.prank(how % 16 == 7 ? _stranger : worker);
        payroll.file(id, worker, filings);
        if (how % 16 == 7 || how % 16 == 9 || how % 16 == 13) broken = "something was filed that no quorum named of it";
        if (number != _benchAt(_beginning(id, epoch))) broken = "a bench named works of an epoch that it did not sit in";
        if (block.timestamp < from || block.timestamp >= until) broken = "something was filed out of time";
        if (epoch > _epochAt(id, _poolInfo(id).stoppedAt)) broken = "something was filed of an epoch after the end";
        if (payroll.filedOf(id, worker, epoch) > units[0] % 3000) broken = "more was filed than the least of the words";
        _filedBy[worker] += payroll.filedOf(id, worker, epoch) - before;
    }

    /// Each of the bench's first seats: the first says least.
    function _named(uint64 epoch, uint256 number, address worker, uint16[2] calldata units, bool few)
        private
        view
        returns (Filing memory)
    {
        Sat memory sat = _sat[number - 1];
        RootLine[] memory lines = new RootLine[](few ? sat.threshold - 1 : sat.threshold);
        for (uint256 i = 0; i < lines.length; ++i) {
            uint64 said = units[0] % 3000 + (i > 0 ? units[1] % 100 : 0);
            Tally memory root = Tally(_pools[1], epoch, 1, _line(worker, said), said, ROOT);
            bytes memory signature = _sign(judgeKeys[_judgeOf(sat.validators[i])], Sign.tally(Sign.EPOCH_ROOT, root));
            lines[i] = RootLine(uint8(i), root, signature, said, new bytes32[](0));
        }
        return Filing(epoch, uint32(number), sat.threshold, sat.validators, lines);
    }

    function _beginning(uint256 id, uint64 epoch) private view returns (uint256) {
        return _poolInfo(id).startedAt + epoch * _poolInfo(id).epochSeconds;
    }

    /// The number of the bench that sat then.
    function _benchAt(uint256 second) private view returns (uint256 number) {
        while (number < _sat.length && _sat[number].since <= second) ++number;
    }

    /// Carried by a stranger; now and then at once.
    function redeem(uint8 which, uint8 how) external told {
        _move(_pools[1]);
        (,,, uint256 from) = payroll.filingsOf(_pools[1]);
        if (how % 4 != 3 && from != type(uint256).max) _until(from);
        // mostly of somebody who filed
        uint256 whose = which % WORKERS;
        while (how % 8 != 7 && _filedBy[_worker(whose)] == 0 && ++whose < 2 * WORKERS) {}
        _redeemFor(whose % WORKERS);
    }

    function _redeemFor(uint256 which) private {
        (uint256 id, address worker) = (_pools[1], _worker(which));
        (Payroll.Filings memory before,,, uint256 from) = payroll.filingsOf(id);
        uint256 aside = before.aside == 0 ? _toSetAside(id) : before.aside;
        address owner = swarm.nodeInfo(worker).provider;
        uint256 had = token.balanceOf(owner);
        vm.prank(_stranger);
        payroll.redeem(id, worker);
        uint256 got = token.balanceOf(owner) - had;
        bool evicted = swarm.memberInfo(id, worker).evicted;
        uint256 share = _filedBy[worker] * aside / before.filed * _poolInfo(id).rewardPerUnit;
        if (got != (evicted ? 0 : share)) broken = "not its share was redeemed";
        if (block.timestamp < from) broken = "something was redeemed too early";
        (_filedBy[worker], _paid[id]) = (0, _paid[id] + got);
    }

    /// The least of what was filed, what is free, and what the pool pays of the epochs that no table has.
    function _toSetAside(uint256 id) private view returns (uint256 units) {
        (Payroll.Filings memory filings,,,) = payroll.filingsOf(id);
        Payroll.Book memory book = payroll.bookOf(id);
        units = filings.filed;
        if (units == 0) return 0;
        uint256 most = (_epochAt(id, _poolInfo(id).stoppedAt) + 1 - book.epochs) * uint256(_poolInfo(id).unitsPerEpoch);
        if (most < units) units = most;
        if (book.free < units) units = book.free;
    }

    // ---- judgement

    function slash(uint8 where, uint8 which, uint8 index, uint8 how) external told {
        WorkCommitment memory c =
            WorkCommitment(_pool(where), _worker(which), ROOT, index % 8, keccak256(abi.encode(which, index % 8)), 1, 0);
        bytes memory own = _sign(_keyOf(c.node), Sign.commitment(c));
        (bytes[] memory verdicts, bool fair) = _heard(c.pool, Sign.verdict(c, 2, REASON), how);
        uint256 due = _due(c.pool, c.node);
        bytes32 judged = keccak256(abi.encode("judged", Sign.commitment(c)));
        if (fair && !_once[judged] && _isReached(c.pool, c.node) && _canPutUp(due)) {
            try court.slash(c, own, REASON, verdicts, _blank(verdicts), 0) {}
            catch {
                broken = "judges could not slash who answers to them";
            }
        } else {
            court.slash(c, own, REASON, verdicts, _blank(verdicts), 0);
        }
        if (vault.caseInfo(vault.caseCount()).amount != due) broken = "a case is not about all units of its node";
        if (!fair) broken = "somebody was slashed without a quorum";
        _only(judged, "a work was judged twice");
    }

    /// By the rules: it was a member under these judges, until its last epoch as one is mature, and nobody had it slashed.
    function _isReached(uint256 id, address node_) private view returns (bool) {
        (uint64 until, PoolInfo memory info) = (swarm.memberInfo(id, node_).memberUntil, _poolInfo(id));
        if (until == 0 || swarm.memberInfo(id, node_).slashedAt != 0) return false;
        uint40 since = court.benchOf(id).since;
        bool over = info.ended && block.timestamp >= _maturityOf(id, _epochAt(id, info.stoppedAt));
        return !over && (since == 0 || until > since) && block.timestamp < _maturityOf(id, _epochAt(id, until));
    }

    /// Whether whoever carries cases here has what the vault asks of it.
    function _canPutUp(uint256 due) private view returns (bool) {
        uint256 put = due / 4 < 1 ether ? 1 ether : due / 4;
        return token.balanceOf(address(this)) >= put && token.allowance(address(this), address(vault)) >= put;
    }

    /// What a slash of it is to take: the pool's price of each unit, as far as that is there.
    function _due(uint256 id, address node_) private view returns (uint256 due) {
        Nodes.Node memory entry = swarm.nodeInfo(node_);
        due = uint256(_poolInfo(id).slashAmount) * entry.units;
        uint256 there = _sumOf(entry.provider);
        if (due > there) due = there;
    }

    function attest(uint8 which, uint8 units, uint16 ago, uint16 long, uint8 how) external told {
        address worker = _worker(which);
        uint64 madeAt = uint64(block.timestamp - ago % 300);
        bytes32 statement =
            keccak256(abi.encode(Sign.ATTESTATION, _pools[2], worker, uint32(units % 5), madeAt, madeAt + long));
        (bytes[] memory signatures, bool fair) = _heard(_pools[2], statement, how);
        court.attest(_pools[2], worker, units % 5, madeAt, madeAt + long, signatures);
        if (!fair) broken = "a node was attested without a quorum";
        if (madeAt <= _foundAt[worker]) broken = "an older attestation took the place of a newer one";
        _foundAt[worker] = madeAt;
    }

    /// Signatures of judges of the pool over a statement, and whether they are a quorum by the rules: as many as there must
    /// be, each another, each in office, with a stake, and not found to be a cheat here.
    function _heard(uint256 id, bytes32 statement, uint8 how) private view returns (bytes[] memory signatures, bool fair) {
        bytes32[] memory statements = new bytes32[](_manyOf(id, how));
        for (uint256 i = 0; i < statements.length; ++i) statements[i] = statement;
        return _heardOf(id, statements, how);
    }

    function _manyOf(uint256 id, uint8 how) private view returns (uint256) {
        uint256 threshold = court.benchOf(id).threshold;
        if (how % 8 == 6) return threshold + 1; // one of them twice, if there are no others
        return how % 8 == 7 ? threshold - 1 : threshold;
    }

    /// The same, where each of them signs a statement of its own.
    function _heardOf(uint256 id, bytes32[] memory statements, uint8 how)
        private
        view
        returns (bytes[] memory signatures, bool fair)
    {
        Court.Bench memory bench = court.benchOf(id);
        uint256 many = statements.length;
        signatures = new bytes[](many);
        fair = many >= bench.threshold;
        uint256 seen = 0;
        for (uint256 i = 0; i < many; ++i) {
            // in one of eight cases anybody's, else those who are in office
            uint256 place = how % 8 == 5 || bench.validators.length == 0 ? JUDGES : i % bench.validators.length;
            uint256 judge = place == JUDGES ? (i + how / 8) % JUDGES : _judgeOf(bench.validators[place]);
            signatures[i] = _sign(judgeKeys[judge], statements[i]);
            fair = fair && seen & (1 << judge) == 0 && _sits(bench.validators, judge) && _isFit(id, _seats[judge]);
            seen |= 1 << judge;
        }
    }

    function _signer(bytes32 statement, bytes memory signature) private view returns (address) {
        bytes32 digest = keccak256(abi.encodePacked(hex"1901", Sign.domain(block.chainid, address(swarm)), statement));
        (bytes32 r, bytes32 s, uint8 v) = (0, 0, uint8(signature[64]));
        assembly {
            r := mload(add(signature, 32))
            s := mload(add(signature, 64))
        }
        return ecrecover(digest, v, r, s);
    }

    /// As the rules say it: registered, covered, not evicted.
    function _isFit(uint256 id, address holder) private view returns (bool) {
        Nodes.Node memory entry = swarm.nodeInfo(holder);
        return entry.registered && !swarm.memberInfo(id, holder).evicted && _isCovered(entry.provider);
    }

    function _isCovered(address owner) private view returns (bool) {
        return vault.backingOf(owner) >= _needs(owner);
    }

    function _needs(address owner) private view returns (uint256) {
        (uint256 registered,) = swarm.unitsOf(owner);
        return registered == 0 ? 0 : BASE + PER_UNIT * registered;
    }

    function _sits(address[] memory validators, uint256 judge) private view returns (bool) {
        for (uint256 i = 0; i < validators.length; ++i) {
            if (validators[i] == _seats[judge]) return true;
        }
        return false;
    }

    function _judgeOf(address validator) private view returns (uint256 judge) {
        while (_seats[judge] != validator) ++judge;
    }

    function overturn(uint8 index) external told {
        for (uint256 i = index; i < uint256(index) + WORKERS * _pools.length; ++i) {
            (uint256 id, address worker) = (_pools[i % _pools.length], _worker(i / _pools.length));
            uint256 caseId = swarm.memberInfo(id, worker).caseId;
            if (caseId == 0) continue;
            bytes32 others = _others(vault.caseInfo(caseId).provider);
            uint256 sum = _sumOf(vault.caseInfo(caseId).provider);
            vm.prank(arbiter);
            swarm.overturn(id, worker);
            bool moved = _others(vault.caseInfo(caseId).provider) != others;
            if (moved || _sumOf(vault.caseInfo(caseId).provider) != sum) broken = "the arbiter moved a stake";
            return;
        }
        revert Failed("there is nothing to overturn");
    }

    /// The arbiter names the next one, who accepts once it may; now and then somebody else tries, or it is too early.
    function succeed(uint8 how) external told {
        if (how % 2 == 0) {
            vm.prank(how % 16 == 2 ? _stranger : arbiter);
            vault.nameSuccessor(how % 8 == 4 ? address(0) : address(uint160(0xA4B2) + how));
            if (how % 16 == 2) broken = "somebody else named the arbiter";
            return;
        }
        (address next, uint64 from) = (vault.successor(), vault.successorFrom());
        if (how % 4 == 1) _until(from);
        vm.prank(how % 16 == 3 || next == address(0) ? _stranger : next);
        vault.acceptArbiter();
        if (how % 16 == 3 || block.timestamp < from || next == address(0)) broken = "an arbiter came that may not";
        arbiter = next;
    }

    function appeal(uint8 index) external told {
        uint256 id = _openCase(index);
        address who = vault.caseInfo(id).provider;
        _give(who, vault.caseInfo(id).bond, address(vault));
        vm.prank(who);
        vault.appeal(id);
    }

    function finalize(uint8 index) external told {
        uint256 id = _openCase(index);
        if (index % 4 == 0 && id != 0) _until(vault.caseInfo(id).finalAt);
        _finalize(id);
    }

    /// It takes what it froze, as far as evidence and other cases have left it, and nothing else.
    function _finalize(uint256 id) private {
        StakeVault.Case memory case_ = vault.caseInfo(id);
        (uint256 frozen, uint256 sum) = (_stakeOf(case_.provider).frozen, _sumOf(case_.provider));
        bytes32 others = _others(case_.provider);
        uint256 had = vault.creditOf(case_.carrier);
        vault.finalize(id);
        uint256 taken = case_.amount < frozen ? case_.amount : frozen;
        if (frozen - _stakeOf(case_.provider).frozen != taken) broken = "a case took something else than it froze";
        if (sum - _sumOf(case_.provider) != taken) broken = "a case took what was not frozen";
        _taken[case_.provider] += taken;
        if (_others(case_.provider) != others) broken = "a case moved another stake";
        uint256 won = case_.appealed ? 2 * uint256(case_.bond) - uint256(case_.bond) / 10 : case_.bond;
        if (vault.creditOf(case_.carrier) - had != won + taken / 50) broken = "a carrier got something else than its due";
    }

    function _sumOf(address who) private view returns (uint256) {
        StakeInfo memory stake = _stakeOf(who);
        return uint256(stake.bonded) + stake.unbonding + stake.frozen;
    }

    /// Everybody's stake but one's.
    function _others(address but) private view returns (bytes32 all) {
        for (uint256 i = 0; i < _providers.length; ++i) {
            if (_providers[i] != but) all = keccak256(abi.encode(all, _stakeOf(_providers[i])));
        }
    }

    function collect(uint8 who) external told {
        vault.collect(_creditor(who));
    }

    /// Everybody whom the vault may owe something: carriers and providers, and where slashes go.
    function _creditor(uint256 i) private view returns (address) {
        i %= _providers.length + 3;
        if (i < _providers.length) return _providers[i];
        return i == _providers.length ? treasury : i == _providers.length + 1 ? vault.BURNED() : address(this);
    }

    function _openCase(uint8 index) private view returns (uint256 id) {
        uint256 count = vault.caseCount();
        for (uint256 i = 0; i < count; ++i) {
            id = 1 + (index + i) % count;
            if (vault.caseInfo(id).state == StakeVault.State.Frozen) break;
        }
    }

    // ---- evidence; carried by a stranger, who must have nothing of it

    function evidence(uint8 which, uint8 where, uint8 seldom) external told {
        vm.assume(seldom % 8 == 5);
        _convict(_worker(which), _pool(where), seldom);
    }

    /// Nobody who was ever a member and answers for it is out of reach, but for who was convicted there already.
    function _convict(address worker, uint256 id, uint64 index) private {
        WorkCommitment memory one = WorkCommitment(id, worker, ROOT, index, ROOT, 1, 0);
        WorkCommitment memory two = WorkCommitment(id, worker, ROOT, index, ROOT, 1, 1);
        bytes memory first = _sign(_keyOf(worker), Sign.commitment(one));
        bytes memory second = _sign(_keyOf(worker), Sign.commitment(two));
        (address owner, uint256 due) = (swarm.nodeInfo(worker).provider, _due(id, worker));
        uint256 sum = _sumOf(owner);
        bool reached = swarm.memberInfo(id, worker).provider != address(0) && !swarm.payeeOf(id, worker).convicted;
        vm.prank(_stranger);
        if (reached) {
            try court.evidence([one, two], [first, second]) {}
            catch {
                broken = "who answers could not be slashed";
            }
        } else {
            court.evidence([one, two], [first, second]);
        }
        _took(owner, sum, due);
        _only(keccak256(abi.encode("convicted", id, worker)), "a key was convicted twice in one pool");
    }

    function verdictEvidence(uint8 judge, uint8 where, uint8 seldom) external told {
        vm.assume(seldom % 32 == 13);
        WorkCommitment memory c = WorkCommitment(_pool(where), _worker(seldom), ROOT, seldom, ROOT, 1, 0);
        uint256 key = judgeKeys[judge % JUDGES];
        bytes memory first = _sign(key, Sign.verdict(c, 0, 0));
        bytes memory second = _sign(key, Sign.verdict(c, 2, REASON));
        (address owner, uint256 due) = (swarm.nodeInfo(vm.addr(key)).provider, _due(c.pool, vm.addr(key)));
        uint256 sum = _sumOf(owner);
        vm.prank(_stranger);
        court.verdictEvidence(c.pool, Sign.commitment(c), [Judgement(0, 0, 0), Judgement(2, REASON, 0)], [first, second]);
        _took(owner, sum, due);
        if (_sits(court.benchOf(c.pool).validators, judge % JUDGES)) broken = "who contradicted itself is in office";
    }

    function _took(address owner, uint256 sum, uint256 due) private {
        if (sum - _sumOf(owner) != due) broken = "evidence took something else than the price of all units";
        _taken[owner] += due;
    }

    /// Whoever has read nothing but the logs knows every state.
    function logsRebuildState() external view {
        reader.check();
    }

    // ---- who leads

    function holdChair(uint8 which, uint16 step, uint8 how) external told {
        Chair.Term memory term = chair.termOf(pool);
        address[] memory trainers = chair.seatingOf(pool).trainers;
        address caller = trainers[how % 4 == 3 ? which % trainers.length : term.place];
        vm.prank(caller);
        chair.hold(pool, step, ROOT);
        if (caller != trainers[term.place] || term.ended || !_mayLead(caller)) broken = "somebody held no chair of its own";
        uint64 reached = chair.termOf(pool).reached;
        if (reached != (step > term.reached ? step : term.reached)) broken = "a holder's word counts otherwise";
    }

    function takeChair(uint8 which, uint16 fromStep, uint8 how) external told {
        Chair.Term memory term = chair.termOf(pool);
        address[] memory trainers = chair.seatingOf(pool).trainers;
        address caller = trainers[which % trainers.length];
        bool over = block.timestamp >= term.until || !_mayLead(trainers[term.place]);
        uint64 from = how % 2 == 0 ? term.reached : fromStep;
        vm.prank(caller);
        chair.take(pool, how % 8 == 7 ? term.number : term.number + 1, from, ROOT);
        if (!over || !_mayLead(caller)) broken = "two lead, or one that may not";
        if (from + 64 < term.reached) broken = "a term began too far back";
        Chair.Term memory next = chair.termOf(pool);
        if (next.number != term.number + 1 || next.ended || next.reached != term.reached) broken = "a term began otherwise";
        if (trainers[next.place] != caller || next.until != block.timestamp + 150) broken = "another one leads";
    }

    /// Words about the lease as it is, or as it was when the term ended; the greatest first.
    function endTerm(uint16 most, uint8[5] calldata less, uint8 how) external told {
        Chair.Term memory term = chair.termOf(pool);
        uint64 lease = term.ended ? _silentLease : term.until;
        uint64[] memory steps = new uint64[](_manyOf(pool, how));
        bytes32[] memory words = new bytes32[](steps.length);
        for (uint256 i = 0; i < steps.length; ++i) {
            uint64 last = i == 0 ? most : steps[i - 1];
            steps[i] = last > less[i % 5] ? last - less[i % 5] : 0;
            words[i] = keccak256(abi.encode(Sign.TERM_SILENT, pool, term.number, lease, steps[i]));
        }
        (bytes[] memory signatures, bool fair) = _heardOf(pool, words, how);
        chair.endTerm(pool, term.number, lease, steps, signatures);
        if (!fair) broken = "a term was ended without a quorum";
        if (!term.ended) (_silentLease, _held) = (lease, term.reached);
        _checkReached(steps);
    }

    /// What the holder held stays where it is within the words: at least the quorum's, at most the greatest.
    function _checkReached(uint64[] memory steps) private {
        uint64 reached = chair.termOf(pool).reached;
        uint64 least = steps[court.benchOf(pool).threshold - 1];
        if (reached < least || reached > steps[0]) broken = "the run came as far as no quorum says";
        if (_held >= least && _held <= steps[0] && reached != _held) broken = "an honest holder's word was moved";
        if (!chair.termOf(pool).ended) broken = "a term goes on that a quorum ended";
    }

    function _mayLead(address trainer) private view returns (bool) {
        return block.timestamp < swarm.memberInfo(pool, trainer).memberUntil && _isFit(pool, trainer);
    }

    // ---- the manager

    function propose(uint8 where, uint8 mask, uint8 threshold) external told {
        address[] memory proposed = _judges(mask % 16);
        vm.prank(manager);
        court.proposeValidators(_pool(where), proposed, uint8(1 + threshold % 3));
    }

    function install(uint8 where) external told {
        court.applyValidators(_pool(where));
        if (_pool(where) == _pools[1]) _noteBench();
    }

    function proposeTrainers(uint8 mask) external told {
        uint256 count = 1 + mask % 3;
        address[] memory trainers = new address[](count);
        for (uint256 i = 0; i < count; ++i) trainers[i] = _worker(mask / 3 + i);
        vm.prank(manager);
        chair.propose(pool, trainers);
    }

    /// Whoever held the chair and is one of them holds it still.
    function installTrainers() external told {
        Chair.Term memory term = chair.termOf(pool);
        Chair.Seating memory before = chair.seatingOf(pool);
        chair.applyTrainers(pool);
        Chair.Term memory next = chair.termOf(pool);
        address[] memory seated = chair.seatingOf(pool).trainers;
        bool stays = seated[next.place] == before.trainers[term.place];
        if (block.timestamp < before.proposedFrom || before.proposedFrom == 0) broken = "trainers came too early";
        if (next.number != term.number) broken = "a new bench of trainers began a term";
        for (uint256 i = 0; i < seated.length; ++i) {
            if (seated[i] == before.trainers[term.place] && !stays) broken = "a holder lost its chair to another one";
        }
        if (stays && (next.ended != term.ended || next.until != term.until)) broken = "a term of a trainer's was changed";
        if (!stays && !next.ended) broken = "somebody leads who took no chair";
        if (!stays) (_silentLease, _held) = (0, 0);
    }

    /// Another pool of terms of its own, in which nobody works.
    function open(uint96 rate, uint32 window, uint64 units, bytes32 root, uint8 seldom) external told {
        vm.assume(seldom % 16 == 7);
        Pools.PoolParams memory params = _params();
        (params.rewardPerUnit, params.unitsPerEpoch, params.slashAmount) = (rate, units, uint96(PER_UNIT - seldom));
        (params.window, params.epochSeconds) = (uint32(_bounded(window, MIN_WINDOW, 1000)), 1 + window % 999);
        params.delay = params.window - window % (params.window / 2);
        (params.maxUnitsPerEpoch, params.requirementRoot) = (1 + window, keccak256(abi.encode(root)));
        (params.runURI, params.bootnodes) = ("ipfs://run", string(abi.encode(root)));
        (params.invited, params.attested) = (seldom % 32 == 7, seldom % 64 == 7);
        if (seldom % 32 == 23) params.guardian = address(0);
        uint256 id = _open(params);
        vm.prank(manager);
        swarm.setPoolRun(id, root);
    }

    function tell(uint8 where, bytes32 what) external told {
        vm.prank(manager);
        swarm.setBootnodes(_pool(where), string(abi.encode(what)));
    }

    function revoke(uint8 which, uint8 seldom) external told {
        vm.assume(seldom % 8 == 5);
        address[] memory invitees = new address[](1);
        invitees[0] = _worker(which);
        vm.prank(manager);
        court.revokeInvitations(_pools[2], invitees);
    }

    function fund(uint8 where, uint96 amount) external told {
        _pay(_pool(where), _bounded(amount, 3 * RATE, 20 ether));
    }

    function pause(uint8 where, uint8 seldom) external told {
        vm.assume(seldom % 8 == 5);
        vm.prank(manager);
        swarm.pausePool(_pool(where));
    }

    function resume(uint8 where) external told {
        vm.prank(manager);
        swarm.resumePool(_pool(where));
    }

    function end(uint8 seldom) external told {
        vm.assume(seldom % 16 == 13);
        vm.prank(manager);
        swarm.endPool(_pools[1]);
    }

    /// Now and then in the second in which it may at the soonest.
    function sweep(uint8 how) external told {
        (uint256 id, uint256 before) = (_pools[1], token.balanceOf(manager));
        PoolInfo memory info = _poolInfo(id);
        uint256 from = _maturityOf(id, _epochAt(id, info.stoppedAt)) + info.window + DELAY;
        if (how % 2 == 0 && info.ended) _until(from);
        _move(id);
        uint256 owed = _poolInfo(id).owed;
        (Payroll.Filings memory filings,, uint256 until, uint256 redeemable) = payroll.filingsOf(id);
        uint256 aside = filings.aside == 0 ? _toSetAside(id) : filings.aside;
        payroll.sweep(id);
        _swept[id] += token.balanceOf(manager) - before;
        if (_poolInfo(id).owed != owed || _next[id].from != 0) broken = "what a table promised was swept";
        if (block.timestamp < (filings.filed == 0 ? until : redeemable)) broken = "it was swept too early";
        (filings,,,) = payroll.filingsOf(id);
        if (filings.aside != aside) broken = "what was filed was swept";
    }

    function _pay(uint256 id, uint256 amount) private {
        uint256 before = token.balanceOf(address(payroll));
        _fund(id, amount);
        _funded[id] += token.balanceOf(address(payroll)) - before;
    }

    // ---- what must hold

    function check() external view {
        yes(bytes(broken).length == 0, broken);
        _checkMoney();
        _checkEarnings();
        _checkUnits();
        _checkCases();
        _checkMembers();
    }

    /// Every token is somebody's, what vault and Swarm hold is what they say, and no carrier of proofs has any; what was paid into a
    /// pool is free, owed, paid or swept.
    function _checkMoney() private view {
        uint256 staked = 0;
        uint256 owned = token.balanceOf(manager);
        for (uint256 i = 0; i < _providers.length; ++i) {
            StakeInfo memory stake = _stakeOf(_providers[i]);
            staked += uint256(stake.bonded) + stake.unbonding + stake.frozen;
        }
        for (uint256 i = 0; i < _providers.length + 3; ++i) {
            owned += token.balanceOf(_creditor(i));
            staked += vault.creditOf(_creditor(i));
        }
        for (uint256 id = 1; id <= vault.caseCount(); ++id) {
            StakeVault.Case memory case_ = vault.caseInfo(id);
            if (case_.state == StakeVault.State.Frozen) staked += case_.appealed ? 2 * uint256(case_.bond) : case_.bond;
        }
        eq(token.balanceOf(address(vault)), staked);
        uint256 held = 0;
        for (uint256 i = 0; i < _pools.length; ++i) {
            PoolInfo memory info = _poolInfo(_pools[i]);
            uint256 there = info.escrow + info.owed + _filings(_pools[i]).aside * uint256(info.rewardPerUnit);
            held += there;
            eq(there + _paid[_pools[i]] + _swept[_pools[i]], _funded[_pools[i]]);
        }
        eq(token.balanceOf(address(payroll)), held);
        eq(token.totalSupply(), owned + staked + held);
        uint256 filed = 0;
        for (uint256 i = 0; i < WORKERS; ++i) filed += _filedBy[_worker(i)];
        eq(_filings(_pools[1]).filed, filed);
        yes(_filings(_pools[1]).aside <= filed, "more is set aside than was filed");
    }

    /// What is owed is what tables have promised and nobody was paid or lost, and what waits is there.
    function _checkEarnings() private view {
        for (uint256 i = 0; i < _pools.length; ++i) {
            (uint256 id, uint256 gone) = (_pools[i], 0);
            Next storage next = _next[id];
            bool moved = next.from != 0 && block.timestamp >= next.from;
            Table memory table = moved ? next.table : _tables[id];
            Payroll.Waiting memory waiting = payroll.waitingOf(id);
            eq(waiting.countsAt, moved ? 0 : next.from);
            if (waiting.countsAt != 0) yes(waiting.total - table.total <= payroll.bookOf(id).free, "what waits is not there");
            for (uint256 w = 0; w < WORKERS; ++w) {
                address worker = _worker(w);
                eq(payroll.paidOf(id, worker).claimed, _gone[id][worker]);
                yes(_gone[id][worker] <= table.units[w], "more was claimed than any table says");
                gone += _gone[id][worker];
            }
            uint256 rate = _poolInfo(id).rewardPerUnit;
            eq(_poolInfo(id).owed, (payroll.bookOf(id).total - gone) * rate);
            eq(payroll.bookOf(id).total, table.total);
        }
    }

    /// A provider's units are those of its nodes: those that it has, and those that it removed and nobody released. Behind
    /// each of them that is not free yet there is its stake, apart from what slashes took since.
    function _checkUnits() private view {
        uint256[] memory units = new uint256[](_providers.length);
        uint256[] memory left = new uint256[](_providers.length);
        uint256[] memory answering = new uint256[](_providers.length);
        for (uint256 i = 0; i < WORKERS + JUDGES; ++i) {
            Nodes.Node memory entry = swarm.nodeInfo(_key(i));
            if (entry.registered) units[_indexOf(entry.provider)] += entry.units;
            else left[_indexOf(entry.provider)] += entry.units;
            bool answers = entry.registered || block.timestamp < entry.freeAt;
            if (answers) answering[_indexOf(entry.provider)] += entry.units;
        }
        for (uint256 p = 0; p < _providers.length; ++p) {
            _units(_providers[p], units[p], left[p]);
            bool covered = _sumOf(_providers[p]) + _taken[_providers[p]] >= PER_UNIT * answering[p];
            yes(covered, "units answer that no stake stands behind");
        }
    }

    /// Nothing is frozen but for open cases.
    function _checkCases() private view {
        uint256[] memory claimed = new uint256[](_providers.length);
        uint256 count = vault.caseCount();
        for (uint256 id = 1; id <= count; ++id) {
            StakeVault.Case memory case_ = vault.caseInfo(id);
            if (case_.state != StakeVault.State.Frozen) continue;
            claimed[_indexOf(case_.provider)] += case_.amount;
        }
        for (uint256 p = 0; p < _providers.length; ++p) {
            StakeInfo memory stake = _stakeOf(_providers[p]);
            yes(stake.frozen <= claimed[p], "more is frozen than cases claim");
            uint256 backing = vault.backingOf(_providers[p]);
            yes(stake.bonded <= backing && backing <= uint256(stake.bonded) + stake.frozen, "backed by something else");
        }
    }

    /// Who was evicted is no member, and who is a member is registered.
    function _checkMembers() private view {
        for (uint256 i = 0; i < WORKERS; ++i) {
            Nodes.Node memory entry = swarm.nodeInfo(_worker(i));
            if (entry.pool == 0) continue;
            yes(entry.registered, "a member that is not registered");
            yes(!swarm.memberInfo(entry.pool, _worker(i)).evicted, "a member that was evicted");
        }
    }

    function _filings(uint256 id) private view returns (Payroll.Filings memory filings) {
        (filings,,,) = payroll.filingsOf(id);
    }

    /// In the end whoever has a line and was not evicted is paid all of it, as far as its pool owes that much.
    function checkNothingIsStranded() external told {
        vm.warp(block.timestamp + 3000 days);
        for (uint256 id = 1; id <= vault.caseCount(); ++id) {
            if (vault.caseInfo(id).state == StakeVault.State.Frozen) _finalize(id);
        }
        for (uint256 i = 0; i < _pools.length * WORKERS; ++i) {
            (uint256 id, uint256 which) = (_pools[i / WORKERS], i % WORKERS);
            _move(id);
            uint256 owed = _poolInfo(id).owed;
            if (swarm.memberInfo(id, _worker(which)).provider == address(0) || owed == 0) continue;
            bool sized = swarm.payeeOf(id, _worker(which)).capacity > 0;
            if (!sized || _tables[id].units[which] <= _gone[id][_worker(which)]) continue;
            _claimFor(id, which, 0);
            bool whole = _gone[id][_worker(which)] == _tables[id].units[which];
            yes(whole || _poolInfo(id).owed == 0, "a line was not paid");
        }
        for (uint256 i = 0; i < WORKERS; ++i) {
            if (_filedBy[_worker(i)] != 0) _redeemFor(i);
        }
        yes(bytes(broken).length == 0, broken);
        eq(_filings(_pools[1]).aside, 0);
    }

    // ---- who and what

    /// Notes that something came about; it must not again.
    function _only(bytes32 what, string memory otherwise) private {
        if (_once[what]) broken = otherwise;
        _once[what] = true;
    }

    function _judges(uint256 mask) private view returns (address[] memory chosen) {
        uint256 count = (mask & 1) + (mask >> 1 & 1) + (mask >> 2 & 1) + (mask >> 3 & 1);
        chosen = new address[](count);
        for (uint256 i = 0; i < JUDGES; ++i) {
            if (mask >> i & 1 == 1) chosen[--count] = _seats[i];
        }
    }

    function _owner(uint256 which) private view returns (address) {
        return _providers[which % WORKERS % 4];
    }

    function _keyOf(address worker) private view returns (uint256 key) {
        while (_workers[key] != worker) ++key;
        key += nodeKey;
    }

    function _provider(uint8 who) private view returns (address) {
        return _providers[who % _providers.length];
    }

    function _worker(uint256 which) private view returns (address) {
        return _workers[which % WORKERS];
    }

    function _indexOf(address provider_) private view returns (uint256 i) {
        while (_providers[i] != provider_) ++i;
    }

    /// Workers first, then judges.
    function _key(uint256 i) private view returns (address) {
        i %= WORKERS + JUDGES;
        return i < WORKERS ? _workers[i] : _seats[i - WORKERS];
    }

    function _pool(uint8 where) private view returns (uint256) {
        return _pools[where % _pools.length];
    }
}

contract InvariantsTest {
    Crowd private crowd;

    struct FuzzSelector {
        address addr;
        bytes4[] selectors;
    }

    function setUp() public {
        crowd = new Crowd();
        crowd.setUp();
    }

    function targetContracts() public view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(crowd);
    }

    /// What happens often stands here more than once.
    function targetSelectors() public view returns (FuzzSelector[] memory targets) {
        bytes4[62] memory all = [
            Crowd.wait_.selector,
            Crowd.wait_.selector,
            Crowd.wait_.selector,
            Crowd.wait_.selector,
            Crowd.wait_.selector,
            Crowd.bond.selector,
            Crowd.unbond.selector,
            Crowd.rebond.selector,
            Crowd.withdraw.selector,
            Crowd.register.selector,
            Crowd.remove.selector,
            Crowd.expel.selector,
            Crowd.release.selector,
            Crowd.join.selector,
            Crowd.join.selector,
            Crowd.joinByInvitation.selector,
            Crowd.leave.selector,
            Crowd.post.selector,
            Crowd.post.selector,
            Crowd.post.selector,
            Crowd.post.selector,
            Crowd.hold.selector,
            Crowd.drop.selector,
            Crowd.drop.selector,
            Crowd.claim.selector,
            Crowd.claim.selector,
            Crowd.claim.selector,
            Crowd.claim.selector,
            Crowd.slash.selector,
            Crowd.slash.selector,
            Crowd.attest.selector,
            Crowd.overturn.selector,
            Crowd.appeal.selector,
            Crowd.finalize.selector,
            Crowd.collect.selector,
            Crowd.evidence.selector,
            Crowd.verdictEvidence.selector,
            Crowd.holdChair.selector,
            Crowd.takeChair.selector,
            Crowd.endTerm.selector,
            Crowd.propose.selector,
            Crowd.install.selector,
            Crowd.fund.selector,
            Crowd.pause.selector,
            Crowd.resume.selector,
            Crowd.end.selector,
            Crowd.file.selector,
            Crowd.file.selector,
            Crowd.file.selector,
            Crowd.redeem.selector,
            Crowd.redeem.selector,
            Crowd.sweep.selector,
            Crowd.ruin.selector,
            Crowd.succeed.selector,
            Crowd.proposeTrainers.selector,
            Crowd.installTrainers.selector,
            Crowd.open.selector,
            Crowd.tell.selector,
            Crowd.revoke.selector,
            Crowd.expel.selector,
            Crowd.logsRebuildState.selector,
            Crowd.logsRebuildState.selector
        ];
        targets = new FuzzSelector[](1);
        targets[0] = FuzzSelector(address(crowd), new bytes4[](all.length));
        for (uint256 i = 0; i < all.length; ++i) {
            targets[0].selectors[i] = all[i];
        }
    }

    function invariant_whatever_people_do_money_work_and_offices_are_in_order() public view {
        crowd.check();
    }

    function afterInvariant() public {
        crowd.logsRebuildState();
        crowd.checkNothingIsStranded();
        crowd.logsRebuildState();
    }
}
