"""What the commands say of a run with [diloco]: its progress, its end, its facts and what is odd about it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cli.errors import USAGE, CommandError
from cli.output import console, count_of, duration, rounded

if TYPE_CHECKING:
    from cli.run_directory import RunDirectory
    from node.run.file import CompiledRun
    from node.run.problems import RunFacts
    from node.status_schema import PretrainingPart
    from protocol.pretraining import Diloco
    from protocol.run import RunSpec


def check_peers(run: "RunSpec", peers: int) -> None:
    """Raises CommandError."""
    from protocol.pretraining import peers_rule

    if run.diloco is None:
        if peers != 1:
            why, remedy = "rounds of several are for runs with [diloco]", "leave --peers out, or add [diloco]"
            raise CommandError(f"{peers} peers cannot train this run", why, remedy, USAGE)
    elif why := peers_rule(peers, run.diloco):
        remedy = "give another number of --peers, or change [diloco] in the run file"
        raise CommandError(f"{peers} peers cannot train this run", why, remedy, USAGE)


def rounds_of(part: "PretrainingPart") -> str:
    """'round 4 of 20, loss 3.021, held-back 3.10, 4.15 bits/parameter, 5,120 tok/s, outer states equal 6 of 6'"""
    numbers = (
        ("loss {:.3f}", part.loss),
        ("held-back {:.3f}", part.eval_loss),
        ("{:.3g} bits/parameter", part.bits_per_parameter),
        ("{:,.0f} rollouts/s" if part.of_rollouts else "{:,.0f} tok/s", part.tokens_per_second),
    )
    said = [f"round {part.round} of {part.rounds}", *(form.format(one) for form, one in numbers if one is not None)]
    return ", ".join([*said, f"outer states equal {part.outer_states.equal} of {part.outer_states.of}"])


def numbers_of(record: dict[str, Any]) -> str:
    """'loss 2.31  held-back 2.40 (perplexity 11)  grad 0.8  4.15 bits/parameter  21,000 tok/s'"""
    parts: list[str] = []
    for name, form in (
        ("loss", "loss {:.3f}"),
        ("eval_loss", "held-back {:.3f}"),
        ("perplexity", "perplexity {:.4g}"),
        ("grad_norm", "grad {:.2g}"),
        ("bits_per_parameter", "{:.3g} bits/parameter"),
        ("tokens_per_second", "{:,.0f} tok/s"),
    ):
        value = record.get(name)
        if isinstance(value, int | float):
            parts.append(form.format(value))
    if record.get("refused"):
        parts.append(f"{record['refused']} contributions refused")
    return "  ".join(parts)


def summarise(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The numbers that a summary has of such a run; losses on held-back text, nats per token."""
    losses = [r["eval_loss"] for r in records if isinstance(r.get("eval_loss"), float)]
    tokens = sum(int(r.get("tokens", 0)) for r in records)
    last = records[-1] if records else {}
    bits = [r["bits_per_parameter"] for r in records if "bits_per_parameter" in r]
    return {
        "loss_first": rounded(losses[0] if losses else None),
        "loss_last": rounded(losses[-1] if losses else None),
        "loss_best": rounded(min(losses, default=None)),
        "perplexity": rounded(last.get("perplexity")),
        "tokens": tokens,
        "bits_per_parameter": rounded(bits[-1] if bits else None),
        "outer_root": last.get("outer_root"),
    }


def say_goodbye(summary: dict[str, Any], home: "RunDirectory") -> None:
    out = console()
    if summary["loss_first"] is not None:
        out.print(
            f"[bold]loss on held-back text {summary['loss_first']:.3f} -> {summary['loss_last']:.3f}[/]"
            + (f" (perplexity {summary['perplexity']:.4g})" if summary["perplexity"] is not None else ""),
            soft_wrap=True,
        )
    bits = summary["bits_per_parameter"]
    out.print(
        f"{summary['steps']} rounds of {summary['peers']} peers in {duration(summary['seconds'] or 0)}, "
        f"{summary['tokens']:,} tokens{f', {bits:.3g} bits a parameter and round' if bits else ''}; "
        f"ended by {summary['ended_by']}",
        soft_wrap=True,
    )
    for alarm in summary["alarms"]:
        out.print(f"[yellow]alarm {alarm['name']}[/] at round {alarm['step']}: {alarm['text']}", soft_wrap=True)
    out.print(f"outer state: {summary['outer_root']}", soft_wrap=True)
    out.print(f"report: {home.report}   model: {home.model}", soft_wrap=True)


def exchange_warnings(run: "RunSpec") -> list[str]:
    """What is probably not meant of how peers meet, whatever they learn from."""
    rules, found = run.diloco, list[str]()
    if rules and rules.outer_momentum >= 0.8 and run.recipe.steps < 100:
        found.append(
            f"outer_momentum = {rules.outer_momentum:g} is for runs of hundreds of rounds: over 20 rounds 0.9 was "
            "worse than one peer alone"
        )
    if rules and rules.exchange == "sparse" and run.recipe.steps < 100:
        found.append("exchange = 'sparse' fills its feedback in the first rounds; of few rounds 'int4' learns more")
    return found


def warnings_about(run: "RunSpec", facts: "RunFacts", context: int | None) -> list[str]:
    """What is legal and probably not meant. context: positions that the model was made for, if its files say."""
    text, rules = run.pretraining, run.diloco
    assert text and rules  # a run of this kind was checked for them
    total, found = run.recipe.steps * rules.round_steps, exchange_warnings(run)
    if text.warmup_steps >= text.decays_from(total):
        found.append(
            f"the warm-up of {text.warmup_steps} steps reaches into the decay of {total}: the rate has no peak"
        )
    if context is not None and text.sequence > context:
        found.append(f"sequence = {text.sequence} is longer than the {context} positions that the model was made for")
    for part in facts.parts:
        asked = part.share * total * rules.batch_tokens / text.sequence
        if asked > 4 * part.problems:
            found.append(
                f"{part.label}: each peer alone reads its {part.problems:,} rows {asked / part.problems:.0f} times"
            )
    return found


def fact_rows(compiled: "CompiledRun", facts: "RunFacts") -> list[tuple[str, str]]:
    """The table of `run validate`."""
    from node.run.problems import TextFacts

    run, text, rules = compiled.spec, compiled.spec.pretraining, compiled.spec.diloco
    assert text and rules  # a run of this kind was checked for them
    total = run.recipe.steps * rules.round_steps
    data = [part for part in facts.parts if isinstance(part, TextFacts)]
    return [
        ("run", f"{run.name}  ({compiled.root.hex()})"),
        ("kind", "pre-training, at a desk and in a swarm"),
        ("model", f"{count_of(facts.parameters)} parameters, {len(compiled.files)} files"),
        *(
            (
                "text",
                f"{part.label}: {part.share:.0%} of the rows ({part.annealing:.0%} while annealing), "
                f"{part.tokens:,} tokens, {part.problems:,} rows, {part.held_back:,} held back",
            )
            for part in data
        ),
        (
            "rounds",
            f"{run.recipe.steps} of {rules.round_steps} inner steps of {rules.batch_tokens:,} tokens a peer, "
            f"{text.optimizer}, moments {rules.inner_state}",
        ),
        (
            "rate",
            f"{text.learning_rate:g}, warm-up {text.warmup_steps} inner steps, falls from {text.decays_from(total):,} "
            f"of {total:,} on; z-loss {text.z_loss:g}",
        ),
        exchange_row(rules, facts.parameters),
    ]


def exchange_row(rules: "Diloco", parameters: int) -> tuple[str, str]:
    """How peers meet, for the table of `run validate`."""
    from protocol.exchange import bits_per_number, form_of

    bits = bits_per_number(form_of(rules), {"whole chunks": (rules.chunk, 256)}) / rules.fragments
    return (
        "exchange",
        f"{rules.exchange}: {bits:.3g} bits a parameter, {bits * parameters / 8e6:.3g} MB a peer and round; "
        f"outer rate {rules.outer_rate:g}, momentum {rules.outer_momentum:g}",
    )


def traffic(run: Any, parameters: int) -> list[dict[str, Any]]:
    """Of each form: bits a parameter, and bytes that a peer sends each round. run: a run file whose peers meet."""
    import msgspec

    from protocol.exchange import bits_per_number, form_of
    from protocol.pretraining import Diloco

    rules, found = run.diloco or Diloco(), list[dict[str, Any]]()
    for name in ("float32", "int8", "int4", "sparse"):
        bits = bits_per_number(form_of(msgspec.structs.replace(rules, exchange=name)), {"a": (rules.chunk, 256)})
        size = int(bits * parameters / 8)
        found.append({"exchange": name, "bits_per_parameter": bits, "bytes": size, "chosen": name == rules.exchange})
    return found
