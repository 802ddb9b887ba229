// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {ATTESTED, Counters, ENDED, INVITED, JOINED, PAUSED} from "../src/Counters.sol";
import {Court} from "../src/Court.sol";
import {Payroll} from "../src/Payroll.sol";
import {Pools} from "../src/Pools.sol";
import {StakeVault} from "../src/StakeVault.sol";
import {Tally, WorkCommitment} from "../src/Statements.sol";
import {Swarm} from "../src/Swarm.sol";
import {TestToken} from "../src/TestToken.sol";

/// The few of forge's cheat codes that these tests use.
interface Vm {
    struct Log {
        bytes32[] topics;
        bytes data;
        address emitter;
    }

    function recordLogs() external;
    function getRecordedLogs() external returns (Log[] memory logs);
    function prank(address sender) external;
    function warp(uint256 timestamp) external;
    function chainId(uint256 id) external;
    function roll(uint256 block_) external;
    function etch(address where, bytes calldata code) external;
    function sign(uint256 key, bytes32 digest) external pure returns (uint8 v, bytes32 r, bytes32 s);
    function addr(uint256 key) external pure returns (address);
    function expectRevert() external;
    function expectRevert(bytes calldata data) external;
    function expectPartialRevert(bytes4 selector) external;
    function expectEmit() external;
    function expectEmit(address emitter) external;
    function assume(bool condition) external pure;
    function readFile(string calldata path) external view returns (string memory);
    function parseJsonBytes(string calldata json, string calldata key) external pure returns (bytes memory);
    function envOr(string calldata name, string calldata value) external view returns (string memory);
}

/// Hashes as a signer makes them; kept apart from the library that the contracts use, so that a wrong type string is seen.
library Sign {
    bytes32 constant REGISTRATION =
        keccak256("NodeRegistration(address provider,address node,uint32 units,uint256 nonce,uint256 deadline)");
    bytes32 constant COMMITMENT = keccak256(
        "WorkCommitment(uint256 pool,address node,bytes32 policyRoot,uint64 index,bytes32 fileRoot,uint32 units,uint64 epoch)"
    );
    bytes32 constant VERDICT =
        keccak256("Verdict(uint256 pool,bytes32 work,uint8 outcome,uint8 reason,bytes32 values)");
    bytes32 constant RECHECKED =
        keccak256("Rechecked(uint256 pool,bytes32 work,uint8 outcome,uint8 reason,bytes32 values)");
    bytes32 constant EPOCH_ROOT = keccak256("EpochRoot(uint256 pool,uint64 epoch,uint64 number,bytes32 root,uint64 total,bytes32 blob)");
    bytes32 constant EARNINGS = keccak256("Earnings(uint256 pool,uint64 epoch,uint64 number,bytes32 root,uint64 total,bytes32 blob)");
    bytes32 constant INVITATION = keccak256("Invitation(uint256 pool,address invitee,uint32 places,uint64 deadline)");
    bytes32 constant TICKET = keccak256("Ticket(uint256 pool,address node)");
    bytes32 constant TERM_SILENT = keccak256("TermSilent(uint256 pool,uint32 term,uint64 until,uint64 step)");
    bytes32 constant ATTESTATION = keccak256("Attestation(uint256 pool,address node,uint32 units,uint64 madeAt,uint64 until)");

    function domain(uint256 chain, address contract_) internal pure returns (bytes32) {
        bytes32 kind = keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
        return keccak256(abi.encode(kind, keccak256("intellect-node"), keccak256("1"), chain, contract_));
    }

    function commitment(WorkCommitment memory c) internal pure returns (bytes32) {
        return keccak256(abi.encode(COMMITMENT, c.pool, c.node, c.policyRoot, c.index, c.fileRoot, c.units, c.epoch));
    }

    function verdict(WorkCommitment memory c, uint8 outcome, uint8 reason) internal pure returns (bytes32) {
        return said(VERDICT, c, outcome, reason, 0);
    }

    /// kind: VERDICT or RECHECKED
    function said(bytes32 kind, WorkCommitment memory c, uint8 outcome, uint8 reason, bytes32 values)
        internal
        pure
        returns (bytes32)
    {
        return keccak256(abi.encode(kind, c.pool, commitment(c), outcome, reason, values));
    }

    /// kind: EPOCH_ROOT or EARNINGS
    function tally(bytes32 kind, Tally memory t) internal pure returns (bytes32) {
        return keccak256(abi.encode(kind, t.pool, t.epoch, t.number, t.root, t.total, t.blob));
    }

    /// Of a table as `_tally` makes it.
    function earnings(uint256 pool, uint64 epoch, bytes32 root, uint64 total) internal pure returns (bytes32) {
        return tally(EARNINGS, Tally(pool, epoch, 1, root, total, keccak256("lines")));
    }
}

/// A deployment of the checked-in artifacts, a funded pool with two validators (both are needed), one node at work.
abstract contract Base {
    Vm internal constant vm = Vm(address(uint160(uint256(keccak256("hevm cheat code")))));

    uint64 internal constant UNBONDING = 3600;
    uint64 internal constant APPEAL = 500;
    uint32 internal constant EPOCH = 100;
    uint32 internal constant WINDOW = 300;
    uint32 internal constant DELAY = 75;
    uint32 internal constant LEASE = 1000;
    uint96 internal constant RATE = 1e15;
    uint96 internal constant SLASH = 10 ether;
    /// What each side of a case about one unit puts up.
    uint256 internal constant PUT = SLASH / 4;
    uint256 internal constant BASE = 10 ether;
    uint256 internal constant PER_UNIT = 10 ether;
    uint256 internal constant MIN_WINDOW = 100;
    uint64 internal constant PER_EPOCH = 1_000_000;
    uint256 internal constant ESCROW = 500 ether;
    bytes32 internal constant ROOT = bytes32(uint256(0x33) << 248 | 0x33);
    uint256 internal constant CURVE_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141;

    address internal treasury = address(0x7777);
    address internal arbiter = address(0xA4B1);
    address internal manager;
    uint256 internal managerKey = 0x1001;
    address internal provider = address(0x2002);
    uint256 internal nodeKey = 0x3003;
    address internal node;
    uint256[] internal judgeKeys;
    address internal anybody = address(0x9999);
    address internal guardian = address(0x6A4D);

    TestToken internal token;
    StakeVault internal vault;
    Swarm internal swarm;
    Court internal court;
    Payroll internal payroll;
    uint256 internal pool;

    /// A provider's stake, and what of it is frozen.
    struct StakeInfo {
        uint96 bonded;
        uint96 unbonding;
        uint64 withdrawableAt;
        uint256 frozen;
    }

    /// What the chain knows of a pool, taken apart.
    struct PoolInfo {
        bytes32 runRoot;
        bytes32 requirementRoot;
        address manager;
        address opener;
        uint256 window;
        uint256 epochSeconds;
        uint256 leaseSeconds;
        uint256 startedAt;
        uint256 stoppedAt;
        bool paused;
        bool ended;
        bool hasMembers;
        bool invited;
        bool attested;
        uint256 maxUnitsPerEpoch;
        uint64 unitsPerEpoch;
        uint96 rewardPerUnit;
        uint96 slashAmount;
        uint256 escrow;
        uint256 owed;
        string runURI;
        string bootnodes;
    }

    error NotEqual(uint256 left, uint256 right);
    error Failed(string what);

    function setUp() public virtual {
        vm.warp(1_700_000_000);
        token = TestToken(_create("TestToken", ""));
        _deploy(address(token));
        manager = vm.addr(managerKey);
        node = vm.addr(nodeKey);
        judgeKeys.push(0xB001);
        judgeKeys.push(0xB002);
        _bond(address(0x5005), 30 ether);
        _register(address(0x5005), judgeKeys[0], 1);
        _register(address(0x5005), judgeKeys[1], 1);
        pool = _open(_params());
        _fund(pool, ESCROW);
        _bond(provider, 100 ether);
        _register(provider, nodeKey, 1);
        vm.prank(node);
        swarm.join(pool, "/ip4/127.0.0.1/tcp/1");
    }

    // ---- deployment

    function _deploy(address token_) internal {
        StakeVault.Params memory params = StakeVault.Params({
            unbondingPeriod: UNBONDING,
            appealSeconds: APPEAL,
            treasury: treasury,
            arbiter: arbiter,
            burnBps: 5_000,
            bondBps: 2_500,
            minBond: 1 ether
        });
        vault = StakeVault(_create("StakeVault", abi.encode(token_, params)));
        swarm = Swarm(_create("Swarm", abi.encode(vault, BASE, PER_UNIT, MIN_WINDOW)));
        court = Court(_create("Court", abi.encode(swarm)));
        payroll = Payroll(_create("Payroll", abi.encode(court)));
        _give(address(this), 1_000 ether, address(vault)); // whoever has no part of its own carries cases
        vault.setSwarm(address(swarm));
        swarm.setCourt(court, address(payroll));
    }

    /// From the artifacts as they are checked in, or (mutation testing) from another folder.
    function _create(string memory name, bytes memory args) internal returns (address made) {
        string memory folder = vm.envOr("ARTIFACTS", string("artifacts"));
        string memory file = vm.readFile(string.concat(folder, "/", name, ".json"));
        bytes memory code = bytes.concat(vm.parseJsonBytes(file, ".bytecode"), args);
        assembly {
            made := create(0, add(code, 32), mload(code))
        }
        if (made == address(0)) revert Failed(name);
    }

    // ---- people

    function _give(address who, uint256 amount, address spender) internal {
        token.mint(who, amount);
        vm.prank(who);
        token.approve(spender, amount);
    }

    function _bond(address who, uint256 amount) internal {
        _give(who, amount, address(vault));
        vm.prank(who);
        vault.bond(who, amount);
    }

    function _register(address who, uint256 key, uint32 units) internal {
        address key_ = vm.addr(key);
        uint256 deadline = block.timestamp + 10;
        bytes memory signature = _registration(who, key, units, deadline);
        vm.prank(who);
        swarm.registerNode(key_, units, deadline, signature);
    }

    function _registration(address who, uint256 key, uint32 units, uint256 deadline)
        internal
        view
        returns (bytes memory)
    {
        address key_ = vm.addr(key);
        return _sign(key, keccak256(abi.encode(Sign.REGISTRATION, who, key_, units, swarm.nodeInfo(key_).nonce, deadline)));
    }

    // ---- pools

    function _params() internal view returns (Pools.PoolParams memory params) {
        params.runRoot = bytes32(uint256(0x22));
        params.manager = manager;
        params.rewardPerUnit = RATE;
        params.guardian = guardian;
        params.window = WINDOW;
        params.delay = DELAY;
        params.epochSeconds = EPOCH;
        params.leaseSeconds = LEASE;
        params.maxUnitsPerEpoch = 100_000;
        params.unitsPerEpoch = PER_EPOCH;
        params.slashAmount = SLASH;
        params.validators = new address[](judgeKeys.length);
        for (uint256 i = 0; i < judgeKeys.length; ++i) {
            params.validators[i] = vm.addr(judgeKeys[i]);
        }
        params.threshold = 2;
    }

    function _open(Pools.PoolParams memory params) internal returns (uint256) {
        vm.prank(manager);
        return swarm.createPool(params);
    }

    function _fund(uint256 id, uint256 amount) internal {
        _give(manager, amount, address(payroll));
        vm.prank(manager);
        payroll.fund(id, amount);
    }

    function _expel(address who) internal {
        vm.prank(anybody);
        swarm.expel(who);
    }

    /// Units of the provider's nodes, and of those that left and answer still.
    function _units(address who, uint256 registered, uint256 leaving) internal view {
        (uint256 has, uint256 left) = swarm.unitsOf(who);
        eq(has, registered);
        eq(left, leaving);
    }

    /// Goes on in another pool with a new node of the provider's.
    function _startIn(uint256 id) internal {
        (pool, nodeKey) = (id, nodeKey + 0x100);
        node = vm.addr(nodeKey);
        _register(provider, nodeKey, 1);
        vm.prank(node);
        swarm.join(id, "");
    }

    // ---- earnings

    /// The line of one node in a table.
    function _line(address who, uint64 units) internal pure returns (bytes32) {
        return keccak256(abi.encodePacked(bytes1(0), who, units));
    }

    /// The root of a table of two lines.
    function _both(bytes32 one, bytes32 other) internal pure returns (bytes32) {
        (bytes32 low, bytes32 high) = one < other ? (one, other) : (other, one);
        return keccak256(abi.encodePacked(bytes1(0x01), low, high));
    }

    function _tally(uint256 id, uint64 epoch, bytes32 root, uint64 total) internal pure returns (Tally memory) {
        return Tally(id, epoch, 1, root, total, keccak256("lines"));
    }

    /// A table that waits.
    function _offer(uint64 epoch, bytes32 root, uint64 total) internal {
        payroll.post(_tally(pool, epoch, root, total), _quorum(Sign.earnings(pool, epoch, root, total)));
    }

    /// A table that counts.
    function _post(uint64 epoch, bytes32 root, uint64 total) internal {
        _offer(epoch, root, total);
        vm.warp(block.timestamp + DELAY);
    }

    function _signers() internal view returns (address[] memory signers) {
        signers = new address[](2);
        (signers[0], signers[1]) = (vm.addr(judgeKeys[0]), vm.addr(judgeKeys[1]));
    }

    /// A table in which nobody but the node has earned anything, as soon as it may be posted.
    function _earn(uint64 epoch, uint64 units) internal {
        if (block.timestamp < _matures(epoch)) vm.warp(_matures(epoch));
        _post(epoch, _line(node, units), units);
    }

    function _claim(uint64 units) internal {
        payroll.claim(pool, node, units, new bytes32[](0));
    }

    // ---- signatures

    function _sign(uint256 key, bytes32 statement) internal view returns (bytes memory) {
        return _signFor(key, Sign.domain(block.chainid, address(swarm)), statement);
    }

    /// An invitation by whoever has `key`, with a ticket for `who` by `ticketKey` if that is not zero.
    function _invited(uint256 key, uint256 id, address invitee, uint32 places, uint64 deadline, uint256 ticketKey, address who)
        internal
        view
        returns (Court.Invited memory)
    {
        bytes memory signature = _sign(key, keccak256(abi.encode(Sign.INVITATION, id, invitee, places, deadline)));
        bytes memory ticket = ticketKey == 0 ? bytes("") : _sign(ticketKey, keccak256(abi.encode(Sign.TICKET, id, who)));
        return Court.Invited(invitee, places, deadline, signature, ticket);
    }

    function _signFor(uint256 key, bytes32 domain, bytes32 statement) internal pure returns (bytes memory) {
        (uint8 v, bytes32 r, bytes32 s) = vm.sign(key, keccak256(abi.encodePacked(hex"1901", domain, statement)));
        return abi.encodePacked(r, s, v);
    }

    function _quorum(bytes32 statement) internal view returns (bytes[] memory signatures) {
        signatures = new bytes[](2);
        signatures[0] = _sign(judgeKeys[0], statement);
        signatures[1] = _sign(judgeKeys[1], statement);
    }

    function _file(uint64 index, uint32 units) internal view returns (WorkCommitment memory) {
        return WorkCommitment(pool, node, bytes32(uint256(0x11)), index, keccak256(abi.encode("file", index)), units, 0);
    }

    function _slash(WorkCommitment memory c) internal {
        bytes memory own = _sign(nodeKey, Sign.commitment(c));
        bytes[] memory verdicts = _quorum(Sign.verdict(c, 2, 5));
        court.slash(c, own, 5, verdicts, _blank(verdicts), 0);
    }

    function _contradict() internal {
        WorkCommitment memory first = _file(0, 10);
        WorkCommitment memory second = _file(0, 10);
        second.fileRoot = bytes32(uint256(1));
        bytes memory one = _sign(nodeKey, Sign.commitment(first));
        bytes memory two = _sign(nodeKey, Sign.commitment(second));
        court.evidence([first, second], [one, two]);
    }

    /// No more found than the outcome says.
    function _blank(bytes[] memory signatures) internal pure returns (bytes32[] memory) {
        return new bytes32[](signatures.length);
    }

    // ---- reading

    /// What somebody has, and what the vault owes it.
    function _worth(address who) internal view returns (uint256) {
        return token.balanceOf(who) + vault.creditOf(who);
    }

    function _poolInfo(uint256 id) internal view returns (PoolInfo memory info) {
        (Pools.Terms memory terms, Counters c) = swarm.poolInfo(id);
        (info.runRoot, info.requirementRoot, info.manager) = (terms.runRoot, terms.requirementRoot, terms.manager);
        (info.opener, info.stoppedAt, info.unitsPerEpoch) = (terms.opener, terms.stoppedAt, terms.unitsPerEpoch);
        (info.rewardPerUnit, info.slashAmount) = (terms.rewardPerUnit, terms.slashAmount);
        (info.runURI, info.bootnodes) = (terms.runURI, terms.bootnodes);
        (info.window, info.epochSeconds, info.leaseSeconds) = (c.window(), c.epochSeconds(), c.leaseSeconds());
        (info.startedAt, info.maxUnitsPerEpoch) = (c.startedAt(), c.maxUnits());
        (info.paused, info.ended, info.hasMembers) = (c.has(PAUSED), c.has(ENDED), c.has(JOINED));
        (info.invited, info.attested) = (c.has(INVITED), c.has(ATTESTED));
        Payroll.Book memory book = payroll.bookOf(id);
        (info.escrow, info.owed) = (uint256(book.free) * terms.rewardPerUnit, uint256(book.owed) * terms.rewardPerUnit);
    }

    function _epochAt(uint256 id, uint256 timestamp) internal view returns (uint64) {
        PoolInfo memory info = _poolInfo(id);
        return timestamp <= info.startedAt ? 0 : uint64((timestamp - info.startedAt) / info.epochSeconds);
    }

    /// From this second on a table may say what was earned through this epoch.
    function _maturityOf(uint256 id, uint64 epoch) internal view returns (uint256) {
        PoolInfo memory info = _poolInfo(id);
        return info.startedAt + (uint256(epoch) + 1) * info.epochSeconds + info.window;
    }

    function _info() internal view returns (PoolInfo memory) {
        return _poolInfo(pool);
    }

    function _stake() internal view returns (StakeInfo memory) {
        return _stakeOf(provider);
    }

    function _stakeOf(address who) internal view returns (StakeInfo memory) {
        (StakeVault.Stake memory stake, uint256 frozen) = vault.stakeOf(who);
        return StakeInfo(stake.bonded, stake.unbonding, stake.withdrawableAt, frozen);
    }

    function _matures(uint64 epoch) internal view returns (uint256) {
        return _maturityOf(pool, epoch);
    }

    function _bounded(uint256 x, uint256 low, uint256 high) internal pure returns (uint256) {
        return low + x % (high - low + 1);
    }

    function _same(string memory left, string memory right) internal pure returns (bool) {
        return keccak256(bytes(left)) == keccak256(bytes(right));
    }

    function eq(uint256 left, uint256 right) internal pure {
        if (left != right) revert NotEqual(left, right);
    }

    function eq(address left, address right) internal pure {
        if (left != right) revert NotEqual(uint160(left), uint160(right));
    }

    function yes(bool condition, string memory what) internal pure {
        if (!condition) revert Failed(what);
    }
}
