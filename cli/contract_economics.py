"""`intellect-node contract economics`: from which stake on honesty pays, and what everybody earns, for a run and its
prices."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.table import Table

from cli.options import Sets
from cli.output import AsJson, console, ether, print_json
from node.units import TOKEN

if TYPE_CHECKING:
    from protocol.economics import Balance, EconomicTerms, Posts
    from protocol.run import RunSpec

GWEI = 10**9
EXAMPLE = (
    "Examples:  intellect-node contract economics --run run.toml   |   "
    "intellect-node contract economics --run run.toml --slash 50 --checked 0.1 --json"
)


def economics(
    run: Annotated[Path | None, typer.Option("--run", help="The run file; default: that of the demo.")] = None,
    sets: Sets = None,
    reward: Annotated[float, typer.Option(min=0, help="Pay in tokens per 1000 units (output tokens).")] = 1.0,
    slash: Annotated[float, typer.Option(min=0, help="Tokens that an objective fault costs.")] = 100.0,
    bonded: Annotated[
        float | None, typer.Option(min=0, help="Tokens that the provider has bonded; default: the least for its nodes.")
    ] = None,
    nodes: Annotated[
        int,
        typer.Option(
            min=1, rich_help_panel="Options", help="Nodes of that provider; each bonds as much as a slash takes."
        ),
    ] = 1,
    workers: Annotated[int, typer.Option(min=1, help="Workers that share the run's steps.")] = 3,
    tokens: Annotated[float | None, typer.Option(min=1, help="Output tokens per sample; default: the most.")] = None,
    checked: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of groups recomputed; default: what the power needs.")
    ] = None,
    saving: Annotated[float, typer.Option(min=0, max=1, help="Share of a group's cost that cheating saves.")] = 1.0,
    validators: Annotated[int, typer.Option(min=1, help="Validators of the pool.")] = 3,
    epochs: Annotated[int, typer.Option(min=0, help="Tables of earnings that it carries to the chain in a day.")] = 0,
    fee: Annotated[float, typer.Option(min=0, help="Gwei per gas; default: Base's least.")] = 0.005,
    as_json: AsJson = False,
) -> None:
    """Check probability, stake and gain of a cheat, and where they balance: honesty pays if S >= g(1-q)/q.

    A slash takes no more than each of a provider's nodes bonds for itself. Who carries one puts up a bond, and loses
    it if the slash was wrong; that moves no judge's stake. Below it: what judging and training earn beside the workers,
    and the gas of a day (a lease and a claim a week, and --epochs tables), which everybody pays for itself.
    """
    from cli.demo.prepare import OWN_RUN
    from contracts.deploy import DeployParams
    from node.run.file import load_run_file
    from protocol.audit import needed_share
    from protocol.economics import balance, daily_gas, posts
    from protocol.run import EnvironmentSpec, RunSpec

    file = load_run_file(run or OWN_RUN, sets or ())
    kind = EnvironmentSpec(name=file.environment.name if file.environment else "mix")  # costs do not depend on it
    spec = RunSpec(name=file.name, environment=kind, rollout=file.rollout, audit=file.audit, pay=file.pay)
    # Tokens, as `contract deploy` sets them where nobody says otherwise; what a network asks: `contract params`.
    stake = 100.0 * nodes if bonded is None else bonded
    taken = min(slash, stake / nodes)  # all of them may cheat at once, and a stake is lost only once
    terms = terms_of(spec, round(reward * TOKEN / 1000), round(taken * TOKEN), workers, tokens, saving)
    share = needed_share(terms.groups_per_window, spec.audit) if checked is None else checked
    result = balance(terms, share, spec.audit)
    only_pay = balance(msgspec.structs.replace(terms, slash=0), share, spec.audit)
    earned = posts(spec, workers * terms.units_per_window, share, validators)
    gas = daily_gas(epochs)
    gas_wei = round(gas * fee * GWEI)
    born = DeployParams()
    wrong = max(terms.slash * born.bond_bps // 10_000, born.min_bond)  # as the vault reckons what its carrier puts up
    if as_json:
        more = {
            "stake_at_risk_wei": str(terms.slash),
            "wrong_slash_wei": str(wrong),
            "validator_pay_wei": str(earned.judging * terms.reward_per_unit),
            "trainer_pay_wei": str(earned.training * terms.reward_per_unit),
            "pool_units_per_unit": earned.pool,
            "gas_per_day": gas,
            "gas_per_day_wei": str(gas_wei),
        }
        print_json(as_dict(terms, result, only_pay, spec) | more)
    else:
        _show(terms, result, only_pay, spec)
        console().print(f"  [dim]a wrong slash costs whoever carries it {ether(wrong)} tokens, and no judge's stake[/]")
        _show_posts(earned, terms, validators, epochs, gas, gas_wei)


def terms_of(
    spec: "RunSpec", reward_per_unit: int, slash: int, workers: int, tokens: float | None, saving: float
) -> "EconomicTerms":
    """What one worker does in an audit window of this run, and at which prices (wei)."""
    from protocol.economics import EconomicTerms

    rollout = spec.rollout
    files = math.ceil(rollout.files_per_step / workers) * spec.audit.window
    groups = files * rollout.prompts_per_file
    per_sample = rollout.max_output_tokens if tokens is None else min(tokens, rollout.max_output_tokens)
    units = round(groups * rollout.group_size * per_sample)
    return EconomicTerms(
        reward_per_unit=reward_per_unit, slash=slash, units_per_window=units, groups_per_window=groups, saving=saving
    )


def as_dict(terms: "EconomicTerms", result: "Balance", only_pay: "Balance", spec: "RunSpec") -> dict[str, Any]:
    """For programs: wei as strings, since they do not fit a double."""
    audit = spec.audit

    def plain(balance: "Balance") -> dict[str, Any]:
        windows = balance.windows_to_detection
        return {
            "detection": balance.detection,
            "gain_wei": str(balance.gain),
            "penalty_wei": str(balance.penalty),
            "break_even_wei": str(balance.break_even) if balance.break_even >= 0 else None,
            "expected_wei": str(balance.expected),
            "windows_to_detection": windows if math.isfinite(windows) else None,
            "honest_pays": balance.honest_pays,
        }

    return {
        "run": spec.name,
        "window_policies": audit.window,
        "cheated_share": audit.cheated_share,
        "power_wanted": audit.power,
        "groups_per_window": terms.groups_per_window,
        "units_per_window": terms.units_per_window,
        "checked_share": result.share,
        "pay_wei": str(result.pay),
        "objective_fault": plain(result),
        "statistical_fault": plain(only_pay),
    }


def _show(terms: "EconomicTerms", result: "Balance", only_pay: "Balance", spec: "RunSpec") -> None:
    out = console()
    audit = spec.audit
    out.print(f"run [bold]{spec.name}[/], one worker, one audit window of {audit.window} policies")
    out.print(
        f"  {terms.groups_per_window} groups, {terms.units_per_window:,} units, pay {ether(result.pay)} tokens; "
        f"{result.share:.1%} of the groups are recomputed ({result.share * terms.groups_per_window:.0f} groups)"
    )
    table = Table(box=None, header_style="dim", padding=(0, 2), show_edge=False)
    for name in (f"  a cheat in {audit.cheated_share:.0%} of the groups", "objective fault", "statistical fault"):
        table.add_column(name)
    both = (result, only_pay)
    table.add_row("  seen within one window (q)", *(f"{b.detection:.1%}" for b in both))
    table.add_row("  gains, if unseen (g)", *(ether(b.gain) for b in both))
    table.add_row("  loses, if seen (S)", *(ether(b.penalty) for b in both))
    table.add_row("  honesty pays from S =", *("never" if b.break_even < 0 else ether(b.break_even) for b in both))
    table.add_row("  expects on average", *(ether(b.expected) for b in both))
    table.add_row("  honesty pays", *("yes" if b.honest_pays else "NO" for b in both))
    out.print(table)
    out.print(f"  [dim]a slash finds {ether(terms.slash)} tokens for each of the provider's nodes[/]")
    out.print("  [dim]objective faults cost the stake and the pay of the window, statistical ones the pay[/]")


def _show_posts(earned: "Posts", terms: "EconomicTerms", validators: int, tables: int, gas: int, gas_wei: int) -> None:
    out = console()
    rate = terms.reward_per_unit
    out.print(
        f"in that window: all workers {ether(earned.units * rate)} tokens, each of {validators} validators "
        f"{ether(earned.judging * rate)}, the trainer {ether(earned.training * rate)}; "
        f"a worker's unit costs the pool {earned.pool:.2f} units"
    )
    carried = f", {tables} tables of earnings" if tables else ""
    cost = f"{gas_wei / GWEI:,.0f} gwei of coin"
    sends = f"a lease and a claim a week{carried}"
    out.print(f"gas of a day, for each of them: {gas:,} ({cost}), {sends}, out of its own pocket")
