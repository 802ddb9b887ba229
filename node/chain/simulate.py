"""What transactions would do and cost, without sending any. Blocking.

One call is simulated by eth_call and eth_estimateGas. Several that build on each other (approve, then bond) go
through eth_simulateV1, which runs them in a row on top of the latest block. Where an endpoint has no such method (or,
like anvil 1.7, not for deployments) only the first is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from contracts.asking import at_once
from contracts.bindings import TransactionCall
from node.chain.errors import InsufficientFunds, RpcRefused, RpcUnreachable, from_revert, tokens, translate
from node.chain.refusals import EndpointRefused, revert_of
from node.chain.rpc import EXPECTED, Eth
from node.chain.transactions import BASES, price_now
from protocol.identity import Address

GAS_PRICE_ORACLE = "0x420000000000000000000000000000000000000F"
"""The OP stack's contract that knows what a transaction's data costs on the layer below."""
_GET_L1_FEE = bytes.fromhex("49948e0e")  # getL1Fee(bytes)


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One transaction to be. action completes "cannot ..."."""

    action: str
    call: TransactionCall


class Estimate(msgspec.Struct, frozen=True):
    """exact: simulated; else a guess, where the endpoint cannot tell before earlier steps are on chain; l1_fee: wei."""

    action: str
    gas: int
    exact: bool
    l1_fee: int


class Simulation(msgspec.Struct, frozen=True):
    """Nothing reverts. fee, max_fee: wei per gas, expected and at most; cost: wei expected in all."""

    steps: tuple[Estimate, ...]
    fee: int
    max_fee: int

    @property
    def gas(self) -> int:
        return sum(step.gas for step in self.steps)

    @property
    def l1_fee(self) -> int:
        return sum(step.l1_fee for step in self.steps)

    @property
    def cost(self) -> int:
        return self.gas * self.fee + self.l1_fee

    @property
    def complete(self) -> bool:
        """Whether every step could be simulated."""
        return all(step.exact for step in self.steps)


def simulate(eth: Eth, steps: Sequence[SimulatedStep], sender: Address, *, l1_fees: bool) -> Simulation:
    """Raises what the first failing step would revert with (Reverted, InsufficientStake, InsufficientFunds)."""
    calls = [step.call for step in steps]
    gas = _gas_of_many(eth, steps, calls, sender) if len(steps) > 1 else None
    gas = gas or [_gas_of_one(eth, steps[0], calls[0], sender), *([None] * (len(steps) - 1))]
    try:
        price, have, layer1 = at_once(
            lambda: price_now(eth),
            lambda: eth.get_balance(sender),
            lambda: [l1_fee(eth, call) if l1_fees else 0 for call in calls],
        )
    except EXPECTED as error:
        raise translate(error, "ask for the fees") from error
    estimates = tuple(
        Estimate(step.action, guess_gas(call) if used is None else used, used is not None, fee)
        for step, call, used, fee in zip(steps, calls, gas, layer1, strict=True)
    )
    done = Simulation(estimates, price.base + price.tip, BASES * price.base + price.tip)
    if have < done.cost:
        why = f"{sender} has {tokens(have)} ETH, gas for this costs about {tokens(done.cost)}"
        raise InsufficientFunds(f"cannot {steps[0].action}", why, "send the account some of the chain's coin")
    return done


def guess_gas(call: TransactionCall) -> int:
    """About, from the size: a byte of a contract costs 200 to keep and up to 16 to send, a plain call rarely 100k."""
    return 100_000 if call.to else 60_000 + 216 * len(call.data)


def l1_fee(eth: Eth, call: TransactionCall) -> int:
    """Wei for the transaction's data on the layer below; 0 where there is no such oracle."""
    data = call.data + b"\xff" * 110  # bytes of a signed transaction besides its call data, about
    padded = data + b"\0" * (-len(data) % 32)
    asked = _GET_L1_FEE + (32).to_bytes(32) + len(data).to_bytes(32) + padded
    answer = eth.call({"to": GAS_PRICE_ORACLE, "data": "0x" + asked.hex()})
    return int.from_bytes(answer) if len(answer) == 32 else 0


def _gas_of_one(eth: Eth, step: SimulatedStep, call: TransactionCall, sender: Address) -> int:
    asked = {**call.fields(), "from": sender}
    try:
        return at_once(lambda: eth.call(asked), lambda: eth.estimate_gas(asked))[1]
    except EXPECTED as error:
        raise translate(error, step.action) from error


def _gas_of_many(
    eth: Eth, steps: Sequence[SimulatedStep], calls: Sequence[TransactionCall], sender: Address
) -> list[int | None] | None:
    """None where no endpoint can do that."""
    who = [{"from": sender, **({"to": call.to} if call.to else {})} for call in calls]
    asked = [{**names, "input": "0x" + call.data.hex()} for names, call in zip(who, calls, strict=True)]
    try:
        answer = eth.ask("eth_simulateV1", {"blockStateCalls": [{"calls": asked}]}, "latest")
    except (EndpointRefused, RpcUnreachable):
        return None
    if not answer:
        return None
    return [_gas_used(step, result) for step, result in zip(steps, _results(answer, steps), strict=True)]


def _results(answer: Any, steps: Sequence[SimulatedStep]) -> list[Any]:
    try:
        results = answer[0]["calls"]
    except (LookupError, TypeError) as error:
        raise RpcRefused(steps[0].action, "its simulation does not have the promised form") from error
    if not isinstance(results, list) or len(results) != len(steps):
        raise RpcRefused(steps[0].action, "its simulation does not have the promised form")
    return results


def _gas_used(step: SimulatedStep, result: Any) -> int:
    try:
        if int(result["status"], 16) == 1:
            return int(result["gasUsed"], 16)
        error = result.get("error") or {}
        revert = revert_of(str(error.get("message", "")), [error.get("data"), result.get("returnData")])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise RpcRefused(step.action, "its simulation does not have the promised form") from error
    raise from_revert(revert, step.action)
