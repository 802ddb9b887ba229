// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Court} from "../src/Court.sol";
import {Nodes} from "../src/Nodes.sol";
import {Pools} from "../src/Pools.sol";
import {StakeVault} from "../src/StakeVault.sol";
import {Verdict, WorkCommitment} from "../src/Statements.sol";
import {Work} from "../src/Work.sol";
import {Base, Sign} from "./Base.sol";

/// Many people doing anything at any time, with signatures of their own: three pools of different terms, five providers,
/// six workers, four judges who sit in several pools. A refusal is fine; it must change nothing. What a call must never
/// bring about although it went through is noted in `broken`.
contract Crowd is Base {
    /// What a worker has committed for one epoch: two files.
    struct Made {
        uint256 pool;
        uint256 which;
        uint64 epoch;
        uint32 first;
        uint32 second;
    }

    uint256 private constant WORKERS = 6;
    uint256 private constant JUDGES = 4;
    uint8 private constant REASON = 5;

    uint256[] private _pools;
    address[] private _providers;
    address[] private _workers;
    address[] private _seats;
    Made[] private _made;
    address private _stranger = address(0x57A6);
    mapping(bytes32 what => bool) private _once;
    /// of the pool with attestations: by worker, when the last one was made
    mapping(address worker => uint64) private _foundAt;
    string public broken;

    function setUp() public override {
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
        _pools.push(_third());
        _fund(_pools[1], 3 ether); // soon short
        _fund(_pools[2], 50 ether);
        for (uint256 i = 1; i < WORKERS; ++i) {
            _register(_owner(i), nodeKey + i, uint32(1 + i % 3));
            vm.prank(_worker(i));
            swarm.join(_pools[i % 2], "");
        }
    }

    /// Shorter epochs, two of three judges, less to lose.
    function _second() private returns (uint256) {
        Pools.PoolParams memory params = _params();
        params.epochSeconds = 70;
        params.window = 250;
        params.slashAmount = 30 ether;
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

    function wait_(uint16 seconds_) external {
        vm.warp(block.timestamp + (seconds_ % 16 == 0 ? seconds_ % 4000 : seconds_ % 120));
    }

    function bond(uint8 who, uint96 amount) external {
        _bond(_provider(who), _bounded(amount, 1, 50 ether));
    }

    function unbond(uint8 who, uint96 amount) external {
        vm.prank(_provider(who));
        vault.unbond(_bounded(amount, 1, 80 ether));
    }

    function rebond(uint8 who, uint96 amount) external {
        vm.prank(_provider(who));
        vault.rebond(_bounded(amount, 1, 80 ether));
    }

    function withdraw(uint8 who) external {
        vm.prank(_provider(who));
        vault.withdraw();
    }

    /// One that was removed, if there is any.
    function register(uint8 which, uint32 units) external {
        uint256 i = which % (WORKERS + JUDGES);
        while (swarm.nodeInfo(_key(i)).registered && ++i < WORKERS + JUDGES) {}
        i %= WORKERS + JUDGES;
        uint256 key = i < WORKERS ? nodeKey + i : judgeKeys[i - WORKERS];
        address owner = i < WORKERS ? _owner(i) : _providers[i < WORKERS + 2 ? 2 : 4];
        _register(owner, key, uint32(_bounded(units, 1, 6)));
    }

    function remove(uint8 which, uint8 seldom) external {
        vm.assume(seldom % 8 == 5);
        address key = _key(which % (WORKERS + JUDGES));
        vm.prank(swarm.nodeInfo(key).provider);
        swarm.removeNode(key);
    }

    function expel(uint8 which) external {
        swarm.expel(_worker(which));
    }

    /// Mostly to stay where it is.
    function join(uint8 which, uint8 where) external {
        uint256 id = swarm.nodeInfo(_worker(which)).pool;
        if (id == 0 || where % 4 == 0) id = _pool(where / 4);
        vm.prank(_worker(which));
        swarm.join(id, "");
    }

    function joinInvited(uint8 which, uint8 seldom) external {
        vm.assume(seldom % 4 == 1);
        address worker = _worker(which);
        uint256 deadline = block.timestamp + 5;
        bytes memory invitation = _sign(managerKey, keccak256(abi.encode(Sign.INVITATION, _pools[2], worker, deadline)));
        vm.prank(worker);
        swarm.joinInvited(_pools[2], "", deadline, invitation);
    }

    function leave(uint8 which, uint8 seldom) external {
        vm.assume(seldom % 8 == 5);
        uint256 id = swarm.nodeInfo(_worker(which)).pool;
        vm.prank(_worker(which));
        swarm.leavePool(id);
    }

    // ---- work and pay

    function commit(uint8 which, uint8 back, uint16 first, uint16 second) external {
        address worker = _worker(which);
        uint256 id = swarm.nodeInfo(worker).pool;
        uint64 now_ = swarm.epochAt(id, block.timestamp);
        Made memory made = Made(id, which % WORKERS, now_ < back % 3 ? 0 : now_ - back % 3, 1 + first % 3000, 1 + second % 3000);
        vm.prank(worker);
        swarm.commitWork(id, made.epoch, _root(made), made.first + made.second);
        _only(keccak256(abi.encode("committed", id, worker, made.epoch)), "an epoch was committed twice");
        for (uint256 i = 0; i < _made.length; ++i) _apart(made, _made[i]);
        _made.push(made);
    }

    /// No time of one node is paid for in two pools.
    function _apart(Made memory one, Made memory other) private {
        if (one.which != other.which || one.pool == other.pool) return;
        (uint256 from, uint256 until) = _span(one);
        (uint256 start, uint256 end_) = _span(other);
        if (from < end_ && start < until) broken = "one time was committed in two pools";
    }

    function _span(Made memory made) private view returns (uint256 from, uint256 until) {
        Pools.PoolInfo memory info = swarm.poolInfo(made.pool);
        from = info.startedAt + made.epoch * uint256(info.epochSeconds);
        until = from + info.epochSeconds;
    }

    function topUp(uint8 index) external {
        Made storage made = _that(index, _isShort);
        swarm.topUp(made.pool, _worker(made.which), made.epoch);
    }

    function settle(uint8 index) external {
        _pay(_that(index, _isDue));
    }

    function _pay(Made memory made) private {
        address worker = _worker(made.which);
        Work.WorkInfo memory work = swarm.workInfo(made.pool, worker, made.epoch);
        address owner = swarm.nodeInfo(worker).provider;
        uint256 before = token.balanceOf(owner);
        uint64[] memory epochs = new uint64[](1);
        epochs[0] = made.epoch;
        swarm.settle(made.pool, worker, epochs);
        _only(keccak256(abi.encode("paid", made.pool, worker, made.epoch)), "a node was paid twice for one epoch");
        if (token.balanceOf(owner) != before + work.reserved) broken = "not what was reserved was paid";
        if (work.voided || block.timestamp < work.maturesAt) broken = "work was paid that is void or not mature";
    }

    function release(uint8 index) external {
        Made storage made = _that(index, _isVoided);
        swarm.release(made.pool, _worker(made.which), made.epoch);
    }

    // ---- judgement

    function slash(uint8 index, bool second, uint8 how) external {
        WorkCommitment memory c = _commitment(_some(index), second ? 1 : 0);
        bytes memory own = _sign(_keyOf(c.node), Sign.commitment(c));
        (bytes[] memory verdicts, bool fair) = _heard(c.pool, Sign.verdict(c, 2, REASON), how);
        court.slash(c, own, REASON, verdicts);
        _judged(fair, Sign.commitment(c));
    }

    function invalidate(uint8 index, bool second, bool hard, uint8 how) external {
        Made memory made = _some(index);
        WorkCommitment memory c = _commitment(made, second ? 1 : 0);
        bytes32[] memory proof = new bytes32[](1);
        proof[0] = _leaf(_commitment(made, second ? 0 : 1));
        uint8 outcome = hard && how % 3 == 0 ? 2 : 1;
        (bytes[] memory verdicts, bool fair) = _heard(c.pool, Sign.verdict(c, outcome, REASON), how);
        court.invalidate(c, made.epoch, proof, outcome, REASON, verdicts);
        if (outcome == 2) {
            _judged(fair, Sign.commitment(c));
            return;
        }
        if (!fair) broken = "a leaf was taken without a quorum";
        _only(keccak256(abi.encode("taken", _leaf(c))), "a leaf was taken twice");
    }

    function invalidateEpoch(uint8 index, bool hard, uint8 how) external {
        Made memory made = _some(index);
        uint8 outcome = hard && how % 3 == 0 ? 2 : 1;
        address worker = _worker(made.which);
        bytes20 root = bytes20(_root(made));
        bytes32 statement = Sign.epochVerdict(made.pool, worker, made.epoch, root, outcome, 23);
        (bytes[] memory verdicts, bool fair) = _heard(made.pool, statement, how);
        court.invalidateEpoch(made.pool, worker, made.epoch, outcome, 23, verdicts);
        if (outcome == 2) _judged(fair, keccak256(abi.encode(worker, made.pool, made.epoch)));
        if (!fair) broken = "an epoch was taken without a quorum";
    }

    function attest(uint8 which, uint8 units, uint16 ago, uint16 long, uint8 how) external {
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

    function _judged(bool fair, bytes32 work) private {
        if (!fair) broken = "somebody was slashed without a quorum";
        _only(keccak256(abi.encode("judged", work)), "a work was judged twice");
    }

    /// Signatures of judges of the pool over a statement, and whether they are a quorum by the rules: as many as there must
    /// be, each another, each in office, with a stake, and not found to be a cheat here.
    function _heard(uint256 id, bytes32 statement, uint8 how) private view returns (bytes[] memory signatures, bool fair) {
        Court.BenchInfo memory bench = court.benchOf(id);
        uint256 many = how % 8 == 7 ? bench.threshold - 1 : bench.threshold;
        if (how % 8 == 6) ++many; // one of them twice, if there are no others
        signatures = new bytes[](many);
        fair = many >= bench.threshold;
        uint256 seen = 0;
        for (uint256 i = 0; i < many; ++i) {
            // in one of eight cases anybody's, else those who are in office
            uint256 place = how % 8 == 5 || bench.validators.length == 0 ? JUDGES : i % bench.validators.length;
            uint256 judge = place == JUDGES ? (i + how / 8) % JUDGES : _judgeOf(bench.validators[place]);
            signatures[i] = _sign(judgeKeys[judge], statement);
            fair = fair && seen & (1 << judge) == 0 && _sits(bench.validators, judge) && _mayJudge(id, judge);
            seen |= 1 << judge;
        }
    }

    function _mayJudge(uint256 id, uint256 judge) private view returns (bool) {
        Nodes.Node memory entry = swarm.nodeInfo(_seats[judge]);
        StakeVault.StakeInfo memory stake = vault.stakeOf(entry.provider);
        if (!entry.registered || swarm.memberInfo(id, _seats[judge]).evicted) return false;
        uint256 required = BASE + PER_UNIT * swarm.unitsOf(entry.provider);
        return uint256(stake.bonded) + stake.frozen >= required;
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

    function overturn(uint8 index) external {
        for (uint256 i = index; i < uint256(index) + WORKERS * _pools.length; ++i) {
            (uint256 id, address worker) = (_pools[i % _pools.length], _worker(i / _pools.length));
            if (swarm.memberInfo(id, worker).caseId == 0) continue;
            vm.prank(arbiter);
            swarm.overturn(id, worker);
            return;
        }
    }

    function appeal(uint8 index) external {
        uint256 id = _openCase(index);
        vm.prank(vault.caseInfo(id).provider);
        vault.appeal(id);
    }

    function finalize(uint8 index) external {
        vault.finalize(_openCase(index));
    }

    function _openCase(uint8 index) private view returns (uint256 id) {
        uint256 count = vault.caseCount();
        for (uint256 i = 0; i < count; ++i) {
            id = 1 + (index + i) % count;
            if (vault.caseInfo(id).state == StakeVault.State.Frozen) break;
        }
    }

    // ---- evidence; carried by a stranger, who must have nothing of it

    function evidence(uint8 which, uint8 where, uint8 seldom) external {
        vm.assume(seldom % 16 == 13);
        WorkCommitment memory one = WorkCommitment(_pool(where), _worker(which), ROOT, seldom, ROOT, 1);
        WorkCommitment memory two = WorkCommitment(_pool(where), _worker(which), ROOT, seldom, ROOT, 2);
        bytes memory first = _sign(_keyOf(one.node), Sign.commitment(one));
        bytes memory second = _sign(_keyOf(one.node), Sign.commitment(two));
        vm.prank(_stranger);
        court.evidence(one, first, two, second);
        _only(keccak256(abi.encode("convicted", one.pool, one.node)), "a key was convicted twice in one pool");
    }

    function verdictEvidence(uint8 judge, uint8 where, uint8 seldom) external {
        vm.assume(seldom % 32 == 13);
        WorkCommitment memory c = WorkCommitment(_pool(where), _worker(seldom), ROOT, seldom, ROOT, 1);
        Verdict memory good = Verdict(c.pool, c.node, c.policyRoot, c.index, c.fileRoot, c.units, 0, 0);
        Verdict memory bad = Verdict(c.pool, c.node, c.policyRoot, c.index, c.fileRoot, c.units, 2, REASON);
        uint256 key = judgeKeys[judge % JUDGES];
        bytes memory first = _sign(key, Sign.verdict(c, 0, 0));
        bytes memory second = _sign(key, Sign.verdict(c, 2, REASON));
        vm.prank(_stranger);
        court.verdictEvidence(good, first, bad, second);
        if (_sits(court.benchOf(c.pool).validators, judge % JUDGES)) broken = "who contradicted itself is in office";
    }

    // ---- the manager

    function propose(uint8 where, uint8 mask, uint8 threshold) external {
        address[] memory proposed = _judges(mask % 16);
        vm.prank(manager);
        court.proposeValidators(_pool(where), proposed, uint8(1 + threshold % 3));
    }

    function install(uint8 where) external {
        court.applyValidators(_pool(where));
    }

    function fund(uint8 where, uint96 amount) external {
        _fund(_pool(where), _bounded(amount, 3 * RATE, 20 ether));
    }

    function pause(uint8 where, uint8 seldom) external {
        vm.assume(seldom % 8 == 5);
        vm.prank(manager);
        swarm.pausePool(_pool(where));
    }

    function resume(uint8 where) external {
        vm.prank(manager);
        swarm.resumePool(_pool(where));
    }

    function end(uint8 seldom) external {
        vm.assume(seldom % 32 == 13);
        vm.prank(manager);
        swarm.endPool(_pools[1]);
    }

    function sweep() external {
        swarm.sweep(_pools[1]);
    }

    // ---- what must hold

    function check() external view {
        yes(bytes(broken).length == 0, broken);
        _checkMoney();
        _checkReservations();
        _checkUnits();
        _checkCases();
        _checkMembers();
    }

    /// Every token is somebody's, what vault and Swarm hold is what they say, and no carrier of proofs has any.
    function _checkMoney() private view {
        uint256 staked = 0;
        uint256 owned = token.balanceOf(manager) + token.balanceOf(treasury) + token.balanceOf(vault.BURNED());
        for (uint256 i = 0; i < _providers.length; ++i) {
            StakeVault.StakeInfo memory stake = vault.stakeOf(_providers[i]);
            staked += uint256(stake.bonded) + stake.unbonding + stake.frozen;
            owned += token.balanceOf(_providers[i]);
        }
        eq(token.balanceOf(address(vault)), staked);
        uint256 held = 0;
        for (uint256 i = 0; i < _pools.length; ++i) {
            Pools.PoolInfo memory info = swarm.poolInfo(_pools[i]);
            held += info.escrow + info.reserved + info.bond;
        }
        eq(token.balanceOf(address(swarm)), held);
        eq(token.totalSupply(), owned + staked + held);
    }

    /// What a pool has reserved is what its works are due, each no more than counts of it.
    function _checkReservations() private view {
        uint256[] memory due = new uint256[](_pools.length + 1);
        for (uint256 i = 0; i < _made.length; ++i) {
            Work.WorkInfo memory work = swarm.workInfo(_made[i].pool, _worker(_made[i].which), _made[i].epoch);
            due[_made[i].pool] += work.reserved;
            yes(work.reservedUnits <= work.units, "more is reserved than counts");
            yes(work.units <= _made[i].first + _made[i].second, "more counts than was committed");
        }
        for (uint256 i = 0; i < _pools.length; ++i) {
            eq(swarm.poolInfo(_pools[i]).reserved, due[_pools[i]]);
        }
    }

    /// A provider's units are those of its registered nodes.
    function _checkUnits() private view {
        uint256[] memory units = new uint256[](_providers.length);
        for (uint256 i = 0; i < WORKERS + JUDGES; ++i) {
            Nodes.Node memory entry = swarm.nodeInfo(_key(i));
            if (!entry.registered) eq(entry.units, 0);
            units[_indexOf(entry.provider)] += entry.units;
        }
        for (uint256 p = 0; p < _providers.length; ++p) {
            eq(swarm.unitsOf(_providers[p]), units[p]);
        }
    }

    /// Nothing is frozen but for open cases, and each that may still be overturned has a bond of its pool's behind it.
    function _checkCases() private view {
        uint256[] memory open = new uint256[](_pools.length + 1);
        uint256[] memory claimed = new uint256[](_providers.length);
        uint256 count = vault.caseCount();
        for (uint256 id = 1; id <= count; ++id) {
            StakeVault.Case memory case_ = vault.caseInfo(id);
            if (case_.state != StakeVault.State.Frozen) continue;
            if (block.timestamp < case_.finalAt) ++open[case_.pool];
            claimed[_indexOf(case_.provider)] += case_.amount;
        }
        for (uint256 p = 0; p < _providers.length; ++p) {
            yes(vault.stakeOf(_providers[p]).frozen <= claimed[p], "more is frozen than cases claim");
        }
        for (uint256 i = 0; i < _pools.length; ++i) {
            yes(swarm.poolInfo(_pools[i]).bond >= open[_pools[i]] * POOL_BOND, "a case without a bond");
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

    /// What is mature and not voided is paid to whoever asks; what is voided for good is released.
    function checkNothingIsStranded() external {
        for (uint256 i = 0; i < _made.length; ++i) {
            Made memory made = _made[i];
            address worker = _worker(made.which);
            Work.WorkInfo memory work = swarm.workInfo(made.pool, worker, made.epoch);
            if (_isDue(work)) _pay(made);
            bool over = vault.isFinal(swarm.memberInfo(made.pool, worker).caseId);
            if (_isVoided(work) && over) swarm.release(made.pool, worker, made.epoch);
        }
    }

    // ---- who and what

    /// Notes that something came about; it must not again.
    function _only(bytes32 what, string memory otherwise) private {
        if (_once[what]) broken = otherwise;
        _once[what] = true;
    }

    /// A work of a kind, or if there is none, any.
    function _that(uint8 index, function(Work.WorkInfo memory) view returns (bool) isIt) private view returns (Made storage) {
        uint256 count = _made.length;
        for (uint256 i = index; i < index + count; ++i) {
            Made storage made = _made[i % count];
            if (isIt(swarm.workInfo(made.pool, _worker(made.which), made.epoch))) return made;
        }
        return _made[index % count];
    }

    function _isDue(Work.WorkInfo memory work) private view returns (bool) {
        return work.reservedUnits > 0 && !work.voided && block.timestamp >= work.maturesAt;
    }

    function _isVoided(Work.WorkInfo memory work) private pure returns (bool) {
        return work.reservedUnits > 0 && work.voided;
    }

    function _isShort(Work.WorkInfo memory work) private pure returns (bool) {
        return work.reservedUnits < work.units && !work.voided;
    }

    /// One of the last works, or now and then any.
    function _some(uint8 index) private view returns (Made storage) {
        uint256 count = _made.length;
        uint256 back = index % 4 == 0 ? index % count : index % (count < 6 ? count : 6);
        return _made[count - 1 - back];
    }

    function _commitment(Made memory made, uint64 index) private view returns (WorkCommitment memory) {
        address worker = _worker(made.which);
        bytes32 policy = bytes32(uint256(made.epoch));
        bytes32 file = keccak256(abi.encode(made.pool, worker, made.epoch, index));
        return WorkCommitment(made.pool, worker, policy, index, file, index == 0 ? made.first : made.second);
    }

    function _leaf(WorkCommitment memory c) private pure returns (bytes32) {
        return keccak256(abi.encodePacked(bytes1(0), Sign.commitment(c)));
    }

    function _root(Made memory made) private view returns (bytes32) {
        return _rootOf([_leaf(_commitment(made, 0)), _leaf(_commitment(made, 1))]);
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
        bytes4[42] memory all = [
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
            Crowd.join.selector,
            Crowd.join.selector,
            Crowd.joinInvited.selector,
            Crowd.leave.selector,
            Crowd.commit.selector,
            Crowd.commit.selector,
            Crowd.commit.selector,
            Crowd.commit.selector,
            Crowd.topUp.selector,
            Crowd.settle.selector,
            Crowd.settle.selector,
            Crowd.settle.selector,
            Crowd.release.selector,
            Crowd.slash.selector,
            Crowd.invalidate.selector,
            Crowd.invalidate.selector,
            Crowd.invalidateEpoch.selector,
            Crowd.attest.selector,
            Crowd.overturn.selector,
            Crowd.appeal.selector,
            Crowd.finalize.selector,
            Crowd.evidence.selector,
            Crowd.verdictEvidence.selector,
            Crowd.propose.selector,
            Crowd.install.selector,
            Crowd.fund.selector,
            Crowd.pause.selector,
            Crowd.resume.selector,
            Crowd.end.selector,
            Crowd.sweep.selector
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
        crowd.checkNothingIsStranded();
    }
}
