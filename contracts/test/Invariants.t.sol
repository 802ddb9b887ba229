// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {StakeVault} from "../src/StakeVault.sol";
import {Work} from "../src/Work.sol";
import {Base} from "./Base.sol";

/// Many people doing anything at any time, on two pools. A refusal is fine; it must change nothing.
contract Crowd is Base {
    uint256 private constant NODES = 4;
    uint256[] public pools;
    address[] public providers;
    mapping(uint256 pool => mapping(uint256 node => uint64[])) private _epochs;

    function setUp() public override {
        super.setUp();
        providers.push(provider);
        providers.push(address(0x2003));
        providers.push(address(0x5005));
        _bond(providers[1], 200 ether);
        pools.push(pool);
        pools.push(_open(_params()));
        _fund(pools[1], 3 ether); // soon short
        for (uint256 i = 1; i < NODES; ++i) {
            _register(providers[i % 2], nodeKey + i, uint32(1 + i));
            vm.prank(vm.addr(nodeKey + i));
            swarm.join(pools[i % 2], "");
        }
    }

    // ---- what people do

    function wait_(uint16 seconds_) external {
        vm.warp(block.timestamp + (seconds_ % 6 == 0 ? seconds_ % 4000 : seconds_ % 150));
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

    function register(uint8 which, uint32 units) external {
        uint256 i = which % NODES;
        _register(i == 0 ? provider : providers[i % 2], nodeKey + i, uint32(_bounded(units, 1, 6)));
    }

    function remove(uint8 which) external {
        address owner = swarm.nodeInfo(_node(which)).provider;
        vm.prank(owner);
        swarm.removeNode(_node(which));
    }

    function expel(uint8 which) external {
        swarm.expel(_node(which));
    }

    function join(uint8 which, uint8 where) external {
        uint256 id = _pool(where);
        vm.prank(_node(which));
        swarm.join(id, "");
    }

    function commit(uint8 which, uint8 back, uint32 units) external {
        address worker = _node(which);
        uint256 id = swarm.nodeInfo(worker).pool;
        uint64 epoch = _epoch(id, back % 3);
        vm.prank(worker);
        swarm.commitWork(id, epoch, keccak256(abi.encode(worker, epoch)), uint32(_bounded(units, 1, 5000)));
        _epochs[id][which % NODES].push(epoch);
    }

    function settle(uint8 which, uint8 where, uint8 index) external {
        uint64[] storage list = _epochs[_pool(where)][which % NODES];
        uint64[] memory epochs = new uint64[](1);
        epochs[0] = list[index % 3 == 0 ? index % list.length : 0];
        swarm.settle(_pool(where), _node(which), epochs);
    }

    function takeLeaf(uint8 which, uint8 where, uint8 index, uint32 units) external {
        uint64[] storage list = _epochs[_pool(where)][which % NODES];
        uint64 epoch = list[index % list.length];
        vm.prank(address(court));
        swarm.takeLeaf(_pool(where), _node(which), epoch, ROOT, units % 3000, 8);
    }

    function takeEpoch(uint8 which, uint8 where, uint8 index) external {
        uint64[] storage list = _epochs[_pool(where)][which % NODES];
        uint64 epoch = list[index % list.length];
        vm.prank(address(court));
        swarm.takeEpoch(_pool(where), _node(which), epoch, 8);
    }

    function judge(uint8 which, uint8 where, uint8 seldom) external {
        if (seldom > 120) return;
        vm.prank(address(court));
        swarm.punishByJudgement(_pool(where), _node(which), 5, ROOT);
    }

    function prove(uint8 which, uint8 where, uint8 seldom) external {
        if (seldom > 30) return;
        vm.prank(address(court));
        swarm.punishByEvidence(_pool(where), _node(which), 4, ROOT);
    }

    function overturn(uint8 which, uint8 where) external {
        vm.prank(arbiter);
        swarm.overturn(_pool(where), _node(which));
    }

    function appeal(uint8 id) external {
        uint256 caseId = 1 + id % vault.caseCount();
        vm.prank(vault.caseInfo(caseId).provider);
        vault.appeal(caseId);
    }

    function finalize(uint8 id) external {
        vault.finalize(1 + id % vault.caseCount());
    }

    function join_(uint8 which) external {
        vm.prank(_node(which));
        swarm.join(pools[0], "");
    }

    function release(uint8 which, uint8 where, uint8 index) external {
        uint64[] storage list = _epochs[_pool(where)][which % NODES];
        swarm.release(_pool(where), _node(which), list[index % list.length]);
    }

    function fund(uint8 where, uint96 amount) external {
        _fund(_pool(where), _bounded(amount, RATE, 20 ether));
    }

    function pause(uint8 where, uint8 seldom) external {
        if (seldom > 60) return;
        vm.prank(manager);
        swarm.pausePool(_pool(where));
    }

    function resume(uint8 where) external {
        vm.prank(manager);
        swarm.resumePool(_pool(where));
    }

    function end(uint8 seldom) external {
        if (seldom > 5) return;
        vm.prank(manager);
        swarm.endPool(pools[1]);
    }

    function sweep() external {
        swarm.sweep(pools[1]);
    }

    // ---- what must hold

    function checkBooks() external view {
        uint256 staked = 0;
        for (uint256 i = 0; i < providers.length; ++i) {
            StakeVault.StakeInfo memory stake = vault.stakeOf(providers[i]);
            staked += uint256(stake.bonded) + stake.unbonding + stake.frozen;
        }
        eq(token.balanceOf(address(vault)), staked);
        uint256 held = 0;
        for (uint256 i = 0; i < pools.length; ++i) {
            held += swarm.poolInfo(pools[i]).escrow + swarm.poolInfo(pools[i]).reserved + swarm.poolInfo(pools[i]).bond;
        }
        eq(token.balanceOf(address(swarm)), held);
    }

    function checkReservations() external view {
        for (uint256 p = 0; p < pools.length; ++p) {
            uint256 due = 0;
            for (uint256 n = 0; n < NODES; ++n) {
                uint64[] storage list = _epochs[pools[p]][n];
                for (uint256 i = 0; i < list.length; ++i) {
                    Work.WorkInfo memory work = swarm.workInfo(pools[p], vm.addr(nodeKey + n), list[i]);
                    due += work.reserved;
                    yes(work.reservedUnits <= work.units, "no more is reserved than counts");
                }
            }
            eq(swarm.poolInfo(pools[p]).reserved, due);
        }
    }

    function checkUnits() external view {
        for (uint256 p = 0; p < providers.length; ++p) {
            uint256 units = p == 2 ? 2 : 0; // the judges' provider has two more
            for (uint256 n = 0; n < NODES; ++n) {
                address key = vm.addr(nodeKey + n);
                if (swarm.nodeInfo(key).provider != providers[p]) continue;
                if (!swarm.nodeInfo(key).registered) eq(swarm.nodeInfo(key).units, 0);
                units += swarm.nodeInfo(key).units;
            }
            eq(swarm.unitsOf(providers[p]), units);
        }
    }

    /// What is mature and not voided is paid to whoever asks; what is voided for good is released.
    function checkNothingIsStranded() external {
        for (uint256 p = 0; p < pools.length; ++p) {
            for (uint256 n = 0; n < NODES; ++n) {
                uint64[] storage list = _epochs[pools[p]][n];
                for (uint256 i = 0; i < list.length; ++i) _free(pools[p], vm.addr(nodeKey + n), list[i]);
            }
        }
    }

    function _free(uint256 id, address worker, uint64 epoch) private {
        Work.WorkInfo memory work = swarm.workInfo(id, worker, epoch);
        if (work.reservedUnits == 0) return;
        if (work.voided) {
            if (vault.isFinal(swarm.memberInfo(id, worker).caseId)) swarm.release(id, worker, epoch);
            return;
        }
        if (block.timestamp < work.maturesAt) return;
        address owner = swarm.nodeInfo(worker).provider;
        uint256 before = token.balanceOf(owner);
        uint64[] memory epochs = new uint64[](1);
        epochs[0] = epoch;
        swarm.settle(id, worker, epochs);
        eq(token.balanceOf(owner), before + work.reserved);
    }

    function _provider(uint8 who) private view returns (address) {
        return providers[who % providers.length];
    }

    function _node(uint8 which) private view returns (address) {
        return vm.addr(nodeKey + which % NODES);
    }

    function _pool(uint8 where) private view returns (uint256) {
        return pools[where % pools.length];
    }

    function _epoch(uint256 id, uint64 back) private view returns (uint64) {
        uint64 now_ = swarm.epochAt(id, block.timestamp);
        return now_ < back ? 0 : now_ - back;
    }
}

contract InvariantsTest {
    Crowd private crowd;

    function setUp() public {
        crowd = new Crowd();
        crowd.setUp();
    }

    function targetContracts() public view returns (address[] memory targets) {
        targets = new address[](1);
        targets[0] = address(crowd);
    }

    struct FuzzSelector {
        address addr;
        bytes4[] selectors;
    }

    function targetSelectors() public view returns (FuzzSelector[] memory targets) {
        bytes4[26] memory all = [
            Crowd.wait_.selector,
            Crowd.wait_.selector,
            Crowd.commit.selector,
            Crowd.commit.selector,
            Crowd.commit.selector,
            Crowd.settle.selector,
            Crowd.settle.selector,
            Crowd.takeLeaf.selector,
            Crowd.takeEpoch.selector,
            Crowd.judge.selector,
            Crowd.prove.selector,
            Crowd.overturn.selector,
            Crowd.appeal.selector,
            Crowd.finalize.selector,
            Crowd.release.selector,
            Crowd.bond.selector,
            Crowd.unbond.selector,
            Crowd.rebond.selector,
            Crowd.withdraw.selector,
            Crowd.register.selector,
            Crowd.remove.selector,
            Crowd.join.selector,
            Crowd.fund.selector,
            Crowd.pause.selector,
            Crowd.resume.selector,
            Crowd.end.selector
        ];
        targets = new FuzzSelector[](1);
        targets[0].addr = address(crowd);
        targets[0].selectors = new bytes4[](30);
        for (uint256 i = 0; i < 26; ++i) targets[0].selectors[i] = all[i];
        targets[0].selectors[26] = Crowd.sweep.selector;
        targets[0].selectors[27] = Crowd.expel.selector;
        targets[0].selectors[28] = Crowd.join_.selector;
        targets[0].selectors[29] = Crowd.wait_.selector;
    }

    function invariant_every_token_is_somebodys() public view {
        crowd.checkBooks();
    }

    function invariant_what_is_reserved_is_what_work_is_due() public view {
        crowd.checkReservations();
    }

    function invariant_units_are_those_of_registered_nodes() public view {
        crowd.checkUnits();
    }

    function invariant_nobodys_matured_money_is_out_of_reach() public {
        crowd.checkNothingIsStranded();
    }
}
