"""Numbers at the edge of what the contracts' fields hold: beyond it a command says so and asks no chain."""

from typing import Any

import pytest
from web3 import Web3

from cli.contract.values import (
    MAX_CASE,
    MAX_EPOCH,
    MAX_LENGTH,
    MAX_POOL,
    MAX_TOKENS,
    MAX_TOTAL,
    MAX_UNITS,
    TOKEN,
    seconds,
    wei,
)
from cli.main import main
from contracts.bindings import NOBODY, Addresses, Contracts, PoolParams
from protocol.statements import Attestation, Earnings

NODE, ROOT = "0x" + "11" * 20, "ab" * 32
PEOPLE = ["--run-root", ROOT, "--trainer", NODE, "--validator", NODE]


@pytest.mark.parametrize(
    "arguments",
    [
        ["pool", "show", str(MAX_POOL + 1)],
        ["pool", "show", str(2**256)],
        ["pool", "show", "0"],
        ["pool", "show", "1.5"],
        ["case", "show", str(2**256)],
        ["case", "finalize", str(MAX_CASE + 1)],
        ["case", "list", "--pool", str(MAX_POOL + 1)],
        ["events", "--pool", str(2**256)],
        ["rewards", NODE, "--pool", str(2**256)],
        ["earnings", "show", str(MAX_POOL + 1)],
        ["claim", str(2**256), NODE, "line.json"],
        ["pool", "create", *PEOPLE, "--units-per-epoch", str(MAX_TOTAL + 1)],
        ["join", str(2**256)],
        ["stake", "-5"],
        ["stake", "1e400"],
        ["stake", "1e999999"],
        ["stake", "-1e999999"],
        ["stake", str(MAX_TOKENS + 1)],
        ["provider", "register", "--units", str(2**256)],
        ["pool", "create", *PEOPLE, "--max-units", str(MAX_UNITS + 1)],
        ["pool", "create", *PEOPLE, "--lease", "99999d"],
        ["pool", "create", *PEOPLE, "--slash", str(MAX_TOKENS + 1)],
        ["attest", "sign", "1", NODE, "--units", str(MAX_UNITS + 1), "--state-dir", "nowhere"],
    ],
)
def test_what_no_field_of_the_contracts_holds_is_a_usage_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["contract", *arguments, "--network", "no-such-network"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_the_largest_values_that_commands_take_fit_into_the_contracts_fields() -> None:
    """web3 refuses to build a call whose argument is out of its type's range."""
    contracts: Any = Contracts(Web3(), Addresses(*[NOBODY] * 5))
    most, length = wei(str(MAX_TOKENS)), seconds(str(MAX_LENGTH))
    times = {"window": length, "epoch_seconds": length, "lease_seconds": length}
    money = {
        "reward_per_unit": most,
        "slash_amount": most,
        "max_units_per_epoch": MAX_UNITS,
        "units_per_epoch": MAX_TOTAL,
    }
    contracts.create_pool(PoolParams(manager=NOBODY, validators=(NOBODY,), threshold=16, **times, **money))
    earnings = Earnings(MAX_POOL, MAX_EPOCH, MAX_EPOCH, bytes(32), MAX_TOTAL, bytes(32))
    contracts.post_earnings(earnings, [bytes(65)])
    contracts.claim(MAX_POOL, NOBODY, MAX_TOTAL, [bytes(32)])
    contracts.register_node(NOBODY, MAX_UNITS, 2**63, bytes(65))
    contracts.attest(Attestation(MAX_POOL, NOBODY, MAX_UNITS, 2**63 - 1, 2**63 - 1), [bytes(65)])
    contracts.appeal(MAX_CASE)
    contracts.bond(NOBODY, most)
    assert most == MAX_TOKENS * TOKEN
