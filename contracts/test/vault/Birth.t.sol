// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Base} from "../Base.sol";
import {StakeVault} from "../../src/StakeVault.sol";

contract BirthTest is Base {
    function _good() private view returns (StakeVault.Params memory) {
        return StakeVault.Params(2, 1, treasury, arbiter, 10_000, 10_000, 1);
    }

    function create(address token_, StakeVault.Params memory params) external returns (StakeVault) {
        return StakeVault(_create("StakeVault", abi.encode(token_, params)));
    }

    function _refused(address token_, StakeVault.Params memory params) private {
        (bool made,) = address(this).call(abi.encodeCall(this.create, (token_, params)));
        yes(!made, "refused");
    }

    function test_all_of_a_slash_may_be_burned_and_no_more() public {
        StakeVault made = this.create(address(token), _good());
        eq(made.burnBps(), 10_000);
        eq(made.unbondingPeriod(), 2);
        eq(made.bondBps(), 10_000);
        eq(made.minBond(), 1);
        eq(made.appealSeconds(), 1);
        eq(made.treasury(), treasury);
        eq(made.arbiter(), arbiter);
        StakeVault.Params memory params = _good();
        params.burnBps = 10_001;
        _refused(address(token), params);
        params = _good();
        params.bondBps = 10_001;
        _refused(address(token), params);
    }

    function test_what_a_case_may_take_is_still_there_when_its_appeal_is_over() public {
        StakeVault.Params memory params = _good();
        params.appealSeconds = 500;
        params.unbondingPeriod = 999;
        vm.expectRevert(abi.encodeWithSelector(StakeVault.UnbondingTooShort.selector, 999, 1000));
        new StakeVault(token, params);
        _refused(address(token), params);
        params.unbondingPeriod = 1000;
        eq(this.create(address(token), params).unbondingPeriod(), 1000);
    }

    function test_nobody_and_nothing_are_refused() public {
        _refused(address(0), _good());
        StakeVault.Params memory one = _good();
        one.arbiter = treasury;
        _refused(address(token), one);
        for (uint256 i = 0; i < 5; ++i) {
            StakeVault.Params memory params = _good();
            if (i == 0) params.treasury = address(0);
            if (i == 1) params.arbiter = address(0);
            if (i == 2) params.unbondingPeriod = 0;
            if (i == 3) params.appealSeconds = 0;
            if (i == 4) params.minBond = 0;
            _refused(address(token), params);
        }
    }

    function test_the_swarm_is_named_once_by_the_deployer() public {
        StakeVault made = this.create(address(token), _good());
        vm.prank(anybody);
        vm.expectPartialRevert(StakeVault.OnlyDeployer.selector);
        made.setSwarm(anybody);
        vm.expectPartialRevert(StakeVault.ZeroAddress.selector);
        made.setSwarm(address(0));
        made.setSwarm(anybody);
        eq(made.swarm(), anybody);
        vm.expectPartialRevert(StakeVault.SwarmAlreadySet.selector);
        made.setSwarm(provider);
    }

    function test_before_there_is_a_swarm_all_of_a_stake_may_leave() public {
        StakeVault made = this.create(address(token), _good());
        _give(anybody, 5, address(made));
        vm.prank(anybody);
        made.bond(anybody, 5);
        vm.prank(anybody);
        made.unbond(5);
        eq(made.bondedOf(anybody), 0);
    }
}
